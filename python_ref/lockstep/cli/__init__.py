"""The command `lockstep`. Nothing heavy is imported before a command runs, and no error shows a traceback."""

from __future__ import annotations

import os
import sys

from .interrupts import INTERRUPTED, leaving, over
from .printable import printable


def main() -> None:
    """Exit codes everywhere: 0 passes, 1 does not, 2 could not judge; 130 after Ctrl-C, but where that is how it ends (`inspect --serve`)."""
    try:
        code = _run()
        over()
    except KeyboardInterrupt:
        over()
        print("lockstep: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def _run() -> int:
    with leaving():
        from . import export, generate, inspect, matrix, tokenize  # noqa: F401  (each registers itself)
        from .app import app
    try:
        code = int(app(standalone_mode=False) or 0)
        if code == INTERRUPTED:  # some typers return it, others raise Abort
            raise KeyboardInterrupt
        return code
    except Exception as error:
        # typer carries a click of its own: its exceptions are known by what they offer, not by their class.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return 2
        reason = str(error)
        if not (isinstance(error, (ImportError, OSError)) or _is_ours(error)):
            if os.environ.get("LOCKSTEP_TRACEBACK"):
                raise
            first = (reason.strip().splitlines() or [""])[0]
            reason = f"unexpected {type(error).__name__}: {first} (LOCKSTEP_TRACEBACK=1 shows where)"
        print(f"lockstep: error: {printable(reason)}", file=sys.stderr)
        return 2


def _is_ours(error: Exception) -> bool:
    from ..native import Error

    return isinstance(error, Error)
