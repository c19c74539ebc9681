"""lockstep-native: the same output and exit codes as the command, with no Python to be found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lockstep import generation, tokenizing

from test_cli import run as command  # isort: skip

NATIVE = Path(sys.executable).with_name("lockstep-native")
TEXT = "Redistribution and use in source, café 12\u3000🙂\n"


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """With an empty environment: no PATH, nothing of Python's."""
    return subprocess.run([NATIVE, *arguments], input=given, capture_output=True, env={}, timeout=300)


def refusal(*arguments: str) -> str:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    return line.removeprefix("lockstep-native: error: ")


def test_it_needs_no_python() -> None:
    libraries = subprocess.run(["ldd", NATIVE], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in libraries and "not found" not in libraries
    assert not [line for line in libraries.splitlines() if line.strip().startswith(("libpython", "libtorch_python"))]


def test_help_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0 and b"Exit codes: 0 passes, 1 does not, 2 could not judge." in done.stdout
    for name in ("generate", "names", "tokenize"):
        assert run(name, "--help").returncode == 0 and name.encode() in done.stdout


def test_tokenize_prints_what_the_command_prints(embedded: Path, tmp_path: Path) -> None:
    file = tmp_path / "a text.txt"
    file.write_bytes(TEXT.encode() + b"\xff")
    for arguments in ([TEXT], [str(embedded), TEXT, "--pieces"], ["--file", str(file), "--pieces"], ["--decode", "5,6 7"]):
        mine, theirs = run("tokenize", *arguments), command("tokenize", *arguments)
        assert (mine.returncode, mine.stdout.decode()) == (theirs.returncode, theirs.stdout)
    ids = " ".join(map(str, tokenizing.Tokenizer.load(embedded).encode(TEXT)))
    assert run("tokenize", "--file", "-", given=TEXT.encode()).stdout.decode() == ids + "\n"


def test_generate_writes_what_the_command_writes(embedded: Path) -> None:
    prompt = "Redistribution and use"
    expected = generation.generate(embedded, prompt=prompt, max_new_tokens=48)
    done = run("generate", "--prompt", prompt, "--max-new-tokens", "48")
    assert done.returncode == 0
    assert done.stdout.decode().removesuffix("\n") == expected.data["text"].removesuffix("\n")
    assert b"tokens/s decode" in done.stderr
    fast = generation.generate(embedded, prompt=prompt, max_new_tokens=48, fast=True)
    done_fast = run("generate", "--prompt", prompt, "--max-new-tokens", "48", "--fast")
    assert done_fast.returncode == 0
    assert done_fast.stdout.decode().removesuffix("\n") == fast.data["text"].removesuffix("\n")
    assert refusal("generate", "--ids", "1,2", "--fast", "--dtype", "float16").startswith("--fast: expected --dtype float32")
    by_ids = run("generate", str(embedded), "--ids", ",".join(map(str, expected.data["prompt"]["ids"])), "--max-new-tokens", "48")
    assert by_ids.stdout == done.stdout


def test_names_fit(embedded: Path, tmp_path: Path) -> None:
    done = run("names", str(embedded))
    assert done.returncode == 0 and done.stdout.decode().splitlines()[-1] == "109 of 109 names fit"


def test_a_hub_id_is_looked_for_in_the_cache(embedded: Path, tmp_path: Path) -> None:
    home = tmp_path / "models--someone--some-model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc123")
    (home / "snapshots").mkdir()
    (home / "snapshots" / "abc123").symlink_to(embedded)
    arguments = [NATIVE, "tokenize", "someone/some-model", "text"]
    done = subprocess.run(arguments, capture_output=True, env={"HF_HUB_CACHE": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, run("tokenize", "text").stdout)


def test_what_is_wrong_gets_one_sentence(embedded: Path, tmp_path: Path) -> None:
    assert "expected TEXT, --file FILE or --decode IDS" in refusal("tokenize")
    assert "cannot be read" in refusal("tokenize", "--file", str(tmp_path / "none"))
    assert "cannot be read" in refusal("tokenize", "--file", str(tmp_path))
    assert "not in the hub cache" in refusal("tokenize", "someone/else", "text")
    assert "no such folder, and not a hub id" in refusal("names", "/no/such/folder")
    assert "found a file" in refusal("names", str(embedded / "config.json"))
    assert "expected --prompt TEXT or --ids 1,2,3" in refusal("generate")
    assert "expected float32, bfloat16 or float16" in refusal("generate", "--ids", "1", "--dtype", "int8")
    assert "expected whole numbers" in refusal("generate", "--ids", "1,x")
    assert "--nonsense" in refusal("generate", "--nonsense")
    assert "A subcommand is required" in refusal()
