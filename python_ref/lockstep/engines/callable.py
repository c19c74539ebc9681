"""A callable as a candidate: `file.py:factory`, with factory(folder, dtype) -> torch.nn.Module with HF's module names.

The file runs with the user's rights: it comes from the command line only, never from a checkpoint.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import hf_model
from ..inputs import Forward
from ..native import InputError
from . import Recorded, live

Factory = Callable[[str, torch.dtype], torch.nn.Module]


def from_text(
    what: str, folder: Path, about: dict[str, Any], dtype: str, attn: str, timeout: float | None, map_file: Path | None
) -> CallableEngine:
    """`path/file.py:factory` -> the engine. raises InputError"""
    file, _, name = what.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"--candidate {what!r}: {file}: no such file")
    spec = importlib.util.spec_from_file_location(f"lockstep_candidate_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with live.time_limit(timeout, file):
            spec.loader.exec_module(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"--candidate {what!r}: {file} raised {_said(error)}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise InputError(f"--candidate {what!r}: {file} has no callable {name!r}")
    return CallableEngine(factory, what, folder, about, dtype, attn, timeout, read_map(map_file))


def read_map(path: Path | None) -> dict[str, str]:
    """A JSON object {candidate's module path: HF's}. raises InputError"""
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--map {path}: {error}") from None
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        raise InputError(f"--map {path}: expected an object from the candidate's module paths to Hugging Face's")
    return data


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


class CallableEngine:
    def __init__(
        self, factory: Factory, what: str, folder: Path, about: dict[str, Any], dtype: str, attn: str,
        timeout: float | None = None, names: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.factory, self.what, self.folder, self.about = factory, what, folder, about
        self.dtype, self.attn, self.timeout, self.names = dtype, attn, timeout, names or {}
        self.model: torch.nn.Module | None = None

    def load(self, folder: Path | None = None) -> torch.nn.Module:
        """The factory's model in eval mode. raises InputError if it raises, hangs, or makes something else"""
        with live.time_limit(self.timeout, self.what):
            try:
                model = self.factory(str(folder or self.folder), getattr(torch, self.dtype))
            except InputError:
                raise
            except (Exception, SystemExit) as error:
                raise InputError(f"{self.what} raised {_said(error)}") from error
        if not isinstance(model, torch.nn.Module):
            raise InputError(f"{self.what} returned {type(model).__name__}; expected a torch.nn.Module")
        return renamed(model.eval(), self.names)

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        if self.model is None:
            self.model = self.load()
        modeling = inspect.getmodule(type(self.model))
        trace, dropped = live.record(
            self.model, modeling, forwards, points, dtype=self.dtype, attn=self.attn, variant=hf_model.variant_of(),
            vocab=self.about["vocab"], who=self.what, timeout=self.timeout,
        )  # fmt: skip
        return Recorded(
            trace, {"engine": "callable", "factory": self.what, "torch": torch.__version__}, dropped, self.model, modeling
        )

    def fresh(self, folder: Path) -> torch.nn.Module:
        """A model on another folder, for stress inputs that need other weights."""
        return self.load(folder)


def renamed(model: torch.nn.Module, names: dict[str, str]) -> torch.nn.Module:
    """The model whose named_modules() gives HF's paths. A longer path goes before a shorter one."""
    if not names:
        return model
    known = dict(model.named_modules())
    for path in names:
        if path not in known:
            raise InputError(f"--map: the candidate has no module {path!r} (it has {', '.join(list(known)[1:6])}, ...)")
    order = sorted(names, key=len, reverse=True)

    def new_name(path: str) -> str:
        for old in order:
            if path == old or path.startswith(old + "."):
                return names[old] + path[len(old) :]
        return path

    original = model.named_modules

    def named_modules(*args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        for path, module in original(*args, **kwargs):
            yield new_name(path), module

    model.named_modules = named_modules  # type: ignore[method-assign]
    return model
