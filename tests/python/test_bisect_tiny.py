"""The faults that only a trace shows, on the seeded tiny preset (8 layers, D 256, F 512): parameters cannot be compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep import faults

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_checkpoint.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    subprocess.run([sys.executable, str(SCRIPT), "--preset", "tiny", str(folder)], check=True, capture_output=True)
    return folder


def found(tiny: Path, tmp_path: Path, patch: Callable[[Any], Any], **options: Any) -> lockstep.Findings:
    """What a trace of the patched model, every point, tells."""
    file = tmp_path / "patched.trace"
    lockstep.trace(file, tiny, points="all", patch=patch)
    return lockstep.bisect(tiny, str(file), points="all", **options)


def weight(offset: float) -> Callable[[Any], None]:
    def patch(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[6].mlp.down_proj.weight[5, 7] += offset

    return patch


def kind(name: str, place: str, layer: int) -> Callable[[Any], None]:
    chosen = next(k for k in faults.kinds() if k.name == name and k.place == place)
    return lambda model: chosen.apply(model, layer) and None


@pytest.mark.parametrize(("offset", "thorough"), [(1e-4, False), pytest.param(1e-6, True, marks=pytest.mark.full)])
def test_one_weight_is_found_with_its_offset(offset: float, thorough: bool, tiny: Path, tmp_path: Path) -> None:
    result = found(tiny, tmp_path, weight(offset), thorough=thorough)
    assert result.exit_code == 1
    assert [f["point"] for f in result.faults] == ["model.layers.6.mlp"]
    cause = result.faults[0]["cause"]
    assert (cause["hypothesis"], cause["parameter"], cause["index"]) == (
        "one weight",
        "model.layers.6.mlp.down_proj.weight",
        [5, 7],
    )
    assert abs(cause["estimate"] - offset) <= 3 * cause["estimate_error"]


@pytest.mark.parametrize(
    ("patch", "point", "value", "cause"),
    [
        (kind("norm epsilon", "input_layernorm", 5), "model.layers.5.input_layernorm", None, "norm epsilon"),
        (kind("l2norm by F.normalize", "linear_attn", 2), "model.layers.2.linear_attn", "q_l2", "l2norm by F.normalize"),
        (kind("inv_freq through bfloat16", "rotary_emb", -1), "model.rotary_emb", "inv_freq", "inv_freq through bfloat16"),
    ],
    ids=["epsilon", "F.normalize", "inv_freq"],
)
def test_a_trace_alone_names_place_and_cause(
    patch: Any, point: str, value: str | None, cause: str, tiny: Path, tmp_path: Path
) -> None:
    result = found(tiny, tmp_path, patch)
    assert [(f["point"], f["value"]) for f in result.faults] == [(point, value)]
    named = result.faults[0]["cause"]
    assert cause in [named["hypothesis"], *named["also"]]
    if cause == "norm epsilon":
        assert abs(named["estimate"] - 1e-5) <= max(4 * named["estimate_error"], 1e-8)
