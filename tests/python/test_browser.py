"""The page in a real browser (Debian's Chromium, headless, WebGL in software, the network off), and the live page driven in it.

Screenshots are left in build/screenshots.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from conftest import edited, make_twin
from lockstep import inspecting
from lockstep.inspecting import inspect
from lockstep.report import page
from lockstep.serving import Server
from test_page import EVIL
from test_serving import OPTIONS, slowed

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.full
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WEBGL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
NO_WEBGL = ["--disable-gpu", "--disable-3d-apis"]
Browser = Callable[..., Any]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    open_ones: list[Any] = []

    def start(*flags: str, network: bool = False) -> Any:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
        for flag in (
            "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / f'profile{len(open_ones)}'}",
            "--window-size=1280,800", "--force-device-scale-factor=1", *(flags or WEBGL),
        ):  # fmt: skip
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver") or "/usr/bin/chromedriver")
        driver = webdriver.Chrome(options=options, service=service)
        open_ones.append(driver)
        if not network:
            driver.execute_cdp_cmd("Network.enable", {})
            off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            driver.execute_cdp_cmd("Network.emulateNetworkConditions", off)
        # The viewport itself, whatever the window's frame takes.
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        )
        return driver

    yield start
    for driver in open_ones:
        driver.quit()


@pytest.fixture(scope="module")
def inside() -> dict[str, Any]:
    prompts = ["Permission is hereby granted, free of charge", "any fee or charge", "THE SOFTWARE IS PROVIDED"]
    return inspect(None, prompts).data


def shown(driver: Any, data: dict[str, Any], where: Path) -> None:
    where.write_text(page.page(data), encoding="utf-8")
    driver.get(where.as_uri())
    WebDriverWait(driver, 30).until(lambda d: d.execute_script("return Boolean(window.lockstep)"))


def errors(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def shot(driver: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    assert driver.save_screenshot(str(SHOTS / f"{name}.png"))


def slice_colours(driver: Any) -> list[str]:
    return driver.execute_script("return lockstep.tower.space.group.children.map((m) => m.material.color.getHexString())")


def hue(colour: str) -> str:
    r, _, b = (int(colour[i : i + 2], 16) for i in (0, 2, 4))
    return "warm" if r > b else "cool"


def settled(driver: Any) -> None:
    """Two frames: what was asked for is drawn."""
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")


def test_the_tower(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    driver = browser()
    shown(driver, inside, tmp_path / "in side.html")
    types = inside["models"][0]["layer_types"]
    colours = slice_colours(driver)
    assert len(colours) == len(types)
    assert [hue(c) for c in colours] == ["warm" if t == "full_attention" else "cool" for t in types]
    assert {hue(c) for c in colours} == {"warm", "cool"}
    check = driver.find_element(By.CSS_SELECTOR, ".check")
    assert check.text.startswith("✓") and check.get_attribute("data-passes") == "true"
    settled(driver)
    pixels = driver.execute_script(
        "const c = document.querySelector('canvas'), t = document.createElement('canvas'); t.width = c.width; t.height = c.height;"
        "lockstep.tower.space.renderer.render(lockstep.tower.space.scene, lockstep.tower.space.camera);"
        "const x = t.getContext('2d'); x.drawImage(c, 0, 0); const d = x.getImageData(0, 0, t.width, t.height).data;"
        "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n / (d.length / 4)"
    )
    assert pixels > 0.02  # something is drawn

    # A click on layer 3 in space opens its panel, with seven bars.
    driver.execute_script("lockstep.tower.choose(0)")
    assert driver.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 0")
    x, y = driver.execute_script("return lockstep.tower.space.place(3)")
    for kind in ("mousePressed", "mouseReleased"):
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x - 3, "y": y, "button": "left", "clickCount": 1})
    WebDriverWait(driver, 10).until(lambda d: d.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 3"))
    assert len(driver.find_elements(By.CSS_SELECTOR, "#panel .bar")) == 7

    # The token selector changes the colours.
    Select(driver.find_element(By.ID, "token")).select_by_index(1)
    assert slice_colours(driver) != colours
    settled(driver)
    shot(driver, "tower")
    assert errors(driver) == []


def legible(driver: Any) -> None:
    """No text smaller than 10 px, none that leaves the page, and none with too little contrast."""
    small, wide, faint = driver.execute_script(
        """
        const lum = (c) => { const v = c.map((x) => { x /= 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
                             return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
        const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
                                return [255, 255, 255]; };
        const small = [], wide = [], faint = [];
        for (const e of document.querySelectorAll('body *')) {
          const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
          if (!own || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION', 'title'].includes(e.tagName)) continue;
          const box = e.getBoundingClientRect(), style = getComputedStyle(e);
          if (!box.width || !box.height) continue;
          const size = e instanceof SVGElement ? parseFloat(style.fontSize) * e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width : parseFloat(style.fontSize);
          if (size < 10) small.push([e.textContent.slice(0, 40), size]);
          if (!e.closest('.scroll, .slices, .chart') && box.right > innerWidth + 1) wide.push(e.textContent.slice(0, 40));
          const ink = rgb(e instanceof SVGElement ? style.fill : style.color), a = lum(ink), b = lum(ground(e));
          if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.push([e.textContent.slice(0, 40), ink, ground(e)]);
        }
        return [small, wide, faint];
        """
    )
    assert small == [] and wide == [] and faint == []
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800])
def test_it_is_legible(browser: Browser, inside: dict[str, Any], tmp_path: Path, theme: str, width: int) -> None:
    driver = browser()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    shown(driver, inside, tmp_path / "page.html")
    settled(driver)
    legible(driver)
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")
    shot(driver, f"{theme}-{width}")
    assert errors(driver) == []


def test_without_webgl_the_tower_is_flat(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    driver = browser(*NO_WEBGL)
    shown(driver, inside, tmp_path / "page.html")
    assert driver.execute_script("return lockstep.tower.space") is None
    slices = driver.find_elements(By.CSS_SELECTOR, ".slice")
    types = inside["models"][0]["layer_types"]
    assert len(slices) == len(types)
    chips = [s.find_element(By.CLASS_NAME, "chip").value_of_css_property("background-color") for s in slices]
    numbers = [[int(x) for x in chip[chip.index("(") + 1 : -1].split(",")[:3]] for chip in chips]
    assert ["warm" if r > b else "cool" for r, _, b in numbers] == [
        "warm" if t == "full_attention" else "cool" for t in reversed(types)
    ]
    driver.find_element(By.CSS_SELECTOR, '.slice[data-layer="3"]').click()
    assert driver.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 3")
    assert len(driver.find_elements(By.CSS_SELECTOR, "#panel .bar")) == 7
    legible(driver)
    shot(driver, "flat")
    assert errors(driver) == []


def test_everything_by_keyboard(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    driver = browser()
    shown(driver, inside, tmp_path / "page.html")
    reached: list[str] = []
    for _ in range(400):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        found = driver.execute_script(
            "const e = document.activeElement; return e === document.body ? '' : e.id || e.className || e.textContent.slice(0, 20) || e.tagName"
        )
        if found in ("", None):
            break
        reached.append(str(found))
    for wanted in ("prompt", "token", "slice", "Play", "Step", "theme"):
        assert any(wanted in name for name in reached), (wanted, reached)
    assert driver.execute_script("return document.querySelectorAll('canvas[tabindex]').length") == 1

    canvas = driver.find_element(By.CSS_SELECTOR, "canvas")
    before = driver.execute_script("return lockstep.tower.space.camera.position.toArray()")
    canvas.send_keys(Keys.ARROW_LEFT)
    canvas.send_keys("+")
    assert driver.execute_script("return lockstep.tower.space.camera.position.toArray()") != before
    button = driver.find_element(By.CSS_SELECTOR, '.slice[data-layer="0"]')
    button.send_keys(Keys.ARROW_UP)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert driver.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 1")
    # A control that draws itself anew has the focus still; a table that was open is, write after write.
    for control in ("prompt", "statistic"):
        driver.find_element(By.ID, control).send_keys(Keys.ARROW_DOWN)
        assert driver.switch_to.active_element.get_attribute("id") == control
        assert driver.find_element(By.ID, control).get_property("selectedIndex") != 0
    theme = driver.find_element(By.ID, "theme")
    theme.send_keys(Keys.ENTER)
    assert driver.switch_to.active_element.get_attribute("id") == "theme"
    driver.find_element(By.CSS_SELECTOR, "#writes summary").send_keys(Keys.ENTER)
    (step,) = [b for b in driver.find_elements(By.CSS_SELECTOR, "#writes button") if b.text == "Step"]
    step.send_keys(Keys.ENTER)
    assert driver.find_element(By.CSS_SELECTOR, "#writes details").get_attribute("open") is not None
    # A table beside every picture.
    assert driver.execute_script("return [...document.querySelectorAll('figure')].every((f) => f.querySelector('table'))")
    assert driver.execute_script("return document.querySelectorAll('figure').length") > 6
    assert errors(driver) == []


def test_the_stream_as_it_is_written(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    driver = browser()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]})
    shown(driver, inside, tmp_path / "page.html")
    layers = len(inside["models"][0]["layer_types"])
    steps = driver.find_element(By.CSS_SELECTOR, "#writes input[type=range]")
    assert steps.get_attribute("max") == str(2 * layers + 1)

    def said() -> str:
        return driver.find_element(By.CSS_SELECTOR, "#writes .hint").text

    def press(name: str) -> None:
        (button,) = [b for b in driver.find_elements(By.CSS_SELECTOR, "#writes button") if b.text == name]
        button.click()

    assert driver.execute_script("return lockstep.writes.pause()") == 2000  # less motion: slower
    assert "the embedding" in said()
    press("Step")
    assert "linear_attn writes" in said() or "self_attn writes" in said()
    assert len(driver.find_elements(By.CSS_SELECTOR, "#writes .bar")) == 64
    press("Step back")
    assert "the embedding" in said()
    steps.send_keys(Keys.END)
    assert "the head reads the sum" in said()
    first, last = driver.find_elements(By.CSS_SELECTOR, "#writes select")
    Select(last).select_by_index(0)
    assert steps.get_attribute("max") == "2"
    Select(first).select_by_index(3)  # past the last: it stays before it, and says so
    assert first.get_property("value") == "0"
    press("Play")
    driver.find_element(By.ID, "theme").click()  # other colours, the same moment
    press("Pause")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": ""}]})
    assert driver.execute_script("return lockstep.writes.pause()") < 1000
    assert errors(driver) == []
    shot(driver, "writes")


def test_markup_is_shown_as_text(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    evil = copy.deepcopy(inside)
    model = evil["models"][0]
    model["name"] = model["prompts"][0]["text"] = EVIL
    model["vocabulary"] = dict.fromkeys(model["vocabulary"], EVIL)
    driver = browser()
    shown(driver, evil, tmp_path / "page.html")
    assert driver.execute_script("return window.hit") is None
    assert driver.execute_script("return document.images.length") == 0
    assert EVIL.split("<!--")[0] in driver.execute_script("return document.querySelector('h1').textContent")
    assert "onerror" in driver.find_element(By.ID, "depth").get_attribute("textContent")
    assert errors(driver) == []


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: Browser, inside: dict[str, Any], tmp_path: Path) -> None:
    """The policy itself, by a page that somebody has put a script into."""
    driver = browser()
    file = tmp_path / "page.html"
    file.write_text(page.page(inside).replace("</body>", "<script>window.hit = 1</script></body>"), encoding="utf-8")
    driver.get(file.as_uri())
    WebDriverWait(driver, 30).until(lambda d: d.execute_script("return Boolean(window.lockstep)"))
    assert driver.execute_script("return window.hit") is None
    assert any("Content Security Policy" in message for message in errors(driver))


def drift(driver: Any, data: dict[str, Any], where: Path) -> list[float | None]:
    shown(driver, data, where)
    return driver.execute_script("return lockstep.tower.slices.map((s) => s.value)")


def test_the_drift_view(browser: Browser, embedded: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork.py"
    fork.write_text(
        "import transformers\n"
        "def load(folder, dtype):\n"
        "    model = transformers.Qwen3_5ForCausalLM.from_pretrained(folder, dtype=dtype)\n"
        "    model.model.layers[2].mlp.down_proj.weight.data.mul_(1.01)\n"
        "    return model\n"
    )
    driver = browser()
    found = lockstep.bisect(embedded, f"{fork}:load").data
    values = drift(driver, found, tmp_path / "bisect.html")
    assert values.index(max(v for v in values if v is not None)) == 2
    assert driver.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 2")
    assert "model.layers.2.mlp" in driver.find_element(By.CSS_SELECTOR, ".fault").text
    legible(driver)
    shot(driver, "bisect")

    good = lockstep.verify(embedded).data
    assert set(drift(driver, good, tmp_path / "verify.html")) == {0}
    assert [leg.text.split()[0] for leg in driver.find_elements(By.CSS_SELECTOR, ".leg")] == [
        "Provenance",
        "Lockstep",
        "Coverage",
    ]
    legible(driver)
    shot(driver, "verify")

    exported = tmp_path / "out"
    lockstep.export(embedded, exported)
    edited(exported, tmp_path / "changed", lambda t: t["model.layers.1.mlp.down_proj.weight"][0].add_(1))
    checked = lockstep.check(tmp_path / "changed")
    assert checked["exit_code"] == 1
    values = drift(driver, checked, tmp_path / "check.html")
    assert values[1] and not any(v for i, v in enumerate(values) if i != 1)
    shot(driver, "check")

    empty = {"command": "verify", "format_version": 1, "verdict": "identical", "exit_code": 0}
    driver.get((tmp_path / "check.html").as_uri())
    (tmp_path / "empty.html").write_text(page.page(empty), encoding="utf-8")
    driver.get((tmp_path / "empty.html").as_uri())
    assert "passes" in driver.find_element(By.TAG_NAME, "header").text
    assert errors(driver) == []


def test_what_is_not_finite_is_a_dash(browser: Browser, qwen: Path, tmp_path: Path) -> None:
    broken = edited(qwen, tmp_path / "nan", lambda t: t["model.layers.2.mlp.down_proj.weight"].fill_(float("nan")))
    driver = browser()
    shown(driver, inspect(broken, ids=[[1, 2, 3, 4]]).data, tmp_path / "page.html")
    numbers = [e.text for e in driver.find_elements(By.CSS_SELECTOR, ".slice .number")]
    assert numbers[:2] == ["\u2013", "\u2013"] and "\u2013" not in numbers[2:]
    assert "not finite" in driver.find_element(By.TAG_NAME, "header").text
    assert errors(driver) == []


def test_two_models_of_other_sizes(browser: Browser, embedded: Path, tmp_path: Path) -> None:
    one = make_twin(tmp_path / "one", "llama", num_hidden_layers=1)
    driver = browser()
    shown(driver, inspect([one, embedded], ids=[[5]]).data, tmp_path / "page.html")
    assert len(slice_colours(driver)) == 1
    near = driver.execute_script("return lockstep.tower.space.camera.position.length()")
    Select(driver.find_element(By.ID, "model")).select_by_index(1)
    assert len(slice_colours(driver)) == 8
    assert driver.execute_script("return lockstep.tower.space.camera.position.length()") >= near
    x, y = driver.execute_script("return lockstep.tower.space.place(7)")
    box = driver.execute_script(
        "const b = document.querySelector('canvas').getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]"
    )
    assert box[0] < x < box[2] and box[1] < y < box[3]
    assert str(one) in driver.find_element(By.TAG_NAME, "footer").text
    assert errors(driver) == []


def test_the_drift_views_gate_is_the_runs_own(browser: Browser, embedded: Path, tmp_path: Path) -> None:
    """What agrees is green, unless only bits pass; a NaN is the darkest, not the palest; hostile names are text."""

    def nudge(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight.data[0, 0] += 1e-7

    driver = browser()
    for bitwise in (False, True):
        data = lockstep.verify(embedded, ids="1,2,3,4", patch=nudge, bitwise=bitwise).data
        drift(driver, data, tmp_path / "verify.html")
        marked = driver.execute_script("return lockstep.tower.slices.map((s) => s.bad)")
        leg = driver.find_elements(By.CSS_SELECTOR, ".leg")[1]
        assert any(marked) == bitwise and leg.get_attribute("data-passes") == str(not bitwise).lower()

    evil = copy.deepcopy(data)
    for point in evil["points"]:
        if point["point"].startswith("model.layers.5"):
            point.update(verdict="non_finite", max_abs=None, ratio=None)
        else:
            point.update(verdict="rounding", floor=1e-7, ratio=1.0)
    evil["options"].update(bitwise=False, accept="rounding")
    evil["points"][0]["point"] = evil["model"]["family"] = EVIL
    values = drift(driver, evil, tmp_path / "evil.html")
    assert values[5] is None and slice_colours(driver)[5] == "000000"
    assert driver.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("Layer 5")
    assert driver.execute_script("return [window.hit === undefined, document.images.length]") == [True, 0]
    assert errors(driver) == []


def test_the_drift_view_of_a_matrix_and_of_a_failed_replay(browser: Browser, embedded: Path, tmp_path: Path) -> None:
    driver = browser()
    points = [{"point": f"model.layers.{i}.mlp.output", "input": "a", "verdict": "rounding", "max_abs": 1e-6, "floor": 1e-7, "ratio": 1.0 + i, "pair": n}
              for n in (0, 1) for i in range(3 + n)]  # fmt: skip
    pair = {"a": "5.18.0", "b": "5.18.0", "dtype": "float32", "attn": "sdpa", "verdict": "rounding", "changed": []}
    data = {"command": "matrix", "format_version": 1, "verdict": "rounding", "exit_code": 0, "pairs": [pair, pair], "points": points,
            "model": {"family": "qwen3_5", "layer_types": ["linear_attention"] * 4, "digest": "x"}, "options": {"bitwise": False},
            "pedigree": {"environments": [{"python": "p", "transformers": "5.18.0", "torch": "t", "cpu_capability": "c"}]}}  # fmt: skip
    assert drift(driver, data, tmp_path / "matrix.html") == [1, 2, 3, None]
    Select(driver.find_element(By.ID, "pair")).select_by_index(1)
    assert driver.execute_script("return lockstep.tower.slices.map((s) => s.value)") == [1, 2, 3, 4]

    changed = edited(embedded, tmp_path / "other", lambda t: t["model.layers.4.mlp.down_proj.weight"][0].add_(1))
    lockstep.trace(tmp_path / "g", changed, golden=True)
    lockstep.export(embedded, tmp_path / "out")
    checked = lockstep.check(tmp_path / "out", replay=tmp_path / "g")
    assert checked["exit_code"] == 1
    values = drift(driver, checked, tmp_path / "check.html")
    assert values[4] and "model.layers.4.mlp.down_proj.weight" in driver.find_element(By.ID, "legs").text
    assert errors(driver) == []


def test_the_live_page(browser: Browser, embedded: Path, qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = browser(network=True)
    with Server([embedded, qwen], ["embedded", "twin"], 0, OPTIONS) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            driver.get(server.url)

            def run(text: str, prompts: int) -> None:
                driver.find_element(By.ID, "prompt-text").send_keys(text)
                driver.find_element(By.ID, "run").click()
                WebDriverWait(driver, 60).until(
                    lambda d: d.execute_script("return window.lockstep && lockstep.data.models[0].prompts.length") == prompts
                )

            run("Permission is hereby granted, free of charge", 1)
            assert len(slice_colours(driver)) == len(driver.execute_script("return lockstep.now.layer_types"))
            run("any fee or charge", 2)
            assert "Same word, other meaning" in driver.find_element(By.ID, "meaning").text
            shot(driver, "live")
            legible(driver)

            # One page's canvas at a time: the one before has given its memory back.
            assert driver.execute_script("return document.querySelectorAll('canvas').length") == 1

            # Cancelled in the middle: said, and Run works at once.
            inner = inspecting.inspect
            monkeypatch.setattr(inspecting, "inspect", slowed(inner))
            driver.find_element(By.ID, "prompt-text").send_keys("the")
            driver.find_element(By.ID, "run").click()
            driver.find_element(By.ID, "cancel").click()
            WebDriverWait(driver, 60).until(lambda d: d.find_element(By.CSS_SELECTOR, "#said.problem").text == "cancelled")
            monkeypatch.setattr(inspecting, "inspect", inner)
            run("", 3)

            # What cannot run is said on the page.
            Select(driver.find_element(By.ID, "live-model")).select_by_index(1)
            driver.find_element(By.ID, "prompt-text").send_keys("text")
            driver.find_element(By.ID, "run").click()
            WebDriverWait(driver, 60).until(lambda d: "token" in d.find_element(By.CSS_SELECTOR, "#said.problem").text)
            assert errors(driver) == []
            status = driver.execute_async_script(
                "fetch('progress', {headers: {'X-Lockstep-Token': 'wrong'}}).then((a) => arguments[0](a.status))"
            )
            assert status == 403
        finally:
            server.shutdown()
            thread.join()
            server.runs.join()
