#!/usr/bin/env python3
"""Write cpp/text/unicode_tables.inc: the Unicode data of the installed tokenizers release.

    .venv/bin/python scripts/make_unicode_tables.py            # after a change of the tokenizers release
    .venv/bin/python scripts/make_unicode_tables.py --check    # exit code 1 if the file is not what this release gives

tokenizers carries four sets of Unicode data, each of its own version: Oniguruma's (patterns), Rust's (Digits), the regex
crate's (added tokens) and unicode-normalization's (NFC). The system's Oniguruma and utf8proc have others again. So every
code point is put to the library itself, through its public API. Surrogates are in no text and in no table.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

OUT = Path(__file__).resolve().parents[1] / "cpp" / "text" / "unicode_tables.inc"
CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cn Co"  # Cs: surrogates
)
SCRIPTS = "Arabic Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Thai"
ESCAPES = {"space": r"\s", "word": r"\w", "digit": r"\d"}
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CHUNK = 1 << 12  # code points a call
WIDTH = 120


def chunks() -> Iterable[list[int]]:
    return (CODES[at : at + CHUNK] for at in range(0, len(CODES), CHUNK))


def pattern(regex: str) -> set[int]:
    """What a pattern for one code point matches: what its removal takes away."""
    remove = normalizers.Replace(Regex(regex), "")
    found: set[int] = set()
    for codes in chunks():
        left = remove.normalize_str("".join(map(chr, codes)))
        if len(left) < len(codes):
            found |= set(codes).difference(map(ord, left))
    return found


def numeric() -> set[int]:
    """What Digits splits off; individually, so that each is a piece of its own. Other pieces begin and end with 'x'."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    found: set[int] = set()
    for codes in chunks():
        pieces = digits.pre_tokenize_str("".join(f"x{chr(c)}x" for c in codes))
        found |= {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "x"}
    return found


def beside_added_token(text: Callable[[str], str], **options: bool) -> Iterator[tuple[int, int, int]]:
    """(code point c, start, end) wherever the token [X] is found at [start, end) of text(c). All text(c) have one length, and
    begin and end with a full stop, which keeps neighbours apart."""
    tokenizer = Tokenizer(models.WordLevel({"u": 0}, unk_token="u"))
    tokenizer.add_special_tokens([AddedToken("[X]", normalized=False, **options)])
    size = len(text("a"))
    for codes in chunks():
        encoding = tokenizer.encode("".join(text(chr(c)) for c in codes))
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token == 1:
                at = start // size
                yield codes[at], start - at * size, end - at * size


def rust_white_space() -> set[int]:
    """What lstrip and rstrip add to the token."""
    found: set[int] = set()
    for c, start, end in beside_added_token(lambda c: f".{c}[X]{c}.", lstrip=True, rstrip=True):
        assert (start, end) in {(1, 6), (2, 5)}
        if start == 1:
            found.add(c)
    return found


def rust_word() -> set[int]:
    """What single_word does not let a token begin or end at."""
    times = Counter(c for c, _, _ in beside_added_token(lambda c: f".{c}[X].[X]{c}.", single_word=True))
    assert set(times.values()) == {2}
    return set(CODES) - set(times)


def nfc() -> tuple[set[int], set[int]]:
    """(known, joins). joins: what NFC may reorder or compose with what stands before it, so that nothing may be cut off
    before it. known: these, what decomposes, and what a composition begins with. All others are inert to this NFC, whatever
    a newer Unicode makes of them."""
    decompose, compose = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    low, high = "\u0334", "\u0345"  # marks of the lowest and of the highest combining class
    decomposed = {c: decompose(chr(c)) for c in CODES}
    joining: set[str] = set()  # as the first of a decomposition
    known: set[int] = set()
    for c in CODES:
        char, parts = chr(c), decomposed[c]
        if decompose("x" + high + char)[1] != high or decompose("x" + char + low)[1] == low:
            joining.add(parts[0])
        if parts != char:
            known.add(c)
            if len(parts) > 1 and compose(parts) == char:
                known.add(ord(parts[0]))
                joining.update(parts[1:])
    joins = {c for c in CODES if decomposed[c][0] in joining}
    inert = set(CODES) - known - joins
    assert all(compose(chr(c)) == chr(c) for c in inert)
    return known | joins, joins


def ranges(codes: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for c in sorted(codes):
        if found and found[-1][1] == c - 1:
            found[-1] = (found[-1][0], c)
        else:
            found.append((c, c))
    return found


def array(name: str, codes: set[int]) -> str:
    lines, line = [f"constexpr CodeRange {name}[] = {{"], "   "
    for first, last in ranges(codes):
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > WIDTH:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};"])


def generate() -> str:
    classes = {name: pattern(rf"\p{{{name}}}") for name in (*CATEGORIES.split(), *SCRIPTS.split())}
    classes |= {name: pattern(escape) for name, escape in ESCAPES.items()}
    known, joins = nfc()
    others = {
        "kNumeric": numeric(),
        "kRustWhiteSpace": rust_white_space(),
        "kRustWord": rust_word(),
        "kNfcKnown": known,
        "kNfcJoins": joins,
    }
    names = {name: "k" + name[0].upper() + name[1:] for name in sorted(classes)}
    return "\n".join(
        [
            f"// The Unicode data of tokenizers {tokenizers.__version__}. Written by scripts/make_unicode_tables.py: not to be edited.",
            "// Sorted inclusive ranges without surrogates; unicode.h and unicode.cpp say what each is.",
            "",
            f'constexpr const char kRelease[] = "{tokenizers.__version__}";',
            "",
            *(array(names[name], classes[name]) for name in names),
            "",
            "constexpr NamedClass kClasses[] = {  // sorted by name",
            *(f'    {{"{name}", {variable}}},' for name, variable in names.items()),
            "};",
            "",
            *(array(name, codes) for name, codes in others.items()),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file differs")
    options = parser.parse_args()
    text = generate()
    if not options.check:
        OUT.write_text(text)
    elif not OUT.is_file() or OUT.read_text() != text:
        print(f"{OUT.name} is not what tokenizers {tokenizers.__version__} gives: run scripts/make_unicode_tables.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
