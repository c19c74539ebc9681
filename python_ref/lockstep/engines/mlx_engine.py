"""mlx-lm on the same checkpoint: an independent engine, on this CPU. The optional extra `mlx`."""

from __future__ import annotations

import copy
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .. import hf_model
from ..inputs import Forward
from ..native import InputError
from ..reference import Caches
from ..traces import Recording, without_forwards
from . import Recorded

MEASURED = "0.32.2"


class MlxEngine:
    """Records each module's input and output; MLX has no explicit positions and no padding mask here."""

    attn = "sdpa"

    def __init__(self, folder: Path, about: dict[str, Any], dtype: str) -> None:
        self.folder, self.about, self.dtype = folder, about, dtype
        try:
            import mlx.core
            import mlx_lm  # noqa: F401
        except ImportError:
            raise InputError("--candidate mlx: mlx-lm is not installed (pip install 'lockstep[mlx]')") from None
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"--candidate mlx: dtype {dtype}: expected float32, bfloat16 or float16")
        self.mx = mlx.core
        self.version = version("mlx-lm")
        self.mlx_version = version("mlx")

    def load(self) -> Any:
        """mlx-lm's own model with the checkpoint's weights in the run's dtype. raises InputError"""
        from mlx_lm import utils

        mx = self.mx
        mx.set_default_device(mx.cpu)
        dtype = getattr(mx, self.dtype)
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))

        def classes(config: dict[str, Any]) -> tuple[Any, Any]:
            model_class, arguments = utils._get_classes(config)

            class InRunDtype(model_class):  # type: ignore[misc, valid-type]
                def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
                    # Before mlx-lm adds 1 to the norms' weights: in a float32 run that sum is a float32 one.
                    keep = getattr(getattr(self, "language_model", self), "cast_predicate", lambda _: True)
                    cast = {
                        name: w.astype(dtype if keep(name) or self_dtype == "float32" else w.dtype)
                        if mx.issubdtype(w.dtype, mx.floating)
                        else w
                        for name, w in weights.items()
                    }
                    return super().sanitize(cast) if hasattr(model_class, "sanitize") else cast

            self_dtype = self.dtype
            return InRunDtype, arguments

        extra = None
        if config.get("model_type") == "qwen3_5_text":  # mlx-lm knows the composite config only
            types = config.get("layer_types", [])
            interval = types.index("full_attention") + 1 if "full_attention" in types else 4
            extra = {"model_type": "qwen3_5", "text_config": {**config, "full_attention_interval": interval}}
        try:
            return utils.load_model(self.folder, model_config=extra, get_model_classes=classes)[0]
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise InputError(f"{self.folder}: mlx-lm {self.version} cannot load it: {type(error).__name__}: {reason}") from error

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        def refused(f: Forward) -> str | None:
            if f.positions is not None:
                return "mlx-lm takes no explicit positions"
            return "mlx-lm takes no padding" if f.mask is not None and not bool((f.mask == 1).all()) else None

        kept, dropped = without_forwards(forwards, refused)
        if not kept:
            raise InputError("mlx-lm can take none of the inputs (no explicit positions, no padding)")
        from mlx_lm.models.cache import make_prompt_cache

        mx = self.mx
        model = self.load()
        recording = Recording(self.dtype, self.attn, hf_model.variant_of(), kept)
        _tap(model, recording, self._to_torch)
        caches = Caches(kept, lambda: make_prompt_cache(model), copy.deepcopy)
        for f in kept:
            cache = caches.take(f)
            recording.forward = f.name
            try:
                logits = model(mx.array(f.ids.numpy()), cache=cache)
                mx.eval(logits)
            except Exception as error:
                reason = (str(error).strip().splitlines() or [""])[0]
                raise InputError(f"input {f.name!r}: mlx-lm raised {type(error).__name__}: {reason}") from error
            recording.capture("lm_head.output", self._to_torch(logits))
            caches.leave(f, cache)
        producer = {"engine": "mlx", "mlx-lm": self.version, "mlx": self.mlx_version}
        if self.version != MEASURED:
            producer["warning"] = f"measured: {MEASURED}"
        return Recorded(recording.trace, producer, dropped)

    def _to_torch(self, x: Any) -> torch.Tensor:
        import numpy as np

        if x.dtype == self.mx.bfloat16:
            return torch.from_numpy(np.array(x.view(self.mx.uint16)).view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.array(x))


def _tap(model: Any, recording: Recording, to_torch: Any) -> None:
    """Every named module records its first argument and its result. Python looks `__call__` up on the class, so each
    module gets a class of its own."""
    for path, module in model.named_modules():
        name = path.removeprefix("language_model.")
        if not name or name == "model" or path == "language_model" or name.endswith(".conv1d"):
            continue

        call = _recorded(name, type(module), recording, to_torch)
        module.__class__ = type(type(module).__name__, (type(module),), {"__call__": call})


def _recorded(name: str, module_class: Any, recording: Recording, to_torch: Any) -> Any:
    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(x, "shape"):
            recording.capture(f"{name}.input", to_torch(x))
        y = module_class.__call__(self, x, *args, **kwargs)
        if name != "lm_head":  # its logits are recorded as the model returns them
            recording.capture(f"{name}.output", to_torch(y[0] if isinstance(y, (tuple, list)) else y))
        return y

    return call
