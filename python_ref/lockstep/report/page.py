"""The HTML page: one file that opens anywhere, from the JSON of a command. What it holds is drawn by the scripts beside it
(page/*.js); everything typed or loaded goes in as data and is shown as text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..native import InputError
from ..verdicts import VERDICTS, passes
from . import findings, table

PAGE = Path(__file__).parent / "page"
# three.js 0.187.0 with its orbit controls, one classic script: scripts/make_three_bundle says how it is made.
THREE = ("three.bundle.js", "59769a018c2707028efcc5df0a9ab3a36d1de73b68af01b4a8d8ff43389958ef")
SCRIPTS = (
    "dom.js", "charts.js", "colours.js", "tower.js", "panel.js", "sections.js", "writes.js", "drift.js", "live.js", "page.js",
)  # fmt: skip
COMMANDS = {"verify": 1, "bisect": 1, "matrix": 1, "check": 1, "inspect": 1}  # what a page is made of, and up to which version

# The ends of each hue, from the least to the most. Warm and cool stay apart for colour-blind eyes all the way (a test
# computes their distance), and both run from pale to strong on light ground and from dim to bright on dark ground. `bad` is
# what could not be measured at all, `none` what was not compared.
PALETTE = {
    "light": {"cool": ("#a9c7ec", "#08306b"), "warm": ("#f6b26b", "#8f2d00"), "none": "#c9ccd1", "bad": "#000000"},
    "dark": {"cool": ("#1f4e8c", "#b9dcff"), "warm": ("#8a3d00", "#ffd08a"), "none": "#4a4f57", "bad": "#ffffff"},
}


def page(data: Mapping[str, Any]) -> str:
    """The whole HTML file. raises InputError for a JSON that no page is made of"""
    command = _checked(data)
    title = f"Lockstep: {command}"
    if command == "inspect":
        title += " " + ", ".join(str(model.get("name", "")) for model in data["models"])
    try:
        return _html({**data, "shown": _shown(data)}, title, live=None)
    except (ValueError, TypeError, RecursionError) as error:  # NaN from Python, objects, nesting without end
        raise InputError(
            f"{command}: it cannot be written as JSON ({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from None


def live_page(models: list[str], token: str, most_prompts: int, most_characters: int) -> str:
    """The page that asks this machine's server for what it draws."""
    live = {"models": models, "token": token, "most_prompts": most_prompts, "most_characters": most_characters}
    return _html({}, "Lockstep, live", live)


def policy(live: bool) -> str:
    """The Content-Security-Policy of the page: its own scripts and style by their hashes, nothing else."""
    connect = "; connect-src 'self'" if live else ""
    scripts = " ".join(f"'sha256-{_digest(text)}'" for text in _scripts())
    return f"default-src 'none'; script-src {scripts}; style-src 'sha256-{_digest(_style())}'{connect}; base-uri 'none'; form-action 'none'"


def _html(data: Mapping[str, Any], title: str, live: Mapping[str, Any] | None) -> str:
    three, own = _scripts()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(live is not None))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{_style()}</style></head><body>",
        '<div id="page"><noscript>This page draws its data with a script of its own, which this browser does not run.</noscript></div>',
        _data("palette", PALETTE),
        _data("data", data),
        *([] if live is None else [_data("live", live)]),
        f"<!-- three.js, {html.escape(_licence())} -->",
        f"<script>{three}</script>",
        f"<script>{own}</script>",
        "</body></html>",
    ]
    return ("\n".join(parts) + "\n").encode("utf-8", "replace").decode()  # a lone surrogate is no text


