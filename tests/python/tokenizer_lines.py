"""Text to try tokenizers on, the same for the same seed: many scripts, and what lies at the edges of their rules.

A line is any text: it may hold line breaks, NULs and whatever else UTF-8 can say. `lines` and `raw_lines` go through
their kinds in turn, so that a hundred have some of each; `fuzz_string` makes short ones fast. What counts as assigned is
the running Python's: lines are the same between Pythons of one Unicode version.
"""

from __future__ import annotations

import functools
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence

# Some words are here because tokenizers have a token for them that takes an unusual merge or none.
SENTENCES = """
The quick brown fox jumps over the lazy dog, and nobody asked it why.
"Don't," she said, "you'll see: they've gone, it's over; I'd say we're late and I'm tired."
Die Größe der Wörterbücher überraschte möglicherweise sogar die Fußgängerübergangsbeauftragten.
Voilà : l'été dernier, Zoë a goûté çà et là des œufs à la coque « naïvement » préparés.
El niño preguntó: ¿cuántos años tiene el pingüino? ¡Más de mil derrotas y accesorios!
A avó disse que não há corações vazios; amanhã, às três, virão os cães e as maçãs.
Perché l'università è così lontana? Lui però andò là, più giù, con la pipa giuridica.
Zażółć gęślą jaźń; pchnąć w tę łódź jeża lub ośm skrzyń fig.
Příliš žluťoučký kůň úpěl ďábelské ódy, ačkoli to nikdo nechtěl.
Pijamalı hasta yağız şoföre çabucak güvendi; çeşitli İstanbul'daki IŞIK dikkat çekti.
Tôi có thể ăn thủy tinh mà không hại gì; người Việt viết dấu chồng lên dấu: ấ ầ ẩ ẫ ậ.
Selanjutnya, masyarakat melanjutkan penerbangan yang dibilang mahal oleh Negeri tetangga.
Язык является фактором, факты появляются, задолженность рассматривают; съешь же ещё этих мягких булок.
Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п'яне знаємо.
Ταχίστη αλώπηξ βαφής ψημένη γη, δρασκελίζει υπέρ νωθρού κυνός· ΟΔΥΣΣΕΥΣ, ὁ ἀνὴρ ᾧ ἔδωκεν.
نص حكيم له سر قاطع وذو شأن عظيم، بسبب أسبوعٍ من المطر؛ هل قرأتَ الكِتَابَ ١٢٣٤؟
דג סקרן שט בים מאוכזב ולפתע מצא לו חברה; שָׁלוֹם עֲלֵיכֶם, אָמַר הַזָּקֵן.
بر اساس گزارش، می‌خواهم بدانم چرا ۱۲۳ کتاب‌ها را نمی‌خوانند.
ہر انسان آزاد پیدا ہوا ہے، اور اُسے یہ حق حاصل ہے۔
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश; क्षत्रिय, ज्ञान, क़लम, ज़रा १२३।
আমি কাঁচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না; ড় ঢ় য় ৎ।
நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது; ஸ்ரீ ஷொ.
నేను గాజు తినగలను మరియు అలా చేసినా నాకు ఏమి ఇబ్బంది లేదు.
എനിക്ക് ഗ്ലാസ് തിന്നാം, അതെന്നെ വേദനിപ്പിക്കില്ല; ൻ ർ ൽ ൾ.
මට වීදුරු කෑමට හැකියි. එයින් මට කිසි හානියක් සිදු නොවේ; ශ්‍රී ලංකා.
เดือนมิถุนายนฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ สูบบุหรี่ในสัปดาห์นั้นไม่ได้ ๑๒๓
ຂ້ອຍກິນແກ້ວໄດ້ໂດຍທີ່ມັນບໍ່ໄດ້ເຮັດໃຫ້ຂ້ອຍເຈັບ
ខ្ញុំអាចញុំកញ្ចក់បាន ដោយគ្មានបញ្ហារ ស្រ្តី
ကျွန်တော် ကျွန်မ မှန်စားနိုင်တယ်။ ၎င်းကြောင့် ထိခိုက်မှုမရှိပါ။
ཤེལ་སྒོ་ཟ་ནས་ང་ན་གི་མ་རེད། བསྒྲུབས།
მინას ვჭამ და არა მტკივა; ᲛᲗᲐᲕᲠᲣᲚᲘ ასოები.
Կրնամ ապակի ուտել և ինծի անհանգիստ չըներ։
ኣነ ጥርሙዝ ክበልዕ ይኽእል እየ፤ ሰማይ አይታረስ ንጉሥ አይከሰስ።
ᠪᠢ ᠰᠢᠯᠢ ᠢᠳᠡᠶᠦ ᠴᠢᠳᠠᠨᠠ ᠂ ᠨᠠᠳᠤᠷ ᠬᠣᠤᠷᠠᠳᠠᠢ ᠪᠢᠰᠢ
ᎠᏂᏣᎳᎩ ꮳꮃꭹ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 닭갈비, 뷁!
いろはにほへと散りぬるを。お腹がいっぱいで、ガラスを食べられません。ﾊﾝｶｸ ゼンカク ヴ か゛
人力资源和社会保障部昨天说：加拿大和新加坡的足球俱乐部，众所周知，兢兢业业，各种各样的都有。
毛澤東思想與毛泽东思想；天地玄黃，宇宙洪荒。龍龜鬱齾，𠮷野家，㐂，﨑。
𝕿𝖍𝖊 𝓺𝓾𝓲𝓬𝓴 𝗯𝗿𝗼𝘄𝗻 𝚏𝚘𝚡; Ｆｕｌｌ　ｗｉｄｔｈ！ ﬁﬂ ﷺ ㍿ ℌ ℵ ǅ ĳ ŉ ſ
ꜱᴍᴀʟʟ ⓒⓘⓡⓒⓛⓔⓓ 🅱🅻🅾🅲🅺 ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∮E·da = Q, α ∧ ¬β → γ, ≠ ≮
""".strip().splitlines()

