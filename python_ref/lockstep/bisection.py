"""Names every faulty place of a candidate, down to the operation and the cause, and is never fooled by rounding."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import distributed, engines, hub, judging, operations, preflight, stress
from . import inputs as given
from .engines import live
from .engines.hf import HfEngine
from .engines.mirror import MirrorEngine
from .inputs import Forward
from .native import InputError, _core
from .options import Progress, check_inputs, check_options, check_timeout, thread_count
from .traces import forwards_of, same_inputs
from .verdicts import worst
from .verification import FORMAT_VERSION

Patch = Callable[[Any], Any]


@dataclass(frozen=True)
class Findings:
    """What `lockstep bisect --json` writes, as `data`; and what follows from it."""

    data: dict[str, Any]
    folder: Path

    @property
    def exit_code(self) -> int:
        """0 nothing but rounding, 1 a fault was found, 2 could not judge."""
        return int(self.data["exit_code"])

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Every faulty sublayer of every side, in execution order."""
        return self.data["faults"]

    @property
    def verdict(self) -> str:
        return str(self.data["verdict"])

    def __bool__(self) -> bool:
        return self.exit_code == 0


def bisect(
    model: str | os.PathLike[str] | None = None,
    candidate: str | engines.Engine = "mirror",
    *,
    dtype: str = "float32",
    attn: str = "sdpa",
    points: str = "sublayer",
    prompt: str | None = None,
    ids: str | Sequence[int] | None = None,
    inputs: str | os.PathLike[str] | list[dict[str, Any]] | None = None,
    thorough: bool = False,
    steps: int | None = None,
    without: Sequence[str] = (),
    timeout: float | None = None,
    names: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    revision: str | None = None,
    patch: Patch | None = None,
    reference: engines.Recorded | None = None,
    stream: bool = False,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Judge a candidate by the local check, sublayer by sublayer, against the truth of the checkpoint.

    candidate: mirror, hf, hf:attn=eager,dtype=bfloat16,python=PATH, file.py:factory, mlx, a trace file, or an engine.
    patch: changes the reference, as verify's. points: `all` judges the values inside of every sublayer too. without:
    hypotheses that are left out. steps: instead of the inputs, the first of them and so many single tokens over its cache, in one
    shot and in parts too. reference: an earlier recording of the reference on the same inputs, at `all` points, taken
    as it is. stream: of a trace file, with one layer's weights in memory at a time. ray: `local`, or a
    cluster's address: sublayers are judged as Ray tasks. raises LoadError for what cannot be loaded and InputError for what cannot be run.
    """
    say = progress or (lambda _: None)
    check_options(dtype, attn, points, 0.0, 0.0, threads)
    check_inputs(prompt, ids, inputs)
    check_timeout(timeout)
    if steps is not None and not (isinstance(steps, int) and 1 <= steps <= 10_000):
        raise InputError(f"--steps {steps}: expected 1 to 10000")
    known = {h["name"] for h in _core.hypotheses()} | {"one weight"}
    for name in without:
        if name not in known:
            raise InputError(f"without {name!r}: no such hypothesis")
    with thread_count(threads):
        folder = hub.resolve(model, revision)
        source = _core.Mirror.open(str(folder))
        about = source.describe()
        engine = candidate
        if isinstance(engine, str):
            engine = engines.choose(engine, folder, about, dtype, attn, timeout, None if names is None else Path(names))
        run = _Bisection(folder, source, about, engine, patch, attn, points, say)
        run.given_reference, run.stream = reference, stream
        if stream and not run.is_file:
            raise InputError("--stream: expected a trace file as the candidate; another engine holds its own weights")
        if stream and patch is not None:
            raise InputError("stream and patch: expected at most one of them")
        run.choose_inputs(prompt, ids, inputs, steps)
        run.record()
        run.parameters()
        with distributed.workers(ray, model, folder, source.digest() if ray else "", distributed.threads_of(threads)) as workers:
            run.judge(thorough, list(without), workers)
        run.stress(list(without))
        run.operations()
        return run.findings()


class _Bisection:
    """One bisection in progress."""

    def __init__(
        self, folder: Path, source: _core.Mirror, about: dict[str, Any], engine: engines.Engine, patch: Patch | None,
        attn: str, points: str, say: Progress,
    ) -> None:  # fmt: skip
        self.folder, self.source, self.about, self.engine, self.patch = folder, source, about, engine, patch
        self.attn, self.points, self.say = attn, points, say
        self.given_reference: engines.Recorded | None = None
        self.stream = False  # neither the reference's weights nor its recordings stay in memory
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()
        self.is_file = isinstance(engine, engines.trace_engine())

    def choose_inputs(self, prompt: str | None, ids: str | Sequence[int] | None, inputs: Any, steps: int | None) -> None:
        self.steps = steps
        if self.is_file:
            if any(x is not None for x in (prompt, ids, inputs, steps)):
                raise InputError("a trace has its own inputs: leave out --prompt, --ids, --inputs and --steps")
            self.forwards = forwards_of(self.engine.record([], "all").trace)
        else:
            self.forwards = given.chosen(self.folder, self.about, prompt, ids, inputs)
            if steps is not None:
                first = next((f for f in self.forwards if f.name == "len65"), self.forwards[0])
                self.forwards = given.decoding(first, steps, self.about["vocab"])
        given.check_all(self.source, self.forwards)

    def record(self) -> None:
        """Candidate and reference, one forward of each per input."""
        started = time.perf_counter()
        self.say("recording the candidate")
        self.recorded = self.engine.record(self.forwards, "all")
        self.forwards = [f for f in self.forwards if f.name not in self.recorded.dropped]
        self.seconds["candidate"] = time.perf_counter() - started
        started = time.perf_counter()
        self.reference = self._reference()
        self.seconds["reference"] = time.perf_counter() - started
        if self.reference is not None:
            same_inputs(self.reference.trace, self.recorded.trace, ("the reference", "the candidate"))

    def _reference(self) -> engines.Recorded | None:
        """Hugging Face, recorded; None where only a trace is to be judged and transformers is not there."""
        self.pedigree: dict[str, Any] = {"transformers": None, "torch": torch.__version__, "failed": []}
        if self.given_reference is not None:
            return self.given_reference
        try:
            import transformers  # noqa: F401
        except ImportError:
            if not self.is_file:
                raise
            return None
        if not self.forwards or self.engine.dtype == "float64":
            return None
        self.say("recording the reference")
        engine = HfEngine(self.folder, self.about, self.engine.dtype, self.attn, patch=self.patch, stream=self.stream)
        recorded = engine.record(self.forwards, "all")
        assert engine.reference is not None
        preflight.run(engine.reference, self.source, self.forwards, "sublayer")
        self.pedigree = engine.reference.pedigree
        return recorded

    def parameters(self) -> None:
        """A live candidate's parameters against the file, before any forward of it is judged."""
        self.differing: list[dict[str, Any]] = []
        model = self.recorded.model
        if model is None:
            return
        known = set(self.source.parameters())
        leg = _core.Provenance(self.source, _core.Mirror.open(str(self.folder)), self.engine.dtype)
        held = 0
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in known and not parameter.is_meta:
                leg.reference_parameter(name, parameter.detach().cpu())
                held += 1
        if not held:
            return
        for entry in leg.finish()["differing"]:
            self.differing.append(
                {"parameter": entry["tensor"], "index": entry["index"], "file": entry["mirror"], "candidate": entry["reference"]}
            )

    def stress(self, without: list[str]) -> None:
        """A callable candidate gets inputs that show what normal activations hide."""
        started = time.perf_counter()
        self.stress_cost: dict[str, int] = {"candidate_calls": 0, "truth": 0}
        fresh = getattr(self.engine, "fresh", None)
        if fresh is None or self.recorded.model is None:
            return
        about = self.about

        def record(model: Any, forwards: list[Forward]) -> _core.Trace:
            return live.record(
                model, inspect.getmodule(type(model)), forwards, "all", dtype=self.engine.dtype, attn=self.engine.attn,
                variant=self.recorded.trace.variant, vocab=about["vocab"], who="the candidate",
            )[0]  # fmt: skip

        def judge(folder: Path, trace: _core.Trace) -> dict[str, Any]:
            return _core.bisect(
                str(folder), None, trace, self.engine.dtype, self.engine.attn, self.len130, values=False, causes=True,
                thorough=False, points=False, without=set(without), progress=lambda _: None,
            )  # fmt: skip

        found, self.stress_cost = stress.run(
            folder=self.folder, mirror=self.source, about=about, recorded=self.recorded, fresh=fresh, record=record,
            chosen=self.forwards, judge=judge, say=self.say,
        )  # fmt: skip
        order = [entry["point"] for entry in self.result["drift"]]
        self.result["faults"] = stress.merged(self.result["faults"], found, order)
        self.seconds["stress"] = time.perf_counter() - started

    def operations(self) -> None:
        """Inside of each suspect of a live candidate: the first operation with other results."""
        started = time.perf_counter()
        self.operations_ran = 0
        reference = None if self.reference is None else self.reference.model
        candidate: operations.Candidate | None = None
        if self.recorded.model is not None:
            candidate = operations.LiveCandidate(self.recorded.model)
        elif isinstance(self.engine, MirrorEngine) and self.reference is not None:
            candidate = self.engine.beside(self.reference, self.recorded.trace)
        if candidate is not None and reference is not None:
            self.say("operations of the suspects")
            self.operations_ran = operations.name_operations(self.result["faults"], candidate, reference, self.forwards)
        self.seconds["operations"] = time.perf_counter() - started

    def judge(self, thorough: bool, without: list[str], workers: distributed.Workers) -> None:
        started = time.perf_counter()
        named = {f.name: f for f in given.default_inputs(self.about["vocab"], self.about["mrope"])}
        self.len130 = named["len130"].ids
        self.result = judging.judge(
            workers,
            None if self.reference is None else self.reference.trace,
            self.recorded.trace,
            self.engine.dtype,
            self.engine.attn,
            self.len130,
            layers=len(self.about["layer_types"]),
            values=self.points == "all",
            thorough=thorough,
            without=without,
            say=self.say,
        )
        self.workers = workers.seen
        if self.is_file:
            self.recorded.trace.check_unchanged()
        self.seconds["judge"] = time.perf_counter() - started
        if not any(d["injected"] is not None for d in self.result["drift"]) and not self.result["faults"]:
            raise InputError(
                "the candidate shows no sublayer with its input and output under Hugging Face's names: nothing could be judged "
                "(map its names, or compare its logits with `lockstep compare`)"
            )

    def findings(self) -> Findings:
        result = self.result
        coverage = _core.Coverage(self.source)
        past = given.check_all(self.source, self.forwards)
        continued = {f.past for f in self.forwards}
        for f in self.forwards:
            coverage.add(f.ids, f.positions, f.mask, past[f.name], f.past is not None or f.name in continued)
        faults = self._with_parameters(result["faults"])
        verdicts = [fault["verdict"] for fault in faults] + ["missing"] * bool(result["extra"])
        verdicts += ["non_finite"] * bool(result["nan_rows"])
        same = self.reference is not None and self._identical()
        verdict = worst([*verdicts, "identical" if same else "rounding"])
        failed = self.pedigree["failed"]
        exit_code = 1 if verdict == "non_finite" else 2 if failed else int(bool(verdicts))
        self.seconds["total"] = time.perf_counter() - self.started
        # The mirror's operations are held against calls that a second forward of the reference shows.
        beside = isinstance(self.engine, MirrorEngine) and self.operations_ran > 0
        forwards = 0 if self.reference is None else 1 + int(beside)
        return Findings(
            {
                "format_version": FORMAT_VERSION,
                "command": "bisect",
                "verdict": verdict,
                "model": {
                    "family": self.about["family"],
                    "layer_types": self.about["layer_types"],
                    "digest": self.source.digest(),
                },
                "pedigree": self.pedigree,
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "exit_code": exit_code,
                "candidate": self.recorded.producer,
                "options": {"dtype": self.engine.dtype, "attn": self.engine.attn, "points": self.points},
                "parameters": self.differing,
                "drift": result["drift"],
                "steps": self._decoding(faults),
                "faults": faults,
                "notes": result["notes"],
                "power": result["power"],
                "projections": result["projections"],
                "cost": {
                    **result["cost"],
                    "reference_forwards": forwards,
                    # Operations need a second one, which shows what each suspect is called with.
                    "candidate_forwards": int(not self.is_file) + int(self.operations_ran > 0),
                    "operations": self.operations_ran,
                    **({"workers": self.workers} if self.workers else {}),
                    "stress": self.stress_cost,
                },
                "coverage": {
                    **coverage.finish(),
                    "dropped": self.recorded.dropped,
                    "not_compared": result["not_compared"],
                    "extra": result["extra"],
                    "skipped_rows": result["skipped_rows"],
                    "nan_rows": result["nan_rows"],
                },
            },
            self.folder,
        )

    def _decoding(self, faults: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The first step, layer and state that is not rounding; and how far steps and parts are from one shot at the logits."""
        if self.steps is None:
            return None
        order = [f.name for f in self.forwards]
        mine = [f for f in faults if f["side"] == "candidate" and f["first_input"] in order]
        first = min(mine, key=lambda f: order.index(f["first_input"]), default=None)
        trace = self.recorded.trace

        def logits(*names: str) -> torch.Tensor | None:
            parts = [trace.tensor(name, "lm_head.output") for name in names]
            known = [x for x in parts if x is not None]
            return torch.cat(known, dim=1).float() if len(known) == len(parts) else None

        stepped = ["prefill", *(f"step{i + 1}" for i in range(self.steps))]
        whole, by_steps, by_parts = logits("one_shot"), logits(*stepped), logits("parts.0", "parts.1")
        return {
            "count": self.steps,
            "first": first and {"input": first["first_input"], "point": first["point"], "value": first["value"]},
            "rel_l2": {
                name: None if whole is None or x is None else _core.compare(whole, x)["rel_l2"]
                for name, x in (("steps", by_steps), ("parts", by_parts))
            },
        }

    def _with_parameters(self, faults: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A sublayer whose parameters differ from the file is faulty, whatever its numbers say."""
        order = [entry["point"] for entry in self.result["drift"]]
        for entry in self.differing:
            homes = [point for point in order if entry["parameter"].startswith(point + ".")]
            if not homes:
                continue
            point = max(homes, key=len)
            if any(fault["point"] == point and fault["side"] == "candidate" for fault in faults):
                continue
            note = f"{entry['parameter']} {entry['index']}: file {entry['file']}, candidate {entry['candidate']}"
            faults.append(
                {"point": point, "side": "candidate", "verdict": "deviates", "input": None, "first_input": None, "value": None,
                 "operation": None, "source": None, "cause": None, "ratio": None, "error": None, "floor": None, "row": None,
                 "note": note, "remark": None}
            )  # fmt: skip
        return sorted(faults, key=lambda fault: order.index(fault["point"]))

    def _identical(self) -> bool:
        assert self.reference is not None
        mine, theirs = self.recorded.trace, self.reference.trace
        for f in self.forwards:
            for point in mine.points:
                if not mine.promised(f.name, point) or not theirs.promised(f.name, point):
                    continue
                a, b = mine.tensor(f.name, point), theirs.tensor(f.name, point)
                if a is None or b is None or not _core.same_bits(a, b):
                    return False
        return True


__all__ = ["Findings", "Forward", "bisect"]
