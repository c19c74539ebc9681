"""Greedy decoding beside Hugging Face's generate(): token for token, every step's logits in the same bits; and the check
that says so, with planted faults that it must see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Tensors, edited, make_twin
from faults import method
from lockstep import LoadError, Mirror, generate, hf_model
from lockstep.native import _core
from lockstep.prompts import tokenizer_of

PROMPTS = (
    "Permission is hereby granted, free of charge", "THE SOFTWARE IS PROVIDED", "Licensed under the Apache License",
    "You may not use this file", "This program is free software", "GNU GENERAL PUBLIC LICENSE", "Everyone is permitted to copy",
    "The licenses for most software", "To protect your rights, we need", "For example, if you distribute copies",
    "Redistribution and use in source", "IN NO EVENT SHALL", "the copyright holder", "1. Definitions.", "You",
    "as published by the Free Software Foundation", "2. Grant of", "WITHOUT WARRANTY OF ANY KIND, either express", "if", "a\nb c",
)  # fmt: skip
assert len(PROMPTS) == 20


def load_reference(folder: Path, dtype: str = "float32", attn: str = "sdpa") -> Any:
    about = _core.Mirror.open(str(folder)).describe()
    return hf_model.load(folder, about["hf_class"], dtype, attn, about["tied"])[0]


def reference_run(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **more: Any) -> Any:
    with torch.no_grad(), hf_model.quiet_transformers():
        return model.generate(
            ids, attention_mask=torch.ones_like(ids) if mask is None else mask, do_sample=False, output_logits=True,
            return_dict_in_generate=True, **more,
        )  # fmt: skip


def rows_of(sequences: torch.Tensor, prompt: int, stop: list[int]) -> list[list[int]]:
    """New tokens per row, up to its stop token."""
    rows = []
    for row in sequences[:, prompt:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in stop), len(row))
        rows.append(row[:end])
    return rows


def left_padded(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])


def hold(model: Any, mirror: Mirror, ids: torch.Tensor, mask: torch.Tensor | None = None, attn: str = "sdpa", **more: Any) -> Any:
    """The mirror's run, asserted to be the reference's in every token and in every bit of every step's logits."""
    expected = reference_run(model, ids, mask, **more)
    found = mirror.generate(ids, mask, attn=attn, variant=hf_model.variant_of(), logits=True, **more)
    assert found["tokens"] == rows_of(expected.sequences, ids.shape[1], mirror.generation_config()["stop"])
    assert len(found["logits"]) == len(expected.logits) == found["steps"]
    for mine, theirs in zip(found["logits"], expected.logits, strict=True):
        assert _core.same_bits(mine.float(), theirs)
    return found


@pytest.fixture(scope="module")
def embedded_model(embedded: Path) -> Any:
    return load_reference(embedded)


@pytest.fixture(scope="module")
def embedded_prompts(embedded: Path) -> list[list[int]]:
    tokenizer = tokenizer_of(embedded)
    return [tokenizer.encode(text, special=True) for text in PROMPTS]


def test_twenty_prompts_of_64_tokens(embedded: Path, embedded_model: Any, embedded_prompts: list[list[int]]) -> None:
    mirror = Mirror.load(embedded)
    lengths = [len(hold(embedded_model, mirror, torch.tensor([ids]), max_new_tokens=64)["tokens"][0]) for ids in embedded_prompts]
    assert max(lengths) == 64


@pytest.mark.parametrize(("dtype", "attn"), [("bfloat16", "sdpa"), ("float32", "eager"), ("bfloat16", "eager")])
def test_other_dtypes_and_attention(embedded: Path, embedded_prompts: list[list[int]], dtype: str, attn: str) -> None:
    model, mirror = load_reference(embedded, dtype, attn), Mirror.load(embedded, dtype)
    for ids in embedded_prompts[:4]:
        hold(model, mirror, torch.tensor([ids]), attn=attn, max_new_tokens=24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_left_padded_batch_of_four(embedded: Path, embedded_prompts: list[list[int]], dtype: str) -> None:
    model, mirror = load_reference(embedded, dtype), Mirror.load(embedded, dtype)
    config = mirror.generation_config()
    for first in (0, 8, 16):
        ids, mask = left_padded(embedded_prompts[first : first + 4], config["pad"])
        assert bool((mask == 0).any())
        hold(model, mirror, ids, mask, max_new_tokens=40)


def test_rows_that_stop_early_get_pads(embedded: Path, tmp_path: Path, embedded_prompts: list[list[int]]) -> None:
    """Stop tokens that come at different times: finished rows are fed with pads until the last is done."""
    mirror = Mirror.load(embedded)
    ids, mask = left_padded(embedded_prompts[:4], 1019)
    free = mirror.generate(ids, mask, max_new_tokens=16)["tokens"]
    stop = [free[0][2], free[1][7]]
    folder = edited(embedded, tmp_path / "x")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop, "pad_token_id": 5}))
    found = hold(load_reference(folder), Mirror.load(folder), ids, mask, max_new_tokens=16)
    lengths = [len(row) for row in found["tokens"]]
    assert len(set(lengths)) > 1 and any(found["stopped"])


