"""The report that a person reads on the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..verdicts import worst

COLOURS = {"identical": "green", "agrees": "green", "rounding": "yellow"}
Decode = Callable[[int], str]


def group_of(point: str) -> str:
    """The row a point belongs to: its decoder layer, or the module outside of the layers, or the logits."""
    if point.startswith("lm_head"):
        return "logits"
    layer = re.match(r"model\.layers\.\d+", point)
    return layer.group() if layer else re.split(r"\.(?:input|output)$|@", point)[0]


def sentence(p: dict[str, Any]) -> str:
    """`model.layers.7.mlp.output: deviates; 12 of 2048 elements, worst |diff| 3.1e-04 at [0, 5, 113]`"""
    text = f"{p['point']} ({p['input']}): {p['verdict']}"
    if p["verdict"] == "shape" and "reference_shape" in p:
        text += f"; expected {p['reference_shape']}, found {p['shape']}"
    if p["verdict"] == "dtype" and "reference_dtype" in p:
        text += f"; expected {p['reference_dtype']}, found {p['dtype']}"
    if p.get("max_abs") is not None and p["verdict"] != "identical":
        text += f"; {p['bad_elements']} of {p['elements']} elements, worst |diff| {p['max_abs']:.1e} at {p['worst_index']}"
    elif p["verdict"] == "non_finite":
        text += f"; NaN at {p['worst_index']}"
    return text + (f"; {p['note']}" if p.get("note") else "")


def show_verify(data: dict[str, Any], console: Console, decode: Decode | None) -> None:
    """Prints the whole report of `verify`."""
    model, pedigree, legs = data["model"], data["pedigree"], data["legs"]
    kinds = _count(model["layer_types"])
    line = console.print
    line(f"[bold]{model['family']}[/], {len(model['layer_types'])} layers ({kinds}), {model['parameters']:,} parameters")
    line(f"  file dtypes  {', '.join(f'{n} {d}' for d, n in model['dtypes'].items())}")
    ignored = ", ".join(f"{n} {rule}" for rule, n in model["ignored"].items()) or "none"
    line(f"  ignored      {ignored}", highlight=False)
    line(f"  head         {'tied to the embedding' if model['tied'] else 'separate'}")
    line(f"  digest       sha256 {model['digest']}", highlight=False)
    for note in model["notes"]:
        line(f"  note         {note}", highlight=False)
    if data["mirror"]:
        line(f"  the mirror has other files: sha256 {data['mirror']['digest']}", highlight=False)

    line(
        f"\n[bold]reference[/] transformers {pedigree['transformers']}, torch {pedigree['torch']}, {pedigree['attn']}, "
        f"{pedigree['dtype']}, {pedigree['threads']} threads, {pedigree['cpu_capability']}, variant {pedigree['variant']}"
        f"{', patched' if pedigree['patched'] else ''}",
        highlight=False,
    )
    for name, where in pedigree["kernels"].items():
        line(f"  {name:32} {where}", highlight=False)
    for warning in pedigree["warnings"]:
        line(f"  [yellow]warning[/] {warning}", highlight=False)
    line(f"  invariants   {_checks(pedigree)}", highlight=False)

    line(f"\n[bold]provenance[/]  {_coloured(legs['provenance']['verdict'])}  {_provenance(legs['provenance'])}", highlight=False)
    for d in legs["provenance"]["differing"][:20]:
        line(
            f"  {d['tensor']} {d['index'] or ''}: reference {d['reference']}, mirror {d['mirror']} {d.get('note', '')}",
            highlight=False,
            markup=False,
        )
    lockstep = legs["lockstep"]
    line(
        f"[bold]lockstep[/]    {_coloured(lockstep['verdict'])}  {lockstep['identical']} of {lockstep['points']} points identical",
        highlight=False,
    )
    for raised in lockstep["raised"]:
        line(f"  {raised['input']}: {raised['reason']}", highlight=False, markup=False)
    coverage = legs["coverage"]
    line(f"[bold]coverage[/]    exercised: {', '.join(coverage['exercised']) or 'nothing'}", highlight=False)
    if coverage["not_exercised"]:
        line(f"            [yellow]not exercised[/]: {', '.join(coverage['not_exercised'])}", highlight=False)
    if coverage["absent"]:
        line(f"            absent in this model: {', '.join(coverage['absent'])}", highlight=False)
    line(f"            embedding rows: {coverage['rows']['distinct_ids']} of {coverage['rows']['vocab']}", highlight=False)

    console.print(_layer_table(data["points"]))
    console.print(_logits_table(data["logits"], decode))
    if data["first"]:
        line("[bold red]first[/] " + sentence(data["first"]).replace("[", "\\["), highlight=False)
    line(closing(data), highlight=False)


def closing(data: dict[str, Any]) -> str:
    """The one line at the end: the verdict and the seconds."""
    seconds = f"{data['seconds']['total']:.1f} s"
    if data["peak_rss_anon"]:
        seconds += f", peak RssAnon {data['peak_rss_anon'] / 1e6:,.0f} MB (sampled)"
    if data["exit_code"] == 2:
        return f"[bold yellow]could not judge[/] (reference: {', '.join(data['pedigree']['failed'])}; points {data['verdict']}) in {seconds}"
    word = "[bold green]passes[/]" if data["exit_code"] == 0 else "[bold red]fails[/]"
    return f"{word}: {data['verdict']} in {seconds}"


def _layer_table(points: list[dict[str, Any]]) -> Table:
    groups: dict[str, list[dict[str, Any]]] = {}
    for p in points:
        groups.setdefault(group_of(p["point"]), []).append(p)
    table = Table(title="worst over all inputs", title_justify="left", title_style="bold")
    table.add_column("layer")
    for column in ("points", "max ulp", "max |diff|", "rel L2", "cosine"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for group, members in groups.items():
        table.add_row(
            group,
            str(len(members)),
            _worst(members, "max_ulp", "{:.0f}"),
            _worst(members, "max_abs", "{:.1e}"),
            _worst(members, "rel_l2", "{:.1e}"),
            _worst(members, "cosine", "{:.6f}", smallest=True),
            _coloured(worst(p["verdict"] for p in members)),
        )
    return table


def _logits_table(logits: list[dict[str, Any]], decode: Decode | None) -> Table:
    table = Table(title="logits", title_justify="left", title_style="bold")
    table.add_column("input")
    table.add_column("KL", justify="right")
    table.add_column("top-1", justify="right")
    table.add_column("next tokens, reference")
    table.add_column("mirror")
    for row in logits:
        top = row["top3"]
        table.add_row(
            Text(row["input"]),
            "-" if row["kl"] is None else f"{row['kl']:.1e}",
            "-" if row["top1_agreement"] is None else f"{row['top1_agreement']:.1%}",
            _tokens(top.get("reference", []), decode),
            _tokens(top.get("mirror", []), decode),
        )
    return table


def _tokens(top: list[dict[str, Any]], decode: Decode | None) -> Text:
    return Text(" ".join(repr(decode(t["id"])) if decode else str(t["id"]) for t in top))


def _worst(members: list[dict[str, Any]], key: str, form: str, smallest: bool = False) -> str:
    values = [p[key] for p in members]
    if any(v is None for v in values):
        return "-"
    return form.format(min(values) if smallest else max(values))


def _coloured(verdict: str) -> str:
    return f"[{COLOURS.get(verdict, 'red')}]{verdict}[/]"


def _count(layer_types: list[str]) -> str:
    return ", ".join(f"{layer_types.count(kind)} {kind}" for kind in sorted(set(layer_types)))


def _checks(pedigree: dict[str, Any]) -> str:
    passed = sum(c["passes"] for c in pedigree["checks"])
    text = f"{passed} of {len(pedigree['checks'])} hold"
    return text if not pedigree["failed"] else f"{text}; [red]failed[/]: {', '.join(pedigree['failed'])}"


def _provenance(leg: dict[str, Any]) -> str:
    casts = ", ".join(f"{len(names)} cast {cast}" for cast, names in leg["casts"].items()) or "no casts"
    differing = len(leg["differing"])
    return f"{leg['compared']} compared, {casts}" + (f", [red]{differing} differ[/]" if differing else "")
