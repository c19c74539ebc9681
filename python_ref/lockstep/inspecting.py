"""Look inside: one forward per prompt, told as numbers that the page draws. The numbers are made in C++ (cpp/inspect) from
the mirror's captures, or from Hugging Face's."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import hub
from . import inputs as given
from .capture import Capture
from .mirror import installed_variant, own_pedigree
from .native import InputError, _core
from .options import Progress, check_options, thread_count
from .prompts import from_chat, from_text, tokenizer_of
from .reference import Reference
from .tokenizing import Tokenizer

INSPECT_VERSION = 1
MOST_TOKENS = 1024  # of a prompt: every number is told per token
HELD = re.compile(r"(\d{1,6}):(\d{1,9})(?:=(\d{1,6}))?")


@dataclass(frozen=True)
class Inspected:
    """What `lockstep inspect --json` writes, as `data`."""

    data: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0 the sum check holds in every prompt, 1 it does not or something is not finite, 2 Hugging Face's model is not what
        was asked for."""
        return int(self.data["exit_code"])

    def __bool__(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class Held:
    """`LAYER:NEURON` at zero, or `LAYER:NEURON=N` at the value that it has under prompt N (from 1)."""

    layer: int
    neuron: int
    prompt: int | None = None

    @classmethod
    def parse(cls, text: str) -> Held:
        match = HELD.fullmatch(text.strip())
        if not match:
            raise InputError(f"--ablate {text!r}: expected LAYER:NEURON, or LAYER:NEURON=N for its value under prompt N")
        layer, neuron, prompt = match.groups()
        return cls(int(layer), int(neuron), None if prompt is None else int(prompt))


def inspect(
    models: str | os.PathLike[str] | None | Sequence[str | os.PathLike[str]] = None,
    prompts: str | Sequence[str] | None = None,
    *,
    ids: Sequence[Sequence[int]] | None = None,
    chat: bool = False,
    dtype: str = "float32",
    attn: str = "sdpa",
    source: str = "mirror",
    target: str | int | None = None,
    ablate: Sequence[str] = (),
    token: int = -1,
    threads: int | None = None,
    revision: str | None = None,
    digest: bool = True,
    patch: Callable[[Any], Any] | None = None,
    progress: Progress | None = None,
    passed: Callable[[], None] | None = None,
    opened: Callable[[int], None] | None = None,
) -> Inspected:
    """What the models do inside on each prompt.

    models: one or several folders or hub ids, or None for the embedded checkpoint. prompts: texts; or ids, a list of token ids
    each. source: whose captures, mirror or hf (then patch may change the loaded model). target: the token whose probability is
    followed, as text or id; the most probable one if left out. ablate: `LAYER:NEURON` or `LAYER:NEURON=N`; the strongest neuron
    of each prompt if empty. token: whose vector is followed as it is written, negative from the end. passed is called before
    each layer and may raise; opened is told how many layers a model has.
    raises LoadError for what cannot be loaded and InputError for what cannot be run.
    """
    held = checked_options(dtype, attn, source, threads, ablate)
    if patch is not None and source != "hf":
        raise InputError("patch: it changes Hugging Face's model, which runs with source='hf' only")
    texts = [_text(t) for t in ([prompts] if isinstance(prompts, str) else prompts or ())]
    if bool(texts) == bool(ids):
        raise InputError("expected --prompt or --ids" + (", found both" if texts else ""))
    if ids and chat:
        raise InputError("--chat: expected with --prompt only; ids are taken as they are")
    target = _text(target) if isinstance(target, str) else target
    names: list[Any] = list(models) if isinstance(models, (list, tuple)) else [models]
    started = time.perf_counter()
    say = progress or (lambda _: None)
    with thread_count(threads):
        inside = []
        for name in names or [None]:
            model = _Model(name, revision, dtype, attn, source, patch, say, passed)
            if opened:
                opened(len(model.about["layer_types"]))
            inside.append(model.inspect(texts, ids, chat, target, held, token, digest))
    first = inside[0]
    verdict = _verdict(inside)
    distrusted = any(model["pedigree"]["failed"] for model in inside)
    return Inspected(
        {
            "format_version": INSPECT_VERSION,
            "command": "inspect",
            "verdict": verdict,
            "model": {key: first[key] for key in ("family", "layer_types", "digest")},
            "pedigree": first["pedigree"],
            "seconds": {"total": round(time.perf_counter() - started, 3)},
            "exit_code": 1 if verdict == "non_finite" else 2 if distrusted else int(verdict != "agrees"),
            "options": {"dtype": dtype, "attn": attn, "source": source, "chat": chat, "target": target, "ablate": list(ablate)},
            "models": inside,
        }
    )


def checked_options(dtype: str, attn: str, source: str, threads: int | None, ablate: Sequence[str]) -> list[Held]:
    """What can be said of the options before a model is open -> what is held. raises InputError"""
    check_options(dtype, attn, "all", 0.0, 0.0, threads)
    if source not in ("mirror", "hf"):
        raise InputError(f"--source {source!r}: expected mirror or hf")
    return [Held.parse(text) for text in ablate]


def _text(text: str) -> str:
    """As the tokenizer reads it: a lone surrogate, which is how Python holds a byte that is no UTF-8, is no text."""
    return text.encode("utf-8", "replace").decode()


def _verdict(inside: list[dict[str, Any]]) -> str:
    every = [p for model in inside for p in model["prompts"]]
    if not all(p["finite"] for p in every):
        return "non_finite"
    return "agrees" if all(p["sum_check"]["passes"] for p in every) else "deviates"


class _Model:
    """One model under inspection."""

    def __init__(
        self, name: str | os.PathLike[str] | None, revision: str | None, dtype: str, attn: str, source: str,
        patch: Callable[[Any], Any] | None, say: Progress, passed: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self.name = "the embedded checkpoint" if name is None else _text(os.fspath(name))
        self.folder: Path = hub.resolve(name, revision)
        self.dtype, self.attn, self.source, self.say, self.passed = dtype, attn, source, say, passed
        say(f"opening {self.folder}")
        self.mirror = _core.Mirror.open(str(self.folder))
        self.mirror.bind(dtype)
        self.about = self.mirror.describe()
        self.variant = installed_variant()
        self.seconds: dict[str, float] = {}
        self.reference: Reference | None = None
        if source == "hf":
            say(f"loading {self.about['hf_class']} in {dtype}")
            self.reference = Reference.load(self.folder, self.about, dtype, attn, patch)

    def inspect(
        self, texts: list[str], ids: Sequence[Sequence[int]] | None, chat: bool, target: str | int | None, held: list[Held],
        token: int, digest: bool,
    ) -> dict[str, Any]:  # fmt: skip
        self.tokenizer = self._tokenizer(bool(texts))
        sequences = [self._ids(text, chat) for text in texts] if texts else [[int(i) for i in row] for row in ids or ()]
        for row in sequences:
            if not 1 <= len(row) <= MOST_TOKENS:
                raise InputError(f"a prompt of {len(row)} tokens: expected 1 to {MOST_TOKENS}; every number is told per token")
        wanted = self._target(target)
        for h in held:
            self._check(h, len(sequences))

        runs = []
        for number, row in enumerate(sequences, 1):
            self.say(f"{self.name}: prompt {number} of {len(sequences)}, {len(row)} tokens")
            runs.append(self._run(row, wanted, token))
        for number, (row, told, _) in enumerate(runs, 1):
            told["ablations"] = []
            strongest = told["neurons"]["strongest"][0]
            for h in held or [Held(strongest["layer"], strongest["neuron"])]:
                self.say(f"{self.name}: prompt {number}, neuron {h.layer}:{h.neuron} held")
                told["ablations"].append(self._ablate(row, told, h, runs))
        data = {
            "name": self.name,
            "family": self.about["family"],
            "layer_types": self.about["layer_types"],
            "parameters": self.about["parameters"],
            "digest": self.mirror.digest() if digest else None,
            "pedigree": self._pedigree(),
            "prompts": [{"text": texts[i] if texts else None, "ids": row, **told} for i, (row, told, _) in enumerate(runs)],
            "meaning": self._meanings([inspection for _, _, inspection in runs]),
        }
        data["vocabulary"] = self._vocabulary(data)
        return data

    def _check(self, h: Held, prompts: int) -> None:
        layers = len(self.about["layer_types"])
        if h.layer >= layers:
            raise InputError(f"--ablate {h.layer}:{h.neuron}: layer {h.layer}: expected 0 to {layers - 1}")
        neurons = self.mirror.parameter(f"model.layers.{h.layer}.mlp.down_proj.weight").shape[1]
        if h.neuron >= neurons:
            raise InputError(f"--ablate {h.layer}:{h.neuron}: neuron {h.neuron}: expected 0 to {neurons - 1}")
        if h.prompt is not None and not 1 <= h.prompt <= prompts:
            raise InputError(f"--ablate {h.layer}:{h.neuron}={h.prompt}: expected a prompt from 1 to {prompts}")

    def _tokenizer(self, needed: bool) -> Tokenizer | None:
        try:
            return tokenizer_of(self.folder)
        except InputError:
            if needed:
                raise
            return None  # ids need no tokenizer: they are shown as numbers

    def _ids(self, text: str, chat: bool) -> list[int]:
        assert self.tokenizer is not None
        return (from_chat(self.tokenizer, text, None, None) if chat else from_text(self.tokenizer, text)).ids

    def _target(self, target: str | int | None) -> int | None:
        if target is None:
            return None
        if isinstance(target, int):
            if not 0 <= target < self.about["vocab"]:
                raise InputError(f"--target {target}: expected an id from 0 to {self.about['vocab'] - 1}")
            return target
        if self.tokenizer is None:
            raise InputError(f"--target {target!r}: {self.folder} has no tokenizer to read it with; give its id from Python")
        ids = self.tokenizer.encode(target, special=False)
        if len(ids) != 1:
            raise InputError(
                f"--target {target!r}: expected one token, found {len(ids)} ({ids}); a leading space may belong to it"
            )
        return ids[0]

    def _run(self, row: list[int], target: int | None, token: int) -> tuple[list[int], dict[str, Any], _core.Inspection]:
        started = time.perf_counter()
        ids = torch.tensor([row])
        self.mirror.check(ids, None, None, 0, True)
        inspection = _core.Inspection(self.mirror, ids, token)
        if self.reference is None:
            logits = inspection.run(self.mirror, ids, self.attn, self.variant, self.passed)
        else:
            logits = self._reference_run(ids, inspection)
        forward = time.perf_counter() - started
        told = inspection.finish(logits, target)
        told["seconds"] = {"forward": round(forward, 3), "numbers": round(time.perf_counter() - started - forward, 3)}
        return row, told, inspection

    def _reference_run(self, ids: torch.Tensor, inspection: _core.Inspection | None) -> torch.Tensor:
        """Hugging Face's forward over a new cache; every capture goes to the inspection, if there is one."""
        assert self.reference is not None
        cache = self.reference.new_cache()
        forward = given.Forward("prompt", ids)
        if inspection is None:
            with self._told_of_layers():
                return self.reference.forward(forward, cache)
        with Capture(self.reference.model, self.reference.modeling, "all") as capture:
            capture.sink, capture.cache = _Sink(inspection, self.passed), cache
            return self.reference.forward(forward, cache)

    @contextlib.contextmanager
    def _told_of_layers(self) -> Iterator[None]:
        """`passed` is called after each layer here too, so that it can be cancelled."""
        assert self.reference is not None
        passed = self.passed or (lambda: None)
        handles = [layer.register_forward_hook(lambda *_: passed()) for layer in self.reference.model.model.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _ablate(self, row: list[int], told: dict[str, Any], h: Held, runs: list[Any]) -> dict[str, Any]:
        value = 0.0 if h.prompt is None else runs[h.prompt - 1][2].activation(h.layer, h.neuron)
        last_only = h.prompt is not None
        ids = torch.tensor([row])
        if self.reference is None:
            logits = _core.ablated(
                self.mirror, ids, [(h.layer, h.neuron, value, last_only)], self.attn, self.variant, self.passed
            )
        else:
            logits = self._reference_ablated(ids, h, value, last_only)
        return {
            "layer": h.layer,
            "neuron": h.neuron,
            "value": value if math.isfinite(value) else None,
            "from_prompt": h.prompt,
            "positions": "last" if last_only else "all",
            "before": {"p": told["target_p"], "top": told["next"][:3]},
            "after": _core.next_token(logits, told["target"]),
        }

    def _reference_ablated(self, ids: torch.Tensor, h: Held, value: float, last_only: bool) -> torch.Tensor:
        assert self.reference is not None

        def hold(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            x = args[0].clone()
            x[:, slice(-1, None) if last_only else slice(None), h.neuron] = value
            return (x, *args[1:])

        module = self.reference.model.get_submodule(f"model.layers.{h.layer}.mlp.down_proj")
        handle = module.register_forward_pre_hook(hold)
        try:
            return self._reference_run(ids, None)
        finally:
            handle.remove()

    def _meanings(self, inspections: list[_core.Inspection]) -> list[dict[str, Any]]:
        """Of each token in which several prompts end: how far apart their streams are at it."""
        by_token: dict[int, list[int]] = {}
        for i, inspection in enumerate(inspections):
            by_token.setdefault(inspection.last_id, []).append(i)
        found = []
        for members in by_token.values():
            if len(members) > 1:
                told = _core.meaning([inspections[i] for i in members])
                for pair in told["pairs"]:
                    pair["prompts"] = [members[i] for i in pair["prompts"]]
                found.append({**told, "prompts": members})
        return found

    def _pedigree(self) -> dict[str, Any]:
        if self.reference is not None:
            return self.reference.pedigree
        return own_pedigree(self.attn, self.dtype, self.variant)

    def _vocabulary(self, data: dict[str, Any]) -> dict[str, str]:
        """The text of every token that the numbers name."""
        ids: set[int] = set()
        for p in data["prompts"]:
            ids.update(p["ids"], [p["target"], p["answer"]], (t["id"] for t in p["next"]))
            for d in p["depth"]:
                ids.update(t["id"] for t in d["lens"]["top"])
            for row in [*p["neurons"]["strongest"], *(n for layer in p["neurons"]["layers"] for n in layer["top"])]:
                ids.update(row.get("favours", ()))
            for a in p["ablations"]:
                ids.update(t["id"] for t in (*a["before"]["top"], *a["after"]["top"]))
        return {str(i): self._text(i) for i in sorted(ids)}

    def _text(self, token: int) -> str:
        return f"[{token}]" if self.tokenizer is None else self.tokenizer.decode([token]) or f"[{token}]"


class _Sink:
    """Hands Hugging Face's captures to the inspection."""

    def __init__(self, inspection: _core.Inspection, passed: Callable[[], None] | None) -> None:
        self.inspection, self.passed = inspection, passed

    def capture(self, point: str, value: torch.Tensor) -> None:
        self.inspection.record(point, value)

    def layer_done(self, index: int) -> None:
        if self.passed:
            self.passed()

    def head_done(self) -> None: ...
