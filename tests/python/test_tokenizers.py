"""Real tokenizers, each against Hugging Face's on many lines; SentencePiece models against the sentencepiece package. Run
by scripts/test --full."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from lockstep import tokenizing

from tokenizer_lines import fuzz_string, lines, raw_lines  # isort: skip

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from checkpoints import tokenizer_folder  # noqa: E402

pytestmark = pytest.mark.full

JSON_NAMES = ("qwen3.5", "qwen3", "gemma3", "llama3", "llama2", "deepseek_v3", "gptoss", "smollm2")
MODEL_NAMES = ("mistral-v1", "mistral-v2", "mistral-v3", "mistral-v7", "mistral-v7m1")
LINES, STRINGS, BATCH = 20_000, 200_000, 2_000


def texts(specials: list[str]) -> Iterator[list[str]]:
    """20,000 lines, one of them of 1 MB, 2,000 that were no UTF-8, and 200,000 short strings, in batches."""
    source = random.Random(11)
    every: Iterator[str] = iter(
        [
            *lines(LINES, seed=11, specials=specials, with_huge=True),
            *(raw.decode("utf-8", "replace") for raw in raw_lines(2_000, seed=12, specials=specials)),
            *(fuzz_string(source, specials) for _ in range(STRINGS)),
        ]
    )
    while batch := [text for _, text in zip(range(BATCH), every, strict=False)]:
        yield batch


@pytest.mark.parametrize("name", JSON_NAMES)
def test_ids_and_text_are_hugging_face_s(name: str) -> None:
    folder = tokenizer_folder(name)
    ours, theirs = tokenizing.Tokenizer.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = [token.content for token in theirs.get_added_tokens_decoder().values()][:40]
    for batch in texts(specials):
        ids = [encoding.ids for encoding in theirs.encode_batch_fast(batch)]
        for skip in (False, True):
            decoded = theirs.decode_batch(ids, skip_special_tokens=skip)
            for text, expected, whole in zip(batch, ids, decoded, strict=True):
                assert skip or ours.encode(text) == expected, repr(text[:200])
                assert ours.decode(expected, skip_special=skip) == whole, repr(text[:200])


@pytest.mark.parametrize("name", JSON_NAMES)
def test_ids_are_those_that_transformers_makes(name: str) -> None:
    folder = tokenizer_folder(name)
    ours, theirs = tokenizing.Tokenizer.load(folder), tokenizing.reference(folder)
    texts = list(lines(5_000, seed=13, specials=theirs.all_special_tokens[:40]))
    for text, expected in zip(texts, theirs(texts)["input_ids"], strict=True):
        assert ours.encode(text) == expected, repr(text[:200])


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_ids_and_text_are_the_sentencepiece_package_s(name: str) -> None:
    import sentencepiece

    folder = tokenizer_folder(name)
    ours: tokenizing.Tokenizer = tokenizing.Tokenizer.load(folder)
    theirs: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for batch in texts(["<s>", "</s>", "<unk>", "[INST]", "[REFERENCE_DOC_1]", "<0x0A>"]):
        for text, expected in zip(batch, theirs.encode(batch), strict=True):
            assert ours.encode(text) == expected, repr(text[:200])
            assert ours.decode(expected) == theirs.decode(expected), repr(text[:200])


def test_the_chat_prompt_is_seventeen_ids() -> None:
    prompt = "<|im_start|>user\n用一句话介绍一下 Transformer。<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizing.Tokenizer.load(tokenizer_folder("qwen3.5")).encode(prompt) == [
        248045, 846, 198, 95826, 110827, 113552, 60277, 1710, 248046, 198, 248045, 74455, 198, 248068, 271, 248069, 271,
    ]  # fmt: skip


def test_the_tables_are_those_of_the_installed_release() -> None:
    made = subprocess.run([sys.executable, str(SCRIPTS / "make_unicode_tables.py"), "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
