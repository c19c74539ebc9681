"""The report of `lockstep matrix`: one row per layer, one column per pair of releases."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

from ..verdicts import passes, worst
from .table import COLOURS, group_of

Pair = tuple[str, str, str, str]


def _pair_of(entry: dict[str, Any]) -> Pair:
    return entry["a"], entry["b"], entry["dtype"], entry["attn"]


def _groups(data: dict[str, Any]) -> dict[str, dict[Pair, list[dict[str, Any]]]]:
    """layer -> pair -> its points"""
    groups: dict[str, dict[Pair, list[dict[str, Any]]]] = {}
    for row in data["points"]:
        groups.setdefault(group_of(row["point"]), {}).setdefault(_pair_of(row), []).append(row)
    return groups


def show(data: dict[str, Any], console: Console) -> None:
    for environment in data["pedigree"]["environments"]:
        console.print(
            f"transformers {environment['transformers']}, torch {environment['torch']}, {environment['cpu_capability']}  "
            f"{environment['python']}", highlight=False, markup=False,
        )  # fmt: skip
    table = Table(title="worst point of each layer: verdict, max |diff|, multiple of the noise floor", title_justify="left")
    table.add_column("layer")
    pairs = [_pair_of(pair) for pair in data["pairs"]]
    for a, b, dtype, attn in pairs:
        table.add_column(f"{a} to {b}\n{dtype} {attn}")
    for group, by_pair in _groups(data).items():
        table.add_row(group, *(_cell(by_pair.get(pair, [])) for pair in pairs))
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
    suite = ET.Element("testsuite", name="lockstep matrix")
    failures = 0
    for group, by_pair in _groups(data).items():
        for (a, b, dtype, attn), points in by_pair.items():
            case = ET.SubElement(suite, "testcase", classname=f"matrix.{dtype}.{attn}.{a} to {b}", name=group)
            bad = [
                f"{p['point']} ({p['input']}): {p['verdict']}" for p in points if not passes(p["verdict"], bitwise, not bitwise)
            ]
            if bad:
                failures += 1
                ET.SubElement(case, "failure", message=bad[0]).text = "\n".join(bad)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
