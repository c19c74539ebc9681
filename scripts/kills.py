"""Kills exports at seeded random moments and runs others into full disks: nothing half-written may be accepted.

    scripts/kills [--kills 200] [--disks 20] [--seed 1] [--json FILE]

Half of the kills (SIGKILL) fall anywhere in an export's time, half are aimed at its short phases: at a message, a drawn
delay after one, or when a file appears. After each: `check` accepts no folder that is not bit for bit the undisturbed
export, the source is as it was, and beside OUT lies nothing but what an interrupted export leaves; now and then, and at the
end, an undisturbed export must remove that, say so, and succeed. A full disk (a limit on the size of files; a small tmpfs
where one can be mounted) must be one error that names the file, and leave nothing.
Exit 1 with the try and its folder if anything of this does not hold, or if no try fell where it had to be tested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import make_checkpoint
import torch
import transformers.models.qwen3_5.modeling_qwen3_5  # noqa: F401  (children must not import it each on its own)
from kill_exports import AFTER, FINISHING, PHASES, READING, STARTING, WRITING, Line, Moment, export_in_child, kill, small_disk
from kill_verdicts import MANIFEST, REPORT, Whole, accepted, changes, derived, furthest, judge, leftovers, state
from safetensors.torch import save_file

AIMED = (WRITING, READING, FINISHING, "a file", STARTING)
MUST_HIT = (WRITING, READING, FINISHING)
LEFT = ("nothing", "unfinished", "whole, not renamed", "OUT")
PAGE = os.sysconf("SC_PAGESIZE")
NO_ROOM = re.compile(r"(?P<path>[^\n]+): cannot be (written|made): (File too large|No space left on device)")

Options = dict[str, Any]
Row = dict[str, Any]


class Violation(Exception):
    """Something that must hold does not; or a try could not be made."""


def make_source(folder: Path, seed: int) -> Path:
    """A Qwen3.5 checkpoint in three files, most of it tensors that a text model ignores, with files beside it."""
    tiny = make_checkpoint.Preset(32, 48, 4, 4, 2, 16, 2, 4, 8, 12, 97, 1e4, (1, 1, 0), "bfloat16", True)
    make_checkpoint.write(tiny, folder, seed)
    draw = torch.Generator().manual_seed(seed)
    more = {f"mtp.layers.{i}.mlp.up_proj.weight": torch.randn(1024, 1024, generator=draw).bfloat16() for i in range(1, 5)}
    save_file(more, folder / "mtp.safetensors", metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    stated = json.loads(index.read_text())
    stated["metadata"]["total_size"] += sum(t.nbytes for t in more.values())
    stated["weight_map"] |= dict.fromkeys(more, "mtp.safetensors")
    index.write_text(json.dumps(stated, indent=1) + "\n")
    (folder / "tokenizer.json").write_text("{" + " " * 400_000 + "}")
    (folder / "LICENSE").write_text("as it was")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    return folder


class Bench:
    """The source, the place where exports appear, and what undisturbed exports are."""

    def __init__(self, work: Path, seed: int, few: bool) -> None:
        self.source = make_source(work / "a source", seed)
        self.at_first = state(self.source)
        self.place = work / "place"
        self.place.mkdir()
        self.scratch = work / "undisturbed"
        self.scratch.mkdir()
        every = [
            {"dtype": dtype, "max_shard_size": size, "keep": keep}
            for keep, size, dtype in itertools.product(("all", "text"), (None, "3MB", "1GB"), (None, "bfloat16", "float16"))
        ]
        # Without what a text model ignores all weights are small: a limit on the size of files can then end a later file.
        text = [options for options in every if options["keep"] == "text" and options["max_shard_size"] != "3MB"]
        full = [options for options in every if options["keep"] == "all"]
        self.choices = [full[0], text[1]] if few else full + text
        self._known: dict[str, tuple[Whole, list[Line]]] = {}

    def undisturbed(self, options: Options) -> tuple[Whole, list[Line]]:
        """What an export with `options` makes, and the steps on its way."""
        key = json.dumps(options)
        if key not in self._known:
            out = self.scratch / "OUT"
            with export_in_child(self.source, out, options) as child:
                if child.wait():
                    raise Violation(f"an undisturbed export failed: {child.lines[-1].text}")
            bad = derived(self.source, out, options["dtype"], options["keep"])
            if bad or not accepted(out):
                raise Violation("; ".join(bad) or f"{out}: an undisturbed export is not accepted")
            self._known[key] = Whole.of(out), child.steps
            shutil.rmtree(out)
        return self._known[key]

    def prepare(self, out: Path, before: str) -> None:
        if out.exists():
            shutil.rmtree(out)
        if before == "empty":
            out.mkdir()

    def hold(self, bad: list[str]) -> None:
        bad += changes(self.at_first, state(self.source))
        if bad:
            raise Violation("; ".join(bad))


def kind_of(name: str) -> str:
    """Of which kind a file of an export is."""
    known = {"config.json": "config", "model.safetensors.index.json": "index", REPORT: "report", MANIFEST: "manifest"}
    return known.get(name) or ("weights" if name.endswith(".safetensors") else "a file carried")


# Kills


def draw_moment(draw: random.Random, number: int, steps: list[Line], whole: Whole) -> tuple[str, Moment]:
    """-> at what the kill of this number is aimed, and when it comes."""
    if number >= len(MUST_HIT) and number % 2:
        length = steps[-1].at - steps[0].at
        return "any time", after_step(steps, steps[0].at + draw.uniform(0, 1.02 * length))
    turn = number if number < len(MUST_HIT) else number // 2
    aim = AIMED[turn % len(AIMED)]
    if aim == "a file":
        file = draw.choice([None, MANIFEST, REPORT, draw.choice(list(whole.sizes))])
        return aim, Moment("file", draw.choice([0.0, draw.uniform(0, 0.002)]), file=file)
    within = [i for i, step in enumerate(steps) if step.phase == aim]
    # One of each is sure to hit: its child waits.
    if number < len(MUST_HIT) or draw.random() < 0.25:
        return aim, Moment("held", step=draw.choice(within))
    begin, end = steps[within[0]].at, steps[within[-1] + 1].at
    if aim == STARTING:  # no step but the first, and it takes longer with more to remove
        return aim, Moment("message", draw.uniform(0, 3 * (end - begin)))
    return aim, after_step(steps, draw.uniform(begin, end))


def after_step(steps: list[Line], at: float) -> Moment:
    """At a time of the undisturbed export's, counted from the step before it: a busy machine is not always as busy."""
    step = max(i for i, line in enumerate(steps) if line.at <= at)
    return Moment("message", at - steps[step].at, step)


