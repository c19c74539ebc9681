"""The larger checkpoints that tests, the matrix and the benchmarks use, made once under build/checkpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "checkpoints"
MADE_BY = {
    "smollm2": ["fetch_smollm2.py"],
    "tiny": ["make_checkpoint.py", "--preset", "tiny"],
    "full": ["make_checkpoint.py", "--preset", "qwen3.5-0.8b"],
    "full-float32": ["make_checkpoint.py", "--preset", "qwen3.5-0.8b", "--dtype", "float32"],
}


def checkpoint(name: str) -> Path:
    """The folder of `name`; made by its script if it is not there yet."""
    folder = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / f".{name}.lock"):  # tests run side by side
        if (folder / "config.json").is_file():  # the last file that the scripts write
            return folder
        script, *arguments = MADE_BY[name]
        print(f"making {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, str(ROOT / "scripts" / script), *arguments, str(folder)], check=True, stdout=sys.stderr)
        return folder


def tokenizer_folder(name: str) -> Path:
    """A tokenizer of scripts/fetch_tokenizers.py; made if it is not there."""
    folder = ROOT / "build" / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{name}.lock"):
        if not (folder / name).is_dir():
            subprocess.run([sys.executable, str(ROOT / "scripts" / "fetch_tokenizers.py"), str(folder), name], check=True)
        return folder / name
