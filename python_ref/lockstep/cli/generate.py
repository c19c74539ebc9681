"""The command `lockstep generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import app, readers_may_leave
from .options import MODEL_HELP
from .printable import printable
from .progress import line


@app.command()
def generate(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    prompt: Annotated[str | None, typer.Option(help="The text to continue; with --chat the user's message.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids instead of a text, like 1,2,3.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Through the checkpoint's own chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="With --chat: the template's enable_thinking.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="How many tokens at most; as the checkpoint says if left out, else 20, as transformers.")
    ] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="No stop token before so many.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    attn: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    check: Annotated[
        bool, typer.Option("--check", help="Hugging Face generates beside it; every step of both is compared.")
    ] = False,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Read weights as the file holds them, in bfloat16: a float32 run decodes up to twice as fast, in other bits, "
            "which --check holds to rounding.",
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write tokens, text, speed and the check here.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="The text alone; with --check the closing lines alone.")] = False,
) -> int:
    """Continues a prompt greedily with the C++ mirror; the text streams to stdout.

    With --check the text is Hugging Face's: its generate() runs, the mirror takes each of its steps on the same tokens, and
    the logits, key/value caches and states of every step are compared, in bits first, and where bits differ by the local
    check against float64. Exit 0 if nothing but rounding is found; other tokens by rounding alone are ties.

    \b
    lockstep generate --prompt "Permission is"
    lockstep generate DIR --prompt "What is a transformer?" --chat --no-thinking --max-new-tokens 200
    lockstep generate DIR --prompt "The capital of France is" --check --json report.json
    lockstep generate DIR --prompt "The capital of France is" --fast --check
    """
    from .. import generation, hub
    from ..report import files
    from ..report import generation as report

    folder = hub.resolve(model, revision)
    files.check_writable("--json", json_file, [folder])
    shows = not (quiet and check) and sys.stdout is not None

    open_line = False  # the text has no line break of its own at the end

    def stream(piece: str) -> None:
        nonlocal open_line
        open_line = not piece.endswith("\n")
        with readers_may_leave():
            sys.stdout.write(piece)

    def say(text: str) -> None:
        if open_line:
            stream("\n")
        if not quiet:
            line(text)

    found = generation.generate(
        folder, prompt=prompt, ids=ids, chat=chat, system=system, thinking=thinking, max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens, dtype=dtype, attn=attn, check=check, fast=fast, threads=threads, digest=json_file is not None,
        stream=stream if shows else None, note=lambda text: line(f"note: {text}"),
        progress=say if check else None,  # a moving line would run through the text
    )  # fmt: skip
    if shows and open_line:
        stream("\n")
    data = found.data
    if json_file:
        files.write_text(json_file, files.json_text(data))
    with readers_may_leave():
        if check:
            for text in report.lines(data, quiet):
                print(printable(text))
        elif not quiet:
            line(report.speed(data))
    return found.exit_code
