"""Verification end to end: clean runs of every kind are identical, the report has its form, the legs say what they saw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

import lockstep
from conftest import QWEN3_5, TINY, Tensors, edited, ids_forward, make_twin
from lockstep import InputError, LoadError
from lockstep.native import _core
from lockstep.report.junit import Suite, junit_text
from lockstep.verdicts import VERDICTS

ROPE = {"rope_theta": 10000.0}
TWINS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen-tied": ("qwen3_5", {"tie_word_embeddings": True}),
    "qwen-no-grouping": ("qwen3_5", {"linear_num_key_heads": 4, "num_key_value_heads": 4}),
    "qwen-square-state": ("qwen3_5", {"linear_key_head_dim": 8, "linear_value_head_dim": 8}),
    "qwen-one-head": ("qwen3_5", {"num_attention_heads": 1, "num_key_value_heads": 1}),
    "qwen-bias": ("qwen3_5", {"attention_bias": True}),
    "qwen-large-head": ("qwen3_5", {"head_dim": 288, "num_hidden_layers": 4}),
    "qwen-conv-2": ("qwen3_5", {"linear_conv_kernel_dim": 2}),
    "llama-tied-bias": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **ROPE}}),
    "llama-llama3": ("llama", {"head_dim": 32, "rope_parameters": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256, **ROPE}}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 4}),
}  # fmt: skip


def test_every_family_has_a_twin() -> None:
    assert sorted(_core.families()) == sorted(TINY)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_embedded_is_identical_at_every_point(dtype: str, attn: str) -> None:
    report = lockstep.verify(dtype=dtype, attn=attn, points="all", bitwise=True)
    assert (report.exit_code, report.verdict) == (0, "identical")
    assert {p["max_ulp"] for p in report.points} == {0}
    assert report.legs["coverage"]["not_exercised"] == []
    assert all(logits["kl"] == 0 and logits["top1_agreement"] == 1 for logits in report.data["logits"])


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("name", TWINS)
def test_twins_are_identical_at_every_point(name: str, attn: str, tmp_path: Path) -> None:
    family, changes = TWINS[name]
    report = lockstep.verify(make_twin(tmp_path, family, **changes), attn=attn, points="all", bitwise=True)
    assert (report.exit_code, report.verdict) == (0, "identical")
    assert report.legs["coverage"]["not_exercised"] == []


@pytest.mark.parametrize("factor", ["small q and k", "strong decay"])
def test_stressed_weights_are_identical(embedded: Path, tmp_path: Path, factor: str) -> None:
    def change(tensors: Tensors) -> None:
        for name in tensors:
            if factor == "small q and k" and name.endswith("in_proj_qkv.weight"):
                tensors[name][: 2 * 2 * 32] *= 0.02
            if factor == "strong decay" and name.endswith("A_log"):
                tensors[name] += 3.0

    report = lockstep.verify(edited(embedded, tmp_path / "x", change), points="all", bitwise=True)
    assert (report.exit_code, report.verdict) == (0, "identical")


@pytest.mark.parametrize("points", ["layer", "sublayer", "all"])
def test_points_follow_the_level(points: str) -> None:
    report = lockstep.verify(points=points, ids="5,6,7")
    found = {p["point"] for p in report.points}
    assert ("model.layers.3.mlp.input" in found) == (points != "layer")
    assert ("model.layers.0.linear_attn@decay" in found) == (points == "all")
    assert {"model.layers.7.output", "model.norm.output", "lm_head.output"} <= found


def test_two_runs_give_the_same_json_but_for_the_seconds() -> None:
    first, second = (lockstep.verify(points="all").data for _ in range(2))
    for data in (first, second):
        data.pop("seconds")
    assert json.dumps(first) == json.dumps(second)


def test_json_has_its_form() -> None:
    data = lockstep.verify(ids="5,6,7").data
    assert list(data)[:6] == ["format_version", "command", "verdict", "model", "pedigree", "seconds"]
    assert (data["format_version"], data["command"]) == (1, "verify")
    assert set(data["model"]) >= {"family", "layer_types", "digest"}
    assert set(data["legs"]) == {"provenance", "lockstep", "coverage"}
    assert set(data["legs"]["coverage"]) >= {"exercised", "not_exercised", "absent"}
    keys = {"point", "input", "shape", "dtype", "max_ulp", "max_abs", "rel_l2", "cosine", "worst_index", "verdict"}
    assert all(set(p) >= keys for p in data["points"])
    assert set(data["logits"][0]) == {"input", "kl", "top1_agreement", "top3"}
    assert set(data["logits"][0]["top3"]) == {"reference", "mirror"}
    assert data["first"] is None
    json.dumps(data, allow_nan=False)


# Provenance


def test_one_ulp_in_a_row_that_no_prompt_uses(embedded: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.embed_tokens.weight"].view(torch.int16)[17, 5] += 1

    report = lockstep.verify(embedded, mirror=edited(embedded, tmp_path / "x", change), ids="5,6,7")
    before = float(lockstep.Mirror.load(embedded).parameters()["model.embed_tokens.weight"][17, 5])
    (differing,) = report.legs["provenance"]["differing"]
    assert report.exit_code == 1
    assert (differing["tensor"], differing["index"]) == ("model.embed_tokens.weight", [17, 5])
    assert differing["reference"] == before != differing["mirror"]
    assert report.legs["provenance"]["verdict"] == "deviates"


def test_one_ulp_in_the_reference_is_provenance_too(embedded: Path) -> None:
    def patch(model: Any) -> None:
        model.model.embed_tokens.weight.data.view(torch.int32)[17, 5] += 1

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    (differing,) = report.legs["provenance"]["differing"]
    assert (report.exit_code, differing["tensor"], differing["index"]) == (1, "model.embed_tokens.weight", [17, 5])


def test_an_untied_head_in_the_reference_is_found(embedded: Path) -> None:
    def patch(model: Any) -> None:
        head = model.lm_head.weight.detach().clone()
        head[900, 3] += 1
        model.lm_head.weight = torch.nn.Parameter(head)

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert [d["tensor"] for d in report.legs["provenance"]["differing"]] == ["lm_head.weight"]
    assert report.exit_code == 1


def test_a_converted_copy_names_its_dtype(embedded: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        name = "model.layers.0.linear_attn.norm.weight"
        tensors[name] = tensors[name].bfloat16()

    report = lockstep.verify(embedded, mirror=edited(embedded, tmp_path / "x", change), ids="5,6,7")
    (differing,) = report.legs["provenance"]["differing"]
    assert differing["tensor"] == "model.layers.0.linear_attn.norm.weight"
    assert report.exit_code == 1


def test_weights_that_change_after_provenance_are_found(embedded: Path, tmp_path: Path) -> None:
    """Also where the mirror shares the reference's memory (a cast was needed), so that both sides compute alike."""

    def patch(model: Any) -> None:
        weight, done = model.model.layers[1].mlp.down_proj.weight, []

        def once(*_: Any) -> None:
            if not done:
                weight.data.mul_(1.5)
                done.append(True)

        model.model.layers[1].mlp.register_forward_pre_hook(once)

    in_float32 = edited(embedded, tmp_path / "x", lambda t: t.update({k: v.float() for k, v in t.items()}))
    for folder in (embedded, in_float32):
        report = lockstep.verify(folder, patch=patch, ids="5,6,7")
        assert report.exit_code != 0
        (differing,) = report.legs["provenance"]["differing"]
        assert (differing["tensor"], differing["note"]) == ("model.layers.1.mlp.down_proj.weight", "it changed during the run")


