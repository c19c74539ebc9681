"""Golden traces: recorded from Hugging Face once, replayed by the program that needs no Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lockstep
from conftest import Tensors, edited, make_twin
from lockstep import LoadError, faults, trace_file
from lockstep.native import InputError, _core

NATIVE = Path(sys.executable).with_name("lockstep-native")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
DOWN = "model.layers.1.mlp.down_proj.weight"


def native(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """With an environment of its own: nothing in it leads to a Python."""
    env = {"PATH": "/nonexistent", "HOME": "/nonexistent", **environment}
    return subprocess.run([NATIVE, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=300)


@pytest.fixture(scope="module")
def golden(twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "a golden.trace"
    written = lockstep.trace(path, twin, golden=True)
    assert written["not_exercised"] == []
    return path


@pytest.fixture(scope="module")
def twin(request: pytest.FixtureRequest, qwen: Path) -> Path:
    return qwen


def changed(
    golden: Path, path: Path, tensors: Callable[[Tensors], Any] | None = None, manifest: Callable[[dict[str, Any]], Any] | None = None,
    sign: bool = True,
) -> Path:  # fmt: skip
    """As if it had been recorded so; sign=False: as if somebody had changed it since."""
    data = load_file(golden)
    with safe_open(golden, "pt") as file:
        stated = json.loads(file.metadata()["lockstep"])
    if tensors:
        tensors(data)
    if manifest:
        manifest(stated)
    text = json.dumps(stated)
    if sign and "golden" in stated:
        stated["golden"].update(tensors=trace_file.digests_of(data), digest=trace_file.UNSIGNED)
        text = trace_file.signed(json.dumps(stated))
    save_file(data, path, metadata={"lockstep": text})
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_every_dtype_and_attention_is_identical(twin: Path, tmp_path: Path, dtype: str, attn: str) -> None:
    lockstep.trace(tmp_path / "g.trace", twin, golden=True, dtype=dtype, attn=attn, points="all", threads=1)
    done = native("verify", twin, "--golden", tmp_path / "g.trace", "--bitwise", "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["verdict"], data["not_compared"]) == ("identical", [])
    assert data["legs"]["lockstep"]["identical"] == len(data["points"]) > 500
    assert data["legs"]["coverage"]["not_exercised"] == []
    assert list(data)[:1] and {"format_version", "command", "verdict", "model", "pedigree", "seconds"} <= set(data)


def test_the_embedded_checkpoint_by_both_commands(embedded: Path, tmp_path: Path) -> None:
    path = tmp_path / "g.trace"
    lockstep_command = [str(NATIVE.with_name("lockstep")), "trace", str(embedded), "--golden", "-o", str(path), "--quiet"]
    done = subprocess.run(lockstep_command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    done = native("verify", embedded, "--golden", path, "--junit", tmp_path / "j.xml")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[0].startswith("qwen3_5, 8 layers; golden trace of transformers 5.")
    assert done.stdout.splitlines()[-1].startswith("passes: identical in ")
    suite = ET.parse(tmp_path / "j.xml").getroot()
    assert suite.get("failures") == "0" and int(suite.get("tests", "0")) > 50
    quiet = native("verify", embedded, "--golden", path, "--quiet")
    assert quiet.stdout.startswith("passes: identical in ") and len(quiet.stdout.splitlines()) == 1


def test_a_fault_in_the_weights_is_red_at_its_tensor_and_its_layer(golden: Path, twin: Path, tmp_path: Path) -> None:
    folder = edited(twin, tmp_path / "x", lambda t: t[DOWN].__setitem__((3, 5), t[DOWN][3, 5] + 0.1))
    done = native("verify", folder, "--golden", golden, "--json", tmp_path / "r.json", "--junit", tmp_path / "j.xml")
    assert done.returncode == 1
    data = json.loads((tmp_path / "r.json").read_text())
    assert [d["tensor"] for d in data["legs"]["provenance"]["differing"]] == [DOWN]
    assert (data["first"]["point"], data["verdict"]) == ("model.layers.1.mlp.output", "deviates")
    assert f"  {DOWN}: reference " in done.stdout and "first model.layers.1.mlp.output (len65): deviates" in done.stdout
    failures = [(c.get("classname"), c.get("name")) for c in ET.parse(tmp_path / "j.xml").getroot() if len(c)]
    assert failures[:2] == [("provenance", "tensors"), ("lockstep.len65", "model.layers.1")]


def test_a_fault_in_the_recordings_is_red_at_its_point(golden: Path, twin: Path, tmp_path: Path) -> None:
    point = "pad2/model.layers.2.linear_attn.output"
    path = changed(golden, tmp_path / "g.trace", lambda t: t[point][0, 3].mul_(1.01))
    done = native("verify", twin, "--golden", path, "--json", tmp_path / "r.json")
    assert done.returncode == 1
    bad = [p for p in json.loads((tmp_path / "r.json").read_text())["points"] if p["verdict"] != "identical"]
    assert [(p["input"], p["point"], p["verdict"]) for p in bad] == [("pad2", "model.layers.2.linear_attn.output", "deviates")]
    assert bad[0]["ratio"] <= 2 < 1000 < bad[0]["reference_ratio"]
    assert " x the noise floor here; " in done.stdout and " x the noise floor in the trace" in done.stdout


@pytest.mark.parametrize(
    ("fault", "verdict"), [("removed", "missing"), ("nan", "non_finite"), ("shape", "shape"), ("dtype", "dtype"), ("added", "missing")]
)  # fmt: skip
def test_what_is_not_there_or_of_another_kind_has_its_verdict(
    golden: Path, twin: Path, tmp_path: Path, fault: str, verdict: str
) -> None:
    point = "from5000/model.layers.0.mlp.output"

    def edit(t: Tensors) -> None:
        if fault == "removed":
            t.pop(point)
        elif fault == "nan":
            t[point][0, 2, 3] = float("nan")
        elif fault == "shape":
            t[point] = t[point][:, 1:].clone()
        elif fault == "dtype":
            t[point] = t[point].half()
        else:
            t["from5000/extra"] = torch.ones(1)

    done = native(
        "verify", twin, "--golden", changed(golden, tmp_path / "g", edit), "--json", tmp_path / "r.json", "--accept", "rounding"
    )
    assert done.returncode == 1
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == verdict


def test_on_another_cpu_it_is_rounding_and_says_why(golden: Path, twin: Path, embedded: Path, tmp_path: Path) -> None:
    path = tmp_path / "g.trace"
    lockstep.trace(path, embedded, golden=True)
    done = native("verify", embedded, "--golden", path, "--json", tmp_path / "r.json", **AVX2)
    data = json.loads((tmp_path / "r.json").read_text())
    here = torch.backends.cpu.get_cpu_capability()
    if here == "AVX2":
        assert (done.returncode, data["why"]) == (0, None)
        return
    assert done.returncode == 0, done.stdout
    assert data["verdict"] == "rounding"
    assert data["why"].startswith(f"recorded with torch {torch.__version__} on {here}, replayed with torch ")
    assert data["why"] in done.stdout
    assert native("verify", embedded, "--golden", path, "--bitwise", **AVX2).returncode == 1
    # A fault is red all the same: in the weights by the digests, in the recordings by the local check.
    folder = edited(embedded, tmp_path / "x", lambda t: t[DOWN].__setitem__((3, 5), t[DOWN][3, 5] * 1.01))
    assert native("verify", folder, "--golden", path, **AVX2).returncode == 1
    point = "len65/model.layers.5.mlp.output"
    for fault in (lambda t: t[point][0, 3].mul_(1.0001), lambda t: t[point][0].add_(8e-6)):  # over atol, and below it
        done = native("verify", embedded, "--golden", changed(path, tmp_path / "f", fault), **AVX2)
        assert done.returncode == 1 and "first model.layers.5.mlp.output (len65): deviates" in done.stdout


def test_on_the_same_machine_only_the_same_bits_pass_unless_it_is_said(golden: Path, twin: Path, tmp_path: Path) -> None:
    point = "len65/model.layers.2.mlp.output"
    path = changed(golden, tmp_path / "f", lambda t: t[point][0, 3].add_(1e-6))
    done = native("verify", twin, "--golden", path, "--junit", tmp_path / "j.xml")
    assert done.returncode == 1 and done.stdout.splitlines()[-1].startswith("fails: agrees in ")
    assert ET.parse(tmp_path / "j.xml").getroot().get("failures") == "1"
    assert native("verify", twin, "--golden", path, "--atol", "1e-5").returncode == 0


def test_nothing_that_is_read_is_written_over(golden: Path, twin: Path, tmp_path: Path) -> None:
    before = golden.read_bytes()
    for option in ("--json", "--junit"):
        for place in (golden, twin / "report"):
            done = native("verify", twin, "--golden", golden, option, place)
            assert done.returncode == 2 and "it would overwrite what is read" in done.stderr
    for same in (str(tmp_path / "x"), f"{tmp_path}/./x", f"{tmp_path}/../{tmp_path.name}/x"):
        done = native("verify", twin, "--golden", golden, "--json", tmp_path / "x", "--junit", same)
        assert done.returncode == 2 and "--json and --junit both name " in done.stderr
    assert golden.read_bytes() == before and list(tmp_path.iterdir()) == []


def test_what_is_open_already_is_written_to_as_it_is(golden: Path, twin: Path, tmp_path: Path) -> None:
    """/dev/stdout leads to a file that others write to."""
    with (tmp_path / "log").open("w") as out:
        out.write("before\n")
        out.flush()
        command = [str(NATIVE), "verify", str(twin), "--golden", str(golden), "--json", "/dev/stdout"]
        assert subprocess.run(command, stdout=out, timeout=300).returncode == 0
        out.write("after\n")
    text = (tmp_path / "log").read_text()
    assert text.startswith("before\n{") and text.endswith("after\n") and "passes: identical in " in text


def test_another_checkpoint_is_called_one(golden: Path, llama: Path, tmp_path: Path) -> None:
    """Its inputs need not even fit the model: then that is not the first thing to say."""
    few = make_twin(tmp_path / "few", "qwen3_5", vocab_size=64, eos_token_id=63)
    for folder in (few, llama):
        done = native("verify", folder, "--golden", golden)
        said = f"{folder}: not the checkpoint that the trace was recorded from: "
        assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"lockstep-native: error: {said}") and "input '" in done.stderr


def test_a_name_cannot_steer_the_terminal(golden: Path, twin: Path, tmp_path: Path) -> None:
    name = "model.\x1b[31mred.weight"
    folder = edited(twin, tmp_path / "x", lambda t: t.update({name: torch.ones(2)}))
    for command in ("names", "verify"):
        done = native(command, folder, *(["--golden", golden] if command == "verify" else []))
        said = done.stdout + done.stderr
        assert done.returncode in (1, 2) and "\x1b" not in said and "\\x1b[31mred" in said, said


def test_a_promise_that_nobody_keeps_is_missing(golden: Path, twin: Path, tmp_path: Path) -> None:
    path = changed(golden, tmp_path / "g", manifest=lambda m: m["points"].append("model.layers.0.mlp.bogus.output"))
    done = native("verify", twin, "--golden", path)
    assert done.returncode == 1 and done.stdout.splitlines()[-1].startswith("fails: missing in ")


def test_another_release_of_torch_is_said_too(golden: Path, twin: Path, tmp_path: Path) -> None:
    path = changed(golden, tmp_path / "g", manifest=lambda m: m.update(torch="2.1.0"))
    done = native("verify", twin, "--golden", path)
    assert done.returncode == 0 and "recorded with torch 2.1.0 on " in done.stdout


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.pop("golden"), 'not a golden trace: its manifest has no object "golden"'),
        (lambda m: m["golden"].update(len130=[1, 2]), "/golden/len130 is not a list of 130 ids"),
        (lambda m: m["model"].update(tensors={}), "no digest per tensor under /model/tensors"),
        (lambda m: m.update(model=None), "no digest per tensor under /model/tensors"),
        (lambda m: m.update(dtype="float64"), "it was not run in float32, bfloat16 or float16"),
        (lambda m: m.update(points=["lm_head.output"]), "it has no points of sublayers"),
        (lambda m: m.update(format_version=2), "/format_version: 2 is not known (known: 1); use the lockstep that wrote it"),
        (lambda m: m.update(threads=0), "/threads: expected 1 to 1024, found 0"),
        (lambda m: m.update(threads="x"), "its manifest's /threads is not a whole number"),
        (lambda m: m.update(attn="flash"), "its manifest's /attn is neither sdpa nor eager"),
        (lambda m: m.update(torch=None), "its manifest does not say torch, transformers and cpu_capability"),
        (lambda m: m["forwards"][0]["ids"][0].__setitem__(0, 10**6), "input 'len65': "),
    ],
)
def test_what_is_no_golden_trace_is_refused(
    golden: Path, twin: Path, tmp_path: Path, edit: Callable[[Any], Any], message: str
) -> None:
    done = native("verify", twin, "--golden", changed(golden, tmp_path / "g", manifest=edit))
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_was_changed_since_it_was_recorded_is_named(golden: Path, twin: Path, tmp_path: Path) -> None:
    path = changed(golden, tmp_path / "m", manifest=lambda m: m.update(threads=3), sign=False)
    done = native("verify", twin, "--golden", path)
    assert (done.returncode, done.stdout) == (2, "") and "its manifest was altered since it was recorded" in done.stderr
    point = "from5000/model.layers.0.mlp.output"
    path = changed(golden, tmp_path / "t", lambda t: t[point].view(torch.int32)[0, 0, 0].bitwise_xor_(1), sign=False)
    done = native("verify", twin, "--golden", path, "--accept", "rounding")
    assert done.returncode == 1 and f"  the trace's {point}: reference " in done.stdout
    data = bytearray(golden.read_bytes())
    size = int.from_bytes(data[:8], "little")
    data[8 : 8 + size] = data[8 : 8 + size].replace(b'"shape":', b'"shape" :', 1)
    data[:8] = (size + 1).to_bytes(8, "little")
    (tmp_path / "h").write_bytes(data)
    assert native("verify", twin, "--golden", tmp_path / "h").returncode == 2


def test_bad_options_are_one_sentence(golden: Path, twin: Path) -> None:
    for more in (
        ["--atol", "-1"],
        ["--atol", "inf"],
        ["--rtol", "nan"],
        ["--accept", "all"],
        ["--accept", "rounding", "--bitwise"],
    ):
        done = native("verify", twin, "--golden", golden, *more)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, more
    assert native("verify", twin).returncode == 2
    assert native("verify", twin, "--golden", "absent.trace").returncode == 2


def test_a_trace_that_would_prove_nothing_is_not_recorded(twin: Path, tmp_path: Path) -> None:
    def other_weights(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight.data[0, 0] += 1

    def other_function(model: Any) -> None:
        kind = next(k for k in faults.kinds() if k.name == "causal mask left out")
        kind.apply(model, kind.layers(model)[0])

    with pytest.raises(InputError, match="the reference fails its own invariants"):
        lockstep.trace(tmp_path / "g", twin, golden=True, patch=other_function)
    with pytest.raises(InputError, match=DOWN):
        lockstep.trace(tmp_path / "g", twin, golden=True, patch=other_weights)
    for options in ({"source": "mirror"}, {"points": "layer"}):
        with pytest.raises(InputError, match="--golden: expected --source hf, and --points sublayer or all"):
            lockstep.trace(tmp_path / "g", twin, golden=True, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_export_reproduces_its_sources_golden_trace(golden: Path, twin: Path, tmp_path: Path) -> None:
    lockstep.export(twin, tmp_path / "same")
    data = lockstep.check(tmp_path / "same", replay=golden)
    assert (data["exit_code"], data["verdict"], data["replay"]["verdict"]) == (0, "identical", "identical")
    # After a conversion the digests are the manifest's; the numbers are not the source's any more.
    lockstep.export(twin, tmp_path / "half", dtype="bfloat16")
    data = lockstep.check(tmp_path / "half", replay=golden)
    assert data["replay"]["legs"]["provenance"]["verdict"] == "identical"
    assert (data["exit_code"], data["replay"]["verdict"]) == (1, "deviates")


def test_an_exact_conversion_reproduces_it_too(tmp_path: Path) -> None:
    half = make_twin(tmp_path / "twin", "llama", torch.bfloat16)
    lockstep.trace(tmp_path / "g", half, golden=True)
    lockstep.export(half, tmp_path / "x", dtype="float32")
    assert lockstep.check(tmp_path / "x", replay=tmp_path / "g")["verdict"] == "identical"
    with pytest.raises(LoadError, match="cannot be opened"):
        lockstep.check(tmp_path / "x", replay=tmp_path / "absent")


def test_points_pass_their_judgement_on() -> None:
    rows = [{"point": "model.layers.3.input", "input": "a", "verdict": "deviates"}]
    judged = [
        {"point": "model.layers.2.output", "input": "a", "side": side, "verdict": "rounding", "floor": 1e-7, "ratio": ratio}
        for side, ratio in (("reference", 3.0), ("candidate", 1.5))
    ]
    settled = _core.settle_rounding(rows, judged, 4)
    assert settled == [{**rows[0], "verdict": "rounding", "floor": 1e-7, "ratio": 1.5, "reference_ratio": 3.0}]
    for worse in (judged[1:], [judged[0], {**judged[1], "verdict": "deviates"}]):
        assert _core.settle_rounding(rows, worse, 4)[0]["verdict"] == "deviates"
