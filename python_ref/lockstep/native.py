"""The one door to the C++ extension: it is opened only with the torch that it was built with."""

from __future__ import annotations

import torch

from ._build import TORCH_VERSION

if torch.__version__ != TORCH_VERSION:
    raise ImportError(
        f"lockstep was built with torch {TORCH_VERSION}, found torch {torch.__version__}: "
        f"install torch=={TORCH_VERSION.split('+')[0]} or build lockstep again"
    )

from . import _core
from ._core import Error, InputError, LoadError

__all__ = ["Error", "InputError", "LoadError", "_core"]