def test_a_file_that_changes_during_the_run_judges_nobody(embedded: Path, tmp_path: Path) -> None:
    folder = edited(embedded, tmp_path / "x")

    def patch(model: Any) -> None:
        def touch(*_: Any) -> None:
            with (folder / "model.safetensors").open("r+b") as file:
                file.seek(-4, 2)
                file.write(b"\0\0\0\0")

        model.model.norm.register_forward_pre_hook(touch)

    with pytest.raises(LoadError, match="changed while it was in use"):
        lockstep.verify(folder, patch=patch, ids="5,6,7")


def test_another_config_in_the_mirrors_folder_is_provenance(embedded: Path, tmp_path: Path) -> None:
    def theta(config: dict[str, Any]) -> None:
        config["rope_parameters"]["rope_theta"] = 500.0

    def epsilon(config: dict[str, Any]) -> None:
        config["rms_norm_eps"] = 1e-5

    for change, named in ((theta, "model.rotary_emb.inv_freq"), (epsilon, "config.json /rms_norm_eps")):
        report = lockstep.verify(embedded, mirror=edited(embedded, tmp_path / named[:5], config=change), ids="5")
        assert report.exit_code == 1
        assert named in [d["tensor"] for d in report.legs["provenance"]["differing"]]
        assert report.data["mirror"]["digest"] == report.data["model"]["digest"]


