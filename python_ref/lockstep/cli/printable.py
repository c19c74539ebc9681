"""Names in a file can hold control characters, and a terminal would obey them."""

from __future__ import annotations

import re


def printable(text: str) -> str:
    """`text` with every control character but newline and tab as \\x1b."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda c: f"\\x{ord(c[0]):02x}", text)
