"""Generation held against Hugging Face's: the mirror takes each step of generate() on the same tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import torch

from . import hf_model
from . import inputs as given
from .capture import only_tensor
from .engines.live import record as record_live
from .engines.mirror import MirrorEngine
from .inputs import Forward
from .native import Error, InputError, _core
from .options import Progress
from .preflight import LIMITS
from .reference import Reference
from .verdicts import worst

TIE = 2.0  # a flip is a tie where the gap is at most so many times the sides' own error at the two logits


class Generating(Protocol):
    """What of a generation its check needs."""

    folder: Path
    dtype: str
    attn: str
    hypothesis: tuple[str, str] | None
    fast: bool
    about: dict[str, Any]
    config: dict[str, Any]
    mirror: _core.Mirror
    variant: str
    ids: torch.Tensor
    longest: int
    least: int
    say: Progress

    def emit(self, token: int) -> None: ...


class StepCheck:
    """The mirror after each forward of Hugging Face's generate(), on the same tokens."""

    def __init__(self, run: Generating, reference: Reference) -> None:
        self.of, self.reference = run, reference
        self.decoding = _core.Decoding(run.mirror, run.attn, run.variant, run.hypothesis, run.fast)
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
        self.speed = {side: speed(prompt, times[0], steps - 1, times[1]) for side, times in self.time.items()}

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
        engine = MirrorEngine(run.folder, run.about, run.dtype, run.attn, run.hypothesis, run.fast)
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


def speed(prompt: int, prefill: float, steps: int, decode: float) -> dict[str, float | None]:
    """Tokens per second: of the prompt until the first new token; of the new tokens after it."""
    return {
        "prefill_tokens_per_second": round(prompt / prefill, 2) if prefill else None,
        "decode_tokens_per_second": round(steps / decode, 2) if decode and steps > 0 else None,
    }