def test_the_same_bytes_in_another_folder_pass(embedded: Path, tmp_path: Path) -> None:
    report = lockstep.verify(embedded, mirror=edited(embedded, tmp_path / "x"), ids="5,6,7")
    assert (report.exit_code, report.verdict) == (0, "identical")


# Coverage


def coverage(model: Path | None = None, **options: Any) -> dict[str, Any]:
    report = lockstep.verify(model, **options)
    assert report.exit_code == 0
    return report.legs["coverage"]


def test_one_token_exercises_no_rope() -> None:
    assert {"rope", "partial_rotary", "causal_mask"} <= set(coverage(ids="5")["not_exercised"])


def test_sections_that_no_row_reaches_are_absent(tmp_path: Path) -> None:
    rope = {**QWEN3_5["rope_parameters"], "mrope_section": [2, 0, 0]}
    assert "mrope_rows" in coverage(make_twin(tmp_path, "qwen3_5", rope_parameters=rope), ids="5,6")["absent"]


def test_one_chunk_exercises_no_hand_over() -> None:
    assert "chunk_hand_over" in coverage(ids=[i % 7 for i in range(64)])["not_exercised"]
    assert "chunk_hand_over" in coverage(ids=[i % 7 for i in range(65)])["exercised"]


def test_equal_tokens_are_said() -> None:
    assert "distinct_tokens" in coverage(ids=[5] * 20)["not_exercised"]


def test_what_the_config_rules_out_is_absent(tmp_path: Path, llama: Path) -> None:
    plain = make_twin(tmp_path, "qwen3_5", linear_num_key_heads=4, num_attention_heads=1, num_key_value_heads=1)
    assert {"head_grouping", "gqa", "gate_split"} <= set(coverage(plain)["absent"])
    assert {"delta_rule_step", "mrope_rows", "conv_state"} <= set(coverage(llama)["absent"])


# Inputs


def test_packed_positions_leak_in_the_references_linear_layers(embedded: Path) -> None:
    packed = ids_forward(*range(5, 17), positions=[[*range(6), *range(6)]])
    report = lockstep.verify(embedded, inputs=[packed], points="all")
    assert report.verdict == "identical"
    assert (report.exit_code, report.data["pedigree"]["failed"]) == (2, ["packed:ids"])


def test_packed_positions_are_right_in_llama(llama: Path) -> None:
    packed = ids_forward(*range(5, 17), positions=[[*range(6), *range(6)]])
    report = lockstep.verify(llama, inputs=[packed], points="all")
    assert (report.exit_code, report.verdict) == (0, "identical")


