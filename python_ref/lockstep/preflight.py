"""Distrust the reference: what must hold of it before bits equal to it prove anything.

A failed check does not stop the run; the legs are run and reported, and the exit code is 2, or 1 where something is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from .capture import Capture
from .inputs import Forward, default_inputs, is_packed
from .native import InputError, _core
from .reference import Caches, Reference

# Relative L2 at the logits within which legitimate orders of summation stay (padded, split, packed against plain).
LIMITS = {"float32": 1e-3, "float16": 5e-3, "bfloat16": 5e-2}


def run(reference: Reference, source: _core.Mirror, forwards: list[Forward], points: str) -> None:
    """Runs every check on the default inputs (the packed one on `forwards`), and notes them in the pedigree.

    source: the checkpoint that the reference was loaded from.
    """
    about = source.describe()
    named = {f.name: f for f in default_inputs(about["vocab"], about["mrope"])}
    checks: list[tuple[str, Callable[[], None]]] = [
        ("hooks_transparent", partial(_check_bits, reference, named["len130"], points)),
        ("last_layer_hook", partial(_check_last_layer, reference, named["len65"])),
        ("padded_batch", partial(_check_padding, reference, named["pad2"])),
    ]
    for name in ("split2_148", "split64_86"):
        parts = [named[f"{name}.0"], named[f"{name}.1"]]
        checks.append((name, partial(_check_split, reference, parts, name, points)))
    steps = [named["len65"], *(named[f"step{i}"] for i in range(1, 6))]
    checks.append(("steps", partial(_check_split, reference, steps, "steps", points)))
    continued = {f.past for f in forwards}
    for f in forwards:
        if is_packed(f) and f.name not in continued:
            checks.append((f"packed:{f.name}", partial(_check_packed, reference, f)))
    for name, check in checks:
        try:
            check()
        except InputError as error:  # a reference that cannot even run has failed the check; the legs may still say why
            reference.check(name, False, found=str(error))


def _rel_l2(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    found = _core.compare(reference.float(), candidate.float())["rel_l2"]
    return float("inf") if found is None else found


def _close(reference: Reference, name: str, found: float) -> None:
    limit = LIMITS[reference.dtype]
    reference.check(name, found <= limit, rel_l2=found if found < float("inf") else None, limit=limit)


def _check_bits(reference: Reference, f: Forward, points: str) -> None:
    """Run twice: the same bits. Hooked: the same bits."""
    once = reference.forward(f)
    reference.check("repeatable", _core.same_bits(once, reference.forward(f)), input=f.name)
    with Capture(reference.model, reference.modeling, points) as capture:
        capture.sink = _Count()
        hooked = reference.forward(f)
    reference.check("hooks_transparent", _core.same_bits(once, hooked), input=f.name)


class _Count:
    """A sink that looks at nothing."""

    def capture(self, point: str, value: torch.Tensor) -> None: ...
    def layer_done(self, index: int) -> None: ...
    def head_done(self) -> None: ...


def _check_last_layer(reference: Reference, f: Forward) -> None:
    """The last layer's hook is before the final norm: norm(hook) is last_hidden_state, bit for bit."""
    seen: dict[str, torch.Tensor] = {}
    body = getattr(reference.model, "model", None)
    if body is None or not len(getattr(body, "layers", [])):
        reference.check("last_layer_hook", False, found="no model.layers")
        return
    handles = [
        body.layers[-1].register_forward_hook(lambda _, __, out: seen.update(layer=out[0] if isinstance(out, tuple) else out)),
        body.register_forward_hook(lambda _, __, out: seen.update(last=out[0])),
    ]
    try:
        reference.forward(f)
    finally:
        for handle in handles:
            handle.remove()
    with torch.no_grad():
        same = len(seen) == 2 and _core.same_bits(body.norm(seen["layer"]), seen["last"])
    reference.check("last_layer_hook", same, input=f.name)


def _check_padding(reference: Reference, f: Forward) -> None:
    """Left-padded in a batch of two: as each row alone. A batch of one is recorded, not judged."""
    assert f.mask is not None
    batched = reference.forward(f)
    worst, alone = 0.0, []
    for row in range(f.ids.shape[0]):
        real = int(f.mask[row].sum())
        alone.append(reference.forward(Forward(f"row{row}", f.ids[row : row + 1, -real:])))
        worst = max(worst, _rel_l2(alone[-1], batched[row : row + 1, -real:]))
    _close(reference, "padded_batch", worst)
    real = int(f.mask[1].sum())
    single = reference.forward(replace(f, ids=f.ids[1:2], mask=f.mask[1:2]))
    found = _rel_l2(alone[1], single[:, -real:])
    reference.check("padded_single", True, rel_l2=found if found < float("inf") else None, judged=False)


def _check_split(reference: Reference, parts: list[Forward], name: str, points: str) -> None:
    """In parts over the cache: as in one shot. And hooked over the cache: the same bits."""
    whole = reference.forward(Forward(name, torch.cat([f.ids for f in parts], dim=1)))
    plain = _in_parts(reference, parts, None)
    _close(reference, name, _rel_l2(whole, plain))
    if name == "steps":
        with Capture(reference.model, reference.modeling, points) as capture:
            capture.sink = _Count()
            hooked = _in_parts(reference, parts, capture)
        reference.check("hooks_transparent_cached", _core.same_bits(plain, hooked), input=name)


def _in_parts(reference: Reference, parts: list[Forward], capture: Capture | None) -> torch.Tensor:
    """Logits [B, T of all parts, V] of forwards that continue one another."""
    caches = Caches(parts, reference.new_cache)
    whole: torch.Tensor | None = None
    begin = 0
    for f in parts:
        cache = caches.take(f)
        if capture is not None:
            capture.cache = cache
        logits = reference.forward(f, cache)
        caches.leave(f, cache)
        if whole is None:  # filled part by part: logits are the largest tensors there are
            whole = logits.new_empty((logits.shape[0], sum(p.ids.shape[1] for p in parts), logits.shape[2]))
        whole[:, begin : begin + logits.shape[1]] = logits
        begin += logits.shape[1]
        del logits
    assert whole is not None
    return whole


def _check_packed(reference: Reference, f: Forward) -> None:
    """Several sequences in one row: as each alone. HF's linear layers leak from one to the next."""
    assert f.positions is not None
    together = reference.forward(f)
    worst = 0.0
    for row in range(f.ids.shape[0]):
        cuts = [0, *((f.positions[row].diff() != 1).nonzero().flatten() + 1).tolist(), f.ids.shape[1]]
        for a, b in zip(cuts, cuts[1:], strict=False):
            part = Forward("part", f.ids[row : row + 1, a:b], positions=f.positions[row : row + 1, a:b])
            worst = max(worst, _rel_l2(reference.forward(part), together[row : row + 1, a:b]))
    _close(reference, f"packed:{f.name}", worst)
