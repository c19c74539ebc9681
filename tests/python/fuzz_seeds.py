"""Valid little checkpoints for the fuzzers to corrupt, both families, one file and two shards; and a trace, OUT.trace.

python tests/python/fuzz_seeds.py OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

import lockstep
from conftest import TINY, make_twin


def shard(source: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for i, part in enumerate((names[:half], names[half:]), start=1):
        file = f"model-{i:05}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> None:
    out = Path(sys.argv[1])
    for family in TINY:
        make_twin(out / f"{family}-one", family, num_hidden_layers=4 if family == "qwen3_5" else 1)
        shard(out / f"{family}-one", out / f"{family}-two")
    ids = [{"name": "a", "ids": [[3, 1, 4]]}, {"name": "b", "ids": [[5]], "past": "a"}]
    lockstep.trace(f"{out}.trace", out / "qwen3_5-one", "mirror", points="all", inputs=ids)


if __name__ == "__main__":
    main()
