"""The regression test over releases: what changed is named, and told from rounding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from lockstep.matrix import matrix
from lockstep.native import InputError
from lockstep.report import matrix as report_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from releases import python_of  # noqa: E402

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))

# A python whose transformers computes another thing in one sublayer.
CHANGED = """
import sys
sys.argv.pop(0)
import transformers.models.qwen3_5.modeling_qwen3_5 as m
forward, init = m.Qwen3_5MLP.forward, m.Qwen3_5DecoderLayer.__init__
def changed(self, x):
    y = forward(self, x)
    return y * {factor} if hasattr(self, "of_layer_2") else y
def marking(self, config, layer_idx):
    init(self, config, layer_idx)
    if layer_idx == 2:
        self.mlp.of_layer_2 = True
m.Qwen3_5MLP.forward, m.Qwen3_5DecoderLayer.__init__ = changed, marking
import runpy
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def changed_python(folder: Path, factor: str) -> Path:
    (folder / "changed.py").write_text(CHANGED.format(factor=factor))
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/changed.py" "{folder}/changed.py" "$@"\n')
    program.chmod(0o755)
    return program


def test_one_release_twice_is_identical(qwen: Path) -> None:
    data = matrix(
        qwen, [sys.executable, Path(sys.executable).parents[1]], dtypes=["float32", "bfloat16"], attns=["sdpa", "eager"]
    )
    assert (data["exit_code"], data["verdict"], len(data["pairs"])) == (0, "identical", 4)
    assert all(pair["changed"] == [] and pair["not_compared"] == [] and pair["points"] > 100 for pair in data["pairs"])
    (row, *_) = data["points"]
    assert set(row) == {"pair", "a", "b", "dtype", "attn", "point", "input", "max_abs", "floor", "ratio", "verdict"}
    assert {row["pair"] for row in data["points"]} == {0, 1, 2, 3}


def test_a_sublayer_that_changed_is_named_and_deviates(qwen: Path, tmp_path: Path) -> None:
    program = changed_python(tmp_path, "1.001")
    report, xml = tmp_path / "m.json", tmp_path / "m.xml"
    done = subprocess.run(
        [LOCKSTEP, "matrix", str(qwen), "--python", sys.executable, "--python", program, "--json", report, "--junit", xml],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    data = json.loads(report.read_text())
    (pair,) = data["pairs"]
    assert [c["sublayer"] for c in pair["changed"]] == ["model.layers.2.mlp"]
    assert pair["changed"][0]["first"] == "model.layers.2.mlp.output"
    row = next(r for r in data["points"] if r["point"] == "model.layers.2.mlp.output")
    assert row["verdict"] == "deviates" and row["ratio"] > 100 and row["max_abs"] > 0
    # What follows was given other bits, and is right on them.
    assert next(r for r in data["points"] if r["point"] == "model.layers.3.self_attn.output")["verdict"] == "rounding"
    assert "model.layers.2.mlp changed (first model.layers.2.mlp.output, len65)" in " ".join(done.stdout.split())
    failed = [c.get("name") for c in ET.parse(xml).getroot() if len(c)]
    assert failed == ["model.layers.2"]


def test_rounding_passes_unless_bits_are_asked_for(qwen: Path, tmp_path: Path) -> None:
    program = changed_python(tmp_path, "(1 + 2 ** -23)")
    data = matrix(qwen, [sys.executable, program])
    assert (data["exit_code"], data["verdict"]) == (0, "rounding")
    assert [c["sublayer"] for c in data["pairs"][0]["changed"]] == ["model.layers.2.mlp"]
    assert matrix(qwen, [sys.executable, program], bitwise=True)["exit_code"] == 1


@pytest.mark.parametrize(
    ("pythons", "more", "message"),
    [
        ([sys.executable], {}, "--python: expected at least two environments"),
        ([sys.executable, "nowhere"], {}, "--python nowhere: expected a virtual environment or its python program"),
        ([sys.executable] * 2, {"dtypes": ["int8"]}, "--dtype 'int8': expected one of"),
        ([sys.executable, "/bin/false"], {}, "/bin/false: exit code 1"),
    ],
)
def test_bad_input_is_one_sentence(qwen: Path, pythons: list[str], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        matrix(qwen, pythons, **more)
    assert str(caught.value).startswith(message)


@pytest.mark.full
def test_three_releases(embedded: Path) -> None:
    data = matrix(embedded, [python_of(release) for release in ("5.10.4", "5.18.0", "5.24.0")])
    first, second = data["pairs"]
    assert (first["a"], first["b"], first["verdict"]) == ("5.10.4", "5.18.0", "rounding")
    assert [c["sublayer"] for c in first["changed"]] == ["model.layers.0.linear_attn"]
    assert (second["a"], second["b"], second["verdict"], second["changed"]) == ("5.18.0", "5.24.0", "identical", [])


def test_three_environments_of_one_release_keep_their_columns(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a program is the one that is named, not one of its name in PATH."""
    changed_python(tmp_path, "1.001")
    monkeypatch.chdir(tmp_path)
    data = matrix(qwen, [sys.executable, sys.executable, "./python"])
    assert [pair["verdict"] for pair in data["pairs"]] == ["identical", "deviates"]
    suite = ET.fromstring(report_of.junit_text(data))
    failed = {str(case.get("classname")).split(".")[1] for case in suite if len(case)}
    assert failed == {"2"} and len(suite) == 2 * len({case.get("name") for case in suite})
    console = Console(record=True, width=200, file=io.StringIO())
    report_of.show(data, console)
    (row,) = (line for line in console.export_text().splitlines() if "model.layers.2 " in line)
    assert row.index("identical") < row.index("deviates")
