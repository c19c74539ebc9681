"""What `bisect` and `compare` show a person, and the JUnit of a bisection."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..verdicts import passes
from .junit import Suite


def _number(x: Any, style: str = ".1e") -> str:
    return "-" if x is None else format(x, style)


def cause_text(cause: dict[str, Any]) -> str:
    """`norm epsilon: 9.9e-07 +- 2e-10, config 1e-05`"""
    text = str(cause["hypothesis"])
    if cause["index"] is not None:
        text = (
            f"one weight, {cause['parameter']} {cause['index']}: off by {cause['estimate']:.4g} +- {cause['estimate_error']:.1g}"
        )
    elif cause["estimate"] is not None:
        text += f": {cause['parameter']} {cause['estimate']:.6g} +- {cause['estimate_error']:.1g}, config {cause['config']:.6g}"
    if cause["class"] == "precision":
        text += " (precision)"
    if cause["also"]:
        text += f"; cannot be told from {', '.join(cause['also'])}"
    return text


def fault_text(fault: dict[str, Any]) -> str:
    """One line about a fault, without its cause."""
    text = f"{fault['point']} ({fault['side']}): {fault['verdict']}"
    if fault["value"]:
        text += f" at {fault['value']}"
    if fault["ratio"] is not None:
        text += f"; {fault['ratio']:.3g} x the noise floor in {fault['input']}, first seen in {fault['first_input']}"
    if fault["note"]:
        text += f"; {fault['note']}"
    return text


def show(data: dict[str, Any], console: Console) -> None:
    """Prints drift over depth, every fault with its operation, source and cause, and the closing line."""
    line = console.print
    candidate = data["candidate"]
    line(Text(f"{data['model']['family']}, candidate {', '.join(f'{k} {v}' for k, v in candidate.items())}"))
    for name in data["pedigree"]["failed"]:
        line(Text(f"the reference failed its own check {name}: what it says proves nothing", style="red"))
    for entry in data["parameters"]:
        line(
            Text(
                f"parameter {entry['parameter']} {entry['index']}: file {entry['file']}, candidate {entry['candidate']}",
                style="red",
            )
        )
    table = Table(title="drift: inherited from above, injected here")
    for column in ("sublayer", "input", "inherited", "injected", "floor", "x floor"):
        table.add_column(column, justify="left" if column in ("sublayer", "input") else "right")
    faulty = {fault["point"] for fault in data["faults"] if fault["side"] == "candidate"}
    for entry in data["drift"]:
        ratio = entry["injected"] / entry["floor"] if entry["injected"] is not None and entry["floor"] else None
        table.add_row(
            entry["point"], entry["input"] or "-", _number(entry["inherited"]), _number(entry["injected"]),
            _number(entry["floor"]), _number(ratio, ".3g"), style="red" if entry["point"] in faulty else None,
        )  # fmt: skip
    line(table, highlight=False)
    if data["steps"]:
        first, apart = data["steps"]["first"], data["steps"]["rel_l2"]
        line(Text(f"decoding {data['steps']['count']} tokens: " + (
            f"first not rounding: {first['input']}, {first['point']}{', ' + first['value'] if first['value'] else ''}"
            if first else "nothing but rounding in any step, layer and state")))  # fmt: skip
        line(
            Text(f"  from one shot, relative L2 at the logits: steps {_number(apart['steps'])}, parts {_number(apart['parts'])}")
        )
    causes: dict[str, int] = {}
    for fault in data["faults"]:
        line(Text(fault_text(fault), style="red"))
        if fault["operation"]:
            where = f" at {fault['source']}" if fault["source"] else ""
            line(Text(f"  operation {fault['operation']['name']} (number {fault['operation']['index']}){where}"))
        if fault["cause"]:
            line(Text(f"  cause: {cause_text(fault['cause'])}"))
            if fault["side"] == "candidate":
                causes[fault["cause"]["hypothesis"]] = causes.get(fault["cause"]["hypothesis"], 0) + 1
        if fault["remark"]:
            line(Text(f"  remark: {fault['remark']}"))
    for hypothesis, count in causes.items():
        points = {f["point"].rpartition(".")[2] for f in data["faults"] if f["cause"] and f["cause"]["hypothesis"] == hypothesis}
        if len(points) == 1 and count > 1:
            kind = points.pop()
            total = sum(d["point"].endswith("." + kind) for d in data["drift"])
            line(Text(f"{hypothesis}: proved in {count} of {total} {kind}"))
    for note in data["notes"]:
        text = (
            f"{note['text']} (first in {note['input']})" if note["hypothesis"] is None else f"{cause_text(note)}, below the bound"
        )
        line(Text(f"note: {note['point']} ({note['side']}): {text}"))
    if data["power"]:
        show_power(data["power"], console)
    coverage = data["coverage"]
    for name, reason in coverage["dropped"].items():
        line(Text(f"not run: {name}: {reason}"))
    if coverage["not_exercised"]:
        line(Text(f"not exercised: {', '.join(coverage['not_exercised'])}"))
    if coverage["not_compared"]:
        shown = ", ".join(coverage["not_compared"][:3])
        line(
            Text(f"not compared: {len(coverage['not_compared'])} points ({shown}{', ...' * (len(coverage['not_compared']) > 3)})")
        )
    for name in coverage["extra"]:
        line(Text(f"extra: {name} is in the file but not in its manifest", style="red"))
    for sentence in nan_sentences(data):
        line(Text(sentence, style="red"))
    line(closing(data), highlight=False)


def show_power(power: dict[str, dict[str, list[str]]], console: Console) -> None:
    """Which kinds of fault this run could have seen, and where it could not."""
    table = Table(title="power: what each hypothesis came to, in sublayers")
    for column in ("hypothesis", "proved", "ruled out", "not discriminated", "same function"):
        table.add_column(column, justify="left" if column == "hypothesis" else "right")
    for hypothesis, standings in power.items():
        counts = [len(standings.get(key, [])) for key in ("proved", "ruled_out", "not_discriminated", "same_function")]
        table.add_row(hypothesis, *(str(count) for count in counts))
    console.print(table, highlight=False)


def closing(data: dict[str, Any]) -> str:
    """The last line: verdict and seconds."""
    word = {0: "passes", 1: "fails", 2: "could not judge"}[data["exit_code"]]
    text = f"{word}: {data['verdict']}"
    if data["command"] == "bisect":
        count = sum(fault["side"] == "candidate" for fault in data["faults"])
        other = len(data["faults"]) - count
        text += f", {count} faulty sublayer{'s' * (count != 1)}" + (f", {other} of the reference" if other else "")
    return f"{text} in {data['seconds']['total']:.1f} s"


def junit_text(data: dict[str, Any]) -> str:
    """One case per sublayer and per invariant of the reference."""
    suite = Suite("lockstep bisect")
    for check in data["pedigree"].get("checks", []):
        suite.case("reference", check["name"], [] if check["passes"] else [f"{check['name']} failed: {check}"])
    suite.case("parameters", "file", [f"{p['parameter']} {p['index']}" for p in data["parameters"]])
    for entry in data["drift"]:
        faults = [f for f in data["faults"] if f["point"] == entry["point"]]
        suite.case(
            "bisect", entry["point"], [fault_text(f) + (f"; {cause_text(f['cause'])}" if f["cause"] else "") for f in faults]
        )
    suite.case("bisect", "manifest", [f"extra: {name}" for name in data["coverage"]["extra"]])
    suite.case("bisect", "finite", nan_sentences(data))
    return suite.text()


def nan_sentences(data: dict[str, Any]) -> list[str]:
    """Rows that no sublayer can be blamed for: their NaN was in its input. One sentence, or none."""
    count = data["coverage"]["nan_rows"]
    return [f"non_finite: {count} rows hold a NaN that came from above: no sublayer made it"] if count else []


def show_comparison(data: dict[str, Any], console: Console) -> None:
    """Prints the points that do not pass, the logits, and the closing line."""
    line = console.print
    if data["only_logits"]:
        line(Text("the traces share no point inside of the model: only the logits were seen"))
    for p in data["points"]:
        if not passes(p["verdict"], data["options"]["bitwise"]):
            worst = f"; worst |diff| {p['max_abs']:.1e} at {p['worst_index']}" if p["max_abs"] is not None else ""
            line(Text(f"{p['point']} ({p['input']}): {p['verdict']}{worst}{'; ' + p['note'] if p['note'] else ''}", style="red"))
    for entry in data["logits"]:
        line(Text(f"{entry['input']}: KL {_number(entry['kl'])}, top-1 agreement {_number(entry['top1_agreement'], '.1%')}"))
    if data["not_compared"]:
        line(Text(f"not compared: {len(data['not_compared'])} points that only one trace promises"))
    same = sum(p["verdict"] == "identical" for p in data["points"])
    line(f"{same} of {len(data['points'])} points identical")
    line(closing(data), highlight=False)
