"""Hooks and function taps on the Hugging Face model: each capture point fires as it is produced.

Module hooks stop where the interesting values are: l2norm, beta, decay, the delta rule, the q/gate split, RoPE and the
attention context have no module. Those are tapped by wrapping the functions that the modeling module calls.
Needs torch only: another virtual environment's python runs this file too (engines/hf_worker.py).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch

RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
ORDER = {"layer": 0, "sublayer": 1, "all": 2}
STATES = ("cos", "sin", "conv_state", "recurrent_state", "key_cache", "value_cache")


def level_of(point: str) -> str:
    """The lowest level that holds a capture point, from its name alone: cpp/nn/recorder.cpp says the same (a test)."""
    path, _, value = point.partition("@")
    if value:
        return "sublayer" if value in STATES else "all"
    path, _, side = point.rpartition(".")
    if path in ("lm_head", "model.norm"):
        return "layer" if side == "output" else "sublayer"
    if path in ("model.embed_tokens", "model.rotary_emb"):
        return "sublayer"
    if not path.startswith("model.layers."):
        return "all"
    depth = path.count(".") - 2  # model.layers.3, model.layers.3.mlp, ...
    if depth == 0:
        return "layer" if side == "output" else "all"
    return "sublayer" if depth == 1 else "all"


class Sink(Protocol):
    """Who receives the reference's captures."""

    def capture(self, point: str, value: torch.Tensor) -> None: ...
    def layer_done(self, index: int) -> None:
        """Decoder layer `index` has returned, and its captures have come."""

    def head_done(self) -> None: ...


