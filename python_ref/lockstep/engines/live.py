"""Recording a live Python model that has Hugging Face's module names."""

from __future__ import annotations

import contextlib
import copy
import signal
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .. import hf_model
from ..capture import Capture
from ..inputs import Forward
from ..native import Error, InputError, _core
from ..reference import Caches
from ..traces import Keep, Recording, without_forwards


def record(
    model: Any,
    modeling: Any,
    forwards: list[Forward],
    points: str,
    *,
    dtype: str,
    attn: str,
    variant: str,
    vocab: int,
    who: str,
    timeout: float | None = None,
    keep: Keep | None = None,
) -> tuple[_core.Trace, dict[str, str]]:
    """-> (trace, inputs that the model cannot take). raises InputError if it raises, hangs, changes its inputs in place, or
    returns something else than logits [B, T, vocab]"""
    takes_cache = hf_model.cache_argument(model) is not None and hasattr(model, "config")
    continued = {f.past for f in forwards}
    kept, dropped = without_forwards(
        forwards,
        lambda f: "it takes no cache" if not takes_cache and (f.past is not None or f.name in continued) else None,
    )
    recording = Recording(dtype, attn, variant, kept, keep)
    caches = Caches(kept, lambda: hf_model.new_cache(model))
    with Capture(model, modeling, points) as capture, time_limit(timeout, who):
        for f in kept:
            cache = caches.take(f)
            recording.forward, capture.sink, capture.cache = f.name, recording, cache
            given = copy.deepcopy((f.ids, f.positions, f.mask))
            try:
                logits = hf_model.run(model, *given, cache)
            except Error:
                raise
            except Exception as error:
                reason = (str(error).strip().splitlines() or [""])[0]
                raise InputError(f"input {f.name!r}: {who} raised {type(error).__name__}: {reason}") from error
            finally:
                capture.sink = None
            caches.leave(f, cache)
            check_outcome(f, given, logits, vocab, who)
            if not any(p == "lm_head.output" for p in recording.trace.points):
                recording.forward = f.name
                recording.capture("lm_head.output", logits)
    return recording.trace, dropped


def check_outcome(f: Forward, given: Any, logits: Any, vocab: int, who: str) -> None:
    """raises InputError for inputs that were changed in place and for what are no logits of this vocabulary"""
    for name, before, after in zip(("ids", "positions", "mask"), (f.ids, f.positions, f.mask), given, strict=True):
        if before is not None and not torch.equal(before, after):
            raise InputError(f"input {f.name!r}: {who} changed its {name} in place; expected them as they were given")
    if not isinstance(logits, torch.Tensor):
        raise InputError(
            f"input {f.name!r}: {who} returned {type(logits).__name__}; expected logits [B, T, V] or an output with .logits"
        )
    expected = [*f.ids.shape, vocab]
    if list(logits.shape) != expected:
        raise InputError(
            f"input {f.name!r}: {who} returned logits {list(logits.shape)}; expected {expected} (vocab_size {vocab})"
        )


@contextlib.contextmanager
def time_limit(seconds: float | None, who: str) -> Iterator[None]:
    """raises InputError in the main thread once `seconds` are over"""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> None:
        raise InputError(f"{who} did not finish within --timeout {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