def test_padding_with_a_cache_and_branches_of_one_past(embedded: Path) -> None:
    first = {"name": "a", "ids": [[5, 6, 7, 8], [0, 0, 9, 10]], "mask": [[1, 1, 1, 1], [0, 0, 1, 1]]}
    more = {"ids": [[11], [12]], "mask": [[1] * 5, [0, 0, 1, 1, 1]], "past": "a"}
    many = {"ids": [[11, 3], [12, 4]], "mask": [[1] * 6, [0, 0, 1, 1, 1, 1]], "past": "a"}
    forwards = [first, {"name": "b", **more}, {"name": "c", **many}, {"name": "d", **more}]
    for attn in ("sdpa", "eager"):
        report = lockstep.verify(embedded, inputs=forwards, points="all", attn=attn, bitwise=True)
        assert (report.exit_code, report.verdict) == (0, "identical")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [[5, 1024]]}, "input 'ids': ids: expected 0 to 1023 (vocab_size 1024), found 1024"),
        ({"ids": [[5, -1]]}, "input 'ids': ids: expected 0 to 1023 (vocab_size 1024), found -1"),
        ({"ids": [[]]}, "input 'ids': ids: expected int64 [B, T] with at least one token, found int64 [1, 0]"),
        ({"ids": [[1, 2], [3]]}, "inputs /0/ids: expected a full rectangle, found rows of different lengths"),
        ({"ids": [[1.5]]}, "inputs /0/ids: expected nested lists of whole numbers"),
        ({"ids": None}, "inputs /0/ids: expected [B, T], found nothing"),
        ({"mask": [[1, 2, 1]]}, "input 'ids': mask: expected only 0 and 1"),
        ({"mask": [[1, 1]]}, "input 'ids': mask: expected int64 [1, 3] (past 0 + 3 tokens), found int64 [1, 2]"),
        ({"positions": [[0, 1]]}, "input 'ids': positions: expected int64 [1, 3] or [3, 1, 3], found int64 [1, 2]"),
        ({"past": "x"}, "inputs /0/past: expected the name of an earlier forward or null, found 'x'"),
        ({"name": "a/b"}, "inputs /0/name: expected a printable name without '/', found 'a/b'"),
        ({"tokens": 3}, "inputs /0/tokens: unknown key (known: name, ids, positions, mask, past)"),
    ],
)  # fmt: skip
def test_bad_inputs_get_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        lockstep.verify(inputs=[{**ids_forward(1, 2, 3), **change}])
    assert str(caught.value) == message


def test_right_padding_with_a_cache_is_refused() -> None:
    first = ids_forward(5, 6, 7, 0, name="a", mask=[[1, 1, 1, 0]])
    with pytest.raises(InputError, match="input 'a': mask: right padding with a cache is not supported by the reference"):
        lockstep.verify(inputs=[first, ids_forward(8, name="b", past="a")])
    assert lockstep.verify(inputs=[first]).verdict == "identical"


def test_three_row_positions_belong_to_some_families(llama: Path) -> None:
    with pytest.raises(InputError, match="this family has no three-row positions"):
        lockstep.verify(llama, inputs=[ids_forward(1, 2, positions=[[[0, 1]]] * 3)])


# Distrust of the reference


def test_a_reference_that_never_moves_judges_nobody(embedded: Path) -> None:
    def mean_logits(model: Any) -> None:
        model.lm_head.register_forward_hook(lambda _, __, out: out.mean(dim=(0, 1), keepdim=True).expand_as(out) * 0 + 1)

    report = lockstep.verify(embedded, patch=mean_logits)
    assert report.exit_code == 2
    assert "discriminating" in report.data["pedigree"]["failed"]


def test_all_zero_weights_judge_nobody(embedded: Path, tmp_path: Path) -> None:
    dead = edited(embedded, tmp_path / "x", lambda t: [v.zero_() for v in t.values()])
    report = lockstep.verify(dead)
    assert (report.exit_code, report.verdict) == (2, "identical")
    assert report.data["pedigree"]["failed"] == ["discriminating"]