class Capture:
    """Context manager: while open, every forward of `model` reports to `sink` (None: hooks run, nothing is kept)."""

    def __init__(self, model: Any, modeling: Any, points: str) -> None:
        self.model, self.modeling, self.points = model, modeling, points
        self.sink: Sink | None = None
        self.cache: Any = None
        self._undo: list[Callable[[], None]] = []
        self._mixer = ""  # path of the attention module that is running
        self._tokens = 0  # its T
        self._l2norms = 0  # calls in it so far
        self._conv_output: torch.Tensor | None = None

    def __enter__(self) -> Capture:
        try:
            self._hook_modules()
            if self.points == "all":
                self._tap_functions()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def wants(self, point: str) -> bool:
        """Is `point` within the level?"""
        return ORDER[level_of(point)] <= ORDER[self.points]

    def emit(self, point: str, value: Any) -> None:
        """Hands a tensor to the sink, if there is one and it wants the point; anything else is no capture."""
        if self.sink is not None and isinstance(value, torch.Tensor) and self.wants(point):
            self.sink.capture(point, value)

    # Modules

    def _hook_modules(self) -> None:
        for path, module in self.model.named_modules():
            # The root is its lm_head; a ModuleList never runs; HF hands conv1d's weight to a function, and its own
            # hook fires on some releases only (@conv is the value).
            if not path or isinstance(module, torch.nn.ModuleList) or path.endswith(".conv1d"):
                continue
            self._hook(path, module)

    def _hook(self, path: str, module: torch.nn.Module) -> None:
        parent, _, leaf = path.rpartition(".")
        is_layer = parent == "model.layers"
        is_mixer = leaf in ("linear_attn", "self_attn")

        def before(_: Any, args: tuple, kwargs: dict) -> None:
            x = _first_tensor(args, kwargs)
            if is_mixer and x is not None:
                self._mixer, self._tokens, self._l2norms = path, x.shape[1], 0
            if path == "model.rotary_emb":
                self.emit(f"{path}@inv_freq", getattr(module, "inv_freq", None))
            if leaf == "down_proj":
                self.emit(f"{parent}@activation", x)
            self.emit(f"{path}.input", x)

        def after(_: Any, args: tuple, kwargs: dict, output: Any) -> None:
            if path == "model.rotary_emb" and isinstance(output, tuple) and len(output) == 2:
                self.emit(f"{path}@cos", output[0])
                self.emit(f"{path}@sin", output[1])
            if leaf == "act_fn":
                self.emit(f"{parent}@gate", output)
            if is_mixer:
                self._emit_states(path)
            self.emit(f"{path}.output", _first_output(output))
            if self.sink is not None and is_layer:
                self.sink.layer_done(int(leaf))
            if self.sink is not None and path == "lm_head":
                self.sink.head_done()

        handles = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        ]
        self._undo += [handle.remove for handle in handles]

    def _emit_states(self, path: str) -> None:
        """The states that a layer leaves in the cache, right after it ran."""
        if self.cache is None:
            return
        layers = getattr(self.cache, "layers", None)
        index = int(path.split(".")[2]) if path.startswith("model.layers.") else -1
        if not isinstance(layers, list) or not 0 <= index < len(layers):
            return  # a cache of another kind: its states are promised to nobody
        layer = layers[index]
        if path.endswith("linear_attn"):
            self.emit(f"{path}@conv_state", only_tensor(layer.conv_states))
            self.emit(f"{path}@recurrent_state", only_tensor(layer.recurrent_states))
        else:
            self.emit(f"{path}@key_cache", layer.keys)
            self.emit(f"{path}@value_cache", layer.values)

    # Functions

    def _namespaces(self) -> list[dict[str, Any]]:
        """The globals that the model's forwards look names up in: HF's modeling module, and those of a fork's own file."""
        found = [vars(self.modeling)]
        for module in self.model.modules():
            forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
            names = getattr(forward, "__globals__", None)
            if names is None or str(names.get("__name__", "")).startswith("torch."):
                continue
            followed = [names]  # and of the rules that it calls, which look up l2norm for themselves
            for name in RULES:
                followed.append(
                    getattr(inspect.unwrap(names[name]), "__globals__", names) if callable(names.get(name)) else names
                )
            for namespace in followed:
                if not any(namespace is known for known in found):
                    found.append(namespace)
        return [names for names in found if str(names.get("__name__", "")) != __name__]

    def _tap_functions(self) -> None:
        for names in self._namespaces():
            if "ALL_ATTENTION_FUNCTIONS" in names:
                self._replace(names, "ALL_ATTENTION_FUNCTIONS", _AttentionTap(names["ALL_ATTENTION_FUNCTIONS"], self))
            if callable(names.get("apply_rotary_pos_emb")):
                self._wrap(names, "apply_rotary_pos_emb", self._after_rotary)
            if names.get("torch") is torch:
                self._replace(names, "torch", _Proxy(torch, {"chunk": _tapped(torch.chunk, self._after_split)}))
            if callable(names.get("l2norm")):
                self._wrap(names, "l2norm", self._after_l2norm)
            for name in ("causal_conv1d_fn", "causal_conv1d_update"):
                if callable(names.get(name)):
                    self._wrap(names, name, self._after_conv)
            for name in RULES:
                if callable(names.get(name)):
                    self._wrap(names, name, self._after_delta_rule)
            self._tap_silu(names)
        layers = [m for m in self.model.modules() if type(m).__name__.endswith("GatedDeltaNet")]
        for layer in layers:  # 5.10 keeps the functions on each layer, later releases in the module
            for name in ("causal_conv1d_fn", "causal_conv1d_update"):
                if callable(vars(layer).get(name)):
                    self._wrap(vars(layer), name, self._after_conv)
            for name in ("chunk_gated_delta_rule", "recurrent_gated_delta_rule"):
                if callable(vars(layer).get(name)):
                    self._wrap(vars(layer), name, self._after_delta_rule)
            if hasattr(layer, "conv1d"):
                self._undo.append(layer.conv1d.register_forward_hook(self._remember_conv).remove)

    def _remember_conv(self, _: Any, __: Any, output: torch.Tensor) -> None:
        self._conv_output = output

    def _tap_silu(self, names: dict[str, Any]) -> None:
        """5.10 without a kernel calls the conv1d module and then F.silu: that silu's result is the convolution's."""
        functional: Any = names.get("F")
        if not callable(getattr(functional, "silu", None)):
            return

        def after(args: tuple, kwargs: dict, output: torch.Tensor) -> None:
            if self._conv_output is not None and args and args[0].data_ptr() == self._conv_output.data_ptr():
                self._conv_output = None
                self._after_conv(args, kwargs, output)

        self._replace(names, "F", _Proxy(functional, {"silu": _tapped(functional.silu, after)}))

    def _after_rotary(self, args: tuple, kwargs: dict, output: Any) -> None:
        self.emit(f"{self._mixer}@q_rope", output[0])
        self.emit(f"{self._mixer}@k_rope", output[1])

    def _after_l2norm(self, args: tuple, kwargs: dict, output: Any) -> None:
        """q first, then k."""
        self._l2norms += 1
        self.emit(f"{self._mixer}@{'q_l2' if self._l2norms % 2 else 'k_l2'}", output)

    def _after_split(self, args: tuple, kwargs: dict, output: Any) -> None:
        if not self._mixer.endswith("self_attn") or len(output) != 2:
            return
        query, gate = output
        self.emit(f"{self._mixer}@q", query)
        self.emit(f"{self._mixer}@gate", gate.reshape(*gate.shape[:2], -1))

    def _after_conv(self, args: tuple, kwargs: dict, output: Any) -> None:
        self.emit(f"{self._mixer}@conv", output[..., -self._tokens :])

    def _after_delta_rule(self, args: tuple, kwargs: dict, output: Any) -> None:
        self.emit(f"{self._mixer}@beta", kwargs.get("beta", args[4] if len(args) > 4 else None))
        self.emit(f"{self._mixer}@decay", kwargs.get("g", args[3] if len(args) > 3 else None))
        self.emit(f"{self._mixer}@delta", output[0])

    def _wrap(self, names: dict[str, Any], name: str, after: Callable[[tuple, dict, Any], None]) -> None:
        self._replace(names, name, _tapped(names[name], after))

    def _replace(self, names: dict[str, Any], name: str, value: Any) -> None:
        original = names[name]
        self._undo.append(lambda: names.__setitem__(name, original))
        names[name] = value


class _Proxy(types.ModuleType):
    """A module with a few functions replaced, everything else its own."""

    def __init__(self, module: Any, replaced: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


class _AttentionTap:
    """ALL_ATTENTION_FUNCTIONS whose functions report their context [B, T, H, K]."""

    def __init__(self, functions: Any, capture: Capture) -> None:
        self._functions, self._capture = functions, capture

    def get_interface(self, *args: Any, **kwargs: Any) -> Any:
        def after(_: tuple, __: dict, output: Any) -> None:
            self._capture.emit(f"{self._capture._mixer}@context", output[0])

        return _tapped(self._functions.get_interface(*args, **kwargs), after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)


def _tapped(function: Callable, after: Callable[[tuple, dict, Any], None]) -> Callable:
    def tapped(*args: Any, **kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        after(args, kwargs, output)
        return output

    return tapped


def _first_tensor(args: tuple, kwargs: dict) -> torch.Tensor | None:
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)


def _first_output(output: Any) -> torch.Tensor | None:
    """A tensor, the first of a tuple, or the first of a ModelOutput."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return next((x for x in values if isinstance(x, torch.Tensor)), None)


def only_tensor(states: Any) -> Any:
    """5.18 keeps a dict of states per layer, 5.10 one tensor."""
    return states[0] if isinstance(states, dict) else states
