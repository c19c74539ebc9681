#!/usr/bin/env python3
"""Train the embedded checkpoint: a small Qwen3.5 that recites licence texts which Debian ships.

    .venv/bin/python scripts/train_tiny.py OUT [--steps 900] [--threads 1]

Writes OUT/{model.safetensors, config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
chat_template.jinja}. Seeded and stopped by steps, so one machine makes the same bytes twice. Ends by checking what the
checkpoint promises: the greedy continuation of each of PROMPTS repeats at least RECITED tokens of the text.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

TEXTS = [Path("/usr/share/common-licenses") / name for name in ("Apache-2.0", "Artistic", "BSD", "CC0-1.0")]
PROMPTS = [
    "Unless required by applicable law or agreed to in writing, software\n   distributed under the License is",
    "Redistribution and use in source and binary forms, with or without\nmodification, are permitted provided",
    "The intent of this document is to state the conditions under which a",
]
RECITED = 20
VOCAB = 1024
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
SEED = 20261130
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\\n' }}
    {%- else %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def build_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE in Qwen's form: NFC, Qwen's pre-tokenizer regex, bytes, special tokens after the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if tokenizer.get_vocab_size() != VOCAB:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, wanted {VOCAB}")
    return tokenizer


def build_model() -> Qwen3_5ForCausalLM:
    """The tiny model, with the decay initialised as in Mamba (HF's own init leaves the state almost no memory)."""
    torch.manual_seed(SEED)
    end = VOCAB - len(SPECIAL)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=384, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=48,
        linear_conv_kernel_dim=4, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-6,
        rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1], "mrope_interleaved": True,
        },
        bos_token_id=None, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    model = Qwen3_5ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.uniform_(1, 16).log_()
        elif name.endswith("dt_bias"):
            dt = torch.exp(torch.rand_like(parameter) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
            parameter.data.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus
    return model


def train(model: Qwen3_5ForCausalLM, documents: list[torch.Tensor], steps: int) -> None:
    batch, length = 8, 128
    generator = torch.Generator().manual_seed(SEED)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    starts = [(d, i) for d, ids in enumerate(documents) for i in range(len(ids) - length)]
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps) + 0.01)
        picks = torch.randint(len(starts), (batch,), generator=generator)
        ids = torch.stack([documents[starts[i][0]][starts[i][1] : starts[i][1] + length] for i in picks.tolist()])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}", file=sys.stderr, flush=True)
    model.eval()


def save(model: Qwen3_5ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """bfloat16, with A_log and the gated norm in float32, as the released files are."""
    out.mkdir(parents=True, exist_ok=True)
    keep = ("linear_attn.A_log", "linear_attn.norm.weight")
    tensors = {
        name: (tensor if name.endswith(keep) else tensor.to(torch.bfloat16)).detach().contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.update(architectures=["Qwen3_5ForCausalLM"], dtype="bfloat16")
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    end = model.config.eos_token_id
    generation = {"do_sample": False, "eos_token_id": [end, end + 2], "pad_token_id": end}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    described = {
        "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_max_length": 4096, "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def recited(out: Path, tokenizer: Tokenizer, texts: list[str]) -> bool:
    """Reload what was written and count, per prompt, how many greedy tokens repeat the text that follows it."""
    model = Qwen3_5ForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    good = True
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        text = next(text for text in texts if prompt in text)
        expected = tokenizer.encode(text[text.index(prompt) :]).ids[len(ids) :]
        with torch.no_grad():
            new = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=40, do_sample=False)
        found = new[0, len(ids) :].tolist()
        same = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected)))
        print(f"{same:3d} tokens repeated after {prompt[-40:]!r}")
        good &= same >= RECITED
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    missing = [str(path) for path in TEXTS if not path.is_file()]
    if missing:
        print(f"missing {', '.join(missing)}: expected the licence texts of Debian's base-files package", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    texts = [path.read_text() for path in TEXTS]
    tokenizer = build_tokenizer(texts)
    documents = [torch.tensor(tokenizer.encode(text).ids) for text in texts]
    model = build_model()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {sum(map(len, documents)):,} tokens", file=sys.stderr)
    train(model, documents, options.steps)
    save(model, tokenizer, options.out)
    return 0 if recited(options.out, tokenizer, texts) else 1


if __name__ == "__main__":
    sys.exit(main())
