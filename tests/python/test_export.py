"""Export: only what was verified, byte for byte, whole or not at all; check names whatever is not as stated."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lockstep
from conftest import Tensors, edited, make_twin
from lockstep import LoadError, exporting, verification
from lockstep.native import InputError, _core

MANIFEST, REPORT, WEIGHTS = "lockstep.manifest.json", "lockstep.report.json", "model.safetensors"
LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
NATIVE = str(Path(sys.executable).with_name("lockstep-native"))


def contents(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def bad_rows(data: dict[str, Any]) -> list[str]:
    assert data["exit_code"] == int(bool([r for k in ("files", "tensors") for r in data[k] if r["verdict"] != "identical"]))
    return [r["name"] for k in ("files", "tensors") for r in data[k] if r["verdict"] != "identical"]


def raw(file: Path) -> dict[str, bytes]:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    start = 8 + size
    return {
        n: data[start + t["data_offsets"][0] : start + t["data_offsets"][1]] for n, t in header.items() if n != "__metadata__"
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3.5 twin with tensors of two dtypes, ignored ones, files beside it, and things that do not belong in an export."""
    folder = tmp_path_factory.mktemp("source") / "a source"
    made = make_twin(tmp_path_factory.mktemp("twin"), "qwen3_5", torch.bfloat16)

    def more(tensors: Tensors) -> None:
        for name in list(tensors):
            if name.endswith("A_log"):
                tensors[name] = tensors[name].float()
        tensors["mtp.norm.weight"] = torch.randn(32).half()
        tensors["mtp.ids"] = torch.arange(7)

    edited(made, folder, more)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "LICENSE").write_text("as it was")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / ".git").mkdir()
    return folder


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "an export"
    before = contents_of_files(source)
    found = lockstep.export(source, out)
    assert found and found.data["verdict"] == "identical"
    assert contents_of_files(source) == before
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    return out


def contents_of_files(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}


