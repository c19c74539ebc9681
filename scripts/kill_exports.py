"""An export in a child process that can be stopped at a chosen moment, or be given little disk."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from lockstep import LoadError, exporting

STARTING, SOURCE, WRITING, READING, WRITTEN, FINISHING, AFTER = PHASES = (
    "removing leftovers, planning", "verifying the source", "writing", "reading back", "verifying what was written",
    "manifest and rename", "after the end",
)  # fmt: skip
PATIENCE = 300.0  # seconds after which an export is taken to hang


@dataclass(frozen=True)
class Line:
    """What a child said: `start`, `say` (progress), `note`, `end`, or why there was none, `refused`, `LoadError`, `error`."""

    at: float  # of the monotonic clock, which all processes share
    kind: str
    text: str

    @property
    def phase(self) -> str:
        """What begins, or goes on, with it."""
        if self.kind != "say":
            return AFTER if self.kind == "end" else STARTING
        for start, phase in (
            ("source: ", SOURCE),
            ("written: ", WRITTEN),
            ("reading back ", READING),
            ("writing the manifest", FINISHING),
        ):
            if self.text.startswith(start):
                return phase
        return WRITING


@dataclass
class Child:
    """A running export. Everything is read from its pipe, so that its last line tells how far it came."""

    pid: int
    pipe: int
    lifeline: int  # while it is open, a child that is held or at its end waits
    lines: list[Line] = field(default_factory=list)
    code: int | None = None
    _rest: bytes = b""

    def read(self, seconds: float) -> bool:
        """Waits so long at most for something to read. False once there is no more."""
        if not select.select([self.pipe], [], [], max(0.0, seconds))[0]:
            return True
        data = os.read(self.pipe, 1 << 16)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self.lines += [Line(**json.loads(line)) for line in whole]
        return bool(data)

    @property
    def steps(self) -> list[Line]:
        """The lines that are the same in every run with the same options."""
        return [line for line in self.lines if line.kind in ("start", "say", "end")]

    def said(self, kind: str) -> list[str]:
        return [line.text for line in self.lines if line.kind == kind]

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """-> its exit code, negative for a signal."""
        os.close(self.lifeline)
        deadline = time.monotonic() + PATIENCE
        while self.read(1.0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the export hangs; last it said {self.lines[-1:]}")
        os.close(self.pipe)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


@contextmanager
def export_in_child(
    source: Path, out: Path, options: dict[str, Any], *, held: int | None = None, limit: int | None = None
) -> Iterator[Child]:
    """Forks an export; it does not outlive the block. held: at this step (0: its start) it waits. limit: bytes of a file."""
    pipe, ours = os.pipe()
    waits, lifeline = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(pipe)
        os.close(lifeline)
        _child(source, out, options, held, limit, ours, waits)
    os.close(ours)
    os.close(waits)
    child = Child(pid, pipe, lifeline)
    try:
        yield child
    finally:
        if child.code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _child(
    source: Path, out: Path, options: dict[str, Any], held: int | None, limit: int | None, pipe: int, waits: int
) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        code = _run(source, out, options, held, pipe, waits)
    finally:
        os._exit(code)


def _run(source: Path, out: Path, options: dict[str, Any], held: int | None, pipe: int, waits: int) -> int:
    steps = 0

    def send(kind: str, text: str) -> None:
        nonlocal steps
        # One write, and short enough that a kill cannot cut it in two.
        line = json.dumps({"at": time.monotonic(), "kind": kind, "text": text[-3000:]})
        os.write(pipe, line.encode() + b"\n")
        if kind in ("start", "say"):
            if steps == held:
                os.read(waits, 1)
                os._exit(1)
            steps += 1

    exporting._now_and_then = lambda say: say  # every message
    try:
        send("start", "")
        found = exporting.export(
            source, out, threads=1, progress=lambda text: send("say", text), note=lambda text: send("note", text), **options
        )
    except LoadError as error:
        send("LoadError", str(error))
        return 2
    except BaseException:
        send("error", traceback.format_exc())
        return 1
    if not found:
        send("refused", str(exporting.refusal(found.data)))
        return found.exit_code
    send("end", found.data["verdict"])
    os.read(waits, 1)
    return 0


@dataclass(frozen=True)
class Moment:
    """When a child is killed.

    way: `message`, `delay` seconds after step `step`; `held`, while it waits there; `file`, so long after `file` appeared in its
    folder (None: OUT itself).
    """

    way: str
    delay: float = 0.0
    step: int = 0
    file: str | None = None


def kill(child: Child, moment: Moment, out: Path) -> int:
    """Kills `child` at `moment`, or at its end if that never comes -> its exit code, -9 unless it ended by itself."""
    watched = out if moment.file is None else out.parent / f".{out.name}.unfinished-{child.pid}-0" / moment.file
    came: Callable[[], float | None]
    if moment.way == "file":
        came = lambda: time.monotonic() if _there(watched) else None  # noqa: E731
    else:
        came = lambda: child.steps[moment.step].at if len(child.steps) > moment.step else None  # noqa: E731
    deadline = time.monotonic() + PATIENCE
    while (at := came()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the export hangs; last it said {child.lines[-1:]}")
        if not child.read(0.0002 if moment.way == "file" else 1.0) or child.lines and child.lines[-1].kind == "end":
            break
    due = (at or time.monotonic()) + moment.delay
    while (left := due - time.monotonic()) > 0:
        # Not asleep at the end: a scheduler's tick is longer than a manifest takes.
        if left > 0.002 and not child.read(left - 0.002):
            break
    return child.kill()


def _there(path: Path) -> bool:
    """A file that is there, or a folder with something in it."""
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except FileNotFoundError:
        return False


@contextmanager
def small_disk(at: Path, options: str) -> Iterator[Path]:
    """A tmpfs of its own. Raises OSError where none can be mounted."""
    at.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "lockstep-kills", str(at)], capture_output=True, text=True)
        if done.returncode:
            raise OSError((done.stderr.strip() or "mount failed").splitlines()[0])
        yield at
    finally:
        if os.path.ismount(at):
            subprocess.run(["umount", str(at)], check=True)
        at.rmdir()
