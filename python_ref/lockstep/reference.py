"""The reference: the Hugging Face model, loaded pinned, and held to its own invariants before it judges anybody."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import hf_model, streaming
from .inputs import Forward
from .native import Error, InputError, LoadError

# Releases whose bits were measured. Any other is run with a warning.
MEASURED = ("5.10.4", "5.18.0", "5.24.0")
# The functions of Qwen3.5's linear attention that a kernel package may replace.
KERNELS = (
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_gated_delta_rule",
    "recurrent_gated_delta_rule",
)


@dataclass
class Reference:
    """A loaded HF causal language model in eval mode, its modeling module, and what is known of where it came from."""

    model: Any
    modeling: Any
    dtype: str
    attn: str
    variant: str
    pedigree: dict[str, Any] = field(default_factory=dict)
    streamed: streaming.Streamed | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        about: dict[str, Any],
        dtype: str,
        attn: str,
        patch: Callable[[Any], Any] | None = None,
        stream: bool = False,
    ) -> Reference:
        """from_pretrained with everything stated; `patch` may change the model or return another. raises LoadError

        about: what _core.Mirror.describe() says of the same folder (hf_class, tied, layer_types). stream: on the meta device,
        filled module by module as it runs.
        """
        if torch.is_autocast_enabled("cpu"):
            raise InputError("autocast is on: it gives other bits; run Lockstep outside of torch.autocast")
        import transformers

        model_class = getattr(transformers, about["hf_class"], None)
        if model_class is None:
            raise LoadError(
                f"transformers {transformers.__version__} has no {about['hf_class']}; expected one of {', '.join(MEASURED)}"
            )
        info: dict[str, Any] = {}  # a streamed model's names are held against the file's by provenance
        try:
            if stream:
                model = streaming.load(folder, about["hf_class"], dtype, attn, about["tied"])
            else:
                model, info = hf_model.load(folder, about["hf_class"], dtype, attn, about["tied"])
        except LoadError:
            raise
        except Exception as error:  # transformers raises anything here; the reason's first line is what helps
            reason = (str(error).strip().splitlines() or [""])[0]
            raise LoadError(
                f"{folder}: transformers {transformers.__version__} cannot load it: {type(error).__name__}: {reason}"
            ) from error
        modeling = inspect.getmodule(model_class)
        kernels = resolved_kernels(model, modeling)
        if patch is not None:
            model = patched(model, patch)
        reference = cls(model, modeling, dtype, attn, hf_model.variant_of())
        if stream:
            reference.streamed = streaming.Streamed(model, folder)
        reference.pedigree = {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "attn": getattr(model.config, "_attn_implementation", None),
            "dtype": dtype,
            "variant": reference.variant,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "kernels": resolved_kernels(model, modeling),
            "patched": patch is not None,
            "warnings": [],
            "checks": [],
            "failed": [],
        }
        if transformers.__version__ not in MEASURED:
            reference.pedigree["warnings"].append(
                f"transformers {transformers.__version__} was not measured (measured: {', '.join(MEASURED)})"
            )
        missing = sorted(info.get("missing_keys", []))
        tied = {"lm_head.weight"} if model.config.get_text_config().tie_word_embeddings else set()
        missing = [key for key in missing if key not in tied]
        reference.check("missing_keys", not missing, found=", ".join(missing[:5]) or None)
        reference.check_dtypes()
        reference.check("attn", reference.pedigree["attn"] == attn, found=reference.pedigree["attn"])
        foreign = sorted(f"{name}: {where}" for name, where in kernels.items() if not where.startswith("transformers."))
        if "linear_attention" in about["layer_types"] and not any("chunk_gated_delta_rule" in name for name in kernels):
            foreign.append("no chunk_gated_delta_rule was found")
        reference.check("kernels", not foreign, found="; ".join(foreign) or None)
        return reference

    def check(self, name: str, passes: bool, **details: Any) -> None:
        """Notes one invariant of the reference; a failed one makes the run's exit code 2."""
        self.pedigree["checks"].append({"name": name, "passes": passes, **details})
        if not passes:
            self.pedigree["failed"].append(name)

    def check_dtypes(self) -> None:
        """Every parameter in the run's dtype, inv_freq in float32, eval mode."""
        wrong = [
            f"{name} is {str(p.dtype).removeprefix('torch.')}"
            for name, p in self.model.named_parameters()
            if str(p.dtype).removeprefix("torch.") != self.dtype
        ]
        self.check("dtypes", not wrong, found="; ".join(wrong[:5]) or None)
        inv_freq = self.inv_freq()
        self.check(
            "inv_freq_float32",
            inv_freq is not None and inv_freq.dtype == torch.float32,
            found=None if inv_freq is None else str(inv_freq.dtype).removeprefix("torch."),
        )
        self.check("eval_mode", not any(m.training for m in self.model.modules()))

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter by its name, a tied one under each of its names."""
        if self.streamed is not None:
            yield from self.streamed.parameters()
            return
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if not parameter.is_meta:  # no memory, no value: provenance names it as absent
                yield name, parameter.detach().cpu()

    def inv_freq(self) -> torch.Tensor | None:
        """The rotary embedding's buffer [rotary_dim / 2], or None if the model has no such module."""
        rotary = getattr(getattr(self.model, "model", None), "rotary_emb", None)
        return getattr(rotary, "inv_freq", None)

    def new_cache(self) -> Any:
        """An empty cache as generate() makes it."""
        return hf_model.new_cache(self.model)

    def forward(self, f: Forward, cache: Any = None) -> torch.Tensor:
        """One forward -> logits [B, T, V] at every position. raises InputError if the model raises"""
        try:
            return hf_model.run(self.model, f.ids, f.positions, f.mask, cache)
        except Error:
            raise
        except Exception as error:  # a model that was patched may raise anything
            reason = (str(error).strip().splitlines() or [""])[0]
            raise InputError(f"input {f.name!r}: the reference raised {type(error).__name__}: {reason}") from error


