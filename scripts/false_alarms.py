"""Bisects candidates that are right but compute in another way, and prints how many noise floors each of them reaches.

    scripts/false_alarms [--model embedded|smollm2] [--thorough | --quick] [--only TEXT] [--json FILE]

Every one is bisected twice: as it is, on all default inputs and ten cache splits; and with --thorough, on some of them.
Exit 1 if one of them is called faulty or gets a cause.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from checkpoints import checkpoint
from releases import python_of

from lockstep import bisection, faults, hub, inputs
from lockstep.engines.hf import HfEngine
from lockstep.engines.mirror import MirrorEngine
from lockstep.engines.mlx_engine import MlxEngine
from lockstep.inputs import Forward
from lockstep.native import _core

SOME = ("len2", "len65", "from5000", "pad2", "split64_86.0", "split64_86.1", "ten.0", "ten.1", "ten.2")


def ten_splits(vocab: int) -> list[Forward]:
    """150 tokens in eleven parts, each over the cache of the one before."""
    edges = [0, 1, 2, 5, 17, 40, 63, 64, 66, 100, 149, 150]
    ids = torch.randint(vocab, (1, 150), generator=torch.Generator().manual_seed(20260103))
    parts = zip(edges, edges[1:], strict=False)
    return [Forward(f"ten.{i}", ids[:, a:b], past=f"ten.{i - 1}" if i else None) for i, (a, b) in enumerate(parts)]


def recurrent_rule(model: Any) -> None:
    """Token by token where Hugging Face goes by chunks."""
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            faults.rewrite(layer.linear_attn, ("= torch_chunk_gated_delta_rule(", "= torch_recurrent_gated_delta_rule("))


def norms_in_float64(model: Any) -> None:
    """Every RMSNorm in float64, rounded once at its end."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            faults.rewrite(module, ("torch.float32", "torch.float64"))
        elif hasattr(module, "eps") and hasattr(module, "_norm"):
            faults.rewrite(module, ("x.float()", "x.double()"), ("self.weight.float()", "self.weight.double()"))


