"""What can be a candidate: the mirror, Hugging Face here or in another environment, a callable, MLX, a trace file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..inputs import Forward
from ..native import InputError, _core


@dataclass
class Recorded:
    """What an engine recorded: the trace, what it is, and the inputs that it could not take."""

    trace: _core.Trace
    producer: dict[str, Any]
    dropped: dict[str, str] = field(default_factory=dict)  # input -> reason
    model: Any = None  # a live Python model with HF's names, or None
    modeling: Any = None


class Engine(Protocol):
    """Records its points on the given forwards. raises InputError or LoadError in one sentence"""

    dtype: str
    attn: str

    def record(self, forwards: list[Forward], points: str) -> Recorded: ...


def trace_engine() -> type:
    from .trace import TraceEngine

    return TraceEngine


def choose(
    what: str, folder: Path, about: dict[str, Any], dtype: str, attn: str, timeout: float | None, map_file: Path | None
) -> Engine:
    """The engine that `--candidate what` names. raises InputError"""
    from . import callable as callables
    from . import hf, mirror, trace

    if map_file is not None and ".py:" not in what:
        raise InputError(f"--map {map_file}: only a file.py:factory candidate has names to map")
    if what == "mirror":
        return mirror.MirrorEngine(folder, about, dtype, attn)
    if what == "hf" or what.startswith("hf:"):
        return hf.from_text(what, folder, about, dtype, attn, timeout)
    if what == "mlx":
        from .mlx_engine import MlxEngine

        return MlxEngine(folder, about, dtype)
    if ".py:" in what:
        return callables.from_text(what, folder, about, dtype, attn, timeout, map_file)
    if Path(what).is_file():
        return trace.TraceEngine(Path(what))
    raise InputError(
        f"--candidate {what!r}: expected mirror, hf, hf:attn=...,dtype=...,python=..., file.py:factory, mlx, or a trace file"
    )
