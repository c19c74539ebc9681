"""The HTML page without a browser: one file, nothing from elsewhere, nothing typed or loaded runs, colours that stay apart."""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import lockstep
from conftest import edited
from lockstep import InputError
from lockstep.inspecting import inspect
from lockstep.report import page

EVIL = '</script><img src=x onerror="window.hit=1"><!--<script>&\'\u2028'


class Elements(HTMLParser):
    """Every element with its attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self.open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append((tag, dict(attrs), ""))
            self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            tag, attributes, text = self.inside[-1]
            self.inside[-1] = (tag, attributes, text + data)


def data_of(text: str) -> dict[str, Any]:
    (found,) = [body for tag, attributes, body in Elements(text).inside if attributes.get("id") == "data"]
    return json.loads(found)


@pytest.fixture(scope="module")
def inside(embedded: Path) -> dict[str, Any]:
    return inspect(embedded, ["Permission is hereby granted", "THE SOFTWARE IS"]).data


def test_one_file_that_asks_for_nothing(inside: dict[str, Any]) -> None:
    text = page.page(inside)
    elements = Elements(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "div", "noscript", "script"}
    assert {tag for tag, _ in elements.found} == allowed
    for _, attributes in elements.found:
        assert not {"src", "href", "style", "srcset", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert data_of(text)["models"] == json.loads(json.dumps(inside["models"]))
    own = [body for tag, attributes, body in elements.inside if tag == "script" and not attributes.get("type")]
    assert len(own) == 2
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in own[1]  # nothing of ours makes markup or code out of text


def test_the_policy_allows_its_own_scripts_alone(inside: dict[str, Any]) -> None:
    elements = Elements(page.page(inside))
    (policy,) = [a["content"] for tag, a in elements.found if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "connect-src" not in policy and "*" not in policy

    def digest(body: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'"

    scripts = [body for tag, a, body in elements.inside if tag == "script" and not a.get("type")]
    styles = [body for tag, _, body in elements.inside if tag == "style"]
    assert re.search("script-src ([^;]*)", policy)[1].split() == [digest(body) for body in scripts]  # type: ignore[index]
    assert re.search("style-src ([^;]*)", policy)[1].split() == [digest(body) for body in styles]  # type: ignore[index]


def test_what_is_typed_or_loaded_is_text(inside: dict[str, Any]) -> None:
    evil = copy.deepcopy(inside)
    model = evil["models"][0]
    model["name"] = model["prompts"][0]["text"] = EVIL
    model["vocabulary"] = dict.fromkeys(model["vocabulary"], EVIL)
    text = page.page(evil)
    assert {tag for tag, _ in Elements(text).found} == {tag for tag, _ in Elements(page.page(inside)).found}
    assert "<img" not in text and data_of(text)["models"][0]["name"] == EVIL
    title = html.unescape(re.search("<title>(.*?)</title>", text, re.S)[1])  # type: ignore[index]
    assert title == f"Lockstep: inspect {EVIL}"
    assert "\\u003c/script>" in text


def test_a_folder_with_such_names(qwen: Path, tmp_path: Path) -> None:
    folder = edited(qwen, tmp_path / "<img src=x onerror=alert(1)>")
    text = page.page(inspect(folder, ids=[[1, 2, 3]]).data)
    assert "<img" not in text and data_of(text)["models"][0]["name"] == str(folder)


def test_size_at_full_shape(inside: dict[str, Any]) -> None:
    """24 layers x 60 tokens x 3 prompts: under 6 MB, by what a layer and a token of the real data take."""
    big = copy.deepcopy(inside)
    model = big["models"][0]
    prompt = model["prompts"][0]
    times = -(-60 // len(prompt["ids"]))

    def longer(x: Any, tokens: int) -> Any:
        if isinstance(x, list):
            return (x * times)[:60] if len(x) == tokens and not isinstance(x[0], (dict, list)) else [longer(y, tokens) for y in x]
        return {k: longer(v, tokens) for k, v in x.items()} if isinstance(x, dict) else x

    tokens = len(prompt["ids"])
    prompt = longer(prompt, tokens)
    prompt["layers"] = (prompt["layers"] * 24)[:24]
    prompt["depth"] = (prompt["depth"] * 25)[:25]
    prompt["stream"]["values"] = (prompt["stream"]["values"] * 49)[:49]
    prompt["neurons"]["layers"] = (prompt["neurons"]["layers"] * 24)[:24]
    model["prompts"] = [prompt] * 3
    assert len(prompt["layers"][0]["captures"][0]["l2"]) == 60
    assert len(page.page(big).encode()) < 6_000_000


def test_three_js_is_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MIT License" in page._licence() and page._licence() in html.unescape(page._html({}, "t", None))
    page._scripts.cache_clear()
    monkeypatch.setattr(page, "THREE", (page.THREE[0], "0" * 64))
    with pytest.raises(InputError, match="install lockstep again"):
        page._scripts()
    monkeypatch.undo()
    page._scripts.cache_clear()
    page._scripts()


def lab(rgb: list[float]) -> list[float]:
    """Linear sRGB -> CIE L*a*b*, D65."""
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    xyz = [sum(m * c for m, c in zip(row, rgb, strict=True)) for row in to_xyz]
    f = [x ** (1 / 3) if x > 0.008856 else 7.787 * x + 16 / 116 for x in (xyz[0] / 0.95047, xyz[1], xyz[2] / 1.08883)]
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


# Simulation of full protanopia, deuteranopia and tritanopia in linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
EYES = {
    "all three": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen_by(colour: tuple[float, float, float], eyes: str) -> list[float]:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return lab([min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in EYES[eyes]])


def distance(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def shade(ends: tuple[str, str], t: float) -> tuple[float, float, float]:
    low, high = ([int(end[i : i + 2], 16) / 255 for i in (1, 3, 5)] for end in ends)
    r, g, b = (a + t * (z - a) for a, z in zip(low, high, strict=True))
    return r, g, b


def apart(cool: tuple[str, str], warm: tuple[str, str], eyes: str) -> float:
    """The least distance between the two hues at one size."""
    return min(distance(seen_by(shade(cool, t / 20), eyes), seen_by(shade(warm, t / 20), eyes)) for t in range(21))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", sorted(EYES))
def test_hues_stay_apart_for_all_eyes(theme: str, eyes: str) -> None:
    palette: Any = page.PALETTE[theme]
    assert apart(palette["cool"], palette["warm"], eyes) > 20  # about 2 can just be seen side by side
    for hue in ("cool", "warm"):
        for other in ("bad", "none"):  # one is what could not be measured, the other what was not compared
            colour = palette[other]
            assert min(
                distance(seen_by(shade(palette[hue], t / 20), eyes), seen_by(shade((colour, colour), 0), eyes)) for t in range(21)
            ) > (12 if other == "bad" else 8)
        low, high = (seen_by(shade(palette[hue], t), eyes) for t in (0, 1))
        assert distance(low, high) > 30  # small and large
        assert (low[0] > high[0]) == (theme == "light")
    assert apart(("#ff0000", "#ff0000"), ("#00b400", "#00b400"), "deuteranopia") < apart(
        ("#ff0000", "#ff0000"), ("#00b400", "#00b400"), "all three"
    )  # the simulation sees what it should not: red against green


def test_the_page_draws_what_the_commands_write(embedded: Path, tmp_path: Path) -> None:
    """verify, bisect with a fault, and what their JSON lacks."""
    verified = lockstep.verify(embedded, ids="1,2,3").data
    text = page.page(verified)
    shown = data_of(text)
    assert shown["legs"] == json.loads(json.dumps(verified["legs"])) and "first" not in shown["shown"]
    del verified["legs"], verified["pedigree"]
    page.page(verified)

    file = tmp_path / "fork.py"
    file.write_text(
        "import torch, transformers\n"
        "def load(folder, dtype):\n"
        "    model = transformers.Qwen3_5ForCausalLM.from_pretrained(folder, dtype=dtype)\n"
        "    model.model.layers[2].mlp.down_proj.weight.data.mul_(1.01)\n"
        "    return model\n"
    )
    found = lockstep.bisect(embedded, f"{file}:load", ids="1,2,3,4,5,6,7,8,9,10,11,12")
    assert found.exit_code == 1
    shown = data_of(page.page(found.data))["shown"]
    assert any(f["title"].startswith("model.layers.2.mlp") for f in shown["faults"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "command None"),
        ({"command": "generate", "format_version": 1}, "expected the JSON of"),
        ({"command": "verify"}, "format_version None"),
        ({"command": "verify", "format_version": 99}, "draws up to 1"),
        ({"command": "verify", "format_version": 1, "points": {"a": 1}}, "points: expected a list"),
        ({"command": "verify", "format_version": 1, "points": ["x"]}, "points: expected a list"),
        ({"command": "inspect", "format_version": 1, "models": []}, "models: expected at least one"),
        ({"command": "bisect", "format_version": 1, "faults": [{}]}, "not as this release writes it"),
        ({"command": "verify", "format_version": 1, "legs": 3}, "legs: expected an object"),
        ({"command": "verify", "format_version": 1, "atol": float("nan")}, "cannot be written as JSON"),
    ],
)
def test_other_json_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        page.page({"exit_code": 1, "verdict": "deviates", **data})


def test_the_report_command(tmp_path: Path, embedded: Path) -> None:
    command = [str(Path(sys.executable).with_name("lockstep")), "report"]

    def run(*arguments: Path | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=300)

    good, out = tmp_path / "good.json", tmp_path / "out.html"
    good.write_text(json.dumps(lockstep.verify(embedded, ids="1,2,3").data))
    done = run(good, "-o", out)
    assert done.returncode == 0 and out.read_text().startswith("<!doctype html>"), done.stderr
    odd = tmp_path / "odd.json"
    odd.write_text(
        '{"command": "verify", "format_version": 1, "x": 1e999, "y": NaN, "z": "\\ud800", "exit_code": 1, "verdict": "deviates"}'
    )
    done = run(odd, "-o", out)
    assert done.returncode == 0 and data_of(out.read_text())["x"] is None, done.stderr
    bad, deep = tmp_path / "bad.json", tmp_path / "deep.json"
    bad.write_text("{")
    deep.write_text('{"command": "verify", "format_version": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    for arguments, message in (
        ((bad, "-o", tmp_path / "x.html"), "found no JSON"),
        ((deep, "-o", tmp_path / "x.html"), "JSON"),
        ((tmp_path / "none.json", "-o", tmp_path / "x.html"), "No such file"),
        ((good, "-o", good), "would overwrite"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "x.html").exists()


def test_a_page_passes_only_what_passes(tmp_path: Path) -> None:
    """Its JSON may be edited, cut or of another tool: what it says of itself must be one thing."""
    good = {"command": "verify", "format_version": 1, "exit_code": 0, "verdict": "agrees"}
    page.page(good)
    model = {"name": "m", "layer_types": ["full_attention"], "prompts": [{}]}
    for changes, message in (
        ({"command": []}, "command"),
        ({"command": {}}, "command"),
        ({"format_version": True}, "format_version"),
        ({"verdict": None}, "verdict None: expected one of identical"),
        ({"verdict": "x"}, "verdict 'x': expected one of identical"),
        ({"exit_code": None}, "exit_code None: expected 0, 1 or 2"),
        ({"exit_code": False}, "exit_code False: expected 0, 1 or 2"),
        ({"verdict": "deviates"}, "exit_code 0, but verdict: 'deviates'"),
        ({"points": [{"point": "a", "verdict": "non_finite"}]}, "exit_code 0, but points a: 'non_finite'"),
        ({"pairs": [{"verdict": "deviates"}]}, "exit_code 0, but pairs 0: 'deviates'"),
        ({"tensors": [{"name": "a.b", "verdict": "missing"}]}, "exit_code 0, but tensors a.b: 'missing'"),
        ({"command": "inspect"}, "models: expected at least one"),
        ({"command": "inspect", "models": [{}]}, "models 0: name: expected a text, found null"),
        ({"command": "inspect", "models": [{**model, "layer_types": []}]}, "models 0: layer_types: expected a list"),
        ({"command": "inspect", "models": [{**model, "prompts": [1]}]}, "models 0: prompts: expected a list"),
    ):
        with pytest.raises(InputError) as refused:
            page.page({**good, **changes})
        assert message in str(refused.value)
    file = tmp_path / "large.json"
    file.write_text(json.dumps(good)[:-1] + f', "n": {10**400}}}')
    assert page.read(file)["n"] is None