def down_proj_in_halves(model: Any) -> None:
    """Half of the sum after the other."""

    def halves(linear: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        half = linear.in_features // 2

        def forward(x: torch.Tensor) -> torch.Tensor:
            w = linear.weight
            return torch.nn.functional.linear(x[..., :half], w[:, :half]) + torch.nn.functional.linear(x[..., half:], w[:, half:])

        return forward

    for layer in model.model.layers:
        layer.mlp.down_proj.forward = halves(layer.mlp.down_proj)


class OneThread(HfEngine):
    def record(self, forwards: list[Forward], points: str) -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return super().record(forwards, points)
        finally:
            torch.set_num_threads(threads)


@contextmanager
def as_mlx_reads_it(folder: Path) -> Iterator[Path]:
    """The checkpoint with `rope_theta` at top level too, where mlx-lm looks for it in a Llama."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "model"
        copy.mkdir()
        for file in folder.iterdir():
            if file.name == "config.json":
                config["rope_theta"] = config["rope_parameters"]["rope_theta"]
                (copy / file.name).write_text(json.dumps(config))
            elif file.suffix == ".safetensors":
                (copy / file.name).symlink_to(file.resolve())
            elif file.is_file():
                shutil.copy(file, copy / file.name)
        yield copy


Make = Callable[[Path, dict[str, Any]], Any]
CANDIDATES: dict[str, Make] = {
    "mirror": lambda folder, about: MirrorEngine(folder, about, "float32", "sdpa"),
    "eager, padded too": lambda folder, about: HfEngine(folder, about, "float32", "eager"),
    "one thread": lambda folder, about: OneThread(folder, about, "float32", "sdpa"),
    "recurrent rule": lambda folder, about: HfEngine(folder, about, "float32", "sdpa", patch=recurrent_rule, stress=False),
    "norms in float64": lambda folder, about: HfEngine(folder, about, "float32", "sdpa", patch=norms_in_float64),
    "down_proj in halves": lambda folder, about: HfEngine(folder, about, "float32", "sdpa", patch=down_proj_in_halves),
    "transformers 5.10.4": lambda folder, about: HfEngine(folder, about, "float32", "sdpa", str(python_of("5.10.4"))),
    "transformers 5.24.0": lambda folder, about: HfEngine(folder, about, "float32", "sdpa", str(python_of("5.24.0"))),
    "transformers 5.10.4 bfloat16": lambda folder, about: HfEngine(folder, about, "bfloat16", "eager", str(python_of("5.10.4"))),
    "eager bfloat16": lambda folder, about: HfEngine(folder, about, "bfloat16", "eager"),
    "mlx float32": lambda folder, about: MlxEngine(folder, about, "float32"),
    "mlx bfloat16": lambda folder, about: MlxEngine(folder, about, "bfloat16"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=["embedded", "smollm2"])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--thorough", action="store_true", help="only with every hypothesis on every sublayer")
    how.add_argument("--quick", action="store_true", help="only with hypotheses on suspects")
    parser.add_argument("--only", help="candidates whose name has this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    ways = [True] if options.thorough else [False] if options.quick else [False, True]
    rows: list[dict[str, Any]] = []
    print(f"{'checkpoint':10} {'candidate':28} {'hypotheses':10} {'verdict':10} {'floors':>6}  worst at")
    for name in options.model or ["embedded", "smollm2"]:
        folder = hub.resolve(None if name == "embedded" else checkpoint(name))
        for candidate, make in CANDIDATES.items():
            if options.only and options.only not in candidate:
                continue
            with as_mlx_reads_it(folder) as seen:
                about = _core.Mirror.open(str(seen)).describe()
                if candidate == "recurrent rule" and "linear_attention" not in about["layer_types"]:
                    continue
                for thorough in ways:
                    row = {"checkpoint": name, "candidate": candidate, "thorough": thorough}
                    rows.append({**row, **one(seen, about, make, thorough)})
                    print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    bad = sum(row["exit_code"] != 0 or bool(row["causes"]) for row in rows)
    print(f"{len(rows) - bad} passed, {bad} failed")
    return int(bad > 0)


def one(folder: Path, about: dict[str, Any], make: Make, thorough: bool) -> dict[str, Any]:
    started = time.perf_counter()
    forwards = inputs.default_inputs(about["vocab"], about["mrope"]) + ten_splits(about["vocab"])
    if thorough:
        forwards = [f for f in forwards if f.name in SOME]
    stated = inputs.to_json(forwards)
    engine = make(folder, about)
    found = bisection.bisect(folder, engine, dtype=engine.dtype, inputs=stated, thorough=thorough)
    judged = [d for d in found.data["drift"] if d["injected"] is not None]
    worst = max(judged, key=lambda d: d["injected"] / d["floor"])
    return {
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "floors": worst["injected"] / worst["floor"],
        "point": worst["point"],
        "input": worst["input"],
        "faults": [f"{f['side']} {f['point']} {f['input']} {f['value']} {f['ratio']}" for f in found.faults],
        "causes": [
            cause for cause in [*(f["cause"] for f in found.faults), *found.data["notes"]] if cause and cause["hypothesis"]
        ],
        "notes": found.data["notes"],
        "failed": found.data["pedigree"]["failed"],
        "seconds": round(time.perf_counter() - started, 1),
    }


def line(row: dict[str, Any]) -> str:
    which = "every" if row["thorough"] else "suspects"
    text = f"{row['checkpoint']:10} {row['candidate']:28} {which:10} {row['verdict']:10} {row['floors']:6.2f}  {row['point']} {row['input']}"
    return "\n  ".join([text, *row["faults"], *(f"note: {note}" for note in row["notes"])])


if __name__ == "__main__":
    sys.exit(main())