@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
def test_prompts_of_one_to_five_tokens(tmp_path: Path, family: str) -> None:
    folder = make_twin(tmp_path, family)
    model, mirror = load_reference(folder), Mirror.load(folder)
    for n in range(1, 6):
        hold(model, mirror, torch.arange(3, 3 + n)[None], max_new_tokens=12)
        hold(model, mirror, *left_padded([[7, 8, 9, 10, 11, 12], list(range(3, 3 + n))], 0), max_new_tokens=12)


# What model.generation_config says

NOTHING = object()
STOPS = {
    "list": ({"eos_token_id": [7, 9]}, {}, [7, 9]),
    "scalar": ({"eos_token_id": 7}, {}, [7]),
    "absent": ({}, {"eos_token_id": 3}, []),
    "null": ({"eos_token_id": None}, {"eos_token_id": 3}, []),
    "no file": (NOTHING, {"eos_token_id": 3}, [3]),
    "no file, list": (NOTHING, {"eos_token_id": [3, 4]}, [3, 4]),
    "no file, nothing": (NOTHING, {"eos_token_id": None}, []),
}


def composite(config: dict[str, Any], outside: dict[str, Any]) -> None:
    inner = dict(config)
    config.clear()
    config.update({"model_type": "qwen3_5", "text_config": inner, **outside})


def resolved(folder: Path) -> tuple[list[int], list[int], Any, Any]:
    """Stop tokens of mirror and reference, and their pads."""
    theirs = load_reference(folder).generation_config
    stop = theirs.eos_token_id
    mine = _core.generation_config(_core.Mirror.open(str(folder)))
    return mine["stop"], [] if stop is None else [stop] if isinstance(stop, int) else stop, mine["pad"], theirs.pad_token_id


@pytest.mark.parametrize("case", sorted(STOPS))
def test_stop_tokens_are_those_of_the_model(qwen: Path, tmp_path: Path, case: str) -> None:
    own, model, expected = STOPS[case]
    folder = edited(qwen, tmp_path / "x", config=lambda c: c.update(model))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if own is not NOTHING:
        (folder / "generation_config.json").write_text(json.dumps(own))
    mine, theirs, pad, their_pad = resolved(folder)
    assert mine == theirs == expected
    assert pad == (their_pad if their_pad is not None else expected[0] if expected else None)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"), [(4, {}, [4]), (4, {"eos_token_id": 3}, [3]), ([4, 5], {"eos_token_id": None}, [4, 5])]
)
def test_a_composite_config_without_the_file(
    qwen: Path, tmp_path: Path, inner: Any, outer: dict[str, Any], expected: list[int]
) -> None:
    folder = edited(qwen, tmp_path / "x", config=lambda c: (c.update(eos_token_id=inner), composite(c, outer)))
    (folder / "generation_config.json").unlink(missing_ok=True)
    mine, theirs, *_ = resolved(folder)
    assert mine == theirs == expected


@pytest.mark.parametrize("own", [{}, {"max_new_tokens": 3}, {"max_length": 11}, {"max_new_tokens": 3, "max_length": 11}])
def test_lengths_are_those_of_generate(llama: Path, tmp_path: Path, own: dict[str, Any]) -> None:
    folder = edited(llama, tmp_path / "x")
    (folder / "generation_config.json").write_text(json.dumps(own))
    model, mirror, ids = load_reference(folder), Mirror.load(folder), torch.tensor([[3, 4, 5, 6]])
    expected = reference_run(model, ids).sequences[0, 4:].tolist()
    assert mirror.generate(ids)["tokens"][0] == expected
    assert len(expected) == {"{}": 20, "max_new_tokens": 3, "max_length": 7}[next(iter(own), "{}")]


