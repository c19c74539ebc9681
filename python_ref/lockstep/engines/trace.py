"""A trace file as a candidate: nothing runs, neither the engine that wrote it nor transformers."""

from __future__ import annotations

from pathlib import Path

from ..inputs import Forward
from ..native import _core
from . import Recorded


class TraceEngine:
    def __init__(self, path: Path) -> None:
        self.trace = _core.Trace.open(str(path))
        self.dtype, self.attn = self.trace.dtype, self.trace.attn

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        """What the file holds; its own forwards count."""
        return Recorded(self.trace, {"engine": "trace", "producer": self.trace.manifest.get("producer")})
