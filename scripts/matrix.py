"""Verify checkpoints over transformers releases, dtypes and attention implementations, and print the table.

    scripts/matrix [--json FILE] [--only embedded|smollm2|full]

Each release is installed apart, under build/releases, with what it needs but torch; the same built extension judges all.
Exit 1 if a cell is not identical at every point.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checkpoints import checkpoint
from releases import RELEASES, installed

DTYPES = {"embedded": ("float32", "bfloat16", "float16"), "smollm2": ("float32", "bfloat16"), "full": ("float32",)}


def cell(release: str, model: Path | None, dtype: str, attn: str) -> dict:
    """One verification at every point, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        lockstep = Path(sys.executable).with_name("lockstep")
        command = [str(lockstep), "verify", *([str(model)] if model else []), "--points", "all", "--bitwise", "--quiet"]
        environment = {**os.environ, "PYTHONPATH": str(installed(release)), "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(
            [*command, "--dtype", dtype, "--attn", attn, "--json", str(report)], env=environment, capture_output=True, text=True
        )
        if not report.is_file():
            return {"verdict": "error", "exit_code": done.returncode, "points": 0, "first": done.stderr.strip()}
        data = json.loads(report.read_text())
    assert data["pedigree"]["transformers"] == release
    return {
        "verdict": data["verdict"],
        "exit_code": data["exit_code"],
        "points": len(data["points"]),
        "identical": data["legs"]["lockstep"]["identical"],
        "variant": data["pedigree"]["variant"],
        "failed": [check for check in data["pedigree"]["checks"] if not check["passes"]],
        "first": data["first"] and data["first"]["point"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=sorted(DTYPES), action="append")
    options = parser.parse_args()
    rows, bad = [], 0
    print(f"{'checkpoint':10} {'release':8} {'variant':8} {'dtype':9} {'attn':6} {'verdict':10} points")
    for name in options.only or DTYPES:
        for release in RELEASES:
            for dtype in DTYPES[name]:
                for attn in ("sdpa", "eager"):
                    found = cell(release, None if name == "embedded" else checkpoint(name), dtype, attn)
                    rows.append({"checkpoint": name, "release": release, "dtype": dtype, "attn": attn, **found})
                    bad += found["exit_code"] != 0 or found["verdict"] != "identical"
                    points = f"{found.get('identical', 0)} of {found['points']} identical"
                    variant = found.get("variant", "-")
                    print(f"{name:10} {release:8} {variant:8} {dtype:9} {attn:6} {found['verdict']:10} {points}", flush=True)
                    if found["first"]:
                        print(f"  first: {found['first']}")
                    if found["exit_code"] != 0:
                        print(f"  exit code {found['exit_code']}; failed: {json.dumps(found.get('failed', []))}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows) - bad} passed, {bad} failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
