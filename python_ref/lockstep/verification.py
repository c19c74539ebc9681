"""Runs the reference and the mirror in lockstep and says, on three legs, whether they are the same function."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import hub, preflight, rounding
from . import inputs as given
from .capture import Capture
from .native import InputError, _core
from .options import Progress, check_gate, check_inputs, check_options, thread_count
from .reference import Caches, Reference
from .streaming import PeakMemory
from .verdicts import passes, worst

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What `lockstep verify --json` writes, as `data`; and what follows from it."""

    data: dict[str, Any]
    folder: Path  # the checkpoint that was judged

    @property
    def verdict(self) -> str:
        """The worst verdict of provenance and lockstep."""
        return str(self.data["verdict"])

    @property
    def exit_code(self) -> int:
        """0 passes, 1 does not, 2 could not judge."""
        return int(self.data["exit_code"])

    @property
    def passes(self) -> bool:
        return self.exit_code == 0

    @property
    def first(self) -> dict[str, Any] | None:
        """The first bad point, or None."""
        return self.data["first"]

    @property
    def legs(self) -> dict[str, Any]:
        return self.data["legs"]

    @property
    def points(self) -> list[dict[str, Any]]:
        """Every point of every input, in execution order."""
        return self.data["points"]

    def __bool__(self) -> bool:
        return self.passes


