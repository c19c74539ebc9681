"""Progress on stderr: one moving line on a terminal, one line per step elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .printable import printable


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda text: status.update(printable(text).replace("[", "\\["))
    else:
        yield line


def line(text: str) -> None:
    """One line on stderr."""
    with contextlib.suppress(OSError):  # nobody listens: the work goes on
        print(f"lockstep: {printable(text)}", file=sys.stderr, flush=True)
