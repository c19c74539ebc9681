"""The command as a user meets it: help, files, exit codes, one sentence for everything that is wrong, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

from conftest import Tensors, edited

LOCKSTEP = [str(Path(sys.executable).with_name("lockstep"))]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run([*LOCKSTEP, *arguments], capture_output=True, text=True, env=env, timeout=300)


def refusal(*arguments: str, **environment: str) -> str:
    """The one line on stderr of a command that could not judge, with nothing on stdout."""
    done = run(*arguments, **environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not re.match(r"lockstep: (opening|loading)", line)]
    assert "Traceback" not in done.stderr
    return "\n".join(lines).removeprefix("lockstep: error: ")


def test_help_teaches() -> None:
    top, verify = run("--help"), run("verify", "--help")
    assert top.returncode == verify.returncode == 0
    assert "Exit codes: 0 passes, 1 does not, 2 could not judge." in top.stdout
    for option in ("--dtype", "--attn", "--points", "--prompt", "--ids", "--inputs", "--atol", "--rtol", "--bitwise",
                   "--mirror", "--threads", "--json", "--junit", "--quiet", "--revision"):  # fmt: skip
        assert option in verify.stdout


def test_report_on_stdout_progress_on_stderr(embedded: Path, tmp_path: Path) -> None:
    copy = edited(embedded, tmp_path / "a folder with spaces")
    done = run("verify", str(copy), "--prompt", "Redistribution and use", "--threads", "1")
    assert done.returncode == 0
    for part in ("qwen3_5, 8 layers (2 full_attention, 6 linear_attention), 1,998,928 parameters", "96 bfloat16, 12 float32",
                 "tied to the embedding", "transformers", "torch_chunk_gated_delta_rule", "1 threads", "provenance  identical",
                 "lockstep    identical", "coverage", "not exercised", "model.layers.7", "logits", "top-1"):  # fmt: skip
        assert part in done.stdout, part
    assert re.search(r"passes: identical in \d+\.\d s$", done.stdout.rstrip())
    assert "lockstep: lockstep: prompt (1 of 1)" in done.stderr


def test_files_are_written_also_when_the_verdict_is_bad(embedded: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.5.mlp.down_proj.weight"][3, 4] += 0.5

    broken = edited(embedded, tmp_path / "x", change)
    report, junit = tmp_path / "r.json", tmp_path / "r.xml"
    done = run("verify", "--mirror", str(broken), "--ids", "5,6,7", "--json", str(report), "--junit", str(junit), "--quiet")
    assert done.returncode == 1
    assert done.stderr == ""
    assert re.fullmatch(r"fails: deviates in \d+\.\d s\n", done.stdout)
    data = json.loads(report.read_text())
    assert data["first"]["point"] == "model.layers.5.mlp.output"
    suite = ET.parse(junit).getroot()
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"parameters", "model.layers.5", "logits"} <= failed and "model.layers.4" not in failed
    assert int(suite.get("failures") or 0) == len(failed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--dtype", "float8"], "--dtype 'float8': expected one of float32, bfloat16, float16"),
        (["verify", "--attn", "flash"], "--attn 'flash': expected one of sdpa, eager"),
        (["verify", "--points", "some"], "--points 'some': expected one of layer, sublayer, all"),
        (["verify", "--ids", "1,x"], "--ids '1,x': expected whole numbers with commas between, like 1,2,3"),
        (["verify", "--ids", ""], "--ids: expected at least one id, found none"),
        (["verify", "--ids", "1,99999"], "input 'ids': ids: expected 0 to 1023 (vocab_size 1024), found 99999"),
        (["verify", "--prompt", ""], "--prompt: expected some text, found an empty prompt"),
        (["verify", "--prompt", "a", "--ids", "1"], "expected at most one of --prompt, --ids and --inputs"),
        (["verify", "--atol", "-1"], "--atol -1.0: expected a number from 0 up"),
        (["verify", "--atol", "nan"], "--atol nan: expected a number from 0 up"),
        (["verify", "--threads", "0"], "--threads 0: expected 1 to 1024"),
        (["verify", "--inputs", "/nowhere.json"], "/nowhere.json: cannot be read: No such file or directory"),
        (["verify", "--json", "/nowhere/r.json"], "--json /nowhere/r.json: the folder /nowhere does not exist"),
        (["verify", ""], "an empty name: expected a checkpoint folder or a hub id"),
        (["verify", "~nobody-here/x"], "'~nobody-here/x': expected a folder's name in UTF-8, or a hub id"),
        (["verify", "/", "--revision", "main"], "--revision main: / is a folder; only a hub id has revisions"),
        (["verify", "--ids", "1_0"], "--ids '1_0': expected whole numbers with commas between, like 1,2,3"),
        (["verify", "/nowhere"], "/nowhere: no such folder, and not a hub id (org/name)"),
        (["verify", "--mirror", "./nowhere"], "./nowhere: no such folder, and not a hub id (org/name)"),
        (["verify", "org/name"], "org/name: no such folder, not in the hub cache, and the hub cannot be reached "
                                 "(HF_HUB_OFFLINE is set); give a folder, or go online once"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_sentence(arguments: list[str], message: str) -> None:
    assert refusal(*arguments) == message


def test_a_broken_checkpoint_is_one_sentence(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    assert "(truncated?); get the file again" in refusal("verify", str(folder))
    (folder / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refusal("verify", str(folder))
    assert "no config.json; expected a Hugging Face checkpoint" in refusal("verify", str(tmp_path))
    assert "found a file" in refusal("verify", str(folder / "config.json"))


def test_an_output_never_overwrites_what_is_read(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x")
    (tmp_path / "in.json").write_text('[{"name": "a", "ids": [[5]]}]')
    (tmp_path / "link.json").symlink_to(folder / "config.json")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for arguments in (
        ["verify", str(folder), "--ids", "5", "--json", str(folder / "model.safetensors")],
        ["verify", str(folder), "--ids", "5", "--junit", str(tmp_path / "link.json")],
        ["verify", "--mirror", str(folder), "--ids", "5", "--json", str(folder / "config.json")],
        ["verify", "--inputs", str(tmp_path / "in.json"), "--json", str(tmp_path / "in.json")],
        ["names", str(folder), "--json", str(folder / "new.json")],
    ):
        assert "it would overwrite what is read" in refusal(*arguments)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    assert run("verify", "--ids", "5,6", "--json", str(tmp_path / "link.json"), "--junit", "/dev/null").returncode == 0
    assert json.loads((tmp_path / "target.json").read_text())["command"] == "verify"
    assert (tmp_path / "link.json").is_symlink() and Path("/dev/null").is_char_device()


def test_what_is_open_already_is_written_to_as_it_is(tmp_path: Path) -> None:
    """/dev/stdout leads to a file that others write to, or to a pipe that has no path."""
    log = tmp_path / "log"
    log.write_text("precious\n")
    command = [*LOCKSTEP, "names", "--json", "/dev/stdout"]
    with log.open("a") as out:
        assert subprocess.run(command, stdout=out, timeout=300).returncode == 0
    assert log.read_text().startswith("precious\n{") and "embed_tokens" in log.read_text()
    piped = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    assert piped.returncode == 0
    assert json.JSONDecoder().raw_decode(piped.stdout)[0]["command"] == "names"


def test_a_trace_needs_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a file, found a device or a pipe" in refusal("trace", "--ids", "5", "-o", str(tmp_path / "pipe"))
    assert (tmp_path / "pipe").is_fifo()


def test_a_full_disk_names_the_file() -> None:
    assert refusal("verify", "--ids", "5", "--quiet", "--json", "/dev/full").splitlines()[-1] == (
        "/dev/full: cannot be written: No space left on device"
    )


def test_no_two_outputs_are_one_file(tmp_path: Path) -> None:
    for command in (["verify"], ["bisect"], ["matrix", "--python", sys.executable, "--python", sys.executable]):
        said = refusal(*command, "--json", str(tmp_path / "x"), "--junit", str(tmp_path / "y" / ".." / "x"))
        assert "expected two files" in said or "does not exist" in said
        assert "expected two files" in refusal(*command, "--json", str(tmp_path / "x"), "--junit", f"{tmp_path}/./x")


def test_numbers_that_say_nothing_are_refused() -> None:
    for text in ("1,,2", "1,2,", ",1"):
        assert "expected whole numbers with commas between" in refusal("verify", "--ids", text)
    for seconds in ("0", "-1", "nan", "inf"):
        assert "expected seconds above 0" in refusal("bisect", "--ids", "5", "--timeout", seconds)


def test_odd_files_are_one_sentence(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "model.safetensors: expected a regular file" in refusal("verify", str(folder))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert "no model.safetensors" in refusal("verify", str(folder))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert "not valid JSON" in refusal("verify", "--inputs", str(tmp_path / "deep.json"))
    (tmp_path / "twice.json").write_text('[{"name": "a", "ids": [[5]], "ids": [[6]]}]')
    assert "a key is there twice" in refusal("verify", "--inputs", str(tmp_path / "twice.json"))


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text('[{"name": "[bold]x", "ids": [[5, 6]]}]')
    assert "[bold]x" in run("verify", "--inputs", str(file)).stdout


def test_inputs_file(tmp_path: Path) -> None:
    forwards = [{"name": "a", "ids": [[5, 6, 7]]}, {"name": "b", "ids": [[8]], "past": "a"}]
    file = tmp_path / "inputs.json"
    for text in (json.dumps(forwards), json.dumps({"forwards": forwards})):
        file.write_text(text)
        assert run("verify", "--inputs", str(file), "--quiet").returncode == 0
    file.write_text("[")
    assert "not valid JSON" in refusal("verify", "--inputs", str(file))


def test_a_reader_that_leaves_does_not_change_the_verdict() -> None:
    pipeline = f"{shlex.quote(LOCKSTEP[0])} verify --ids 5,6,7 2>/dev/null | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_unknown_option_is_usage() -> None:
    done = run("verify", "--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr and "Traceback" not in done.stderr


def test_names_lists_three_columns(embedded: Path, tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    done = run("names", "--json", str(file))
    data = json.loads(file.read_text())
    assert done.returncode == 0 and "109 of 109 names fit" in done.stdout
    assert all(row["parameter"] == row["hf"] for row in data["names"])
    head = next(row for row in data["names"] if row["parameter"] == "lm_head.weight")
    assert head["status"] == "tied"

    def change(tensors: Tensors) -> None:
        tensors["model.extra.weight"] = tensors.pop("model.norm.weight")
        tensors["mtp.x"] = tensors["model.extra.weight"].clone()

    done = run("names", str(edited(embedded, tmp_path / "x", change)), "--json", str(file))
    statuses = {row["source"] or row["parameter"]: row["status"] for row in json.loads(file.read_text())["names"]}
    assert done.returncode == 1
    assert [statuses[n] for n in ("model.extra.weight", "model.norm.weight", "mtp.x")] == ["unexpected", "missing", "ignored"]
    assert "model.extra.weight: unexpected" in done.stdout


def test_a_name_cannot_steer_the_terminal(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x", lambda t: t.update({"model.\x1b[31mred.weight": torch.ones(2)}))
    for command in ("names", "verify"):
        done = run(command, str(folder))
        said = done.stdout + done.stderr
        assert done.returncode in (1, 2) and "\x1b" not in said and "\\x1b[31mred" in said, said


@pytest.mark.parametrize(("arguments", "expected"), [("names", 0), ("names no-such-folder", 2)])
def test_ctrl_c_while_the_interpreter_ends_changes_no_exit_code(arguments: str, expected: int) -> None:
    program = f"""if 1:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Late:
            kill, me, number = os.kill, os.getpid(), signal.SIGINT
            def __del__(self): Late.kill(Late.me, Late.number); os.write(2, b"after the signal")
        late = Late()  # goes with the modules, once the interpreter no longer has handlers of its own
        sys.argv[1:] = {arguments.split()}
        from lockstep.cli import main
        main()"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.returncode == expected and "Traceback" not in done.stderr, (done.returncode, done.stderr)
    assert done.stderr.endswith("after the signal")


@pytest.mark.parametrize("after", [0.3, 1.5, 3.0, 4.5])
def test_ctrl_c_leaves_nothing(tmp_path: Path, after: float) -> None:
    report = tmp_path / "r.json"
    process = subprocess.Popen(
        [*LOCKSTEP, "verify", "--points", "all", "--json", str(report)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's children ignore it
    )  # fmt: skip
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    if after > 2 and process.returncode == 0:
        assert json.loads(report.read_text())["exit_code"] == 0  # a fast machine was done before the signal came
        return
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