def one_kill(bench: Bench, draw: random.Random, number: int, row: Row) -> None:
    options, before = draw.choice(bench.choices), draw.choice(["absent", "empty"])
    whole, steps = bench.undisturbed(options)
    aim, moment = draw_moment(draw, number, steps, whole)
    row.update(options=options, before=before, aim=aim, moment=asdict(moment))
    out = bench.place / "an export"
    bench.prepare(out, before)
    if aim == STARTING:
        pile_up(out)
    held = moment.step if moment.way == "held" else None
    with export_in_child(bench.source, out, options, held=held) as child:
        code = kill(child, moment, out)
    row.update(phase=child.steps[-1].phase if child.steps else STARTING, steps=len(child.steps), exit_code=code)
    bad = [] if code == -signal.SIGKILL else [f"the export ended by itself: {code}, {child.lines[-1].text}"]
    row["left"], found = judge(out, before, whole)
    bad += found
    mine = out.parent / f".{out.name}.unfinished-{child.pid}-0"
    row["begun"] = kind_of(last) if (last := furthest(mine, whole)) else None
    if row["phase"] == AFTER and row["left"] != "OUT":
        bad.append("the export had said its end, and OUT is not there")
    bench.hold(bad)


def pile_up(out: Path) -> None:
    """More to remove, as if several exports had been killed: an export's first act is to remove what there is."""
    there = leftovers(out)
    free = (f".{out.name}.unfinished-{2**30}-{i}" for i in itertools.count())
    unused = (name for name in free if not (out.parent / name).exists())
    for folder in there[:1] * 3:
        shutil.copytree(folder, out.parent / next(unused))


