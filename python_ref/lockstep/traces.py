"""Traces in memory and in files: recording one from a live model, writing it, and holding two against each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import trace_file
from .capture import STATES
from .inputs import Forward, to_json
from .native import _core

CACHE_STATES = tuple(state for state in STATES if state not in ("cos", "sin"))


Keep = Callable[[torch.Tensor], torch.Tensor]


def cloned(value: torch.Tensor) -> torch.Tensor:
    return value.clone(memory_format=torch.contiguous_format)


class Recording:
    """A sink for captures that fills a trace, one forward at a time."""

    def __init__(self, dtype: str, attn: str, variant: str, forwards: Iterable[Forward], keep: Keep | None = None) -> None:
        """keep: copies a tensor to where it stays, by default into memory."""
        self.forwards, self.keep = list(forwards), keep or cloned
        self.trace = _core.Trace(dtype, attn, variant, [as_dict(f) for f in self.forwards])
        self.forward = ""

    def capture(self, point: str, value: torch.Tensor) -> None:
        # The clone is what keeps a later in-place change, of the cache's states say, out of the recording.
        self.trace.add(self.forward, point, self.keep(value.detach().to("cpu")))

    def layer_done(self, index: int) -> None: ...
    def head_done(self) -> None: ...


def as_dict(f: Forward) -> dict[str, Any]:
    return {"name": f.name, "ids": f.ids, "positions": f.positions, "mask": f.mask, "past": f.past}


def forwards_of(trace: _core.Trace) -> list[Forward]:
    return [Forward(f["name"], f["ids"], f["positions"], f["mask"], f["past"]) for f in trace.forwards]


def without_forwards(forwards: list[Forward], refused: Callable[[Forward], str | None]) -> tuple[list[Forward], dict[str, str]]:
    """The forwards that a candidate can take, and those it cannot with the reason; what continues one of them falls too."""
    kept: list[Forward] = []
    dropped: dict[str, str] = {}
    for f in forwards:
        reason = f"it continues {f.past}" if f.past in dropped else refused(f)
        if reason is None:
            kept.append(f)
        else:
            dropped[f.name] = reason
    return kept, dropped


def manifest(trace: _core.Trace, producer: dict[str, Any], model: dict[str, Any] | None, threads: int) -> dict[str, Any]:
    """The manifest of a recorded trace. model: {digest, tensors: digest per tensor}."""
    forwards = forwards_of(trace)
    continued = {f.past for f in forwards}
    cached = [f.name for f in forwards if f.past is not None or f.name in continued]
    fired = {f.name: [p for p in trace.points if trace.promised(f.name, p)] for f in forwards}
    return {
        "producer": producer,
        "model": model,
        "dtype": trace.dtype,
        "attn": trace.attn,
        "variant": trace.variant,
        "torch": torch.__version__,
        "transformers": producer.get("transformers"),
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "forwards": to_json(forwards),
        "points": trace_file.promised_points(fired, cached, CACHE_STATES),
    }


def write(trace: _core.Trace, path: str | os.PathLike[str], described: dict[str, Any]) -> None:
    """Writes a recorded trace; `described` is its manifest()."""
    tensors: dict[str, torch.Tensor] = {}
    for f in trace.forwards:
        for point in trace.points:
            if trace.promised(f["name"], point):
                value = trace.tensor(f["name"], point)
                if value is not None:
                    tensors[f"{f['name']}/{point}"] = value
    trace_file.write(path, described, tensors)


def same_inputs(a: _core.Trace, b: _core.Trace, names: tuple[str, str]) -> None:
    """raises InputError naming the first forward of `b` whose ids, positions, mask or past `a` has otherwise"""
    _core.same_inputs(a, names[0], b, names[1])