def patched(model: Any, patch: Callable[[Any], Any]) -> Any:
    """What `patch` returns if that is a whole causal language model, else `model`, which it may have changed.

    raises InputError if it raises, or leaves something that has no model.layers to hold against the mirror.
    """
    try:
        result = patch(model)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"patch raised {type(error).__name__}: {reason}") from error
    if isinstance(result, torch.nn.Module) and hasattr(result, "generate"):
        model = result
    if not hasattr(getattr(model, "model", None), "layers") or not hasattr(model, "config"):
        raise InputError("patch: expected a causal language model with model.layers and config afterwards")
    return model


def resolved_kernels(model: Any, modeling: Any) -> dict[str, str]:
    """What each linear-attention function resolved to, `module.name`. Wrappers are looked through: a wrapper that
    transformers made keeps its own module's name whatever it calls."""
    found: dict[str, str] = {}
    for layer in (m for m in model.modules() if type(m).__name__.endswith("GatedDeltaNet")):
        for name in KERNELS:
            function = getattr(layer, name, None) or getattr(modeling, name, None)
            if not callable(function):
                continue
            where = describe_function(function)
            if name not in found or not where.startswith("transformers."):  # one foreign layer is enough
                found[name] = where
    return found


def describe_function(function: Any) -> str:
    """`module.name` of what a call would really run."""
    for _ in range(8):  # through closures named `implementation`, then functools.partial and decorators
        free = getattr(getattr(function, "__code__", None), "co_freevars", ())
        if "implementation" in free:
            function = function.__closure__[free.index("implementation")].cell_contents
        else:
            break
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


class Caches:
    """The caches of the forwards that later ones continue: handed over, copied only where several continue one, and
    dropped after the last."""

    def __init__(self, forwards: list[Forward], new: Callable[[], Any], duplicate: Callable[[Any], Any] = copy.deepcopy) -> None:
        self._left = {f.name: sum(g.past == f.name for g in forwards) for f in forwards}
        self._new, self._duplicate = new, duplicate
        self._kept: dict[str, Any] = {}

    def uses_cache(self, f: Forward) -> bool:
        return f.past is not None or self._left[f.name] > 0

    def take(self, f: Forward) -> Any:
        """The cache for `f`, or None: a new one, or what its past left."""
        if not self.uses_cache(f):
            return None
        if f.past is None:
            return self._new()
        self._left[f.past] -= 1
        return self._duplicate(self._kept[f.past]) if self._left[f.past] else self._kept.pop(f.past)

    def leave(self, f: Forward, cache: Any) -> None:
        if self._left[f.name]:
            self._kept[f.name] = cache
