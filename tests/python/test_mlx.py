"""mlx-lm as a candidate: an independent engine that is right, but for one number that it does not find in a Llama's config."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from conftest import edited, make_twin, some_inputs
from lockstep.engines.mlx_engine import MlxEngine
from lockstep.native import _core

SOME = ("len3", "len65", "split64_86.0", "split64_86.1")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_right_within_rounding(dtype: str, embedded: Path) -> None:
    found = lockstep.bisect(embedded, "mlx", dtype=dtype, inputs=[*some_inputs(embedded, SOME), padded()])
    assert (found.verdict, found.exit_code, found.faults) == ("rounding", 0, [])
    assert found.data["coverage"]["dropped"] == {"padded": "mlx-lm takes no padding"}


def test_no_cause_is_read_into_its_rounding(embedded: Path) -> None:
    """Its norms lose what index order loses, which looks like an epsilon 0.1 % off."""
    found = lockstep.bisect(embedded, "mlx", inputs=some_inputs(embedded, SOME), thorough=True)
    assert (found.exit_code, found.faults, found.data["notes"]) == (0, [], [])


def padded() -> dict[str, Any]:
    return {"name": "padded", "ids": [[0, 5], [7, 5]], "positions": None, "mask": [[0, 1], [1, 1]], "past": None}


def theta_of(config: dict[str, Any]) -> None:
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]


def test_a_rope_theta_that_it_does_not_find_is_named_in_every_layer(tmp_path: Path) -> None:
    """transformers 5 writes rope_theta inside rope_parameters; mlx-lm 0.32.2 looks at top level and takes 10000."""
    parameters = {"rope_type": "default", "rope_theta": 100000.0}
    written = make_twin(tmp_path / "written", "llama", rope_parameters=parameters)
    found = lockstep.bisect(written, "mlx", inputs=some_inputs(written, SOME))
    assert found.exit_code == 1
    assert [f["point"] for f in found.faults] == [f"model.layers.{i}.self_attn" for i in range(3)]
    assert {f["cause"]["hypothesis"] for f in found.faults} == {"rope theta 10000"}
    assert "rope_theta" in json.loads((written / "config.json").read_text())["rope_parameters"]

    at_top = edited(written, tmp_path / "at top", config=theta_of)
    found = lockstep.bisect(at_top, "mlx", inputs=some_inputs(at_top, SOME))
    assert (found.verdict, found.exit_code) == ("rounding", 0)


class OneNormWeight(MlxEngine):
    """mlx-lm with one weight of one norm changed after loading."""

    offset = 0.01

    def load(self) -> Any:
        model = super().load()
        norm = dict(model.named_modules())["language_model.model.layers.5.input_layernorm"]
        changed = norm.weight.astype(self.mx.float32) + self.offset * (self.mx.arange(norm.weight.size) == 17)
        norm.weight = changed.astype(norm.weight.dtype)
        return model


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 0.01), ("bfloat16", 0.25)])
def test_its_trace_alone_names_a_changed_norm_where_transformers_cannot_be_imported(
    dtype: str, offset: float, embedded: Path, tmp_path: Path
) -> None:
    about = _core.Mirror.open(str(embedded)).describe()
    stated = some_inputs(embedded, SOME)
    engine = OneNormWeight(embedded, about, dtype)
    engine.offset = offset
    lockstep.trace(tmp_path / "mlx.trace", embedded, engine, dtype=dtype, inputs=stated)
    program = f"""
import sys
for name in ("transformers", "mlx", "mlx_lm"):
    sys.modules[name] = None
import json, lockstep
found = lockstep.bisect({str(embedded)!r}, {str(tmp_path / "mlx.trace")!r})
json.dump(found.data, open({str(tmp_path / "found.json")!r}, "w"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["exit_code"] == 1
    assert [f["point"] for f in found["faults"]] == ["model.layers.5.input_layernorm"]
    cause = found["faults"][0]["cause"]
    assert (cause["hypothesis"], cause["parameter"], cause["index"]) == (
        "one weight",
        "model.layers.5.input_layernorm.weight",
        [17],
    )
    stored = 0 if dtype == "float32" else 2**-7  # mlx-lm keeps 1 + w, in the run's dtype
    assert cause["estimate"] == pytest.approx(offset, abs=3 * cause["estimate_error"] + stored)
