"""Text to ids and back by a checkpoint's own tokenizer. Nothing else knows which tokenizer that is."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .hf_model import quiet_transformers
from .native import InputError, LoadError, _core
from .tokenizing import Tokenizer, reference


class FolderTokenizer:
    """A checkpoint's tokenizer in C++, and Hugging Face's for what only Jinja can do: chat templates."""

    def __init__(self, folder: Path) -> None:
        """raises InputError in one sentence for a tokenizer that is not there or cannot be used"""
        self.folder = folder
        try:
            self.native = Tokenizer.load(folder)
        except LoadError as error:
            raise InputError(f"{error}; give --ids instead of --prompt") from None

    @functools.cached_property
    def hugging_face(self) -> Any:
        with quiet_transformers():
            return reference(self.folder)

    @functools.cached_property
    def bos(self) -> int | None:
        """What encoding puts first, or the folder calls its BOS."""
        if self.native.bos is not None:
            return self.native.bos
        try:
            stated = json.loads((self.folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("bos_token")
        except (OSError, ValueError, AttributeError):
            return None
        name = stated.get("content") if isinstance(stated, dict) else stated
        return self.native.id_of(name) if isinstance(name, str) else None


def load_tokenizer(folder: Path) -> FolderTokenizer:
    """raises InputError in one sentence"""
    return FolderTokenizer(folder)


def encode(tokenizer: FolderTokenizer, text: str, special: bool) -> list[int]:
    """The ids of `text`; special: with what the tokenizer puts around every text (a BOS). raises InputError"""
    return tokenizer.native.encode(text, special=special)


def decode(tokenizer: FolderTokenizer, ids: list[int]) -> str:
    """The text of `ids`, without special tokens; an id that the tokenizer does not know is no text."""
    return tokenizer.native.decode(ids, skip_special=True)


@dataclass(frozen=True)
class Prompt:
    """Ids and how they came about."""

    ids: list[int]
    path: str  # ids; text; chat
    text: str | None = None  # what was encoded
    notes: list[str] = field(default_factory=list)


def from_text(tokenizer: FolderTokenizer, text: str) -> Prompt:
    """The text as it is, with what the tokenizer puts around every text."""
    if not text:
        raise InputError("--prompt: expected some text, found an empty prompt")
    return _checked(tokenizer, Prompt(encode(tokenizer, text, special=True), "text", text))


def from_chat(tokenizer: FolderTokenizer, folder: Path, text: str, system: str | None, thinking: bool | None) -> Prompt:
    """One user message through the checkpoint's chat template, which writes the special tokens itself."""
    template = tokenizer.hugging_face.chat_template
    if not template:
        raise InputError(
            f"{folder}: --chat needs a chat template (chat_template.jinja, or chat_template in tokenizer_config.json), "
            "found none; leave out --chat"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    stated = {} if thinking is None else {"enable_thinking": thinking}
    try:
        rendered = tokenizer.hugging_face.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **stated)
    except Exception as error:  # a template raises what it likes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{folder}: its chat template refuses these messages: {type(error).__name__}: {reason}") from None
    notes = []
    if stated and "enable_thinking" not in str(template):
        notes.append("the chat template does not know enable_thinking: --thinking and --no-thinking change nothing")
    return _checked(tokenizer, Prompt(encode(tokenizer, rendered, special=False), "chat", rendered, notes))


def _checked(tokenizer: FolderTokenizer, prompt: Prompt) -> Prompt:
    if not prompt.ids:
        raise InputError(f"--prompt {prompt.text!r}: the tokenizer makes no ids of it")
    bos = tokenizer.bos
    if bos is not None and prompt.ids[:2] == [bos, bos]:
        prompt.notes.append(f"the prompt begins with two BOS tokens ({bos}): leave one out of its text")
    return prompt


def text_stream(tokenizer: FolderTokenizer) -> _core.TextStream:
    """Ids one by one -> pieces of text, whole characters only. The pieces together are the text of all ids."""
    return _core.TextStream(tokenizer.native.core)
