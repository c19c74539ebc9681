"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..native import InputError


def check_writable(option: str, path: Path | None, inputs: Iterable[Path | None] = (), *, file_only: bool = False) -> None:
    """raises InputError before any work is done; `inputs` are files and folders that must not be written into; file_only:
    neither a device nor a pipe will do"""
    if path is None:
        return
    if file_only and path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{option} {path}: expected a file, found a device or a pipe")
    if _descriptor(path) is not None and not file_only:
        return
    real = path.resolve()
    for used in inputs:
        if used is not None and (real == used.resolve() or used.resolve() in real.parents):
            raise InputError(f"{option} {path}: it would overwrite what is read ({used}); name another file")
    if path.is_dir():
        raise InputError(f"{option} {path}: expected a file, found a folder")
    if real.exists() and not real.is_file():  # a pipe or a device is written to as it is
        if not os.access(real, os.W_OK):
            raise InputError(f"{option} {path}: it cannot be written to")
        return
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.absolute().parent} does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{option} {path}: the folder {path.absolute().parent} cannot be written to")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Each of them as check_writable; no two may be one file. raises InputError"""
    inputs = list(inputs)
    option_of: dict[Path, str] = {}
    for option, path in outputs.items():
        check_writable(option, path, inputs)
        if path is not None:
            other = option_of.setdefault(path.resolve(), option)
            if other != option:
                raise InputError(f"{other} and {option} both name {path}: expected two files")


def write_text(path: Path, text: str) -> None:
    """A temporary file beside `path`, then a rename: an interrupted run leaves nothing half-written.

    A link is followed; a pipe, a device, and what this process has open (/dev/stdout) are written to as they are.
    raises InputError
    """
    try:
        _write(path, text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _write(path: Path, text: str) -> None:
    descriptor = _descriptor(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as out:
            out.write(text)
        return
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _descriptor(path: Path) -> int | None:
    """N where `path` leads to /proc/self/fd/N: what it links to there may be a file that others write to, or no path at all."""
    for _ in range(40):  # links, as the system allows
        path = path.parent.resolve() / path.name
        found = re.fullmatch(rf"/proc/(?:{os.getpid()}|self|thread-self|{os.getpid()}/task/[0-9]+)/fd/([0-9]+)", str(path))
        if found:
            return int(found[1]) if os.path.lexists(path) else None
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def json_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