def test_every_tensor_has_the_sources_bytes(source: Path, exported: Path) -> None:
    assert raw(exported / WEIGHTS) == raw(source / WEIGHTS)
    assert (exported / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (exported / "LICENSE").read_text() == "as it was"


def test_the_writer_has_the_official_writers_bytes(source: Path, exported: Path, tmp_path: Path) -> None:
    save_file(load_file(source / WEIGHTS), tmp_path / "official", metadata={"format": "pt"})
    assert (exported / WEIGHTS).read_bytes() == (tmp_path / "official").read_bytes()


def test_code_pickles_and_folders_stay_behind_and_are_listed(exported: Path) -> None:
    manifest = json.loads((exported / MANIFEST).read_text())
    assert manifest["left_out"] == {"files": [".git/", "modeling_evil.py", "pytorch_model.bin"], "tensors": []}
    assert sorted(contents(exported)) == sorted([*manifest["files"], MANIFEST])


def test_the_manifest_states_everything(source: Path, exported: Path) -> None:
    manifest = json.loads((exported / MANIFEST).read_text())
    for name, tensor in manifest["tensors"].items():
        data = raw(source / WEIGHTS)[name]
        assert tensor["sha256"] == tensor["source"]["sha256"] == hashlib.sha256(data).hexdigest()
        assert tensor["source"]["file_sha256"] == hashlib.sha256((source / WEIGHTS).read_bytes()).hexdigest()
        assert (tensor["conversion"], tensor["changed"]) == ("none", 0)
    verified = manifest["verification"]
    assert verified["verdict"] == "identical"
    assert verified["tolerances"] == {"atol": 1e-5, "rtol": 0.0, "accept": None}
    assert {"len2", "len130", "pad2"} <= {f["name"] for f in verified["inputs"]}
    assert manifest["producer"]["torch"] == torch.__version__
    report = json.loads((exported / REPORT).read_text())
    assert report["source"]["exit_code"] == report["written"]["exit_code"] == 0
    assert len(report["written"]["points"]) == verified["points"]


def test_hugging_face_loads_it_with_the_same_logits(source: Path, exported: Path) -> None:
    import transformers

    logits = []
    for folder in (source, exported):
        model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not [k for k in info["unexpected_keys"] if not k.startswith("mtp.")]
        with torch.no_grad():
            logits.append(model(torch.arange(1, 40)[None]).logits)
    assert _core.same_bits(*logits)
    with safe_open(exported / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_same_input_gives_the_same_bytes(source: Path, exported: Path, tmp_path: Path) -> None:
    lockstep.export(source, tmp_path / "again")
    one, other = contents(exported), contents(tmp_path / "again")
    assert [name for name in one if one[name] != other[name]] in ([REPORT, MANIFEST], [MANIFEST, REPORT])  # it states seconds
    tensors = [json.loads((f / MANIFEST).read_text())["tensors"] for f in (exported, tmp_path / "again")]
    assert tensors[0] == tensors[1]


def test_an_embedded_export_of_the_command_line(embedded: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "r.json"
    done = subprocess.run(
        [LOCKSTEP, "export", str(embedded), str(out), "--json", str(report), "--quiet"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    digest = json.loads(report.read_text())["digest"]
    assert done.stdout == f"exported: {out}, 108 tensors, {size_of(out):,} bytes, identical; digest {digest}\n"
    done = subprocess.run([LOCKSTEP, "check", str(out), "--digest", digest, "--quiet"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.startswith("passes: ")) == (0, True)
    again = subprocess.run([NATIVE, "check", str(out), "--digest", digest], capture_output=True, text=True)
    assert again.stdout == done.stdout
    done = subprocess.run([LOCKSTEP, "check", str(out), "--digest", "0" * 64], capture_output=True, text=True)
    assert done.returncode == 1 and f"expected {'0' * 64}, found {digest}" in done.stdout


def size_of(out: Path) -> int:
    return sum(p.stat().st_size for p in out.iterdir() if p.name != MANIFEST)


# check


def test_check_passes_with_and_without_the_source(source: Path, exported: Path) -> None:
    assert bad_rows(lockstep.check(exported)) == []
    assert bad_rows(lockstep.check(exported, source=source)) == []


@pytest.mark.parametrize("where", [0, 0.5, -1])
def test_a_flipped_bit_in_any_file_is_named(exported: Path, tmp_path: Path, where: float) -> None:
    for name in contents(exported):
        folder = shutil.copytree(exported, tmp_path / name / "x")
        data = bytearray((folder / name).read_bytes())
        data[-1 if where == -1 else int(where * len(data))] ^= 1
        (folder / name).write_bytes(data)
        assert bad_rows(lockstep.check(folder))[0] == name


def test_a_flipped_bit_names_its_tensor(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "x")
    wanted = "model.layers.2.mlp.up_proj.weight"
    change(folder / WEIGHTS, lambda t: t[wanted].view(torch.int16)[3, 4].bitwise_xor_(1))
    assert bad_rows(lockstep.check(folder)) == [WEIGHTS, wanted]


def change(file: Path, edit: Callable[[Tensors], Any]) -> None:
    tensors = {name: t.clone() for name, t in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


FAULTS: list[tuple[str, Callable[[Path], Any], list[str]]] = [
    ("added file", lambda f: (f / "notes.txt").write_text("x"), ["notes.txt"]),
    ("added folder", lambda f: (f / "more").mkdir(), ["more"]),
    ("hidden file", lambda f: (f / ".hidden").write_text("x"), [".hidden"]),
    ("removed file", lambda f: (f / "LICENSE").unlink(), ["LICENSE"]),
    ("swapped tensors", lambda f: change(f / WEIGHTS, swap), [WEIGHTS, "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"]),
    ("added tensor", lambda f: change(f / WEIGHTS, lambda t: t.update(extra=torch.ones(2))), [WEIGHTS, "extra"]),
    ("cut weights", lambda f: os.truncate(f / WEIGHTS, 100), [WEIGHTS]),
    ("edited manifest", lambda f: edit_manifest(f, lambda m: m["verification"].update(verdict="perfect"), False), [MANIFEST]),
]  # fmt: skip


def swap(tensors: Tensors) -> None:
    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    tensors[up], tensors[gate] = tensors[gate], tensors[up]


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], Any], resign: bool) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest)
    text = lambda m: json.dumps(m, indent=1, sort_keys=True, ensure_ascii=False) + "\n"  # noqa: E731
    if resign:
        manifest.pop("digest")
        manifest["digest"] = hashlib.sha256(text(manifest).encode()).hexdigest()
    (folder / MANIFEST).write_text(text(manifest))


@pytest.mark.parametrize(("edit", "named"), [(e, n) for _, e, n in FAULTS], ids=[name for name, _, _ in FAULTS])
def test_what_is_not_as_stated_is_named(exported: Path, tmp_path: Path, edit: Callable[[Path], Any], named: list[str]) -> None:
    folder = shutil.copytree(exported, tmp_path / "x")
    edit(folder)
    found = bad_rows(lockstep.check(folder))
    assert found[: len(named)] == named
    assert found == named or named == [WEIGHTS]


def test_who_signs_an_edited_manifest_again_is_seen_by_the_digest(exported: Path, tmp_path: Path) -> None:
    digest = json.loads((exported / MANIFEST).read_text())["digest"]
    folder = shutil.copytree(exported, tmp_path / "x")
    edit_manifest(folder, lambda m: m["verification"].update(verdict="perfect"), True)
    assert bad_rows(lockstep.check(folder)) == []
    assert bad_rows(lockstep.check(folder, digest=digest)) == [f"{MANIFEST} digest"]
    assert bad_rows(lockstep.check(exported, digest=digest)) == []


def test_a_manifest_of_another_version_is_not_judged(exported: Path, tmp_path: Path) -> None:
    """Also one that nobody signed as this version would: how another one signs is not known."""
    folder = shutil.copytree(exported, tmp_path / "x")
    edit_manifest(folder, lambda m: m.update(format_version=2), False)
    with pytest.raises(LoadError, match=r"/format_version: 2 is not known \(known: 1\); use the lockstep that wrote it"):
        lockstep.check(folder)


def test_a_link_to_nothing_stays_behind(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "x")
    (folder / "gone.json").symlink_to("nowhere")
    assert lockstep.export(folder, tmp_path / "out")
    assert "gone.json" in json.loads((tmp_path / "out" / MANIFEST).read_text())["left_out"]["files"]
    assert not bad_rows(lockstep.check(tmp_path / "out", source=folder))


def test_a_stated_file_that_the_source_never_had_is_named(source: Path, exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    (copy / "more.jinja").write_bytes(b"{{ 1 }}")
    stated = {"bytes": 7, "from": "source", "sha256": hashlib.sha256(b"{{ 1 }}").hexdigest()}
    edit_manifest(copy, lambda m: m["files"].update({"more.jinja": stated}), True)
    assert exporting.check(copy)["exit_code"] == 0
    found = exporting.check(copy, source=source)
    assert (found["exit_code"], bad_rows(found)) == (1, ["more.jinja of the source"])


@pytest.mark.parametrize(
    "edit, named",
    [
        (lambda m: m["source"].update(digest="0" * 64), "the source's tensors together"),
        (lambda m: m["source"]["files"]["config.json"].update(sha256="0" * 64), "the source's config.json"),
        (lambda m: m["source"]["files"].update(more={"bytes": 1, "sha256": "0" * 64}), "the source's more"),
        (lambda m: m["source"]["files"].pop("LICENSE"), "the source's LICENSE"),
        (lambda m: m["tensors"]["lm_head.weight"].update(changed=3), "the origin of lm_head.weight"),
        (lambda m: m["tensors"]["lm_head.weight"].update(conversion="exact"), "the origin of lm_head.weight"),
        (lambda m: m["tensors"]["lm_head.weight"]["source"].update(dtype="F16"), "the origin of lm_head.weight"),
        (lambda m: m["files"]["LICENSE"].update({"from": "weights"}), "the origin of LICENSE"),
        (lambda m: m["left_out"]["files"].append("README.md"), "files left out"),
    ],
)
def test_what_a_manifest_says_of_its_source_is_held_against_it(
    source: Path, exported: Path, tmp_path: Path, edit: Callable[[Any], Any], named: str
) -> None:
    """Whoever signs a manifest again can state anything of the source; with the source there, it is seen."""
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    edit_manifest(copy, edit, True)
    assert exporting.check(copy)["exit_code"] == 0
    assert bad_rows(exporting.check(copy, source=source)) == [named]


def test_an_export_of_another_source_is_seen(source: Path, exported: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    other = edited(source, tmp_path / "other", lambda t: t.update({name: t[name] + 1}))
    together = ["the source's model.safetensors", "the source's tensors together", "files left out"]
    assert bad_rows(lockstep.check(exported, source=other)) == [*together, f"{name} of the source", f"the origin of {name}"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(format_version=2), "/format_version: 2 is not known (known: 1); use the lockstep that wrote it"),
        (lambda m: m["tensors"]["mtp.ids"].pop("sha256"), "/tensors/mtp.ids/sha256: expected string, found nothing"),
        (
            lambda m: m["tensors"]["mtp.ids"]["source"].update(file_sha256="0" * 64),
            "/tensors/mtp.ids/source: not a file that /source/files states",
        ),
        (lambda m: m.pop("files"), " /files: expected object, found nothing"),
        (lambda m: m.update(more=1), " /more: unknown key"),
        (lambda m: m["options"].update(keep="lie"), "/options/keep: expected all or text"),
        (lambda m: m["left_out"].update(tensors=["lie"]), '/left_out/tensors: "lie" was not left out'),
        (
            lambda m: m["tensors"]["mtp.ids"]["source"].update(sha256="lie"),
            "not converted, and yet other bytes than its source's",
        ),
    ],
)
def test_a_manifest_of_another_kind_is_refused(exported: Path, tmp_path: Path, edit: Callable[[Any], Any], message: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "x")
    edit_manifest(folder, edit, True)
    with pytest.raises(LoadError) as caught:
        lockstep.check(folder)
    assert str(caught.value).endswith(message)


def test_a_folder_that_is_no_export_is_refused(source: Path) -> None:
    with pytest.raises(LoadError, match="no lockstep.manifest.json; expected a folder that `lockstep export` made"):
        lockstep.check(source)


# Options


def test_text_leaves_out_what_is_ignored_and_lists_it(source: Path, tmp_path: Path) -> None:
    lockstep.export(source, tmp_path / "x", keep="text")
    manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
    assert manifest["left_out"]["tensors"] == ["mtp.ids", "mtp.norm.weight"]
    kept = raw(source / WEIGHTS)
    assert raw(tmp_path / "x" / WEIGHTS) == {n: b for n, b in kept.items() if not n.startswith("mtp.")}
    assert bad_rows(lockstep.check(tmp_path / "x", source=source)) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_conversion_is_one_rounding_and_is_stated(source: Path, tmp_path: Path, dtype: str) -> None:
    lockstep.export(source, tmp_path / "x", dtype=dtype)
    before, after = load_file(source / WEIGHTS), load_file(tmp_path / "x" / WEIGHTS)
    manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
    for name, tensor in before.items():
        expected = tensor if name.startswith("mtp.") else tensor.to(getattr(torch, dtype))
        assert _core.same_bits(after[name], expected), name
        entry = manifest["tensors"][name]
        if tensor.dtype == expected.dtype:
            assert entry["conversion"] == "none"
        else:
            assert entry["conversion"] == ("exact" if dtype == "float32" else "nearest_even")
            assert entry["changed"] == int((tensor.double() != expected.double()).sum())
    assert json.loads((tmp_path / "x" / "config.json").read_text())["dtype"] == dtype
    assert bad_rows(lockstep.check(tmp_path / "x", source=source)) == []
    assert lockstep.verify(tmp_path / "x", ids="1,2,3").verdict == "identical"


def test_bfloat16_is_rounded_to_nearest_even(llama: Path, tmp_path: Path) -> None:
    """Halfway cases both ways, and none of them through float16."""
    name = "model.layers.0.mlp.up_proj.weight"
    halves = torch.tensor([0x3F808000, 0x3F818000, 0x3F818001, 0x33808000], dtype=torch.int32).view(torch.float32)

    def plant(tensors: Tensors) -> None:
        tensors[name][0, :4] = halves

    folder = edited(llama, tmp_path / "s", plant)
    lockstep.export(folder, tmp_path / "x", dtype="bfloat16")
    stored = load_file(tmp_path / "x" / WEIGHTS)[name][0, :4].view(torch.int16).tolist()
    assert stored == [0x3F80, 0x3F82, 0x3F82, 0x3380]


def test_float64_is_rounded_once(llama: Path, tmp_path: Path) -> None:
    """Just over a tie of the 16 bits, by less than float32 can see; and ties themselves."""
    name = "model.layers.0.mlp.up_proj.weight"

    def plant(tensors: Tensors) -> None:
        t = tensors[name] = tensors[name].double()
        t[0, :6] = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11 + 2**-40, -1 - 2**-8 - 2**-40, 1 + 2**-8 - 2**-40],
                                dtype=torch.float64)  # fmt: skip

    folder = edited(llama, tmp_path / "s", plant)
    for dtype, expected in (
        ("bfloat16", [1 + 2**-7, 1, 1 + 2**-6, 1, -1 - 2**-7, 1]),
        ("float16", [1 + 2**-8, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-10, -1 - 2**-8, 1 + 2**-8]),
    ):
        job = _core.Export(_core.Mirror.open(str(folder)), str(tmp_path / dtype), dtype)
        job.write()
        job.reread()
        assert load_file(Path(job.folder) / WEIGHTS)[name][0, :6].tolist() == expected
        job.discard()


def test_what_a_user_called_so_is_not_removed(llama: Path, tmp_path: Path) -> None:
    (tmp_path / ".x.unfinished-notes").mkdir()
    lockstep.export(llama, tmp_path / "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.unfinished-notes", "x"]


def test_nothing_that_is_read_is_written_over(source: Path, exported: Path, tmp_path: Path) -> None:
    before = contents_of_files(source), contents(exported)
    for arguments in (
        ["check", exported, "--source", source, "--json", source / "config.json"],
        ["check", exported, "--json", exported / "config.json"],
        ["export", source, tmp_path / "x", "--json", tmp_path / "x" / "r.json"],
        ["export", source, tmp_path / "x", "--json", tmp_path / "x"],
    ):
        for command in (LOCKSTEP, NATIVE) if arguments[0] == "check" else (LOCKSTEP,):
            done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
            assert done.returncode == 2 and "it would overwrite what is read" in done.stderr, arguments
    assert (contents_of_files(source), contents(exported)) == before
    piped = subprocess.run([NATIVE, "check", exported, "--json", "/dev/stdout", "--quiet"], capture_output=True, text=True)
    assert json.loads(piped.stdout[: piped.stdout.rindex("}") + 1])["exit_code"] == 0  # a pipe is written to as it is
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    (tmp_path / "real.json").write_text("")
    for command in (LOCKSTEP, NATIVE):
        assert (
            subprocess.run(
                [command, "check", exported, "--json", tmp_path / "link.json", "--quiet"], capture_output=True
            ).returncode
            == 0
        )
        assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "real.json").read_text())["command"] == "check"
        (tmp_path / "real.json").write_text("")


