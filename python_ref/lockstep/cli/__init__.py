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
    import click

    from .app import app

    try:
        code = app(standalone_mode=False)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return 2
    except (ImportError, RuntimeError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return 1
        if isinstance(error, RuntimeError) and not _is_ours(error):
            raise
        print(f"lockstep: error: {error}", file=sys.stderr)
        return 2
    return int(code or 0)


def _is_ours(error: RuntimeError) -> bool:
    from ..native import Error

    return isinstance(error, Error)
