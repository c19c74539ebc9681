"""The commands `lockstep export` and `lockstep check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app, readers_may_leave
from .options import MODEL_NEEDED, STREAM_HELP
from .printable import printable
from .progress import line, progress


@app.command()
def export(
    model: Annotated[str, typer.Argument(help=MODEL_NEEDED)],
    out: Annotated[Path, typer.Argument(help="The folder to make; it must be absent or empty.")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16: converts the model's parameters; their own if left out.")
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="Bytes of tensors in one file, like 5GB; as many files as MODEL has if left out.")
    ] = None,
    keep: Annotated[str, typer.Option(help="all, or text: leaves out tensors that no text model computes with.")] = "all",
    accept: Annotated[str | None, typer.Option(help="rounding: as in verify; the manifest records it.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help=STREAM_HELP)] = False,
    threads: Annotated[int | None, typer.Option(help="Threads; the machine's cores if left out.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report here, also when it is bad.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress: the closing line alone.")] = False,
) -> int:
    """Writes a checkpoint of verified weights, with a manifest of what was verified and of every byte.

    MODEL is verified with every mechanism exercised, written, read back byte by byte, and what was written is verified again;
    only then OUT appears. A model that deviates is not exported. Keep the digest that is printed: `lockstep check OUT --digest`
    tells with it that nothing was changed since.

    \b
    lockstep export Qwen/Qwen3.5-0.8B OUT
    lockstep export DIR OUT --dtype bfloat16 --max-shard-size 5GB --keep text
    """
    from .. import exporting, hub
    from ..report import files

    folder = hub.resolve(model, revision)
    files.check_writable("--json", json_file, [folder, out])
    with progress(quiet) as say:
        found = exporting.export(
            folder, out, dtype=dtype, max_shard_size=max_shard_size, keep=keep, accept=accept, threads=threads,
            stream=stream, progress=say, note=lambda text: line(f"note: {text}"),
        )  # fmt: skip
    data = found.data
    if json_file:
        files.write_text(json_file, files.json_text(data))
    with readers_may_leave():
        reason = exporting.refusal(data)
        if reason:
            print(printable(f"not exported: {reason}"))
            return found.exit_code
        if not quiet:
            _show(data)
        size = sum(f["bytes"] for f in data["files"].values())
        print(f"exported: {out}, {len(data['tensors'])} tensors, {size:,} bytes, {data['verdict']}; digest {data['digest']}")
    return found.exit_code


def _show(data: dict[str, object]) -> None:
    tensors = data["tensors"]
    assert isinstance(tensors, dict)
    kinds: dict[str, int] = {}
    for t in tensors.values():
        kind = "byte for byte" if t["conversion"] == "none" else f"{t['source']['dtype']} to {t['dtype']}, {t['conversion']}"
        kinds[kind] = kinds.get(kind, 0) + 1
    for kind, count in kinds.items():
        print(f"{count} tensors {kind}")
    left_out = data["left_out"]
    assert isinstance(left_out, dict)
    for what in ("tensors", "files"):
        names = left_out[what]
        if names:
            print(printable(f"{len(names)} {what} left out: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"))


@app.command()
def check(
    folder: Annotated[str, typer.Argument(help="A folder that `lockstep export` made.")],
    source: Annotated[
        str | None, typer.Option(help="The checkpoint it was made from: every exported tensor is derived from it once more.")
    ] = None,
    digest: Annotated[str | None, typer.Option(help="The digest that the export printed: the manifest must have it.")] = None,
    replay: Annotated[Path | None, typer.Option(help="A golden trace of the source: the export must reproduce it.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help=STREAM_HELP)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every file's and tensor's row here.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no rows: the closing line alone.")] = False,
) -> int:
    """Are an export's bytes still those that its manifest states, and nothing else beside them?

    Names the files and tensors that are not. Whoever changes a file and its manifest together is seen by --digest alone.
    """
    from .. import exporting, hub
    from ..native import _core
    from ..report import files

    at = hub.resolve(folder)
    files.check_writable("--json", json_file, [at, replay, Path(source) if source and Path(source).exists() else None])
    with progress(quiet) as say:
        data = exporting.check(at, source=source, digest=digest, replay=replay, stream=stream, progress=say)
    if json_file:
        files.write_text(json_file, files.json_text(data))
    with readers_may_leave():
        checked = _core.check_lines(data, 0 if quiet else 20)
        replayed = _core.replay_lines(data["replay"]) if data["replay"] else []
        if quiet:  # one closing line: of what did not pass, else of both
            replay_is_worse = data["replay"] and data["replay"]["exit_code"] > 0
            checked, replayed = ([], replayed[-1:]) if replay_is_worse else (checked[-1:], [])
        for text in [*checked, *replayed]:
            print(printable(text))
    return int(data["exit_code"])