@pytest.mark.parametrize("digest", ["", "abc", "G" * 64])
def test_a_digest_that_is_none_is_bad_usage(exported: Path, digest: str) -> None:
    with pytest.raises(InputError, match="expected the 64 hexadecimal digits that the export printed"):
        lockstep.check(exported, digest=digest)


def test_odd_names_are_named(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "x")
    (folder / "loop").symlink_to(folder / "loop")
    with open(os.fsencode(folder) + b"/\xff", "w"):
        pass
    assert bad_rows(lockstep.check(folder)) == ["loop", "\ufffd"]


def test_a_dtype_that_makes_a_tensor_infinite_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.2.self_attn.q_proj.weight"]

    def plant(tensors: Tensors) -> None:
        for name in names:
            tensors[name][0, 0] = 70000

    folder = edited(llama, tmp_path / "s", plant)
    with pytest.raises(LoadError) as caught:
        lockstep.export(folder, tmp_path / "x", dtype="float16")
    for name in names:
        assert f"{name}: 1 of its elements would be infinite in float16; leave it in float32" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_shards_and_their_index(source: Path, tmp_path: Path) -> None:
    import transformers

    lockstep.export(source, tmp_path / "x", max_shard_size="20KB")
    index = json.loads((tmp_path / "x" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)] and len(files) > 2
    assert {n: b for f in files for n, b in raw(tmp_path / "x" / f).items()} == raw(source / WEIGHTS)
    assert index["metadata"]["total_size"] == sum(map(len, raw(source / WEIGHTS).values()))
    for file in files:
        tensors = raw(tmp_path / "x" / file)
        assert sum(map(len, tensors.values())) <= 20000 or len(tensors) == 1
    transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path / "x")
    # What has shards keeps as many; and whatever may stand in the index is seen.
    lockstep.export(tmp_path / "x", tmp_path / "y")
    assert contents(tmp_path / "x").keys() == contents(tmp_path / "y").keys()
    assert bad_rows(lockstep.check(tmp_path / "y", source=tmp_path / "x")) == []