CODE = [
    'def f(x: int = 0x1F) -> str:\n    """Doc."""\n\tif x >= 1_000 and not (x % 3):\n        return f"{x!r:>10}\\n"  # ünïcode\n',
    "template <typename T>\nstd::vector<T>&& f(const T* p) noexcept(false) { return p->x() ? a[i++] <<= 2 : ~b; }  // 1'000\r\n",
    'fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<_> = (0..10).map(|x| x * 2).collect();\n    println!("{:?}", v);\n}\n\n\n',
    '{"a": [1, 2.5e-3, null, true], "b\\u00e9": {"c\\n": "\\"</script>"}}',
    "<div class=\"a b\" data-x='1'>&lt;&amp;&#x1F600; <!-- comment --><br/></div>\r\n\r\n",
    'for i in $(seq 1 10); do echo "$i: ${a[@]//x/y}" >>/dev/null 2>&1 || exit $?; done # it\'s\n',
    "\\begin{equation}\n  \\frac{\\partial^2 u}{\\partial t^2} = c^2 \\nabla^2 u \\qquad \\forall\\,x\n\\end{equation}",
    "SELECT t.*, COUNT(*) AS \"n\" FROM `t` WHERE a <> 'O''Brien' AND b LIKE '%\\_%' GROUP BY 1;--\n",
    "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n \tall:\n+\t$(CC) -o $@ $^\n-\n\\ No newline at end of file\n",
    "    \t  if(a){\n\t\t\tb();\n        \n    }\n\n  \n}",
    "::::=====>>>>----####****____////\\\\\\\\....,,,,;;;;!!!!????",
]

EMOJI = [
    "😀😃😄 🙂", "👩🏽‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇩🇪🇫🇷🇯🇵🇺", "👍🏻👍🏿👍", "❤️❤︎❤", "1️⃣#️⃣*⃣", "🧑🏾‍❤️‍💋‍🧑🏻", "☺︎☺️",
    "🤷🏽‍♀️", "\u200d", "👩\u200d\u200d👩", "🏽", "\ufe0f", "a\u200db", "🫠🪿🩷", "™️©®", "🀄🃏🂡",
]  # fmt: skip

