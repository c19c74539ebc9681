"""Strict loading: every case that people met has its exact message. (Files that are no safetensors: tests/cpp.)"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lockstep
from conftest import Tensors, edited, make_twin
from lockstep import LoadError, Mirror

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as caught:
        Mirror.load(folder)
    return str(caught.value).replace(str(folder), "DIR")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(tmp_path_factory.mktemp("tied"), "qwen3_5", tie_word_embeddings=True)


# Tied heads


def test_tied_with_another_stored_head_is_refused(tied: Path, tmp_path: Path) -> None:
    folder = edited(tied, tmp_path / "x", lambda t: t.update({HEAD: t[EMBEDDING] + 0.1}))
    assert refusal(folder) == (
        "DIR: config.json says tied (tie_word_embeddings), but the files hold two different tensors, lm_head.weight and "
        "model.embed_tokens.weight; remove the one that is wrong, or set the flag to false"
    )


def test_tied_with_the_same_stored_head_loads_and_is_noted(tied: Path, tmp_path: Path) -> None:
    folder = edited(tied, tmp_path / "x", lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    notes = Mirror.load(folder).describe()["notes"]
    assert notes == ["lm_head.weight is a redundant copy of model.embed_tokens.weight (tied, same bytes)"]
    assert lockstep.verify(folder, ids="1,2,3").verdict == "identical"


def test_tied_with_the_head_alone_names_the_embedding(tied: Path, tmp_path: Path) -> None:
    folder = edited(tied, tmp_path / "x", lambda t: t.update({HEAD: t.pop(EMBEDDING)}))
    assert refusal(folder) == (
        "model.embed_tokens.weight: missing; expected [97, 32] float32, bfloat16 or float16, found nothing in DIR"
    )


def test_untied_without_a_head_says_so(tied: Path, tmp_path: Path) -> None:
    folder = edited(tied, tmp_path / "x", config=lambda c: c.update(tie_word_embeddings=False))
    assert refusal(folder) == (
        "lm_head.weight: missing; expected [97, 32] float32, bfloat16 or float16, found nothing in DIR "
        "(config.json does not say tie_word_embeddings)"
    )


# Names


def rename(old: str, new: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    return change


def test_nested_prefix_is_the_same_model(qwen: Path, tmp_path: Path) -> None:
    folder = edited(qwen, tmp_path / "x", rename("model.", "model.language_model."))
    report = lockstep.verify(folder, ids="1,2,3")
    assert (report.exit_code, report.verdict) == (0, "identical")


def test_a_flag_outside_of_the_text_config_ties_both_sides(tied: Path, tmp_path: Path) -> None:
    def composite(config: dict[str, Any]) -> None:
        inner = dict(config)
        del inner["tie_word_embeddings"]
        config.clear()
        config.update(model_type="qwen3_5", text_config=inner, tie_word_embeddings=True)

    folder = edited(tied, tmp_path / "x", rename("model.", "model.language_model."), composite)
    report = lockstep.verify(folder, ids="1,2,3")
    assert (report.exit_code, report.verdict) == (0, "identical")


def test_triple_prefix_is_refused(qwen: Path, tmp_path: Path) -> None:
    triple = "model.language_model.language_model.language_model."
    message = refusal(edited(qwen, tmp_path / "x", rename("model.", triple)))
    assert f"{triple}embed_tokens.weight: unexpected; the model has no such parameter ([97, 32] in model.safetensors)" in message
    assert "model.embed_tokens.weight: missing" in message


def test_both_prefixes_are_a_duplicate(qwen: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"].clone()

    assert refusal(edited(qwen, tmp_path / "x", change)) == (
        "model.norm.weight: duplicate: the files hold it as model.language_model.norm.weight and as model.norm.weight"
    )


def test_ignored_prefixes_are_listed_with_counts(qwen: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in ("mtp.layers.0.mlp.up_proj.weight", "mtp.norm.weight", "mtp_x", "model.visual.patch_embed.weight"):
            tensors[name] = torch.zeros(2)

    folder = edited(qwen, tmp_path / "x", change)
    assert Mirror.load(folder).describe()["ignored"] == {"model.visual.*": 1, "mtp.*": 2, "mtp_*": 1}
    assert lockstep.verify(folder, ids="1,2,3").verdict == "identical"


def test_everything_wrong_is_named_at_once(qwen: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.9.input_layernorm.weight"] = torch.zeros(32)
        tensors["model.layers.0.linear_attn.in_proj_qkvz.weight"] = torch.zeros(2, 32)
        tensors["model.layers.3.self_attn.q_proj.weight"] = torch.zeros(64, 32, dtype=torch.bfloat16)
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(48, 32, dtype=torch.int8)
        del tensors["model.layers.2.linear_attn.A_log"]

    assert refusal(edited(qwen, tmp_path / "x", change)).splitlines() == [
        "DIR: 5 problems",
        "  model.layers.0.linear_attn.in_proj_qkvz.weight: unexpected; the model has no such parameter ([2, 32] in model.safetensors)",
        "  model.layers.1.mlp.up_proj.weight: expected [48, 32] float32, bfloat16 or float16, found [48, 32] int8 in "
        "model.safetensors (quantized checkpoints are not implemented)",
        "  model.layers.2.linear_attn.A_log: missing; expected [4] float32, bfloat16 or float16, found nothing in DIR",
        "  model.layers.3.self_attn.q_proj.weight: expected [128, 32], found [64, 32] bfloat16 in model.safetensors",
        "  model.layers.9.input_layernorm.weight: unexpected; the model has no such parameter ([32] in model.safetensors)",
    ]


# Shards and their index


@pytest.fixture
def sharded(qwen: Path, tmp_path: Path) -> Path:
    """The twin in two shards with an index."""
    tensors = load_file(qwen / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    folder = tmp_path / "sharded"
    folder.mkdir()
    for file, members in parts.items():
        save_file({n: tensors[n] for n in members}, folder / file)
    weight_map = {n: file for file, members in parts.items() for n in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    shutil.copy(qwen / "config.json", folder)
    return folder


def index_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def write_index(folder: Path, index: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without(folder: Path, file: str, name: str) -> None:
    tensors = load_file(folder / file)
    del tensors[name]
    save_file(tensors, folder / file)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards_are_the_same_model(sharded: Path) -> None:
    assert lockstep.verify(sharded, ids="1,2,3").verdict == "identical"


def test_absent_shard(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    count = len(index_of(sharded)["weight_map"]) - 20
    assert refusal(sharded) == (
        f"DIR: shard {SECOND} is absent; model.safetensors.index.json promises {count} tensors in it (incomplete download?)"
    )


def test_index_promises_what_the_shard_lacks(sharded: Path) -> None:
    without(sharded, SECOND, "model.norm.weight")
    assert refusal(sharded) == f"model.norm.weight: model.safetensors.index.json promises it in {SECOND}, which lacks it"


def test_shard_holds_what_the_index_does_not_list(sharded: Path) -> None:
    index = index_of(sharded)
    del index["weight_map"]["model.norm.weight"]
    write_index(sharded, index)
    assert refusal(sharded) == f"model.norm.weight: shard {SECOND} holds it, model.safetensors.index.json does not list it"


def test_tensor_in_two_shards_is_a_duplicate(sharded: Path) -> None:
    tensors = load_file(sharded / FIRST)
    tensors["model.norm.weight"] = torch.zeros(32)
    save_file(tensors, sharded / FIRST)
    assert refusal(sharded) == f"model.norm.weight: duplicate tensor: in {FIRST} and in {SECOND}"


@pytest.mark.parametrize("name", ["../x.safetensors", "a/x.safetensors", "a\\x.safetensors", "/x.safetensors", "x.bin", "", 3])
def test_index_names_that_leave_the_folder_are_refused(sharded: Path, name: Any) -> None:
    index = index_of(sharded)
    index["weight_map"]["model.norm.weight"] = name
    write_index(sharded, index)
    assert refusal(sharded) == (
        "DIR/model.safetensors.index.json /weight_map/model.norm.weight: expected the name of a .safetensors file in this "
        f"folder, found {json.dumps(name)}"
    )


def test_index_beside_a_single_file_is_noted(sharded: Path, qwen: Path) -> None:
    shutil.copy(qwen / "model.safetensors", sharded)
    assert Mirror.load(sharded).describe()["notes"] == [
        "both model.safetensors and model.safetensors.index.json are there: model.safetensors is used, as transformers does"
    ]


@pytest.mark.parametrize("lost", [1, 4095, 20000])
def test_truncated_shard(sharded: Path, lost: int) -> None:
    data = (sharded / SECOND).read_bytes()
    (sharded / SECOND).write_bytes(data[:-lost])
    assert refusal(sharded) == f"DIR/{SECOND}: needs {len(data)} bytes, has {len(data) - lost} (truncated?); get the file again"


def test_a_pickle_is_never_opened(qwen: Path, tmp_path: Path) -> None:
    shutil.copy(qwen / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    assert refusal(tmp_path).endswith("pytorch_model.bin is a pickle and is never opened: convert it to safetensors")


def test_a_link_into_a_hub_cache_is_followed(qwen: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(qwen / file)
    assert Mirror.load(tmp_path).family == "qwen3_5"


# Dtypes


def test_file_dtypes_are_kept_and_the_runs_dtype_is_applied(embedded: Path) -> None:
    mirror = Mirror.load(embedded)
    assert mirror.describe()["dtypes"] == {"bfloat16": 96, "float32": 12}
    stored = load_file(embedded / "model.safetensors")
    name = "model.layers.0.linear_attn.A_log"
    assert stored[name].dtype == torch.float32
    assert torch.equal(mirror.parameters()[name], stored[name])
    assert not torch.equal(stored[name], stored[name].bfloat16().float()), "the fixture must not fit in bfloat16"
    assert torch.equal(Mirror.load(embedded, dtype="bfloat16").parameters()[name], stored[name].bfloat16())


def test_a_log_through_bfloat16_is_found(embedded: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("A_log"):
                tensors[name] = tensors[name].bfloat16().float()

    report = lockstep.verify(embedded, mirror=edited(embedded, tmp_path / "x", change), points="all")
    assert report.exit_code == 1
    assert report.first and report.first["point"] == "model.layers.0.linear_attn@decay"
    assert {d["tensor"].rsplit(".")[-1] for d in report.legs["provenance"]["differing"]} == {"A_log"}


@pytest.mark.parametrize("pad", range(1, 8))
def test_unaligned_data_loads_bit_for_bit(qwen: Path, tmp_path: Path, pad: int) -> None:
    data = (qwen / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    shifted = (length + pad).to_bytes(8, "little") + data[8 : 8 + length] + b" " * pad + data[8 + length :]
    shutil.copy(qwen / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(shifted)
    mirror = Mirror.load(tmp_path)
    stored = load_file(qwen / "model.safetensors")
    assert all(torch.equal(p, stored[name]) for name, p in mirror.parameters().items())
    mirror.forward(torch.tensor([[1, 2, 3]]))


def test_loading_makes_no_second_copy(embedded: Path) -> None:
    """In the file's dtype, a parameter is a view of the mapped file: two loads see the same bytes, no cast is made."""
    mirror = Mirror.load(embedded, dtype="bfloat16")
    weight = mirror.parameters()["model.layers.0.mlp.up_proj.weight"]
    maps = Path("/proc/self/maps").read_text().splitlines()
    inside = [line for line in maps if int(line.split("-")[0], 16) <= weight.data_ptr() < int(line.split("-")[1].split()[0], 16)]
    assert inside and inside[0].endswith("model.safetensors")
