"""Dumps of other engines become traces, or one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lockstep
from lockstep.importing import import_trace
from lockstep.native import InputError

IDS = "5,6,7,8"


@pytest.fixture(scope="module")
def dump(embedded: Path) -> dict[str, np.ndarray]:
    """What an engine of one's own would keep: [T, ...] arrays under Hugging Face's names."""
    mirror = lockstep.Mirror.load(embedded)
    _, captured = mirror.forward(torch.tensor([[5, 6, 7, 8]]), points="sublayer")
    return {name: x[0].numpy() for name, x in captured.items() if x.is_floating_point()}


@pytest.mark.parametrize("form", ["npz", "safetensors", "npy"])
def test_a_dump_is_judged_like_a_trace(form: str, dump: dict[str, np.ndarray], embedded: Path, tmp_path: Path) -> None:
    where = tmp_path / f"my dump.{form}"
    if form == "npz":
        np.savez(where, **dump)
    elif form == "safetensors":
        save_file({name: torch.from_numpy(x.copy()) for name, x in dump.items()}, where)
    else:
        where.mkdir()
        for name, x in dump.items():
            np.save(where / f"{name}.npy", x)
    written = import_trace(where, tmp_path / "x.trace", ids=IDS)
    assert (written["forwards"], written["dtype"]) == (1, "float32")
    found = lockstep.bisect(embedded, str(tmp_path / "x.trace"))
    assert (found.exit_code, found.faults) == (0, [])
    assert all(entry["injected"] is not None for entry in found.data["drift"])


def test_names_are_mapped_and_the_rest_is_left_out(dump: dict[str, np.ndarray], embedded: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{f"l_out-{i}": dump[f"model.layers.{i}.output"] for i in range(8)}, junk=np.zeros(3))
    (tmp_path / "names.json").write_text(json.dumps({f"l_out-{i}": f"model.layers.{i}.output" for i in range(8)}))
    written = import_trace(tmp_path / "d.npz", tmp_path / "x.trace", names=tmp_path / "names.json", ids=IDS)
    assert (written["tensors"], written["unmapped"]) == (8, ["junk"])
    lockstep.trace(tmp_path / "hf.trace", embedded, ids=None, inputs=[{"name": "dump", "ids": [[5, 6, 7, 8]]}])
    data = lockstep.compare(tmp_path / "hf.trace", tmp_path / "x.trace")
    assert (data["exit_code"], data["verdict"], len(data["points"])) == (0, "identical", 8)


def test_logits_alone_are_judged_alone(embedded: Path, tmp_path: Path) -> None:
    logits, _ = lockstep.Mirror.load(embedded).forward(torch.tensor([[5, 6, 7, 8]]))
    np.savez(tmp_path / "whole.npz", logits=logits[0].numpy(), ids=np.array([5, 6, 7, 8]))
    top = logits[0].log_softmax(-1).topk(5)
    np.savez(tmp_path / "top.npz", topk_ids=top.indices.numpy(), topk_logprobs=top.values.numpy(), ids=np.array([5, 6, 7, 8]))
    wrong = top.values.numpy().copy()
    wrong[2, 0] += 0.5
    np.savez(tmp_path / "wrong.npz", topk_ids=top.indices.numpy(), topk_logprobs=wrong, ids=np.array([5, 6, 7, 8]))
    lockstep.trace(tmp_path / "hf.trace", embedded, inputs=[{"name": "dump", "ids": [[5, 6, 7, 8]]}])
    for name, code in (("whole", 0), ("top", 0), ("wrong", 1)):
        import_trace(tmp_path / f"{name}.npz", tmp_path / f"{name}.trace")
        data = lockstep.compare(tmp_path / "hf.trace", tmp_path / f"{name}.trace")
        assert (data["exit_code"], data["only_logits"]) == (code, True)
        kl = data["logits"][0]["kl"]
        assert abs(kl) < 1e-6 if code == 0 else kl is None  # listed probabilities that add up to more than 1
        assert data["logits"][0]["top1_agreement"] == 1
    with pytest.raises(InputError, match="nothing could be judged"):
        lockstep.bisect(embedded, str(tmp_path / "whole.trace"))


@pytest.mark.parametrize(
    ("arrays", "arguments", "message"),
    [
        ({"model.norm.output": np.zeros((4, 8), np.float32)}, {}, "which tokens ran?"),
        ({"a": np.zeros((4, 8), np.int32)}, {"ids": IDS}, "expected float32, bfloat16, float16 or float64 values, found none"),
        ({"other/x": np.zeros((4, 8), np.float32)}, {"ids": IDS}, "names the forward 'other'; expected one of dump"),
    ],
)
def test_a_bad_dump_is_one_sentence(arrays: dict, arguments: dict, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError) as error:
        import_trace(tmp_path / "d.npz", tmp_path / "x.trace", **arguments)
    assert message in str(error.value)
    assert not (tmp_path / "x.trace").exists()


def test_files_that_are_no_dumps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, message in (("broken.npz", "cannot be read"), ("text.txt", "expected an .npz"), ("empty", "holds no array")):
        with pytest.raises(InputError, match=message):
            import_trace(tmp_path / name, tmp_path / "x.trace", ids=IDS)
