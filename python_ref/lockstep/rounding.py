"""The verdict `rounding`: where the bits of reference and mirror differ, is each within what right arithmetic may lose?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import inputs as given
from .engines.live import record as record_live
from .engines.mirror import MirrorEngine
from .inputs import Forward
from .native import _core
from .reference import Reference
from .verdicts import worst


def judge(
    points: list[dict[str, Any]],
    *,
    folder: Path,
    about: dict[str, Any],
    reference: Reference,
    mirror_folder: Path,
    forwards: list[Forward],
    level: str,
    say: Callable[[str], None],
) -> None:
    """Sets `floor` and `ratio` of every point, and `rounding` where both sides are within the bound of the local check.

    Both sides are recorded once more: a lockstep frees its captures as it compares them.
    """
    for point in points:
        point["floor"] = point["ratio"] = None
    differing = [p for p in points if p["verdict"] in ("agrees", "deviates")]
    if not differing:
        return
    say("local check: is it rounding?")
    named = {f.name: f for f in given.default_inputs(about["vocab"], about["mrope"])}
    theirs, dropped = record_live(
        reference.model, reference.modeling, forwards, "all", dtype=reference.dtype, attn=reference.attn,
        variant=reference.variant, vocab=about["vocab"], who="transformers",
    )  # fmt: skip
    assert not dropped
    mine = MirrorEngine(mirror_folder, about, reference.dtype, reference.attn).record(forwards, "all")
    found = _core.bisect(
        str(folder), theirs, mine.trace, reference.dtype, reference.attn, named["len130"].ids, values=level == "all",
        causes=False, thorough=False, points=True, without=set(), progress=say,
    )  # fmt: skip
    judged: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in found["points"]:
        judged.setdefault((entry["point"], entry["input"]), []).append(entry)
    for point in differing:
        entries = judged.get((producer(point["point"], len(about["layer_types"])), point["input"]), [])
        of_mirror = max((e for e in entries if e["side"] == "candidate"), key=lambda e: e["ratio"] or 0, default=None)
        if of_mirror is not None:
            point["floor"], point["ratio"] = of_mirror["floor"], of_mirror["ratio"]
        both = len({e["side"] for e in entries}) == 2
        if point["verdict"] == "deviates" and both and worst(e["verdict"] for e in entries) == "rounding":
            point["verdict"] = "rounding"


def producer(point: str, layers: int) -> str:
    """The judged point that holds the same tensor: what only passes a value on has no arithmetic of its own."""
    passed_on = {
        "model.norm.input": f"model.layers.{layers - 1}.output",
        "lm_head.input": "model.norm.output",
        "model.output": "model.norm.output",
        "model.rotary_emb.input": "model.embed_tokens.output",
        "model.rotary_emb.output": "model.rotary_emb@cos",
        "model.layers.0.input": "model.embed_tokens.output",
    }
    if point in passed_on:
        return passed_on[point]
    layer = re.fullmatch(r"model\.layers\.(\d+)\.input", point)
    return f"model.layers.{int(layer[1]) - 1}.output" if layer else point
