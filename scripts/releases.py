"""Other transformers releases, each installed apart under build/releases; torch and the extension stay the venv's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checkpoints import ROOT

RELEASES = {
    "5.10.4": ["transformers==5.10.4", "huggingface_hub<2", "tokenizers<=0.23.0"],
    "5.18.0": ["transformers==5.18.0", "tokenizers==0.23.3"],
    "5.24.0": ["transformers==5.24.0", "tokenizers==0.23.3"],
}


def installed(release: str) -> Path:
    """A folder to put first on the path, with this release and what it needs. torch is not among its requirements."""
    folder = ROOT / "build" / "releases" / release
    if not (folder / ".complete").is_file():
        print(f"installing transformers {release}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
        subprocess.run([*command, *RELEASES[release]], check=True, stdout=sys.stderr)
        if any(folder.glob("torch-*")):
            raise SystemExit(f"transformers {release} brought its own torch: refused")
        (folder / ".complete").touch()
    return folder


def python_of(release: str) -> Path:
    """A python program that has this release, as `hf:python=` takes it."""
    program = installed(release) / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{installed(release)}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program
