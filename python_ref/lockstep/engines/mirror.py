"""The mirror as a candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .. import hf_model, operations
from ..inputs import Forward
from ..native import _core
from ..reference import Caches
from ..traces import Recording
from . import Recorded


class MirrorEngine:
    """The C++ model, by the installed transformers' variant. hypothesis: changes its run, for tests of the judge."""

    def __init__(
        self, folder: Path, about: dict[str, Any], dtype: str, attn: str, hypothesis: tuple[str, str] | None = None
    ) -> None:
        self.folder, self.dtype, self.attn = folder, dtype, attn
        self.hypothesis = hypothesis

    def beside(self, reference: Any, trace: _core.Trace) -> operations.Candidate:
        """What names the mirror's operations. trace: what record() gave; reference: the live HF model."""
        return _Beside(self, reference, trace)

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        """Every forward in order, caches handed over."""
        mirror = _core.Mirror.open(str(self.folder))
        mirror.bind(self.dtype)
        variant = hf_model.variant_of()
        recording = Recording(self.dtype, self.attn, variant, forwards)
        caches = Caches(forwards, mirror.new_cache, lambda cache: cache.copy())
        for f in forwards:
            cache = caches.take(f)
            _, captured = mirror.forward(f.ids, f.positions, f.mask, cache, self.attn, variant, points, self.hypothesis)
            caches.leave(f, cache)
            for point, value in captured.items():
                recording.trace.add(f.name, point, value)
        return Recorded(recording.trace, {"engine": "mirror", "torch": torch.__version__, "variant": variant})


class _Beside:
    """The mirror's operations in one more forward, and what Hugging Face's sublayers are called with for the mirror's inputs."""

    def __init__(self, engine: MirrorEngine, reference: Any, trace: _core.Trace) -> None:
        self.engine, self.reference, self.trace = engine, reference, trace

    def operations(self, forwards: list[Forward], name: str, paths: set[str]) -> tuple[operations.Ran, operations.CallsOf]:
        calls = operations.Calls(self.reference, paths)
        calls.run(forwards, name)
        for path, (args, kwargs) in calls.calls.items():
            own = self.trace.tensor(name, f"{path}.input")
            if own is not None:
                calls.calls[path] = operations.with_first_tensor(args, kwargs, own)
        engine, passed = self.engine, dict[str, int]()
        mirror = _core.Mirror.open(str(engine.folder))
        mirror.bind(engine.dtype)
        chain = operations.chain_of(forwards, name)
        needs_cache = len(chain) > 1 or any(f.past == name for f in forwards)
        cache = mirror.new_cache() if needs_cache else None
        with operations.Stream() as stream:
            for f in chain:
                stream.operations.clear()
                passed.clear()
                mirror.forward(
                    f.ids, f.positions, f.mask, cache, engine.attn, hf_model.variant_of(), "all", engine.hypothesis,
                    lambda point: passed.setdefault(point, len(stream.operations)),
                )  # fmt: skip
        return {path: operations.inside(stream.operations, passed, path) for path in paths}, calls.calls


class TruthEngine:
    """The mirror's code wholly in float64, with none of HF's float32 casts, as a recording."""

    dtype, attn = "float64", "sdpa"

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder = folder

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        truth = _core.Truth(str(self.folder))
        recording = Recording("float64", "sdpa", "5.18", forwards)
        caches = Caches(forwards, truth.new_cache, lambda cache: cache.copy())
        for f in forwards:
            cache = caches.take(f)
            for point, value in truth.forward(f.ids, f.positions, f.mask, cache, points).items():
                recording.trace.add(f.name, point, value)
            caches.leave(f, cache)
        return Recorded(recording.trace, {"engine": "truth", "torch": torch.__version__})
