"""Plants faults at seeded random layers, bisects, and counts what was found; and what two baselines find.

    scripts/fault_benchmark [--model embedded|smollm2] [--count N] [--seed S] [--kind NAME] [--from-trace] [--thorough]
                            [--inputs NAME,...] [--without-own] [--ray ADDRESS] [--threads N] [--json FILE]

found: the planted sublayer is among the faults. only: no other one is. operation: its name is one the kind may have.
cause: the planted kind is the cause or in its `also`. --without-own bisects each once more with its own hypothesis, and those
that cannot be told from it, taken away: what is then called a cause is a wrong one. --from-trace shows the bisection the
candidate's recording alone: no parameters, no stress inputs, no operations. What lies below the bound is bisected again with
--thorough: proved, or listed with what the planted kind's own hypothesis came to. --ray: each plant is a Ray task. Exit 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from checkpoints import checkpoint

from lockstep import bisection, distributed, faults, hub, inputs, tracing
from lockstep.engines import Recorded
from lockstep.engines.hf import HfEngine
from lockstep.engines.trace import TraceEngine
from lockstep.native import _core


def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300))


def baseline(reference: _core.Trace, candidate: _core.Trace, layers: int) -> tuple[str | None, bool]:
    """(the sublayer that "first layer over 1e-3, then by sublayer" names, do the final logits differ by more than 1e-5)."""
    logits = False
    named: str | None = None
    for f in reference.forwards:
        a, b = (t.tensor(f["name"], "lm_head.output") for t in (reference, candidate))
        if a is None or b is None or not bool(((a - b).abs() <= 1e-5).all()):
            logits = True
    for layer in range(layers):
        for f in reference.forwards:
            point = f"model.layers.{layer}.output"
            a, b = (t.tensor(f["name"], point) for t in (reference, candidate))
            if a is None or b is None or a.shape != b.shape or rel(b, a) <= 1e-3:
                continue
            for child in ("input_layernorm", "linear_attn", "self_attn", "post_attention_layernorm", "mlp"):
                path = f"model.layers.{layer}.{child}"
                x, y = (t.tensor(f["name"], f"{path}.output") for t in (reference, candidate))
                if x is not None and y is not None and (x.shape != y.shape or rel(y, x) > 1e-3):
                    return path, logits
            named = f"model.layers.{layer}"
            return named, logits
    return named, logits


class Bench:
    def __init__(self, model: str, folder: Path, names: list[str] | None) -> None:
        self.name, self.folder = model, folder
        self.scratch = tempfile.TemporaryDirectory()
        self.about = _core.Mirror.open(str(self.folder)).describe()
        self.forwards = inputs.default_inputs(self.about["vocab"], self.about["mrope"])
        if names:
            self.forwards = [f for f in self.forwards if f.name in names]
        self.stated = inputs.to_json(self.forwards)
        engine = HfEngine(self.folder, self.about, "float32", "sdpa")
        self.reference: Recorded = engine.record(self.forwards, "all")
        self.kinds = faults.kinds_of(self.reference.model)

    def without_own(self, kind: faults.Kind, layer: int, row: dict[str, Any]) -> list[str]:
        """The causes that are named, "place: hypothesis", where the right one and its like are not known."""
        engine = self.engine(kind, layer)
        without = [kind.name, *([row["cause"], *row["also"]] if row["cause_right"] else [])]
        found = bisection.bisect(self.folder, engine, reference=self.reference, inputs=self.stated, without=without)
        return [f"{f['point']}: {f['cause']['hypothesis']}" for f in found.faults if f["cause"]]

    def engine(self, kind: faults.Kind, layer: int) -> HfEngine:
        return HfEngine(self.folder, self.about, "float32", "sdpa", patch=lambda model: kind.apply(model, layer) and None)

    def shown(self, engine: HfEngine, from_trace: bool) -> tuple[Any, list[dict[str, Any]] | None]:
        """What the bisection is given: the engine, or its recording as a file; and the inputs, which a file has itself."""
        if not from_trace:
            return engine, self.stated
        path = Path(self.scratch.name) / "candidate.trace"
        tracing.trace(path, self.folder, engine, points="all", inputs=self.stated)
        return TraceEngine(path), None

    @staticmethod
    def proof(found: bisection.Findings, kind: faults.Kind, place: str) -> dict[str, Any]:
        """Did --thorough prove the planted kind where it is; what did its own hypothesis come to; what else was proved."""
        proved = [
            {**cause, "point": entry["point"]}
            for entry in [*found.faults, *found.data["notes"]]
            if (cause := entry.get("cause", entry)) and cause["hypothesis"]
        ]
        mine = [p for p in proved if p["point"] == place and kind.name in (p["hypothesis"], *p["also"])]
        own = [p for p in found.data["projections"] if p["point"] == place and p["hypothesis"] == kind.name]
        return {
            "proved": bool(mine),
            "own": own[0] if own else None,
            "wrong_causes": [f"{p['point']}: {p['hypothesis']}" for p in proved if p not in mine],
        }

    def run(self, kind: faults.Kind, layer: int, thorough: bool, from_trace: bool) -> dict[str, Any]:
        started = time.perf_counter()
        engine = self.engine(kind, layer)
        row: dict[str, Any] = {"model": self.name, "kind": kind.name, "place": kind.path(layer)}
        try:
            shown, stated = self.shown(engine, from_trace)
            found = bisection.bisect(self.folder, shown, reference=self.reference, inputs=stated, thorough=thorough)
            below = found.verdict != "identical" and not any(f["point"] == row["place"] for f in found.faults)
            row.update(below=below, proved=None)
            if below:
                closer = bisection.bisect(self.folder, shown, reference=self.reference, inputs=stated, thorough=True)
                row.update(self.proof(closer, kind, row["place"]))
        except Exception as error:
            return {**row, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        mine = [f for f in found.faults if f["side"] == "candidate"]
        at = next((f for f in mine if f["point"] == row["place"]), None)
        cause = at and at["cause"]
        names = [cause["hypothesis"], *cause["also"]] if cause else []
        drift = next(d for d in found.data["drift"] if d["point"] == row["place"])
        changed = found.verdict != "identical"
        row.update(
            changed=changed,
            found=at is not None,
            only=[f["point"] for f in mine] == [row["place"]],
            ratio=at["ratio"] if at else (drift["injected"] or 0) / (drift["floor"] or 1),
            above=bool(mine) and (at is None or at["ratio"] is None or at["ratio"] > 2.0),
            value=at and at["value"],
            operation=at and at["operation"] and at["operation"]["name"],
            operation_right=None
            if at is None or not kind.operations or from_trace
            else bool(at["operation"]) and at["operation"]["name"] in kind.operations,
            cause=cause and cause["hypothesis"],
            also=cause["also"] if cause else [],
            cause_right=kind.name in names if at else None,
            others=[f["point"] for f in mine if f["point"] != row["place"]],
            wrong_causes=row.get("wrong_causes", [])
            + [f"{f['point']}: {f['cause']['hypothesis']}" for f in mine if f["cause"] and f["point"] != row["place"]],
            hypotheses=found.data["cost"]["hypotheses"],
            seconds=round(time.perf_counter() - started, 1),
        )
        named, logits = baseline(self.reference.trace, found_trace(engine), len(self.about["layer_types"]))
        row.update(baseline_layers=named, baseline_right=named == row["place"], baseline_logits=logits)
        return row


_benches: dict[tuple[str, str], Bench] = {}  # of a worker


def planted(
    folder: Path, model: str, names: list[str] | None, kind: tuple[str, str], layer: int, thorough: bool, from_trace: bool,
    without_own: bool,
) -> dict[str, Any]:  # fmt: skip
    """The row of one plant. kind: name and place, which together are one kind's alone."""
    key = (model, str(folder))
    if key not in _benches:
        _benches[key] = Bench(model, folder, names)
    bench = _benches[key]
    (plant,) = (k for k in bench.kinds if (k.name, k.place) == kind)
    row = bench.run(plant, layer, thorough, from_trace)
    if without_own and row.get("found"):
        try:
            row["wrong_causes"] += bench.without_own(plant, layer, row)
        except Exception as error:
            row["error"] = f"without its own: {type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps({k: v for k, v in row.items() if k not in ("model",)}), file=sys.stderr, flush=True)
    return row


