"""Bisection on the embedded checkpoint: faults are named where they are, with their cause; rounding never is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from conftest import make_twin, some_inputs
from lockstep import faults, inputs
from lockstep.engines import Recorded
from lockstep.engines.hf import HfEngine
from lockstep.engines.mirror import MirrorEngine
from lockstep.inputs import Forward
from lockstep.native import InputError, LoadError, _core


@pytest.fixture(scope="module")
def about(embedded: Path) -> dict[str, Any]:
    return _core.Mirror.open(str(embedded)).describe()


FEW = ("len3", "len65", "from5000", "pad2", "split2_148.0", "split2_148.1", "split64_86.0", "split64_86.1")


@pytest.fixture(scope="module")
def few(embedded: Path) -> list[dict[str, Any]]:
    """Some of the default inputs, as a user states them: every test on all of them would take minutes."""
    return some_inputs(embedded, FEW)


@pytest.fixture(scope="module")
def reference(embedded: Path, about: dict[str, Any], few: list[dict[str, Any]]) -> Recorded:
    """Hugging Face on those inputs, recorded once."""
    return HfEngine(embedded, about, "float32", "sdpa").record(inputs.from_json(few), "all")


def planted(embedded: Path, about: dict[str, Any], kind: str, place: str, layer: int, stress: bool = False) -> HfEngine:
    chosen = next(k for k in faults.kinds() if k.name == kind and k.place == place)

    def patch(model: Any) -> None:
        chosen.apply(model, layer)

    return HfEngine(embedded, about, "float32", "sdpa", patch=patch, stress=stress)


# kind, sublayer, layer, operations that may be named, named value or None
PLANTED = [
    ("norm epsilon", "input_layernorm", 5, {"add"}, None),
    ("norm weight convention", "post_attention_layernorm", 2, {"mul"}, None),
    ("key heads tiled", "linear_attn", 4, {"repeat"}, None),
    ("state not decayed", "linear_attn", 1, {"mul"}, None),
    ("chunk hand-over without decay", "linear_attn", 6, {"linalg_solve_triangular"}, None),
    ("recurrent state not handed over", "linear_attn", 4, {"mul"}, None),
    ("linear pads not masked", "linear_attn", 2, {"mm"}, None),
    ("attention scale", "self_attn", 7, {"_scaled_dot_product_flash_attention_for_cpu"}, "context"),
    ("flat q/gate split", "self_attn", 3, {"pow"}, "q"),
    ("output gate left out", "self_attn", 3, {"mm"}, "o_proj.input"),
    ("gelu for silu", "mlp", 6, {"gelu"}, None),
    ("one weight", "mlp", 6, {"mm"}, "down_proj.output"),
    ("stream halved", "layer", 4, {"div"}, None),
    ("inv_freq through bfloat16", "rotary_emb", -1, {"bmm"}, "inv_freq"),
]


def test_a_kind_is_known_by_its_name_and_place() -> None:
    """scripts/fault_benchmark hands both to its tasks; a name alone stands for several places."""
    places = [(k.name, k.place) for k in faults.kinds()]
    assert len(set(places)) == len(places) > len({k.name for k in faults.kinds()})


@pytest.mark.parametrize(("kind", "place", "layer", "operations", "value"), PLANTED, ids=[p[0] for p in PLANTED])
def test_a_planted_fault_is_named(
    kind: str, place: str, layer: int, operations: set[str], value: str | None, embedded: Path, about: dict[str, Any],
    reference: Recorded, few: list[dict[str, Any]],
) -> None:  # fmt: skip
    engine = planted(embedded, about, kind, place, layer)
    found = lockstep.bisect(embedded, engine, reference=reference, inputs=few)
    assert found.exit_code == 1
    fault = next(iter(found.faults))
    where = next(k for k in faults.kinds() if k.name == kind and k.place == place).path(layer)
    assert [f["point"] for f in found.faults] == [where]
    assert fault["side"] == "candidate" and fault["ratio"] > 2
    assert fault["cause"] is not None and kind in [fault["cause"]["hypothesis"], *fault["cause"]["also"]]
    if value:
        assert fault["value"] == value
    assert fault["operation"]["name"] in operations


def test_two_faults_are_both_found(embedded: Path, about: dict[str, Any], reference: Recorded, few: list[dict[str, Any]]) -> None:
    kinds = {k.name: k for k in faults.kinds() if k.place in ("mlp", "self_attn")}

    def patch(model: Any) -> None:
        kinds["gelu for silu"].apply(model, 1)
        kinds["attention scale"].apply(model, 7)

    found = lockstep.bisect(
        embedded, HfEngine(embedded, about, "float32", "sdpa", patch=patch, stress=False), reference=reference, inputs=few
    )
    assert [(f["point"], f["cause"]["hypothesis"]) for f in found.faults] == [
        ("model.layers.1.mlp", "gelu for silu"),
        ("model.layers.7.self_attn", "attention scale"),
    ]


def test_a_fitted_number_is_the_planted_one(
    embedded: Path, about: dict[str, Any], reference: Recorded, few: list[dict[str, Any]]
) -> None:
    found = lockstep.bisect(
        embedded, planted(embedded, about, "norm epsilon", "input_layernorm", 5), reference=reference, inputs=few
    )
    cause = found.faults[0]["cause"]
    assert cause["parameter"] == "rms_norm_eps" and cause["config"] == 1e-6
    assert abs(cause["estimate"] - 1e-5) < max(1e-8, 4 * cause["estimate_error"])


@pytest.mark.parametrize("candidate", ["mirror", "hf", "hf:attn=eager", "hf:dtype=bfloat16"])
def test_right_candidates_are_never_faulty(candidate: str, embedded: Path) -> None:
    found = lockstep.bisect(embedded, candidate)
    assert (found.exit_code, found.faults) == (0, [])
    assert found.verdict in ("identical", "rounding")
    floors = [entry["floor"] for entry in found.data["drift"]]
    assert all(floor is not None and 0 < floor < (1e-5 if "bfloat16" not in candidate else 0.1) for floor in floors)


@pytest.mark.parametrize(
    ("hypothesis", "point", "operation"),
    [
        ("norm epsilon", "model.layers.5.input_layernorm", "add"),
        ("gelu for silu", "model.layers.6.mlp", "gelu"),
        ("attention scale", "model.layers.3.self_attn", "_scaled_dot_product_flash_attention_for_cpu"),
        ("key heads tiled", "model.layers.2.linear_attn", "repeat"),
        ("rope theta 500000", "model.rotary_emb", "arange"),
        ("causal mask left out", "model.layers.3.self_attn", "bmm"),
    ],
)
def test_a_wrong_mirror_is_found(
    hypothesis: str,
    point: str,
    operation: str,
    embedded: Path,
    about: dict[str, Any],
    reference: Recorded,
    few: list[dict[str, Any]],
) -> None:
    engine = MirrorEngine(embedded, about, "float32", "sdpa", hypothesis=(hypothesis, point))
    found = lockstep.bisect(embedded, engine, reference=reference, inputs=few)
    assert [(f["point"], f["cause"]["hypothesis"]) for f in found.faults] == [(point, hypothesis)]
    assert found.faults[0]["operation"]["name"] == operation


def test_a_run_follows_every_hypothesis(embedded: Path, about: dict[str, Any], reference: Recorded) -> None:
    """Wherever the fault itself shows: the floor under a hypothesis is that of a float32 run of it."""
    forwards = [f for f in inputs.default_inputs(about["vocab"], about["mrope"]) if f.name in (*FEW, "rows3", "step1")]

    def logits(engine: HfEngine | MirrorEngine) -> list[torch.Tensor | None]:
        trace = engine.record(forwards, "layer").trace
        return [trace.tensor(f.name, "lm_head.output") for f in forwards]

    def differ(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> set[str]:
        pairs = zip(forwards, one, other, strict=True)
        return {f.name for f, a, b in pairs if a is None or b is None or not _core.same_bits(a, b)}

    plain, right, followed = (
        logits(MirrorEngine(embedded, about, "float32", "sdpa")),
        logits(HfEngine(embedded, about, "float32", "sdpa")),
        0,
    )
    for kind in faults.kinds_of(reference.model):
        layer = kind.layers(reference.model)[-1]
        try:
            under = logits(MirrorEngine(embedded, about, "float32", "sdpa", hypothesis=(kind.name, kind.path(layer))))
        except InputError as error:  # weights and what is given are not the run's
            assert "not the arithmetic of a run" in str(error) or kind.name == "one weight"
            continue
        followed += 1
        shown = differ(logits(planted(embedded, about, kind.name, kind.place, layer)), right)
        assert shown <= differ(under, plain), kind.name
    assert followed > 50


def test_a_wrong_reference_is_the_finding(embedded: Path) -> None:
    kind = next(k for k in faults.kinds() if k.name == "gelu for silu")
    found = lockstep.bisect(embedded, "mirror", patch=lambda model: kind.apply(model, 2) and None)
    assert found.exit_code in (1, 2)
    assert [(f["point"], f["side"]) for f in found.faults] == [("model.layers.2.mlp", "reference")]


@pytest.mark.parametrize(
    ("kind", "place", "layer"),
    [("gelu for silu", "mlp", 6), ("rope theta 500000", "rotary_emb", -1), ("causal mask left out", "self_attn", 3)],
)
def test_a_cause_left_out_is_not_replaced_by_a_wrong_one(
    kind: str, place: str, layer: int, embedded: Path, about: dict[str, Any], reference: Recorded, few: list[dict[str, Any]]
) -> None:
    engine = planted(embedded, about, kind, place, layer)
    found = lockstep.bisect(embedded, engine, reference=reference, inputs=few, without=[kind])
    assert [f["point"] for f in found.faults] == [next(k for k in faults.kinds() if k.name == kind).path(layer)]
    assert found.faults[0]["cause"] is None


def test_cost_is_within_its_bar(embedded: Path) -> None:
    cost = lockstep.bisect(embedded, "hf:attn=eager").data["cost"]
    assert cost["reference_forwards"] <= 2 and cost["candidate_forwards"] <= 2
    assert cost["truth"] + cost["shared"] <= cost["sublayers"] * cost["inputs"] * cost["sides"]
    assert cost["floor"] == cost["truth"]
    assert (cost["index_order"], cost["hypotheses"], cost["values"], cost["operations"]) == (0, 0, 0, 0)
    assert cost["len130"] == cost["sublayers"] + 1


# Traces


def test_a_trace_file_is_judged_by_itself(embedded: Path, few: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "a b.trace"
    kind = next(k for k in faults.kinds() if k.name == "gelu for silu")
    lockstep.trace(file, embedded, inputs=few, patch=lambda model: kind.apply(model, 3) and None)
    found = lockstep.bisect(embedded, str(file))
    assert found.exit_code == 1
    assert [(f["point"], f["cause"]["hypothesis"]) for f in found.faults] == [("model.layers.3.mlp", "gelu for silu")]


def test_a_trace_without_tables_and_states_tells_the_cause_too(embedded: Path, few: list[dict[str, Any]], tmp_path: Path) -> None:
    """Another engine shows neither: a wrong theta is then a fault of attention, and cached keys are wrong by it as well."""
    kind = next(k for k in faults.kinds() if k.name == "rope theta 500000")
    lockstep.trace(tmp_path / "all.trace", embedded, inputs=few, patch=lambda model: kind.apply(model, -1) and None)

    def strip(tensors: dict, manifest: dict) -> None:
        hidden = ("@key_cache", "@value_cache", "@conv_state", "@recurrent_state")
        for name in [n for n in tensors if "rotary_emb" in n or n.endswith(hidden)]:
            del tensors[name]
        manifest["points"] = [p for p in manifest["points"] if "rotary_emb" not in p and not p.endswith(hidden)]

    found = lockstep.bisect(embedded, str(changed(tmp_path / "all.trace", tmp_path / "few.trace", strip)))
    assert [(f["point"], f["cause"] and f["cause"]["hypothesis"]) for f in found.faults] == [
        ("model.layers.3.self_attn", "rope theta 500000"),
        ("model.layers.7.self_attn", "rope theta 500000"),
    ]


def test_compare_of_a_trace_with_itself_is_identical(embedded: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.trace", tmp_path / "b.trace"
    lockstep.trace(a, embedded, ids="1,2,3")
    lockstep.trace(b, embedded, "mirror", ids="1,2,3")
    data = lockstep.compare(a, b)
    assert (data["exit_code"], data["verdict"], data["not_compared"]) == (0, "identical", [])


def changed(source: Path, target: Path, change: Any) -> Path:
    """A copy of a trace with its tensors and manifest changed in place."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        manifest = json.loads(file.metadata()["lockstep"])
    change(tensors, manifest)
    save_file({k: v.contiguous() for k, v in tensors.items()}, target, metadata={"lockstep": json.dumps(manifest)})
    return target


