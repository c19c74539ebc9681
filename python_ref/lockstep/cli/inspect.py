"""The commands `lockstep inspect` and `lockstep report`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app, readers_may_leave
from .options import MODEL_HELP
from .printable import printable
from .progress import line, progress


@app.command()
def inspect(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help=MODEL_HELP + " Several are shown side by side.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be repeated.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="Token ids instead of a text, like 1,2,3; may be repeated.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt through the checkpoint's own chat template.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the page here: one file that opens anywhere.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The token to follow, like ' Paris'; the most probable next one if left out.")
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            help="LAYER:NEURON at zero, or LAYER:NEURON=N at its value under prompt N; may be repeated. The strongest if left out."
        ),
    ] = None,
    token: Annotated[int, typer.Option(help="Whose vector is followed as it is written; negative from the end.")] = -1,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    attn: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    source: Annotated[str, typer.Option(help="Whose captures: mirror or hf.")] = "mirror",
    serve: Annotated[bool, typer.Option("--serve", help="A live page on this machine instead: type prompts there.")] = False,
    port: Annotated[int | None, typer.Option(help="With --serve: the port; a free one if left out.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress: the closing line alone.")] = False,
) -> int:
    """Looks inside: the residual stream, what each sublayer writes into it, gates, attention, states and neurons.

    A summary on the terminal; --html writes a page that needs no network. Exit 0 if in every prompt the stream at the end is
    the embedding plus all that was written, within rounding; 1 if it is not, or something is not finite; 2 if nothing could be
    told.

    \b
    lockstep inspect --prompt "Permission is" --html inside.html
    lockstep inspect DIR --prompt "The capital of France is" --target " Paris"
    lockstep inspect DIR --prompt "She put the cash in the bank" --prompt "The canoe hit the bank" --html bank.html
    lockstep inspect A B --prompt "Once upon a time" --html two.html      two models side by side
    lockstep inspect DIR --serve                                          type prompts in the browser
    """
    from .. import hub, inspecting
    from .. import inputs as given
    from ..native import InputError
    from ..report import files, inside, page

    inspecting.checked_options(dtype, attn, source, threads, ablate or ())
    names: list[Any] = list(models) if models else [None]
    folders = [hub.resolve(name, revision) for name in names]
    options: dict[str, Any] = {
        "chat": chat,
        "dtype": dtype,
        "attn": attn,
        "source": source,
        "target": target,
        "ablate": ablate or (),
    }
    if serve:
        if prompt or ids or html or json_file:
            raise InputError("--serve: prompts are typed in the page; leave out --prompt, --ids, --html and --json")
        if port is not None and not 0 <= port <= 65535:
            raise InputError(f"--port {port}: expected 0 to 65535")
        return _serve(folders, [_shown(name) for name in names], port or 0, {**options, "token": token, "threads": threads})
    if port is not None:
        raise InputError(f"--port {port}: expected with --serve only")
    files.check_outputs({"--html": html, "--json": json_file}, folders)
    with progress(quiet) as say:
        found = inspecting.inspect(
            names, prompt, ids=[given.parse_ids(text) for text in ids] if ids else None, token=token, threads=threads,
            revision=revision, digest=bool(html or json_file), progress=say, **options,
        )  # fmt: skip
    if json_file:
        files.write_text(json_file, files.json_text(found.data))
    if html:
        files.write_text(html, page.page(found.data))
    with readers_may_leave():
        for text in [inside.closing(found.data)] if quiet else inside.lines(found.data):
            print(printable(text))
    return found.exit_code


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="What --json of verify, bisect, matrix, check or inspect wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")],
) -> int:
    """Draws the JSON of verify, bisect, matrix, check or inspect as one HTML file: the verdict's legs, the faults with their
    causes, and every layer coloured by its difference in multiples of the noise floor (of check: by what is not as stated).

    \b
    lockstep bisect DIR --candidate fork.py:load --json found.json
    lockstep report found.json -o found.html
    """
    from ..native import InputError
    from ..report import files, page

    files.check_writable("-o", output, [file])
    data = page.read(file)
    try:
        text = page.page(data)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    files.write_text(output, text)
    with readers_may_leave():
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    return 0


def _shown(name: str | None) -> str:
    return "the embedded checkpoint" if name is None else os.fspath(name)


def _serve(folders: list[Path], names: list[str], port: int, options: dict[str, Any]) -> int:
    from ..native import InputError
    from ..serving import Server

    try:
        server = Server(folders, names, port, options)
    except OSError as error:
        raise InputError(f"--port {port}: it cannot be listened on ({error.strerror}); leave it out to take a free one") from None
    with server:
        print(server.url, flush=True)
        line("open this address in a browser on this machine; Ctrl-C ends it")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            line("stopped")
        finally:
            server.runs.join()
    return 0
