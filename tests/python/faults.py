"""Planted faults: each changes the loaded Hugging Face model (never the mirror) and says where it must be found.

Most rewrite one line of HF's own source and compile it in the modeling module, so that the fault is what a porter would
have typed. A rewritten function of the module is put back by `undo`.
"""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling


def rewritten(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The function with one piece of its source replaced, compiled in the modeling module's own globals."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    source = source[source.index("def ") :]
    assert old in source, f"{function} no longer says {old!r}"
    names: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<{function.__name__} with a fault>", "exec"), vars(modeling), names)
    return names[function.__name__]


def method(module: torch.nn.Module, old: str, new: str) -> None:
    """A fault in one module's forward."""
    module.forward = types.MethodType(rewritten(type(module).forward, old, new), module)  # type: ignore[method-assign]


@dataclass
class Fault:
    name: str
    plant: Callable[[Any], Any]
    first: str  # the module or value at which `first` must stand
    exit_codes: tuple[int, ...] = (1,)
    input: str | None = None  # the first input that can show it
    functions: dict[str, tuple[str, str]] = field(default_factory=dict)  # of the modeling module: old, new

    def patch(self, model: Any) -> None:
        for name, (old, new) in self.functions.items():
            setattr(modeling, name, rewritten(getattr(modeling, name), old, new))
        self.plant(model)


def _nothing(_: Any) -> None: ...


def _layer(model: Any, index: int) -> Any:
    return model.model.layers[index]


def _set_inv_freq(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = change(rotary.inv_freq)


def _nan(model: Any) -> None:
    mlp = _layer(model, 2).mlp
    forward = mlp.forward

    def with_nan(x: torch.Tensor) -> torch.Tensor:
        y = forward(x)
        y[0, 0, 7] = float("nan")
        return y

    mlp.forward = with_nan


def _whole_head_rotates(model: Any) -> None:
    head_dim = model.config.head_dim
    _set_inv_freq(model, lambda f: 1.0 / (10000.0 ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)))


def _weight(model: Any) -> None:
    with torch.no_grad():
        _layer(model, 6).mlp.down_proj.weight[5, 7] += 1e-2


def _a_log(model: Any) -> None:
    p = _layer(model, 2).linear_attn.A_log
    p.data = p.data.to(torch.bfloat16).float()


FAULTS = [
    Fault("norm multiplies by w", lambda m: method(_layer(m, 0).input_layernorm, "(1.0 + self.weight.float())", "self.weight.float()"),
          "model.layers.0.input_layernorm.output"),
    Fault("k_norm multiplies by w", lambda m: method(_layer(m, 3).self_attn.k_norm, "(1.0 + self.weight.float())", "self.weight.float()"),
          "model.layers.3.self_attn.k_norm.output"),
    Fault("gated norm multiplies by 1 + w", lambda m: method(_layer(m, 1).linear_attn.norm, "self.weight * hidden", "(1 + self.weight) * hidden"),
          "model.layers.1.linear_attn.norm.output"),
    Fault("norm epsilon 1e-5", lambda m: setattr(_layer(m, 5).post_attention_layernorm, "eps", 1e-5),
          "model.layers.5.post_attention_layernorm.output"),
    Fault("delta rule without 1/sqrt(dk)", _nothing, "model.layers.0.linear_attn@delta", (1, 2),
          functions={"torch_chunk_gated_delta_rule": ("query = query * scaling", "query = query * 1.0")}),
    Fault("flat q/gate split", lambda m: method(_layer(m, 3).self_attn,
          "self.q_proj(hidden_states).view(*input_shape, -1, self.head_dim * 2), 2, dim=-1",
          "self.q_proj(hidden_states), 2, dim=-1"), "model.layers.3.self_attn"),
    Fault("gate by silu", lambda m: method(_layer(m, 3).self_attn, "torch.sigmoid(gate)", "F.silu(gate)"),
          "model.layers.3.self_attn.o_proj.input"),
    Fault("gate left out", lambda m: method(_layer(m, 7).self_attn, " * torch.sigmoid(gate)", ""),
          "model.layers.7.self_attn.o_proj.input"),
    Fault("attention scale x 1.001", lambda m: setattr(_layer(m, 3).self_attn, "scaling", _layer(m, 3).self_attn.scaling * 1.001),
          "model.layers.3.self_attn@context", input="len2"),
    Fault("whole head rotates", _whole_head_rotates, "model.rotary_emb", (1, 2)),
    Fault("rope theta 1000", lambda m: _set_inv_freq(m, lambda f: 1.0 / (1000.0 ** (torch.arange(0, 8, 2, dtype=torch.float) / 8))),
          "model.rotary_emb@inv_freq"),
    Fault("inv_freq through bfloat16", lambda m: _set_inv_freq(m, lambda f: f.bfloat16().float()), "model.rotary_emb@inv_freq"),
    Fault("key heads tiled", lambda m: [method(_layer(m, i).linear_attn, "key.repeat_interleave(self.num_v_heads // self.num_k_heads, dim=2)",
          "key.repeat(1, 1, self.num_v_heads // self.num_k_heads, 1)") for i in range(8) if i % 4 != 3],
          "model.layers.0.linear_attn@k_l2"),
    Fault("chunk hand-over without decay", _nothing, "model.layers.0.linear_attn@delta", (1, 2), "len65",
          functions={"torch_chunk_gated_delta_rule": ("decayed_k_beta = k_beta * cum_decay.exp().unsqueeze(-1)", "decayed_k_beta = k_beta")}),
    Fault("continuation without the state", lambda m: [method(_layer(m, i).linear_attn, "initial_state=recurrent_state", "initial_state=None")
          for i in range(8) if i % 4 != 3], "model.layers.0.linear_attn@delta", (1, 2), "split2_148.1"),
    Fault("conv state one column short", lambda m: [method(_layer(m, i).linear_attn, "mixed_qkv = cache_params.update_conv_state(",
          "mixed_qkv = (lambda x, *a, **k: cache_params.update_conv_state(x, *a, **k) + 0 * (cache_params.layers[self.layer_idx]"
          ".conv_states[0][..., :1].zero_().sum()))(") for i in range(8) if i % 4 != 3],
          "model.layers.0.linear_attn@conv_state", (1, 2)),
    Fault("state kept in bfloat16", lambda m: [method(_layer(m, i).linear_attn,
          "cache_params.update_recurrent_state(last_recurrent_state, self.layer_idx)",
          "cache_params.update_recurrent_state(last_recurrent_state.bfloat16().float(), self.layer_idx)")
          for i in range(8) if i % 4 != 3], "model.layers.0.linear_attn@recurrent_state", (1, 2), "len65"),
    Fault("state handed over transposed", lambda m: [method(_layer(m, i).linear_attn,
          "cache_params.update_recurrent_state(last_recurrent_state, self.layer_idx)",
          "cache_params.update_recurrent_state(last_recurrent_state.transpose(-1, -2).contiguous(), self.layer_idx)")
          for i in range(8) if i % 4 != 3], "model.layers.0.linear_attn@recurrent_state", (1, 2), "len65"),
    Fault("padding not masked", _nothing, "model.layers.0.linear_attn", (1, 2), "pad2",
          functions={"apply_mask_to_padding_states": ("if attention_mask is not None", "if False")}),
    Fault("l2norm by F.normalize", _nothing, "model.layers.0.linear_attn@q_l2",
          functions={"l2norm": ("x * inv_norm", "F.normalize(x, dim=dim)")}),
    Fault("NaN in one element", _nan, "model.layers.2.mlp.output"),
    Fault("one weight", _weight, "model.layers.6.mlp.down_proj.output"),
    Fault("A_log through bfloat16", _a_log, "model.layers.2.linear_attn@decay"),
    Fault("residual not added", lambda m: method(_layer(m, 4), "hidden_states = residual + hidden_states\n\n    return",
          "return"), "model.layers.4.output", (1, 2)),
]  # fmt: skip
