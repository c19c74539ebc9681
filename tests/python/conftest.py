"""Small checkpoints for tests: the embedded one, and a tiny random twin per family, made by the real HF class."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from safetensors.torch import load_file, save_file

EMBEDDED_NAME = "embedded"

# One tiny config per family of the registry: (HF class, HF config class, arguments).
QWEN3_5: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                        "mrope_section": [1, 1, 0], "mrope_interleaved": True},
    "eos_token_id": 96, "pad_token_id": None,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TINY = {
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", QWEN3_5),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
}


def make_twin(folder: Path, family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Path:
    """A random checkpoint of `family` in `folder`; every parameter random, also norms and biases; a decay that lasts."""
    import transformers

    model_class, config_class, base = TINY[family]
    torch.manual_seed(seed)
    config = getattr(transformers, config_class)(**{**base, **changes})
    model = getattr(transformers, model_class)(config)
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.data.uniform_(1, 4).log_()
        elif name.endswith("dt_bias"):
            p.data.uniform_(-4, -2)
        else:
            p.data.add_(torch.randn_like(p) * 0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def embedded() -> Path:
    import lockstep.hub

    return lockstep.hub.EMBEDDED


@pytest.fixture(scope="session", params=sorted(TINY))
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint of each family."""
    return make_twin(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(tmp_path_factory.mktemp("qwen"), "qwen3_5")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(tmp_path_factory.mktemp("llama"), "llama")


Tensors = dict[str, torch.Tensor]


def edited(
    source: Path,
    folder: Path,
    tensors: Callable[[Tensors], Any] | None = None,
    config: Callable[[dict[str, Any]], Any] | None = None,
) -> Path:
    """A copy of a one-file checkpoint with its tensors or its config changed in place by the functions given."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder / file.name)
    data = load_file(source / "model.safetensors")
    if tensors is not None:
        tensors(data)
    save_file({k: v.contiguous() for k, v in data.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    stated = json.loads((source / "config.json").read_text())
    if config is not None:
        config(stated)
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


def some_inputs(model: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Some of the model's default inputs, as a user states them."""
    from lockstep import inputs
    from lockstep.native import _core

    about = _core.Mirror.open(str(model)).describe()
    forwards = [f for f in inputs.default_inputs(about["vocab"], about["mrope"]) if f.name in names]
    assert len(forwards) == len(tuple(names))
    return inputs.to_json(forwards)


def ids_forward(*ids: int, name: str = "ids", **more: Any) -> dict[str, Any]:
    return {"name": name, "ids": [list(ids)], "positions": None, "mask": None, "past": None, **more}
