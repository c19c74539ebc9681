"""`lockstep matrix`: which release of transformers changed which layer, by how much, against the noise floor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import distributed, hub
from . import inputs as given
from .engines.hf import HfEngine, trace_of
from .inputs import Forward
from .native import InputError, _core
from .options import Progress, check_options, check_timeout, thread_count
from .traces import forwards_of, same_inputs
from .verdicts import VERDICTS, passes, worst
from .verification import FORMAT_VERSION

Points = list[dict[str, Any]]


def matrix(
    model: str | os.PathLike[str] | None,
    pythons: Sequence[str | os.PathLike[str]],
    *,
    dtypes: Sequence[str] = ("float32",),
    attns: Sequence[str] = ("sdpa",),
    inputs: str | os.PathLike[str] | list[dict[str, Any]] | None = None,
    bitwise: bool = False,
    timeout: float | None = None,
    threads: int | None = None,
    revision: str | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The data of `lockstep matrix --json`: each environment's recording against that of the one before it.

    pythons: virtual environments or their python programs; transformers and torch are all that is needed there. ray: `local`,
    or a cluster's address: recordings and comparisons are Ray tasks.
    raises LoadError, InputError
    """
    say = progress or (lambda _: None)
    started = time.perf_counter()
    if len(pythons) < 2:
        raise InputError("--python: expected at least two environments")
    programs = [_program(p) for p in pythons]
    check_timeout(timeout)
    for dtype in dtypes:
        for attn in attns:
            check_options(dtype, attn, "all", 0.0, 0.0, threads)
    folder = hub.resolve(model, revision)
    source = _core.Mirror.open(str(folder))
    about = source.describe()
    if inputs is None:
        forwards = given.golden_inputs(about["vocab"], about["mrope"])
    else:
        forwards = given.chosen(folder, about, None, None, inputs)
    given.check_all(source, forwards)
    rows: Points = []
    pairs: list[dict[str, Any]] = []
    environments: list[dict[str, Any]] = []
    digest = source.digest()
    ways = [(dtype, attn) for dtype in dtypes for attn in attns]
    with thread_count(threads) as count, distributed.workers(ray, model, folder, digest, count) as workers:
        wanted = [(str(program), dtype, attn) for dtype, attn in ways for program in programs]
        recorded = workers.map(
            _recorded,
            [(about, *want, timeout, given.to_json(forwards)) for want in wanted],
            lambda i: say(f"recording {i + 1} of {len(wanted)}: {', '.join(wanted[i])}" if i < len(wanted) else "recorded"),
        )
        for program, (_, environment) in zip(programs, recorded, strict=False):
            environments.append({"python": str(program), **environment})
        shared = [workers.share_bytes(data) for data, _ in recorded]
        chosen = [(i, i + 1, *ways[i // len(programs)]) for i in range(len(wanted)) if (i + 1) % len(programs)]
        found = workers.map(
            _pair,
            [(about, dtype, attn, *shared[a], *shared[b]) for a, b, dtype, attn in chosen],
            lambda i: say(f"comparing: pair {min(i + 1, len(chosen))} of {len(chosen)}"),
        )
        for number, (pair_rows, summary) in enumerate(found):
            rows += [{**row, "pair": number} for row in pair_rows]  # two environments may have one release's name
            pairs.append(summary)
    verdict = worst(pair["verdict"] for pair in pairs)
    return {
        "format_version": FORMAT_VERSION,
        "command": "matrix",
        "verdict": verdict,
        "model": {"family": about["family"], "layer_types": about["layer_types"], "digest": digest},
        "pedigree": {"environments": environments, "threads": count, "torch": torch.__version__},
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "cost": {"workers": workers.seen},
        "exit_code": int(not passes(verdict, bitwise, accept_rounding=not bitwise)),
        "options": {"dtypes": list(dtypes), "attns": list(attns), "bitwise": bitwise},
        "pairs": pairs,
        "points": rows,
    }


def _program(place: str | os.PathLike[str]) -> Path:
    path = Path(place)
    program = path / "bin" / "python" if path.is_dir() else path
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise InputError(f"--python {place}: expected a virtual environment or its python program")
    return program.absolute()  # "./python" would be looked up in PATH; a link stays, it is how an environment names itself


def _recorded(
    folder: Path,
    about: dict[str, Any],
    program: str,
    dtype: str,
    attn: str,
    timeout: float | None,
    forwards: list[dict[str, Any]],
) -> tuple[bytes, dict[str, Any]]:
    """One environment's recording -> (the bytes of its trace file, what ran)."""
    file = HfEngine(folder, about, dtype, attn, program, timeout).recorded_elsewhere(given.from_json(forwards), "all")
    manifest = trace_of(file).manifest
    return file, {key: manifest.get(key) for key in ("transformers", "torch", "cpu_capability")}


def _pair(
    folder: Path, about: dict[str, Any], dtype: str, attn: str, key_a: str, file_a: bytes, key_b: str, file_b: bytes
) -> tuple[Points, dict[str, Any]]:
    """-> (one row per point, the worst of all inputs; the summary of the pair)"""
    a, b = distributed.received((key_a, file_a)), distributed.received((key_b, file_b))
    names = (str(a.manifest.get("transformers")), str(b.manifest.get("transformers")))
    same_inputs(a, b, names)
    compared, only = _compared(a, b)
    differing = [p for p in compared if p["verdict"] in ("agrees", "deviates")]
    for p in compared:
        p["floor"] = p["ratio"] = p["reference_ratio"] = None
    if differing:
        len130 = {f.name: f for f in given.default_inputs(about["vocab"], about["mrope"])}["len130"].ids
        found = _core.bisect(
            str(folder), a, b, dtype, attn, len130, values=True, causes=False, thorough=False, points=True, without=set(),
            progress=lambda _: None,
        )  # fmt: skip
        settled = _core.settle_rounding(differing, found["points"], len(about["layer_types"]))
        for p, with_floor in zip(differing, settled, strict=True):
            p.update(with_floor)
    which = {"a": names[0], "b": names[1], "dtype": dtype, "attn": attn}
    rows = [{**which, **row} for row in _worst_of_inputs(compared)]
    changed = _changed(forwards_of(b), compared)
    verdict = worst(row["verdict"] for row in rows)
    return rows, {**which, "verdict": verdict, "changed": changed, "points": len(rows), "not_compared": only}


def _compared(a: _core.Trace, b: _core.Trace) -> tuple[Points, list[str]]:
    """Every point of every input that both promise, in execution order; and the points that only one of them has."""
    rows: Points = []
    only: dict[str, None] = {}
    known = set(a.points)
    for f in forwards_of(b):
        for point in [*a.points, *(p for p in b.points if p not in known)]:
            promised = (a.promised(f.name, point), b.promised(f.name, point))
            if not any(promised):
                continue
            if not all(promised):
                only[point] = None
                continue
            x, y = a.tensor(f.name, point), b.tensor(f.name, point)
            row: dict[str, Any] = {"point": point, "input": f.name, "verdict": "missing", "max_abs": None}
            if x is not None and y is not None:
                row.update({k: v for k, v in _core.compare(x, y, 0.0, 0.0).items() if k in ("verdict", "max_abs")})
                if row["verdict"] in ("shape", "dtype") and a.variant != b.variant and "@" in point:
                    row["verdict"] = "deviates"  # a release's own layout of a named value: the local check reads both
            rows.append(row)
    return rows, list(only)


def _worst_of_inputs(compared: Points) -> Points:
    by_point: dict[str, dict[str, Any]] = {}
    for p in compared:
        best = by_point.get(p["point"])
        key = (VERDICTS.index(p["verdict"]), p["max_abs"] or 0)
        if best is None or key > (VERDICTS.index(best["verdict"]), best["max_abs"] or 0):
            by_point[p["point"]] = p
    columns = ("point", "input", "max_abs", "floor", "ratio", "verdict")
    return [{key: p[key] for key in columns} for p in by_point.values()]


def _changed(forwards: list[Forward], compared: Points) -> list[dict[str, Any]]:
    """The sublayers that change something themselves: on some input they were given the same bits, and gave others.

    What follows them was given other bits, and what it adds of its own cannot be told from that.
    """
    found: dict[str, dict[str, Any]] = {}
    for f in forwards:
        order = [p for p in compared if p["input"] == f.name]
        first = next((p for p in order if p["verdict"] != "identical"), None)
        if first is None or f.past is not None:  # a state handed over may differ
            continue
        path = first["point"].split("@")[0].removesuffix(".input").removesuffix(".output")
        parts = path.split(".")
        sublayer = ".".join(parts[:4]) if parts[:2] == ["model", "layers"] else ".".join(parts[:2])
        found.setdefault(sublayer, {"sublayer": sublayer, "first": first["point"], "input": f.name, "verdict": first["verdict"]})
    return list(found.values())
