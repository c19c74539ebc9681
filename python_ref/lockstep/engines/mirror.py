"""The mirror as a candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .. import hf_model
from ..capture import STATES
from ..inputs import Forward
from ..native import _core
from ..operations import Calls, CallsOf, Candidate, Ran, Stream, chain_of, on_input
from ..reference import Caches
from ..streaming import Spill
from ..traces import Recording
from . import Recorded


class MirrorEngine:
    """The C++ model, by the installed transformers' variant. hypothesis: changes its run, for tests of the judge; fast: as
    `generate --fast` computes; stream: neither weights nor recordings stay in memory."""

    def __init__(
        self, folder: Path, about: dict[str, Any], dtype: str, attn: str, hypothesis: tuple[str, str] | None = None,
        fast: bool = False, stream: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.dtype, self.attn = folder, dtype, attn
        self.hypothesis, self.fast, self.stream = hypothesis, fast, stream

    def beside(self, reference: Recorded, trace: _core.Trace) -> Candidate:
        """What names the mirror's operations. trace: what record() gave; reference: the live HF model's."""
        return _Beside(self, reference, trace)

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        """Every forward in order, caches handed over."""
        mirror = _core.Mirror.open(str(self.folder))
        if self.stream:
            mirror.stream(self.dtype)
        else:
            mirror.bind(self.dtype)
        variant = hf_model.variant_of()
        recording = Recording(self.dtype, self.attn, variant, forwards)
        spill = Spill() if self.stream else None
        caches = Caches(forwards, mirror.new_cache, lambda cache: cache.copy())
        for f in forwards:
            cache = caches.take(f)
            _, captured = mirror.forward(
                f.ids, f.positions, f.mask, cache, self.attn, variant, points, self.hypothesis, fast=self.fast
            )
            caches.leave(f, cache)
            for point, value in captured.items():
                recording.trace.add(f.name, point, value if spill is None else spill(value))
        return Recorded(recording.trace, {"engine": "mirror", "torch": torch.__version__, "variant": variant})


class _Beside:
    """The mirror's operations in one more forward, and Hugging Face's calls of the same sublayers on the mirror's inputs."""

    def __init__(self, engine: MirrorEngine, reference: Recorded, trace: _core.Trace) -> None:
        self.engine, self.reference, self.theirs, self.trace = engine, reference.model, reference.trace, trace

    def operations(self, forwards: list[Forward], name: str, paths: set[str]) -> tuple[Ran, CallsOf]:
        chain = chain_of(forwards, name)
        if len(chain) > 1:  # states other than Hugging Face's are in no call that it makes
            paths = {path for path in paths if self._same_states(chain[-2].name, path)}
        return self._ran(chain, any(f.past == name for f in forwards), paths), self._calls(forwards, name, paths)

    def _same_states(self, past: str, path: str) -> bool:
        for state in STATES:
            mine, theirs = (trace.tensor(past, f"{path}@{state}") for trace in (self.trace, self.theirs))
            if mine is not None and (theirs is None or not _core.same_bits(mine, theirs)):
                return False
        return True

    def _calls(self, forwards: list[Forward], name: str, paths: set[str]) -> CallsOf:
        calls = Calls(self.reference, paths)
        calls.run(forwards, name)
        cos, sin = (self.trace.tensor(name, f"model.rotary_emb@{table}") for table in ("cos", "sin"))
        on_own: CallsOf = {}
        for path, call in calls.calls.items():
            hidden = self.trace.tensor(name, f"{path}.input")
            same = None if hidden is None else on_input(call, hidden, cos, sin)
            if same is not None:
                on_own[path] = same
        return on_own

    def _ran(self, chain: list[Forward], continued: bool, paths: set[str]) -> Ran:
        engine = self.engine
        ran: Ran = {}
        mirror = _core.Mirror.open(str(engine.folder))
        mirror.bind(engine.dtype)
        cache = mirror.new_cache() if len(chain) > 1 or continued else None
        stream = Stream(active=False)
        now: list[str] = []  # the suspect that the forward is in

        def passed(point: str) -> None:
            path, _, end = point.rpartition(".")
            if path in paths and end == "input":
                now.append(path)
                stream.count = 0
                ran[path] = stream.operations = []
            elif now and path == now[-1] and end == "output":
                now.pop()
            stream.active = bool(now)

        with stream:  # the last forward's replace those of the earlier ones
            for f in chain:
                mirror.forward(
                    f.ids, f.positions, f.mask, cache, engine.attn, hf_model.variant_of(), "all", engine.hypothesis, passed
                )
        return ran


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
