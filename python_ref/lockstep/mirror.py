"""The C++ model by itself."""

from __future__ import annotations

from pathlib import Path

import torch

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
        long: dict[str, torch.Tensor | None] = {}
        for name, x in (("ids", ids), ("positions", positions), ("mask", mask)):
            if x is not None and (not isinstance(x, torch.Tensor) or x.is_floating_point() or x.is_complex()):
                raise InputError(f"{name}: expected a tensor of whole numbers, found {getattr(x, 'dtype', type(x).__name__)}")
            long[name] = None if x is None else x.to(torch.int64)
        assert long["ids"] is not None
        return self._core.forward(long["ids"], long["positions"], long["mask"], cache, attn, variant, points)

    __call__ = forward