POINT = "ids/model.layers.2.mlp.output"


def _nan(tensors: dict, _: dict) -> None:
    tensors[POINT][0, 1, 3] = float("nan")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (_nan, "non_finite"),
        (lambda t, m: t.pop(POINT), "missing"),
        (lambda t, m: t.update({"ids/model.layers.2.mlp.extra": torch.zeros(2)}), "missing"),
        (lambda t, m: t.update({POINT: t[POINT][:, :2]}), "shape"),
        (lambda t, m: t.update({POINT: t[POINT].double()}), "dtype"),
        (lambda t, m: t.update({POINT: t[POINT] + 1}), "deviates"),
    ],
    ids=["nan", "missing", "extra", "shape", "dtype", "deviates"],
)
def test_a_spoiled_trace_never_passes(change: Any, verdict: str, embedded: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.trace", tmp_path / "bad.trace"
    lockstep.trace(good, embedded, ids="5,6,7")
    changed(good, bad, change)
    data = lockstep.compare(good, bad)
    assert (data["exit_code"], data["verdict"]) == (1, verdict)
    found = lockstep.bisect(embedded, str(bad))
    assert (found.exit_code, found.verdict) == (1, verdict)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "/format_version: 2 is not known (known: 1); use the lockstep that wrote it"),
        (lambda m: m.update(dtype="int8"), '/dtype: expected float32, bfloat16, float16 or float64, found "int8"'),
        (lambda m: m.update(points=[]), "/points: expected a list of capture points"),
        (lambda m: m["forwards"][0].update(ids=[[1, 2], [3]]), "/forwards/0/ids: expected a full rectangle of whole numbers"),
        (
            lambda m: m["forwards"][0].update(past="later"),
            '/forwards/0/past: expected the name of an earlier forward, found "later"',
        ),
        (lambda m: m["forwards"][0].update(extra=1), "/forwards/0/extra: unknown key (known: name, ids, positions, mask, past)"),
    ],
)
def test_a_bad_manifest_is_one_clear_error(change: Any, message: str, embedded: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.trace", tmp_path / "bad.trace"
    lockstep.trace(good, embedded, ids="5,6,7", points="layer")
    changed(good, bad, lambda _, manifest: change(manifest))
    with pytest.raises(LoadError) as error:
        lockstep.compare(good, bad)
    assert str(error.value) == f"{bad} (manifest) {message}"


def test_traces_of_other_inputs_are_refused(embedded: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.trace", tmp_path / "b.trace"
    lockstep.trace(a, embedded, ids="5,6,7", points="layer")
    lockstep.trace(b, embedded, ids="5,6,8", points="layer")
    with pytest.raises(InputError, match="ids of .*a.trace and .*b.trace differ; expected the same inputs"):
        lockstep.compare(a, b)
    lockstep.trace(b, embedded, ids="5,6,7", points="layer", dtype="bfloat16")
    with pytest.raises(InputError, match="expected traces of one dtype"):
        lockstep.compare(a, b)


def test_a_truncated_trace_is_refused(embedded: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    lockstep.trace(file, embedded, ids="5,6,7", points="layer")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LoadError, match="a.trace"):
        lockstep.compare(file, file)


# Candidates that misbehave

CANDIDATES = """
import time
import torch
from transformers import Qwen3_5ForCausalLM

def load(folder, dtype):
    return Qwen3_5ForCausalLM.from_pretrained(folder, dtype=dtype)

def raises(folder, dtype):
    raise ValueError("no such weights")

def leaves(folder, dtype):
    raise SystemExit(0)

def hangs(folder, dtype):
    time.sleep(60)

def no_module(folder, dtype):
    return 3

class Other(torch.nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab
    def forward(self, input_ids, **_):
        return torch.zeros(*input_ids.shape, self.vocab)

def other_vocabulary(folder, dtype):
    return Other(7)

def no_names(folder, dtype):
    return Other(1024)

class Greedy(Other):
    def forward(self, input_ids, **_):
        input_ids[0, 0] = 0
        return torch.zeros(*input_ids.shape, self.vocab)

def changes_inputs(folder, dtype):
    return Greedy(1024)

def one_weight(folder, dtype):
    model = load(folder, dtype)
    model.model.layers[2].mlp.down_proj.weight.data[5, 7] += 1e-2
    return model

class Renamed(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.body, self.head, self.config = inner.model, inner.lm_head, inner.config
    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False, **_):
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                           past_key_values=past_key_values, use_cache=use_cache).last_hidden_state
        return self.head(hidden)

def renamed(folder, dtype):
    return Renamed(load(folder, dtype))
"""


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    file = tmp_path / "my engines.py"
    file.write_text(CANDIDATES)
    return file


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("raises", "my engines.py:raises raised ValueError: no such weights"),
        ("leaves", "my engines.py:leaves raised SystemExit: 0"),
        ("hangs", "my engines.py:hangs did not finish within --timeout 2 seconds"),
        ("no_module", "my engines.py:no_module returned int; expected a torch.nn.Module"),
        ("other_vocabulary", "returned logits [1, 3, 7]; expected [1, 3, 1024] (vocab_size 1024)"),
        ("no_names", "the candidate shows no sublayer with its input and output under Hugging Face's names"),
        ("changes_inputs", "changed its ids in place; expected them as they were given"),
        ("absent", "has no callable 'absent'"),
    ],
)
def test_a_candidate_that_misbehaves_gets_one_sentence(factory: str, message: str, candidates: Path, embedded: Path) -> None:
    with pytest.raises(InputError) as error:
        lockstep.bisect(embedded, f"{candidates}:{factory}", ids="1,2,3", timeout=2 if factory == "hangs" else None)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_callable_is_judged(candidates: Path, embedded: Path) -> None:
    found = lockstep.bisect(embedded, f"{candidates}:load", ids="1,2,3")
    assert (found.exit_code, found.verdict) == (0, "identical")


