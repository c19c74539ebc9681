"""Text to ids and back by a checkpoint's own tokenizer. Nothing else knows which tokenizer that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .hf_model import quiet_transformers
from .native import InputError

UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are not yet a whole character


def load_tokenizer(folder: Path) -> Any:
    """raises InputError in one sentence for a tokenizer that is not there or cannot be used"""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever a broken tokenizer raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{folder}: its tokenizer cannot be used ({reason}); give --ids instead of --prompt") from None


def encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    """The ids of `text`; special: with what the tokenizer puts around every text (a BOS)."""
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The text of `ids`, without special tokens; an id that the tokenizer does not know is no text."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@dataclass(frozen=True)
class Prompt:
    """Ids and how they came about."""

    ids: list[int]
    path: str  # ids; text; chat
    text: str | None = None  # what was encoded
    notes: list[str] = field(default_factory=list)


def from_text(tokenizer: Any, text: str) -> Prompt:
    """The text as it is, with what the tokenizer puts around every text."""
    if not text:
        raise InputError("--prompt: expected some text, found an empty prompt")
    return _checked(tokenizer, Prompt(encode(tokenizer, text, special=True), "text", text))


def from_chat(tokenizer: Any, folder: Path, text: str, system: str | None, thinking: bool | None) -> Prompt:
    """One user message through the checkpoint's chat template, which writes the special tokens itself."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise InputError(
            f"{folder}: --chat needs a chat template (chat_template.jinja, or chat_template in tokenizer_config.json), "
            "found none; leave out --chat"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    stated = {} if thinking is None else {"enable_thinking": thinking}
    try:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **stated)
    except Exception as error:  # a template raises what it likes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{folder}: its chat template refuses these messages: {type(error).__name__}: {reason}") from None
    notes = []
    if stated and "enable_thinking" not in str(template):
        notes.append("the chat template does not know enable_thinking: --thinking and --no-thinking change nothing")
    return _checked(tokenizer, Prompt(encode(tokenizer, rendered, special=False), "chat", rendered, notes))


def _checked(tokenizer: Any, prompt: Prompt) -> Prompt:
    if not prompt.ids:
        raise InputError(f"--prompt {prompt.text!r}: the tokenizer makes no ids of it")
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is not None and prompt.ids[:2] == [bos, bos]:
        prompt.notes.append(f"the prompt begins with two BOS tokens ({bos}): leave one out of its text")
    return prompt


class Stream:
    """Ids one by one -> pieces of text, whole characters only. The pieces together are the text of all ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = self._shown = 0  # ids from _start are decoded again; those before _shown were given out

    def add(self, token: int) -> str:
        self._ids.append(token)
        piece = self._piece()
        if not piece or piece.endswith(UNFINISHED):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return piece

    def finish(self) -> str:
        """What is left, also if it is no whole character."""
        piece = self._piece()
        self._start = self._shown = len(self._ids)
        return piece

    def _piece(self) -> str:
        """What the new ids add, in the company of a few before them: a space may depend on the neighbour."""
        before = decode(self._tokenizer, self._ids[self._start : self._shown])
        return decode(self._tokenizer, self._ids[self._start :])[len(before) :]
