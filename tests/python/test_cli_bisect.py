"""bisect, trace, compare and import-trace as commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from test_cli import refusal, run

FORK = """
from transformers import Qwen3_5ForCausalLM

def load(folder, dtype):
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=dtype)
    norm = model.model.layers[5].input_layernorm
    norm.eps = 1e-5
    return model
"""
IDS = ",".join(str(i) for i in range(3, 43))


def test_a_fork_is_told_where_it_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "my fork.py").write_text(FORK)
    report, junit = tmp_path / "found.json", tmp_path / "found.xml"
    done = run("bisect", "--candidate", f"{tmp_path}/my fork.py:load", "--ids", IDS, "--json", str(report), "--junit", str(junit))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "lockstep: local check: lm_head" in done.stderr
    assert "model.layers.5.input_layernorm (candidate): deviates" in done.stdout
    assert re.search(r"operation add \(number \d+\) at .*modeling_qwen3_5.py:\d+", done.stdout)
    assert re.search(r"cause: norm epsilon: rms_norm_eps (9\.99\d*e-06|1\.?0*\d*e-05) \+- \S+, config 1e-06", done.stdout)
    assert re.search(r"fails: deviates, 1 faulty sublayer in \d+\.\d s$", done.stdout.rstrip())
    data = json.loads(report.read_text())
    assert list(data)[:6] == ["format_version", "command", "verdict", "model", "pedigree", "seconds"]
    (fault,) = data["faults"]
    assert {"point", "side", "input", "first_input", "value", "operation", "source", "cause", "ratio"} <= set(fault)
    assert {"hypothesis", "class", "alpha", "alpha_error", "parameter", "index", "estimate", "estimate_error", "also"} <= set(
        fault["cause"]
    )
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), [c.get("name") for c in suite if len(c)]) == ("1", ["model.layers.5.input_layernorm"])


def test_traces_are_written_compared_and_imported(tmp_path: Path) -> None:
    hf, mirror = tmp_path / "hf.trace", tmp_path / "mirror.trace"
    for file, source in ((hf, "hf"), (mirror, "mirror")):
        done = run("trace", "-o", str(file), "--source", source, "--ids", "1,2,3", "--quiet")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{file}: ")
    done = run("compare", str(hf), str(mirror), "--bitwise")
    assert done.returncode == 0, done.stderr
    assert "passes: identical" in done.stdout
    assert not list(tmp_path.glob(".*"))  # no temporary file is left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bisect", "--candidate", "nothing"],
            "expected mirror, hf, hf:attn=...,dtype=...,python=..., file.py:factory, mlx, or a trace file",
        ),
        (["bisect", "--candidate", "hf:attn=flash"], "attn 'flash': expected one of sdpa, eager"),
        (["bisect", "--candidate", "hf:python=/no/such"], "/no/such: expected a python program"),
        (["bisect", "--candidate", "no.py:load"], "no.py: no such file"),
        (["bisect", "--steps", "0"], "--steps 0: expected 1 to 10000"),
        (["bisect", "--map", "x.json"], "only a file.py:factory candidate has names to map"),
        (["compare", "a.trace", "b.trace"], "a.trace"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)
