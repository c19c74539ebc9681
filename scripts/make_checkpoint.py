#!/usr/bin/env python3
"""Write a seeded random Qwen3.5 checkpoint, tensor by tensor, with no model in memory.

    .venv/bin/python scripts/make_checkpoint.py --preset qwen3.5-0.8b OUT    full size, in the released layout (1.5 GB)
    .venv/bin/python scripts/make_checkpoint.py --preset tiny OUT            8 layers, for tests

Options: --seed N (0); --dtype float32|bfloat16 (the preset's). The full-size one has the composite config,
model.language_model.* names, some mtp.* and model.visual.* tensors, bfloat16 with float32 A_log and gated norms, two
shards and an index. Ends by printing the number of text parameters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Preset:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    vocab: int
    theta: float
    mrope: tuple[int, int, int]
    dtype: str
    released: bool  # composite config, nested names, two shards, ignored tensors


PRESETS = {
    "qwen3.5-0.8b": Preset(1024, 3584, 24, 8, 2, 256, 16, 16, 128, 128, 248320, 1e7, (11, 11, 10), "bfloat16", True),
    "tiny": Preset(256, 512, 8, 4, 2, 64, 2, 4, 32, 48, 2048, 1e6, (3, 3, 2), "float32", False),
}
CONV = 4


def shapes(p: Preset) -> dict[str, tuple[int, ...]]:
    """Every text tensor by its name under `model.`, in the order of the files."""
    d, channels = p.hidden, 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim
    found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (p.vocab, d)}
    for i in range(p.layers):
        at = f"layers.{i}."
        if (i + 1) % 4:
            a = at + "linear_attn."
            found[a + "in_proj_qkv.weight"] = (channels, d)
            found[a + "in_proj_z.weight"] = (p.value_heads * p.value_dim, d)
            found[a + "in_proj_b.weight"] = found[a + "in_proj_a.weight"] = (p.value_heads, d)
            found[a + "conv1d.weight"] = (channels, 1, CONV)
            found[a + "A_log"] = found[a + "dt_bias"] = (p.value_heads,)
            found[a + "norm.weight"] = (p.value_dim,)
            found[a + "out_proj.weight"] = (d, p.value_heads * p.value_dim)
        else:
            a = at + "self_attn."
            found[a + "q_proj.weight"] = (2 * p.heads * p.head_dim, d)
            found[a + "k_proj.weight"] = found[a + "v_proj.weight"] = (p.kv_heads * p.head_dim, d)
            found[a + "o_proj.weight"] = (d, p.heads * p.head_dim)
            found[a + "q_norm.weight"] = found[a + "k_norm.weight"] = (p.head_dim,)
        found[at + "mlp.gate_proj.weight"] = found[at + "mlp.up_proj.weight"] = (p.intermediate, d)
        found[at + "mlp.down_proj.weight"] = (d, p.intermediate)
        found[at + "input_layernorm.weight"] = found[at + "post_attention_layernorm.weight"] = (d,)
    found["norm.weight"] = (d,)
    return found


def value(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor from a seed of its own, so that it does not depend on the others. Decay as in Mamba: a state that lasts."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    if name.endswith("A_log"):
        return (1 + 15 * torch.rand(shape, generator=g)).log()
    if name.endswith("dt_bias"):
        dt = torch.exp(torch.rand(shape, generator=g) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        return dt + torch.log(-torch.expm1(-dt))
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.05 * torch.randn(shape, generator=g)
    if name.endswith("norm.weight"):
        return 0.05 * torch.randn(shape, generator=g)
    if name.endswith("conv1d.weight"):
        return 0.3 * torch.randn(shape, generator=g)
    return 0.02 * torch.randn(shape, generator=g)


def text_config(p: Preset) -> dict:
    return {
        "model_type": "qwen3_5_text", "vocab_size": p.vocab, "hidden_size": p.hidden, "intermediate_size": p.intermediate,
        "num_hidden_layers": p.layers, "num_attention_heads": p.heads, "num_key_value_heads": p.kv_heads,
        "head_dim": p.head_dim, "linear_num_key_heads": p.key_heads, "linear_num_value_heads": p.value_heads,
        "linear_key_head_dim": p.key_dim, "linear_value_head_dim": p.value_dim, "linear_conv_kernel_dim": CONV,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "attention_dropout": 0.0,
        "max_position_embeddings": 262144, "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": True,
        "full_attention_interval": 4, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "dtype": p.dtype,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(p.layers)],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": p.theta, "partial_rotary_factor": 0.25,
            "mrope_section": list(p.mrope), "mrope_interleaved": True,
        },
        "eos_token_id": p.vocab - 1, "pad_token_id": None, "bos_token_id": None,
    }  # fmt: skip


def write(p: Preset, out: Path, seed: int) -> int:
    """Writes OUT and returns the number of text parameters."""
    out.mkdir(parents=True, exist_ok=True)
    prefix = "model.language_model." if p.released else "model."
    dtype = getattr(torch, p.dtype)

    def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        made = value(name, shape, seed)
        keep = name.endswith(("A_log", "linear_attn.norm.weight"))
        return made if keep else made.to(dtype)

    everything = {prefix + name: (name, shape) for name, shape in shapes(p).items()}
    text = sum(math.prod(shape) for _, shape in everything.values())
    config = text_config(p)
    if p.released:
        ignored = {"mtp.fc.weight": (p.hidden, 2 * p.hidden), "mtp.norm.weight": (p.hidden,),
                   "mtp.layers.0.input_layernorm.weight": (p.hidden,), "model.visual.pos_embed.weight": (64, 32),
                   "model.visual.blocks.0.norm1.weight": (32,), "model.visual.blocks.0.norm1.bias": (32,)}  # fmt: skip
        everything |= {name: (name, shape) for name, shape in ignored.items()}
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": config,
            "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64,
                              "out_hidden_size": p.hidden},
            "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053,
            "vision_end_token_id": 248054, "tie_word_embeddings": True,
        }  # fmt: skip
    else:
        config["architectures"] = ["Qwen3_5ForCausalLM"]

    names = list(everything)
    if not p.released:
        save_file({n: tensor(*everything[n]) for n in names}, out / "model.safetensors", metadata={"format": "pt"})
    else:
        # Two shards of about the same size, an index over both.
        half, size, first = sum(math.prod(s) for _, s in everything.values()) // 2, 0, []
        for n in names:
            if size >= half:
                break
            first.append(n)
            size += math.prod(everything[n][1])
        weight_map: dict[str, str] = {}
        total = 0
        for i, part in enumerate((first, names[len(first) :]), start=1):
            file = f"model-{i:05}-of-00002.safetensors"
            tensors = {n: tensor(*everything[n]) for n in part}
            total += sum(t.numel() * t.element_size() for t in tensors.values())
            save_file(tensors, out / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
            del tensors
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", choices=sorted(PRESETS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        print(f"{options.out}: exists and is not empty; give a new folder", file=sys.stderr)
        return 2
    preset = PRESETS[options.preset]
    if options.dtype:
        preset = Preset(**{**preset.__dict__, "dtype": options.dtype})
    print(f"{options.out}: {write(preset, options.out, options.seed):,} text parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
