"""The command `lockstep matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import _console, app, readers_may_leave
from .options import MODEL_HELP, RAY_HELP
from .progress import progress


@app.command()
def matrix(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    python: Annotated[
        list[Path] | None,
        typer.Option("--python", help="A virtual environment with torch and transformers; two or more, in order."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="float32, bfloat16, float16; float32 if left out.")] = None,
    attn: Annotated[list[str] | None, typer.Option("--attn", help="sdpa, eager; sdpa if left out.")] = None,
    inputs: Annotated[Path | None, typer.Option(help="A JSON file with a list of forwards, instead of a golden trace's.")] = None,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Only the same bits pass; else rounding does.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one environment may take.")] = None,
    ray: Annotated[str | None, typer.Option(help=RAY_HELP)] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every pair and point here, also when it is bad.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here, also when it is bad.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table: the closing line alone.")] = False,
) -> int:
    """Which release of transformers changed which layer, by how much, against the noise floor?

    Records the model in each environment and holds each against the one before it, at every point. What differs is
    judged by the local check against float64 on both sides; the sublayers that were given the same bits and gave others are named.

    \b
    lockstep matrix DIR --python venv-5.10 --python venv-5.18 --python venv-5.24
    lockstep matrix DIR --python old --python new --dtype float32 --dtype bfloat16 --junit matrix.xml
    """
    from .. import hub
    from .. import matrix as module
    from ..report import files
    from ..report import matrix as report

    folder = hub.resolve(model, revision)
    files.check_outputs({"--json": json_file, "--junit": junit}, [folder, inputs])
    with progress(quiet) as say:
        data = module.matrix(
            model if ray else folder, python or [], dtypes=dtype or ["float32"], attns=attn or ["sdpa"], inputs=inputs, bitwise=bitwise,
            timeout=timeout, threads=threads, revision=revision if ray else None, ray=ray, progress=say,
        )  # fmt: skip
    if json_file:
        files.write_text(json_file, files.json_text(data))
    if junit:
        files.write_text(junit, report.junit_text(data))
    with readers_may_leave():
        if quiet:
            _console().print(report.closing(data), highlight=False)
        else:
            report.show(data, _console())
    return int(data["exit_code"])
