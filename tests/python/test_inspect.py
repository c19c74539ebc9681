"""The inspector's numbers against PyTorch on Hugging Face's own tensors, computed here directly; and its checks turned red."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import edited, make_twin
from lockstep import InputError, hf_model
from lockstep.inspecting import MOST_TOKENS, Held, inspect
from lockstep.native import _core

Numbers = dict[str, Any]


@dataclass
class Seen:
    """What plain hooks on a Hugging Face model saw of one forward."""

    model: Any
    ids: list[int]
    attn: str = "sdpa"
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    cache: Any = None
    attentions: Any = None

    def run(self) -> Seen:
        handles = []
        for name, module in self.model.named_modules():
            if not name:
                continue

            def hook(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                given = args[0] if args else kwargs.get("hidden_states")
                if isinstance(given, torch.Tensor):
                    self.inputs[name] = given.detach().clone()
                first = output[0] if isinstance(output, tuple) else output
                if isinstance(first, torch.Tensor):
                    self.outputs[name] = first.detach().clone()

            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self.cache = hf_model.new_cache(self.model)
        with torch.no_grad(), hf_model.quiet_transformers():
            out = self.model(
                torch.tensor([self.ids]), past_key_values=self.cache, use_cache=True, output_attentions=self.attn == "eager"
            )
        for handle in handles:
            handle.remove()
        self.logits, self.attentions = out.logits[0], out.attentions
        return self

    def mixer(self, i: int) -> str:
        layer = self.model.model.layers[i]
        return "linear_attn" if hasattr(layer, "linear_attn") else "self_attn"

    def seven(self, i: int) -> list[torch.Tensor]:
        at = f"model.layers.{i}"
        return [
            self.inputs[at], self.outputs[f"{at}.input_layernorm"], self.outputs[f"{at}.{self.mixer(i)}"],
            self.inputs[f"{at}.post_attention_layernorm"], self.outputs[f"{at}.post_attention_layernorm"],
            self.outputs[f"{at}.mlp"], self.outputs[at],
        ]  # fmt: skip

    @property
    def layers(self) -> int:
        return len(self.model.model.layers)

    def scale(self) -> torch.Tensor:
        weight = self.model.model.norm.weight.detach().double()
        return 1 + weight if self.model.config.model_type.startswith("qwen3_5") else weight


def seen(folder: Path, ids: list[int], dtype: str = "float32", attn: str = "sdpa") -> Seen:
    about = _core.Mirror.open(str(folder)).describe()
    return Seen(hf_model.load(folder, about["hf_class"], dtype, attn, about["tied"])[0], ids, attn).run()


def close(found: Any, expected: torch.Tensor | float, tolerance: float = 2e-7) -> None:
    """Relative L2, and nine significant digits are written. Half the unit roundoff of float32 is 3e-8."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = torch.as_tensor(found, dtype=torch.float64)
    assert found.shape == expected.shape
    size = expected.norm().item() or 1.0
    assert (found - expected).norm().item() <= tolerance * size, (found, expected)


IDS = [5, 17, 3, 88, 41, 9, 2, 60, 33, 17, 71]


