"""--stream: one layer's weights in memory at a time; the same verdict and the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from conftest import Tensors, edited, make_twin
from lockstep import exporting, streaming, verification
from lockstep.native import InputError, _core
from lockstep.reference import Reference

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
NATIVE = str(Path(sys.executable).with_name("lockstep-native"))


def wrong_epsilon(model: Any) -> None:
    model.model.layers[1].input_layernorm.eps = 1e-2


def same_but_for(data: dict[str, Any], other: dict[str, Any]) -> None:
    """Everything but what a streamed run says of itself."""
    for d in (data, other):
        d.pop("seconds"), d.pop("peak_rss_anon"), d["options"].pop("stream")
    assert data == other


@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
@pytest.mark.parametrize(
    "stored, dtype, tied", [("bfloat16", "float32", True), ("float32", "float32", False), ("float32", "bfloat16", False)]
)
def test_the_same_report(tmp_path: Path, family: str, stored: str, dtype: str, tied: bool) -> None:
    folder = make_twin(tmp_path, family, getattr(torch, stored), tie_word_embeddings=tied)
    streamed = lockstep.verify(folder, dtype=dtype, points="all", stream=True)
    assert streamed.verdict == "identical"
    assert streamed.data["peak_rss_anon"] > 50e6
    whole = lockstep.verify(folder, dtype=dtype, points="all")
    assert whole.data["peak_rss_anon"] is None
    same_but_for(streamed.data, whole.data)


def test_at_most_one_part_is_in_memory(qwen: Path) -> None:
    about = _core.Mirror.open(str(qwen)).describe()
    reference = Reference.load(qwen, about, "bfloat16", "sdpa", stream=True)
    held: list[set[str]] = []

    def note(*_: object) -> None:
        held.append({n.rpartition(".layers.")[2].split(".")[0] for n, p in reference.model.named_parameters() if not p.is_meta})

    for layer in reference.model.model.layers:
        layer.register_forward_hook(note)
    assert all(p.is_meta for p in reference.model.parameters())
    names = [name for name, _ in reference.parameters()]
    assert sorted(names) == sorted(_core.Mirror.open(str(qwen)).parameters())
    hf = reference.model(input_ids=torch.tensor([[1, 2, 3]]))
    assert held == [{"0"}, {"1"}, {"2"}, {"3"}]
    assert all(p.is_meta for p in reference.model.parameters())
    assert hf.logits.dtype == torch.bfloat16


def test_a_faulty_weight_of_the_other_folder_is_red(qwen: Path, tmp_path: Path) -> None:
    def fault(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"][3, 4] += 0.01

    other = edited(qwen, tmp_path / "other", fault)
    streamed = lockstep.verify(qwen, mirror=other, stream=True)
    assert streamed.first and streamed.first["point"] == "model.layers.1.mlp.output"
    same_but_for(streamed.data, lockstep.verify(qwen, mirror=other).data)


def test_a_reference_that_is_filled_wrongly_is_red(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once provenance has seen every parameter, only the later fills are wrong: lockstep and the last look say so."""
    read, fills = streaming.Streamed._read, {"n": 0}

    def wrong(self: streaming.Streamed, parameter: str, empty: torch.Tensor) -> torch.Tensor:
        value = read(self, parameter, empty)
        if parameter == "model.layers.2.mlp.up_proj.weight":
            fills["n"] += 1
            if fills["n"] > 3:
                value = value.clone()
                value[0, 0] += 1
        return value

    monkeypatch.setattr(streaming.Streamed, "_read", wrong)
    found = lockstep.verify(qwen, stream=True)
    assert found.exit_code in (1, 2)
    assert [d["tensor"] for d in found.legs["provenance"]["differing"]] == ["model.layers.2.mlp.up_proj.weight"]
    assert any(p["point"] == "model.layers.2.mlp.output" and p["verdict"] == "deviates" for p in found.points)


