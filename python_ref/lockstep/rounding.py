"""The verdict `rounding`: where the bits of reference and mirror differ, is each within what right arithmetic may lose?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import inputs as given
from .engines.live import record as record_live
from .engines.mirror import MirrorEngine
from .inputs import Forward
from .native import _core
from .reference import Reference
from .streaming import Spill


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
    stream = reference.streamed is not None
    named = {f.name: f for f in given.default_inputs(about["vocab"], about["mrope"])}
    theirs, dropped = record_live(
        reference.model, reference.modeling, forwards, "all", dtype=reference.dtype, attn=reference.attn,
        variant=reference.variant, vocab=about["vocab"], who="transformers", keep=Spill() if stream else None,
    )  # fmt: skip
    assert not dropped
    mine = MirrorEngine(mirror_folder, about, reference.dtype, reference.attn, stream=stream).record(forwards, "all")
    found = _core.bisect(
        str(folder), theirs, mine.trace, reference.dtype, reference.attn, named["len130"].ids, values=level == "all",
        causes=False, thorough=False, points=True, without=set(), progress=say,
    )  # fmt: skip
    settled = _core.settle_rounding(differing, found["points"], len(about["layer_types"]))
    for point, with_floor in zip(differing, settled, strict=True):
        point.update(with_floor)
