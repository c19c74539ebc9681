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

from . import hf_model, hub, preflight
from . import inputs as given
from .capture import only_tensor
from .engines.live import record as record_live
from .engines.mirror import MirrorEngine
from .inputs import Forward
from .native import Error, InputError, _core
from .options import Progress, check_options, thread_count
from .preflight import LIMITS
from .reference import Reference
from .text import Prompt, from_chat, from_text, load_tokenizer, text_stream
from .verdicts import worst
from .verification import FORMAT_VERSION

TIE = 2.0  # a flip is a tie where the gap is at most so many times the sides' own error at the two logits


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
    of the report. patch changes the loaded HF model and hypothesis the mirror's run, for tests of the check.
    raises LoadError for what cannot be loaded and InputError for what cannot be run.
    """
    check_options(dtype, attn, "sublayer", 0.0, 0.0, threads)
    _check_options(prompt, ids, chat, system, thinking, max_new_tokens, min_new_tokens)
    if patch is not None and not check:
        raise InputError("patch: it changes the reference, which runs with check only")
    with thread_count(threads):
        run = _Run(hub.resolve(model, revision), dtype, attn, hypothesis, stream, note, progress)
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
        self, folder: Path, dtype: str, attn: str, hypothesis: tuple[str, str] | None, stream: Callable[[str], None] | None,
        note: Callable[[str], None] | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.folder, self.dtype, self.attn, self.hypothesis = folder, dtype, attn, hypothesis
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
        self.variant = _variant()
        self.judged: _Check | None = None
        self.text: list[str] = []
        self.speed: dict[str, Any] = {}

    def _noted(self, lines: list[str]) -> None:
        for line in lines:
            self.notes.append(line)
            self.note(line)

    def take_prompt(self, prompt: str | None, ids: Any, chat: bool, system: str | None, thinking: bool | None) -> None:
        self.tokenizer: Any = None
        if prompt is None:
            stated = ids if isinstance(ids, str) else ",".join(str(int(i)) for i in ids)
            self.prompt = Prompt(given.from_ids(stated)[0].ids[0].tolist(), "ids")
            with contextlib.suppress(InputError):  # ids need no tokenizer: without one they are shown as numbers
                self.tokenizer = load_tokenizer(self.folder)
        else:
            self.tokenizer = load_tokenizer(self.folder)
            if chat:
                self.prompt = from_chat(self.tokenizer, self.folder, prompt, system, thinking)
            else:
                self.prompt = from_text(self.tokenizer, prompt)
        self._noted(self.prompt.notes)
        self.ids = torch.tensor([self.prompt.ids])
        self.pieces = None if self.tokenizer is None else text_stream(self.tokenizer)

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
        decoding = _core.Decoding(self.mirror, self.attn, self.variant, self.hypothesis)
        done = decoding.greedy(
            self.ids, None, self.config["stop"], self.config["pad"], self.longest, self.least,
            on_step=lambda _, tokens: self.emit(int(tokens[0])),
        )  # fmt: skip
        self.end_text()
        self.tokens = done["tokens"][0]
        self.stopped = bool(done["stopped"][0])
        self.speed["mirror"] = _speed(self.ids.shape[1], done["prefill_seconds"], done["steps"] - 1, done["decode_seconds"])

    def check(self, patch: Callable[[Any], Any] | None) -> None:
        """Hugging Face's generate(), and the mirror on its tokens."""
        started = time.perf_counter()
        self.say(f"loading {self.about['hf_class']} in {self.dtype}")
        reference = Reference.load(self.folder, self.about, self.dtype, self.attn, patch)
        self.seconds["reference_load"] = time.perf_counter() - started
        self.judged = _Check(self, reference)
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
        pedigree = checked.reference.pedigree if checked else _own_pedigree(self.attn, self.dtype, self.variant)
        return Generation(
            {
                "format_version": FORMAT_VERSION,
                "command": "generate",
                "verdict": checked.verdict if checked else None,
                "model": {"family": self.about["family"], "layer_types": self.about["layer_types"], "digest": whole},
                "pedigree": pedigree,
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "exit_code": checked.exit_code if checked else 0,
                "options": {"dtype": self.dtype, "attn": self.attn, "max_new_tokens": self.longest, "min_new_tokens": self.least},
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


class _Check:
    """The mirror after each forward of Hugging Face's generate(), on the same tokens."""

    def __init__(self, run: _Run, reference: Reference) -> None:
        self.of, self.reference = run, reference
        self.decoding = _core.Decoding(run.mirror, run.attn, run.variant, run.hypothesis)
        self.logits: list[tuple[torch.Tensor, torch.Tensor]] = []  # reference's, mirror's [1, V] of each step
        self.differing: list[dict[str, Any]] = []  # {step, point, verdict, max_abs}, in order
        self.faults: list[dict[str, Any]] = []
        self.flips: list[dict[str, Any]] = []
        self.compared = 0
        self.time = {"reference": [0.0, 0.0], "mirror": [0.0, 0.0]}  # prefill, decode
        self.verdict = "identical"

    def run(self) -> None:
        run, model = self.of, self.reference.model
        name = hf_model.cache_argument(model) or "past_key_values"
        began = [0.0]

        def before(*_: Any) -> None:
            began[0] = time.perf_counter()

        def after(_: Any, __: tuple, kwargs: dict[str, Any], output: Any) -> None:
            self._spent("reference", began[0])
            self._step(kwargs["input_ids"], output.logits[:, -1].detach().clone(), kwargs.get(name))

        emit = run.emit

        class Tokens:
            """generate()'s streamer: the prompt first, then token by token."""

            def __init__(self) -> None:
                self.got: list[int] | None = None

            def put(self, value: torch.Tensor) -> None:
                if self.got is None:
                    self.got = []
                    return
                for token in value.flatten().tolist():
                    self.got.append(token)
                    emit(token)

            def end(self) -> None: ...

        streamer = Tokens()
        handles = [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after, with_kwargs=True),
        ]
        try:
            with torch.no_grad(), hf_model.quiet_transformers():
                model.generate(
                    run.ids, attention_mask=torch.ones_like(run.ids), do_sample=False, use_cache=True,
                    max_new_tokens=run.longest, min_new_tokens=run.least, streamer=streamer,
                )  # fmt: skip
        except (Error, KeyboardInterrupt):
            raise
        except Exception as error:  # a model that was patched, or a generation config, may raise anything
            reason = (str(error).strip().splitlines() or [""])[0]
            raise InputError(f"the reference's generate() raised {type(error).__name__}: {reason}") from error
        finally:
            for handle in handles:
                handle.remove()
        self.tokens = streamer.got or []
        self.stop = _stop_tokens(model)
        prompt, steps = run.ids.shape[1], len(self.logits)
        self.speed = {side: _speed(prompt, times[0], steps - 1, times[1]) for side, times in self.time.items()}

    def _spent(self, side: str, since: float) -> None:
        self.time[side][min(len(self.logits), 1)] += time.perf_counter() - since

    def _step(self, ids: torch.Tensor, theirs: torch.Tensor, cache: Any) -> None:
        started = time.perf_counter()
        mine = self.decoding.step(ids[:, -1]) if self.logits else self.decoding.prefill(ids)
        self._spent("mirror", started)
        step = len(self.logits)
        self.logits.append((theirs, mine))
        self._compare(step, "lm_head.output", theirs, mine)
        left, states = _states_of(cache), self.decoding.states()
        for point in sorted(left.keys() | states.keys()):
            self._compare(step, point, left.get(point), states.get(point))

    def _compare(self, step: int, point: str, theirs: torch.Tensor | None, mine: torch.Tensor | None) -> None:
        self.compared += 1
        if theirs is None or mine is None:
            self.differing.append({"step": step, "point": point, "verdict": "missing", "max_abs": None})
            return
        theirs = theirs.detach().contiguous()
        same = _core.same_bits(theirs, mine.contiguous())
        if same and not bool(torch.isnan(mine).any()):
            return
        found = _core.compare(theirs, mine.contiguous(), atol=0.0)
        self.differing.append({"step": step, "point": point, "verdict": found["verdict"], "max_abs": found["max_abs"]})

    def judge(self) -> None:
        """Where bits differ: is every sublayer, on its own input, within what right arithmetic may lose? And the flips."""
        run = self.of
        if self.stop != sorted(set(run.config["stop"])):
            self.faults.append(
                self._fault("stop tokens", f"the mirror stops at {run.config['stop']}, the reference at {self.stop}")
            )
        worse = [entry["verdict"] for entry in self.differing if entry["verdict"] in ("dtype", "shape", "missing", "non_finite")]
        if self.differing and not worse:
            self._local_check()
        self._find_flips()
        self.verdict = worst(
            [*worse, *(fault["verdict"] for fault in self.faults), *("deviates" for f in self.flips if not f["tie"])],
            default="rounding" if self.differing else "identical",
        )
        if not self.logits:
            self.verdict = "missing"

    @staticmethod
    def _fault(point: str, note: str) -> dict[str, Any]:
        return {
            "point": point,
            "side": "candidate",
            "verdict": "deviates",
            "input": None,
            "ratio": None,
            "cause": None,
            "note": note,
        }

    def _forwards(self) -> list[Forward]:
        """What generate() ran, as forwards that continue one another. One step more than it needs at least: a prompt that
        nothing continues would run without a cache."""
        run = self.of
        length = run.ids.shape[1]
        forwards = [Forward("prefill", run.ids, positions=torch.arange(length)[None])]
        for i in range(max(len(self.logits) - 1, 1)):
            forwards.append(
                Forward(f"step{i + 1}", torch.tensor([[self.tokens[i]]]), torch.tensor([[length + i]]), past=forwards[-1].name)
            )
        return forwards

    def _local_check(self) -> None:
        run, reference = self.of, self.reference
        run.say("local check: is it rounding?")
        forwards = self._forwards()
        theirs, _ = record_live(
            reference.model, reference.modeling, forwards, "sublayer", dtype=run.dtype, attn=run.attn, variant=reference.variant,
            vocab=run.about["vocab"], who="transformers",
        )  # fmt: skip
        engine = MirrorEngine(run.folder, run.about, run.dtype, run.attn, run.hypothesis)
        mine = engine.record(forwards, "sublayer").trace
        # What was recorded must be what generate() ran, but for the shape of the prompt's head.
        for side, trace in enumerate((theirs, mine)):
            for step, f in enumerate(forwards[: len(self.logits)]):
                again = trace.tensor(f.name, "lm_head.output")
                assert again is not None
                away = _core.compare(self.logits[step][side].float(), again[:, -1].float().contiguous())["rel_l2"]
                if away is None or not away <= LIMITS[run.dtype]:
                    who = ("reference", "candidate")[side]
                    note = f"in generation the logits of step {step} are not those of the same forward run by itself"
                    self.faults.append({**self._fault("lm_head.output", note), "side": who, "input": f.name})
                    break
        len130 = next(f for f in given.default_inputs(run.about["vocab"], run.about["mrope"]) if f.name == "len130")
        found = _core.bisect(
            str(run.folder), theirs, mine, run.dtype, run.attn, len130.ids, values=False, causes=True, thorough=False,
            points=False, without=set(), progress=run.say,
        )  # fmt: skip
        self.faults += found["faults"]

    def _find_flips(self) -> None:
        """Steps at which the sides choose other tokens on the same ones before, with the gap and the sides' own errors."""
        run = self.of
        stop = run.config["stop"]
        flipped = []
        for step, (_, mine) in enumerate(self.logits[: len(self.tokens)]):
            token = int(_core.choose(mine, stop, step < run.least)[0])
            if token != self.tokens[step]:
                flipped.append((step, token))
        if not flipped:
            return
        run.say("the truth at the steps where tokens differ")
        truth = _core.Decoding.truth(str(run.folder))
        exact = [truth.prefill(run.ids)]
        for token in self.tokens[: flipped[-1][0]]:
            exact.append(truth.step(torch.tensor([token])))
        for step, token in flipped:
            two = [self.tokens[step], token]
            theirs, mine = (x[0, two].double() for x in self.logits[step])
            true = exact[step][0, two]
            margin = float(theirs[0] - theirs[1])
            noise = float(torch.maximum((mine - true).abs(), (theirs - true).abs()).max())
            self.flips.append(
                {
                    "step": step, "reference": two[0], "mirror": two[1], "margin": margin, "noise": noise,
                    # An error of any size makes room for itself: it is noise only if the local check calls it so.
                    "tie": not self.faults and margin <= TIE * noise,
                }
            )  # fmt: skip

    @property
    def exit_code(self) -> int:
        if self.verdict == "non_finite":
            return 1
        if self.reference.pedigree["failed"]:
            return 2
        return int(self.verdict not in ("identical", "rounding"))

    def result(self) -> dict[str, Any]:
        return {
            "steps": len(self.logits),
            "compared": self.compared,
            "first": self.differing[0] if self.differing else None,
            "differing": self.differing,
            "flips": self.flips,
            "faults": self.faults,
        }


def _states_of(cache: Any) -> dict[str, torch.Tensor]:
    """What a DynamicCache holds, by its capture point."""
    found: dict[str, torch.Tensor] = {}
    for i, layer in enumerate(getattr(cache, "layers", [])):
        for point, attribute in (
            ("linear_attn@conv_state", "conv_states"), ("linear_attn@recurrent_state", "recurrent_states"),
            ("self_attn@key_cache", "keys"), ("self_attn@value_cache", "values"),
        ):  # fmt: skip
            value = only_tensor(getattr(layer, attribute, None))
            if isinstance(value, torch.Tensor):
                found[f"model.layers.{i}.{point}"] = value
    return found


def _stop_tokens(model: Any) -> list[int]:
    stop = model.generation_config.eos_token_id
    return [] if stop is None else sorted({stop} if isinstance(stop, int) else set(stop))


def _speed(prompt: int, prefill: float, steps: int, decode: float) -> dict[str, float | None]:
    """Tokens per second: of the prompt until the first new token; of the new tokens after it."""
    return {
        "prefill_tokens_per_second": round(prompt / prefill, 2) if prefill else None,
        "decode_tokens_per_second": round(steps / decode, 2) if decode and steps > 0 else None,
    }


def _variant() -> str:
    """The installed release's; without one, the release that the mirror was written by."""
    try:
        return hf_model.variant_of()
    except ImportError:
        return "5.18"


def _own_pedigree(attn: str, dtype: str, variant: str) -> dict[str, Any]:
    return {
        "transformers": None,
        "torch": torch.__version__,
        "attn": attn,
        "dtype": dtype,
        "variant": variant,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "failed": [],
    }
