"""Where a model is: a folder, a hub id, or the embedded checkpoint."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .native import LoadError

EMBEDDED = Path(__file__).parent / "embedded"
# Weights, configs, templates and tokenizers of the top folder; nothing that could run.
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "spiece.model", "vocab.txt", "merges.txt"]
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


def resolve(model: str | os.PathLike[str] | None, revision: str | None = None) -> Path:
    """The folder of `model`: None is the embedded checkpoint. raises LoadError in one sentence"""
    if model is None:
        return EMBEDDED
    text = os.fspath(model)
    try:
        text.encode()
        path = Path(text).expanduser()
    except (UnicodeEncodeError, RuntimeError):
        raise LoadError(f"{text!r}: expected a folder's name in UTF-8, or a hub id") from None
    if not text.strip():
        raise LoadError("an empty name: expected a checkpoint folder or a hub id")
    if revision and path.is_dir():
        raise LoadError(f"--revision {revision}: {text} is a folder; only a hub id has revisions")
    if path.is_dir():
        return path
    if path.exists():
        raise LoadError(f"{text}: expected a checkpoint folder or a hub id, found a file")
    if not HUB_ID.match(text) or text.startswith("."):
        raise LoadError(f"{text}: no such folder, and not a hub id (org/name)")

    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    where = f"{text}" + (f" at revision {revision}" if revision else "")
    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=PATTERNS, ignore_patterns=["*/*"]))
    except LocalEntryNotFoundError:
        raise LoadError(
            f"{where}: no such folder, not in the hub cache, and the hub cannot be reached"
            f"{' (HF_HUB_OFFLINE is set)' if constants.HF_HUB_OFFLINE else ''}; give a folder, or go online once"
        ) from None
    except HfHubHTTPError as error:
        raise LoadError(f"{where}: the hub refused it: {str(error).strip().splitlines()[0]}") from None
    except Exception as error:  # whatever the network layer raises, the user gets one sentence
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError(f"{where}: could not be fetched: {reason}") from None