# Composed and decomposed, singletons, exclusions from composition, marks in the wrong order, Hangul from its parts.
MARKS = [
    "e\u0301", "\u00e9", "\u212b", "A\u030a", "\u00c5", "\u1e9b\u0323", "s\u0323\u0307", "s\u0307\u0323", "\u1e69",
    "\u0915\u093c", "\u0958", "\u09a1\u09bc", "\u0b95\u0bca", "\u0b95\u0bc6\u0bbe", "\u1100\u1161\u11a8", "\uac00\u11a8",
    "\uac01\u11a8", "\u1100\u1161\u11a7", "\u1100\u1100\u1161", "\u1161\u11a8", "\u115f\u1161", "\ua960\u1161", "\u1112\u119e\u11ab",
    "\u2126", "\u03c9\u0345\u0301", "\u1fb7", "\u0344", "\u0308\u0301", "\u0340\u0341\u0343", "\u0374", "\u037e", "\u0387",
    "\u05e9\u05c1\u05bc", "\ufb2c", "\u05e9\u05bc\u05c1", "\u0627\u0653", "\u0622", "\u0651\u064e", "\u064e\u0651",
    "\u0f71\u0f74\u0f7b", "\u0f73", "\u0f81", "\u2adc", "\u2add\u0338", "\U0001d15e", "\U0001d157\U0001d165", "\U0001d1bb",
    "\u226e", "<\u0338", "\u3099", "\u304b\u3099", "\u304c", "\u30cf\u309a", "\uff76\uff9e", "\u1b06", "\U00011099\U000110ba",
    "\U00011131\U00011127", "a\u0301\u0327", "a\u0327\u0301", "a\u0315\u0300\u05ae\u0300b", "a\u0300\u0301\u0302\u0303\u0304",
    "\u0301leading", " \u0301", "\n\u0301", "\u200d\u0301", "\u0e33", "\u0e4d\u0e32", "\uf900", "\u8c48", "\U0002f800",
    "\ufb01", "\u1e9e\u00df", "\u0130\u0131", "i\u0307", "\u01c5", "\u0390", "\u1fd3", "\u00b5\u03bc", "\u2000\u2001\u2002\u2003",
]  # fmt: skip

NUMBERS = [
    "0", "007", "42", "123", "1234", "1234567890", "3.14159265358979", "1,234,567.89", "-1e-10", "0xDEADBEEF", "1_000_000",
    "١٢٣٤٥", "۱۲۳", "१२३", "৪৫", "１２３", "𝟘𝟙𝟚𝟛", "Ⅷ", "½ ⅔", "x²³", "①②⑩", "㊿", "一二三", "〇", "൰", "᛭", "1st 2nd 3rd", "10%",
    "$9.99", "€5", "№7", "2024-02-29T23:59:60Z", "192.168.0.1", "v1.2.3-rc.4", "1/2", "1:2", "9" * 60, "12 345,67", "٣٫١٤",
    "0.1+0.2==0.3", "1a2b3c", "a1", "½1", "²1",
]  # fmt: skip

# (?i:'s) also matches 'ſ (U+017F), and with full case folding ß and ſt are near misses.
CONTRACTIONS = [
    f"{word}{mark}{end}{after}"
    for mark in ("'", "\u2019", "`", "''")
    for word, after in (("it", ""), ("IT", " x"), ("", "a"), (" ", "."), ("é", ""), ("\u0301", "\u0301"), ("9", "9"))
    for end in (
        "s", "S", "\u017f", "t", "T", "re", "RE", "rE", "ve", "Ve", "m", "M", "ll", "LL", "lL", "d", "D", "\u00df", "\ufb06",
        "\u017ft", "\u212a", "",
    )
]  # fmt: skip

URLS = [
    "https://user:pw@example.org:8080/a/b%20c/d.html?q=1&r=%C3%A9#frag-ment_2",
    "ftp://[2001:db8::1]/~me/x.tar.gz",
    "someone+tag@mail.example.co.uk",
    "C:\\Users\\me\\Documents\\report (final) v2.docx",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
    "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a",
    "http://пример.испытание/путь?ключ=значение",
]

SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
NEARLY_SPACES = "\x1c\x1d\x1e\x1f\u180e\u200b\u200c\u200d\u2060\ufeff\xad\u2800\u3164\uffa0\u2581\u0120\u010a"  # ▁ Ġ Ċ too
CONTROLS = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))] + [
    "\u061c", "\u200e", "\u200f", "\ufff9", "\ufffa", "\ufffb", "\ufffc", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\U0001fffe",
    "\U0010ffff", "\U000e0001", "\U000e0041", "\U000e007f", "\u034f", "\ufe00", "\U000e0100",
]  # fmt: skip
# What the tokenizers' own notation looks like.
NOTATION = [
    "▁", "Ġ", "Ċ", "ĉ", "Ã©", "<0x0A>", "<0xFF>", "<0x", "<unk>", "<s>", "</s>", "<|", "|>", "<｜", "｜>", "[INST]", "[/INST]",
    "##", "@@", "</w>",
]  # fmt: skip

LONG_WORDS = [
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "Muvaffakiyetsizleştiricileştiriveremeyebileceklerimizdenmişsinizcesine",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "กรุงเทพมหานครอมรรตนโกสินทร์มหินทรายุธยามหาดิลกภพนพรัตนราชธานีบูรีรมย์",
    "寿限無寿限無五劫の擦り切れ海砂利水魚の水行末雲来末風来末",
    "aAaAaAbBbBXmlHttpRequestURLParserFactoryBeanIDs",
]


@functools.cache
def alphabets() -> list[list[str]]:
    """All assigned code points that have a name, in groups by its first word: LATIN, CYRILLIC, CJK, EGYPTIAN, ..."""
    groups: dict[str, list[str]] = {}
    for code in range(0x110000):
        if name := unicodedata.name(chr(code), ""):
            groups.setdefault(name.split(maxsplit=1)[0].split("-", maxsplit=1)[0], []).append(chr(code))
    return [groups[word] for word in sorted(groups)]


@functools.cache
def pages() -> list[str]:
    """All assigned code points of each 256 in a row; of the many pages of one kind of letter only every sixteenth."""
    found = []
    for start in range(0, 0x110000, 256):
        names = {chr(c): name for c in range(start, start + 256) if (name := unicodedata.name(chr(c), ""))}
        alike = len({name.rpartition("-")[0] or name.rpartition(" ")[0] for name in names.values()}) == 1
        if names and (start % 4096 == 0 or not alike):
            found.append("".join(names))
    return found


def any_code_point(rng: random.Random) -> str:
    """Of any plane, assigned or not, private or not; no surrogate."""
    code = int(rng.random() * (0x110000 - 0x800))
    return chr(code + 0x800 if code >= 0xD800 else code)


def repeated(rng: random.Random, texts: Sequence[str], low: int, high: int, between: str = "") -> str:
    return between.join(rng.choices(texts, k=rng.randint(low, high)))


def sentence(rng: random.Random, _: Sequence[str]) -> str:
    """A sentence or a few, as they are, in another case or normal form, or cut anywhere."""
    text = repeated(rng, SENTENCES, 1, 3, rng.choice((" ", "\n", "\n\n", "", "  ", "\r\n")))
    change = rng.randrange(8)
    if change == 0:
        return unicodedata.normalize(rng.choice(("NFD", "NFC", "NFKD", "NFKC")), text)
    if change == 1:
        return rng.choice((text.upper(), text.lower(), text.title(), text.swapcase()))
    if change == 2:
        start = rng.randrange(len(text))
        return text[start : start + rng.randint(1, 60)]
    if change == 3:
        return " " * rng.randint(1, 3) + text + " " * rng.randint(0, 3)
    return text


def code(rng: random.Random, _: Sequence[str]) -> str:
    text = repeated(rng, CODE, 1, 2)
    return text.replace("\n", "\r\n") if rng.random() < 0.2 else text.replace("    ", "\t") if rng.random() < 0.2 else text


