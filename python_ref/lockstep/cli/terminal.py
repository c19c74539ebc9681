"""Where the tables go."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .printable import printable


class PlainConsole(Console):
    """As wide as the terminal, 130 columns elsewhere; what it shows is printable."""

    def __init__(self) -> None:
        super().__init__(width=None if sys.stdout is not None and sys.stdout.isatty() else 130)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:  # rich would end the process with its own exit code
        raise BrokenPipeError