def test_logits_changed_after_the_head_are_seen(embedded: Path) -> None:
    def patch(model: Any) -> None:
        forward = model.forward

        def capped(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            out.logits = 30 * torch.tanh(out.logits / 30)
            return out

        model.forward = capped

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert report.exit_code == 1
    assert report.first and report.first["point"] == "lm_head.output"


@pytest.mark.parametrize("in_place", [lambda x: x.mul_(1.5), lambda x: x.data.mul_(1.5)])
def test_logits_changed_in_place_are_seen(embedded: Path, in_place: Callable[[torch.Tensor], Any]) -> None:
    def patch(model: Any) -> None:
        forward = model.forward

        def scaled(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            in_place(out.logits)
            return out

        model.forward = scaled

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert report.exit_code == 1
    assert report.first and report.first["note"] == "the reference returns other logits than its lm_head gave"


def test_a_bad_head_is_not_covered_by_what_is_returned(embedded: Path) -> None:
    """The head is 1 % off; what is returned then differs from the head by little: the worse verdict stays."""

    def patch(model: Any) -> None:
        head, forward = model.lm_head.forward, model.forward
        model.lm_head.forward = lambda x: head(x) * 1.01

        def nudged(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            out.logits = out.logits + 1e-6
            return out

        model.forward = nudged

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert (report.exit_code, report.verdict) == (1, "deviates")


def test_another_attention_than_asked_for_is_refused(embedded: Path) -> None:
    def patch(model: Any) -> None:
        model.config._attn_implementation = "eager"

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert (report.exit_code, report.data["pedigree"]["failed"], report.data["pedigree"]["attn"]) == (2, ["attn"], "eager")


def test_a_reference_that_raises_is_one_sentence(embedded: Path) -> None:
    def patch(model: Any) -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("by a patch")

        model.model.norm.forward = broken

    report = lockstep.verify(embedded, patch=patch, ids="5")
    assert report.exit_code == 2
    assert report.legs["lockstep"]["raised"] == [
        {"input": "ids", "reason": "input 'ids': the reference raised ZeroDivisionError: by a patch"}
    ]
    assert report.first and (report.first["point"], report.first["verdict"]) == ("model.norm.output", "missing")


def test_a_reference_that_raises_now_and_then_is_named_in_the_pedigree(embedded: Path) -> None:
    def patch(model: Any) -> None:
        def single_rows_only(_: Any, args: tuple[torch.Tensor, ...]) -> None:
            assert args[0].shape[0] == 1, "one row at a time"

        model.model.norm.register_forward_pre_hook(single_rows_only)

    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert (report.exit_code, report.verdict) == (2, "identical")
    assert report.data["pedigree"]["failed"] == ["padded_batch"]


@pytest.mark.parametrize("returned", [[1], True, torch.zeros(2)])
def test_what_a_patch_returns_is_ignored_if_it_is_no_model(embedded: Path, returned: Any) -> None:
    assert lockstep.verify(embedded, patch=lambda model: returned, ids="5").exit_code == 0


def test_a_patch_that_raises_or_breaks_the_model_is_one_sentence(embedded: Path) -> None:
    with pytest.raises(InputError, match="patch raised AttributeError"):
        lockstep.verify(embedded, patch=lambda model: model.nothing, ids="5")
    with pytest.raises(InputError, match="expected a causal language model with model.layers"):
        lockstep.verify(embedded, patch=lambda model: delattr(model.model, "layers"), ids="5")


def test_a_mirror_of_another_vocabulary_or_family_is_judged(embedded: Path, qwen: Path, llama: Path, tmp_path: Path) -> None:
    larger = make_twin(tmp_path, "qwen3_5", vocab_size=120)
    report = lockstep.verify(qwen, mirror=larger, ids="1,2")
    assert report.exit_code == 1 and report.legs["provenance"]["verdict"] == "deviates"
    report = lockstep.verify(qwen, mirror=llama)
    assert report.exit_code == 1
    assert [r["input"] for r in report.legs["lockstep"]["raised"]] == ["rows3"]
    assert "three-row positions" in report.legs["lockstep"]["raised"][0]["reason"]
    failed = {(case.get("classname"), case.get("name")) for case in ET.fromstring(junit_text(report.data)) if len(case)}
    assert ("lockstep.rows3", "raised") in failed


def test_ignored_tensors_of_two_folders_are_compared(qwen: Path, tmp_path: Path) -> None:
    a = edited(qwen, tmp_path / "a", lambda t: t.update({"mtp.fc.weight": torch.ones(2), "mtp.x": torch.ones(1)}))
    b = edited(qwen, tmp_path / "b", lambda t: t.update({"mtp.fc.weight": torch.zeros(2)}))
    report = lockstep.verify(a, mirror=b, ids="1,2")
    assert [d["tensor"] for d in report.legs["provenance"]["differing"]] == ["mtp.fc.weight", "mtp.x"]
    assert report.exit_code == 1


def test_a_foreign_kernel_fails_and_a_patched_one_is_recorded(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    original = modeling.torch_chunk_gated_delta_rule

    def fast_rule(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    fast_rule.__module__ = "fla.ops"

    def patch(model: Any) -> None:
        modeling.torch_chunk_gated_delta_rule = fast_rule

    monkeypatch.setattr(modeling, "torch_chunk_gated_delta_rule", original)
    report = lockstep.verify(embedded, patch=patch, ids="5,6,7")
    assert report.exit_code == 0
    assert report.data["pedigree"]["kernels"]["torch_chunk_gated_delta_rule"].startswith("fla.ops")
    monkeypatch.setattr(modeling, "torch_chunk_gated_delta_rule", fast_rule)
    report = lockstep.verify(embedded, ids="5,6,7")
    assert (report.exit_code, report.data["pedigree"]["failed"]) == (2, ["kernels"])


def test_inv_freq_in_bfloat16_is_refused(embedded: Path) -> None:
    report = lockstep.verify(embedded, dtype="bfloat16", patch=lambda model: model.to(torch.bfloat16))
    assert "inv_freq_float32" in report.data["pedigree"]["failed"]
    assert report.exit_code == 2


def test_a_reference_in_another_dtype_is_refused(embedded: Path) -> None:
    def patch(model: Any) -> None:
        model.model.layers[0].input_layernorm.to(torch.bfloat16)

    report = lockstep.verify(embedded, patch=patch, ids="5")
    assert "dtypes" in report.data["pedigree"]["failed"]


def test_autocast_is_refused(embedded: Path) -> None:
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast is on"):
        lockstep.verify(embedded, ids="5")


def test_the_reference_measured_invariants_hold(embedded: Path) -> None:
    checks = {c["name"]: c for c in lockstep.verify(embedded, ids="5,6").data["pedigree"]["checks"]}
    assert set(checks) >= {
        "missing_keys", "dtypes", "inv_freq_float32", "eval_mode", "attn", "kernels", "repeatable", "hooks_transparent",
        "last_layer_hook", "padded_batch", "padded_single", "split2_148", "split64_86", "steps", "hooks_transparent_cached",
    }  # fmt: skip
    assert 0 < checks["split64_86"]["rel_l2"] < 1e-3


def test_threads_are_the_same_on_both_sides_and_put_back(embedded: Path) -> None:
    before = torch.get_num_threads()
    report = lockstep.verify(embedded, ids="5,6", threads=1)
    assert report.data["pedigree"]["threads"] == 1
    assert torch.get_num_threads() == before


def test_verdicts_are_ordered_as_in_cpp() -> None:
    a, b = torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])
    assert VERDICTS.index(_core.compare(a, a)["verdict"]) < VERDICTS.index(_core.compare(a, b)["verdict"])


def test_what_xml_cannot_hold_is_replaced() -> None:
    suite = Suite("s")
    suite.case("a\x1b", "b\ufffe", ["c\x00\nd\ud800"])
    (case,) = ET.fromstring(suite.text())
    assert (case.get("classname"), case.get("name"), case[0].text) == ("a\ufffd", "b\ufffd", "c\ufffd\nd\ufffd")
