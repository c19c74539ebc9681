"""`lockstep trace`: records a model's capture points into a trace file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import engines, hub, traces
from . import inputs as given
from .engines.hf import HfEngine
from .native import InputError, _core
from .options import Progress, check_inputs, check_options, check_timeout, thread_count


def trace(
    output: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    source: str | engines.Engine = "hf",
    *,
    dtype: str = "float32",
    attn: str = "sdpa",
    points: str = "sublayer",
    prompt: str | None = None,
    ids: str | Sequence[int] | None = None,
    inputs: str | os.PathLike[str] | list[dict[str, Any]] | None = None,
    timeout: float | None = None,
    names: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    revision: str | None = None,
    patch: Callable[[Any], Any] | None = None,
    golden: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes `output` -> {tensors, forwards, dtype, dropped, not_exercised}.

    source: hf, truth (the float64 truth), or what bisect takes as a candidate. patch: changes the HF model first. golden: a
    trace that is replayed later, with no Python: the reference must hold its invariants and the file's parameters, and few
    inputs that exercise every mechanism are the default.
    raises LoadError or InputError
    """
    say = progress or (lambda _: None)
    check_options(dtype, attn, points, 0.0, 0.0, threads)
    check_inputs(prompt, ids, inputs)
    check_timeout(timeout)
    if golden and (source != "hf" or points == "layer"):
        raise InputError("--golden: expected --source hf, and --points sublayer or all")
    with thread_count(threads) as count:
        folder = hub.resolve(model, revision)
        opened = _core.Mirror.open(str(folder))
        about = opened.describe()
        if golden and prompt is ids is inputs is None:
            inputs = given.to_json(given.golden_inputs(about["vocab"], about["mrope"]))
        forwards = given.chosen(folder, about, prompt, ids, inputs)
        given.check_all(opened, forwards)
        engine = _engine(source, folder, about, dtype, attn, timeout, names, patch)
        say(f"recording {len(forwards)} forwards")
        recorded = engine.record(forwards, points)
        say(f"writing {output}")
        model_entry = {"digest": opened.digest(), "tensors": opened.digests()}
        described = traces.manifest(recorded.trace, recorded.producer, model_entry, count)
        not_exercised: list[str] = []
        if golden:
            assert isinstance(engine, HfEngine) and engine.reference is not None
            from .golden import vouched

            described["golden"] = vouched(engine.reference, opened, recorded.trace, forwards, points, say)
            not_exercised = described["golden"]["coverage"]["not_exercised"]
        traces.write(recorded.trace, output, described)
        return {
            "tensors": sum(
                recorded.trace.promised(f.name, p) for f in traces.forwards_of(recorded.trace) for p in recorded.trace.points
            ),
            "forwards": len(recorded.trace.forwards),
            "dtype": recorded.trace.dtype,
            "dropped": recorded.dropped,
            "not_exercised": not_exercised,
        }


def _engine(
    source: str | engines.Engine, folder: Path, about: dict[str, Any], dtype: str, attn: str, timeout: float | None,
    names: str | os.PathLike[str] | None, patch: Callable[[Any], Any] | None,
) -> engines.Engine:  # fmt: skip
    if patch is not None and source != "hf":
        raise InputError(f"patch: it changes the Hugging Face model, but the source is {source}")
    if source == "hf":
        return HfEngine(folder, about, dtype, attn, timeout=timeout, patch=patch)
    if source == "truth":
        from .engines.mirror import TruthEngine

        return TruthEngine(folder, about)
    if isinstance(source, str):
        return engines.choose(source, folder, about, dtype, attn, timeout, None if names is None else Path(names))
    return source
