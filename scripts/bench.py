"""Measure Lockstep at full size (the Qwen3.5 0.8B shape, random weights), as ratios within one run.

    scripts/bench [NAME ...] [--json FILE] [--pairs 7]

NAME is forward, decode, tokenize, lockstep, provenance, operations, load, memory, replay, ray or inspect; all if left out. Times are
medians of interleaved pairs, page cache warm; a ratio compares the two members of a pair. --json writes a list of {name,
value, unit, bar, passes, pairs}. Exit 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
from checkpoints import ROOT, checkpoint, tokenizer_folder

from lockstep import hf_model, hub, inputs, inspecting, operations, tokenizing, traces, tracing, verification
from lockstep.native import _core
from lockstep.reference import Caches
from lockstep.report import page

sys.path.insert(0, str(ROOT / "tests" / "python"))
import tokenizer_lines  # noqa: E402

TOKENIZERS = ("qwen3.5", "qwen3", "gemma3", "llama3", "llama2", "deepseek_v3", "gptoss", "smollm2")
LONG, SHORT, STEPS = 279, 6, 4


class Results:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, value: float, unit: str, bar: float | None = None, pairs: list[float] | None = None) -> None:
        passes = bar is None or value <= bar
        self.rows.append({"name": name, "value": round(value, 4), "unit": unit, "bar": bar, "passes": passes, "pairs": pairs})
        stated = "" if bar is None else f"  bar {bar:g} {'ok' if passes else 'MISSED'}"
        print(f"{name:48} {value:10.3f} {unit}{stated}", flush=True)


def seconds(act: Callable[..., Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def ratios(base: Callable[..., Any], other: Callable[..., Any], pairs: int) -> tuple[float, list[float], list[float]]:
    """Median of other / base over interleaved pairs, the ratios, and the base's seconds. One pair first, to warm up."""
    base(), other()
    found, plain = [], []
    for i in range(pairs):
        order = (base, other) if i % 2 == 0 else (other, base)
        took = {act: seconds(act) for act in order}
        found.append(took[other] / took[base])
        plain.append(took[base])
    return statistics.median(found), [round(r, 4) for r in found], plain


def ready(name: str, tokens: int, points: str) -> Any:
    """A run on checkpoint `name` whose reference and mirror are loaded and bound."""
    run = verification._Run("float32", "sdpa", points, 1e-5, 0.0, bitwise=False, accept=False, stream=False, say=lambda _: None)
    run.load(checkpoint(name), mirror_folder=None, patch=None)
    run.choose_inputs(None, [(i * 7919) % 248_000 for i in range(tokens)], None)
    run.provenance()
    return run


def bench_forward(results: Results, pairs: int) -> None:
    """The mirror's forward against Hugging Face's."""
    run = ready("full", LONG, "layer")
    for tokens in (SHORT, LONG):
        f = inputs.Forward("x", run.forwards[0].ids[:, :tokens])
        ratio, found, plain = ratios(
            lambda f=f: run.reference.forward(f),
            lambda f=f: run.mirror.forward(f.ids, None, None, None, "sdpa", run.reference.variant, None),
            pairs,
        )
        results.add(f"forward.hf.{tokens}_tokens", statistics.median(plain), "s")
        results.add(f"forward.mirror_over_hf.{tokens}_tokens", ratio, "x", 1.10 if tokens == LONG else None, found)


def memory_bandwidth() -> float:
    """Bytes per second that all threads together read: the best of seven sums, and seven one-row products, over 1 GiB."""
    matrix, row = torch.ones(2**18, 2**10), torch.ones(1, 2**10)
    return matrix.numel() * 4 / min(seconds(read) for read in (matrix.sum, lambda: row @ matrix.T) for _ in range(7))


