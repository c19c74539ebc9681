"""Ctrl-C at the two ends of a command: while libraries are loaded, and once its exit code is known."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


def over() -> None:
    """From here on Ctrl-C is not heard: the outcome stands, and only the interpreter's own exit is left, within which Python
    gives the signal its default action back; a run that passed would end as one that was killed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def leaving() -> Iterator[None]:
    """Ctrl-C ends the process at once. For imports alone: what is raised inside of one may be swallowed there, or come out
    as another error; and nothing has been written yet."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def leave(*_: object) -> None:
        os.write(sys.stderr.fileno() if sys.stderr else 2, b"lockstep: interrupted\n")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
