"""Inside a suspect sublayer: the first operation whose result the reference never has, with its source line.

Both sides run the sublayer on the candidate's own recorded input under one dispatch mode. The streams are aligned by
value, not by position: one may be longer, fused or reordered.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import hf_model
from .inputs import Forward
from .native import InputError, _core
from .reference import Caches

# Results that are no arithmetic: another view or copy of the same numbers.
VIEWS = ("view", "reshape", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze", "detach", "alias",
         "clone", "t", "_unsafe_view", "split", "chunk", "split_with_sizes", "as_strided", "unbind")  # fmt: skip
TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
# Relative L2 within which two results are one value in another order of summation.
ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass
class Operation:
    name: str  # mul, mm, _softmax, ...
    index: int  # in its stream, from 0
    source: str | None  # file:line of the caller
    inputs: list[int]  # fingerprints
    outputs: list[int]
    values: list[torch.Tensor] = field(default_factory=list)


Ran = dict[str, list[Operation]]
Call = tuple[tuple, dict[str, Any]]
CallsOf = dict[str, Call]


class Stream(TorchDispatchMode):
    """Every operation of what runs inside, while it is active. keep: the results too, not their fingerprints alone."""

    def __init__(self, keep: bool = True, sink: Callable[[Operation], None] | None = None, active: bool = True) -> None:
        super().__init__()
        self.active = active
        self.operations: list[Operation] = []
        self.keep, self.sink, self.count = keep, sink, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not self.active:
            return func(*args, **(kwargs or {}))
        inputs = [_core.fingerprint(x) for x in _tensors((args, kwargs))] if self.keep else []
        result = func(*args, **(kwargs or {}))
        tensors = list(_tensors(result))
        operation = Operation(
            func.overloadpacket.__name__, self.count, _source() if self.keep else None, inputs,
            [_core.fingerprint(x) for x in tensors], [x.detach().clone() for x in tensors] if self.keep else [],
        )  # fmt: skip
        self.count += 1
        if self.sink is not None:
            self.sink(operation)
        else:
            self.operations.append(operation)
        return result


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for item in x:
            yield from _tensors(item)
    elif isinstance(x, dict):
        yield from _tensors(list(x.values()))


def _source() -> str | None:
    """file:line of the innermost caller that is neither torch's code nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, HERE)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def first_difference(reference: list[Operation], candidate: list[Operation]) -> Operation | None:
    """The candidate's first operation whose result the reference never has, on operands that it has.

    Where the streams have one shape, other bits are enough. Where they have not (fused, reordered, another engine), a
    result within rounding of one of the reference's is that value.
    """
    known = {fingerprint for op in reference for fingerprint in (*op.outputs, *op.inputs)}
    fresh = [op for op in candidate if op.name not in VIEWS and any(x not in known for x in op.outputs)]
    if not fresh:  # something was left out: the reference's first operation whose result the candidate never has
        mine = {fingerprint for op in candidate for fingerprint in (*op.outputs, *op.inputs)}
        missing = [op for op in reference if op.name not in VIEWS and any(x not in mine for x in op.outputs)]
        return Operation(missing[0].name, missing[0].index, None, [], []) if missing else None
    names = [[op.name for op in stream if op.name not in VIEWS] for stream in (reference, candidate)]
    if names[0] == names[1] or abs(len(names[0]) - len(names[1])) <= 4:
        return fresh[0]
    pool: dict[tuple, list[torch.Tensor]] = {}
    for op in reference:
        for value in op.values:
            pool.setdefault((value.numel(), value.dtype), []).append(value.flatten())
    for op in fresh:
        if not all(_near(value, pool.get((value.numel(), value.dtype), [])) for value in op.values):
            return op
    return fresh[0]


def _near(value: torch.Tensor, others: list[torch.Tensor]) -> bool:
    if not value.is_floating_point():
        return True
    flat = value.flatten().double()
    size = flat.norm()
    limit = ROUNDING.get(value.dtype, 1e-12)
    return any((flat - other.double()).norm() <= limit * size for other in others)


def chain_of(forwards: list[Forward], name: str) -> list[Forward]:
    """The forward `name` after those that it continues."""
    by_name = {f.name: f for f in forwards}
    chain: list[Forward] = []
    wanted: str | None = name
    while wanted is not None:
        chain.insert(0, by_name[wanted])
        wanted = by_name[wanted].past
    return chain


