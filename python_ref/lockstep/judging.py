"""The local check of whole traces, in as many parts as there are workers: sublayers are judged independently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .distributed import Here, Workers, received
from .native import _core
from .options import Progress

PARTS = 12  # so that workers end together, and each part's own floor of len130 costs little


def judge(
    workers: Workers,
    reference: _core.Trace | None,
    candidate: _core.Trace,
    dtype: str,
    attn: str,
    len130: torch.Tensor,
    *,
    layers: int,
    values: bool,
    thorough: bool,
    without: Sequence[str],
    say: Progress,
) -> dict[str, Any]:
    """_core.bisect of every sublayer, with causes."""
    options: dict[str, Any] = {
        "dtype": dtype, "attn": attn, "len130": len130, "values": values, "causes": True, "thorough": thorough, "points": False,
        "without": set(without),
    }  # fmt: skip
    if isinstance(workers, Here):
        return _core.bisect(str(workers.folder), reference, candidate, **options, progress=say)
    parts = _parts(layers)
    theirs, mine = () if reference is None else workers.share(reference), workers.share(candidate)
    results = workers.map(
        _judge_part,
        [(options, part, len(theirs), *theirs, *mine) for part in parts],
        lambda done: say(f"local check: {done} of {len(parts)} parts done"),
    )
    # What a worker is given holds what is promised: what else a file has is seen here.
    return {**merged(results), "extra": candidate.unpromised()}


def _parts(layers: int) -> list[list[str]]:
    """Paths of modules: a part judges the sublayers at or under one of its own, in execution order."""
    size = -(-layers // PARTS)
    decoder = [f"model.layers.{i}" for i in range(layers)]
    groups = [decoder[i : i + size] for i in range(0, layers, size)]
    return [["model.embed_tokens", "model.rotary_emb"], *groups, ["model.norm", "lm_head"]]


def _judge_part(folder: Path, options: dict[str, Any], part: list[str], shared: int, *traces: Any) -> dict[str, Any]:
    reference = received(traces[:shared]) if shared else None
    candidate = received(traces[shared:])
    return _core.bisect(str(folder), reference, candidate, **options, only=set(part), progress=lambda _: None)


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result from those of parts in execution order."""
    whole: dict[str, Any] = {
        key: [x for r in results for x in r[key]] for key in ("drift", "faults", "notes", "projections", "points")
    }
    power: dict[str, dict[str, list[str]]] = {}
    for r in results:
        for hypothesis, standings in r["power"].items():
            for standing, where in standings.items():
                power.setdefault(hypothesis, {}).setdefault(standing, []).extend(where)
    whole["power"] = {h: dict(sorted(s.items())) for h, s in sorted(power.items())}
    everywhere = set.intersection(*(set(r["not_compared"]) for r in results))  # no part has judged it
    whole["not_compared"] = [name for name in results[0]["not_compared"] if name in everywhere]
    for key in ("judged", "skipped_rows", "nan_rows"):
        whole[key] = sum(r[key] for r in results)
    costs = [r["cost"] for r in results]
    same = ("inputs", "sublayers", "sides")
    whole["cost"] = {key: costs[0][key] if key in same else sum(c[key] for c in costs) for key in costs[0]}
    return whole
