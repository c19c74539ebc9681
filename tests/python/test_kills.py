"""scripts/kills: its judges reject what they must, and a planted fault turns a run red."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import kill_verdicts  # noqa: E402
import kills  # noqa: E402
from kill_verdicts import MANIFEST, REPORT, Whole, changes, derived, judge, state  # noqa: E402

Stopped = tuple[Path, Whole]  # an export as it was not stopped, and what it must be


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kills.make_source(tmp_path_factory.mktemp("kills") / "source", 1)


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "x"
    assert lockstep.export(source, out, dtype="float16", max_shard_size="3MB")
    return out


@pytest.fixture
def stopped(exported: Path, tmp_path: Path) -> Stopped:
    return shutil.copytree(exported, tmp_path / "place" / "x"), Whole.of(exported)


def seal(out: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits the manifest and gives it the digest of what it says now, and each file's."""
    manifest = json.loads((out / MANIFEST).read_text())
    for name, about in manifest["files"].items():
        about.update(bytes=(out / name).stat().st_size, sha256=kill_verdicts.sha256(out / name))
    edit(manifest)
    manifest["digest"] = kill_verdicts._sealed(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def test_a_whole_export_is_not_blamed(stopped: Stopped, source: Path) -> None:
    out, whole = stopped
    assert judge(out, "absent", whole) == ("OUT", [])
    assert derived(source, out, "float16", "all") == []
    out.rename(out.parent / ".x.unfinished-1-0")
    assert judge(out, "absent", whole) == ("whole, not renamed", [])


def test_a_cut_file_is_rejected_although_the_manifest_was_sealed_again(stopped: Stopped) -> None:
    out, whole = stopped
    weights = next(name for name in whole.sizes if name.endswith(".safetensors"))
    os.truncate(out / weights, whole.sizes[weights] - 2)
    seal(out, lambda manifest: None)
    assert judge(out, "absent", whole) == ("OUT", [f"{out}: is there, and not accepted"])
    assert f"{out / weights}: other bytes" in whole.lacks(out)


def test_what_check_accepts_and_is_not_whole_is_rejected(stopped: Stopped) -> None:
    """A file gone, and a manifest that never had it: check has nothing to say, the judge has."""
    out, whole = stopped
    (out / "LICENSE").unlink()
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["files"]["LICENSE"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    seal(out, lambda manifest: None)
    assert kill_verdicts.accepted(out)
    assert judge(out, "absent", whole) == ("OUT", [f"{out}: its files differ: LICENSE"])
    left = out.rename(out.parent / ".x.unfinished-1-0")
    assert judge(out, "absent", whole)[1] == [f"{left}: is accepted, and unfinished", f"{left}: its files differ: LICENSE"]


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda out: (out / "LICENSE").write_text("as it is"), "LICENSE: other bytes"),
        (lambda out: seal(out, lambda m: m["verification"].update(verdict="rounding")), f"{MANIFEST}: states something else"),
        (lambda out: (out / MANIFEST).write_text((out / MANIFEST).read_text()[:-9]), "cannot be read"),
        (lambda out: rewrite(out / REPORT, lambda r: r.update(exit_code=1)), f"{REPORT}: says something else"),
        (lambda out: rewrite(out / REPORT, lambda r: r["seconds"].update(total=0)), f"{REPORT}: not as the manifest states"),
        (lambda out: rewrite(out / MANIFEST, lambda m: m.update(digest="0" * 64)), "another digest than that of its content"),
    ],
)
def test_every_file_is_looked_at(stopped: Stopped, edit: Callable[[Path], Any], found: str) -> None:
    out, whole = stopped
    edit(out)
    assert any(found in problem for problem in whole.lacks(out))


