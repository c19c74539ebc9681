"""`lockstep compare`: do the numbers of two traces agree, point by point?"""

from __future__ import annotations

import os
import time
from typing import Any

from .native import _core
from .options import check_options
from .traces import forwards_of, same_inputs
from .verdicts import passes, worst
from .verification import FORMAT_VERSION

HEAD = "lm_head.output"
TOPK_IDS, TOPK_LOGPROBS = "lm_head@topk_ids", "lm_head@topk_logprobs"


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
    names = tuple(os.fspath(x) if not isinstance(x, _core.Trace) else which for x, which in ((a, "a"), (b, "b")))
    same_inputs(left, right, (names[0], names[1]))
    points: list[dict[str, Any]] = []
    logits: list[dict[str, Any]] = []
    not_compared: list[str] = []
    for f in forwards_of(right):
        order = [*left.points, *(p for p in right.points if p not in set(left.points))]
        for point in order:
            promised = (left.promised(f.name, point), right.promised(f.name, point))
            if not any(promised) or (point == TOPK_LOGPROBS and not promised[0]):
                continue
            if point == TOPK_IDS and promised[1] and left.promised(f.name, HEAD):
                points.append(_top_k(left, right, f, atol, rtol))
                logits.append({"input": f.name, **points[-1].pop("logits")})
                continue
            if not all(promised):
                not_compared.append(f"{f.name}/{point}")
                continue
            x, y = left.tensor(f.name, point), right.tensor(f.name, point)
            entry: dict[str, Any] = {"point": point, "input": f.name, "verdict": "missing", "max_abs": None, "note": ""}
            if x is None or y is None:
                entry["note"] = f"promised by {names[0] if x is None else names[1]}, but not there"
            else:
                entry.update(_core.compare(x, y, atol, rtol))
                entry["note"] = _shape_note(x, y)
                if point == HEAD and x.shape == y.shape and x.ndim == 3:
                    logits.append({"input": f.name, **_core.compare_logits(x, y, f.mask)})
            points.append(entry)
    for trace, name in ((left, names[0]), (right, names[1])):
        for tensor in trace.unpromised():
            forward, _, point = tensor.partition("/")
            note = f"in {name}, but not in its manifest"
            points.append({"point": point or tensor, "input": forward, "verdict": "missing", "max_abs": None, "note": note})
        trace.check_unchanged()
    verdict = worst([p["verdict"] for p in points])
    bad = [p for p in points if not passes(p["verdict"], bitwise)]
    return {
        "format_version": FORMAT_VERSION,
        "command": "compare",
        "verdict": verdict,
        "model": {"family": None, "layer_types": None, "digest": (right.manifest.get("model") or {}).get("digest")},
        "pedigree": {"a": left.manifest.get("producer"), "b": right.manifest.get("producer")},
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "exit_code": int(bool(bad) or not points),
        "options": {"atol": atol, "rtol": rtol, "bitwise": bitwise},
        "first": bad[0] if bad else None,
        "only_logits": bool(points) and all(p["point"] in (HEAD, TOPK_LOGPROBS) for p in points),
        "points": points,
        "logits": logits,
        "not_compared": not_compared,
    }


def _top_k(left: _core.Trace, right: _core.Trace, f: Any, atol: float, rtol: float) -> dict[str, Any]:
    """Log-probabilities of the k tokens that `right` lists per position, against `left`'s whole logits [B, T, V]."""
    whole, ids, theirs = left.tensor(f.name, HEAD), right.tensor(f.name, TOPK_IDS), right.tensor(f.name, TOPK_LOGPROBS)
    entry: dict[str, Any] = {"point": TOPK_LOGPROBS, "input": f.name, "verdict": "missing", "max_abs": None, "note": "",
                             "logits": {"kl": None, "top1_agreement": None}}  # fmt: skip
    if whole is None or ids is None or theirs is None:
        entry["note"] = "expected lm_head.output on one side, topk_ids and topk_logprobs on the other"
        return entry
    if ids.shape != theirs.shape or ids.shape[:2] != whole.shape[:2] or ids.is_floating_point():
        entry["verdict"], entry["note"] = (
            "shape",
            f"expected two of {list(whole.shape[:2])} + [k], found {list(ids.shape)}, {list(theirs.shape)}",
        )
        return entry
    if int(ids.min()) < 0 or int(ids.max()) >= whole.shape[-1]:
        entry["verdict"], entry["note"] = "shape", f"expected ids from 0 to {whole.shape[-1] - 1}"
        return entry
    mine = whole.double().log_softmax(-1)
    listed = mine.gather(-1, ids.long())
    entry.update(_core.compare(listed.to(theirs.dtype), theirs, atol, rtol))
    # What the list leaves over is one further outcome on both sides.
    rest = [(1 - p.exp().sum(-1)).clamp_min(1e-300) for p in (listed, theirs.double())]
    kl = (listed.exp() * (listed - theirs.double())).sum(-1) + rest[0] * (rest[0] / rest[1]).log()
    top = ids.gather(-1, theirs.argmax(-1, keepdim=True)).squeeze(-1)
    whole_mass = bool((theirs.double().exp().sum(-1) <= 1 + 1e-4).all())  # else they are no probabilities
    entry["logits"] = {
        "kl": float(kl.mean()) if whole_mass else None,
        "top1_agreement": float((top == mine.argmax(-1)).double().mean()),
    }
    return entry


def _shape_note(x: Any, y: Any) -> str:
    if x.shape != y.shape:
        return f"expected {list(x.shape)}, found {list(y.shape)}"
    if x.dtype != y.dtype:
        return f"expected {str(x.dtype).removeprefix('torch.')}, found {str(y.dtype).removeprefix('torch.')}"
    return ""
