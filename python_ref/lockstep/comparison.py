"""`lockstep compare`: do the numbers of two traces agree, point by point?"""

from __future__ import annotations

import os
import time
from typing import Any

from .native import _core
from .options import check_options

HEAD = ("format_version", "command", "verdict", "model", "pedigree")


def compare(
    a: str | os.PathLike[str] | _core.Trace,
    b: str | os.PathLike[str] | _core.Trace,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    bitwise: bool = False,
) -> dict[str, Any]:
    """The data of `lockstep compare --json`: `b` judged against `a`. raises LoadError, InputError"""
    started = time.perf_counter()
    check_options("float32", "sdpa", "all", atol, rtol, None)
    left, right = (x if isinstance(x, _core.Trace) else _core.Trace.open(os.fspath(x)) for x in (a, b))
    names = [os.fspath(x) if not isinstance(x, _core.Trace) else which for x, which in ((a, "a"), (b, "b"))]
    data = _core.compare_traces(left, names[0], right, names[1], atol, rtol, bitwise)
    head = {key: data.pop(key) for key in HEAD}
    return {**head, "seconds": {"total": round(time.perf_counter() - started, 3)}, **data}
