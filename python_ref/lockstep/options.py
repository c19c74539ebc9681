"""What verify, bisect and trace share of their options: checks in one sentence, and the threads of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .native import InputError

Progress = Callable[[str], None]


def check_options(dtype: str, attn: str, points: str, atol: float, rtol: float, threads: int | None) -> None:
    for option, value, known in (
        ("--dtype", dtype, ("float32", "bfloat16", "float16")),
        ("--attn", attn, ("sdpa", "eager")),
        ("--points", points, ("layer", "sublayer", "all")),
    ):
        if value not in known:
            raise InputError(f"{option} {value!r}: expected one of {', '.join(known)}")
    if any(not isinstance(x, (int, float)) for x in (atol, rtol)):
        raise InputError(f"atol {atol!r}, rtol {rtol!r}: expected numbers")
    for option, number in (("--atol", atol), ("--rtol", rtol)):
        if not 0 <= number < float("inf"):
            raise InputError(f"{option} {number}: expected a number from 0 up")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= 1024):
        raise InputError(f"--threads {threads}: expected 1 to 1024")


def check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout <= 1e7):
        raise InputError(f"--timeout {timeout}: expected seconds above 0")


def check_gate(bitwise: bool, accept: str | None) -> None:
    if accept not in (None, "rounding"):
        raise InputError(f"--accept {accept!r}: expected rounding")
    if accept and bitwise:
        raise InputError("--accept rounding and --bitwise: expected at most one of them")


def check_inputs(prompt: Any, ids: Any, inputs: Any) -> None:
    """raises InputError if more than one of them is stated"""
    if sum(x is not None for x in (prompt, ids, inputs)) > 1:
        raise InputError("expected at most one of --prompt, --ids and --inputs")


@contextlib.contextmanager
def thread_count(threads: int | None) -> Iterator[int]:
    """torch's threads while a run lasts: `threads`, or the cores that this process may use."""
    before = torch.get_num_threads()
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)
