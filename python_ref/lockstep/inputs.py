"""The forwards of a run: the default ones, which exercise every mechanism, and those a user states.

A forward is {name, ids [B, T], positions [B, T] or [3, B, T] or null, mask [B, past + T] or null, past}. `past` names the
forward whose cache this one continues; a forward runs with a cache if and only if it has a `past` or is one.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .native import InputError, _core

KEYS = ("name", "ids", "positions", "mask", "past")


@dataclass(frozen=True)
class Forward:
    """One named forward. ids [B, T] int64, positions [B, T] or [3, B, T], mask [B, past + T]."""

    name: str
    ids: torch.Tensor
    positions: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    past: str | None = None


def default_inputs(vocab: int, mrope: bool) -> list[Forward]:
    """Lengths 1 to 130, positions from 5000, a left-padded batch, three-row positions, cache splits, single steps."""
    source = random.Random(20260101)

    def ids(*shape: int) -> torch.Tensor:
        rows, tokens = shape
        return torch.tensor([[source.randrange(vocab) for _ in range(tokens)] for _ in range(rows)])

    forwards = [Forward(f"len{n}", ids(1, n)) for n in (1, 2, 3, 4, 5, 63, 64, 65, 130)]
    forwards.append(Forward("from5000", ids(1, 20), positions=torch.arange(5000, 5020)[None]))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, :5] = 0
    forwards.append(Forward("pad2", ids(2, 12) * mask, mask=mask))
    if mrope:
        # 4 text tokens, a 3 x 4 image grid, 4 text tokens after it: rows are time, height, width.
        rows = [list(range(4)) + [4] * 12 + list(range(8, 12))]
        rows.append(list(range(4)) + [4 + i // 4 for i in range(12)] + list(range(8, 12)))
        rows.append(list(range(4)) + [4 + i % 4 for i in range(12)] + list(range(8, 12)))
        forwards.append(Forward("rows3", ids(1, 20), positions=torch.tensor(rows)[:, None]))
    for first in (2, 64):
        whole, name = ids(1, 150), f"split{first}_{150 - first}"
        forwards.append(Forward(f"{name}.0", whole[:, :first]))
        forwards.append(Forward(f"{name}.1", whole[:, first:], past=f"{name}.0"))
    for step in range(1, 6):
        forwards.append(Forward(f"step{step}", ids(1, 1), past="len65" if step == 1 else f"step{step - 1}"))
    return forwards


def golden_inputs(vocab: int, mrope: bool) -> list[Forward]:
    """Few tokens that exercise every mechanism all the same: what a golden trace holds unless a user states others."""
    defaults = {f.name: f for f in default_inputs(vocab, mrope)}
    forwards = [defaults[name] for name in ("len65", "step1", "from5000", "pad2", "rows3") if name in defaults]
    source = random.Random(20260103)
    more = torch.tensor([[source.randrange(vocab) for _ in range(5)]])
    forwards.insert(2, Forward("more5", more, past="step1"))
    return forwards


def chosen(
    folder: Path,
    about: dict[str, Any],
    prompt: str | None,
    ids: str | Sequence[int] | None,
    inputs: str | os.PathLike[str] | list[dict[str, Any]] | None,
) -> list[Forward]:
    """What a user stated, or the default inputs. about: _core.Mirror.describe(). raises InputError"""
    if prompt is not None:
        return from_prompt(folder, prompt)
    if ids is not None:
        return from_ids(ids if isinstance(ids, str) else ",".join(str(int(i)) for i in ids))
    if isinstance(inputs, list):
        return from_json(inputs)
    if inputs is not None:
        return from_file(inputs)
    return default_inputs(about["vocab"], about["mrope"])


def decoding(first: Forward, steps: int, vocab: int) -> list[Forward]:
    """`first`, then single tokens over its cache; the same tokens in one shot, and in two parts."""
    source = random.Random(20260102)
    rows = first.ids.shape[0]
    more = torch.tensor([[source.randrange(vocab) for _ in range(steps)] for _ in range(rows)])
    whole = torch.cat([first.ids, more], dim=1)
    half = whole.shape[1] // 2
    forwards = [Forward("prefill", first.ids)]
    for i in range(steps):
        forwards.append(Forward(f"step{i + 1}", more[:, i : i + 1], past=forwards[-1].name))
    return [
        *forwards,
        Forward("one_shot", whole),
        Forward("parts.0", whole[:, :half]),
        Forward("parts.1", whole[:, half:], past="parts.0"),
    ]


def parse_ids(text: str, option: str = "--ids") -> list[int]:
    """'1,2,3' or '1 2 3' -> ids, of either sign. raises InputError naming the option"""
    parts = re.split(r" *, *| +", text.strip(" ")) if text.strip(" ,") else []
    if any(not re.fullmatch(r"-?[0-9]{1,18}", part) for part in parts):
        raise InputError(f"{option} {text!r}: expected whole numbers with commas between, like 1,2,3")
    if not parts:
        raise InputError(f"{option}: expected at least one id, found none")
    return [int(part) for part in parts]


def from_ids(text: str) -> list[Forward]:
    """'1,2,3' -> one forward named `ids`. raises InputError"""
    return [Forward("ids", torch.tensor([parse_ids(text)]))]


def from_prompt(folder: Path, text: str) -> list[Forward]:
    """The checkpoint's own tokenizer on `text` -> one forward named `prompt`. raises InputError"""
    from . import prompts

    return [Forward("prompt", torch.tensor([prompts.from_text(prompts.tokenizer_of(folder), text).ids]))]


