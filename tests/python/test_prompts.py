"""Prompts to ids, by text and by the checkpoint's chat template; and ids to text as they come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lockstep import InputError
from lockstep.prompts import from_chat, from_text, tokenizer_of
from lockstep.tokenizing import reference


def test_pieces_are_whole_characters(embedded: Path) -> None:
    tokenizer = tokenizer_of(embedded)
    text = "naïve 用一句话 🙂 café\n\n  end"
    ids = tokenizer.encode(text, special=False)
    pieces_of = tokenizer.stream()
    pieces = [pieces_of.add(token) for token in ids]
    assert "".join(pieces) + pieces_of.finish() == tokenizer.decode(ids, skip_special=True) == text
    assert not any("\ufffd" in piece for piece in pieces) and any(piece == "" for piece in pieces)
    half = tokenizer.stream()
    assert "".join(half.add(token) for token in tokenizer.encode("🙂", special=False)[:2]) == ""
    assert set(half.finish()) == {"\ufffd"}


def test_chat_goes_through_the_checkpoints_template(embedded: Path) -> None:
    tokenizer = tokenizer_of(embedded)
    own = reference(embedded)
    for thinking, more in ((None, {}), (True, {"enable_thinking": True}), (False, {"enable_thinking": False})):
        messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
        expected = own.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **more)
        assert from_chat(tokenizer, "Hi", "Be short.", thinking).ids == list(expected)


def test_a_chat_template_that_is_absent_or_refuses_is_named(embedded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded, folder)
    template = folder / "chat_template.jinja"
    template.unlink()
    with pytest.raises(InputError, match="--chat needs a chat template"):
        from_chat(tokenizer_of(folder), "Hi", None, None)
    template.write_text("{{ raise_exception('no system message') }}")
    with pytest.raises(InputError, match="its chat template refuses these messages: TemplateError: no system message"):
        from_chat(tokenizer_of(folder), "Hi", "x", None)
    template.write_text("{{ messages[-1]['content'] }}")
    assert "change nothing" in from_chat(tokenizer_of(folder), "Hi", None, True).notes[0]


def test_a_doubled_bos_is_noted(embedded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|im_start|>"}))
    tokenizer = tokenizer_of(folder)
    notes = from_text(tokenizer, "<|im_start|><|im_start|>x").notes
    assert notes == [f"the prompt begins with two BOS tokens ({tokenizer.id_of('<|im_start|>')}): leave one out of its text"]
    assert from_text(tokenizer, "<|im_start|>x").notes == []