def test_a_changed_parameter_is_named_before_any_number(candidates: Path, embedded: Path) -> None:
    found = lockstep.bisect(embedded, f"{candidates}:one_weight", ids="1,2,3")
    assert [(p["parameter"], p["index"]) for p in found.data["parameters"]] == [("model.layers.2.mlp.down_proj.weight", [5, 7])]
    assert [f["point"] for f in found.faults] == ["model.layers.2.mlp"]
    assert found.exit_code == 1


def test_names_are_mapped(candidates: Path, embedded: Path, tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps({"body": "model", "head": "lm_head"}))
    found = lockstep.bisect(embedded, f"{candidates}:renamed", names=file, ids="1,2,3,4,5")
    assert (found.exit_code, found.faults) == (0, [])
    assert all(entry["injected"] is not None for entry in found.data["drift"])


def test_a_clean_thorough_run_names_nothing(embedded: Path) -> None:
    found = lockstep.bisect(embedded, "hf:attn=eager", thorough=True, ids=",".join(str(i) for i in range(3, 103)))
    assert (found.exit_code, found.faults, found.data["notes"]) == (0, [], [])
    standings = {s for standing in found.data["power"].values() for s in standing}
    assert standings <= {"ruled_out", "not_discriminated", "same_function"} and "ruled_out" in standings
    stated = {(p["hypothesis"], p["point"]): p["standing"] for p in found.data["projections"]}
    assert stated == {
        (hypothesis, point): standing
        for hypothesis, standing_of in found.data["power"].items()
        for standing, points in standing_of.items() if standing != "same_function"
        for point in points
    }  # fmt: skip


