"""The C++ model by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import hf_model
from .native import InputError, _core

Cache = _core.Cache


class Mirror:
    """A checkpoint's C++ model, loaded strictly; usable with no transformers in the process.

    `Mirror.load(folder, dtype)` raises LoadError naming every tensor that is missing, unexpected, duplicate or of
    another shape or dtype than config.json says.
    """

    def __init__(self, core: _core.Mirror, dtype: str) -> None:
        self._core = core
        self.dtype = dtype

    @classmethod
    def load(cls, folder: str | Path, dtype: str = "float32") -> Mirror:
        """dtype: float32, bfloat16 or float16, applied to every parameter as transformers applies it."""
        core = _core.Mirror.open(str(folder))
        core.bind(dtype)
        return cls(core, dtype)

    @property
    def family(self) -> str:
        return str(self._core.describe()["family"])

    def describe(self) -> dict:
        """Family, layer types, parameter count, count per dtype in the files, ignored tensors by prefix, tied, notes."""
        return self._core.describe()

    def parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter in the run's dtype, by its Hugging Face name. Do not change them."""
        return {name: self._core.parameter(name) for name in self._core.parameters()}

    def new_cache(self) -> Cache:
        """An empty cache for forward(); it is advanced by each call that is given it."""
        return self._core.new_cache()

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        *,
        attn: str = "sdpa",
        variant: str = "5.18",
        points: str | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One forward -> (logits [B, T, V], captures in execution order; empty without `points`).

        ids [B, T] int64; positions [B, T], [3, B, T] or None; mask [B, past + T] of 0 and 1, or None; points: layer,
        sublayer or all; variant: the release of transformers to follow (5.10, 5.18, 5.24). raises InputError
        """
        ids = _whole_numbers("ids", ids)
        positions = None if positions is None else _whole_numbers("positions", positions)
        mask = None if mask is None else _whole_numbers("mask", mask)
        return self._core.forward(ids, positions, mask, cache, attn, variant, points)

    __call__ = forward

    def generation_config(self) -> dict[str, Any]:
        """{file, stop, pad, max_new_tokens, min_new_tokens, max_length, notes}: what model.generation_config says.

        raises LoadError for settings that plain greedy decoding does not have
        """
        return _core.generation_config(self._core)

    def generate(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        attn: str = "sdpa",
        variant: str = "5.18",
        logits: bool = False,
        fast: bool = False,
        on_step: Callable[[int, torch.Tensor], bool | None] | None = None,
    ) -> dict[str, Any]:
        """Greedy continuation of each row -> {tokens: per row, stop token included, stopped, logits: per step [B, V] if asked,
        steps, prefill_seconds, decode_seconds}.

        ids [B, T], mask [B, T] with the padding on the left; lengths and stop tokens are generation_config()'s where nothing
        is said. fast: weights are read as the file holds them, in bfloat16, which gives other bits. on_step(index, tokens [B])
        is called after each step and ends the run with False. raises InputError
        """
        ids, mask = _whole_numbers("ids", ids), None if mask is None else _whole_numbers("mask", mask)
        config = self.generation_config()
        least = (config["min_new_tokens"] or 0) if min_new_tokens is None else min_new_tokens
        longest = _core.new_tokens(self._core, ids.shape[-1], max_new_tokens)
        decoding = _core.Decoding(self._core, attn, variant, None, fast)
        return decoding.greedy(ids, mask, config["stop"], config["pad"], longest, least, logits, on_step)


def _whole_numbers(name: str, x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.is_complex():
        raise InputError(f"{name}: expected a tensor of whole numbers, found {getattr(x, 'dtype', type(x).__name__)}")
    return x.to(torch.int64)


def installed_variant() -> str:
    """The installed release's; without one, the release that the mirror was written by."""
    try:
        return hf_model.variant_of()
    except ImportError:
        return "5.18"


def own_pedigree(attn: str, dtype: str, variant: str) -> dict[str, Any]:
    """The head `pedigree` of a run in which no Hugging Face model takes part."""
    return {
        "transformers": None,
        "torch": torch.__version__,
        "attn": attn,
        "dtype": dtype,
        "variant": variant,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "failed": [],
    }
