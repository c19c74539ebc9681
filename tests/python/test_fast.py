"""generate --fast: nothing but rounding beside Hugging Face, and red where what it reads is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_twin
from lockstep import InputError, Mirror, generate
from lockstep.native import _core
from lockstep.prompts import tokenizer_of
from test_generate import PROMPTS, epsilon, left_padded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fast_is_rounding(embedded: Path, dtype: str) -> None:
    found = generate(embedded, prompt=PROMPTS[0], max_new_tokens=16, dtype=dtype, check=True, fast=True)
    assert (found.exit_code, found.verdict, found.data["options"]["fast"]) == (0, "rounding", True), found.data["check"]


def test_a_fault_turns_fast_red(embedded: Path) -> None:
    found = generate(embedded, prompt=PROMPTS[0], max_new_tokens=12, check=True, fast=True, patch=epsilon)
    assert (found.exit_code, found.verdict) == (1, "deviates")
    assert [fault["point"] for fault in found.data["check"]["faults"]] == ["model.norm"]


def test_a_wrong_stored_weight_turns_fast_red(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what fast reads is wrong: after the parameters were cast, a weight changes in the mapped file's private pages."""
    name, bind = "model.layers.2.mlp.down_proj.weight", _core.Mirror.bind

    def bind_and_spoil(mirror: Any, dtype: str) -> None:
        bind(mirror, dtype)
        mirror.file_tensor(name)[5, 7] += 0.5

    monkeypatch.setattr(_core.Mirror, "bind", bind_and_spoil)
    plain = generate(embedded, prompt=PROMPTS[0], max_new_tokens=12, check=True)
    assert plain.verdict == "identical"
    found = generate(embedded, prompt=PROMPTS[0], max_new_tokens=12, check=True, fast=True)
    assert (found.exit_code, found.verdict) == (1, "deviates")
    assert [fault["point"] for fault in found.data["check"]["faults"]] == ["model.layers.2.mlp"]


@pytest.mark.parametrize(("family", "biases"), [("qwen3_5", {"attention_bias": True}), ("llama", {"mlp_bias": True})])
def test_fast_with_biases_odd_shapes_and_a_head_of_its_own(family: str, biases: dict[str, Any], tmp_path: Path) -> None:
    odd = {**biases, "hidden_size": 36, "intermediate_size": 50, "eos_token_id": None}
    folder = make_twin(tmp_path / "twin", family, torch.bfloat16, **odd)
    found = generate(folder, ids="3,1,4,1,5", max_new_tokens=8, check=True, fast=True)
    assert (found.exit_code, found.verdict) == (0, "rounding"), found.data["check"]


def test_fast_of_several_rows_is_the_plain_way(embedded: Path) -> None:
    mirror, tokenizer = Mirror.load(embedded), tokenizer_of(embedded)
    ids, mask = left_padded([tokenizer.encode(text) for text in PROMPTS[:2]], mirror.generation_config()["pad"])
    plain, fast = (mirror.generate(ids, mask, max_new_tokens=8, logits=True, fast=fast) for fast in (False, True))
    for mine, other in zip(fast["logits"], plain["logits"], strict=True):
        assert _core.same_bits(mine, other)


def test_fast_is_refused_where_it_has_nothing_to_read(embedded: Path, qwen: Path) -> None:
    with pytest.raises(InputError, match="stored in bfloat16, found float32; leave out --fast"):
        generate(qwen, ids="1,2", fast=True)
    with pytest.raises(InputError, match="--fast: expected --dtype float32 or bfloat16, found float16"):
        generate(embedded, ids="1,2", dtype="float16", fast=True)