# verify's verdict `rounding`


def test_verify_names_rounding_and_accepts_it_when_told(embedded: Path) -> None:
    """A down_proj sum in two halves is another order of summation, and nothing else."""

    def halves(model: Any) -> None:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            half = x.shape[-1] // 2
            return x[..., :half] @ self.weight[:, :half].T + x[..., half:] @ self.weight[:, half:].T

        layer = model.model.layers[4].mlp.down_proj
        layer.forward = forward.__get__(layer)

    strict = lockstep.verify(embedded, patch=halves, atol=0.0)
    assert (strict.exit_code, strict.verdict) == (1, "rounding")
    assert strict.first is not None and strict.first["point"] == "model.layers.4.mlp.output"
    assert 0 < strict.first["ratio"] <= 2 and strict.first["floor"] > 0
    assert all((p["ratio"] is None) == (p["verdict"] == "identical") for p in strict.points)
    accepted = lockstep.verify(embedded, patch=halves, atol=0.0, accept="rounding")
    assert (accepted.exit_code, accepted.verdict) == (0, "rounding")


def test_a_fault_is_never_rounding(embedded: Path) -> None:
    kind = next(k for k in faults.kinds() if k.name == "norm epsilon" and k.place == "input_layernorm")
    report = lockstep.verify(embedded, patch=lambda model: kind.apply(model, 5) and None, accept="rounding")
    assert report.exit_code == 1 and report.first is not None
    assert report.first["point"] == "model.layers.5.input_layernorm.output"
    assert report.first["verdict"] == "deviates"


