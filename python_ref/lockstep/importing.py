"""`lockstep import-trace`: turns any engine's dump into a trace file (the format is described in python_ref/TRACES.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import inputs as given
from . import trace_file
from .inputs import Forward, to_json
from .native import InputError
from .traces import CACHE_STATES

NAME = "dump"  # of the forward, where the dump names none
LOGITS = ("logits", "lm_head")
TOPK = {"topk_ids": "lm_head@topk_ids", "topk_logprobs": "lm_head@topk_logprobs"}


def import_trace(
    dump: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    names: str | os.PathLike[str] | None = None,
    ids: str | None = None,
    inputs: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Writes `output` -> {tensors, forwards, dtype, unmapped}.

    dump: .npz, .safetensors or a folder of .npy. names: a JSON object {name in the dump: point or forward/point}; without it
    a name is the point already. ids of the one forward come from `ids`, from the dump's own `ids`, or of several from
    `inputs`. raises InputError
    """
    arrays = read(Path(dump))
    mapping = _read_map(names)
    for name in mapping:
        if name not in arrays:
            raise InputError(f"--map {names}: the dump has no {name!r} (it has {', '.join(sorted(arrays)[:5])}, ...)")
    forwards = _forwards(arrays, ids, inputs, dump)
    known = {f.name: f for f in forwards}
    tensors: dict[str, torch.Tensor] = {}
    fired: dict[str, list[str]] = {f.name: [] for f in forwards}
    unmapped: list[str] = []
    for name, value in arrays.items():
        if name == "ids":
            continue
        target = mapping.get(name) if mapping else name
        if target is None:
            unmapped.append(name)
            continue
        forward, slash, point = target.partition("/")
        if not slash:
            forward, point = forwards[0].name, target
        if forward not in known:
            raise InputError(f"{name}: names the forward {forward!r}; expected one of {', '.join(known)}")
        point = "lm_head.output" if point in LOGITS else TOPK.get(point, point)
        full = f"{forward}/{point}"
        if full in tensors:
            raise InputError(f"{name}: {full} is there twice")
        tensors[full] = with_batch(value, known[forward])
        fired[forward].append(point)
    if not tensors:
        raise InputError(f"{dump}: no tensor of it has a place in the trace (see --map)")
    dtype = _dtype(tensors, dump)
    continued = {f.past for f in forwards}
    cached = [f.name for f in forwards if f.past is not None or f.name in continued]
    manifest = {
        "producer": {"engine": "import", "dump": Path(dump).name},
        "model": None,
        "dtype": dtype,
        "attn": "sdpa",
        "torch": None,
        "transformers": None,
        "threads": None,
        "cpu_capability": None,
        "forwards": to_json(forwards),
        "points": trace_file.promised_points(fired, cached, CACHE_STATES),
    }
    trace_file.write(output, manifest, tensors)
    return {"tensors": len(tensors), "forwards": len(forwards), "dtype": dtype, "unmapped": unmapped}


def read(path: Path) -> dict[str, torch.Tensor]:
    """Every array of a dump by its name, on the CPU. raises InputError"""
    import numpy as np
    from safetensors import safe_open

    try:
        if path.is_dir():
            files = sorted(path.rglob("*.npy"))
            found = {str(f.relative_to(path).with_suffix("")): np.load(f, allow_pickle=False) for f in files}
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt", device="cpu") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        else:
            raise InputError(f"{path}: expected an .npz or .safetensors file, or a folder of .npy files")
    except InputError:
        raise
    except Exception as error:  # numpy and safetensors raise anything for a broken file
        raise InputError(f"{path}: cannot be read: {(str(error).strip().splitlines() or [type(error).__name__])[0]}") from None
    if not found:
        raise InputError(f"{path}: holds no array")
    try:
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}
    except TypeError as error:
        raise InputError(f"{path}: {error}") from None


def with_batch(x: torch.Tensor, f: Forward) -> torch.Tensor:
    """[T, ...] of a single sequence -> [1, T, ...]."""
    B, T = f.ids.shape
    return x[None] if B == 1 and x.ndim >= 2 and x.shape[0] == T and x.shape[:2] != (1, T) else x


def _forwards(arrays: Mapping[str, torch.Tensor], ids: str | None, inputs: Any, dump: Any) -> list[Forward]:
    if ids is not None and inputs is not None:
        raise InputError("expected at most one of --ids and --inputs")
    if inputs is not None:
        return given.from_file(inputs)
    if ids is not None:
        return [Forward(NAME, given.from_ids(ids)[0].ids)]
    own = arrays.get("ids")
    if own is None or own.is_floating_point() or own.ndim > 2 or own.numel() == 0:
        raise InputError(f"{dump}: which tokens ran? Give --ids or --inputs, or an array `ids` of whole numbers in the dump")
    return [Forward(NAME, own.to(torch.int64).reshape(-1, own.shape[-1]))]


def _read_map(path: str | os.PathLike[str] | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--map {path}: {error}") from None
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        raise InputError(f"--map {path}: expected an object from the dump's names to points")
    return data


def _dtype(tensors: Mapping[str, torch.Tensor], dump: Any) -> str:
    """What most of the values are in."""
    counts: dict[str, int] = {}
    for x in tensors.values():
        if x.is_floating_point():
            name = str(x.dtype).removeprefix("torch.")
            counts[name] = counts.get(name, 0) + 1
    best = max(counts, key=lambda name: counts[name], default=None)
    if best not in trace_file.DTYPES:
        raise InputError(f"{dump}: expected float32, bfloat16, float16 or float64 values, found {best or 'none'}")
    return best