def bench_decode(results: Results, pairs: int) -> None:
    """Steps of one token over the cache, the mirror's, as it is and with --fast, against Hugging Face's forwards alone
    (generate() costs more). The bar of 1.5 is for --fast; the mirror as it is must not be slower than 1.1."""
    folder, step = checkpoint("full"), torch.tensor([[7919]])
    bandwidth = memory_bandwidth()
    results.add("memory.bandwidth", bandwidth / 1e9, "GB/s")
    for dtype, bar in (("float32", 1 / 1.5), ("bfloat16", None)):
        mirror = _core.Mirror.open(str(folder))
        mirror.bind(dtype)
        about = mirror.describe()
        model, _ = hf_model.load(folder, about["hf_class"], dtype, "sdpa", about["tied"])
        ids = torch.tensor([[(i * 7919) % 248_000 for i in range(SHORT)]])
        cache, decoding = hf_model.new_cache(model), _core.Decoding(mirror, "sdpa", hf_model.variant_of())
        fast = _core.Decoding(mirror, "sdpa", hf_model.variant_of(), None, True)
        fast.prefill(ids)
        stated = {hf_model.cache_argument(model): cache, "use_cache": True, "logits_to_keep": 1}

        def theirs(ids: torch.Tensor = step, model: Any = model, stated: Any = stated) -> torch.Tensor:
            with torch.no_grad():
                return model(input_ids=ids, **stated).logits[:, -1]

        same = _core.same_bits(theirs(ids).contiguous(), decoding.prefill(ids))
        same &= _core.same_bits(theirs().contiguous(), decoding.step(step[0]))
        assert same, "the two sides do not decode in the same bits"
        for way, run, size, way_bar in (
            ("mirror", decoding, torch.finfo(getattr(torch, dtype)).bits / 8, 1.1),
            ("fast", fast, 2, bar),
        ):
            ratio, found, plain = ratios(
                lambda theirs=theirs: [theirs() for _ in range(STEPS)],
                lambda run=run: [run.step(step[0]) for _ in range(STEPS)],
                pairs,
            )
            hf = STEPS / statistics.median(plain)
            results.add(f"decode.hf_beside_{way}.{dtype}", hf, "tokens/s")
            results.add(f"decode.{way}.{dtype}", hf / ratio, "tokens/s")
            results.add(f"decode.{way}_over_hf.{dtype}", ratio, "x", way_bar, found)
            read = about["parameters"] * size  # every weight once a token
            results.add(f"decode.{way}_share_of_bandwidth.{dtype}", hf / ratio * read / bandwidth, "of 1")


def bench_tokenize(results: Results, pairs: int) -> None:
    """The C++ tokenizer against Hugging Face's Rust one, one thread each: 10 MB of mixed lines, and 1 MB of one kind."""
    text, size = [], 0
    for line in tokenizer_lines.lines(1_000_000, seed=9):
        text.append(line)
        size += len(line.encode()) + 1
        if size > 10_000_000:
            break
    mixed = "\n".join(text)
    megabytes = {
        "letters": "a" * 1_000_000,
        "words": "abcdefghij" * 100_000,
        "digits": "7" * 1_000_000,
        "spaces": " " * 1_000_000,
        "newlines": "\n" * 1_000_000,
        "punctuation": "!" * 1_000_000,
        "emoji": "\U0001f600" * 250_000,
        "han": "\u4e2d" * 333_333,
        "marks": "e" + "\u0301" * 500_000,
    }
    for name in TOKENIZERS:
        folder = tokenizer_folder(name)
        ours, theirs = tokenizing.Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert ours.encode(mixed) == theirs.encode(mixed).ids
        ratio, found, plain = ratios(lambda h=theirs: h.encode(mixed), lambda o=ours: o.encode(mixed), min(pairs, 3))
        results.add(f"tokenize.hf.{name}", size / 1e6 / statistics.median(plain), "MB/s")
        results.add(f"tokenize.ours_over_hf.{name}", ratio, "x", 1.0, found)
        worst = max(
            (ratios(lambda h=theirs, t=t: h.encode(t), lambda o=ours, t=t: o.encode(t), 1)[0], kind)
            for kind, t in megabytes.items()
        )
        results.add(f"tokenize.worst_megabyte_over_hf.{name} ({worst[1]})", worst[0], "x", 3.0)


def bench_lockstep(results: Results, pairs: int) -> None:
    """The lockstep leg, both sides and the comparison, against the plain HF forward."""
    for points, tokens, bar in (("layer", LONG, 2.3), ("sublayer", LONG, None), ("layer", SHORT, None)):
        run = ready("full", tokens, points)

        def leg(run: Any = run) -> None:
            run.lockstep()
            assert all(p["verdict"] == "identical" for p in run.points)

        ratio, found, _ = ratios(lambda run=run: run.reference.forward(run.forwards[0]), leg, pairs)
        results.add(f"lockstep.{points}_over_hf.{tokens}_tokens", ratio, "x", bar, found)


def bench_provenance(results: Results, pairs: int) -> None:
    """Provenance against one torch.equal pass over the same bytes."""
    for name in ("full-float32", "full"):
        run = ready(name, SHORT, "layer")
        parameters = dict(run.reference.model.named_parameters())
        files = {n: run.source.file_tensor(n) for n in parameters}
        if name == "full":  # cast: the pass is over the reference's own float32 bytes twice
            files = {n: p.detach().clone() for n, p in parameters.items()}

        def equal_pass(files: Any = files, parameters: Any = parameters) -> None:
            assert all(torch.equal(p, files[n]) for n, p in parameters.items())

        ratio, found, plain = ratios(equal_pass, run.provenance, pairs)
        results.add(f"provenance.equal_pass.{name}", statistics.median(plain), "s")
        results.add(f"provenance.over_equal_pass.{name}", ratio, "x", 3.0, found)