# Decoding


def test_decoding_is_rounding_step_by_step(embedded: Path) -> None:
    found = lockstep.bisect(embedded, "mirror", steps=4)
    assert (found.exit_code, found.data["steps"]["first"]) == (0, None)
    assert all(0 <= found.data["steps"]["rel_l2"][name] < 1e-4 for name in ("steps", "parts"))


def test_a_stale_state_is_named_at_its_first_step(embedded: Path, about: dict[str, Any]) -> None:
    kind = next(k for k in faults.kinds() if k.name == "recurrent state not handed over")
    engine = HfEngine(embedded, about, "float32", "sdpa", patch=lambda model: kind.apply(model, 4) and None, stress=False)
    found = lockstep.bisect(embedded, engine, steps=3)
    assert found.exit_code == 1
    first = found.data["steps"]["first"]
    assert (first["input"], first["point"]) == ("step1", "model.layers.4.linear_attn")


# Stress inputs


def test_stress_shows_what_normal_activations_hide(
    embedded: Path, about: dict[str, Any], reference: Recorded, few: list[dict[str, Any]]
) -> None:
    """The l2norm's epsilon outside of the root is hidden in ordinary q and k, and plain in small ones."""
    chosen = inputs.from_ids(",".join(str(i) for i in range(3, 103)))[0]
    plain = [{"name": "a", "ids": chosen.ids.tolist()}]
    engine = planted(embedded, about, "l2norm epsilon", "linear_attn", 5, stress=True)
    found = lockstep.bisect(embedded, engine, inputs=plain)
    assert [f["point"] for f in found.faults] == ["model.layers.5.linear_attn"]
    assert found.faults[0]["cause"]["hypothesis"] == "l2norm epsilon"
    assert found.data["cost"]["stress"]["candidate_calls"] > 0


