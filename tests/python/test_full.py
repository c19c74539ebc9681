"""The long parts: real weights and full size. Run by scripts/test --full."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.prompts import tokenizer_of
from test_generate import PROMPTS, hold, left_padded, load_reference

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from checkpoints import checkpoint  # noqa: E402
from false_alarms import as_mlx_reads_it  # noqa: E402

pytestmark = pytest.mark.full


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_is_identical(dtype: str, attn: str) -> None:
    report = lockstep.verify(checkpoint("smollm2"), dtype=dtype, attn=attn, points="all", bitwise=True)
    assert (report.exit_code, report.verdict) == (0, "identical")
    assert {p["max_ulp"] for p in report.points} == {0}


def test_smollm2_answers() -> None:
    report = lockstep.verify(checkpoint("smollm2"), prompt="The capital of France is")
    (logits,) = report.data["logits"]
    assert next(p["shape"] for p in report.points if p["point"] == "model.embed_tokens.input") == [1, 5]
    assert logits["top3"]["mirror"][0]["id"] == logits["top3"]["reference"][0]["id"] == 7042


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_generates_what_hugging_face_does(dtype: str) -> None:
    folder = checkpoint("smollm2")
    model, mirror = load_reference(folder, dtype), lockstep.Mirror.load(folder, dtype)
    tokenizer = tokenizer_of(folder)
    prompts = [tokenizer.encode(text) for text in ("The capital of France is", *PROMPTS[:19])]
    for ids in prompts if dtype == "float32" else prompts[:6]:
        found = hold(model, mirror, torch.tensor([ids]), max_new_tokens=64)
        if ids is prompts[0]:
            assert tokenizer.decode(found["tokens"][0], skip_special=True).startswith(" Paris")
    for first in (0, 8, 16):
        hold(model, mirror, *left_padded(prompts[first : first + 4], mirror.generation_config()["pad"]), max_new_tokens=32)


def test_smollm2_is_checked_step_by_step() -> None:
    found = lockstep.generate(checkpoint("smollm2"), prompt="The capital of France is", max_new_tokens=32, check=True)
    assert (found.exit_code, found.verdict) == (0, "identical")
    assert found.text is not None and found.text.startswith(" Paris")
    assert found.data["check"]["compared"] == len(found.tokens) * (1 + 2 * 30)


def test_full_size_generates_what_hugging_face_does() -> None:
    found = lockstep.generate(checkpoint("full"), ids="5,6,7,8,9,10", max_new_tokens=12, check=True)
    assert (found.exit_code, found.verdict) == (0, "identical")


def test_full_size_fast_is_rounding() -> None:
    found = lockstep.generate(checkpoint("full"), ids="5,6,7,8,9,10", max_new_tokens=3, check=True, fast=True)
    assert (found.exit_code, found.verdict) == (0, "rounding")


def test_full_size_is_identical() -> None:
    report = lockstep.verify(checkpoint("full"), points="all", bitwise=True)
    assert (report.exit_code, report.verdict) == (0, "identical")
    assert report.data["model"]["parameters"] == 752_393_024
    assert report.data["model"]["ignored"] == {"model.visual.*": 3, "mtp.*": 3}
    assert report.legs["coverage"]["absent"] == ["head_grouping"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mlx_does_not_find_the_rope_theta_that_transformers_5_writes(dtype: str) -> None:
    found = lockstep.bisect(checkpoint("smollm2"), "mlx", dtype=dtype)
    assert found.exit_code == 1
    assert [f["point"] for f in found.faults] == [f"model.layers.{i}.self_attn" for i in range(30)]
    for fault in found.faults:
        assert fault["cause"]["hypothesis"] == "rope theta 10000" or "rope theta 10000" in fault["cause"]["also"]

    with as_mlx_reads_it(checkpoint("smollm2")) as at_top:
        right = lockstep.bisect(at_top, "mlx", dtype=dtype)
    assert (right.exit_code, right.verdict, right.faults) == (0, "rounding", [])
