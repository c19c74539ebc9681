"""The verdicts in their order, and what passes: one place for reports, files and exit codes."""

from __future__ import annotations

from collections.abc import Iterable

# From best to worst; a run takes the worst. The same order as cpp/core/metrics.h (a test compares them).
VERDICTS = ("identical", "agrees", "rounding", "deviates", "dtype", "shape", "missing", "non_finite")


def worst(verdicts: Iterable[str], default: str = "missing") -> str:
    """The worst of `verdicts`; `default` if there is none: nothing compared is nothing passed."""
    return max(verdicts, key=VERDICTS.index, default=default)


def passes(verdict: str, bitwise: bool, accept_rounding: bool = False) -> bool:
    """Does a point pass the gate of `verify`? `agrees` does, unless only the same bits pass; `rounding` where it is accepted."""
    gate = "identical" if bitwise else "rounding" if accept_rounding else "agrees"
    return VERDICTS.index(verdict) <= VERDICTS.index(gate)
