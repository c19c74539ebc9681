"""lockstep-native export, compare and bisect: the same jobs as the commands in Python, with the same findings."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from rich.console import Console

import lockstep
from conftest import Tensors, edited, ids_forward, make_twin
from lockstep import comparison, exporting
from lockstep.importing import import_trace
from lockstep.inputs import default_inputs
from lockstep.native import _core
from lockstep.report import findings

NATIVE = Path(sys.executable).with_name("lockstep-native")


def native(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NATIVE, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def wrong_epsilon(model: Any) -> None:
    model.model.layers[1].input_layernorm.eps = 1e-2


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(tmp_path_factory.mktemp("qwen"), "qwen3_5", torch.bfloat16)


@pytest.fixture(scope="module")
def golden(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "golden.trace"
    lockstep.trace(path, qwen, golden=True)
    return path


@pytest.fixture(scope="module")
def right(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("right") / "right.trace"
    lockstep.trace(path, qwen, points="all")
    return path


@pytest.fixture(scope="module")
def wrong(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wrong") / "wrong.trace"
    lockstep.trace(path, qwen, points="all", patch=wrong_epsilon)
    return path


@pytest.mark.parametrize("vocab", [2, 97, 512, 32000, 49152, 65536, 151936, 248320])
def test_len130_is_the_default_input(vocab: int) -> None:
    expected = {f.name: f.ids for f in default_inputs(vocab, False)}["len130"]
    assert torch.equal(_core.len130_ids(vocab), expected)


@pytest.mark.parametrize(
    "judged, options", [("right", {}), ("right", {"bitwise": True}), ("wrong", {}), ("wrong", {"atol": 10.0})]
)
def test_compare(right: Path, wrong: Path, tmp_path: Path, judged: str, options: dict[str, Any]) -> None:
    other = {"right": right, "wrong": wrong}[judged]
    expected = comparison.compare(right, other, **options)
    flags = [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]
    done = native("compare", right, other, *flags, "--json", tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert list(found)[:6] == ["format_version", "command", "verdict", "model", "pedigree", "seconds"]
    assert found["seconds"].pop("total") >= 0
    assert {**found, "seconds": None} == {**expected, "seconds": None}
    assert done.returncode == expected["exit_code"] == int(judged == "wrong" and not options)
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{'fails' if done.returncode else 'passes'}: {expected['verdict']}"
    assert any("model.layers.1.input_layernorm.output (len65): deviates" in line for line in lines) == bool(done.returncode)


def test_compare_refuses_other_inputs(qwen: Path, right: Path, tmp_path: Path) -> None:
    lockstep.trace(tmp_path / "few.trace", qwen, inputs=[ids_forward(1, 2, 3, name="len3")])
    done = native("compare", right, tmp_path / "few.trace")
    assert done.returncode == 2
    assert "input 'len3': ids of" in done.stderr
    assert native("compare", right, right, "--atol=-1").returncode == 2
    assert native("compare", right, right, "--json", right).returncode == 2


@pytest.mark.parametrize("points", ["sublayer", "all"])
@pytest.mark.parametrize("with_reference", [False, True])
def test_bisect(qwen: Path, right: Path, wrong: Path, tmp_path: Path, points: str, with_reference: bool) -> None:
    reference = ["--reference", right] if with_reference else []
    files = ["--json", tmp_path / "found.json", "--junit", tmp_path / "found.xml"]
    done = native("bisect", qwen, "--candidate", wrong, "--points", points, *reference, *files)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    expected = lockstep.bisect(qwen, str(wrong), points=points).data  # Hugging Face is recorded, as the reference was
    if with_reference:
        for key in ("verdict", "exit_code", "model", "drift", "faults", "notes", "coverage"):
            assert found[key] == expected[key], key
        assert list(found) == list(expected) or set(found) == set(expected)
    else:  # nothing to measure what is inherited from
        mine = [f for f in expected["faults"] if f["side"] == "candidate"]
        assert found["faults"] == mine
        assert [{**d, "inherited": None} for d in expected["drift"]] == found["drift"]
    assert [(f["point"], f["cause"]["hypothesis"]) for f in found["faults"]] == [
        ("model.layers.1.input_layernorm", "norm epsilon")
    ]
    assert "  cause: norm epsilon: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("fails: deviates, 1 faulty sublayer in ")
    assert 'failures="1"' in (tmp_path / "found.xml").read_text()


def test_bisect_passes_what_is_right(qwen: Path, right: Path) -> None:
    done = native("bisect", qwen, "--candidate", right, "--reference", right, "--quiet")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("passes: identical, 0 faulty sublayers in ")
    assert native("bisect", qwen, "--candidate", right, "--quiet").stdout.startswith("passes: rounding, 0 faulty")


def test_bisect_says_what_it_cannot_judge(qwen: Path, golden: Path, right: Path, tmp_path: Path) -> None:
    logits, _ = lockstep.Mirror.load(qwen).forward(torch.tensor([[5, 6, 7, 8]]))
    np.savez(tmp_path / "logits.npz", logits=logits[0].numpy(), ids=np.array([5, 6, 7, 8]))
    import_trace(tmp_path / "logits.npz", tmp_path / "logits.trace")
    done = native("bisect", qwen, "--candidate", tmp_path / "logits.trace")
    assert done.returncode == 2
    assert "nothing could be judged" in done.stderr
    done = native("bisect", qwen, "--candidate", right, "--reference", golden)
    assert (done.returncode, "expected traces of the same inputs" in done.stderr) == (2, True)
    assert native("bisect", qwen, "--candidate", tmp_path / "absent.trace").returncode == 2
    assert native("bisect", qwen, "--candidate", right, "--points", "layer").returncode == 2


def test_export(qwen: Path, golden: Path, tmp_path: Path) -> None:
    out, theirs = tmp_path / "an export", tmp_path / "theirs"
    done = native("export", qwen, out, "--golden", golden, "--max-shard-size", "40KB", "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.stdout.splitlines()[-1].endswith(f"digest {report['digest']}")
    found = exporting.check(out, source=qwen, digest=report["digest"], replay=golden)
    assert (found["exit_code"], found["verdict"]) == (0, "identical")
    assert lockstep.export(qwen, theirs, max_shard_size="40KB")
    for file in theirs.iterdir():
        if not file.name.startswith("lockstep."):
            assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    verification = json.loads((out / "lockstep.manifest.json").read_text())["verification"]
    assert verification["reference"] == f"a golden trace of transformers {report['pedigree']['transformers']}"
    assert (verification["verdict"], verification["legs"]["written"]["lockstep"]) == ("identical", "identical")
    assert native("export", qwen, out, "--golden", golden).returncode == 2  # it is not empty


def test_export_refuses_what_deviates(qwen: Path, golden: Path, tmp_path: Path) -> None:
    def fault(tensors: Tensors) -> None:
        tensors["model.layers.2.mlp.up_proj.weight"][0, 0] += 1

    faulty = edited(qwen, tmp_path / "faulty", fault)
    done = native("export", faulty, tmp_path / "out", "--golden", golden, "--json", tmp_path / "report.json")
    assert done.returncode == 1
    assert done.stdout.startswith("not exported: the source checkpoint does not pass: model.layers.2.mlp.output")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["faulty", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["written"] is None


def test_export_converts_what_the_trace_was_run_in(qwen: Path, golden: Path, tmp_path: Path) -> None:
    """A float32 trace of a bfloat16 model: written as float32 it computes the same bits; as float16 it does not."""
    done = native("export", qwen, tmp_path / "float32", "--golden", golden, "--dtype", "float32")
    assert done.returncode == 0, done.stdout + done.stderr
    assert exporting.check(tmp_path / "float32", source=qwen, replay=golden)["exit_code"] == 0

    def beyond(tensors: Tensors) -> None:
        tensors["model.layers.2.mlp.up_proj.weight"].mul_(2**-20)  # what float16 rounds

    small = edited(qwen, tmp_path / "small", beyond)
    lockstep.trace(tmp_path / "small.trace", small, golden=True)
    done = native("export", small, tmp_path / "float16", "--golden", tmp_path / "small.trace", "--dtype", "float16")
    assert done.returncode == 1
    assert done.stdout.startswith("not exported: the written checkpoint does not pass: ")
    assert not (tmp_path / "float16").exists()


def test_export_refuses_what_nobody_ran(qwen: Path, tmp_path: Path) -> None:
    lockstep.trace(tmp_path / "few.trace", qwen, golden=True, inputs=[ids_forward(1, 2, 3)])
    done = native("export", qwen, tmp_path / "out", "--golden", tmp_path / "few.trace")
    assert done.returncode == 2
    assert done.stdout.startswith("not exported: the golden trace does not exercise ")
    assert not (tmp_path / "out").exists()


def test_a_nan_that_no_sublayer_made_is_said(qwen: Path, tmp_path: Path) -> None:
    """It came in with the embedding: nobody is at fault, and nothing passes. One token: 0 x NaN reaches earlier ones."""
    nan = edited(qwen, tmp_path / "nan", lambda t: t["model.embed_tokens.weight"][5].fill_(float("nan")))
    lockstep.trace(tmp_path / "nan.trace", nan, ids="5", source="mirror")
    said = re.compile(r"non_finite: [1-9]\d* rows hold a NaN that came from above: no sublayer made it")
    found = lockstep.bisect(nan, str(tmp_path / "nan.trace")).data
    assert (found["exit_code"], found["verdict"], found["faults"]) == (1, "non_finite", [])
    console = Console(record=True, width=200, file=io.StringIO())
    findings.show(found, console)
    done = native("bisect", nan, "--candidate", tmp_path / "nan.trace", "--junit", tmp_path / "nan.xml")
    assert done.returncode == 1, done.stderr
    for shown in (console.export_text(), done.stdout):
        assert said.search(shown), shown
    for xml in (findings.junit_text(found), (tmp_path / "nan.xml").read_text()):
        failed = [case.get("name") for case in ET.fromstring(xml) if len(case) and case.get("classname") == "bisect"]
        assert failed == ["finite"]
