"""JUnit XML: of a verification, one case for provenance, one per invariant of the reference, one per input and layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from ..verdicts import passes
from .table import group_of, sentence

NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2: no document may hold these


class Suite:
    """A test suite, case by case. Names and messages may come from a file: what XML cannot hold is replaced."""

    def __init__(self, name: str) -> None:
        self._suite = ET.Element("testsuite", name=_xml(name))
        self._failures = 0

    def case(self, classname: str, name: str, problems: Sequence[str]) -> None:
        """It failed if there are problems."""
        element = ET.SubElement(self._suite, "testcase", classname=_xml(classname), name=_xml(name))
        if problems:
            self._failures += 1
            message = _xml(problems[0].splitlines()[0])
            ET.SubElement(element, "failure", message=message).text = _xml("\n".join(problems))

    def text(self) -> str:
        """The XML document."""
        self._suite.set("tests", str(len(self._suite)))
        self._suite.set("failures", str(self._failures))
        ET.indent(self._suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(self._suite, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    return NO_XML.sub("\ufffd", text)


def junit_text(data: dict[str, Any]) -> str:
    """`data` of a verify report -> the XML document."""
    bitwise, accept = data["options"]["bitwise"], data["options"]["accept"] is not None
    suite = Suite(f"lockstep {data['command']}")
    differing = data["legs"]["provenance"]["differing"]
    suite.case(
        "provenance",
        "parameters",
        [f"{d['tensor']} {d['index']}: reference {d['reference']}, mirror {d['mirror']}" for d in differing],
    )
    for check in data["pedigree"]["checks"]:
        suite.case("reference", check["name"], [] if check["passes"] else [f"{check['name']} failed: {check}"])
    lockstep = data["legs"]["lockstep"]
    for raised in lockstep["raised"]:
        suite.case(f"lockstep.{raised['input']}", "raised", [raised["reason"]])
    for fired in lockstep["fired"]:
        suite.case(
            f"lockstep.{fired['input']}", f"{fired['point']} fires once", [f"the reference fired it {fired['times']} times"]
        )
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in data["points"]:
        groups.setdefault((point["input"], group_of(point["point"])), []).append(point)
    for (forward, group), points in groups.items():
        suite.case(f"lockstep.{forward}", group, [sentence(p) for p in points if not passes(p["verdict"], bitwise, accept)])
    return suite.text()