def found_trace(engine: HfEngine) -> _core.Trace:
    """What the engine recorded last."""
    assert engine.last is not None
    return engine.last.trace


def progress(model: str, share: int, done: int) -> None:
    print(f"{model}: {done} of {share}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=["embedded", "smollm2"])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--inputs", help="only these of the default inputs, NAME,NAME,... (default: all)")
    parser.add_argument("--from-trace", action="store_true", help="show the bisection the candidate's trace alone")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--without-own", action="store_true")
    parser.add_argument("--ray", metavar="ADDRESS", help="local, or the address of a Ray cluster")
    parser.add_argument("--threads", type=int, help="of each plant; the machine's cores if left out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads = distributed.threads_of(options.threads)
    torch.set_num_threads(threads)
    chosen = random.Random(options.seed)
    rows: list[dict[str, Any]] = []
    models = options.model or ["embedded", "smollm2"]
    for model in models:
        folder = hub.resolve(None if model == "embedded" else checkpoint(model))
        names = options.inputs and options.inputs.split(",")
        bench = _benches[model, str(folder)] = Bench(model, folder, names)
        share = options.count * (4 if model == "embedded" else 1) // (5 if len(models) == 2 else 4 if model == "embedded" else 1)
        kinds = [k for k in bench.kinds if not options.kind or k.name in options.kind]
        plants: list[tuple[faults.Kind, int]] = []
        while len(plants) < share:  # every kind once before any comes again
            for kind in chosen.sample(kinds, len(kinds)):
                plants.append((kind, chosen.choice(kind.layers(bench.reference.model))))
        if options.ray:
            _benches.clear()  # it would travel with the task
        digest = _core.digest(str(folder)) if options.ray else ""
        with distributed.workers(options.ray, folder, folder, digest, threads) as workers:
            rows += workers.map(
                planted,
                [
                    (model, names, (kind.name, kind.place), layer, options.thorough, options.from_trace, options.without_own)
                    for kind, layer in plants[:share]
                ],
                partial(progress, model, share) if options.ray else lambda _: None,
            )
    return report(rows, options.json)


def share_of(rows: list[dict[str, Any]], key: str) -> tuple[int, int]:
    known = [row[key] for row in rows if row.get(key) is not None]
    return sum(bool(x) for x in known), len(known)


def report(rows: list[dict[str, Any]], path: Path | None) -> int:
    """Prints the table per kind and the totals -> exit code."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    print(f"{'kind':40} planted  found  only  operation  cause  baseline")
    for kind, group in by_kind.items():
        cells = [
            f"{a}/{b}"
            for a, b in (share_of(group, key) for key in ("found", "only", "operation_right", "cause_right", "baseline_right"))
        ]
        print(f"{kind:40} {len(group):7}  {cells[0]:5}  {cells[1]:4}  {cells[2]:9}  {cells[3]:5}  {cells[4]}")
    failed = [row for row in rows if "error" in row]
    judged = [row for row in rows if "error" not in row]
    above = [row for row in judged if row["above"]]
    for row in failed:
        print(f"could not run: {row['kind']} at {row['place']}: {row['error']}")
    for row in judged:
        if not row["found"]:
            own = row.get("own")
            why = "no bit changed"
            if row["changed"]:
                why = "below the bound; with --thorough " + (
                    "proved" if row["proved"] else own["standing"] if own else "the same function"
                )
            if own:
                why += f", alpha {own['alpha']:.3g} +- {own['alpha_error']:.1g}"
            print(f"not found: {row['kind']} at {row['place']} ({row['model']}): ratio {row['ratio']:.3g}, {why}")
    totals = {key: share_of(above, key) for key in ("found", "only", "operation_right", "cause_right")}
    found_all = share_of(judged, "found")
    print(f"{len(rows)} planted, {len(failed)} could not run; found {found_all[0]} of {found_all[1]}; of those above the bound: "
          + ", ".join(f"{key} {a}/{b}" for key, (a, b) in totals.items()))  # fmt: skip
    proved = share_of(judged, "proved")
    print(f"below the bound: {proved[1]}, of these --thorough proves {proved[0]}")
    wrong = [row for row in judged if row["wrong_causes"]]
    for row in wrong:
        print(f"wrong cause: {row['kind']} at {row['place']} ({row['model']}): {', '.join(row['wrong_causes'])}")
    print(f"wrong causes: {len(wrong)} of {len(judged)}")
    layers, logits = share_of(judged, "baseline_right"), share_of(judged, "baseline_logits")
    print(
        f"baselines: first layer over 1e-3 then by sublayer {layers[0]}/{layers[1]}; logits over 1e-5 (detection alone) {logits[0]}/{logits[1]}"
    )
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n")
    bars = (("only", 1.0), ("operation_right", 0.95), ("cause_right", 0.9))
    missed = [key for key, bar in bars if totals[key][1] and totals[key][0] < bar * totals[key][1]]
    if len(wrong) > 0.02 * len(judged):
        missed.append("wrong causes")
    if missed or failed:
        print(f"bars missed: {', '.join(missed) or 'some faults could not run'}")
    return int(bool(missed or failed))


if __name__ == "__main__":
    sys.exit(main())
