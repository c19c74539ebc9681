"""Planted faults: each changes one module of a loaded Hugging Face model, as a porter would have written it.

Most rewrite a line of HF's own source and compile it for that one module, so that no other layer and no other model in the
process changes. A kind's name is the hypothesis's that describes it (cpp/verify/hypotheses.cpp).
"""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Kind:
    """One kind of planted fault."""

    name: str
    place: str  # the sublayer: input_layernorm, linear_attn, self_attn, mlp, layer, rotary_emb, embed_tokens, lm_head, norm
    plant: Callable[[Any, Any], None]  # (model, the sublayer's module)
    operations: tuple[str, ...] = ()  # what the first different operation may be called; empty: not judged
    families: tuple[str, ...] = ("qwen3_5", "llama")

    def layers(self, model: Any) -> list[int]:
        """Layers that have such a sublayer; [-1] for what lies outside of them."""
        if self.place in ("rotary_emb", "embed_tokens", "lm_head", "norm"):
            return [-1]
        layers = range(len(model.model.layers))
        if self.place in ("layer", "input_layernorm", "post_attention_layernorm", "mlp"):
            return list(layers)
        return [i for i in layers if hasattr(model.model.layers[i], self.place)]

    def path(self, layer: int) -> str:
        """The sublayer's module path."""
        if layer < 0:
            return self.place if self.place == "lm_head" else f"model.{self.place}"
        return f"model.layers.{layer}" + ("" if self.place == "layer" else f".{self.place}")

    def apply(self, model: Any, layer: int) -> str:
        """Plants it -> the path of the sublayer that is now wrong."""
        path = self.path(layer)
        self.plant(model, model.get_submodule(path))
        return path


def source_of(function: Any) -> str:
    text = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    return text[text.index("def ") :]


def rewrite(
    module: Any, *edits: tuple[str, str], functions: dict[str, Edits] | None = None, helpers: dict[str, Any] | None = None
) -> None:
    """Replaces pieces of the module's forward, and of functions that it calls, for this one module.

    raises ValueError if the installed transformers does not have such a line
    """
    original = inspect.unwrap(type(module).forward)
    names: dict[str, Any] = {**original.__globals__, **(helpers or {})}
    for name, changes in (functions or {}).items():
        names[name] = _compiled(source_of(names[name]), changes, name, names)
    forward = _compiled(source_of(original), edits, "forward", names)
    module.forward = types.MethodType(forward, module)


def _compiled(text: str, edits: Edits | tuple[tuple[str, str], ...], name: str, names: dict[str, Any]) -> Any:
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{name} of the installed transformers does not say {old!r}")
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, f"<{name} with a fault>", "exec"), names, made)
    return made[name]


# Helpers that rewritten lines call.


def _epsilon(module: Any, factor: float) -> None:
    name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
    setattr(module, name, getattr(module, name) * factor)


def _norm(old_qwen: str, new_qwen: str, old_llama: str, new_llama: str) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        if hasattr(module, "variance_epsilon"):
            rewrite(module, (old_llama, new_llama))
        elif old_qwen.startswith("x *") or "mean(-1" in old_qwen:
            module._norm = types.MethodType(
                _compiled(source_of(type(module)._norm), ((old_qwen, new_qwen),), "_norm", type(module)._norm.__globals__), module
            )
        else:
            rewrite(module, (old_qwen, new_qwen))

    return plant


def _of(child: str, plant: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    return lambda model, module: plant(model, module.get_submodule(child))


def _forward(
    *edits: tuple[str, str], functions: dict[str, Edits] | None = None, helpers: dict[str, Any] | None = None
) -> Callable[[Any, Any], None]:
    return lambda _, module: rewrite(module, *edits, functions=functions, helpers=helpers)


def _activation(make: Callable[[], nn.Module]) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        module.act_fn = make()

    return plant


class _Sigmoid(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)


def _exchange(a: str, b: str) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        first, second = getattr(module, a), getattr(module, b)
        setattr(module, a, second)
        setattr(module, b, first)

    return plant


def _weight(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], None]:
    """Another value of one parameter, of this module alone (a tied head is untied)."""

    def plant(_: Any, module: Any) -> None:
        owner, _dot, leaf = name.rpartition(".")
        holder = module.get_submodule(owner) if owner else module
        setattr(holder, leaf, nn.Parameter(change(getattr(holder, leaf).detach()), requires_grad=False))

    return plant


