"""JUnit XML: one case for provenance, one per invariant of the reference, one per input and layer."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from ..verdicts import passes
from .table import group_of, sentence


def junit_text(data: dict[str, Any]) -> str:
    """`data` of a verify report -> the XML document."""
    bitwise, accept = data["options"]["bitwise"], data["options"]["accept"] is not None
    suite = ET.Element("testsuite", name=f"lockstep {data['command']}")
    failures = 0

    def case(classname: str, name: str, problem: str | None) -> None:
        nonlocal failures
        element = ET.SubElement(suite, "testcase", classname=classname, name=name)
        if problem is not None:
            failures += 1
            ET.SubElement(element, "failure", message=problem.splitlines()[0]).text = problem

    differing = data["legs"]["provenance"]["differing"]
    case("provenance", "parameters", None if not differing else "\n".join(
        f"{d['tensor']} {d['index']}: reference {d['reference']}, mirror {d['mirror']}" for d in differing))  # fmt: skip
    for check in data["pedigree"]["checks"]:
        case("reference", check["name"], None if check["passes"] else f"{check['name']} failed: {check}")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in data["points"]:
        groups.setdefault((point["input"], group_of(point["point"])), []).append(point)
    for (forward, group), points in groups.items():
        bad = [sentence(p) for p in points if not passes(p["verdict"], bitwise, accept)]
        case(f"lockstep.{forward}", group, "\n".join(bad) if bad else None)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