def _data(name: str, value: Any) -> str:
    """A JSON element. No text in it can end the element: `<` is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>'


@cache
def _scripts() -> tuple[str, str]:
    name, digest = THREE
    three = (PAGE / name).read_text(encoding="utf-8")
    if hashlib.sha256(three.encode()).hexdigest() != digest:
        raise InputError(f"{PAGE / name}: not the file that this release was made with (sha256 {digest}); install lockstep again")
    return three, "\n".join((PAGE / script).read_text(encoding="utf-8") for script in SCRIPTS)


@cache
def _style() -> str:
    return (PAGE / "page.css").read_text(encoding="utf-8")


@cache
def _licence() -> str:
    return " ".join((PAGE / "three.LICENSE").read_text(encoding="utf-8").split())


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _checked(data: Mapping[str, Any]) -> str:
    command = data.get("command") if isinstance(data, Mapping) else None
    if not isinstance(command, str) or command not in COMMANDS:
        raise InputError(f"command {command!r}: expected the JSON of {', '.join(sorted(COMMANDS))}")
    version = data.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"format_version {version!r}: expected 1 to {COMMANDS[command]}")
    if version > COMMANDS[command]:
        raise InputError(f"format_version {version}: this release draws up to {COMMANDS[command]}; use the release that wrote it")
    lists = ("points", "faults", "drift", "notes", "parameters", "pairs", "tensors", "files", "models")
    for key in lists:
        rows = data.get(key)
        if rows is not None and not (isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)):
            raise InputError(f"{key}: expected a list of objects, found {_kind(rows)}")
    for key in ("model", "pedigree", "legs", "options", "coverage"):
        if data.get(key) is not None and not isinstance(data[key], Mapping):
            raise InputError(f"{key}: expected an object, found {_kind(data[key])}")
    _check_verdict(data)
    if command == "inspect":
        _check_models(data.get("models"))
    return command


def _kind(value: Any) -> str:
    """What JSON calls it."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _check_verdict(data: Mapping[str, Any]) -> None:
    """A page that shows a pass must have one to show: the exit code, the verdict and the rows say the same."""
    verdict, code = data.get("verdict"), data.get("exit_code")
    if not isinstance(verdict, str) or verdict not in VERDICTS:
        raise InputError(f"verdict {verdict!r}: expected one of {', '.join(VERDICTS)}")
    if code not in (0, 1, 2) or isinstance(code, bool):
        raise InputError(f"exit_code {code!r}: expected 0, 1 or 2")
    if code != 0:
        return
    rows = [("verdict", verdict)] + [
        (f"{key} {row.get('name', row.get('point', i))}", row.get("verdict", "identical"))
        for key in ("points", "faults", "pairs", "files", "tensors", "parameters")
        for i, row in enumerate(data.get(key) or ())
        if key != "faults" or row.get("side") == "candidate"
    ]
    for name, stated in rows:
        if stated not in VERDICTS or not passes(stated, bitwise=False, accept_rounding=True):
            raise InputError(f"exit_code 0, but {name}: {stated!r}: expected both as the command wrote them")


def _check_models(models: Any) -> None:
    if not models:
        raise InputError("models: expected at least one")
    for i, model in enumerate(models):
        if not isinstance(model.get("name"), str):
            raise InputError(f"models {i}: name: expected a text, found {_kind(model.get('name'))}")
        for key, kind in (("layer_types", str), ("prompts", Mapping)):
            rows = model.get(key)
            if not isinstance(rows, list) or not rows or not all(isinstance(row, kind) for row in rows):
                raise InputError(f"models {i}: {key}: expected a list with something in it, found {_kind(rows)}")


def _shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """Sentences that the terminal's report has too: one wording for both."""
    shown: dict[str, Any] = {}
    try:
        if data["command"] == "verify" and data.get("first"):
            shown["first"] = table.sentence(data["first"])
        if data["command"] == "check" and data.get("first"):
            first = data["first"]
            shown["first"] = first if isinstance(first, str) else f"{first.get('name')}: {first.get('verdict')}"
        if data["command"] == "bisect":
            shown["faults"] = [_fault(fault) for fault in data.get("faults") or ()]
            shown["notes"] = [
                f"{n['point']} ({n['side']}): {n['text'] if n['hypothesis'] is None else findings.cause_text(n)}"
                for n in data.get("notes") or ()
            ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{data['command']}: not as this release writes it ({type(error).__name__}: {error})") from None
    return shown


def _fault(fault: Mapping[str, Any]) -> dict[str, Any]:
    lines = []
    if fault.get("operation"):
        where = f" at {fault['source']}" if fault.get("source") else ""
        lines.append(f"operation {fault['operation']['name']} (number {fault['operation']['index']}){where}")
    if fault.get("cause"):
        lines.append(f"cause: {findings.cause_text(fault['cause'])}")
    if fault.get("remark"):
        lines.append(f"remark: {fault['remark']}")
    return {"title": findings.fault_text(dict(fault)), "lines": lines}


def _finite(text: str) -> float | None:
    """A number that no float holds, like 1e999, is not finite: null, as everywhere."""
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | None:
    """A number that no page can draw is none."""
    return int(text) if len(text) < 300 else None


def read(path: Path) -> dict[str, Any]:
    """The JSON of a command. raises InputError"""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected the JSON of a command, found no JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected the JSON of a command, found {_kind(data)}")
    return data