def test_stress_of_a_right_candidate_is_rounding(candidates: Path, embedded: Path) -> None:
    found = lockstep.bisect(embedded, f"{candidates}:load", ids="1,2,3,4,5,6,7,8,9,10,11,12")
    assert (found.exit_code, found.faults) == (0, [])
    assert found.data["cost"]["stress"]["truth"] > 0


@pytest.mark.parametrize("layers", [8, 24])
def test_cost_per_sublayer_does_not_grow_with_depth(layers: int, tmp_path: Path) -> None:
    folder = make_twin(tmp_path / "twin", "qwen3_5", num_hidden_layers=layers)
    kind = next(k for k in faults.kinds() if k.name == "gelu for silu")
    about = _core.Mirror.open(str(folder)).describe()
    engine = HfEngine(folder, about, "float32", "sdpa", patch=lambda model: kind.apply(model, 3) and None, stress=False)
    found = lockstep.bisect(folder, engine, ids="1,2,3,4,5,6,7,8,9")
    cost = found.data["cost"]
    assert [f["point"] for f in found.faults] == ["model.layers.3.mlp"]
    assert cost["sublayers"] == 5 * layers + 4
    assert cost["truth"] + cost["shared"] == 2 * cost["sublayers"]  # one per sublayer and side, equal bits shared
    assert cost["floor"] == cost["truth"]
    assert (cost["values"], cost["operations"], cost["reference_forwards"], cost["candidate_forwards"]) == (2, 1, 1, 2)
    assert cost["index_order"] == 1
    assert 5 <= cost["hypotheses"] <= 40
    assert cost["len130"] == cost["sublayers"] + 1


def test_what_pad_rows_hold_is_a_note(
    embedded: Path, about: dict[str, Any], reference: Recorded, few: list[dict[str, Any]]
) -> None:
    class WithNaN(HfEngine):
        """Its recording has NaN on the pads of one output."""

        def record(self, forwards: list[Forward], points: str) -> Recorded:
            recorded = super().record(forwards, points)
            value = recorded.trace.tensor("pad2", "model.layers.1.mlp.output")
            assert value is not None
            value[1, :5] = float("nan")
            return recorded

    found = lockstep.bisect(embedded, WithNaN(embedded, about, "float32", "sdpa"), reference=reference, inputs=few)
    assert (found.exit_code, found.faults) == (0, [])
    assert {(note["point"], note["input"], note["text"]) for note in found.data["notes"]} == {
        ("model.layers.1.mlp", "pad2", "NaN on pad rows, which do not count"),
        ("model.layers.1", "pad2", "NaN on pad rows, which do not count"),
    }
