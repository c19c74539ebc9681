"""The long parts of export, golden traces and streaming: the embedded checkpoint, SmolLM2 and full size."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import lockstep
from lockstep import hub
from lockstep.native import _core

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from checkpoints import checkpoint  # noqa: E402

pytestmark = pytest.mark.full

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
NATIVE = str(Path(sys.executable).with_name("lockstep-native"))


def folder_of(name: str) -> Path:
    return hub.EMBEDDED if name == "embedded" else checkpoint(name)


@pytest.mark.parametrize("name", ["embedded", "smollm2", "full"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Written, read by Hugging Face and by the official reader, checked with its source, and replayed with no Python."""
    import transformers

    source, out, golden = folder_of(name), tmp_path / "out", tmp_path / "golden.trace"
    exported = lockstep.export(source, out)
    assert (exported.exit_code, exported.data["verdict"]) == (0, "identical")
    about = _core.Mirror.open(str(source))
    assert about.digests() == {tensor: stated["sha256"] for tensor, stated in exported.data["tensors"].items()}
    for file in out.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"} and list(opened.keys())
    found = lockstep.check(out, source=source, digest=exported.digest)
    assert (found["exit_code"], found["verdict"]) == (0, "identical")

    model_class = getattr(transformers, about.describe()["hf_class"])
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    logits = []
    for folder in (source, out):
        model, info = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        logits.append((model(ids).logits.detach(), sorted(info["unexpected_keys"])))
        del model
    assert _core.same_bits(logits[0][0], logits[1][0]) and logits[0][1] == logits[1][1]

    lockstep.trace(golden, source, golden=True)
    done = subprocess.run([NATIVE, "verify", str(out), "--golden", str(golden)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1][:17]) == (0, "passes: identical"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["full", "full-float32"])
def test_a_streamed_verification_of_the_full_size(name: str, tmp_path: Path) -> None:
    """The same points, and memory within 450 MB, the head where it is cast, three of the largest layer, and one layer's captures."""
    folder, report = checkpoint(name), tmp_path / "report.json"
    command = [LOCKSTEP, "verify", str(folder), "--stream", "--quiet", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(report.read_text())
    assert data["verdict"] == "identical"
    whole = lockstep.verify(folder)
    assert data["points"] == json.loads(json.dumps(whole.points))

    mirror = _core.Mirror.open(str(folder))
    sizes: dict[str, int] = {}
    for parameter in mirror.parameters():
        part = ".".join(parameter.split(".")[:3]) if ".layers." in parameter else parameter
        sizes[part] = sizes.get(part, 0) + 4 * mirror.file_tensor(parameter).numel()
    largest = max(size for part, size in sizes.items() if ".layers." in part)
    head = sizes["lm_head.weight"] if name == "full" else 0
    # The last "layer", norm and head, has the largest captures: both sides' logits.
    captures = 2 * max(4 * math.prod(p["shape"]) for p in whole.points if p["point"] == "lm_head.output")
    bound = 450e6 + head + 3 * largest + captures
    print(f"{name}: peak RssAnon {data['peak_rss_anon'] / 1e6:.0f} MB, bound {bound / 1e6:.0f} MB")
    assert data["peak_rss_anon"] <= bound