def clean(bench: Bench, draw: random.Random, row: Row) -> None:
    """The next export, undisturbed: it removes what the killed ones left, and says so."""
    out = bench.place / "an export"
    bench.prepare(out, row["before"])
    if draw.random() < 0.5:
        pile_up(out)
    count = len(leftovers(out))
    whole, _ = bench.undisturbed(row["options"])
    with export_in_child(bench.source, out, row["options"]) as child:
        code = child.wait()
    row["removed"] = count
    bad = [f"the export after it: {code}, {child.lines[-1].text}"] if code else []
    expected = [f"removed what {count} interrupted export{'s' if count > 1 else ''} to {out} left"] if count else []
    if child.said("note") != expected:
        bad.append(f"the export after it said {child.said('note')}, expected {expected}")
    left, found = judge(out, row["before"], whole)
    bad += found
    if left != "OUT" or leftovers(out):
        bad.append(f"the export after it left {[p.name for p in bench.place.iterdir()]}")
    bench.hold(bad)


# Full disks

TARGETS = [
    ("limit", "weights"), ("tmpfs", "manifest"), ("tmpfs", "config"), ("limit", "report"), ("tmpfs", "weights"),
    ("tmpfs", "report"), ("limit", "a file carried"), ("tmpfs", "index"), ("inodes", "any"), ("tmpfs", "a file carried"),
]  # fmt: skip


