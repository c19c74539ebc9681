"""Prompts to ids: by the checkpoint's own tokenizer, in C++, and its own chat template, through transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .native import InputError, LoadError
from .tokenizing import Tokenizer, reference


@dataclass(frozen=True)
class Prompt:
    """Ids and how they came about."""

    ids: list[int]
    path: str  # ids; text; chat
    text: str | None = None  # what was encoded
    notes: list[str] = field(default_factory=list)


def tokenizer_of(folder: Path) -> Tokenizer:
    """raises InputError in one sentence for a tokenizer that is not there or cannot be used"""
    try:
        return Tokenizer.load(folder)
    except LoadError as error:
        raise InputError(f"{error}; give --ids instead of --prompt") from None


def from_text(tokenizer: Tokenizer, text: str) -> Prompt:
    """The text as it is, with what the tokenizer puts around every text."""
    if not text:
        raise InputError("--prompt: expected some text, found an empty prompt")
    return _checked(tokenizer, Prompt(tokenizer.encode(text), "text", text))


def from_chat(tokenizer: Tokenizer, text: str, system: str | None, thinking: bool | None) -> Prompt:
    """One user message through the checkpoint's chat template, which writes the special tokens itself."""
    hugging_face = reference(tokenizer.folder)  # only it has Jinja
    template = hugging_face.chat_template
    if not template:
        raise InputError(
            f"{tokenizer.folder}: --chat needs a chat template (chat_template.jinja, or chat_template in tokenizer_config.json), "
            "found none; leave out --chat"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    stated = {} if thinking is None else {"enable_thinking": thinking}
    try:
        rendered = hugging_face.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **stated)
    except Exception as error:  # a template raises what it likes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{tokenizer.folder}: its chat template refuses these messages: {type(error).__name__}: {reason}"
        ) from None
    notes = []
    if stated and "enable_thinking" not in str(template):
        notes.append("the chat template does not know enable_thinking: --thinking and --no-thinking change nothing")
    return _checked(tokenizer, Prompt(tokenizer.encode(rendered, special=False), "chat", rendered, notes))


def _checked(tokenizer: Tokenizer, prompt: Prompt) -> Prompt:
    if not prompt.ids:
        raise InputError(f"--prompt {prompt.text!r}: the tokenizer makes no ids of it")
    bos = _bos(tokenizer)
    if bos is not None and prompt.ids[:2] == [bos, bos]:
        prompt.notes.append(f"the prompt begins with two BOS tokens ({bos}): leave one out of its text")
    return prompt


def _bos(tokenizer: Tokenizer) -> int | None:
    """What encoding puts first, or the folder calls its BOS."""
    if tokenizer.bos is not None:
        return tokenizer.bos
    try:
        stated = json.loads((tokenizer.folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("bos_token")
    except (OSError, ValueError, AttributeError):
        return None
    name = stated.get("content") if isinstance(stated, dict) else stated
    return tokenizer.id_of(name) if isinstance(name, str) else None
