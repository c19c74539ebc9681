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
from .options import Progress, check_inputs, check_options, thread_count


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
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes `output` -> {tensors, forwards, dtype, dropped}.

    source: hf, truth (the float64 truth), or what bisect takes as a candidate. patch: changes the HF model first.
    raises LoadError or InputError
    """
    say = progress or (lambda _: None)
    check_options(dtype, attn, points, 0.0, 0.0, threads)
    check_inputs(prompt, ids, inputs)
    with thread_count(threads) as count:
        folder = hub.resolve(model, revision)
        opened = _core.Mirror.open(str(folder))
        about = opened.describe()
        forwards = given.chosen(folder, about, prompt, ids, inputs)
        given.check_all(opened, forwards)
        engine = _engine(source, folder, about, dtype, attn, timeout, names, patch)
        say(f"recording {len(forwards)} forwards")
        recorded = engine.record(forwards, points)
        say(f"writing {output}")
        model_entry = {"digest": opened.digest(), "tensors": opened.digests()}
        described = traces.manifest(recorded.trace, recorded.producer, model_entry, count)
        traces.write(recorded.trace, output, described)
        return {
            "tensors": sum(
                recorded.trace.promised(f.name, p) for f in traces.forwards_of(recorded.trace) for p in recorded.trace.points
            ),
            "forwards": len(recorded.trace.forwards),
            "dtype": recorded.trace.dtype,
            "dropped": recorded.dropped,
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
