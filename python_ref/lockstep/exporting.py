"""`lockstep export`: verified weights, with a manifest that says what was verified; and `lockstep check`."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import __version__, hub, verification
from . import inputs as given
from .native import InputError, _core
from .options import Progress
from .report.files import json_text
from .verdicts import worst

RUN_DTYPE = "float32"  # holds every number of a bfloat16 or float16 file


@dataclass(frozen=True)
class Exported:
    """What `lockstep export --json` writes, as `data`; `folder` appeared if and only if it passes."""

    data: dict[str, Any]
    folder: Path

    @property
    def exit_code(self) -> int:
        """0 exported, 1 the model deviates, 2 could not judge; where it is not 0, nothing was written."""
        return int(self.data["exit_code"])

    @property
    def digest(self) -> str | None:
        """Over the whole manifest: who has it can tell later that nothing of the export was changed."""
        return self.data["digest"]

    def __bool__(self) -> bool:
        return self.exit_code == 0


def export(
    model: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    max_shard_size: int | str | None = None,
    keep: str = "all",
    accept: str | None = None,
    threads: int | None = None,
    revision: str | None = None,
    stream: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Exported:
    """Verifies `model`, writes it, reads every byte back, verifies what was written, and only then makes `out` appear.

    dtype: converts the model's parameters, each by one rounding to nearest even. max_shard_size: bytes, or like 5GB. keep: all,
    or text, which leaves out what the family ignores. accept: rounding, as in verify(); it is recorded. stream: as in verify().
    raises LoadError for a model or an `out` that cannot be taken, InputError for options
    """
    say = progress or (lambda _: None)
    started = time.perf_counter()
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise InputError(f"--dtype {dtype!r}: expected float32, bfloat16 or float16")
    if keep not in ("all", "text"):
        raise InputError(f"--keep {keep!r}: expected all or text")
    if max_shard_size is not None:
        max_shard_size = _core.parse_size(str(max_shard_size))
    folder = hub.resolve(model, revision)
    source = _core.Mirror.open(str(folder))
    job = _core.Export(source, os.fspath(out), dtype, max_shard_size, keep == "text")
    try:
        if job.removed and note:
            note(f"removed what {job.removed} interrupted export{'s' if job.removed > 1 else ''} to {out} left")
        options = {"dtype": dtype, "max_shard_size": max_shard_size, "keep": keep, "accept": accept}

        def verified(checkpoint: Path, what: str) -> verification.Report:
            return verification.verify(
                checkpoint,
                dtype=RUN_DTYPE,
                accept=accept,
                threads=threads,
                stream=stream,
                progress=lambda text: say(f"{what}: {text}"),
            )

        before = verified(folder, "source")
        unexercised = before.legs["coverage"]["not_exercised"]
        if not before or unexercised:
            return Exported(_data(before, None, options, started), Path(out))
        job.write(_now_and_then(say))
        job.reread(_now_and_then(say))
        after = verified(Path(job.folder), "written")
        data = _data(before, after, options, started)
        if data["exit_code"]:
            return Exported(data, Path(out))
        say("writing the manifest")
        manifest = job.finish(json_text(data), _producer(before), _verification(before, after, folder, source))
        left_out = manifest["left_out"]
        return Exported(
            {
                **data,
                "digest": manifest["digest"],
                "files": manifest["files"],
                "tensors": manifest["tensors"],
                "left_out": left_out,
            },
            Path(out),
        )
    finally:
        job.discard()


def check(
    folder: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    digest: str | None = None,
    replay: str | os.PathLike[str] | None = None,
    stream: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The data of `lockstep check --json`: is everything in `folder` as its manifest states, and nothing else there?

    source: a checkpoint from which every exported tensor is derived once more. digest: what the manifest's must be. replay: a
    golden trace of the source, which `folder` must reproduce; stream: with one layer's weights in memory at a time.
    raises LoadError or InputError
    """
    started = time.perf_counter()
    original = None if source is None else str(hub.resolve(source))
    data = _core.check_export(os.fspath(folder), original, digest, _now_and_then(progress or (lambda _: None)))
    data["replay"] = None
    if replay is not None and data["exit_code"] == 0:
        # A golden trace's digests are of the source's bytes: what they were states the manifest, which has just been checked.
        manifest = json.loads((Path(folder) / "lockstep.manifest.json").read_text(encoding="utf-8"))
        digests = {name: tensor["source"]["sha256"] for name, tensor in manifest["tensors"].items()}
        left_out = set(manifest["left_out"]["tensors"])
        converted = any(tensor["conversion"] != "none" for tensor in manifest["tensors"].values())
        found = _core.replay(
            os.fspath(folder), os.fspath(replay), stream=stream, digests=digests, converted=converted, left_out=left_out,
            progress=progress,
        )  # fmt: skip
        data["replay"] = found
        data["verdict"], data["exit_code"] = worst([data["verdict"], found["verdict"]]), found["exit_code"]
    head = {key: data[key] for key in ("format_version", "command", "verdict", "model")}
    seconds = {"total": round(time.perf_counter() - started, 3)}
    return {**head, "pedigree": None, "seconds": seconds, **{k: v for k, v in data.items() if k not in head}}


