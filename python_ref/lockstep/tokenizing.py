"""Text to ids and back in C++, and the same through Hugging Face beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import hub
from .hf_model import quiet_transformers
from .native import LoadError, _core


@dataclass(frozen=True)
class Piece:
    """One token: its id, what the vocabulary writes for it, and which characters of the text it came from."""

    id: int
    text: str
    begin: int
    end: int


class Tokenizer:
    """A folder's tokenizer, in C++: tokenizer.json, else a SentencePiece tokenizer.model.

    `Tokenizer.load(folder)` raises LoadError naming what in the file is wrong or not implemented.
    """

    def __init__(self, core: _core.Tokenizer, folder: Path) -> None:
        self.core, self.folder = core, folder

    @classmethod
    def load(cls, model: str | os.PathLike[str] | None = None, revision: str | None = None) -> Tokenizer:
        folder = hub.resolve(model, revision)
        return cls(_core.Tokenizer.open(str(folder)), folder)

    def encode(self, text: str | bytes, *, special: bool = True) -> list[int]:
        """special: add what the files say is added (BOS, ...). Bytes that are no UTF-8 are read as bytes.decode("utf-8",
        "replace") does."""
        return self.core.encode(_bytes(text), special)

    def pieces(self, text: str | bytes, *, special: bool = True) -> list[Piece]:
        """The same ids with their pieces. A range counts characters; where normalizing joined some, it is all of theirs."""
        return [Piece(*piece) for piece in self.core.pieces(_bytes(text), special)]

    def decode(self, ids: list[int], *, skip_special: bool = False) -> str:
        """An id that the tokenizer does not know is nothing."""
        return self.core.decode(ids, skip_special)

    def id_of(self, token: str) -> int | None:
        """The id that the vocabulary gives a token, as it is written there."""
        return self.core.id_of(token)

    def stream(self) -> _core.TextStream:
        """Ids one by one -> pieces of text, whole characters only. The pieces together are the text of all ids."""
        return _core.TextStream(self.core)

    @property
    def bos(self) -> int | None:
        """The token that encode() puts first, if it puts one."""
        return self.core.bos

    def __len__(self) -> int:
        return self.core.size


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def reference(folder: Path) -> Any:
    """Hugging Face's tokenizer of a folder. raises LoadError in one sentence"""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever a broken tokenizer raises, the user gets one sentence
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError(f"{folder}: Hugging Face cannot load its tokenizer: {reason}") from None


@dataclass(frozen=True)
class Difference:
    """Where two tokenizations part: the first differing token, and the character that it begins at."""

    token: int
    character: int
    ours: int | None
    theirs: int | None

    def __str__(self) -> str:
        def named(id: int | None) -> str:
            return "nothing" if id is None else str(id)

        return f"tokenizer: first difference at character {self.character} (token {self.token}): {named(self.ours)} here, {named(self.theirs)} in Hugging Face"


def difference(tokenizer: Tokenizer, theirs: Any, text: str) -> Difference | None:
    """None if Hugging Face makes the same ids of the text."""
    ours, other = tokenizer.encode(text), [int(i) for i in theirs(text)["input_ids"]]
    if ours == other:
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, other, strict=False)) if a != b), min(len(ours), len(other)))
    pieces = tokenizer.pieces(text)
    character = pieces[at].begin if at < len(pieces) else len(text)
    return Difference(at, character, ours[at] if at < len(ours) else None, other[at] if at < len(other) else None)
