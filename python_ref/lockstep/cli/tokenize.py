"""`lockstep tokenize`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import app, readers_may_leave
from .options import MODEL_HELP


@app.command()
def tokenize(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] TEXT", help=f"TEXT, or MODEL TEXT. {MODEL_HELP}")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the text from here, whole, nothing stripped; - is standard input.")
    ] = None,
    decode: Annotated[str | None, typer.Option(help="The other way: print the text of these ids, like 1,2,3.")] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Also print each id, its piece, and the characters it came from.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Hold it against Hugging Face's tokenizer; exit 1 at the first differing character.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
) -> int:
    """Text to ids in C++, as the checkpoint's tokenizer.json or tokenizer.model says. The ids alone are line 1.

    \b
    lockstep tokenize "The capital of France is"         with the embedded checkpoint's tokenizer
    lockstep tokenize DIR "some text" --pieces --check
    lockstep tokenize DIR --file book.txt
    lockstep tokenize DIR --decode 504,3575,282
    """
    from .. import tokenizing
    from ..inputs import parse_ids
    from ..native import InputError

    model, text = _which(words or [], file, decode)
    tokenizer = tokenizing.Tokenizer.load(model, revision)
    if decode is not None:
        if pieces or check or file:
            raise InputError("--decode stands alone: leave out --file, --pieces and --check")
        ids = parse_ids(decode, "--decode")
        if min(ids) < 0:
            raise InputError(f"--decode {decode!r}: expected ids from 0 on, found {min(ids)}")
        with readers_may_leave():
            print(tokenizer.decode(ids))
        return 0
    given = _read(file) if file else (text or "").encode("utf-8", "surrogateescape")
    with readers_may_leave():
        print(*tokenizer.encode(given))
        for piece in tokenizer.pieces(given) if pieces else []:
            print(f"{piece.id}\t{json.dumps(piece.text, ensure_ascii=False)}\t{piece.begin}:{piece.end}")
    if not check:
        return 0
    found = tokenizing.difference(tokenizer, tokenizing.reference(tokenizer.folder), given.decode("utf-8", "replace"))
    with readers_may_leave():
        print("the same as Hugging Face" if found is None else found)
    return int(found is not None)


def _which(words: list[str], file: Path | None, decode: str | None) -> tuple[str | None, str | None]:
    """-> (MODEL, TEXT). raises InputError"""
    from ..native import InputError

    if file is not None or decode is not None:
        if len(words) > 1:
            raise InputError("expected MODEL alone beside --file or --decode, found a text as well")
        return (words[0] if words else None), None
    if not words:
        raise InputError("expected TEXT, --file FILE or --decode IDS")
    if len(words) > 2:
        raise InputError(f"expected MODEL TEXT, found {len(words)} arguments; put a text with spaces in quotes")
    return (words[0] if len(words) == 2 else None), words[-1]


def _read(file: Path) -> bytes:
    from ..native import LoadError

    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise LoadError(f"{file}: cannot be read: {error.strerror}") from None