def bench_operations(results: Results, pairs: int) -> None:
    """Every operation of a whole forward of one side, fingerprinted and let go layer by layer, against the plain forward."""
    run = ready("full", LONG, "layer")
    f = run.forwards[0]
    counted = operations.forward_operations(run.reference.model, f)
    ratio, found, _ = ratios(
        lambda: run.reference.forward(f), lambda: operations.forward_operations(run.reference.model, f), pairs
    )
    results.add("operations.count", float(sum(len(layer) for layer in counted)), "operations")
    results.add(f"operations.capture_over_hf.{LONG}_tokens", ratio, "x", 4.0, found)


def bench_load(results: Results, pairs: int) -> None:
    """Opening and binding the mirror by itself, and verify's own phases."""
    for name in ("full-float32", "full"):
        folder = str(checkpoint(name))
        for dtype in ("float32", "bfloat16"):
            took = [seconds(lambda f=folder, d=dtype: _core.Mirror.open(f).bind(d)) for _ in range(pairs)]
            results.add(f"load.mirror.{name}.as_{dtype}", statistics.median(took), "s")
    report = verification.verify(checkpoint("full"), ids=[(i * 7919) % 248_000 for i in range(LONG)], points="layer")
    for phase, took_ in report.data["seconds"].items():
        results.add(f"verify.seconds.{phase}", took_, "s")


# What the memory benchmark runs in a process of its own: plain forward, or verify.
CHILD = {
    "plain": "from lockstep.reference import Reference\nfrom lockstep.inputs import Forward\nimport torch, pathlib\n"
    "about = {'hf_class': 'Qwen3_5ForCausalLM', 'tied': True, 'layer_types': ['linear_attention']}\n"
    "r = Reference.load(pathlib.Path(folder), about, 'float32', 'sdpa')\n"
    "logits = r.forward(Forward('x', torch.tensor([ids])))\n",
    "verify": "import lockstep\nreport = lockstep.verify(folder, ids=ids)\nassert report.exit_code == 0, report.data['pedigree']\n",
}


def peak_anonymous(kind: str, folder: Path) -> float:
    """MB of RssAnon at its highest, sampled from outside every 5 ms."""
    ids = [(i * 7919) % 248_000 for i in range(LONG)]
    code = f"folder, ids = {str(folder)!r}, {ids!r}\n{CHILD[kind]}"
    process = subprocess.Popen([sys.executable, "-c", code])
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except OSError:
                return
            peak = max([peak, *(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))])
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    if process.wait():
        raise SystemExit(f"the {kind} process failed")
    thread.join()
    return peak


def bench_memory(results: Results, pairs: int) -> None:
    """Peak anonymous memory of verify, less that of the plain forward: at most 1.5 logits + 150 MB."""
    bar = 1.5 * LONG * 248_320 * 4 / 2**20 + 150
    for name in ("full-float32", "full"):
        plain = peak_anonymous("plain", checkpoint(name))
        whole = peak_anonymous("verify", checkpoint(name))
        results.add(f"memory.plain.{name}", plain, "MB")
        results.add(f"memory.verify_less_plain.{name}", whole - plain, "MB", round(bar, 1))


def bench_replay(results: Results, pairs: int) -> None:
    """`lockstep-native verify --golden`, from the opened folder to the verdict, against the mirror's forwards of the same inputs."""
    for name in ("full-float32", "smollm2"):
        with tempfile.TemporaryDirectory() as scratch:
            replay_ratio(results, name, Path(scratch) / "golden.trace", pairs)


def replay_ratio(results: Results, name: str, golden: Path, pairs: int) -> None:
    folder = checkpoint(name)
    tracing.trace(golden, folder, golden=True)
    forwards = traces.forwards_of(_core.Trace.open(str(golden)))

    def mirror_alone() -> None:
        mirror = _core.Mirror.open(str(folder))
        mirror.bind("float32")
        caches = Caches(forwards, mirror.new_cache, lambda cache: cache.copy())
        for f in forwards:
            cache = caches.take(f)
            mirror.forward(f.ids, f.positions, f.mask, cache)
            caches.leave(f, cache)

    ratio, found, _ = ratios(mirror_alone, lambda: _core.replay(str(folder), str(golden)), pairs)
    results.add(f"replay.{name}", ratio, "x", 1.3, found)


