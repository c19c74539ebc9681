"""The C++ tokenizer against Hugging Face's, on the embedded checkpoint, and its command as a user meets it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers

from lockstep import tokenizing
from lockstep.native import LoadError, _core

from test_cli import refusal, run  # isort: skip
from tokenizer_lines import fuzz_string, lines, raw_lines  # isort: skip


@pytest.fixture(scope="module")
def ours(embedded: Path) -> tokenizing.Tokenizer:
    return tokenizing.Tokenizer.load(embedded)


@pytest.fixture(scope="module")
def theirs(embedded: Path) -> Any:
    return tokenizing.reference(embedded)


def test_lines_are_the_same(ours: tokenizing.Tokenizer, theirs: Any) -> None:
    for text in lines(4000, seed=1, specials=theirs.all_special_tokens):
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids), repr(text)
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True), repr(text)


def test_bytes_that_are_no_utf8_are_what_python_makes_of_them(ours: tokenizing.Tokenizer, theirs: Any) -> None:
    for raw in raw_lines(1000, seed=2, specials=theirs.all_special_tokens):
        assert ours.encode(raw) == theirs(raw.decode("utf-8", "replace"))["input_ids"], raw


def test_short_strings_are_the_same(ours: tokenizing.Tokenizer, theirs: Any) -> None:
    source = random.Random(3)
    for text in (fuzz_string(source, theirs.all_special_tokens) for _ in range(5000)):
        assert ours.encode(text) == theirs(text)["input_ids"], repr(text)


def test_ids_of_any_kind_decode_alike(ours: tokenizing.Tokenizer, theirs: Any) -> None:
    source = random.Random(4)
    for _ in range(3000):
        ids = [source.randrange(len(ours) + 20) for _ in range(source.randrange(12))]
        assert ours.decode(ids) == theirs.decode(ids), ids


def test_ranges_are_hugging_face_s_where_nothing_is_joined(ours: tokenizing.Tokenizer, embedded: Path) -> None:
    backend = Tokenizer.from_file(str(embedded / "tokenizer.json"))
    for text in lines(500, seed=5, specials=["<|im_start|>"]):
        if normalizers.NFC().normalize_str(text) != text:
            continue
        theirs = backend.encode(text)
        found = [(p.id, p.text, (p.begin, p.end)) for p in ours.pieces(text)]
        assert found == list(zip(theirs.ids, theirs.tokens, theirs.offsets, strict=True)), repr(text)


def test_a_joined_character_comes_from_all_of_its_parts(ours: tokenizing.Tokenizer) -> None:
    pieces = ours.pieces("cafe\u0301 x")
    assert "".join(p.text for p in pieces) == "cafÃ©Ġx"
    assert [(p.begin, p.end) for p in pieces if p.text in ("Ã", "©", "Ã©")][0] == (3, 5)


def test_a_difference_is_named_by_its_character(ours: tokenizing.Tokenizer) -> None:
    text = "The licence says"
    ids = ours.encode(text)
    changed = [*ids[:1], ids[1] + 1, *ids[2:]]
    found = tokenizing.difference(ours, lambda _: {"input_ids": changed}, text)
    assert found is not None
    assert (found.token, found.character, found.ours, found.theirs) == (1, ours.pieces(text)[1].begin, ids[1], ids[1] + 1)
    cut = tokenizing.difference(ours, lambda _: {"input_ids": ids[:-1]}, text)
    assert cut is not None and (cut.token, cut.theirs) == (len(ids) - 1, None)
    assert tokenizing.difference(ours, lambda _: {"input_ids": ids}, text) is None


@pytest.mark.parametrize("name", ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "M", "P", "S", "Han"])
def test_a_class_is_hugging_face_s_on_every_code_point(name: str) -> None:
    inside = {c for first, last in _core.unicode_class(name) for c in range(first, last + 1)}
    assert inside
    remove = normalizers.Replace(Regex(rf"\p{{{name}}}"), "")
    everything = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    left = set(map(ord, remove.normalize_str("".join(everything))))
    assert left == {ord(c) for c in everything} - inside


def test_nfc_is_hugging_face_s_on_every_code_point_beside_marks() -> None:
    nfc = normalizers.NFC()
    everything = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for before, after in (("", "\n"), ("a", "\u0301\n"), ("\u1100", "\u0323\u0301\n")):
        text = "".join(before + c + after for c in everything)
        assert _core.nfc(text) == nfc.normalize_str(text)


def test_the_ids_alone_are_line_one(embedded: Path, tmp_path: Path, ours: tokenizing.Tokenizer) -> None:
    text = "Redistribution and use"
    expected = " ".join(map(str, ours.encode(text)))
    done = run("tokenize", text)
    assert (done.returncode, done.stdout) == (0, expected + "\n")
    assert run("tokenize", str(embedded), text).stdout == expected + "\n"
    file = tmp_path / "a file.txt"
    file.write_bytes(b" " + text.encode() + b"\xff\n")
    done = run("tokenize", "--file", str(file), "--pieces", "--check")
    first, *rest = done.stdout.splitlines()
    assert first.split() == [str(i) for i in ours.encode(" " + text + "\ufffd\n")]
    assert rest[-1] == "the same as Hugging Face" and len(rest) == len(first.split()) + 1
    assert rest[0].split("\t") == [first.split()[0], '"ĠRed"', "0:4"] or rest[0].startswith(first.split()[0] + "\t")
    back = run("tokenize", "--decode", expected.replace(" ", ","))
    assert (back.returncode, back.stdout) == (0, text + "\n")


def test_what_is_wrong_gets_one_sentence(embedded: Path, tmp_path: Path) -> None:
    assert refusal("tokenize") == "expected TEXT, --file FILE or --decode IDS"
    assert refusal("tokenize", "a", "b", "c").startswith("expected MODEL TEXT, found 3 arguments")
    assert "cannot be read: No such file" in refusal("tokenize", "--file", str(tmp_path / "none"))
    assert "--decode" in (wrong := refusal("tokenize", "--decode", "1,x")) and "expected whole numbers" in wrong
    assert refusal("tokenize", "--decode=-1") == "--decode '-1': expected ids from 0 on, found -1"
    assert "stands alone" in refusal("tokenize", "--decode", "1", "--pieces")
    assert "no tokenizer.json and no tokenizer.model" in refusal("tokenize", str(tmp_path), "text")
    broken = tmp_path / "broken"
    shutil.copytree(embedded, broken)
    text = (broken / "tokenizer.json").read_text()
    (broken / "tokenizer.json").write_text(text.replace('"type": "NFC"', '"type": "NFKC"'))
    assert '/normalizer/type: "NFKC" is not implemented' in refusal("tokenize", str(broken), "text")


def test_a_folder_that_hugging_face_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match="Hugging Face cannot load its tokenizer"):
        tokenizing.reference(tmp_path)