def emoji(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, EMOJI, 1, 8, rng.choice(("", " ", "\u200d", "a", "\ufe0f")))


def marks(rng: random.Random, _: Sequence[str]) -> str:
    """Normalization: known cases, or a base with marks of all combining classes in any order."""
    if rng.random() < 0.5:
        return repeated(rng, MARKS, 1, 6, rng.choice(("", " ", "a", "\u0323", "\u0301", "\u093c")))
    words = []
    for _word in range(rng.randint(1, 4)):
        base = rng.choice("aeosAÅé\u00f1\u0915\u05d0\u0627\u1100\uac00\u304b\u03b1 <.1") + repeated(rng, stackable(), 0, 8)
        words.append(unicodedata.normalize(rng.choice(("NFC", "NFD")), base) if rng.random() < 0.3 else base)
    return "".join(words)


@functools.cache
def stackable() -> list[str]:
    """Code points with a combining class, or that compose with what is before them: Hangul vowels and tails, ..."""
    found = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))]
    return found + [chr(c) for c in (*range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0x09BE, 0x0BBE, 0x0CC2, 0x0DCF, 0x102E)]


def alphabet(rng: random.Random, _: Sequence[str]) -> str:
    """Letters of one script or of a few, with or without spaces."""
    letters: list[str] = []
    for group in rng.choices(alphabets(), k=rng.randint(1, 3)):
        letters += rng.choices(group, k=rng.randint(1, 20)) + rng.choices(("", " ", ".", "a", "1"), k=1)
    return "".join(letters)


def walk(rng: random.Random, _: Sequence[str]) -> str:
    """Code points at small steps from one of any plane, or each of any plane."""
    if rng.random() < 0.5:
        return "".join([any_code_point(rng) for _step in range(rng.randint(1, 40))])
    at, found = ord(any_code_point(rng)), []
    for _step in range(rng.randint(1, 60)):
        at = (at + rng.randint(-3, 17)) % 0x110000
        if not 0xD800 <= at < 0xE000:
            found.append(chr(at))
    return "".join(found)


def columns(rng: random.Random, _: Sequence[str]) -> str:
    """Sixteen neighbours, of the planes that are in use."""
    start = rng.choice((rng.randrange(0x1000), rng.randrange(0xD80), rng.randrange(0xE00, 0x3400), rng.randrange(0xE000, 0xE020)))
    return "".join([chr(c) for c in range(start * 16, start * 16 + 16) if not 0xD800 <= c < 0xE000])


def controls(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, CONTROLS, 1, 12, rng.choice(("", "", "a", " ")))


def whitespace(rng: random.Random, _: Sequence[str]) -> str:
    """Runs of one space or of many, before, between and after words, line breaks and digits."""
    text = ""
    for _run in range(rng.randint(1, 6)):
        pool = rng.choice(
            (SPACES, SPACES, SPACES + NEARLY_SPACES, " ", " ", "\n", "\r\n", "\t ", " \n", "\xa0", "\u3000", "\u2028 ")
        )
        text += "".join(rng.choices(pool, k=rng.choice((1, 2, 3, 4, 7, 8, 16, 31, 64))))
        text += rng.choice(("", "", "a", "b.", "1", "\u00e9", "中", "!", "'s", "\u0301"))
    return text


def numbers(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, NUMBERS, 1, 6, rng.choice(("", " ", ",", "a", ".", "\n")))


def contractions(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, CONTRACTIONS, 1, 8, rng.choice(("", " ", "x")))


def addresses(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, URLS, 1, 3, rng.choice((" ", "", "\n", ", ")))


def long_word(rng: random.Random, _: Sequence[str]) -> str:
    """No place to split at: compounds, one letter again and again, random letters of one script."""
    kind = rng.randrange(4)
    if kind == 0:
        return repeated(rng, LONG_WORDS, 1, 5)
    length = rng.choice((50, 200, 1000, 3000))
    if kind == 1:
        return rng.choice(("a", "A", "=", "-", "ab", "0", "!", "é", "ا", "的", "ー", "😀", "\u0301", "x\u0301", "▁")) * length
    if kind == 2:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=length))
    letters = [c for c in rng.choice(alphabets()) if c.isalpha()] or ["z"]
    return "".join(rng.choices(letters, k=length))


