"""Writing a trace file: safetensors, tensors named `<forward>/<point>`, the manifest under the metadata key `lockstep`.

Needs torch and safetensors only: another virtual environment's python runs this file too (engines/hf_worker.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

FORMAT_VERSION = 1
DTYPES = ("float32", "bfloat16", "float16", "float64")


def promised_points(fired: Mapping[str, Sequence[str]], cached: Sequence[str], states: Sequence[str]) -> list[str]:
    """The manifest's `points` in execution order: bare where every forward fired it (a state: every cached one), else
    `<forward>/<point>`. fired: forward -> points."""
    order: list[str] = []
    for points in fired.values():
        known = set(order)
        if not order:
            order = list(points)
        else:
            order += [point for point in points if point not in known]
    listed: list[str] = []
    for point in order:
        is_state = point.rpartition("@")[2] in states
        expected = [name for name in fired if not is_state or name in cached]
        holders = [name for name, points in fired.items() if point in points]
        listed += [point] if holders == expected else [f"{name}/{point}" for name in holders]
    return listed


UNSIGNED = "0" * 64


def signed(text: str) -> str:
    """A golden manifest's text with its digest under /golden/digest: SHA-256 over the text with zeros in its place."""
    place = f'"digest": "{UNSIGNED}"'
    if text.count(place) != 1:
        raise ValueError("expected one unsigned digest")
    return text.replace(place, f'"digest": "{hashlib.sha256(text.encode()).hexdigest()}"')


def digests_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes."""
    return {
        name: hashlib.sha256(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, x in tensors.items()
    }


def write(path: str | os.PathLike[str], manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """A temporary file beside `path`, then a rename: an interrupted run leaves nothing half-written. raises OSError"""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(f"{path}: expected a file, found a folder, a device or a pipe; a trace needs a file")
    if "golden" in manifest:
        manifest = {**manifest, "golden": {**manifest["golden"], "tensors": digests_of(tensors), "digest": UNSIGNED}}
    text = json.dumps({"format_version": FORMAT_VERSION, **manifest}, allow_nan=False)
    if "golden" in manifest:
        text = signed(text)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        whole = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}
        try:
            save_file(whole, temporary, metadata={"lockstep": text})
        except SafetensorError as error:
            raise OSError(f"{path}: cannot be written: {error}") from None
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
