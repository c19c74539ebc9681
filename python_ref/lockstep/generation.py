"""Greedy generation by the C++ mirror; and, beside it, Hugging Face's own generate() on the same tokens, step by step."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import hub, preflight
from . import inputs as given
from .mirror import installed_variant, own_pedigree
from .native import InputError, _core
from .options import Progress, check_options, thread_count
from .prompts import Prompt, from_chat, from_text, tokenizer_of
from .reference import Reference
from .step_check import StepCheck, speed
from .tokenizing import Tokenizer
from .verification import FORMAT_VERSION


@dataclass(frozen=True)
class Generation:
    """What `lockstep generate --json` writes, as `data`; and what follows from it."""

    data: dict[str, Any]
    folder: Path

    @property
    def text(self) -> str | None:
        """The new tokens as text; None where only ids are known."""
        return self.data["text"]

    @property
    def tokens(self) -> list[int]:
        """The new tokens, the stop token included."""
        return self.data["tokens"]

    @property
    def verdict(self) -> str | None:
        """The worst verdict over all steps; None without a check."""
        return self.data["verdict"]

    @property
    def exit_code(self) -> int:
        """0 passes or was not checked, 1 does not pass, 2 could not judge."""
        return int(self.data["exit_code"])

    def __bool__(self) -> bool:
        return self.exit_code == 0


def generate(
    model: str | os.PathLike[str] | None = None,
    *,
    prompt: str | None = None,
    ids: str | Sequence[int] | None = None,
    chat: bool = False,
    system: str | None = None,
    thinking: bool | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int | None = None,
    dtype: str = "float32",
    attn: str = "sdpa",
    check: bool = False,
    fast: bool = False,
    threads: int | None = None,
    revision: str | None = None,
    digest: bool = True,
    stream: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
    patch: Callable[[Any], Any] | None = None,
    hypothesis: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> Generation:
    """The greedy continuation of one prompt.

    model: a folder, a hub id, or None for the embedded checkpoint. Exactly one of prompt and ids; chat puts the prompt, and
    system before it, through the checkpoint's own template (thinking: its enable_thinking). Lengths and stop tokens are
    those of model.generation_config where nothing is said. check: Hugging Face's generate() runs too, the mirror takes
    each of its steps on its tokens, and logits, caches and states of every step are compared. stream receives pieces of
    text as they come, note a line for whatever is not done as the checkpoint says. digest: of the weights, for the head
    of the report. fast: weights are read as the file holds them, in bfloat16, which gives other bits. patch changes the
    loaded HF model and hypothesis the mirror's run, for tests of the check.
    raises LoadError for what cannot be loaded and InputError for what cannot be run.
    """
    check_options(dtype, attn, "sublayer", 0.0, 0.0, threads)
    _check_options(prompt, ids, chat, system, thinking, max_new_tokens, min_new_tokens)
    if patch is not None and not check:
        raise InputError("patch: it changes the reference, which runs with check only")
    with thread_count(threads):
        run = _Run(hub.resolve(model, revision), dtype, attn, hypothesis, fast, stream, note, progress)
        run.take_prompt(prompt, ids, chat, system, thinking)
        run.take_lengths(max_new_tokens, min_new_tokens)
        if check:
            run.check(patch)
        else:
            run.generate()
        return run.report(digest or check)


def _check_options(
    prompt: str | None, ids: Any, chat: bool, system: str | None, thinking: bool | None, longest: int | None, least: int | None
) -> None:
    if (prompt is None) == (ids is None):
        raise InputError("expected --prompt or --ids" + ("" if prompt is None else ", found both"))
    if chat and prompt is None:
        raise InputError("--chat: expected a --prompt, the user's message")
    if not chat and (system is not None or thinking is not None):
        raise InputError(f"{'--system' if system is not None else '--thinking and --no-thinking'}: expected with --chat only")
    if longest is not None and not (isinstance(longest, int) and 1 <= longest <= 10_000_000):
        raise InputError(f"--max-new-tokens {longest}: expected 1 or more")
    if least is not None and not (isinstance(least, int) and 0 <= least <= 10_000_000):
        raise InputError(f"--min-new-tokens {least}: expected 0 or more")


class _Run:
    """One generation in progress."""

    def __init__(
        self, folder: Path, dtype: str, attn: str, hypothesis: tuple[str, str] | None, fast: bool,
        stream: Callable[[str], None] | None, note: Callable[[str], None] | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.folder, self.dtype, self.attn, self.hypothesis, self.fast = folder, dtype, attn, hypothesis, fast
        self.say: Progress = progress or (lambda _: None)
        self.show = stream or (lambda _: None)
        self.note = note or (lambda _: None)
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()
        self.say(f"opening {folder}")
        self.mirror = _core.Mirror.open(str(folder))
        self.mirror.bind(dtype)
        self.about = self.mirror.describe()
        self.config = _core.generation_config(self.mirror)
        self._noted(self.config["notes"])
        self.seconds["load"] = time.perf_counter() - self.started
        self.variant = installed_variant()
        self.judged: StepCheck | None = None
        self.text: list[str] = []
        self.speed: dict[str, Any] = {}

    def _noted(self, lines: list[str]) -> None:
        for line in lines:
            self.notes.append(line)
            self.note(line)

    def take_prompt(self, prompt: str | None, ids: Any, chat: bool, system: str | None, thinking: bool | None) -> None:
        self.tokenizer: Tokenizer | None = None
        if prompt is None:
            stated = ids if isinstance(ids, str) else ",".join(str(int(i)) for i in ids)
            self.prompt = Prompt(given.parse_ids(stated), "ids")
            with contextlib.suppress(InputError):  # ids need no tokenizer: without one they are shown as numbers
                self.tokenizer = tokenizer_of(self.folder)
        else:
            self.tokenizer = tokenizer_of(self.folder)
            if chat:
                self.prompt = from_chat(self.tokenizer, prompt, system, thinking)
            else:
                self.prompt = from_text(self.tokenizer, prompt)
        self._noted(self.prompt.notes)
        self.ids = torch.tensor([self.prompt.ids])
        self.pieces = None if self.tokenizer is None else self.tokenizer.stream()

    def take_lengths(self, longest: int | None, least: int | None) -> None:
        self.longest = _core.new_tokens(self.mirror, len(self.prompt.ids), longest)
        self.least = (self.config["min_new_tokens"] or 0) if least is None else least

    def emit(self, token: int) -> None:
        """A new token: shown as text where there is a tokenizer, else as its number."""
        piece = f"{token} " if self.pieces is None else self.pieces.add(token)
        self._show(piece)

    def end_text(self) -> None:
        if self.pieces is not None:
            self._show(self.pieces.finish())

    def _show(self, piece: str) -> None:
        if piece:
            self.text.append(piece)
            self.show(piece)

    def generate(self) -> None:
        """The mirror alone."""
        decoding = _core.Decoding(self.mirror, self.attn, self.variant, self.hypothesis, self.fast)
        done = decoding.greedy(
            self.ids, None, self.config["stop"], self.config["pad"], self.longest, self.least,
            on_step=lambda _, tokens: self.emit(int(tokens[0])),
        )  # fmt: skip
        self.end_text()
        self.tokens = done["tokens"][0]
        self.stopped = bool(done["stopped"][0])
        self.speed["mirror"] = speed(self.ids.shape[1], done["prefill_seconds"], done["steps"] - 1, done["decode_seconds"])

    def check(self, patch: Callable[[Any], Any] | None) -> None:
        """Hugging Face's generate(), and the mirror on its tokens."""
        started = time.perf_counter()
        self.say(f"loading {self.about['hf_class']} in {self.dtype}")
        reference = Reference.load(self.folder, self.about, self.dtype, self.attn, patch)
        self.seconds["reference_load"] = time.perf_counter() - started
        self.judged = StepCheck(self, reference)
        started = time.perf_counter()
        self.say("generating on both sides")
        self.judged.run()
        self.end_text()
        self.seconds["generate"] = time.perf_counter() - started
        self.tokens, self.stopped = self.judged.tokens, bool(self.judged.tokens) and self.judged.tokens[-1] in self.config["stop"]
        self.speed = self.judged.speed
        started = time.perf_counter()
        self.say("preflight: the reference's own invariants")
        preflight.run(reference, self.mirror, [], "sublayer")
        self.seconds["preflight"] = time.perf_counter() - started
        started = time.perf_counter()
        self.judged.judge()
        self.seconds["judge"] = time.perf_counter() - started

    def report(self, digest: bool) -> Generation:
        started = time.perf_counter()
        whole = self.mirror.digest() if digest else None
        self.seconds["digest"] = time.perf_counter() - started
        self.seconds["total"] = time.perf_counter() - self.started
        checked = self.judged
        pedigree = checked.reference.pedigree if checked else own_pedigree(self.attn, self.dtype, self.variant)
        return Generation(
            {
                "format_version": FORMAT_VERSION,
                "command": "generate",
                "verdict": checked.verdict if checked else None,
                "model": {"family": self.about["family"], "layer_types": self.about["layer_types"], "digest": whole},
                "pedigree": pedigree,
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "exit_code": checked.exit_code if checked else 0,
                "options": {
                    "dtype": self.dtype,
                    "attn": self.attn,
                    "fast": self.fast,
                    "max_new_tokens": self.longest,
                    "min_new_tokens": self.least,
                },
                "generation_config": {key: self.config[key] for key in ("file", "stop", "pad")},
                "notes": self.notes,
                "prompt": {"path": self.prompt.path, "text": self.prompt.text, "ids": self.prompt.ids},
                "tokens": self.tokens,
                "stopped": self.stopped,
                "text": None if self.tokenizer is None else "".join(self.text),
                "speed": self.speed,
                "check": checked.result() if checked else None,
            },
            self.folder,
        )
