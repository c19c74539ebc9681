"""The C++ model by itself, and what its captures are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep import InputError, LoadError, Mirror
from lockstep.inputs import default_inputs


def test_forward_and_captures(embedded: Path) -> None:
    mirror = Mirror.load(embedded, dtype="float32")
    logits, captured = mirror.forward(torch.tensor([[5, 6, 7]]), points="all")
    assert logits.shape == (1, 3, 1024)
    assert torch.equal(captured["lm_head.output"], logits)
    assert captured["model.layers.0.linear_attn@decay"].shape == (1, 3, 4)
    assert captured["model.layers.3.self_attn@gate"].shape == (1, 3, 128)
    assert list(captured)[0] == "model.input" and list(captured)[-1] == "lm_head.output"
    assert mirror.forward(torch.tensor([[5, 6, 7]]))[1] == {}


def test_cached_steps_are_the_whole(embedded: Path) -> None:
    mirror = Mirror.load(embedded)
    ids = torch.arange(5, 15)[None]
    whole, _ = mirror(ids)
    cache = mirror.new_cache()
    parts = [mirror(ids[:, :4], cache=cache)[0]] + [mirror(ids[:, i : i + 1], cache=cache)[0] for i in range(4, 10)]
    assert cache.past == 10
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)


def test_a_copied_cache_is_a_snapshot(embedded: Path) -> None:
    mirror = Mirror.load(embedded)
    cache = mirror.new_cache()
    mirror(torch.tensor([[5, 6, 7, 8]]), cache=cache)
    kept = cache.copy()
    first, _ = mirror(torch.tensor([[9]]), cache=cache)
    assert (cache.past, kept.past) == (5, 4)
    again, _ = mirror(torch.tensor([[9]]), cache=kept)
    assert torch.equal(first, again)


def test_captures_do_not_change_when_the_run_goes_on(embedded: Path) -> None:
    mirror = Mirror.load(embedded)
    cache = mirror.new_cache()
    _, captured = mirror(torch.tensor([[5, 6, 7, 8]]), cache=cache, points="all")
    before = {point: value.clone() for point, value in captured.items()}
    mirror(torch.tensor([[9]]), cache=cache)
    assert all(torch.equal(before[point], value) for point, value in captured.items())


@pytest.mark.parametrize("variant", ["5.10", "5.18", "5.24"])
def test_prompts_of_one_to_four_tokens_decode(embedded: Path, variant: str) -> None:
    """The conv state of a short prompt is zero-padded on the left, so that the first step has its reach."""
    mirror = Mirror.load(embedded)
    ids = torch.arange(5, 14)[None]
    whole, _ = mirror(ids, variant=variant)
    for first in (1, 2, 3, 4):
        cache = mirror.new_cache()
        parts = [mirror(ids[:, :first], cache=cache, variant=variant)[0]]
        parts += [mirror(ids[:, i : i + 1], cache=cache, variant=variant)[0] for i in range(first, 9)]
        assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)


def test_rows_of_a_batch_do_not_mix(embedded: Path) -> None:
    mirror = Mirror.load(embedded)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    before, captured = mirror(ids, points="layer")
    assert all(value.shape[0] == 2 for value in captured.values())
    ids[1, 0] = 11
    after, _ = mirror(ids)
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_transformers_is_not_needed(embedded: Path) -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch, lockstep\n"
        f"mirror = lockstep.Mirror.load({str(embedded)!r})\n"
        "print(tuple(mirror.forward(torch.tensor([[5, 6]]))[0].shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(1, 2, 1024)", done.stderr


def test_errors_name_the_thing(embedded: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="expected a checkpoint folder"):
        Mirror.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match='dtype "int8": expected float32, bfloat16 or float16'):
        Mirror.load(embedded, dtype="int8")
    mirror = Mirror.load(embedded)
    with pytest.raises(InputError, match="found 1024"):
        mirror(torch.tensor([[1024]]))
    with pytest.raises(InputError, match='variant "4.0" is not known'):
        mirror(torch.tensor([[1]]), variant="4.0")
    with pytest.raises(InputError, match="the cache holds a batch of 1, found one of 2"):
        cache = mirror.new_cache()
        mirror(torch.tensor([[1, 2]]), cache=cache)
        mirror(torch.tensor([[1], [2]]), cache=cache)
    other = Mirror.load(embedded)
    with pytest.raises(InputError, match="it belongs to another model"):
        other(torch.tensor([[1]]), cache=mirror.new_cache())
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast is on"):
        mirror(torch.tensor([[1]]))


def test_writing_to_a_parameter_never_reaches_the_file(embedded: Path) -> None:
    before = (embedded / "model.safetensors").read_bytes()
    Mirror.load(embedded, dtype="bfloat16").parameters()["model.norm.weight"].zero_()
    assert (embedded / "model.safetensors").read_bytes() == before


def test_a_file_cut_short_while_mapped_is_refused(embedded: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(embedded / file, tmp_path)
    mirror = Mirror.load(tmp_path, dtype="bfloat16")
    os.truncate(tmp_path / "model.safetensors", 100_000)
    with pytest.raises(LoadError, match="changed while it was in use"):
        mirror(torch.tensor([[5, 6, 7]]))


def test_default_inputs_have_their_names() -> None:
    names = [f.name for f in default_inputs(1000, True)]
    assert names == [
        "len1", "len2", "len3", "len4", "len5", "len63", "len64", "len65", "len130", "from5000", "pad2", "rows3",
        "split2_148.0", "split2_148.1", "split64_86.0", "split64_86.1", "step1", "step2", "step3", "step4", "step5",
    ]  # fmt: skip
    assert "rows3" not in [f.name for f in default_inputs(1000, False)]
    pasts = {f.name: f.past for f in default_inputs(1000, True) if f.past}
    assert pasts["step1"] == "len65" and pasts["step5"] == "step4" and pasts["split2_148.1"] == "split2_148.0"


def test_another_torch_is_refused_in_one_sentence() -> None:
    code = "import lockstep._build as b; b.TORCH_VERSION = '1.0.0+cpu'\nimport lockstep.native"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("ImportError: lockstep was built with torch 1.0.0+cpu, found torch 2.13.0")
    )