def notation(rng: random.Random, _: Sequence[str]) -> str:
    return repeated(rng, NOTATION, 1, 8, rng.choice(("", " ", "a", "\n")))


def special(rng: random.Random, specials: Sequence[str]) -> str:
    """Special tokens where none is expected, doubled, cut, in another case, beside spaces and marks, inside words."""
    text = ""
    for _piece in range(rng.randint(1, 5)):
        token = rng.choice(specials or NOTATION)
        change = rng.randrange(10)
        if change == 0:
            token = token[: rng.randint(1, len(token))]
        elif change == 1:
            token = token[rng.randrange(len(token)) :]
        elif change == 2:
            token = token.swapcase()
        elif change == 3:
            cut = rng.randint(0, len(token))
            token = token[:cut] + rng.choice((" ", "\u200b", token, "\n", "x", "\u0301")) + token[cut:]
        elif change == 4:
            token += token
        before = rng.choice(("", "", " ", "  ", "a", "\n", "é", "'", "1", "<", "\u00a0", "▁", rng.choice(SENTENCES)))
        text += before + token + rng.choice(("", "", " ", "  ", "a", "\n", "\u0301", "s", "1", ">", "\u0338", "."))
    return text


def mixed(rng: random.Random, specials: Sequence[str]) -> str:
    return rng.choice(("", " ", "\n")).join([rng.choice(KINDS)(rng, specials)[:80] for _part in range(rng.randint(2, 5))])


KINDS: list[Callable[[random.Random, Sequence[str]], str]] = [
    sentence, code, emoji, marks, alphabet, walk, columns, controls, whitespace, numbers, contractions, addresses, long_word,
    notation, special,
]  # fmt: skip
SHORT = ["", " ", "  ", "\n", "\0", "a", " a", "a ", "\u00e9", "中", "😀", "\u0301", "\ufeff", "\ufeffa", "▁", "'", "'s", "1"]
FIXED = [*SHORT, *SENTENCES, *CODE, *EMOJI, *MARKS, *NUMBERS, *URLS, *LONG_WORDS, *NOTATION, *SPACES, *NEARLY_SPACES]


def huge(rng: random.Random) -> str:
    """A million bytes and at most a sentence more."""
    parts: list[str] = []
    size = 0
    while size < 1_000_000:
        parts.append(sentence(rng, ()) + rng.choice((" ", "\n", "")))
        size += len(parts[-1].encode())
    return "".join(parts)


