"""Runs in another virtual environment, which has torch and transformers: records Hugging Face there into a trace file.

python hf_worker.py JOB.json
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch


def _plain_file(package: Path, name: str) -> ModuleType:
    """One of our files that need nothing of ours."""
    spec = importlib.util.spec_from_file_location(f"lockstep_plain_{name}", package / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Sink:
    def __init__(self) -> None:
        self.forward = ""
        self.tensors: dict[str, torch.Tensor] = {}
        self.fired: dict[str, list[str]] = {}

    def capture(self, point: str, value: torch.Tensor) -> None:
        points = self.fired.setdefault(self.forward, [])
        if point in points:
            raise RuntimeError(f"{point} fired twice in {self.forward}")
        points.append(point)
        self.tensors[f"{self.forward}/{point}"] = value.detach().clone(memory_format=torch.contiguous_format)

    def layer_done(self, index: int) -> None: ...
    def head_done(self) -> None: ...


def main(job_file: str) -> None:
    job: dict[str, Any] = json.loads(Path(job_file).read_text())
    package = Path(job["package"])
    hf_model, capture, trace_file = (_plain_file(package, name) for name in ("hf_model", "capture", "trace_file"))
    import transformers

    torch.set_num_threads(job["threads"])
    hf_model.settle_vector_math()
    model, info = hf_model.load(job["folder"], job["hf_class"], job["dtype"], job["attn"], job["tied"])
    missing = [key for key in info.get("missing_keys", []) if not (job["tied"] and key == "lm_head.weight")]
    if missing:
        raise RuntimeError(f"transformers {transformers.__version__} did not find {missing[0]} in the checkpoint")
    modeling = inspect.getmodule(type(model))
    forwards = job["forwards"]
    continued = {f["past"] for f in forwards}
    cached = [f["name"] for f in forwards if f["past"] is not None or f["name"] in continued]
    left = {f["name"]: sum(g["past"] == f["name"] for g in forwards) for f in forwards}
    kept: dict[str, Any] = {}
    sink = _Sink()

    def tensor(x: Any) -> torch.Tensor | None:
        return None if x is None else torch.tensor(x, dtype=torch.int64)

    with capture.Capture(model, modeling, job["points"]) as hooks:
        for f in forwards:
            cache = None
            if f["past"] is not None:
                left[f["past"]] -= 1
                cache = copy.deepcopy(kept[f["past"]]) if left[f["past"]] else kept.pop(f["past"])
            elif f["name"] in cached:
                cache = hf_model.new_cache(model)
            sink.forward, hooks.sink, hooks.cache = f["name"], sink, cache
            hf_model.run(model, tensor(f["ids"]), tensor(f["positions"]), tensor(f["mask"]), cache)
            if left[f["name"]]:
                kept[f["name"]] = cache
    variant = hf_model.variant_of()
    states = [state for state in capture.STATES if state not in ("cos", "sin")]
    manifest = {
        "producer": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "attn": job["attn"],
            "variant": variant,
        },
        "model": None,
        "dtype": job["dtype"],
        "attn": job["attn"],
        "variant": variant,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": job["threads"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "forwards": forwards,
        "points": trace_file.promised_points(sink.fired, cached, states),
    }
    trace_file.write(job["out"], manifest, sink.tensors)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:  # the caller shows the last line
        print(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", file=sys.stderr)
        sys.exit(1)