def test_a_stop_token_first_in_the_prompt_and_held_back(llama: Path, tmp_path: Path) -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    first = Mirror.load(llama).generate(ids, max_new_tokens=1)["tokens"][0][0]
    folder = edited(llama, tmp_path / "x")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [first, 5], "pad_token_id": 0}))
    model, mirror = load_reference(folder), Mirror.load(folder)
    assert hold(model, mirror, ids, max_new_tokens=8)["tokens"] == [[first]]
    for least in (1, 3, 8, 20):
        found = hold(model, mirror, ids, max_new_tokens=8, min_new_tokens=least)
        assert first not in found["tokens"][0][: min(least, 8)]
        assert int(found["logits"][0].argmax()) == first


def test_sampling_is_overruled_and_what_changes_tokens_refused(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x")
    file = folder / "generation_config.json"
    file.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_k": 20}))
    found = generate(folder, prompt="You may", max_new_tokens=3)
    assert found.data["notes"] == [
        "generation_config.json: do_sample (temperature 0.6, top_k 20) is overruled: decoding is greedy"
    ]
    file.write_text(json.dumps({"repetition_penalty": 1.05}))
    with pytest.raises(LoadError, match=r"generation_config.json /repetition_penalty: 1.05 is not implemented"):
        generate(folder, prompt="You may", max_new_tokens=3)
    file.write_text(json.dumps({"surprise": 1}))
    with pytest.raises(LoadError, match="/surprise: unknown key, found 1"):
        generate(folder, prompt="You may", max_new_tokens=3)


# Ties and ids without text


def same_rows(embedding: torch.Tensor, token: int, other: int, away: float) -> None:
    embedding[other] = embedding[token] + away


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_ties_are_the_first_id_on_both_sides(
    embedded: Path, tmp_path: Path, embedded_prompts: list[list[int]], dtype: str
) -> None:
    ids = torch.tensor([embedded_prompts[0]])
    token = Mirror.load(embedded, dtype).generate(ids, max_new_tokens=1)["tokens"][0][0]
    for other in (token - 1, token + 1):
        folder = edited(
            embedded, tmp_path / str(other), lambda t, other=other: same_rows(t["model.embed_tokens.weight"], token, other, 0.0)
        )
        found = hold(load_reference(folder, dtype), Mirror.load(folder, dtype), ids, max_new_tokens=8)
        assert found["tokens"][0][0] == min(token, other)
        assert found["logits"][0][0, token] == found["logits"][0][0, other]


def test_an_id_that_the_tokenizer_does_not_know_may_win(
    embedded: Path, tmp_path: Path, embedded_prompts: list[list[int]]
) -> None:
    """More rows than the tokenizer has ids: generation is the reference's, and the text of such an id is empty."""

    def more_rows(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = torch.cat([head, torch.zeros(8, head.shape[1], dtype=head.dtype)])
        tensors["lm_head.weight"] = torch.cat([head * 1e-3, head[:4] * 3, head[:4] * -3])  # one of each pair is positive

    folder = edited(embedded, tmp_path / "x", more_rows, lambda c: c.update(vocab_size=1032, tie_word_embeddings=False))
    ids = torch.tensor([embedded_prompts[0]])
    found = hold(load_reference(folder), Mirror.load(folder), ids, max_new_tokens=4)
    assert max(found["tokens"][0]) >= 1024
    written = generate(folder, prompt=PROMPTS[0], max_new_tokens=4, check=True)
    assert (written.exit_code, written.verdict, written.tokens) == (0, "identical", found["tokens"][0])
    tokenizer = tokenizer_of(folder)
    assert (
        written.text == tokenizer.decode(written.tokens, skip_special=True) and tokenizer.decode([1030], skip_special=True) == ""
    )


# The check


def checked(folder: Path | None = None, prompt: str = PROMPTS[0], tokens: int = 12, **more: Any) -> Any:
    return generate(folder, prompt=prompt, max_new_tokens=tokens, check=True, **more)


def test_the_check_passes_and_says_what_it_compared(embedded: Path) -> None:
    pieces: list[str] = []
    found = checked(tokens=24, stream=pieces.append)
    assert (found.exit_code, found.verdict) == (0, "identical")
    check = found.data["check"]
    assert check["steps"] == len(found.tokens) == 24
    assert check["compared"] == 24 * (1 + 2 * 8)  # logits and two states of each of eight layers
    assert not check["differing"] and not check["flips"] and not check["faults"]
    assert list(found.data)[:7] == ["format_version", "command", "verdict", "model", "pedigree", "seconds", "exit_code"]
    assert "".join(pieces) == found.text == tokenizer_of(embedded).decode(found.tokens, skip_special=True)
    assert found.tokens == generate(prompt=PROMPTS[0], max_new_tokens=24).tokens
    assert all(found.data["speed"][side]["decode_tokens_per_second"] > 0 for side in ("reference", "mirror"))
    assert found.data["pedigree"]["failed"] == [] and len(found.data["model"]["digest"]) == 64
    json.dumps(found.data, allow_nan=False)


def test_one_token_is_checked_too(embedded: Path) -> None:
    found = checked(tokens=1)
    assert (found.exit_code, found.verdict, found.data["check"]["steps"]) == (0, "identical", 1)


class InHalves(torch.nn.Module):
    """down_proj with its sum in two halves: right, and other bits."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear, self.weight = linear, linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] @ self.weight[:, :half].t() + x[..., half:] @ self.weight[:, half:].t()


def in_halves(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.down_proj = InHalves(layer.mlp.down_proj).eval()


def test_other_bits_by_rounding_alone_pass(embedded: Path) -> None:
    found = checked(patch=in_halves)
    assert (found.exit_code, found.verdict) == (0, "rounding"), found.data["check"]
    assert found.data["check"]["first"]["step"] in (0, 1)  # with AVX2 alone the prompt's products have the same bits in halves


def test_near_ties_that_rounding_decides_are_ties(embedded: Path, tmp_path: Path, embedded_prompts: list[list[int]]) -> None:
    """Head rows that differ by 3e-8: other bits choose the other token, and that is no failure."""
    free = Mirror.load(embedded).generate(torch.tensor([embedded_prompts[0]]), max_new_tokens=24)["tokens"][0]
    others = [i for i in range(1018, 0, -1) if i not in free]

    def near(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"].float()
        tensors["lm_head.weight"] = head.clone()
        source = torch.Generator().manual_seed(1)
        for other, token in zip(others, sorted(set(free)) * 30, strict=False):  # many copies of each: one of them flips
            tensors["lm_head.weight"][other] = head[token] + 3e-8 * torch.randn(head.shape[1], generator=source)

    folder = edited(embedded, tmp_path / "x", near, lambda c: c.update(tie_word_embeddings=False))
    found = checked(folder, tokens=24, patch=in_halves)
    flips = found.data["check"]["flips"]
    assert (found.exit_code, found.verdict) == (0, "rounding"), found.data["check"]
    assert flips and all(flip["tie"] and 0 <= flip["margin"] < 1e-4 for flip in flips)


def epsilon(model: Any) -> None:
    model.model.norm.eps = 2e-5


def bfloat16_states(model: Any) -> None:
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            method(
                layer.linear_attn, "cache_params.update_recurrent_state(last_recurrent_state, self.layer_idx)",
                "cache_params.update_recurrent_state(last_recurrent_state.bfloat16().float(), self.layer_idx)",
            )  # fmt: skip


def shifted_steps(model: Any) -> None:
    """Positions jump after the prompt: each forward by itself is right, generation is not."""
    prepare = model.prepare_inputs_for_generation

    def jumping(*args: Any, **kwargs: Any) -> Any:
        inputs = prepare(*args, **kwargs)
        if inputs["input_ids"].shape[1] == 1:
            inputs["position_ids"] = inputs["position_ids"] + 40
        return inputs

    model.prepare_inputs_for_generation = jumping


def other_stop(model: Any) -> None:
    model.generation_config.eos_token_id = [1019]


def not_a_number(model: Any) -> None:
    forward = model.lm_head.forward

    def with_nan(x: torch.Tensor) -> torch.Tensor:
        y = forward(x)
        y[..., 3] = float("nan")
        return y

    model.lm_head.forward = with_nan


@pytest.mark.parametrize(
    ("patch", "where", "verdict"),
    [
        (epsilon, "model.norm", "deviates"), (bfloat16_states, "linear_attn", "deviates"), (shifted_steps, "lm_head", "deviates"),
        (other_stop, "stop tokens", "deviates"), (not_a_number, None, "non_finite"),
    ],
)  # fmt: skip
def test_a_fault_in_the_reference_turns_it_red(patch: Callable[[Any], None], where: str | None, verdict: str) -> None:
    found = checked(patch=patch)
    assert (found.exit_code, found.verdict) in ((1, verdict), (2, verdict)), found.data["check"]
    if not found.data["pedigree"]["failed"]:
        assert found.exit_code == 1
    if where is not None:
        assert any(where in fault["point"] for fault in found.data["check"]["faults"])


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("norm epsilon", "model.norm"), ("attention scale", "model.layers.3.self_attn"),
        ("recurrent state not handed over", "model.layers.4.linear_attn"),
    ],
)  # fmt: skip
def test_a_fault_in_the_mirror_turns_it_red(name: str, path: str) -> None:
    found = checked(hypothesis=(name, path))
    assert (found.exit_code, found.verdict) == (1, "deviates"), found.data["check"]
    assert path in [fault["point"] for fault in found.data["check"]["faults"] if fault["side"] == "candidate"]


# The command

LOCKSTEP = [str(Path(sys.executable).with_name("lockstep"))]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([*LOCKSTEP, "generate", *arguments], capture_output=True, text=True, env=env, timeout=300)


def test_the_command_writes_the_text(embedded: Path, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    done = run("--prompt", PROMPTS[0], "--max-new-tokens", "16", "--json", str(file))
    data = json.loads(file.read_text())
    assert done.returncode == 0, done.stderr
    assert done.stdout == data["text"] + "\n" and data["text"]
    assert (data["command"], data["verdict"], data["exit_code"], len(data["tokens"])) == ("generate", None, 0, 16)
    assert "tokens/s decode" in done.stderr
    ids = ",".join(str(i) for i in data["prompt"]["ids"])
    assert run("--ids", ids, "--max-new-tokens", "16").stdout == done.stdout
    fast = run("--ids", ids, "--max-new-tokens", "8", "--fast", "--check")
    assert fast.returncode == 0 and "nothing but rounding" in fast.stdout and "passes: rounding" in fast.stdout


def test_the_command_checks(tmp_path: Path) -> None:
    done = run("--prompt", PROMPTS[1], "--max-new-tokens", "8", "--check", "--quiet")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "8 tokens, all equal: the same bits in the logits and states of every step"
    assert lines[-1].startswith("passes: identical in ") and done.stderr == ""


def test_ids_without_a_tokenizer(llama: Path) -> None:
    done = run(str(llama), "--ids", "3,4,5", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr
    expected = Mirror.load(llama).generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4)["tokens"][0]
    assert [int(x) for x in done.stdout.split()] == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "expected --prompt or --ids"),
        (["--prompt", "a", "--ids", "1"], "expected --prompt or --ids, found both"),
        (["--prompt", ""], "--prompt: expected some text, found an empty prompt"),
        (["--ids", ""], "--ids: expected at least one id, found none"),
        (["--ids", "1,x"], "expected whole numbers with commas between"),
        (["--ids", "1,1024"], "ids: expected 0 to 1023 (vocab_size 1024), found 1024"),
        (["--ids", "1", "--chat"], "--chat: expected a --prompt, the user's message"),
        (["--prompt", "a", "--system", "b"], "--system: expected with --chat only"),
        (["--prompt", "a", "--no-thinking"], "--thinking and --no-thinking: expected with --chat only"),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens 0: expected 1 or more"),
        (["--prompt", "a", "--min-new-tokens", "-1"], "--min-new-tokens -1: expected 0 or more"),
        (["--prompt", "a", "--dtype", "int8"], "--dtype 'int8': expected one of"),
        (["nowhere/at/all", "--prompt", "a"], "no such folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr.splitlines()[-1] and done.stderr.splitlines()[-1].startswith("lockstep: error: ")


def test_ctrl_c_ends_a_generation() -> None:
    process = subprocess.Popen(
        [*LOCKSTEP, "generate", "--prompt", "You", "--max-new-tokens", "100000", "--min-new-tokens", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(20)  # it has begun
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in stderr


def test_a_callback_that_raises_ends_the_run(embedded: Path) -> None:
    mirror, seen = Mirror.load(embedded), []

    def on_step(index: int, tokens: torch.Tensor) -> bool | None:
        seen.append(int(tokens[0]))
        if index == 2:
            raise ZeroDivisionError("mine")
        return None

    with pytest.raises(ZeroDivisionError, match="mine"):
        mirror.generate(torch.tensor([[5, 6]]), max_new_tokens=8, on_step=on_step)
    assert len(seen) == 3
    ended = mirror.generate(torch.tensor([[5, 6]]), max_new_tokens=8, on_step=lambda index, _: index < 1)
    assert ended["tokens"] == [seen[:2]] and ended["steps"] == 2