def room_for(draw: random.Random, way: str, target: str, whole: Whole, before: str) -> int | None:
    """A size of the disk, or of its files, or a number of inodes, that ends an export in a file of kind `target`."""
    names = list(whole.sizes)
    if way == "inodes":  # the disk's own folder, OUT if it is there, the unfinished one; and not quite every file
        return 1 + (before == "empty") + draw.randrange(1 + len(names))
    fitting = []
    for i, name in enumerate(names):
        earlier = [whole.sizes[n] for n in names[:i]]
        if kind_of(name) != target:
            continue
        if way == "limit":
            low, high = max(earlier, default=0), whole.sizes[name]
        else:
            # A page fewer than it takes, and one more than what was before: reports differ by their seconds.
            low = sum(-(-size // PAGE) for size in earlier) + (target == "manifest")
            high = low + -(-whole.sizes[name] // PAGE) - (target in ("manifest", "report"))
        if low < high:
            fitting.append((low, high))
    if not fitting:
        return None
    room = draw.randrange(*draw.choice(fitting))
    return room if way == "limit" else max(1, room) * PAGE


def one_disk(bench: Bench, draw: random.Random, number: int, row: Row, tmpfs: bool) -> None:
    targets = TARGETS if tmpfs else [t for t in TARGETS if t[0] == "limit"]
    (way, target), before = targets[number % len(targets)], draw.choice(["absent", "empty"])
    for options in draw.sample(bench.choices, len(bench.choices)):
        whole, _ = bench.undisturbed(options)
        room = room_for(draw, way, target, whole, before)
        if room is not None:
            break
    else:
        raise Violation(f"no options with which a full disk ends in {target}")
    row.update(options=options, before=before, way=way, aim=target, room=room)
    if way == "limit":
        _fill(bench, row, bench.place / "an export", whole, room)
    else:
        size = f"size={room}" if way == "tmpfs" else f"size=64m,nr_inodes={room}"
        disk = bench.place.parent / "small"
        with small_disk(disk, size + ",mode=700"):
            try:
                _fill(bench, row, disk / "an export", whole, None)
            except Violation:
                shutil.copytree(disk, bench.place.parent / "small, copied", symlinks=True)
                raise


def _fill(bench: Bench, row: Row, out: Path, whole: Whole, limit: int | None) -> None:
    bench.prepare(out, row["before"])
    with export_in_child(bench.source, out, row["options"], limit=limit) as child:
        code = child.wait()
    row["left"], bad = judge(out, row["before"], whole)
    said = child.lines[-1]
    row.update(exit_code=code, error=said.text, file=None)
    if row["left"] != "nothing":
        bad.append(f"a full disk left {row['left']}")
    match = NO_ROOM.fullmatch(said.text) if said.kind == "LoadError" else None
    if code != 2 or match is None:
        bad.append(f"a full disk was to be one error that names its file; it was {code}, {said.kind}: {said.text}")
    else:
        path = Path(match["path"])
        known = path.parent.name if path.name in whole.sizes else path.name
        row["file"] = kind_of(path.name) if path.name in whole.sizes else "the folder"
        if known != f".{out.name}.unfinished-{child.pid}-0":
            bad.append(f"the error names a file that is none of the export: {said.text}")
    bench.hold(bad)


# All of them


def table(rows: list[Row]) -> list[str]:
    kills = [row for row in rows if row["what"] == "kill" and "left" in row]
    disks = [row for row in rows if row["what"] == "disk" and "left" in row]
    lines = []
    if kills:
        lines.append(f"{'killed in':30} {'kills':>6} {'of them held':>13}  " + "  ".join(f"left {word}" for word in LEFT))
        for phase in PHASES:
            here = [row for row in kills if row["phase"] == phase]
            held = sum(row["moment"]["way"] == "held" for row in here)
            left = Counter(row["left"] for row in here)
            counts = "  ".join(f"{left[word]:>{len(word) + 5}}" for word in LEFT)
            lines.append(f"{phase:30} {len(here):>6} {held:>13}  {counts}")
        begun = Counter(row["begun"] for row in kills if row["begun"])
        lines.append("last file begun: " + ", ".join(f"{kind} {count}" for kind, count in begun.most_common()))
        removed = [row["removed"] for row in kills if "removed" in row]
        lines.append(
            f"{len(removed)} exports after them, {sum(map(bool, removed))} with something to remove, at most {max(removed, default=0)} folders"
        )
    if disks:
        lines.append(f"{'disk full in':30} {'disks':>6}  of them limits, tmpfs, inodes")
        for kind, count in Counter(row["file"] for row in disks).most_common():
            ways = Counter(row["way"] for row in disks if row["file"] == kind)
            lines.append(f"{kind or 'nothing':30} {count:>6}  {ways['limit']:>14}, {ways['tmpfs']:>5}, {ways['inodes']:>6}")
    return lines


def not_tested(rows: list[Row]) -> list[str]:
    """Where a kill or a full disk had to fall, and none did."""
    phases = {row["phase"] for row in rows if row["what"] == "kill"}
    files = {row["file"] for row in rows if row["what"] == "disk"}
    aims = {row["aim"] for row in rows if row["what"] == "disk"} - {"any"}
    missed = [phase for phase in MUST_HIT if phase not in phases] if phases else []
    return missed + sorted(aims - files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)  # libgomp's threads would not survive a fork
    work = Path(tempfile.mkdtemp(prefix="lockstep-kills-")).resolve()
    rows: list[Row] = []
    try:
        problem = run(work, options.kills, options.disks, options.seed, rows)
    except Exception:
        print(f"kept: {work}", file=sys.stderr)
        raise
    except BaseException:
        shutil.rmtree(work)
        raise
    if problem is None:
        shutil.rmtree(work)
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if problem:
        print(f"{problem}\nkept: {work}")
        return 1
    if missed := not_tested(rows):
        print(f"not tested: nothing fell in {', '.join(missed)}")
        return 1
    print(f"{options.kills} kills and {options.disks} full disks: nothing half-written was accepted")
    return 0


def run(work: Path, kills: int, disks: int, seed: int, rows: list[Row]) -> str | None:
    """Appends a row per try -> the first violation, or None."""
    started = time.monotonic()
    try:
        # A few tries do not pay for many undisturbed exports to hold them against.
        bench = Bench(work, seed, few=kills + disks < 20)
        tmpfs = disks > 0 and can_mount(work / "small")
        for what, count in (("kill", kills), ("disk", disks)):
            for number in range(count):
                draw = random.Random(f"{seed} {what} {number}")
                row: Row = {"what": what, "try": number, "seed": seed}
                rows.append(row)
                if what == "disk":
                    one_disk(bench, draw, number, row, tmpfs)
                else:
                    one_kill(bench, draw, number, row)
                    if number + 1 == count or draw.random() < 0.2:
                        clean(bench, draw, row)
                row["seconds"] = round(time.monotonic() - started, 1)
                print(f"\r{what} {number + 1} of {count}, {row['seconds']:.0f} s  ", end="", file=sys.stderr, flush=True)
        if disks:
            shutil.rmtree(bench.place)
    except (Violation, TimeoutError) as problem:
        which = {key: value for key, value in rows[-1].items() if key != "seconds"} if rows else {}
        return f"violated: {problem}\n{json.dumps(which)}"
    finally:
        print(file=sys.stderr)
    return None


def can_mount(at: Path) -> bool:
    try:
        with small_disk(at, "size=64k,mode=700"):
            return True
    except OSError as error:
        print(f"no tmpfs can be mounted ({error}): full disks are limits on the size of files alone", file=sys.stderr)
        return False


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
