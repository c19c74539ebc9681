"""Every green check has a planted fault that turns it red, with `first` at the right place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lockstep
from conftest import some_inputs
from faults import FAULTS, Fault, modeling


@pytest.fixture(scope="module")
def showing(embedded: Path) -> list[dict[str, Any]]:
    """Short, over a chunk's edge, padded, handed over: each fault is visible in one of them."""
    return some_inputs(embedded, ("len2", "len65", "pad2", "split2_148.0", "split2_148.1", "step1"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_red_at_the_right_place(
    fault: Fault, embedded: Path, showing: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in fault.functions:  # put back after the test
        monkeypatch.setattr(modeling, name, getattr(modeling, name))
    report = lockstep.verify(embedded, points="all", inputs=showing, patch=fault.patch)
    assert report.exit_code in fault.exit_codes
    assert report.first is not None
    assert report.first["point"].startswith(fault.first)
    if fault.input:
        assert report.first["input"] == fault.input


def test_the_same_run_without_a_fault_is_green(embedded: Path, showing: list[dict[str, Any]]) -> None:
    report = lockstep.verify(embedded, points="all", inputs=showing, patch=lambda model: None)
    assert (report.exit_code, report.verdict) == (0, "identical")
    assert report.data["pedigree"]["patched"]
