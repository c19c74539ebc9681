"""Hugging Face as a candidate: as installed, or as another virtual environment's python has it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..inputs import Forward, to_json
from ..native import InputError, _core
from ..reference import Reference
from ..streaming import Spill
from . import Recorded, live

KEYS = ("attn", "dtype", "python")


def from_text(what: str, folder: Path, about: dict[str, Any], dtype: str, attn: str, timeout: float | None) -> HfEngine:
    """`hf` or `hf:key=value,...` -> the engine. raises InputError"""
    options = {"attn": attn, "dtype": dtype}
    for part in filter(None, what.removeprefix("hf").removeprefix(":").split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in KEYS:
            raise InputError(f"--candidate {what!r}: {part!r} is not key=value with a key of {', '.join(KEYS)}")
        options[key] = value
    for key, known in (("attn", ("sdpa", "eager")), ("dtype", ("float32", "bfloat16", "float16"))):
        if options[key] not in known:
            raise InputError(f"--candidate {what!r}: {key} {options[key]!r}: expected one of {', '.join(known)}")
    python = options.get("python")
    if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
        raise InputError(f"--candidate {what!r}: {python}: expected a python program")
    if python is not None:  # "./python" would be looked up in PATH; a link stays, it is how an environment names itself
        python = str(Path(python).absolute())
    return HfEngine(folder, about, options["dtype"], options["attn"], python, timeout)


class HfEngine:
    """patch: as verify's, in this process only; stream: neither weights nor recordings stay in memory."""

    def __init__(
        self, folder: Path, about: dict[str, Any], dtype: str, attn: str, python: str | None = None,
        timeout: float | None = None, patch: Callable[[Any], Any] | None = None, stress: bool = True, stream: bool = False,
    ) -> None:  # fmt: skip
        self.stress, self.stream = stress, stream
        self.folder, self.about, self.dtype, self.attn = folder, about, dtype, attn
        self.python, self.timeout, self.patch = python, timeout, patch
        self.reference: Reference | None = None
        self.last: Recorded | None = None

    def record(self, forwards: list[Forward], points: str) -> Recorded:
        self.last = self._here(forwards, points) if self.python is None else self._elsewhere(forwards, points)
        return self.last

    @property
    def fresh(self) -> Callable[[Path], Any] | None:
        """A patched model is a candidate that can be called on other weights; Hugging Face itself is no such thing."""
        if self.patch is None or not self.stress:
            return None
        return lambda folder: Reference.load(folder, self.about, self.dtype, self.attn, self.patch).model

    def _here(self, forwards: list[Forward], points: str) -> Recorded:
        if self.reference is None:
            self.reference = Reference.load(self.folder, self.about, self.dtype, self.attn, self.patch, self.stream)
        reference = self.reference
        trace, dropped = live.record(
            reference.model, reference.modeling, forwards, points, dtype=self.dtype, attn=self.attn,
            variant=reference.variant, vocab=self.about["vocab"], who="transformers", timeout=self.timeout,
            keep=Spill() if self.stream else None,
        )  # fmt: skip
        producer = {"engine": "hf", **{k: reference.pedigree[k] for k in ("transformers", "torch", "attn", "variant")}}
        return Recorded(trace, producer, dropped, reference.model, reference.modeling)

    def _elsewhere(self, forwards: list[Forward], points: str) -> Recorded:
        trace = trace_of(self.recorded_elsewhere(forwards, points))
        return Recorded(trace, {"engine": "hf", "python": self.python, **trace.manifest["producer"]})

    def recorded_elsewhere(self, forwards: list[Forward], points: str) -> bytes:
        """The trace file that the worker in the other environment writes; nothing of ours but three plain files runs there."""
        package = Path(__file__).parent.parent
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            job, out = Path(scratch) / "job.json", Path(scratch) / "hf.trace"
            job.write_text(
                json.dumps(
                    {
                        "package": str(package),
                        "folder": str(self.folder.resolve()),
                        "hf_class": self.about["hf_class"],
                        "tied": self.about["tied"],
                        "dtype": self.dtype,
                        "attn": self.attn,
                        "points": points,
                        "threads": _threads(),
                        "forwards": to_json(forwards),
                        "out": str(out),
                    }
                )
            )
            environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
            environment.update({"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"})
            command = [str(self.python), str(package / "engines" / "hf_worker.py"), str(job)]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=self.timeout, check=False)
            except subprocess.TimeoutExpired:
                raise InputError(f"{self.python} did not finish within --timeout {self.timeout:g} seconds") from None
            if done.returncode != 0 or not out.is_file():
                reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise InputError(f"{self.python}: {reason}")
            return out.read_bytes()


def trace_of(file: bytes) -> _core.Trace:
    """The trace in the bytes of a file: written where the mapping outlives it."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        path = Path(scratch) / "hf.trace"
        path.write_bytes(file)
        return _core.Trace.open(str(path))


def _threads() -> int:
    import torch

    return torch.get_num_threads()