RAY = (
    "import os, sys, lockstep\nfolder, trace, cores = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
    "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])\n"
    "found = lockstep.bisect(folder, trace, thorough=True, threads=1, ray='local')\nprint(found.data['seconds']['judge'])\n"
)


def bench_ray(results: Results, pairs: int) -> None:
    """The local check of `bisect --thorough` on two local Ray workers of one thread each, against one: 1 / 1.7 is aimed at."""
    folder = hub.resolve(None)
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "candidate.trace"
        tracing.trace(trace, folder, points="all")

        def judged(cores: int) -> float:
            command = [sys.executable, "-c", RAY, str(folder), str(trace), str(cores)]
            return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        found = [judged(2) / judged(1) for _ in range(min(pairs, 3))]
        results.add("ray.two_workers_to_one", statistics.median(found), "x", 1 / 1.7, found)


def bench_inspect(results: Results, pairs: int) -> None:
    """The inspector at full size, 60 tokens and 3 prompts, against plain forwards of the mirror; and its page in Chromium."""
    folder = checkpoint("full-float32")
    core = _core.Mirror.open(str(folder))
    core.bind("float32")
    source = random.Random(60)
    prompts = [[source.randrange(248_320) for _ in range(60)] for _ in range(3)]
    ids = torch.tensor([prompts[0]])

    def plain() -> None:
        core.forward(ids, None, None, core.new_cache())

    def inspected() -> None:
        inspection = _core.Inspection(core, ids)
        inspection.finish(inspection.run(core, ids, "sdpa", "5.18"))

    def held(*neurons: tuple[int, int, float, bool]) -> None:
        _core.ablated(core, ids, list(neurons), "sdpa", "5.18")

    # A plain forward gives logits at every position; the inspector runs the head on the last alone, so both are shown.
    ratio, found, seconds_plain = ratios(plain, inspected, pairs)
    results.add("inspect.prompt_over_forward", ratio, "x", 2.0, found)
    ratio, found, _ = ratios(held, inspected, pairs)
    results.add("inspect.prompt_over_forward_to_last_logits", ratio, "x", None, found)
    ratio, found, _ = ratios(plain, lambda: held((3, 5, 0.0, False)), pairs)
    results.add("inspect.ablation_over_forward", ratio, "x", 1.0, found)
    ratio, found, _ = ratios(held, lambda: held((3, 5, 0.0, False)), pairs)
    results.add("inspect.ablation_over_forward_to_last_logits", ratio, "x", None, found)
    # The whole of it: three prompts with one ablation each, opened, run, told and drawn.
    start = time.perf_counter()
    text = page.page(inspecting.inspect(folder, ids=prompts, digest=False).data)
    whole = time.perf_counter() - start
    results.add("inspect.whole_over_its_forwards", whole / (3 * statistics.median(seconds_plain)), "x", 3.0)
    results.add("inspect.page", len(text.encode()) / 1e6, "MB", 6.0)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "page.html"
        file.write_text(text, encoding="utf-8")
        results.add("inspect.page_opens", statistics.median(opened(file, scratch) for _ in range(3)), "s", 3.0)


def opened(file: Path, scratch: str) -> float:
    """Seconds in a Chromium that is running, from the address to the first frame of the tower."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,800"):  # fmt: skip
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tempfile.mkdtemp(dir=scratch)}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path="/usr/bin/chromedriver"))
    try:
        driver.get("about:blank")
        start = time.perf_counter()
        driver.get(file.as_uri())
        driver.execute_async_script(
            "const done = arguments[0]; (function wait() { window.lockstep && lockstep.tower.space ? "
            "requestAnimationFrame(() => requestAnimationFrame(() => done())) : setTimeout(wait, 5); })()"
        )
        return time.perf_counter() - start
    finally:
        driver.quit()


BENCHES: dict[str, Callable[[Results, int], None]] = {
    "forward": bench_forward,
    "decode": bench_decode,
    "tokenize": bench_tokenize,
    "lockstep": bench_lockstep,
    "provenance": bench_provenance,
    "operations": bench_operations,
    "load": bench_load,
    "memory": bench_memory,
    "replay": bench_replay,
    "ray": bench_ray,
    "inspect": bench_inspect,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHES))
    if unknown:
        print(f"bench: {unknown[0]!r}: expected one of {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    results = Results()
    for name in options.names or BENCHES:
        print(f"-- {BENCHES[name].__doc__}", flush=True)
        BENCHES[name](results, options.pairs)
    if options.json:
        options.json.write_text(json.dumps(results.rows, indent=1) + "\n")
    missed = [row["name"] for row in results.rows if not row["passes"]]
    print(f"{len(results.rows)} measured, {len(missed)} bars missed{': ' + ', '.join(missed) if missed else ''}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
