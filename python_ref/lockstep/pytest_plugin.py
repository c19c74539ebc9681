"""The pytest plugin: a repository's tests guard its model with the fixtures `lockstep_model` and `lockstep_verify`.

pytest loads it wherever Lockstep is installed, so torch and transformers are imported when a test asks for a verdict.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from .verification import Report

NO_MODEL = (
    "lockstep: no model to guard; give --lockstep-model MODEL (a checkpoint folder or a hub id), or lockstep_model in pytest's "
    "ini file"
)


class Verify(Protocol):
    """What the fixture `lockstep_verify` is."""

    def __call__(
        self, model: str | os.PathLike[str] | None = None, *, golden: str | os.PathLike[str] | None = None, **options: Any
    ) -> Report: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lockstep", "a model held to its reference (lockstep)").addoption(
        "--lockstep-model", action="append", metavar="MODEL",
        help="A checkpoint folder or a hub id. Given more than once, every test that uses lockstep_model or lockstep_verify "
        "runs once with each.",
    )  # fmt: skip
    parser.addini("lockstep_model", "What --lockstep-model is if it is not given; folders are beside this file.", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    if not all(name.strip() for name in _given(config)[0]):  # a variable that was never set would be the current folder
        raise pytest.UsageError("--lockstep-model: an empty name; expected a checkpoint folder or a hub id")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names, base = _given(metafunc.config)
    if names and "_lockstep_given" in metafunc.fixturenames:
        models = [str(base / name) if (base / name).is_dir() else name for name in names]  # a test may change its folder
        metafunc.parametrize("_lockstep_given", models, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _lockstep_given(request: pytest.FixtureRequest) -> str | None:
    """The model of the command line or the ini file, if there is one: some tests name their own."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def lockstep_model(_lockstep_given: str | None) -> str:
    """The model under guard: a folder's path or a hub id. Without one the test fails, since an absent check is no pass."""
    if _lockstep_given is None:
        pytest.fail(NO_MODEL, pytrace=False)
    return _lockstep_given


@pytest.fixture
def lockstep_verify(request: pytest.FixtureRequest, _lockstep_given: str | None) -> Verify:
    """lockstep_verify(model=None, **options) -> lockstep.Report; the test fails unless it passes.

    model: `lockstep_model` if left out. options: those of lockstep.verify(), such as dtype, attn, points, accept and patch. With
    golden=FILE the golden trace is replayed instead; atol, rtol, bitwise, accept and revision are the options then.
    """

    def verify(
        model: str | os.PathLike[str] | None = None, *, golden: str | os.PathLike[str] | None = None, **options: Any
    ) -> Report:
        __tracebackhide__ = True
        if model is None:
            model = request.getfixturevalue("lockstep_model")
        name = _shown(model, request.config) + (f", {Path(golden).name}" if golden is not None else "")
        report = _judge(model, golden, options)
        if isinstance(report, str):
            line, details = f"{name}: could not judge: {report}", []
        else:
            line, details = _line(name, report), _details(report)
        # Reports carry a test's properties from xdist's workers, and into JUnit.
        request.node.user_properties.append(("lockstep", line))
        if isinstance(report, str) or not report.passes:
            pytest.fail("\n".join([f"lockstep: {line}", *details]))
        return report

    return verify


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per verdict, also of those that pass."""
    reports = [r for found in terminalreporter.stats.values() for r in found if getattr(r, "when", None) == "teardown"]
    lines = [str(value) for r in reports for name, value in r.user_properties if name == "lockstep"]
    if lines:
        terminalreporter.section("lockstep")
        for line in lines:
            terminalreporter.line(f"lockstep: {line}")


def _given(config: pytest.Config) -> tuple[list[str], Path]:
    """The models under guard, each once, and the folder that they are relative to."""
    names = config.getoption("lockstep_model")
    base = config.invocation_params.dir
    if names is None:
        names = config.getini("lockstep_model")
        base = config.rootpath if config.inipath is None else config.inipath.parent
    return list(dict.fromkeys(names)), base


def _shown(model: str | os.PathLike[str], config: pytest.Config) -> str:
    path = Path(model)
    return str(path.relative_to(config.rootpath)) if path.is_relative_to(config.rootpath) else str(model)


def _judge(model: str | os.PathLike[str], golden: str | os.PathLike[str] | None, options: dict[str, Any]) -> Report | str:
    """A report, or in one sentence why there is none."""
    __tracebackhide__ = True
    try:
        from .native import Error
    except ImportError as error:  # another torch than the extension was built with
        return str(error)
    from .golden import replay
    from .verification import verify

    try:
        return verify(model, **options) if golden is None else replay(model, golden, **options)
    except Error as error:
        return str(error)


def _line(name: str, report: Report) -> str:
    """`MODEL, float32: identical, 1046 points`"""
    pedigree, first = report.data["pedigree"], report.first
    line = f"{name}, {pedigree['dtype']}{', patched' if pedigree.get('patched') else ''}: "
    line += f"could not judge; {report.verdict}" if report.exit_code == 2 else report.verdict
    line += f", {len(report.points)} points"
    if first:
        line += f", first {first['point']} ({first['input']})"
    unexercised = report.legs["coverage"]["not_exercised"]
    return line + (f"; not exercised: {', '.join(unexercised)}" if unexercised else "")


def _details(report: Report) -> list[str]:
    """What a person needs of a report that does not pass."""
    pedigree, legs, first = report.data["pedigree"], report.legs, report.first
    mine, theirs = ("here", "in the trace") if "golden" in pedigree else ("in the mirror", "in the reference")
    lines = []
    if pedigree["failed"]:
        failed = ", ".join(pedigree["failed"])
        lines.append(f"pedigree.failed: {failed}; a reference that fails its own invariants proves nothing")
    for d in legs["provenance"]["differing"][:20]:
        where = f"{d['tensor']} {d['index']}" if d["index"] else d["tensor"]
        lines.append(f"provenance: {where}: {d['mirror']} {mine}, {d['reference']} {theirs}")
    for raised in legs["lockstep"].get("raised", ()):
        lines.append(f"raised: {raised['input']}: {raised['reason']}")
    if report.data.get("why"):
        lines.append(report.data["why"])
    if first:
        from .report.table import sentence

        floors = ((first.get("ratio"), mine), (first.get("reference_ratio"), theirs))
        ratios = [f"; {ratio:.3g} x the noise floor {side}" for ratio, side in floors if ratio is not None]
        lines.append(f"first {sentence(first)}{''.join(ratios)}")
    return lines
