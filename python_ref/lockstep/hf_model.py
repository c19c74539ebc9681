"""Loading and running a Hugging Face causal language model, with everything stated.

Needs torch and transformers only: another virtual environment's python runs this file too (engines/hf_worker.py).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch


def settle_vector_math() -> None:
    """One small call each, as cpp/core/vector_math.h explains: for a process that does not load our extension."""
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(8, dtype=dtype)
        for function in (torch.exp, torch.log, torch.log1p, torch.sin, torch.cos, torch.tanh, torch.erf, torch.sqrt):
            function(x)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice from transformers while we use it; errors still come as exceptions."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def variant_of() -> str:
    """Which of the mirror's variants the installed release follows, by what its code does, not by its number."""
    from transformers.integrations import sdpa_attention
    from transformers.models.qwen3_5 import modeling_qwen3_5

    if "solve_triangular" not in inspect.getsource(modeling_qwen3_5):
        return "5.10"
    return "5.24" if hasattr(sdpa_attention, "pack_gqa") else "5.18"


def load(folder: Any, hf_class: str, dtype: str, attn: str, tied: bool) -> tuple[Any, dict[str, Any]]:
    """from_pretrained -> (model, loading info). Raises whatever transformers raises."""
    import transformers

    with quiet_transformers():
        return getattr(transformers, hf_class).from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=attn,
            # The text class does not look for the flag outside of a composite config's text_config.
            tie_word_embeddings=tied,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )


def new_cache(model: Any) -> Any:
    """An empty cache as generate() makes it."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def cache_argument(model: Any) -> str | None:
    """What the model's forward calls its cache, or None if it takes none."""
    parameters = inspect.signature(type(model).forward).parameters
    if "cache" in parameters:
        return "cache"
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return "past_key_values" if "past_key_values" in parameters or takes_any else None


def run(model: Any, ids: Any, positions: Any, mask: Any, cache: Any) -> torch.Tensor:
    """One forward -> logits [B, T, V] at every position. Raises whatever the model raises."""
    arguments = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions,
        "use_cache": cache is not None,
        "logits_to_keep": 0,
        "output_hidden_states": False,
        "output_attentions": False,
        "return_dict": True,
    }
    name = cache_argument(model)
    if name is not None:
        arguments[name] = cache
    parameters = inspect.signature(type(model).forward).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        arguments = {key: value for key, value in arguments.items() if key in parameters}
    with torch.no_grad(), quiet_transformers():
        output = model(**arguments)
    logits: Any = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
    return logits  # the caller checks what it is
