"""`--stream`: a Hugging Face model whose weights come one module at a time, so that memory does not grow with depth.

It is built on the meta device; each part (the embedding, a decoder layer, the final norm, the head) gets its tensors from
the files as it begins and gives them back when another begins. Where the file has the run's dtype they are views of the
mapped file, else casts.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from .hf_model import quiet_transformers
from .native import LoadError, _core

HEAD = "lm_head.weight"


class Streamed:
    """The parts of a model on the meta device, and which of them is in memory."""

    def __init__(self, model: Any, folder: Path) -> None:
        self.model = model
        self.lend: Callable[[str, torch.Tensor], None] | None = None  # told of the head, which is worth sharing
        rows = {row["parameter"]: row for row in _core.names(str(folder)) if row["parameter"]}
        self._where: dict[str, tuple[str, str]] = {
            name: (str(folder / row["file"]), row["source"]) for name, row in rows.items() if row["source"]
        }
        self._files: dict[str, Any] = {}
        body = model.model
        self._parts: dict[str, torch.nn.Module] = {"model.embed_tokens": body.embed_tokens}
        self._parts |= {f"model.layers.{i}": layer for i, layer in enumerate(body.layers)}
        self._parts |= {"model.norm": body.norm, "lm_head": model.lm_head}
        self._empty = {path: dict(part.named_parameters()) for path, part in self._parts.items()}
        held = {id(p) for parameters in self._empty.values() for p in parameters.values()}
        elsewhere = [name for name, p in model.named_parameters() if id(p) not in held]
        if elsewhere:
            raise LoadError(f"--stream: {elsewhere[0]} belongs to no layer; verify without --stream")
        self._held = ""
        for path, part in self._parts.items():
            part.register_forward_pre_hook(lambda _, __, path=path: self.hold(path))
        model.register_forward_hook(lambda *_: self.hold(""))

    def hold(self, path: str) -> None:
        """Gives back what is in memory and brings the part at `path`; none if empty."""
        if path == self._held:
            return
        if self._held:
            for name, parameter in self._empty[self._held].items():
                _put(self._parts[self._held], name, parameter)
        self._held = path
        if not path:
            return
        for name, empty in self._empty[path].items():
            value = self._read(f"{path}.{name}", empty)
            # from_pretrained's parameters want gradients too: some kernels look at that.
            _put(self._parts[path], name, torch.nn.Parameter(value))
            if self.lend is not None and path == "lm_head":
                self.lend(HEAD, value)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter by its name, in memory until the next part's come."""
        for path, part in self._parts.items():
            self.hold(path)
            for name, parameter in part.named_parameters():
                yield f"{path}.{name}", parameter.detach()
                del parameter
        self.hold("")

    def _read(self, parameter: str, empty: torch.Tensor) -> torch.Tensor:
        tied = parameter == HEAD and parameter not in self._where
        file, source = self._where["model.embed_tokens.weight" if tied else parameter]
        if file not in self._files:
            self._files[file] = safe_open(file, framework="pt")
        value: torch.Tensor = self._files[file].get_tensor(source).to(empty.dtype)
        if value.shape != empty.shape:
            raise LoadError(f"{parameter}: expected {list(empty.shape)}, found {list(value.shape)} in {file}")
        return value


def _put(part: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    part.get_submodule(owner)._parameters[leaf] = parameter


def load(folder: Path, hf_class: str, dtype: str, attn: str, tied: bool) -> Any:
    """The model on the meta device, with `inv_freq`, which is in no file, made by its own module."""
    import transformers

    model_class = getattr(transformers, hf_class)
    with quiet_transformers():
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
        config.tie_word_embeddings = tied
        with torch.device("meta"):
            model = model_class._from_config(config, dtype=getattr(torch, dtype), attn_implementation=attn)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    unfilled = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if unfilled:
        raise LoadError(f"--stream: the buffer {unfilled[0]} is in no file; verify without --stream")
    return model.eval()


class Spill:
    """Keeps tensors in a file without a name, mapped: recordings of a whole run that no memory has to hold."""

    CHUNK = 1 << 28

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="lockstep-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)  # what is mapped stays
        self._map: np.memmap | None = None
        self._used = 0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of `value` whose bytes are in the file."""
        size = value.numel() * value.element_size()
        if self._map is None or self._used + size > self._map.size:
            start = self._file.seek(0, os.SEEK_END)
            room = max(size, self.CHUNK)
            self._file.truncate(start + room)
            self._map, self._used = np.memmap(self._file, np.uint8, "r+", start, (room,)), 0
        place = torch.from_numpy(self._map[self._used : self._used + size]).view(value.dtype).view(value.shape)
        self._used += -(-size // 64) * 64  # aligned, as torch allocates
        return place.copy_(value)


class PeakMemory:
    """Samples RssAnon, what this process alone holds and no file backs, while it is open; 0 where /proc is not."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.peak = 0
        self._seconds, self._done = seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, rss_anon())
            if self._done.wait(self._seconds):
                return

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def rss_anon() -> int:
    """Bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.M)
    return int(found[1]) * 1024 if found else 0