def _add_to_one(w: torch.Tensor) -> torch.Tensor:
    changed = w.clone()
    changed[tuple(min(i, size - 1) for i, size in zip((5, 7), w.shape, strict=False))] += 1e-2
    return changed


def _inv_freq(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        module.inv_freq = change(module.inv_freq)

    return plant


def _theta(value: Callable[[float], float]) -> Callable[[Any, Any], None]:
    def plant(model: Any, module: Any) -> None:
        count = module.inv_freq.numel()
        theta = value(float(model.config.rope_parameters["rope_theta"]))
        module.inv_freq = 1.0 / (theta ** (torch.arange(0, 2 * count, 2, dtype=torch.float) / (2 * count)))

    return plant


def _mask(kind: str) -> Callable[..., torch.Tensor]:
    """What the attention is given for a mask, bool [B or 1, 1, T, S]."""

    def visible(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        new, keys = query.shape[2], key.shape[2]
        past = keys - new
        shown = torch.ones(new, keys, dtype=torch.bool)
        given = shown.tril(past)[None, None] if mask is None else mask if mask.dtype == torch.bool else mask == 0
        if kind == "none":
            return torch.ones_like(given)
        if kind == "next":
            return given | shown.tril(past + 1)
        if kind == "self":
            return given & shown.tril(past - 1)
        if kind == "pads":
            return shown.tril(past)[None, None].expand_as(given)
        given = given.clone()  # "past"
        given[..., :past] = False
        return given

    return visible


MASK_LINE = ("value_states,\n        attention_mask,", "value_states,\n        _shown(attention_mask, query_states, key_states),")


def _shown(kind: str) -> Callable[[Any, Any], None]:
    return _forward(MASK_LINE, helpers={"_shown": _mask(kind)})


def _rotated_pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _interleaved(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE over neighbouring dims, (0, 1), (2, 3), ..., as GPT-J pairs them."""
    size = cos.shape[-1]
    cos, sin = (table[..., : size // 2].repeat_interleave(2, -1).unsqueeze(1) for table in (cos, sin))
    rotated = [torch.cat((x[..., :size] * cos + _rotated_pairs(x[..., :size]) * sin, x[..., size:]), -1) for x in (q, k)]
    return rotated[0], rotated[1]


ROTATE = "apply_rotary_pos_emb(query_states, key_states, cos, sin)"
CHUNK, STEP = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"
L2 = "torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)"


def _rules(chunk: Edits = (), step: Edits = (), both: Edits = ()) -> dict[str, Edits]:
    return {CHUNK: (*chunk, *both), STEP: (*step, *both)}


def _l2(old: str, new: str) -> Callable[[Any, Any], None]:
    functions: dict[str, Edits] = {"l2norm": ((old, new),), CHUNK: (), STEP: ()}
    return _forward(functions=functions)


def _positions(change: str) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        original = module.forward

        def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            return original(x, _changed_positions(change, position_ids))

        module.forward = forward

    return plant


def _changed_positions(change: str, positions: torch.Tensor) -> torch.Tensor:
    if change == "one":
        return positions + 1
    if change == "zero":
        return torch.arange(positions.shape[-1]).expand_as(positions)
    if change == "row":
        return positions[:1].expand_as(positions) if positions.ndim == 3 else positions
    return positions.to(torch.bfloat16).to(torch.float32)


def _tables(change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Callable[[Any, Any], None]:
    def plant(_: Any, module: Any) -> None:
        original = module.forward

        def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            return change(*original(x, position_ids))

        module.forward = forward

    return plant


# What the first operation with other results is called (seen on transformers 5.18). A factor of 1.0 leaves a value that
# the reference has too: then it is the next operation that goes on with the wrong one.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "attention scale": ("_scaled_dot_product_flash_attention_for_cpu",),
    "attention scale left out": ("_scaled_dot_product_flash_attention_for_cpu",),
    "rotation of interleaved pairs": ("mul",),
    "rotation left out": ("cat", "_scaled_dot_product_flash_attention_for_cpu"),
    "causal mask left out": ("ones", "scalar_tensor", "where", "_scaled_dot_product_flash_attention_for_cpu"),
    "causal mask shows the next token": (
        "ones",
        "scalar_tensor",
        "where",
        "bitwise_or",
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "causal mask hides the token itself": (
        "ones",
        "scalar_tensor",
        "where",
        "bitwise_and",
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "attention pads not masked": ("ones", "scalar_tensor", "where", "_scaled_dot_product_flash_attention_for_cpu"),
    "cached keys not seen": ("ones", "scalar_tensor", "where", "fill_", "_scaled_dot_product_flash_attention_for_cpu"),
    "q_norm left out": ("mul",),
    "k_norm left out": ("mul",),
    "flat q/gate split": ("pow",),
    "query and gate exchanged": ("pow",),
    "l2norm by F.normalize": ("linalg_vector_norm",),
    "l2norm epsilon in a mean": ("mean",),
    "l2norm epsilon outside of the root": ("sqrt",),
    "memory not subtracted": ("mul",),
    "chunk hand-over without decay": ("linalg_solve_triangular",),
    "convolution without silu": ("mul",),
    "convolution taps reversed": ("convolution",),
    "linear pads not masked": ("mm",),
    "recurrent state not handed over": ("mul",),
    "gated norm weight convention": ("add",),
    "A_log through bfloat16": ("_to_copy",),
    "rope theta": ("bmm",),
    "rope theta 500000": ("bmm",),
    "inv_freq halved": ("bmm",),
    "inv_freq through bfloat16": ("bmm",),
    "positions one too high": ("add",),
    "positions from 0": ("arange",),
    "positions through bfloat16": ("_to_copy",),
    "cos and sin through bfloat16": ("_to_copy",),
    "norm without its weight": ("mul", "add"),
    "delta rule scale left out": ("mul", "constant_pad_nd"),
    "beta without its sigmoid": ("mul", "constant_pad_nd"),
    "residual left out": ("mul", "pow"),
    "sublayer left out of the stream": ("mul", "pow"),
}
G_LINE = "-self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias)"
QWEN = ("qwen3_5",)
NORMS = ("input_layernorm", "post_attention_layernorm")


def _norm_kinds(place: str) -> list[Kind]:
    return [
        Kind("norm epsilon", place, lambda _, m: _epsilon(m, 10), ("add",)),
        Kind("norm weight convention", place, _norm("(1.0 + self.weight.float())", "self.weight.float()",
             "return self.weight *", "return (1.0 + self.weight) *"), ("mul", "add")),
        Kind("norm without its weight", place, _norm("output * (1.0 + self.weight.float())", "output * 1.0",
             "self.weight * hidden_states", "1.0 * hidden_states"), ("mul",)),
        Kind("norm subtracts the mean", place, _norm("self._norm(x.float())", "self._norm(x.float() - x.float().mean(-1, keepdim=True))",
             "variance =", "hidden_states = hidden_states - hidden_states.mean(-1, keepdim=True)\n    variance ="), ("mean",)),
        Kind("norm left out", place, _norm("self._norm(x.float())", "x.float() * 1.0",
             "hidden_states * torch.rsqrt(variance + self.variance_epsilon)", "hidden_states * 1.0"), ("mul",)),
        Kind("norm by the sum of squares", place, _norm("x.pow(2).mean(-1", "x.pow(2).sum(-1",
             "hidden_states.pow(2).mean(-1", "hidden_states.pow(2).sum(-1"), ("sum",)),
        Kind("norm scale through bfloat16", place, _norm("(1.0 + self.weight.float())", "(1.0 + self.weight.float()).bfloat16().float()",
             "return self.weight *", "return self.weight.bfloat16().float() *"), ("_to_copy", "mul")),
        Kind("one weight", place, _weight("weight", _add_to_one), ("add", "mul")),
    ]  # fmt: skip


def kinds() -> list[Kind]:
    """Every kind, in the order of the forward."""
    attention = [
        Kind("attention scale", "self_attn", lambda _, m: setattr(m, "scaling", m.scaling * 1.001)),
        Kind("attention scale left out", "self_attn", lambda _, m: setattr(m, "scaling", 1.0)),
        Kind("key and value exchanged", "self_attn", _exchange("k_proj", "v_proj"), ("pow", "mul", "neg")),
        Kind("rotation of interleaved pairs", "self_attn", _forward((ROTATE, "_rotated(query_states, key_states, cos, sin)"),
             helpers={"_rotated": _interleaved})),
        Kind("rotation backwards", "self_attn", _forward((ROTATE, ROTATE.replace("sin)", "-sin)"))), ("neg",)),
        Kind("rotation left out", "self_attn", _forward((f"query_states, key_states = {ROTATE}", "pass"))),
        Kind("causal mask left out", "self_attn", _shown("none")),
        Kind("causal mask shows the next token", "self_attn", _shown("next")),
        Kind("causal mask hides the token itself", "self_attn", _shown("self")),
        Kind("attention pads not masked", "self_attn", _shown("pads")),
        Kind("cached keys not seen", "self_attn", _shown("past")),
        Kind("one weight", "self_attn", _weight("o_proj.weight", _add_to_one), ("mm", "addmm")),
        Kind("q_norm epsilon", "self_attn", _of("q_norm", lambda _, m: _epsilon(m, 10)), ("add",), QWEN),
        Kind("k_norm epsilon", "self_attn", _of("k_norm", lambda _, m: _epsilon(m, 10)), ("add",), QWEN),
        Kind("q_norm weight convention", "self_attn", _of("q_norm", _norm("(1.0 + self.weight.float())", "self.weight.float()", "", "")), ("mul",), QWEN),
        Kind("k_norm weight convention", "self_attn", _of("k_norm", _norm("(1.0 + self.weight.float())", "self.weight.float()", "", "")), ("mul",), QWEN),
        Kind("q_norm left out", "self_attn", _of("q_norm", lambda _, m: setattr(m, "forward", lambda x: x)), (), QWEN),
        Kind("k_norm left out", "self_attn", _of("k_norm", lambda _, m: setattr(m, "forward", lambda x: x)), (), QWEN),
        Kind("flat q/gate split", "self_attn", _forward(
             ("self.q_proj(hidden_states).view(*input_shape, -1, self.head_dim * 2), 2, dim=-1", "self.q_proj(hidden_states), 2, dim=-1")), (), QWEN),
        Kind("query and gate exchanged", "self_attn", _forward(("query_states, gate =", "gate, query_states =")), (), QWEN),
        Kind("output gate by silu", "self_attn", _forward(("torch.sigmoid(gate)", "F.silu(gate)")), ("silu",), QWEN),
        Kind("output gate left out", "self_attn", _forward((" * torch.sigmoid(gate)", "")), ("mm",), QWEN),
    ]  # fmt: skip
    linear = [
        Kind("key heads tiled", "linear_attn", _forward(
             ("query.repeat_interleave(self.num_v_heads // self.num_k_heads, dim=2)", "query.repeat(1, 1, self.num_v_heads // self.num_k_heads, 1)"),
             ("key.repeat_interleave(self.num_v_heads // self.num_k_heads, dim=2)", "key.repeat(1, 1, self.num_v_heads // self.num_k_heads, 1)")), ("repeat", "copy_"), QWEN),
        Kind("delta rule scale", "linear_attn", _forward(functions=_rules((("query * scaling", "query * (scaling * 1.001)"),),
             (("(query.shape[-1] ** 0.5)", "(query.shape[-1] ** 0.5 / 1.001)"),))), ("mul", "div"), QWEN),
        Kind("delta rule scale left out", "linear_attn", _forward(functions=_rules((("query * scaling", "query * 1.0"),),
             (("query / (query.shape[-1] ** 0.5)", "query * 1.0"),))), ("mul",), QWEN),
        Kind("l2norm epsilon", "linear_attn", _l2("+ eps", "+ 10 * eps"), ("add",), QWEN),
        Kind("l2norm by F.normalize", "linear_attn", _l2("x * inv_norm", "F.normalize(x, dim=dim)"), (), QWEN),
        Kind("l2norm epsilon in a mean", "linear_attn", _l2(L2, "torch.rsqrt((x * x).mean(dim=dim, keepdim=True) + eps) * x.shape[-1] ** -0.5"), (), QWEN),
        Kind("l2norm epsilon outside of the root", "linear_attn", _l2(L2, "1 / ((x * x).sum(dim=dim, keepdim=True).sqrt() + eps)"), (), QWEN),
        Kind("l2norm left out", "linear_attn", _l2("x * inv_norm", "x * 1.0"), ("mul",), QWEN),
        Kind("decay without softplus", "linear_attn", _forward((G_LINE, "-self.A_log.float().exp() * (a.float() + self.dt_bias)")), ("mul",), QWEN),
        Kind("decay without dt_bias", "linear_attn", _forward(("a.float() + self.dt_bias", "a.float()")), ("softplus",), QWEN),
        Kind("decay by A_log itself", "linear_attn", _forward(("-self.A_log.float().exp()", "-self.A_log.float()")), ("neg",), QWEN),
        Kind("state not decayed", "linear_attn", _forward(("g=g,", "g=g * 0,")), ("mul",), QWEN),
        Kind("beta left out", "linear_attn", _forward(("beta = b.sigmoid()", "beta = torch.ones_like(b)")), ("ones_like",), QWEN),
        Kind("beta without its sigmoid", "linear_attn", _forward(("beta = b.sigmoid()", "beta = b * 1.0")), ("mul",), QWEN),
        Kind("memory not subtracted", "linear_attn", _forward(functions=_rules(
             (("new_values = torch.linalg.solve_triangular(ut_system, v_beta, upper=False, unitriangular=True)", "new_values = v_beta * 1.0"),
              ("k_cumdecay = torch.linalg.solve_triangular(ut_system, decayed_k_beta, upper=False, unitriangular=True)", "k_cumdecay = decayed_k_beta * 0.0")),
             (("(v_t - kv_mem)", "v_t"),))), (), QWEN),
        Kind("chunk hand-over without decay", "linear_attn", _forward(functions={CHUNK: (
             ("decayed_k_beta = k_beta * cum_decay.exp().unsqueeze(-1)", "decayed_k_beta = k_beta * 1.0"),)}), (), QWEN),
        Kind("convolution without silu", "linear_attn", lambda _, m: setattr(m, "activation", None), (), QWEN),
        Kind("convolution taps reversed", "linear_attn", _weight("conv1d.weight", lambda w: w.flip(-1)), (), QWEN),
        Kind("linear pads not masked", "linear_attn", _forward(("apply_mask_to_padding_states(hidden_states, attention_mask)", "hidden_states")), (), QWEN),
        Kind("recurrent state not handed over", "linear_attn", _forward(("initial_state=recurrent_state", "initial_state=None if recurrent_state is None else recurrent_state * 0")), (), QWEN),
        Kind("gated norm epsilon", "linear_attn", _of("norm", lambda _, m: _epsilon(m, 10)), ("add",), QWEN),
        Kind("gated norm weight convention", "linear_attn", _of("norm", _forward(("self.weight *", "(1.0 + self.weight) *"))), (), QWEN),
        Kind("gated norm gates by sigmoid", "linear_attn", _of("norm", _forward(("ACT2FN[self.activation](gate.to(torch.float32))", "torch.sigmoid(gate.to(torch.float32))"))), ("sigmoid",), QWEN),
        Kind("A_log through bfloat16", "linear_attn", _forward(("-self.A_log.float()", "-self.A_log.bfloat16().float()")), (), QWEN),
        Kind("recurrent state through bfloat16", "linear_attn", _forward(
             ("cache_params.update_recurrent_state(last_recurrent_state,", "cache_params.update_recurrent_state(last_recurrent_state.bfloat16().float(),")), ("_to_copy", "copy_"), QWEN),
        Kind("decay through bfloat16", "linear_attn", _forward(("g=g,", "g=g.bfloat16().float(),")), ("_to_copy",), QWEN),
        Kind("beta through bfloat16", "linear_attn", _forward(("beta = b.sigmoid()", "beta = b.sigmoid().bfloat16().float()")), ("_to_copy",), QWEN),
        Kind("one weight", "linear_attn", _weight("out_proj.weight", _add_to_one), ("mm",), QWEN),
    ]  # fmt: skip
    mlp = [
        Kind("gelu for silu", "mlp", _activation(nn.GELU), ("gelu",)),
        Kind("tanh gelu for silu", "mlp", _activation(lambda: nn.GELU(approximate="tanh")), ("gelu",)),
        Kind("relu for silu", "mlp", _activation(nn.ReLU), ("relu",)),
        Kind("sigmoid for silu", "mlp", _activation(_Sigmoid), ("sigmoid",)),
        Kind("activation left out", "mlp", _activation(nn.Identity), ("mul",)),
        Kind("gate and up exchanged", "mlp", _exchange("gate_proj", "up_proj"), ("mm", "silu")),
        Kind("one weight", "mlp", _weight("down_proj.weight", _add_to_one), ("mm",)),
    ]
    outside = [
        Kind(
            "embedding times sqrt(D)", "embed_tokens", lambda model, m: rewrite_output(m, model.config.hidden_size**0.5), ("mul",)
        ),
        Kind("head divided by sqrt(D)", "lm_head", lambda model, m: rewrite_output(m, model.config.hidden_size**-0.5), ("mul",)),
        Kind("rope theta 500000", "rotary_emb", _theta(lambda _: 500000.0)),
        Kind("rope theta", "rotary_emb", _theta(lambda theta: theta * 1.01)),
        Kind("positions one too high", "rotary_emb", _positions("one")),
        Kind("positions from 0", "rotary_emb", _positions("zero")),
        Kind("three-row positions by the first row", "rotary_emb", _positions("row"), (), QWEN),
        Kind("positions through bfloat16", "rotary_emb", _positions("bfloat16")),
        Kind("cos and sin exchanged", "rotary_emb", _tables(lambda cos, sin: (sin, cos))),
        Kind(
            "cos and sin through bfloat16",
            "rotary_emb",
            _tables(lambda cos, sin: (cos.bfloat16().float(), sin.bfloat16().float())),
        ),
        Kind("inv_freq halved", "rotary_emb", _inv_freq(lambda f: f / 2)),
        Kind("inv_freq through bfloat16", "rotary_emb", _inv_freq(lambda f: f.bfloat16().float())),
    ]
    sums = "hidden_states = residual + hidden_states"
    layer = [
        Kind("residual left out", "layer", _forward((sums, "hidden_states = hidden_states * 1.0")), ("mul",)),
        Kind("sublayer left out of the stream", "layer", _forward((sums, "hidden_states = residual * 1.0")), ("mul",)),
        Kind("stream halved", "layer", _forward((sums, "hidden_states = (residual + hidden_states) / 2")), ("div",)),
        Kind(
            "stream through bfloat16",
            "layer",
            _forward((sums, "hidden_states = (residual + hidden_states).bfloat16().float()")),
            ("_to_copy",),
        ),
    ]
    norms = [kind for place in NORMS for kind in _norm_kinds(place)] + _norm_kinds("norm")
    every = [*outside[:1], *outside[2:], *norms, *linear, *attention, *mlp, *layer, outside[1]]
    return [replace(kind, operations=OPERATIONS.get(kind.name, kind.operations)) for kind in every]


def rewrite_output(module: Any, factor: float) -> None:
    """The module's output times a number."""
    original = module.forward
    module.forward = lambda x: original(x) * factor


def family_of(model: Any) -> str:
    return "llama" if "llama" in type(model).__module__ else "qwen3_5"


def kinds_of(model: Any) -> list[Kind]:
    """The kinds that this model has a place for."""
    return [kind for kind in kinds() if family_of(model) in kind.families and kind.layers(model)]
