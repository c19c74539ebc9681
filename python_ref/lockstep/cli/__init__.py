"""The command `lockstep`. Nothing heavy is imported before a command runs, and no error shows a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Exit codes everywhere: 0 passes, 1 does not, 2 could not judge; 130 after Ctrl-C."""
    try:
        sys.exit(_run())
    except KeyboardInterrupt:
        print("lockstep: interrupted", file=sys.stderr)
        sys.exit(130)


def _run() -> int:
    from .app import app

    try:
        return int(app(standalone_mode=False) or 0)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        # typer carries a click of its own: its exceptions are known by what they offer, not by their class.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return 2
        if isinstance(error, (ImportError, OSError)) or _is_ours(error):
            print(f"lockstep: error: {error}", file=sys.stderr)
            return 2
        raise


def _is_ours(error: Exception) -> bool:
    from ..native import Error

    return isinstance(error, Error)