def _now_and_then(say: Progress) -> Progress:
    """At most once a second: it is called for every block of bytes."""
    last = time.monotonic()

    def throttled(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 1:
            last = time.monotonic()
            say(text)

    return throttled


def refusal(data: dict[str, Any]) -> str | None:
    """Why an export did not happen, in one sentence, or None."""
    if data["exit_code"] == 0:
        return None
    if data["written"] is None and data["not_exercised"]:
        return f"the inputs do not exercise {', '.join(data['not_exercised'])}: what nobody ran is not exported as verified"
    which = "source" if data["written"] is None else "written"
    found = data[which]
    if found["exit_code"] == 2:
        return f"the {which} checkpoint could not be judged: {', '.join(found['pedigree']['failed'])}"
    first = found["first"]
    where = f"{first['point']} ({first['input']}): {first['verdict']}" if first else f"provenance {found['verdict']}"
    return f"the {which} checkpoint does not pass: {where}"


def _data(
    before: verification.Report, after: verification.Report | None, options: dict[str, Any], started: float
) -> dict[str, Any]:
    unexercised = before.legs["coverage"]["not_exercised"]
    codes = [before.exit_code] + ([after.exit_code] if after is not None else [])
    exit_code = 1 if 1 in codes else max(codes)
    return {
        "format_version": verification.FORMAT_VERSION,
        "command": "export",
        "verdict": worst([before.verdict] + ([after.verdict] if after is not None else [])),
        "model": before.data["model"],
        "pedigree": before.data["pedigree"],
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "exit_code": exit_code or (2 if unexercised else 0),
        "options": options,
        "digest": None,
        "not_exercised": unexercised,
        "source": before.data,
        "written": after.data if after is not None else None,
    }


def _producer(report: verification.Report) -> dict[str, Any]:
    pedigree = report.data["pedigree"]
    return {
        "lockstep": __version__,
        "torch": torch.__version__,
        "transformers": pedigree["transformers"],
        "python": platform.python_version(),
        "cpu_capability": pedigree["cpu_capability"],
        "threads": pedigree["threads"],
    }


def _verification(before: verification.Report, after: verification.Report, folder: Path, source: _core.Mirror) -> dict[str, Any]:
    """What of the two reports the manifest states; they stand in full beside it."""
    points = [p for report in (before, after) for p in report.points]
    floors = [p for p in points if p.get("ratio") is not None]
    nearest = max(floors, key=lambda p: p["ratio"], default=None)
    options = before.data["options"]
    return {
        "verdict": worst([before.verdict, after.verdict]),
        "reference": f"transformers {before.data['pedigree']['transformers']}",
        "options": options,
        "tolerances": {"atol": options["atol"], "rtol": options["rtol"], "accept": options["accept"]},
        "noise_floor": nearest and {key: nearest[key] for key in ("point", "input", "floor", "ratio")},
        "legs": {
            which: {leg: report.legs[leg]["verdict"] for leg in ("provenance", "lockstep")}
            for which, report in (("source", before), ("written", after))
        },
        "coverage": {key: before.legs["coverage"][key] for key in ("exercised", "absent", "rows")},
        "points": len(before.points),
        "inputs": given.to_json(given.chosen(folder, source.describe(), None, None, None)),
    }
