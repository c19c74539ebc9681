"""The pytest plugin as another repository meets it: the README's own files and lines, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from conftest import edited, make_twin
from test_install import ROOT, blocks

BIN = Path(sys.executable).parent
DOWN = "model.layers.1.mlp.down_proj.weight"
WORKFLOW = blocks("In GitHub Actions", "yaml")[0]


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As a user's shell with the environment active."""
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    env |= {"PATH": f"{BIN}:{env['PATH']}", "HF_HUB_OFFLINE": "1", "PY_COLORS": "0", "COLUMNS": "300", **variables}
    return subprocess.run(["bash", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def failures(junit: Path) -> dict[str, str]:
    """test -> what it says, for each that does not pass."""
    cases = ET.parse(junit).getroot().iter("testcase")
    return {
        case.get("name", ""): found.get("message", "") for case in cases for found in case if found.tag in ("failure", "error")
    }


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's repository: its test file, a MODEL, and the golden trace that its first line records."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_model.py").write_text(blocks("In your own pytest", "python")[0])
    make_twin(folder / "MODEL", "llama")
    edited(folder / "MODEL", folder / "changed", lambda t: t[DOWN].__setitem__((3, 5), t[DOWN][3, 5] + 0.1))
    record = blocks("In your own pytest", "sh")[0].splitlines()[0]
    done = shell(record, folder)
    assert done.returncode == 0 and record.startswith("lockstep trace MODEL "), done.stderr
    return folder


def guard() -> str:
    (line,) = blocks("In your own pytest", "sh")[0].splitlines()[1:]
    return line


def test_the_sample_passes_and_says_what_it_verified(sample: Path) -> None:
    done = shell(guard(), sample)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    lines = [re.sub(r"\d+ points", "N points", line) for line in done.stdout.splitlines() if line.startswith("lockstep: ")]
    assert lines == [
        "lockstep: MODEL, float32: identical, N points",
        "lockstep: MODEL, golden.trace, float32: identical, N points",
    ]


def test_a_changed_weight_makes_the_sample_fail_as_the_readme_shows(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "MODEL").symlink_to(sample / "changed")
    (tmp_path / "tests").symlink_to(sample / "tests")
    done = shell(guard(), tmp_path)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout
    shown = blocks("In your own pytest", "text")[0].splitlines()
    for line in shown:  # numbers and digests are this machine's, and … leaves something out
        pattern = "".join(
            ".*" if part == "…" else r"[\d.e+-]+" if part[0].isdigit() else re.escape(part)
            for part in re.findall(r"…|\b[0-9a-f]{6}(?=…)|\d[\d.]*(?:e[+-]\d+)?|\D", re.sub(r"\b[0-9a-f]{6}…", "…", line))
        )
        assert re.search(f"^{pattern}$", done.stdout, re.M), f"{line}\n{done.stdout}"
    assert len(shown) == 4 and "pytest_plugin.py" not in done.stdout


OTHERS = """
import torch

def test_attention_scale(lockstep_verify):
    def patch(model):
        model.model.layers[2].self_attn.scaling *= 1.001
    lockstep_verify(patch=patch, points="all")

def test_a_reference_that_is_not_repeatable(lockstep_verify):
    def patch(model):
        forward = model.lm_head.forward
        model.lm_head.forward = lambda x: forward(x) + torch.rand(1)
    lockstep_verify(patch=patch)

def test_a_report_is_returned(lockstep_model, lockstep_verify):
    report = lockstep_verify(lockstep_model, dtype="bfloat16", ids=[5, 6])
    assert (report.verdict, report.data["options"]["dtype"]) == ("identical", "bfloat16")

def test_unknown_dtype(lockstep_verify):
    lockstep_verify(dtype="float8")

def test_no_such_option(lockstep_verify):
    lockstep_verify(golden="tests/golden.trace", dtype="float32")

def test_golden_gate(lockstep_verify):
    lockstep_verify(golden="tests/golden.trace", accept="anything")

def test_no_such_trace(lockstep_verify):
    lockstep_verify(golden="nowhere.trace")

def test_no_such_model(lockstep_verify):
    lockstep_verify("./nowhere")
"""


def test_each_fault_is_one_message(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_faults.py").write_text(OTHERS)
    (tmp_path / "tests" / "golden.trace").symlink_to(sample / "tests" / "golden.trace")
    (tmp_path / "M").symlink_to(sample / "MODEL")
    done = shell("pytest --lockstep-model M --junitxml=r.xml", tmp_path)
    found = {name.removesuffix("[M]"): message.splitlines() for name, message in failures(tmp_path / "r.xml").items()}
    assert done.returncode == 1 and "7 failed, 1 passed" in done.stdout, done.stdout

    one, why = found.pop("test_attention_scale")
    assert re.fullmatch(
        r"Failed: lockstep: M, float32, patched: deviates, \d+ points, first (model.layers.2.self_attn@context \(len2\))", one
    )
    assert re.search(
        r"^first model.layers.2.self_attn@context \(len2\): deviates; .* x the noise floor in the mirror; "
        r"[\d.e+]+ x the noise floor in the reference$", why,
    )  # fmt: skip
    one, why, first = found.pop("test_a_reference_that_is_not_repeatable")
    assert one.startswith("Failed: lockstep: M, float32, patched: could not judge; deviates, ")
    assert re.fullmatch(
        r"pedigree.failed: repeatable, hooks_transparent.*; a reference that fails its own invariants proves nothing", why
    )
    assert first.startswith("first lm_head.output (len1): deviates; ")
    assert found == {
        "test_unknown_dtype": [
            "Failed: lockstep: M: could not judge: --dtype 'float8': expected one of float32, bfloat16, float16"
        ],
        "test_no_such_option": ["TypeError: replay() got an unexpected keyword argument 'dtype'"],
        "test_golden_gate": ["Failed: lockstep: M, golden.trace: could not judge: --accept 'anything': expected rounding"],
        "test_no_such_trace": [
            "Failed: lockstep: M, nowhere.trace: could not judge: nowhere.trace: cannot be opened: No such file or directory"
        ],
        "test_no_such_model": [
            "Failed: lockstep: ./nowhere: could not judge: ./nowhere: no such folder, and not a hub id (org/name)"
        ],
    }
    assert "pytest_plugin.py" not in done.stdout  # no frame of ours
    properties = {p.get("value", "") for p in ET.parse(tmp_path / "r.xml").getroot().iter("property")}
    assert {f"lockstep: {p}" for p in properties} == {x for x in done.stdout.splitlines() if x.startswith("lockstep: ")}
    assert any(p.startswith("M, bfloat16: identical, ") and "; not exercised: " in p for p in properties)


def test_without_a_model_the_sample_fails(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_model.py").write_text(
        f"{blocks('In your own pytest', 'python')[0]}\ndef test_its_name(lockstep_model): pass\n"
    )
    done = shell("pytest --junitxml=r.xml", tmp_path)
    assert done.returncode == 1 and "2 failed, 1 error" in done.stdout, done.stdout
    for message in failures(tmp_path / "r.xml").values():
        assert "lockstep: no model to guard; give --lockstep-model MODEL" in message
    done = shell('pytest --lockstep-model "$NOT_SET"', tmp_path)
    assert done.returncode == 4
    assert done.stderr.strip() == "ERROR: --lockstep-model: an empty name; expected a checkpoint folder or a hub id"


MODELS = """
def test_a(lockstep_model): assert print("a", lockstep_model) is None
def test_b(lockstep_verify): pass
def test_c(): pass
"""


def test_every_model_is_guarded(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "tests" / "test_models.py").write_text(MODELS)

    def names(command: str) -> list[str]:
        done = shell(command, tmp_path / "tests")
        assert done.returncode == 0, done.stdout
        tests = re.findall(r"::(test_\S+) PASSED", done.stdout)
        return sorted(tests) + [line for line in done.stdout.splitlines() if line.startswith("a ")]

    one = "pytest -v -rP --lockstep-model org/name"
    assert names(one) == ["test_a[org/name]", "test_b[org/name]", "test_c", "a org/name"]
    two = names(f"{one} --lockstep-model ../models --lockstep-model org/name")
    assert two[:5] == ["test_a[../models]", "test_a[org/name]", "test_b[../models]", "test_b[org/name]", "test_c"]
    assert two[5:] == ["a org/name", f"a {tmp_path}/tests/../models"]
    (tmp_path / "pytest.ini").write_text("[pytest]\nlockstep_model = models\n")  # beside the file, wherever pytest starts
    assert names("pytest -v -rP") == ["test_a[models]", "test_b[models]", "test_c", f"a {tmp_path}/models"]
    assert names(one)[-1] == "a org/name"


UNUSED = """
import sys

def heavy():
    return {"torch", "transformers", "numpy", "lockstep._core"} & set(sys.modules)

def test_unused():
    assert "lockstep.pytest_plugin" in sys.modules and not heavy()

def test_used(lockstep_verify):
    lockstep_verify(ids=[5])

def test_seen():
    assert len(heavy()) == 4
"""


def test_a_plugin_that_nobody_uses_imports_nothing_heavy(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(UNUSED)
    done = shell(f"pytest --lockstep-model '{sample / 'MODEL'}'", tmp_path)
    assert done.returncode == 0, done.stdout


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command of a shell script that is ours or pytest's."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and Path(words[0]).name in ("lockstep", "lockstep-native", "pytest"):
            yield [Path(words[0]).name, *words[1:]]


def steps(workflow: str) -> list[str]:
    return [step["run"] for job in yaml.safe_load(workflow)["jobs"].values() for step in job["steps"] if "run" in step]


def unknown(scripts: list[str]) -> tuple[int, list[str]]:
    """How many options the scripts give to our commands and pytest, and those that the programs themselves do not list."""
    given = {
        (program if program == "pytest" else f"{program} {words[0]}", word.partition("=")[0])
        for script in scripts
        for program, *words in commands(script)
        for word in words
        if word.startswith("-")
    }
    helps = {command: shell(f"{command} --help", ROOT / "tests").stdout for command, _ in given}
    missing = [f"{c} {o}" for c, o in sorted(given) if not re.search(rf"(?<![\w-]){o}(?![\w-])", helps[c])]
    return len(given), missing


def test_every_option_of_the_pages_exists() -> None:
    scripts = [*steps(WORKFLOW), *blocks("In your own pytest", "sh")]
    assert unknown(scripts) == (6, [])
    for right, wrong, named in (
        ("--junit n", "--jnuit n", "lockstep-native verify --jnuit"),
        ("--lockstep-model", "--lockstep-mode", "pytest --lockstep-mode"),
        ("--golden -o", "--gold -o", "lockstep trace --gold"),
    ):
        assert unknown([script.replace(right, wrong) for script in scripts])[1] == [named]


def test_the_workflow_guards_the_sample(sample: Path, tmp_path: Path) -> None:
    """Its lines that verify, as they stand; a fault in the model turns each of them red."""
    for name in ("tests", "MODEL", "changed"):
        (tmp_path / name).symlink_to(sample / name)
    (tmp_path / "native" / "bin").mkdir(parents=True)
    (tmp_path / "native" / "bin" / "lockstep-native").symlink_to(BIN / "lockstep-native")
    lines = [line for line in steps(WORKFLOW) if list(commands(line))]
    assert [Path(line.split()[0]).name for line in lines] == ["pytest", "lockstep-native"]
    for model, code in (("MODEL", 0), ("changed", 1)):
        for line, junit in zip(lines, ("pytest.xml", "native.xml"), strict=True):
            done = shell(line, tmp_path, MODEL=model)
            assert done.returncode == code, done.stdout + done.stderr
            assert bool(failures(tmp_path / junit)) == (code == 1)
            (tmp_path / junit).unlink()


def test_the_workflow_installs_what_the_build_needs() -> None:
    """Packages and pins are those of scripts/setup and pyproject.toml, and torch comes before Lockstep."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runs = steps(WORKFLOW)
    setup = re.search(r"PACKAGES=\((.*?)\)", (ROOT / "scripts" / "setup").read_text(), re.S)
    assert setup is not None
    tests_only = {"ccache", "git", "python3-dev", "python3-venv", "libgtest-dev", "clang-format"}
    (apt,) = (line for line in runs if "apt-get install" in line)
    assert set(setup[1].split()) - tests_only <= set(apt.split())
    pip = [line for line in runs if line.startswith("pip install")]
    (torch,) = (need for need in project["build-system"]["requires"] if need.startswith("torch"))
    assert pip[0].split()[2] == torch and pip[-1].endswith(" ./lockstep")
    needs = {re.split("[>=]", need)[0] for need in project["build-system"]["requires"]} - {"torch"}
    assert needs < set(pip[1].split())