def lines(count: int, seed: int, specials: Sequence[str] = (), with_huge: bool = False) -> Iterator[str]:
    """`count` lines; every third, while there are, is one that is fixed. `with_huge`: the last is a million bytes long."""
    rng = random.Random(seed)
    kinds = [*KINDS, mixed, mixed, mixed]
    fixed = list(dict.fromkeys([*FIXED, *specials, *pages()]))
    rng.shuffle(fixed)
    for i in range(count):
        if with_huge and i == count - 1:
            yield huge(rng)
        elif i % 3 == 2 and fixed:
            yield fixed.pop()
        else:
            yield kinds[(i - i // 3) % len(kinds)](rng, specials)


# Not UTF-8: cut short, longer than need be, surrogates, past U+10FFFF, bytes that begin or continue nothing.
INVALID = [
    b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xc0\x80", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80",
    b"\xf0\x8f\xbf\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xc3", b"\xe2\x82", b"\xe2", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0",
    b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc", b"\xf0\x90\x28\xbc", b"\xc3\x28", b"\xa0\xa1", b"\xff\xfea\x00", b"\xfe\xff\x00a",
    b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xef\xbf\xbd", b"\xef\xbb\xbf",
]  # fmt: skip


def damaged(rng: random.Random, text: bytes) -> bytes:
    """One of its bytes changed, taken out, or followed by others; or its end cut off."""
    at = rng.randint(0, len(text))
    change = rng.randrange(5)
    if change == 0:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
    if change == 1:
        return text[:at] + text[at + 1 :]
    if change == 2:
        return text[:at]
    return text[:at] + rng.choice(INVALID) + text[at + (change == 3) :]


def raw_lines(count: int, seed: int, specials: Sequence[str] = ()) -> Iterator[bytes]:
    """`count` lines of bytes, most of them no UTF-8; every fifth is a good one."""
    rng = random.Random(seed)
    fixed = [*INVALID, *[b"a" + wrong + b"b" for wrong in INVALID], *[bytes([byte]) for byte in range(256)]]
    for i, text in enumerate(lines(count, seed + 1, specials)):
        good = text.encode()
        kind = i % 5
        if kind == 0:
            yield good
        elif kind == 1:
            yield fixed[(i // 5) % len(fixed)]
        elif kind == 2:
            yield bytes(rng.choices(range(256), k=rng.randint(1, 40)))
        elif kind == 3:
            yield b"".join([rng.choice((rng.choice(INVALID), b"a", b" ", "é".encode())) for _part in range(rng.randint(1, 12))])
        else:
            for _hit in range(rng.randint(1, 4)):
                good = damaged(rng, good)
            yield good


# Few and nasty, so that short strings of them meet in every order.
SOUP = [
    *"aAbsStTlLdDmMrReEvVxz'’ſ\u212aßéÅ\u01c5", *"019٣²½Ⅷ१", *"   \n\r\t\xa0\u2028\u3000\x85\u200b", *"!?.,-_=<>|/\\\"#$(){}[]@~^`",
    *"▁ĠĊ", *"中文的は한ก\u0e31ا\u064eक\u093c\u094dд", *"\u0301\u0323\u0308\u0338\u034f\u20dd", *"\u1100\u1161\u11a8\uac00\u304b\u3099",
    *"😀🏽\u200d\ufe0f🇩♀", *"\0\x7f\ufffd\ufeff\uffff\U0001d15e\U00020bb7\U000e0041\U0010ffff", "'s", "'LL", "'re", "\r\n", "  ", "the", " in",
]  # fmt: skip
SPACE_SOUP = [*SPACES, *NEARLY_SPACES, *"        \n\n\r\t\t", "a", "1", ".", "'", "\u0301", "中"]
MARK_SOUP = [*MARKS, *"aeso \u0301\u0323\u0327\u0308\u0345\u05b0\u093c\u094d\u1161\u11a8\u3099"]
WORD_SOUP = [
    *"  \n.,'-1",
    "'s",
    "'Ve",
    *[word for line in SENTENCES for word in line.split()],
    *[f" {word}" for word in CODE[0].split()],
]


def fuzz_string(rng: random.Random, specials: Sequence[str]) -> str:
    """A short string, of 0 to 40 code points."""
    kind = int(rng.random() * 10)
    length = int(rng.random() * 41)
    if kind <= 2:
        return "".join(rng.choices(SOUP, k=length))[:40]
    if kind == 3:
        return "".join(rng.choices(SPACE_SOUP, k=length))[:40]
    if kind == 4:
        return "".join(rng.choices(MARK_SOUP, k=length // 2))[:40]
    if kind == 5:
        return "".join(rng.choices(WORD_SOUP, k=length // 4))[:40]
    if kind == 6:
        return "".join([any_code_point(rng) for _step in range(length)])
    if kind == 7:
        line = rng.choice(FIXED)
        start = int(rng.random() * len(line))
        return line[start : start + length]
    if kind == 8:
        return "".join(rng.choices(rng.choices(SOUP, k=3), k=length))[:40]  # two or three letters again and again
    pieces = [*rng.choices(specials or NOTATION, k=2), *rng.choices(NOTATION, k=1), *rng.choices(SOUP, k=2)]
    text = "".join(rng.choices(pieces, k=1 + length // 5))
    start = int(rng.random() * 4) if rng.random() < 0.3 else 0
    return text[start : start + length]
