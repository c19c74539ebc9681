"""Stress inputs for candidates that can be called: what normal activations hide. Every sublayer gets them.

- every norm's own recorded input times 1e-3: its epsilon
- a checkpoint whose q and k are scaled by 0.02 in the linear layers and 1e-3 before the norms of full attention: the epsilons
  of l2norm, q_norm and k_norm
- a checkpoint with strong decay and small values: the state's arithmetic, the gated norm's epsilon
- equal tokens, positions from 100000, lengths across the chunk's edge, states handed over
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from . import inputs as given
from .engines import Recorded
from .inputs import Forward
from .native import _core
from .operations import submodule
from .traces import Recording

SMALL_NORM, SMALL_QK, SMALL_FULL, SMALL_VALUE, DECAY = 1e-3, 0.02, 1e-3, 1e-2, 2.0
Judge = Callable[[Path, _core.Trace], dict[str, Any]]
Scale = Callable[[str, torch.Tensor, int], torch.Tensor]  # (parameter, value, rows of in_proj_qkv that are q and k)


def forwards(vocab: int, mrope: bool, chosen: list[Forward]) -> list[Forward]:
    """Inputs beside the chosen ones."""
    known = {f.name for f in chosen}
    source = [f for f in given.default_inputs(vocab, mrope) if f.name in ("len65", "split64_86.0", "split64_86.1")]
    extra = [
        Forward("equal130", torch.full((1, 130), 7 % vocab)),
        Forward("from100000", source[0].ids[:, :20], torch.arange(100000, 100020)[None]),
    ]
    return [f for f in source if f.name not in known and (f.past is None or f.past not in known)] + extra


def small_norm_inputs(model: Any, recorded: Recorded, layers: int) -> _core.Trace | None:
    """Each norm called once on its own recorded input, scaled."""
    trace = recorded.trace
    longest = max(trace.forwards, key=lambda f: f["ids"].numel())
    forward = Forward("small_norm_input", longest["ids"], longest["positions"], longest["mask"])
    if longest["past"] is not None:  # its mask covers the cache: a trace of its own begins afresh
        forward = Forward(forward.name, longest["ids"])
    recording = Recording(trace.dtype, trace.attn, trace.variant, [forward])
    recording.forward = forward.name
    paths = [f"model.layers.{i}.{name}" for i in range(layers) for name in ("input_layernorm", "post_attention_layernorm")]
    called = 0
    for path in [*paths, "model.norm"]:
        module = submodule(model, path)
        x = trace.tensor(longest["name"], f"{path}.input") if trace.promised(longest["name"], f"{path}.input") else None
        if module is None or x is None:
            continue
        small = x * SMALL_NORM
        with torch.no_grad():
            y = module(small.clone())
        if isinstance(y, torch.Tensor):
            recording.capture(f"{path}.input", small)
            recording.capture(f"{path}.output", y)
            called += 1
    return recording.trace if called else None


def edited_folder(source: Path, mirror: _core.Mirror, target: Path, edit: Scale, qk_rows: int) -> Path:
    """A one-file copy of the checkpoint with other weights, under its Hugging Face names."""
    target.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja") and not file.name.endswith(".index.json"):
            shutil.copy(file, target / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    prefix = "model.language_model." if "text_config" in config else "model."
    tied = bool(mirror.describe()["tied"])
    tensors = {}
    for name in mirror.parameters():
        if name == "lm_head.weight" and tied:
            continue
        stored = name.replace("model.", prefix, 1) if name.startswith("model.") else name
        tensors[stored] = edit(name, mirror.file_tensor(name), qk_rows).contiguous().clone()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def small_queries_and_keys(name: str, w: torch.Tensor, qk_rows: int) -> torch.Tensor:
    if name.endswith("in_proj_qkv.weight"):
        return torch.cat([w[:qk_rows] * SMALL_QK, w[qk_rows:]])
    return w * SMALL_FULL if name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight")) else w


def strong_decay(name: str, w: torch.Tensor, qk_rows: int) -> torch.Tensor:
    if name.endswith("in_proj_qkv.weight"):
        return torch.cat([w[:qk_rows], w[qk_rows:] * SMALL_VALUE])
    return w + DECAY if name.endswith("A_log") else w


def run(
    *,
    folder: Path,
    mirror: _core.Mirror,
    about: dict[str, Any],
    recorded: Recorded,
    fresh: Callable[[Path], Any],
    record: Callable[[Any, list[Forward]], _core.Trace],
    chosen: list[Forward],
    judge: Judge,
    say: Callable[[str], None],
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """-> (faults of every stress run, {candidate_calls, truth}). fresh: a candidate on another folder; record: its trace."""
    found: list[dict[str, Any]] = []
    cost = {"candidate_calls": 0, "truth": 0}

    def add(name: str, where: Path, trace: _core.Trace) -> None:
        result = judge(where, trace)
        cost["candidate_calls"] += len(trace.forwards)
        cost["truth"] += result["cost"]["truth"]
        for fault in result["faults"]:
            found.append(
                {**fault, "input": f"stress:{name}/{fault['input']}", "first_input": f"stress:{name}/{fault['first_input']}"}
            )

    say("stress: small inputs of norms")
    small = small_norm_inputs(recorded.model, recorded, len(about["layer_types"]))
    if small is not None:
        add("norm", folder, small)
    say("stress: equal tokens, large positions, chunk edges")
    add("inputs", folder, record(recorded.model, forwards(about["vocab"], about["mrope"], chosen)))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    qk_rows = 2 * text.get("linear_num_key_heads", 0) * text.get("linear_key_head_dim", 0)
    named = {f.name: f for f in given.default_inputs(about["vocab"], about["mrope"])}
    few = [named["len65"], named["step1"], named["step2"]]
    edits: dict[str, Scale] = {"small_qk": small_queries_and_keys}
    if "linear_attention" in about["layer_types"]:
        edits["strong_decay"] = strong_decay
    for name, edit in edits.items():
        say(f"stress: {name}")
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            other = edited_folder(folder, mirror, Path(scratch) / name, edit, qk_rows)
            add(name, other, record(fresh(other), few))
    return found, cost


def merged(faults: list[dict[str, Any]], stressed: list[dict[str, Any]], order: list[str]) -> list[dict[str, Any]]:
    """A sublayer that only stress shows is a fault too; a cause that only stress proves is that fault's."""
    for extra in stressed:
        at = next((f for f in faults if f["point"] == extra["point"] and f["side"] == extra["side"]), None)
        if at is None:
            faults.append(extra)
        elif at["cause"] is None and extra["cause"] is not None:
            at["cause"] = extra["cause"]
    return sorted(faults, key=lambda fault: order.index(fault["point"]))