def rewrite(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


def test_other_weights_than_the_sources_are_seen(stopped: Stopped, source: Path) -> None:
    out, _ = stopped
    assert f"{out}: model.language_model.norm.weight is not the source's" in derived(source, out, "bfloat16", "all")
    assert f"{out}: mtp.norm.weight is not the source's" in derived(source, out, "float16", "text")
    (out / "tokenizer.json").write_text("{}")
    assert derived(source, out, "float16", "all") == [f"{out}: tokenizer.json is not the source's"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / "LICENSE").write_text("as it is"),
        lambda folder: (folder / "LICENSE").write_bytes((folder / "LICENSE").read_bytes()),
        lambda folder: (folder / "LICENSE").chmod(0o600),
        lambda folder: (folder / "LICENSE").unlink(),
        lambda folder: (folder / ".new").mkdir(),
    ],
)
def test_a_changed_source_is_seen(source: Path, tmp_path: Path, edit: Callable[[Path], Any]) -> None:
    folder = shutil.copytree(source, tmp_path / "source")
    before = state(folder)
    assert changes(before, state(folder)) == []
    edit(folder)
    assert len(changes(before, state(folder))) == 1


@pytest.mark.parametrize("name", ["x.tmp", ".x.unfinished-notes", ".y.unfinished-1-0"])
def test_an_unknown_leftover_is_seen(exported: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / ".x.unfinished-12-0").mkdir()
    assert judge(tmp_path / "x", "absent", Whole.of(exported)) == ("unfinished", [])
    (tmp_path / name).mkdir()
    assert judge(tmp_path / "x", "absent", Whole.of(exported))[1] == [f"beside OUT lies what nobody put there: {name}"]


@pytest.mark.parametrize(("before", "now"), [("absent", "empty"), ("empty", "absent")])
def test_what_was_at_out_stays(exported: Path, tmp_path: Path, before: str, now: str) -> None:
    if now == "empty":
        (tmp_path / "x").mkdir()
    assert judge(tmp_path / "x", now, Whole.of(exported)) == ("nothing", [])
    assert judge(tmp_path / "x", before, Whole.of(exported))[1] == [f"{tmp_path / 'x'}: was {before}, is {now}"]


def test_what_no_try_fell_into_is_not_called_tested() -> None:
    everywhere = [{"what": "kill", "phase": phase} for phase in kills.PHASES]
    assert kills.not_tested(everywhere) == []
    assert kills.not_tested(everywhere[:3]) == ["reading back", "manifest and rename"]
    missed = {"what": "disk", "aim": "manifest", "file": "report"}
    assert kills.not_tested([*everywhere, missed]) == ["manifest"]
    assert kills.not_tested([*everywhere, missed, {"what": "disk", "aim": "any", "file": "manifest"}]) == []


# Whole runs, in processes of their own: the script forks, and torch's threads would not survive that here.


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path])}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


def test_a_short_run(tmp_path: Path) -> None:
    done = run(tmp_path, str(SCRIPTS / "kills.py"), "--kills", "4", "--disks", "2", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\n4 kills and 2 full disks: nothing half-written was accepted\n")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["phase"] for row in rows[:3]] == ["writing", "reading back", "manifest and rename"]
    assert "removed" in rows[3] and {row["file"] for row in rows[4:]} <= {"weights", "manifest", "report"}
    assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]


PLANTED = """
import sys
from pathlib import Path
import kill_exports, kills
from lockstep import LoadError
real = kill_exports.exporting.export
def half(source, out, *, progress, **options):
    def say(text):
        if out.name == "an export" and text.startswith("reading back"):
            out.mkdir(exist_ok=True)
            (out / "model.safetensors").touch()
        progress(text)
    return real(source, out, progress=say, **options)
def nameless(source, out, **options):
    try:
        return real(source, out, **options)
    except LoadError:
        raise LoadError("No space left on device") from None
for fault, arguments in ((half, ["--kills", "3", "--disks", "0"]), (nameless, ["--kills", "0", "--disks", "1"])):
    kill_exports.exporting.export = fault
    sys.argv = ["kills", *arguments]
    print("exit", kills.main())
"""


def test_a_planted_fault_turns_a_run_red_and_its_folder_is_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", PLANTED)
    assert done.stdout.count("exit 1\n") == 2, done.stdout + done.stderr
    assert "an export: is there, and not accepted" in done.stdout
    assert "a full disk was to be one error that names its file; it was 2, LoadError: No space left on device" in done.stdout
    kept = [line.removeprefix("kept: ") for line in done.stdout.splitlines() if line.startswith("kept: ")]
    assert len(kept) == 2 and (Path(kept[0]) / "place" / "an export" / "model.safetensors").is_file()