@pytest.fixture(scope="module", params=["mirror", "hf"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def told(twin: Path, source: str) -> tuple[Numbers, Seen]:
    data = inspect(twin, ids=[IDS], source=source, target=7).data
    return data["models"][0]["prompts"][0], seen(twin, IDS)


def test_the_seven_captures(told: tuple[Numbers, Seen]) -> None:
    numbers, hf = told
    for i, layer in enumerate(numbers["layers"]):
        assert len(layer["captures"]) == 7
        for capture, tensor in zip(layer["captures"], hf.seven(i), strict=True):
            x = tensor[0].double()
            close(capture["mean"], x.mean(-1), 1e-6)  # a mean of both signs: what is left is small
            close(capture["std"], x.std(-1, unbiased=False))
            close(capture["min"], x.min(-1).values)
            close(capture["max"], x.max(-1).values)
            close(capture["l2"], x.norm(dim=-1))
            close(capture["near_zero"], (x.abs() <= 0.01 * x.pow(2).mean(-1, keepdim=True).sqrt()).double().mean(-1))
            close(capture["all"]["std"], x.std(unbiased=False))
            close(capture["all"]["l2"], x.norm(dim=-1).mean())


def test_what_each_sublayer_adds(told: tuple[Numbers, Seen]) -> None:
    numbers, hf = told
    for i, layer in enumerate(numbers["layers"]):
        stream, _, mixed, after, _, mlp, _ = (x[0].double() for x in hf.seven(i))
        for name, delta, h in (("mixer", mixed, stream), ("mlp", mlp, after)):
            close(layer["writes"][name]["relative"], delta.norm(dim=-1) / h.norm(dim=-1))
            close(layer["writes"][name]["cosine"], F.cosine_similarity(delta, h, dim=-1), 1e-6)


def test_depth_and_the_logit_lens(told: tuple[Numbers, Seen]) -> None:
    numbers, hf = told
    streams = [hf.outputs["model.embed_tokens"]] + [hf.outputs[f"model.layers.{i}"] for i in range(hf.layers)]
    assert len(numbers["depth"]) == len(streams)
    answer = int(hf.logits[-1].argmax())
    assert numbers["answer"] == answer and numbers["target"] == 7
    for d, (depth, stream) in enumerate(zip(numbers["depth"], streams, strict=True)):
        x = stream[0].double()
        close(depth["norm"], x.norm(dim=-1))
        close(depth["cosine_to_final"], F.cosine_similarity(x, streams[-1][0].double(), dim=-1), 1e-6)
        if d:
            close(depth["cosine_to_previous"], F.cosine_similarity(x, streams[d - 1][0].double(), dim=-1), 1e-6)
        with torch.no_grad():
            p = hf.model.lm_head(hf.model.model.norm(stream))[0, -1].double().softmax(-1)
        close(depth["lens"]["answer"]["p"], p[answer], 1e-5)
        close(depth["lens"]["target"]["p"], p[7], 1e-5)
        assert depth["lens"]["answer"]["rank"] == 1 + int((p > p[answer]).sum())
        assert [t["id"] for t in depth["lens"]["top"]] == p.topk(5).indices.tolist()
    close([t["p"] for t in numbers["next"]], hf.logits[-1].double().softmax(-1).topk(10).values, 1e-5)
    assert numbers["depth"][-1]["lens"]["answer"]["rank"] == 1


def test_gates_and_attention(told: tuple[Numbers, Seen], twin: Path) -> None:
    numbers, hf = told
    eager = seen(twin, IDS, attn="eager")
    half = len(IDS) // 2
    full = [i for i in range(hf.layers) if hf.mixer(i) == "self_attn"]
    assert full
    for i in full:
        mixer = numbers["layers"][i]["mixer"]
        weights = [a for a in eager.attentions if a is not None][full.index(i)][0].double()  # [H, T, T]
        close(mixer["first_token"], weights[:, half:, 0].mean(), 1e-5)
        entropy = -torch.where(weights > 0, weights * weights.clamp_min(1e-300).log(), 0.0).sum(-1)
        close(mixer["entropy_by_head"], entropy[:, half:].mean(-1), 1e-5)
        if hf.model.config.model_type.startswith("llama"):
            assert "gate" not in mixer  # what a family does not have is absent
            continue
        q_proj = hf.outputs[f"model.layers.{i}.self_attn.q_proj"][0]
        gate = q_proj.view(len(IDS), -1, 2, hf.model.config.head_dim)[:, :, 1].double().sigmoid()
        close(mixer["gate"]["mean"], gate.mean())
        close(mixer["gate"]["below_tenth"], (gate < 0.1).double().mean())
        assert sum(mixer["gate"]["histogram"]) == gate.numel()
        assert mixer["gate"]["histogram"] == torch.histc(gate.float(), 20, 0, 1).long().tolist()


def test_decay_beta_and_state(qwen: Path, source: str) -> None:
    numbers = inspect(qwen, ids=[IDS], source=source).data["models"][0]["prompts"][0]
    hf = seen(qwen, IDS)
    linear = [i for i in range(hf.layers) if hf.mixer(i) == "linear_attn"]
    assert linear
    for i in linear:
        at, module, mixer = f"model.layers.{i}.linear_attn", hf.model.model.layers[i].linear_attn, numbers["layers"][i]["mixer"]
        a, b = hf.outputs[f"{at}.in_proj_a"][0], hf.outputs[f"{at}.in_proj_b"][0]
        with torch.no_grad():
            decay = (-module.A_log.float().exp() * F.softplus(a.float() + module.dt_bias)).double().exp()
        close(mixer["decay"]["mean"], decay.mean())
        close(mixer["decay"]["min"], decay.min())
        close(mixer["beta"]["mean"], b.sigmoid().double().mean())
        states = hf.cache.layers[i].recurrent_states
        state = (states if isinstance(states, torch.Tensor) else next(iter(states.values())))[0].double()
        close(mixer["state_norm_by_head"], state.flatten(1).norm(dim=-1))
        close(mixer["state_norm"], state.norm())


def test_contributions_of_neurons(told: tuple[Numbers, Seen]) -> None:
    numbers, hf = told
    direction = hf.model.lm_head.weight[7].detach().double() * hf.scale()
    every = []
    for i, layer in enumerate(numbers["neurons"]["layers"]):
        activation = hf.inputs[f"model.layers.{i}.mlp.down_proj"][0, -1].double()
        columns = hf.model.model.layers[i].mlp.down_proj.weight.detach().double()  # [D, F]
        contribution = activation * (columns.T @ direction)
        every += [(abs(float(c)), i, n) for n, c in enumerate(contribution)]
        close(layer["total"], contribution.sum(), 1e-5)
        # The neurons of a layer together are its MLP, written towards the token.
        close(layer["total"], hf.outputs[f"model.layers.{i}.mlp"][0, -1].double() @ direction, 1e-5)
        assert [n["neuron"] for n in layer["top"]] == contribution.abs().topk(8).indices.tolist()
        close([n["contribution"] for n in layer["top"]], contribution[[n["neuron"] for n in layer["top"]]], 1e-6)
        close([n["activation"] for n in layer["top"]], activation[[n["neuron"] for n in layer["top"]]])
        best = layer["top"][0]
        favours = hf.model.lm_head.weight.detach().double() @ (columns[:, best["neuron"]] * hf.scale())
        assert best["favours"] == favours.topk(6).indices.tolist()
    strongest = [(n["layer"], n["neuron"]) for n in numbers["neurons"]["strongest"]]
    assert strongest == [(i, n) for _, i, n in sorted(every, reverse=True)[: len(strongest)]]
    rms = hf.outputs[f"model.layers.{hf.layers - 1}"][0, -1].double().pow(2).mean().sqrt()
    first = numbers["neurons"]["strongest"][0]
    close(first["logit"], first["contribution"] / rms, 1e-6)


def with_held(hf: Seen, layer: int, change: Callable[[torch.Tensor], None]) -> torch.Tensor:
    """The same model's next-token probabilities with a plain hook on one down_proj's input."""

    def hold(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = args[0].clone()
        change(x)
        return (x,)

    handle = hf.model.model.layers[layer].mlp.down_proj.register_forward_pre_hook(hold)
    try:
        with torch.no_grad():
            return hf.model(torch.tensor([hf.ids])).logits[0, -1].double().softmax(-1)
    finally:
        handle.remove()


def test_ablation_is_hugging_faces(twin: Path, source: str) -> None:
    other = [11, 4, 90, 6]
    data = inspect(twin, ids=[IDS, other], source=source, target=7, ablate=["1:5", "2:3=2"]).data
    numbers = data["models"][0]["prompts"]
    hf = seen(twin, IDS)
    at_zero, at_value = numbers[0]["ablations"]
    assert at_zero["value"] == 0 and at_zero["positions"] == "all" and at_zero["from_prompt"] is None

    def zero(x: torch.Tensor) -> None:
        x[..., 5] = 0

    p = with_held(hf, 1, zero)
    close(at_zero["after"]["p"], p[7], 1e-5)
    assert [t["id"] for t in at_zero["after"]["top"]] == p.topk(3).indices.tolist()
    assert at_zero["after"]["p"] != at_zero["before"]["p"]

    value = seen(twin, other).inputs["model.layers.2.mlp.down_proj"][0, -1, 3]
    close(at_value["value"], value.double())

    def from_other(x: torch.Tensor) -> None:
        x[:, -1, 3] = value

    close(at_value["after"]["p"], with_held(hf, 2, from_other)[7], 1e-5)
    # Under the second prompt it has that value already: nothing changes.
    close(numbers[1]["ablations"][1]["after"]["p"], numbers[1]["ablations"][1]["before"]["p"], 1e-6)


def test_the_strongest_neuron_is_ablated_by_default(qwen: Path) -> None:
    numbers = inspect(qwen, ids=[IDS]).data["models"][0]["prompts"][0]
    strongest = numbers["neurons"]["strongest"][0]
    (ablation,) = numbers["ablations"]
    assert (ablation["layer"], ablation["neuron"]) == (strongest["layer"], strongest["neuron"])
    assert ablation["before"]["p"] == numbers["target_p"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sum_check_holds(twin: Path, dtype: str, source: str) -> None:
    found = inspect(twin, ids=[IDS, [1]], dtype=dtype, source=source)
    assert found and found.data["verdict"] == "agrees"
    hf = seen(twin, IDS, dtype)
    check = found.data["models"][0]["prompts"][0]["sum_check"]
    stream = hf.outputs["model.embed_tokens"][0].double()
    total, largest = stream.clone(), stream.norm(dim=-1)
    for i in range(hf.layers):
        _, _, mixed, after, _, mlp, out = (x[0].double() for x in hf.seven(i))
        total += mixed + mlp
        largest = torch.maximum(largest, torch.maximum(after.norm(dim=-1), out.norm(dim=-1)))
    error = (hf.outputs[f"model.layers.{hf.layers - 1}"][0].double() - total).norm(dim=-1)
    unit = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    bound = 2 * hf.layers * unit * largest
    close(check["error"], error[check["token"]], 1e-6)
    close(check["bound"], bound[check["token"]], 1e-6)
    assert check["passes"] and check["ratio"] == pytest.approx((error / bound).max().item(), rel=1e-6)


def test_sum_check_turns_red(twin: Path) -> None:
    def scales_one_layer(model: Any) -> None:
        layer = model.model.layers[1]
        inner = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            out = inner(*args, **kwargs)
            return (out[0] * 1.00001, *out[1:]) if isinstance(out, tuple) else out * 1.00001

        layer.forward = forward

    found = inspect(twin, ids=[IDS], source="hf", patch=scales_one_layer)
    assert found.exit_code == 1 and found.data["verdict"] == "deviates"
    assert not found.data["models"][0]["prompts"][0]["sum_check"]["passes"]


def test_a_reference_that_is_not_what_was_asked_for_cannot_judge(qwen: Path) -> None:
    found = inspect(qwen, ids=[IDS], source="hf", patch=lambda m: m.train())
    assert found.exit_code == 2 and found.data["pedigree"]["failed"] == ["eval_mode"]


def test_what_is_not_finite_is_said(qwen: Path, tmp_path: Path) -> None:
    """From the first layer on, so that every number of every other one is touched; and through the command."""
    broken = edited(qwen, tmp_path / "nan", lambda t: t["model.layers.0.mlp.down_proj.weight"].fill_(float("nan")))
    for ids in ([IDS], [IDS, IDS[2:]], [[1]]):
        found = inspect(broken, ids=ids, ablate=["1:1"])
        assert found.exit_code == 1 and found.data["verdict"] == "non_finite"
        json.dumps(found.data, allow_nan=False)
    depth = found.data["models"][0]["prompts"][0]["depth"]
    assert depth[0]["lens"]["answer"]["rank"] is not None and depth[2]["lens"]["answer"] == {
        "id": depth[0]["lens"]["answer"]["id"], "rank": None, "p": None,
    }  # fmt: skip
    html = tmp_path / "nan.html"
    done = lockstep("inspect", broken, "--ids", "1,2,3", "--ids", "4,2,3", "--html", html)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("fails: 2 prompts, something is not finite") and html.exists()


def test_the_same_word(embedded: Path) -> None:
    prompts = ["Permission is hereby granted, free of charge", "any fee or charge", "the"]
    model = inspect(embedded, prompts).data["models"][0]
    ends = [p["ids"][-1] for p in model["prompts"]]
    assert ends[0] == ends[1] != ends[2]
    (told,) = model["meaning"]
    assert told["prompts"] == [0, 1] and told["token"] == ends[0]
    runs = [seen(embedded, p["ids"]) for p in model["prompts"][:2]]
    (pair,) = told["pairs"]
    for d in range(runs[0].layers + 1):
        name = "model.embed_tokens" if d == 0 else f"model.layers.{d - 1}"
        x, y = (r.outputs[name][0, -1].double() for r in runs)
        close(pair["cosine"][d], F.cosine_similarity(x, y, dim=0), 1e-6)
        close(pair["distance"][d], (x - y).norm(), 1e-6)
    assert pair["cosine"][0] == 1 and pair["distance"][0] == 0
    assert all(c < 1 for c in pair["cosine"][1:])
    half = (1 + min(told["mean_cosine"])) / 2
    assert told["part_at_layer"] == next(d for d, c in enumerate(told["mean_cosine"]) if c <= half) - 1


def test_the_same_prompt_twice_never_parts(qwen: Path) -> None:
    (told,) = inspect(qwen, ids=[IDS, IDS]).data["models"][0]["meaning"]
    assert told["part_at_layer"] is None and told["pairs"][0]["distance"] == [0] * 5


def test_the_stream_as_it_is_written(told: tuple[Numbers, Seen]) -> None:
    numbers, hf = told
    stream = numbers["stream"]
    assert stream["token"] == len(IDS) - 1 and len(stream["values"]) == 1 + 2 * hf.layers
    expected = [hf.outputs["model.embed_tokens"]]
    for i in range(hf.layers):
        expected += [hf.inputs[f"model.layers.{i}.post_attention_layernorm"], hf.outputs[f"model.layers.{i}"]]
    end = expected[-1][0, -1].double()
    assert set(stream["dims"]) == set(end.abs().topk(len(stream["dims"])).indices.tolist())
    for values, tensor in zip(stream["values"], expected, strict=True):
        close(values, tensor[0, -1].double()[stream["dims"]])
    close(stream["read"], hf.outputs["model.norm"][0, -1].double()[stream["dims"]])


def test_two_models_side_by_side(qwen: Path, llama: Path) -> None:
    data = inspect([qwen, llama], ids=[IDS]).data
    assert [m["family"] for m in data["models"]] == ["qwen3_5", "llama"]
    gates = [["gate" in layer["mixer"] for layer in m["prompts"][0]["layers"]] for m in data["models"]]
    assert any(gates[0]) and not any(gates[1])
    assert "state_norm" not in json.dumps(data["models"][1])


def test_mirror_and_hugging_face_tell_the_same(embedded: Path) -> None:
    """The captures are the same bits; only the head's last row may be a product of another shape."""
    prompt = "Permission is hereby granted"
    mirror, theirs = (inspect(embedded, prompt, source=s).data["models"][0]["prompts"][0] for s in ("mirror", "hf"))
    for name in ("layers", "sum_check"):
        assert mirror[name] == theirs[name]
    assert [d["norm"] for d in mirror["depth"]] == [d["norm"] for d in theirs["depth"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ablate": ["3"]}, "LAYER:NEURON"),
        ({"ablate": ["1:2=9"]}, "expected a prompt from 1 to 1"),
        ({"ablate": ["99:0"]}, "layer 99: expected 0 to 3"),
        ({"ablate": ["0:4800"]}, "neuron 4800: expected 0 to 47"),
        ({"target": 97}, "expected an id from 0 to 96"),
        ({"target": " word"}, "no tokenizer"),
        ({"token": 40}, "token 40"),
        ({"source": "mlx"}, "mirror or hf"),
        ({"ids": [[1, 200]]}, "vocab"),
        ({"ids": [[1] * (MOST_TOKENS + 1)]}, f"expected 1 to {MOST_TOKENS}"),
        ({"ids": [[]]}, "expected 1 to"),
        ({"ids": None}, "expected --prompt or --ids"),
        ({"ids": None, "prompts": "text"}, "--ids"),
        ({"patch": lambda m: m}, "source='hf'"),
        ({"dtype": "float8"}, "--dtype"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(qwen: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        inspect(qwen, **{"ids": [IDS], **options})


def test_held_is_parsed() -> None:
    assert Held.parse("3:17") == Held(3, 17) and Held.parse("3:17=2") == Held(3, 17, 2)
    for bad in ("", "3", "a:b", "1:2=", "1:2=-1", "-1:2", "1:2=x", "1:2=3=4"):
        with pytest.raises(InputError):
            Held.parse(bad)


def test_a_missing_capture_is_named(qwen: Path) -> None:
    mirror = _core.Mirror.open(str(qwen))
    mirror.bind("float32")
    inspection = _core.Inspection(mirror, torch.tensor([IDS]))
    with pytest.raises(InputError, match="model.embed_tokens.output: it was never captured"):
        inspection.finish(torch.zeros(97))
    logits, captured = mirror.forward(torch.tensor([IDS]), points="all", cache=mirror.new_cache())
    for point, value in captured.items():
        if point != "model.layers.2.mlp.down_proj.input":
            inspection.record(point, value)
    with pytest.raises(InputError, match="model.layers.2.mlp.down_proj.input: it was never captured"):
        inspection.finish(logits)


def lockstep(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lockstep")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command(embedded: Path, tmp_path: Path) -> None:
    html, data = tmp_path / "in side.html", tmp_path / "in side.json"
    done = lockstep(
        "inspect", "--prompt", "Permission is hereby granted", "--prompt", "THE SOFTWARE IS", "--html", html, "--json", data
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("passes: 2 prompts, the sum check holds")
    assert any("residual norms" in line and "█" in line for line in lines) and any("mean gates" in line for line in lines)
    told = json.loads(data.read_text())
    assert list(told)[:6] == ["format_version", "command", "verdict", "model", "pedigree", "seconds"]
    assert len(told["model"]["digest"]) == 64 and len(told["models"][0]["prompts"]) == 2
    assert html.read_text().startswith("<!doctype html>")


def test_the_command_refuses(qwen: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((qwen,), "expected --prompt or --ids"),
        ((qwen, "--ids", "1,2", "--html", tmp_path / "no" / "x.html"), "does not exist"),
        ((qwen, "--ids", "1,2", "--html", tmp_path / "x", "--json", tmp_path / "x"), "expected two files"),
        ((qwen, "--ids", "1,x"), "--ids"),
        ((tmp_path / "none", "--ids", "1"), "no such folder"),
        ((qwen, "--serve", "--ids", "1"), "prompts are typed in the page"),
        ((qwen, "--serve", "--dtype", "float8"), "--dtype"),
        ((qwen, "--serve", "--ablate", "x"), "LAYER:NEURON"),
        ((qwen, "--ids", "1", "--port", "80"), "expected with --serve only"),
    ):
        done = lockstep("inspect", *arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_text(embedded: Path, tmp_path: Path) -> None:
    """A prompt's byte that is no UTF-8 comes as a lone surrogate: read as the tokenizer reads it, written as text."""
    files = [tmp_path / "a.json", tmp_path / "a.html"]
    command = [str(Path(sys.executable).with_name("lockstep")).encode(), b"inspect", b"--prompt", b"caf\xe9", b"--json",
               *(x for x in (str(files[0]).encode(), b"--html", str(files[1]).encode()))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "caf?" in json.loads(files[0].read_text())["models"][0]["prompts"][0]["text"]
    assert "caf?" in files[1].read_text()


@pytest.mark.full
def test_smollm2_facts() -> None:
    """The two figures that the README states."""
    scripts = Path(__file__).parents[2] / "scripts"
    sys.path.insert(0, str(scripts))
    from checkpoints import checkpoint

    folder = checkpoint("smollm2")
    model = inspect(folder, "The capital of France is", target=" Paris").data["models"][0]["prompts"][0]
    (ablation,) = model["ablations"]
    hf = seen(folder, model["ids"])

    def zero(x: torch.Tensor) -> None:
        x[..., ablation["neuron"]] = 0

    p = with_held(hf, ablation["layer"], zero)
    close(ablation["after"]["p"], p[model["target"]], 1e-5)
    stated = (Path(__file__).parents[2] / "README.md").read_text()
    assert (
        f"{ablation['before']['p']:.1%}".replace("%", " %") in stated and f"{p[model['target']]:.1%}".replace("%", " %") in stated
    )
    assert math.isclose(ablation["before"]["p"], hf.logits[-1].double().softmax(-1)[model["target"]].item(), rel_tol=1e-5)
    prompts = ["She put the money in the bank", "The plane began to bank", "They sat down on the river bank"]
    (told,) = inspect(folder, prompts).data["models"][0]["meaning"]
    cosines = told["mean_cosine"]
    assert (
        f"it is {cosines[1]:.3f} after layer 0, {cosines[6]:.3f} after layer 5, where they part, and {cosines[-1]:.3f}" in stated
    )
    assert told["part_at_layer"] == 5
    assert all(pair["cosine"][0] == 1 and all(c < 1 for c in pair["cosine"][1:]) for pair in told["pairs"])


def test_twin_of_one_layer_and_one_token(tmp_path: Path) -> None:
    """The smallest case: nothing divides by zero."""
    folder = make_twin(tmp_path / "one", "llama", num_hidden_layers=1)
    found = inspect(folder, ids=[[3]])
    assert found and len(found.data["models"][0]["prompts"][0]["depth"]) == 2