def verify(
    model: str | os.PathLike[str] | None = None,
    *,
    dtype: str = "float32",
    attn: str = "sdpa",
    points: str = "sublayer",
    prompt: str | None = None,
    ids: str | Sequence[int] | None = None,
    inputs: str | os.PathLike[str] | list[dict[str, Any]] | None = None,
    atol: float = 1e-5,
    rtol: float = 0.0,
    bitwise: bool = False,
    accept: str | None = None,
    mirror: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    revision: str | None = None,
    patch: Callable[[Any], Any] | None = None,
    stream: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Judge the mirror against Hugging Face on one checkpoint.

    model: a folder, a hub id, or None for the embedded checkpoint. At most one of prompt, ids and inputs (a JSON file with
    a list of forwards {name, ids, positions, mask, past}, or the list itself) replaces the default inputs. mirror: another
    folder whose weights the mirror gets. accept: `rounding` passes what the local check calls rounding (and raises `points` to
    sublayer). patch: called with the loaded HF model before it is judged; it changes it or returns another. stream: one layer's
    weights of each side in memory at a time, for a model bigger than memory; the same bits, and slower.
    raises LoadError for what cannot be loaded and InputError for what cannot be run.
    """
    say = progress or (lambda _: None)
    check_options(dtype, attn, points, atol, rtol, threads)
    check_gate(bitwise, accept)
    if accept and points == "layer":
        points = "sublayer"
    check_inputs(prompt, ids, inputs)
    if stream and patch is not None:
        raise InputError("stream and patch: expected at most one of them; a streamed model has no weights when patch is called")
    with thread_count(threads), PeakMemory() if stream else contextlib.nullcontext() as memory:
        run = _Run(dtype, attn, points, atol, rtol, bitwise, accept is not None, stream, say)
        run.load(hub.resolve(model, revision), None if mirror is None else hub.resolve(mirror), patch)
        run.choose_inputs(prompt, ids, inputs)
        run.provenance()
        run.preflight()
        run.lockstep()
        run.rounding()
        run.provenance_holds()
        return run.report(None if memory is None else memory.peak)


class _Run:
    """One verification in progress, leg by leg."""

    def __init__(
        self, dtype: str, attn: str, points: str, atol: float, rtol: float, bitwise: bool, accept: bool, stream: bool, say: Progress
    ) -> None:  # fmt: skip
        self.stream = stream
        self.dtype, self.attn, self.level, self.say = dtype, attn, points, say
        self.atol, self.rtol, self.bitwise, self.accept = atol, rtol, bitwise, accept
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()
        self.points: list[dict[str, Any]] = []
        self.logits: list[dict[str, Any]] = []
        self.fired: list[dict[str, Any]] = []
        self.raised: list[dict[str, Any]] = []

    def _phase(self, name: str) -> _Phase:
        return _Phase(self.seconds, name)

    def load(self, folder: Path, mirror_folder: Path | None, patch: Callable[[Any], Any] | None) -> None:
        self.folder, self.mirror_folder = folder, mirror_folder or folder
        with self._phase("load"):
            self.say(f"opening {folder}")
            self.source = _core.Mirror.open(str(folder))
            self.mirror = self.source if mirror_folder is None else _core.Mirror.open(str(mirror_folder))
            self.about = self.source.describe()
        with self._phase("digest"):
            self.digest = self.source.digest()
            self.mirror_about = None
            if self.mirror is not self.source:
                about = self.mirror.describe()
                self.mirror_about = {"digest": self.mirror.digest(), "dtypes": about["dtypes"], "notes": about["notes"]}
        with self._phase("reference_load"):
            self.say(f"loading {self.about['hf_class']} in {self.dtype}")
            self.reference = Reference.load(folder, self.about, self.dtype, self.attn, patch, self.stream)
            if self.stream:
                self.mirror.stream(self.dtype)

    def choose_inputs(
        self,
        prompt: str | None,
        ids: str | Sequence[int] | None,
        inputs: str | os.PathLike[str] | list[dict[str, Any]] | None,
    ) -> None:
        self.forwards = given.chosen(self.folder, self.about, prompt, ids, inputs)
        self.past = given.check_all(self.source, self.forwards)

    def provenance(self) -> None:
        with self._phase("provenance"):
            self.say("provenance: every parameter against the file")
            leg = _core.Provenance(self.source, self.mirror, self.dtype)
            leg.compare_files()
            for name, parameter in self.reference.parameters():
                leg.reference_parameter(name, parameter)
                del parameter  # a streamed one goes before the next comes
            inv_freq = self.reference.inv_freq()
            if inv_freq is not None:
                leg.reference_inv_freq(inv_freq.cpu())
            leg.bind()
            self.provenance_check = leg

    def preflight(self) -> None:
        with self._phase("preflight"):
            self.say("preflight: the reference's own invariants")
            preflight.run(self.reference, self.source, self.forwards, self.level)

    def provenance_holds(self) -> None:
        """Once more at the end: what ran is still what the files hold, in the reference's memory and on disk."""
        with self._phase("provenance_after"):
            for name, parameter in self.reference.parameters():
                self.provenance_check.still(name, parameter)
                del parameter
            self.provenance_leg = self.provenance_check.finish()

    def lockstep(self) -> None:
        """Every forward on both sides, layer by layer in step; each point is compared and freed as it comes."""
        reference_caches = Caches(self.forwards, self.reference.new_cache)
        mirror_caches = Caches(self.forwards, self.mirror.new_cache, lambda cache: cache.copy())
        coverage = _core.Coverage(self.source)
        varies = Varies()
        mirror_seconds = 0.0
        self.points, self.fired, self.logits, self.raised = [], [], [], []
        if self.reference.streamed is not None:
            self.reference.streamed.lend = self.provenance_check.lend
        with self._phase("lockstep"), Capture(self.reference.model, self.reference.modeling, self.level) as capture:
            for i, f in enumerate(self.forwards, start=1):
                self.say(f"lockstep: {f.name} ({i} of {len(self.forwards)})")
                if f.past in (r["input"] for r in self.raised):
                    self.raised.append({"input": f.name, "reason": f"it continues {f.past}, which was not finished"})
                    continue
                coverage.add(f.ids, f.positions, f.mask, self.past[f.name], reference_caches.uses_cache(f))
                cache, mirror_cache = reference_caches.take(f), mirror_caches.take(f)
                step = _core.LockstepForward(
                    self.mirror, self.reference.variant, self.attn, self.level, self.atol, self.rtol,
                    name=f.name, ids=f.ids, positions=f.positions, mask=f.mask, cache=mirror_cache,
                )  # fmt: skip
                capture.cache, capture.sink = cache, _Sink(step)
                try:
                    logits = self.reference.forward(f, cache)
                    step.returned_logits(logits)
                    varies.add(logits)
                    del logits
                except InputError as error:  # what was captured until then is judged, the rest is missing
                    self.raised.append({"input": f.name, "reason": str(error)})
                capture.sink = None
                try:
                    result = step.finish()
                except InputError as error:  # the mirror cannot take this input at all (another config in its folder)
                    if not any(r["input"] == f.name for r in self.raised):
                        self.raised.append({"input": f.name, "reason": str(error)})
                    continue
                mirror_seconds += step.mirror_seconds
                reference_caches.leave(f, cache)
                mirror_caches.leave(f, mirror_cache)
                self.points += result["points"]
                self.fired += [{**fired, "input": f.name} for fired in result["fired"]]
                if result["logits"]:
                    self.logits.append(result["logits"])
        self.seconds["mirror_and_comparison"] = mirror_seconds
        self.coverage_leg = coverage.finish()
        if self.coverage_leg["rows"]["distinct_ids"] > 1:
            self.reference.check(
                "discriminating", varies.found, found=None if varies.found else "the reference's logits never vary"
            )

    def rounding(self) -> None:
        """Where bits differ: within what right arithmetic may lose, on both sides?"""
        if self.raised or self.fired:
            for point in self.points:
                point["floor"] = point["ratio"] = None
            return
        with self._phase("rounding"):
            rounding.judge(
                self.points, folder=self.folder, about=self.about, reference=self.reference, mirror_folder=self.mirror_folder,
                forwards=self.forwards, level=self.level, say=self.say,
            )  # fmt: skip

    def report(self, peak_memory: int | None) -> Report:
        lockstep_verdict = worst([p["verdict"] for p in self.points] + ["missing"] * len(self.raised))
        provenance_verdict = self.provenance_leg["verdict"]
        verdict = worst((lockstep_verdict, provenance_verdict))
        bad = [p for p in self.points if not passes(p["verdict"], self.bitwise, self.accept)]
        failed = self.reference.pedigree["failed"]
        if verdict == "non_finite":
            exit_code = 1
        elif failed:
            exit_code = 2
        else:
            exit_code = int(bool(bad) or bool(self.raised) or provenance_verdict != "identical")
        self.seconds["total"] = time.perf_counter() - self.started
        about = self.about
        return Report(
            {
                "format_version": FORMAT_VERSION,
                "command": "verify",
                "verdict": verdict,
                "model": {
                    "family": about["family"],
                    "layer_types": about["layer_types"],
                    "digest": self.digest,
                    **{k: about[k] for k in ("parameters", "dtypes", "ignored", "tied", "notes", "vocab")},
                },
                "pedigree": self.reference.pedigree,
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "exit_code": exit_code,
                "options": {
                    "dtype": self.dtype,
                    "attn": self.attn,
                    "points": self.level,
                    "atol": self.atol,
                    "rtol": self.rtol,
                    "bitwise": self.bitwise,
                    "accept": "rounding" if self.accept else None,
                    "stream": self.stream,
                },
                "peak_rss_anon": peak_memory,
                "mirror": self.mirror_about,
                "legs": {
                    "provenance": self.provenance_leg,
                    "lockstep": {
                        "verdict": lockstep_verdict,
                        "points": len(self.points),
                        "identical": sum(p["verdict"] == "identical" for p in self.points),
                        "fired": self.fired,
                        "raised": self.raised,
                    },
                    "coverage": self.coverage_leg,
                },
                "first": bad[0] if bad else None,
                "points": self.points,
                "logits": self.logits,
            },
            self.folder,
        )


class _Phase:
    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = time.perf_counter() - self.start


class _Sink:
    """Hands the reference's captures to the mirror's forward, and lets it take each step as the reference has."""

    def __init__(self, step: _core.LockstepForward) -> None:
        self.step = step
        self.done = -1

    def capture(self, point: str, value: torch.Tensor) -> None:
        # The logits and the next layer's output are compared before this hook returns: nothing can change them meanwhile.
        at_once = point in ("lm_head.output", f"model.layers.{self.done + 1}.output")
        self.step.reference(point, value.detach().cpu(), not at_once)

    def layer_done(self, index: int) -> None:
        if index == self.done + 1:  # a layer that runs again, or out of order, is not a step
            self.done = index
            self.step.advance(index)

    def head_done(self) -> None:
        self.step.complete()


class Varies:
    """Do the reference's logits vary over all positions of all inputs? One that never moves can judge nobody."""

    def __init__(self) -> None:
        self.row: torch.Tensor | None = None
        self.found = False

    def add(self, logits: torch.Tensor) -> None:
        if self.found:
            return
        if self.row is None:
            self.row = logits[0, 0].clone()
        for row in logits.flatten(0, -2):
            if not _core.same_bits(row.contiguous(), self.row):
                self.found = True
                return
