"""Lockstep: is this C++ model the same function as Hugging Face's, and if not, where do they part?

import lockstep
report = lockstep.verify("path/to/checkpoint")      # -> lockstep.Report
findings = lockstep.bisect("path/to/checkpoint", "fork.py:load")  # -> lockstep.Findings
generated = lockstep.generate("path/to/checkpoint", prompt="...", check=True)  # -> lockstep.Generation
inside = lockstep.inspect("path/to/checkpoint", ["..."])          # -> lockstep.Inspected
exported = lockstep.export("path/to/checkpoint", "OUT")         # -> lockstep.Exported
mirror = lockstep.Mirror.load("path/to/checkpoint", dtype="float32")
logits, captured = mirror.forward(ids, points="sublayer")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# libgomp reads it once, when torch loads it: spinning threads make everything slow beside another busy process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = [
    "Error", "Exported", "Findings", "Generation", "InputError", "Inspected", "LoadError", "Mirror", "Report", "Tokenizer",
    "bisect", "check", "compare", "export", "generate", "inspect", "trace", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from ._core import Error, InputError, LoadError
    from .bisection import Findings, bisect
    from .comparison import compare
    from .exporting import Exported, check, export
    from .generation import Generation, generate
    from .inspecting import Inspected, inspect
    from .mirror import Mirror
    from .tokenizing import Tokenizer
    from .tracing import trace
    from .verification import Report, verify

_HOMES = {
    "Error": "native",
    "Exported": "exporting",
    "Findings": "bisection",
    "Generation": "generation",
    "InputError": "native",
    "Inspected": "inspecting",
    "LoadError": "native",
    "Mirror": "mirror",
    "Report": "verification",
    "Tokenizer": "tokenizing",
    "bisect": "bisection",
    "check": "exporting",
    "compare": "comparison",
    "export": "exporting",
    "generate": "generation",
    "inspect": "inspecting",
    "trace": "tracing",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `lockstep --help` does not wait for torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