def test_a_head_that_changed_is_not_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror uses the reference's cast of the head only while it is the file's."""
    folder = make_twin(tmp_path, "qwen3_5", torch.bfloat16)
    read, fills = streaming.Streamed._read, {"n": 0}

    def wrong(self: streaming.Streamed, parameter: str, empty: torch.Tensor) -> torch.Tensor:
        value = read(self, parameter, empty)
        if parameter == streaming.HEAD:
            fills["n"] += 1
            if fills["n"] > 1:
                value = value.clone()
                value[5] += 1
        return value

    monkeypatch.setattr(streaming.Streamed, "_read", wrong)
    found = lockstep.verify(folder, stream=True)
    assert found.exit_code in (1, 2)
    assert {p["verdict"] for p in found.points if p["point"] == "lm_head.output"} == {"deviates"}


def test_rounding_is_judged_from_a_file(qwen: Path, tmp_path: Path) -> None:
    """Two folders whose bits differ: both recordings are spilled, and the local check reads them there."""

    def barely(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"] *= 1 + 2**-22

    other = edited(qwen, tmp_path / "other", barely)
    streamed = lockstep.verify(qwen, mirror=other, accept="rounding", stream=True)
    assert any(p["ratio"] is not None for p in streamed.points)
    same_but_for(streamed.data, lockstep.verify(qwen, mirror=other, accept="rounding").data)


def test_spill_keeps_what_it_was_given() -> None:
    spill = streaming.Spill()
    given = [torch.randn(3, 5), torch.randn(7).bfloat16(), torch.arange(4), torch.randn(2, 0), torch.randn(4, 6).T]
    kept = [spill(x) for x in given]
    copies = [x.clone() for x in given]
    for x in given:
        x.zero_()
    assert all(_core.same_bits(k, c) for k, c in zip(kept, copies, strict=True))


def test_spill_goes_on_in_another_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming.Spill, "CHUNK", 4096)
    spill = streaming.Spill()
    given = [torch.randn(n) for n in (500, 900, 3000, 10)]
    kept = [spill(x) for x in given]
    assert all(_core.same_bits(k, x) for k, x in zip(kept, given, strict=True))


def test_bisect_by_trace(qwen: Path, tmp_path: Path) -> None:
    file = tmp_path / "candidate.trace"
    lockstep.trace(file, qwen, points="all", patch=wrong_epsilon)
    streamed = lockstep.bisect(qwen, str(file), stream=True)
    whole = lockstep.bisect(qwen, str(file))
    assert streamed.exit_code == 1
    for data in (streamed.data, whole.data):
        data.pop("seconds")
    assert streamed.data == whole.data
    with pytest.raises(InputError, match="--stream: expected a trace file"):
        lockstep.bisect(qwen, "mirror", stream=True)


def test_export_check_and_replay(qwen: Path, tmp_path: Path) -> None:
    out, golden = tmp_path / "out", tmp_path / "golden.trace"
    exported = lockstep.export(qwen, out, stream=True)
    assert exported and exported.data["source"]["options"]["stream"]
    lockstep.trace(golden, qwen, golden=True)
    found = exporting.check(out, source=qwen, replay=golden, stream=True)
    assert (found["exit_code"], found["replay"]["verdict"]) == (0, "identical")
    done = subprocess.run([NATIVE, "verify", str(qwen), "--golden", str(golden), "--stream"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1][:17]) == (0, "passes: identical")


def test_patch_is_refused(qwen: Path) -> None:
    with pytest.raises(InputError, match="stream and patch"):
        lockstep.verify(qwen, stream=True, patch=lambda model: model)


def test_command_line(qwen: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [LOCKSTEP, "verify", str(qwen), "--stream", "--quiet", "--json", str(report)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0
    data = json.loads(report.read_text())
    assert f"peak RssAnon {data['peak_rss_anon'] / 1e6:,.0f} MB (sampled)" in done.stdout
    assert data["options"]["stream"]


def test_peak_memory_is_seen() -> None:
    before = streaming.rss_anon()
    with streaming.PeakMemory() as memory:
        block = torch.ones(50_000_000)
        assert float(block[-1]) == 1
        while memory.peak < before + 190e6:  # ends as soon as it has been sampled
            pass
        del block
    assert before + 190e6 < memory.peak < before + 400e6


def test_report_says_nothing_of_memory_without() -> None:
    assert verification.verify().data["peak_rss_anon"] is None