def test_sizes() -> None:
    for text, size in {"5GB": 5 * 10**9, "500MB": 5 * 10**8, "1GiB": 2**30, "4096": 4096, "3kb": 3000}.items():
        assert _core.parse_size(text) == size
    for text in ("", "0", "GB", "-5GB", "5 GB", "5XB", "1.5GB", "99999999999999999999", "99999999TB"):
        with pytest.raises(InputError, match="expected a size like"):
            _core.parse_size(text)


@pytest.mark.parametrize("stored", [False, True])
def test_a_tied_head_is_written_if_and_only_if_the_source_has_it(tmp_path: Path, stored: bool) -> None:
    tied = make_twin(tmp_path / "twin", "llama", tie_word_embeddings=True)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    source = edited(tied, tmp_path / "s", lambda t: t.update({head: t[embedding].clone()}) if stored else None)
    lockstep.export(source, tmp_path / "x")
    assert (head in raw(tmp_path / "x" / WEIGHTS)) is stored


# Whole or not at all


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("full", "is not empty; name a new folder, or remove it"),
        ("source", "is the source itself; name another folder"),
        ("source/", "is the source itself; name another folder"),
        ("source/inside", "lies inside of the source"),
        ("through/inside", "lies inside of the source"),
        ("link", "is a link; name the folder itself"),
        ("dangling", "is a link; name the folder itself"),
        ("file", "is there and no folder"),
        ("nowhere/x", "does not exist"),
        ("", "expected the name of a new folder"),
    ],
)
def test_where_an_export_may_not_be(llama: Path, tmp_path: Path, place: str, message: str) -> None:
    source = edited(llama, tmp_path / "source")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for name, target in (("link", "full"), ("dangling", "absent"), ("through", "source")):
        (tmp_path / name).symlink_to(tmp_path / target)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(LoadError, match=message):
        lockstep.export(source, os.path.join(tmp_path, place) if place else "")
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_an_empty_folder_is_taken(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert lockstep.export(llama, tmp_path / "x")
    assert bad_rows(lockstep.check(tmp_path / "x")) == []


def test_a_model_that_deviates_is_not_exported(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(model: Any) -> None:
        model.model.norm.variance_epsilon *= 1.5

    monkeypatch.setattr(exporting.verification, "verify", functools.partial(verification.verify, patch=fault))
    found = lockstep.export(llama, tmp_path / "x")
    assert found.exit_code == 1 and not found and found.digest is None
    reason = exporting.refusal(found.data)
    assert reason is not None and reason.startswith("the source checkpoint does not pass: model.norm.output")
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_verified_again(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def verify(folder: Path, **options: Any) -> verification.Report:
        seen.append(Path(folder))
        if len(seen) == 2:  # as if a disk had changed it after it was read back
            name = "model.layers.0.mlp.up_proj.weight"
            change(Path(folder) / WEIGHTS, lambda t: t[name].fill_(float("nan")))
        return verification.verify(folder, **options)

    monkeypatch.setattr(exporting, "verification", type("v", (), {**vars(verification), "verify": staticmethod(verify)}))
    found = lockstep.export(llama, tmp_path / "x")
    assert seen[0] == llama and seen[1].parent == tmp_path
    assert found.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_what_the_inputs_do_not_exercise_is_not_exported(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting.verification, "verify", functools.partial(verification.verify, ids="1"))
    found = lockstep.export(llama, tmp_path / "x")
    assert found.exit_code == 2
    reason = exporting.refusal(found.data)
    assert reason is not None and "what nobody ran is not exported as verified" in reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["source: ", "written: ", "writing the manifest"])
def test_ctrl_c_leaves_nothing(llama: Path, tmp_path: Path, moment: str) -> None:
    def interrupt(text: str) -> None:
        if text.startswith(moment):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lockstep.export(llama, tmp_path / "x", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_removed_and_a_running_one_is_not(llama: Path, tmp_path: Path) -> None:
    script = """
import sys, lockstep
def wait(text):
    if text == "writing the manifest":
        print("now", flush=True)
        sys.stdin.read()
lockstep.export(sys.argv[1], sys.argv[2], progress=wait)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(llama), str(tmp_path / "x")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout and child.stdout.readline() == b"now\n"
    assert [p.name.startswith(".x.unfinished-") for p in tmp_path.iterdir()] == [True]
    with pytest.raises(LoadError, match="another process writes it just now; wait for it"):
        lockstep.export(llama, tmp_path / "x")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    notes: list[str] = []
    assert lockstep.export(llama, tmp_path / "x", note=notes.append)
    assert notes == [f"removed what 1 interrupted export to {tmp_path / 'x'} left"]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("limit", [1000, 30000, 60000])
def test_a_full_disk_leaves_nothing(llama: Path, tmp_path: Path, limit: int) -> None:
    done = subprocess.run(
        [LOCKSTEP, "export", str(llama), str(tmp_path / "x"), "--quiet"], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
