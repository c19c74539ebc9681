"""The commands and their options."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .interrupts import leaving
from .options import MODEL_HELP, RAY_HELP, STREAM_HELP
from .printable import printable
from .progress import progress

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="lockstep",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Runs a Hugging Face causal language model and its C++ mirror in lockstep, and says with evidence whether they "
    "are the same function, and if not, where they part.\n\n"
    "Exit codes: 0 passes, 1 does not, 2 could not judge.",
)


@app.callback()
def _root() -> None:
    if "--help" not in sys.argv:  # every command needs torch
        with leaving():
            from .. import native  # noqa: F401


@app.command()
def verify(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16: what both sides run in.")] = "float32",
    attn: Annotated[str, typer.Option(help="sdpa or eager: the reference's attention implementation.")] = "sdpa",
    points: Annotated[str, typer.Option(help="layer, sublayer or all: how many places are compared.")] = "sublayer",
    prompt: Annotated[str | None, typer.Option(help="One prompt instead of the default inputs.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids instead of the default inputs, like 1,2,3.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="A JSON file with a list of forwards {name, ids, positions, mask, past}.")
    ] = None,
    atol: Annotated[float, typer.Option(help="Largest |difference| that agrees.")] = 1e-5,
    rtol: Annotated[float, typer.Option(help="Added to atol: rtol times |reference|.")] = 0.0,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Only the same bits pass.")] = False,
    accept: Annotated[
        str | None, typer.Option(help="rounding: what the local check against float64 calls rounding passes too.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="A folder whose weights the mirror gets instead (a converted or edited copy).")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help=STREAM_HELP)] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of both sides; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report here, also when it is bad.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here, also when it is bad.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table: the closing line alone.")] = False,
) -> int:
    """Is the C++ mirror the same function as Hugging Face's model on this checkpoint?

    Three legs: provenance (both sides hold the file's bytes), lockstep (every capture point agrees), coverage (what the
    inputs exercised). The reference is first held to invariants of its own: one that fails them proves nothing.

    \b
    lockstep verify                          the embedded checkpoint
    lockstep verify Qwen/Qwen3.5-0.8B        a hub id, from the cache if offline
    lockstep verify DIR --points all --bitwise
    lockstep verify DIR --mirror CONVERTED   a converted copy against its source
    """
    from .. import hub, verification
    from ..report import files

    folder = hub.resolve(model, revision)
    other = None if mirror is None else hub.resolve(mirror)
    files.check_outputs({"--json": json_file, "--junit": junit}, [folder, other, inputs])

    with progress(quiet) as say:
        report = verification.verify(
            folder, dtype=dtype, attn=attn, points=points, prompt=prompt, ids=ids, inputs=inputs, atol=atol, rtol=rtol,
            bitwise=bitwise, accept=accept, mirror=other, threads=threads, stream=stream, progress=say,
        )  # fmt: skip
    data = report.data
    if json_file:
        files.write_text(json_file, files.json_text(data))
    if junit:
        from ..report.junit import junit_text

        files.write_text(junit, junit_text(data))
    from ..report import table

    with readers_may_leave():
        if quiet:
            _console().print(table.closing(data), highlight=False)
        else:
            table.show_verify(data, _console(), _decoder(report.folder))
    return report.exit_code


@app.command()
def bisect(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    candidate: Annotated[
        str,
        typer.Option(
            help="mirror; hf; hf:attn=eager,dtype=bfloat16,python=PATH; file.py:factory (it runs with your rights); mlx; "
            "or a trace file."
        ),
    ] = "mirror",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16: what the candidate runs in.")] = "float32",
    attn: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    points: Annotated[
        str, typer.Option(help="layer, sublayer or all; all judges the values inside of every sublayer.")
    ] = "sublayer",
    prompt: Annotated[str | None, typer.Option(help="One prompt instead of the default inputs.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids instead of the default inputs, like 1,2,3.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="A JSON file with a list of forwards {name, ids, positions, mask, past}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Decode so many single tokens over the cache; in one shot and in two parts too.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Every hypothesis on every sublayer, with the power table.")
    ] = False,
    name_map: Annotated[
        Path | None, typer.Option("--map", help="A JSON object from a file.py:factory's module paths to Hugging Face's.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the candidate may take.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help=STREAM_HELP)] = False,
    ray: Annotated[str | None, typer.Option(help=RAY_HELP)] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of both sides; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the findings here, also when they are bad.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here, also when it is bad.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table: the closing line alone.")] = False,
) -> int:
    """Where is a candidate wrong, in which operation, and why? Rounding is told apart from faults by a float64 truth.

    Every sublayer is judged on the candidate's own recorded input, so drift from above does not count and all faults are
    found in one pass. Exit 1 if there is one.

    \b
    lockstep bisect                                        the mirror, on the embedded checkpoint
    lockstep bisect DIR --candidate hf:attn=eager          Hugging Face against its own truth
    lockstep bisect DIR --candidate fork.py:load           a patched model, a fork, a rewrite
    lockstep bisect DIR --candidate engine.trace --points all
    """
    from .. import bisection, hub
    from ..report import files, findings

    folder = hub.resolve(model, revision)
    files.check_outputs({"--json": json_file, "--junit": junit}, [folder, inputs, name_map, Path(candidate)])
    with progress(quiet) as say:
        found = bisection.bisect(
            model if ray else folder, candidate, dtype=dtype, attn=attn, points=points, prompt=prompt, ids=ids, inputs=inputs, thorough=thorough,
            steps=steps, timeout=timeout, names=name_map, threads=threads, stream=stream, ray=ray, revision=revision if ray else None, progress=say,
        )  # fmt: skip
    if json_file:
        files.write_text(json_file, files.json_text(found.data))
    if junit:
        files.write_text(junit, findings.junit_text(found.data))
    with readers_may_leave():
        if quiet:
            _console().print(findings.closing(found.data), highlight=False)
        else:
            findings.show(found.data, _console())
    return found.exit_code


@app.command()
def trace(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The trace file to write.")] = Path("lockstep.trace"),
    source: Annotated[str, typer.Option(help="hf, truth, or anything that bisect's --candidate takes.")] = "hf",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    attn: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    points: Annotated[str, typer.Option(help="layer, sublayer or all.")] = "sublayer",
    prompt: Annotated[str | None, typer.Option(help="One prompt instead of the default inputs.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids instead of the default inputs, like 1,2,3.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="A JSON file with a list of forwards {name, ids, positions, mask, past}.")
    ] = None,
    name_map: Annotated[Path | None, typer.Option("--map", help="As bisect's.")] = None,
    golden: Annotated[
        bool, typer.Option("--golden", help="A trace to keep: `lockstep-native verify --golden` replays it with no Python.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the source may take.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> int:
    """Records a model's capture points into a trace file (safetensors with a manifest: python_ref/TRACES.md).

    \b
    lockstep trace DIR -o hf.trace --points all
    lockstep trace DIR -o golden.trace --golden            a regression test for where no Python is
    lockstep trace DIR --source truth -o truth.trace       the float64 truth
    lockstep trace DIR --source fork.py:load -o fork.trace
    """
    from .. import hub, tracing
    from ..report import files

    folder = hub.resolve(model, revision)
    files.check_writable("-o", output, [folder, inputs, name_map], file_only=True)
    with progress(quiet) as say:
        written = tracing.trace(
            output, folder, source, dtype=dtype, attn=attn, points=points, prompt=prompt, ids=ids, inputs=inputs,
            timeout=timeout, names=name_map, threads=threads, golden=golden, progress=say,
        )  # fmt: skip
    with readers_may_leave():
        print(f"{output}: {written['tensors']} tensors of {written['forwards']} forwards, {written['dtype']}")
        if written["not_exercised"]:
            print(f"these inputs do not exercise: {', '.join(written['not_exercised'])}")
    return 0


@app.command("import-trace")
def import_trace(
    dump: Annotated[Path, typer.Argument(help="An .npz or .safetensors file, or a folder of .npy files.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The trace file to write.")],
    name_map: Annotated[Path | None, typer.Option("--map", help="A JSON object from the dump's names to capture points.")] = None,
    ids: Annotated[str | None, typer.Option(help="The token ids that ran, like 1,2,3; else the dump's own `ids`.")] = None,
    inputs: Annotated[Path | None, typer.Option(help="A JSON file with the forwards, where there are several.")] = None,
) -> int:
    """Turns any engine's dump into a trace that `bisect` and `compare` take. python_ref/TRACES.md describes the format."""
    from .. import importing
    from ..report import files

    files.check_writable("-o", output, [dump, name_map, inputs], file_only=True)
    written = importing.import_trace(dump, output, names=name_map, ids=ids, inputs=inputs)
    with readers_may_leave():
        print(f"{output}: {written['tensors']} tensors of {written['forwards']} forwards, {written['dtype']}")
        if written["unmapped"]:
            left_out = ", ".join(written["unmapped"][:3])
            print(printable(f"not in the map, left out: {len(written['unmapped'])} ({left_out}, ...)"))
    return 0


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="The trace that is right.")],
    b: Annotated[Path, typer.Argument(help="The trace that is judged.")],
    atol: Annotated[float, typer.Option(help="Largest |difference| that agrees.")] = 1e-5,
    rtol: Annotated[float, typer.Option(help="Added to atol: rtol times |a|.")] = 0.0,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Only the same bits pass.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the comparison here, also when it is bad.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="The closing line alone.")] = False,
) -> int:
    """Two traces, point by point: do the numbers agree? Points that only one of them promises are listed, not compared."""
    from .. import comparison
    from ..report import files, findings

    files.check_writable("--json", json_file, [a, b])
    data = comparison.compare(a, b, atol=atol, rtol=rtol, bitwise=bitwise)
    if json_file:
        files.write_text(json_file, files.json_text(data))
    with readers_may_leave():
        if quiet:
            _console().print(findings.closing(data), highlight=False)
        else:
            findings.show_comparison(data, _console())
    return int(data["exit_code"])


@app.command()
def names(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the listing here.")] = None,
) -> int:
    """Every tensor of the checkpoint beside the mirror's parameter and Hugging Face's, with shape, dtype and status.

    Exit 0 if the three lists are one, 1 if a tensor is missing, unexpected, duplicate, or of another shape or dtype.
    """
    from .. import hub
    from .. import names as module
    from ..report import files

    folder = hub.resolve(model, revision)
    files.check_writable("--json", json_file, [folder])
    data = module.listing(folder)
    if json_file:
        files.write_text(json_file, files.json_text(data))
    with readers_may_leave():
        module.show(data, _console())
    return int(data["exit_code"])


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """`lockstep ... | head -1`: a closed pipe ends the printing, not the verdict."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    from .terminal import PlainConsole

    return PlainConsole()


def _decoder(folder: Path) -> Any:
    """id -> token text by the checkpoint's tokenizer.json, or None: the ids are shown then."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # a broken tokenizer is not what this command judges
        return None
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)
