"""Hooks and taps on the reference: each point once, cloned, and gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

import lockstep
from faults import method
from lockstep import inputs
from lockstep.capture import Capture
from lockstep.reference import Caches, Reference


class Kept:
    """Keeps clones, and the tensors themselves."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.clones: dict[str, torch.Tensor] = {}
        self.layers: list[int] = []
        self.heads = 0

    def capture(self, point: str, value: torch.Tensor) -> None:
        self.points.append(point)
        self.clones[point] = value.clone()

    def layer_done(self, index: int) -> None:
        self.layers.append(index)

    def head_done(self) -> None:
        self.heads += 1


@pytest.fixture(scope="module")
def reference(embedded: Path) -> Reference:
    return Reference.load(embedded, lockstep.Mirror.load(embedded).describe(), "float32", "sdpa")


def captured(reference: Reference, f: inputs.Forward, points: str = "all", cache: Any = None) -> Kept:
    kept = Kept()
    with Capture(reference.model, reference.modeling, points) as capture:
        capture.sink, capture.cache = kept, cache
        reference.forward(f, cache)
    return kept


@pytest.mark.parametrize("cached", [False, True])
def test_the_reference_fires_what_the_mirror_fires_once(reference: Reference, embedded: Path, cached: bool) -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    mirror = lockstep.Mirror.load(embedded)
    cache = mirror.new_cache() if cached else None
    _, mine = mirror.forward(ids, points="all", cache=cache)
    kept = captured(reference, inputs.Forward("x", ids), cache=reference.new_cache() if cached else None)
    assert sorted(kept.points) == sorted(mine)
    assert len(set(kept.points)) == len(kept.points)
    assert kept.layers == list(range(8)) and kept.heads == 1
    assert all(kept.clones[p].shape == mine[p].shape for p in mine)


def test_everything_is_put_back(reference: Reference) -> None:
    before = {name: vars(modeling)[name] for name in ("torch", "F", "l2norm", "ALL_ATTENTION_FUNCTIONS", "apply_rotary_pos_emb")}
    with Capture(reference.model, reference.modeling, "all"):
        assert vars(modeling)["l2norm"] is not before["l2norm"]
    assert all(vars(modeling)[name] is value for name, value in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in reference.model.modules())


def test_a_layer_that_does_not_run_is_missing(embedded: Path) -> None:
    def patch(model: Any) -> None:
        model.model.layers[2].mlp.forward = lambda x: x * 0  # its projections never fire

    report = lockstep.verify(embedded, patch=patch, points="all", ids="5,6,7")
    missing = [p["point"] for p in report.points if p["verdict"] == "missing"]
    assert "model.layers.2.mlp.gate_proj.output" in missing and report.verdict == "missing"
    assert {f["times"] for f in report.legs["lockstep"]["fired"]} == {0}


def test_a_module_that_runs_twice_is_not_passed(embedded: Path) -> None:
    def patch(model: Any) -> None:
        mlp = model.model.layers[2].mlp
        act = mlp.act_fn.__class__.forward
        mlp.act_fn.forward = lambda x: act(mlp.act_fn, x)
        forward = mlp.forward

        def twice(x: torch.Tensor) -> torch.Tensor:
            mlp.up_proj(x)
            return forward(x)

        mlp.forward = twice

    report = lockstep.verify(embedded, patch=patch, points="all", ids="5,6,7")
    assert report.exit_code == 1
    fired = {(f["point"], f["times"]) for f in report.legs["lockstep"]["fired"]}
    assert ("model.layers.2.mlp.up_proj.output", 2) in fired


def test_an_output_changed_in_place_later_is_compared_as_it_was(embedded: Path) -> None:
    """The mlp's output is captured before the layer adds to it in place: cloned, it stays what it was."""

    def patch(model: Any) -> None:
        for layer in model.model.layers:
            method(layer, "hidden_states = residual + hidden_states\n\n    return", "hidden_states.add_(residual)\n\n    return")

    assert lockstep.verify(embedded, patch=patch, points="all", ids="5,6,7").verdict == "identical"


def test_an_input_changed_in_place_is_compared_as_it_was(embedded: Path) -> None:
    """A layer that adds onto its own input has the same bits: its input was captured before."""

    def patch(model: Any) -> None:
        for layer in model.model.layers:
            method(
                layer,
                "hidden_states = residual + hidden_states\n\n    # Fully",
                "hidden_states = residual.add_(hidden_states)\n\n    # Fully",
            )

    assert lockstep.verify(embedded, patch=patch, points="all", ids="5,6,7").verdict == "identical"


def test_states_are_captured_by_clone(reference: Reference) -> None:
    cache = reference.new_cache()
    kept = Kept()
    with Capture(reference.model, reference.modeling, "sublayer") as capture:
        capture.sink, capture.cache = kept, cache
        reference.forward(inputs.Forward("a", torch.tensor([[5, 6, 7, 8]])), cache)
        first = kept.clones["model.layers.0.linear_attn@conv_state"].clone()
        reference.forward(inputs.Forward("b", torch.tensor([[9]])), cache)
    assert not torch.equal(first, kept.clones["model.layers.0.linear_attn@conv_state"])


def test_caches_are_handed_over_copied_or_dropped() -> None:
    def f(name: str, past: str | None = None) -> inputs.Forward:
        return inputs.Forward(name, torch.tensor([[1]]), past=past)

    forwards = [f("a"), f("b", "a"), f("c", "a"), f("d")]
    caches = Caches(forwards, lambda: ["new"])
    a = caches.take(forwards[0])
    caches.leave(forwards[0], a)
    b = caches.take(forwards[1])
    assert b == a and b is not a, "a branch gets a copy"
    assert caches.take(forwards[2]) is a, "the last one gets the cache itself"
    assert caches.take(forwards[3]) is None


def test_taps_restore_after_an_error(reference: Reference, embedded: Path) -> None:
    original = modeling.l2norm
    with pytest.raises(ZeroDivisionError), Capture(reference.model, reference.modeling, "all"):
        raise ZeroDivisionError
    assert modeling.l2norm is original


def test_the_level_of_a_point_is_the_mirrors(embedded: Path) -> None:
    from lockstep.capture import level_of
    from lockstep.native import _core

    mirror = lockstep.Mirror.load(embedded)
    _, captured = mirror.forward(torch.tensor([[1, 2, 3]]), cache=mirror.new_cache(), points="all")
    assert len(captured) > 100
    assert all(level_of(point) == _core.level_of(point) for point in captured)
