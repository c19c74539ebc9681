"""`lockstep names`: the checkpoint's tensors, the mirror's parameters and Hugging Face's, side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .hf_model import quiet_transformers
from .native import LoadError, _core

FINE = ("ok", "tied", "ignored")


def hf_shapes(folder: Path, hf_class: str) -> dict[str, list[int]]:
    """Name -> shape of every parameter of the HF class on this config, without memory. raises LoadError"""
    import transformers

    model_class = getattr(transformers, hf_class)
    try:
        with quiet_transformers(), torch.device("meta"):
            config = model_class.config_class.from_pretrained(folder, local_files_only=True)
            model = model_class(config)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError(f"{folder}: transformers {transformers.__version__} cannot build it: {reason}") from error
    return {name: list(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def listing(folder: Path) -> dict[str, Any]:
    """The data of `lockstep names --json`."""
    import transformers

    started = time.perf_counter()
    rows = _core.names(str(folder))
    family = _core.family(str(folder))
    hf = hf_shapes(folder, family["hf_class"])
    for row in rows:
        row["hf"] = row["parameter"] if row["parameter"] in hf else ""
        if row["parameter"] and row["status"] in FINE and hf.get(row["parameter"]) != row["shape"]:
            row["status"] = "not_in_hf"
            row["problem"] = (
                f"{row['parameter']}: the mirror has it as {row['shape']}, transformers as {hf.get(row['parameter'])}"
            )
    listed = {row["parameter"] for row in rows}
    for name in sorted(set(hf) - listed):
        rows.append({"source": "", "parameter": "", "hf": name, "shape": hf[name], "dtype": "", "file": "",
                     "status": "not_in_mirror", "problem": f"{name}: transformers has it, the mirror does not"})  # fmt: skip
    bad = [row for row in rows if row["status"] not in FINE]
    return {
        "format_version": 1,
        "command": "names",
        "verdict": "identical" if not bad else "missing",
        "model": {**family, "digest": _core.digest(str(folder))},
        "pedigree": {"transformers": transformers.__version__, "torch": torch.__version__},
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "exit_code": int(bool(bad)),
        "names": rows,
    }


def show(data: dict[str, Any], console: Console) -> None:
    """Prints the table, what is wrong with each name, and how many fit."""
    table = Table()
    for column in ("checkpoint", "mirror", "transformers", "shape", "dtype", "status"):
        table.add_column(column, overflow="fold")
    for row in data["names"]:
        style = None if row["status"] in FINE else "red"
        cells = [row["source"], row["parameter"], row["hf"], str(row["shape"]), row["dtype"], row["status"]]
        table.add_row(*(Text(cell or "-") for cell in cells), style=style)
    console.print(table, highlight=False)
    for row in data["names"]:
        if row["problem"]:
            console.print(row["problem"], highlight=False, markup=False)
    fine = sum(row["status"] in FINE for row in data["names"])
    console.print(f"{fine} of {len(data['names'])} names fit", highlight=False)
