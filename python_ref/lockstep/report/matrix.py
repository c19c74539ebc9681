"""The report of `lockstep matrix`: one row per layer, one column per pair of releases."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ..verdicts import passes, worst
from .junit import Suite
from .table import COLOURS, group_of


def _groups(data: dict[str, Any]) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """layer -> number of the pair -> its points. By number: two environments may have one release's name."""
    groups: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in data["points"]:
        groups.setdefault(group_of(row["point"]), {}).setdefault(row["pair"], []).append(row)
    return groups


def show(data: dict[str, Any], console: Console) -> None:
    for environment in data["pedigree"]["environments"]:
        console.print(
            f"transformers {environment['transformers']}, torch {environment['torch']}, {environment['cpu_capability']}  "
            f"{environment['python']}", highlight=False, markup=False,
        )  # fmt: skip
    table = Table(title="worst point of each layer: verdict, max |diff|, multiple of the noise floor", title_justify="left")
    table.add_column("layer")
    for pair in data["pairs"]:
        table.add_column(f"{pair['a']} to {pair['b']}\n{pair['dtype']} {pair['attn']}")
    for group, by_pair in _groups(data).items():
        table.add_row(group, *(_cell(by_pair.get(i, [])) for i in range(len(data["pairs"]))))
    console.print(table)
    for pair in data["pairs"]:
        console.print(sentence(pair), highlight=False, markup=False)
    console.print(closing(data), highlight=False)


def _cell(points: list[dict[str, Any]]) -> str:
    if not points:
        return "-"
    verdict = worst(p["verdict"] for p in points)
    text = f"[{COLOURS.get(verdict, 'red')}]{verdict}[/]"
    differences = [p["max_abs"] for p in points if p["max_abs"]]
    ratios = [p["ratio"] for p in points if p["ratio"] is not None]
    if differences:
        text += f"  {max(differences):.1e}"
    return text + (f"  {max(ratios):.2f} x" if ratios else "")


def sentence(pair: dict[str, Any]) -> str:
    """`5.10.4 to 5.18.0, float32, sdpa: rounding; model.layers.0.linear_attn changed (first model.layers.0...@q_l2, len65)`"""
    text = f"{pair['a']} to {pair['b']}, {pair['dtype']}, {pair['attn']}: {pair['verdict']}"
    if not pair["changed"]:
        return text + ("; nothing changed" if pair["verdict"] == "identical" else "")
    what = ", ".join(f"{c['sublayer']} changed (first {c['first']}, {c['input']})" for c in pair["changed"])
    return f"{text}; {what}; what follows was given other bits"


def closing(data: dict[str, Any]) -> str:
    word = "[bold green]passes[/]" if data["exit_code"] == 0 else "[bold red]fails[/]"
    return f"{word}: {data['verdict']} over {len(data['pairs'])} pairs in {data['seconds']['total']:.1f} s"


def junit_text(data: dict[str, Any]) -> str:
    """One case per pair and layer."""
    bitwise = data["options"]["bitwise"]
    suite = Suite("lockstep matrix")
    for group, by_pair in _groups(data).items():
        for number, points in by_pair.items():
            pair = data["pairs"][number]
            bad = [
                f"{p['point']} ({p['input']}): {p['verdict']}" for p in points if not passes(p["verdict"], bitwise, not bitwise)
            ]
            name = f"matrix.{number + 1}.{pair['dtype']}.{pair['attn']}.{pair['a']} to {pair['b']}"
            suite.case(name, group, bad)
    return suite.text()
