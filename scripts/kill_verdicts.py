"""What must hold after an export that was killed or ran out of disk: judged with hashlib and safetensors' own reader."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import lockstep

MANIFEST, REPORT = "lockstep.manifest.json", "lockstep.report.json"
IGNORED = ("mtp.", "model.visual.")
LEFT_BEHIND = (".py", ".bin", ".safetensors", ".index.json")


def sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def state(folder: Path) -> dict[str, tuple[int, int, str | None]]:
    """Everything under `folder`: name -> mode, time of its last change, digest of its bytes."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        about = path.lstat()
        found[str(path.relative_to(folder))] = (about.st_mode, about.st_mtime_ns, sha256(path) if path.is_file() else None)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"the source was changed: {', '.join(names)}"] if names else []


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_seconds(v) for k, v in value.items() if k != "seconds"}
    return [_without_seconds(v) for v in value] if isinstance(value, list) else value


def _sealed(manifest: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "digest"}, indent=1, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256((text + "\n").encode()).hexdigest()


@dataclass(frozen=True)
class Whole:
    """An undisturbed export: all that another one with the same options must have too, which is everything but seconds."""

    sizes: dict[str, int]  # in the order in which they are written
    digests: dict[str, str]
    manifest: dict[str, Any]
    report: dict[str, Any]

    @classmethod
    def of(cls, out: Path) -> Whole:
        names = {path.name for path in out.iterdir()}
        weights = sorted(name for name in names if name.endswith(".safetensors"))
        last = [REPORT, MANIFEST]
        first = [*weights, "config.json", *(name for name in ("model.safetensors.index.json",) if name in names)]
        ordered = [*first, *sorted(names - {*first, *last}), *last]
        digests = {name: sha256(out / name) for name in ordered if name not in last}
        return cls({name: (out / name).stat().st_size for name in ordered}, digests, *cls._stated(out))

    @staticmethod
    def _stated(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The manifest but for its digest and the report's, and the report but for its seconds."""
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        files = {name: about for name, about in manifest["files"].items() if name != REPORT}
        stated = {**{k: v for k, v in manifest.items() if k != "digest"}, "files": files}
        return stated, _without_seconds(json.loads((out / REPORT).read_text(encoding="utf-8")))

    def lacks(self, out: Path) -> list[str]:
        """In what `out` is not this export."""
        names = {path.name for path in out.iterdir()}
        if names != self.sizes.keys():
            return [f"{out}: its files differ: {', '.join(sorted(names ^ self.sizes.keys()))}"]
        bad = [f"{out / name}: other bytes" for name, digest in self.digests.items() if sha256(out / name) != digest]
        try:
            manifest, report = self._stated(out)
            sealed = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
            if sealed["digest"] != _sealed(sealed):
                bad.append(f"{out / MANIFEST}: another digest than that of its content")
            if sealed["files"][REPORT]["sha256"] != sha256(out / REPORT):
                bad.append(f"{out / REPORT}: not as the manifest states")
        except (ValueError, KeyError) as error:
            return [*bad, f"{out}: its manifest or its report cannot be read: {error!r}"]
        if manifest != self.manifest:
            bad.append(f"{out / MANIFEST}: states something else")
        if report != self.report:
            bad.append(f"{out / REPORT}: says something else")
        return bad


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            assert name not in found, name
            found[name] = tensor
    return found


def _bytes(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def derived(source: Path, out: Path, dtype: str | None, keep: str) -> list[str]:
    """In what an undisturbed export is not its source, tensor for tensor and file for file."""
    bad = []
    expected, found = _tensors(source), _tensors(out)
    for name in list(expected):
        ignored = name.startswith(IGNORED)
        if ignored and keep == "text":
            del expected[name]
        elif dtype and not ignored:
            expected[name] = expected[name].to(getattr(torch, dtype))
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found or _bytes(expected[name]) != _bytes(found[name]):
            bad.append(f"{out}: {name} is not the source's")
    config = json.loads((source / "config.json").read_text())
    if dtype:
        config["text_config"]["dtype"] = dtype
    if json.loads((out / "config.json").read_text()) != config:
        bad.append(f"{out}: config.json is not the source's")
    for file in source.iterdir():
        if not file.is_file() or file.name == "config.json" or file.name.endswith(LEFT_BEHIND):
            continue
        if not (out / file.name).is_file() or sha256(out / file.name) != sha256(file):
            bad.append(f"{out}: {file.name} is not the source's")
    return bad


def accepted(folder: Path) -> bool:
    """Would `lockstep check` take it for an export?"""
    try:
        return bool(lockstep.check(folder)["exit_code"] == 0)
    except lockstep.LoadError:
        return False


def leftovers(out: Path) -> list[Path]:
    """What lies beside OUT under the name of an interrupted export to it."""
    ours = re.compile(re.escape(f".{out.name}.unfinished-") + r"\d+-\d+")
    return sorted(p for p in out.parent.iterdir() if ours.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def furthest(folder: Path, whole: Whole) -> str | None:
    """The last file of an unfinished export that was begun."""
    return next((name for name in reversed(whole.sizes) if (folder / name).exists()), None)


def judge(out: Path, before: str, whole: Whole) -> tuple[str, list[str]]:
    """What an export that was stopped left, in a word; and what about it is not as it must be.

    before: what was at OUT, `absent` or `empty`.
    """
    left = leftovers(out)
    kept = [folder for folder in left if accepted(folder)]
    bad: list[str] = []
    for folder in kept:
        if lacking := whole.lacks(folder):
            bad += [f"{folder}: is accepted, and unfinished", *lacking]
    unknown = sorted(p.name for p in out.parent.iterdir() if p != out and p not in left)
    if unknown:
        bad.append(f"beside OUT lies what nobody put there: {', '.join(unknown)}")
    word = "whole, not renamed" if kept else "unfinished" if left else "nothing"
    now = "absent" if not out.is_dir() else "there" if any(out.iterdir()) else "empty"
    if now == "there":
        word = "OUT"
        bad += whole.lacks(out) if accepted(out) else [f"{out}: is there, and not accepted"]
    elif now != before:
        bad.append(f"{out}: was {before}, is {now}")
    return word, bad