def from_file(path: str | os.PathLike[str]) -> list[Forward]:
    """A JSON file with a list of forwards, or an object with them under `forwards`. raises InputError"""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if isinstance(data, dict) and "forwards" in data:
        data = data["forwards"]
    return from_json(data, str(path))


def to_json(forwards: Iterable[Forward]) -> list[dict[str, Any]]:
    """The `forwards` list of the trace format, as from_json reads it."""
    return [{k: x.tolist() if isinstance(x, torch.Tensor) else x for k, x in vars(f).items()} for f in forwards]


def from_json(data: Any, where: str = "inputs") -> list[Forward]:
    """The `forwards` list of the trace format -> forwards. raises InputError naming the place"""
    if not isinstance(data, list) or not data:
        raise InputError(f"{where}: expected a list of forwards with at least one entry")
    forwards: list[Forward] = []
    for i, entry in enumerate(data):
        at = f"{where} /{i}"
        if not isinstance(entry, dict):
            raise InputError(f"{at}: expected an object with {', '.join(KEYS)}")
        unknown = sorted(set(entry) - set(KEYS))
        if unknown:
            raise InputError(f"{at}/{unknown[0]}: unknown key (known: {', '.join(KEYS)})")
        name, past = entry.get("name"), entry.get("past")
        if not isinstance(name, str) or not name.isprintable() or not name or "/" in name:
            raise InputError(f"{at}/name: expected a printable name without '/', found {name!r}")
        if any(f.name == name for f in forwards):
            raise InputError(f"{at}/name: {name!r} is there twice")
        if past is not None and not any(f.name == past for f in forwards):
            raise InputError(f"{at}/past: expected the name of an earlier forward or null, found {past!r}")
        if entry.get("ids") is None:
            raise InputError(f"{at}/ids: expected [B, T], found nothing")
        tensors = [None if entry.get(k) is None else _tensor(entry[k], f"{at}/{k}") for k in ("ids", "positions", "mask")]
        assert tensors[0] is not None
        forwards.append(Forward(name, tensors[0], tensors[1], tensors[2], past))
    return forwards


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are each there once. raises ValueError"""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key is there twice among {', '.join(key for key, _ in pairs)}")
    return found


def _tensor(value: Any, where: str) -> torch.Tensor:
    def whole(x: Any) -> bool:
        if isinstance(x, list):
            return all(whole(item) for item in x)
        return isinstance(x, int) and not isinstance(x, bool) and abs(x) < 2**62

    try:
        good = isinstance(value, list) and whole(value)
    except RecursionError:
        good = False
    if not good:
        raise InputError(f"{where}: expected nested lists of whole numbers")
    try:
        return torch.tensor(value, dtype=torch.int64)
    except (ValueError, TypeError):
        raise InputError(f"{where}: expected a full rectangle, found rows of different lengths") from None


def check_all(mirror: _core.Mirror, forwards: list[Forward]) -> dict[str, int]:
    """Checks every forward against the model before any runs -> tokens already cached, by name. raises InputError"""
    by_name = {f.name: f for f in forwards}
    cached = {f.past for f in forwards if f.past}
    past: dict[str, int] = {}
    for f in forwards:
        past[f.name] = past[f.past] + by_name[f.past].ids.shape[1] if f.past else 0
        try:
            mirror.check(f.ids, f.positions, f.mask, past[f.name], f.name in cached or f.past is not None)
        except InputError as error:
            raise InputError(f"input {f.name!r}: {error}") from None
        if f.past and by_name[f.past].ids.shape[0] != f.ids.shape[0]:
            raise InputError(f"input {f.name!r}: a batch of {f.ids.shape[0]}, but {f.past!r} has {by_name[f.past].ids.shape[0]}")
    return past


def is_packed(f: Forward) -> bool:
    """Several sequences in one row, by HF's own rule: no mask, no cache, positions that do not rise by one."""
    if f.positions is None or f.positions.ndim != 2 or f.mask is not None or f.past is not None:
        return False
    return bool((f.positions.diff(dim=-1) != 1).any())
