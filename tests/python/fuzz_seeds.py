"""Valid little checkpoints for the fuzzers to corrupt, both families, one file and two shards; a trace, OUT.trace, and a
golden one, OUT.golden; an export, OUT.export; and tokenizers of both kinds, OUT.tokenizers.

python tests/python/fuzz_seeds.py OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import lockstep
from conftest import TINY, make_twin


def shard(source: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for i, part in enumerate((names[:half], names[half:]), start=1):
        file = f"model-{i:05}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def tokenizers(out: Path) -> None:
    """A byte-level one, and one that stands bytes in for what it does not have."""
    byte_level = Tokenizer(models.BPE())
    byte_level.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(r"(?i:'s|'t)| ?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+|."), "isolated")
    byte_level.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level.post_processor = processors.ByteLevel(trim_offsets=True)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    byte_level.train_from_iterator(["The licence says that the licence holds"] * 3, trainer)

    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    for token in ["\u2581", "t", "h", "e", "th", "the", "\u2581the"]:
        vocab[token] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the")]
    fallback = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fallback.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fallback.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fallback.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    for name, tokenizer in (("byte_level", byte_level), ("fallback", fallback)):
        tokenizer.add_special_tokens(["<s>", "</s>"])
        (out / name).mkdir(parents=True)
        tokenizer.save(str(out / name / "tokenizer.json"))


def sentencepiece_models(out: Path) -> None:
    """A model with bytes, and one with a normalizer."""
    import io

    import sentencepiece

    text = ["The licence says that the licence holds", "caf\u00e9 \u4e00\u4e8c", "don't, won't 123"] * 8
    for name, more in (
        ("bytes", {"byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 300}),
        ("normalized", {"normalization_rule_name": "nfkc", "vocab_size": 50}),
    ):
        (out / name).mkdir(parents=True)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=model, user_defined_symbols=["<s>x", "[A]"], hard_vocab_limit=False,
            model_type="bpe", minloglevel=2, **more,
        )  # fmt: skip
        (out / name / "tokenizer.model").write_bytes(model.getvalue())


def main() -> None:
    out = Path(sys.argv[1])
    for family in TINY:
        make_twin(out / f"{family}-one", family, num_hidden_layers=4 if family == "qwen3_5" else 1)
        shard(out / f"{family}-one", out / f"{family}-two")
    ids = [{"name": "a", "ids": [[3, 1, 4]]}, {"name": "b", "ids": [[5]], "past": "a"}]
    tokenizers(Path(f"{out}.tokenizers"))
    sentencepiece_models(Path(f"{out}.tokenizers"))
    lockstep.trace(f"{out}.trace", out / "qwen3_5-one", "mirror", points="all", inputs=ids)
    lockstep.trace(f"{out}.golden", out / "qwen3_5-one", golden=True, inputs=ids)
    lockstep.export(out / "qwen3_5-one", f"{out}.export")


if __name__ == "__main__":
    main()