def on_input(call: Call, hidden: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None) -> Call | None:
    """The same call on another side's hidden states and tables; None if it has none of that shape to replace."""
    args, kwargs = call
    tables = kwargs.get("position_embeddings")
    if tables is not None and cos is not None and sin is not None and tables[0].shape == cos.shape:
        kwargs = {**kwargs, "position_embeddings": (cos, sin)}
    if args and isinstance(args[0], torch.Tensor) and args[0].shape == hidden.shape:
        return (hidden, *args[1:]), kwargs
    for key in ("hidden_states", "x"):
        if isinstance(kwargs.get(key), torch.Tensor) and kwargs[key].shape == hidden.shape:
            return args, {**kwargs, key: hidden}
    return None


class Calls:
    """One candidate forward that remembers what each suspect sublayer is called with."""

    def __init__(self, model: Any, paths: set[str]) -> None:
        self.model, self.paths = model, paths
        self.calls: CallsOf = {}

    def run(self, forwards: list[Forward], name: str) -> None:
        """Runs `name` and what it continues; the calls are of `name`."""
        chain = chain_of(forwards, name)
        continued = any(f.past == name for f in forwards)
        caches = Caches(chain, lambda: hf_model.new_cache(self.model))
        for f in chain:
            cache = caches.take(f)
            if cache is None and continued and f.name == name:
                cache = hf_model.new_cache(self.model)
            handles = []
            if f.name == name:
                for path, module in self.model.named_modules():
                    if path in self.paths:
                        handles.append(module.register_forward_pre_hook(self._remember(path), with_kwargs=True))
            try:
                hf_model.run(self.model, f.ids, f.positions, f.mask, cache)
            finally:
                for handle in handles:
                    handle.remove()
            caches.leave(f, cache)

    def _remember(self, path: str) -> Callable[..., None]:
        def hook(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            if path not in self.calls:
                self.calls[path] = copy.deepcopy((args, kwargs))

        return hook


def submodule(model: Any, path: str) -> Any:
    """By named_modules(), which a name map may have renamed."""
    return dict(model.named_modules()).get(path)


def of_call(module: Any, call: Call) -> list[Operation]:
    """The operations of one call, on copies of its arguments."""
    args, kwargs = copy.deepcopy(call)
    with torch.no_grad(), Stream() as stream:
        module(*args, **kwargs)
    return stream.operations


def forward_operations(model: Any, f: Forward) -> list[list[Operation]]:
    """The operations of a whole forward, by decoder layer (first what runs before them): names and fingerprints, no tensors."""
    parts: list[list[Operation]] = [[]]
    handles = [layer.register_forward_pre_hook(lambda *_: parts.append([])) for layer in model.model.layers]
    try:
        with Stream(keep=False, sink=lambda operation: parts[-1].append(operation)):
            hf_model.run(model, f.ids, f.positions, f.mask, None)
    finally:
        for handle in handles:
            handle.remove()
    return parts


class Candidate(Protocol):
    """What runs its own sublayers under the dispatch mode."""

    def operations(self, forwards: list[Forward], name: str, paths: set[str]) -> tuple[Ran, CallsOf]:
        """-> (path -> its operations in forward `name`, path -> the call of the reference that they are held against)"""


class LiveCandidate:
    """A live model with HF's module names: called again, each suspect alone."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def operations(self, forwards: list[Forward], name: str, paths: set[str]) -> tuple[Ran, CallsOf]:
        calls = Calls(self.model, paths)
        calls.run(forwards, name)
        return {path: of_call(submodule(self.model, path), call) for path, call in calls.calls.items()}, calls.calls


def name_operations(faults: list[dict[str, Any]], candidate: Candidate, reference: Any, forwards: list[Forward]) -> int:
    """Fills `operation` and `source` of the candidate's faults -> how many sublayers were run. reference: a live model with
    HF's module names."""
    known = {f.name for f in forwards}
    mine = [fault for fault in faults if fault["side"] == "candidate" and fault["input"] in known]
    by_input: dict[str, list[dict[str, Any]]] = {}
    for fault in mine:
        by_input.setdefault(fault["input"], []).append(fault)
    ran = 0
    for name, group in by_input.items():
        streams, calls = candidate.operations(forwards, name, {fault["point"] for fault in group})
        for fault in group:
            ours, call = streams.get(fault["point"]), calls.get(fault["point"])
            theirs = submodule(reference, fault["point"])
            if not ours or call is None or theirs is None:
                continue
            ran += 1
            try:
                expected = of_call(theirs, call)
            except InputError:
                raise
            except Exception as error:  # the reference may not take the candidate's arguments
                fault["note"] = fault["note"] or f"operations not compared: {type(error).__name__}: {error}".splitlines()[0]
                continue
            found = first_difference(expected, ours)
            if found is not None:
                fault["operation"] = {"name": found.name, "index": found.index}
                fault["source"] = found.source and os.path.relpath(found.source) if _near_here(found.source) else found.source
    return ran


def _near_here(source: str | None) -> bool:
    return bool(source) and str(source).startswith(os.getcwd() + os.sep)
