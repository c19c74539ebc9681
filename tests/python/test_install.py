"""What cmake installs: a program that needs no Python, and a library that another project's tests link, as the README shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lockstep
from conftest import Tensors, edited, make_twin

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
TORCH = Path(torch.__file__).parent
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")


def blocks(section: str, language: str) -> list[str]:
    """The code of a section of the README in one language."""
    text = README[README.index(f"\n## {section}\n") :]
    return re.findall(rf"^```{language}\n(.*?)^```", text[: text.index("\n## ", 4)], re.M | re.S)


def shell(script: str, folder: Path, **names: Path) -> subprocess.CompletedProcess[str]:
    for name, path in names.items():
        script = script.replace(name, shlex.quote(str(path)))
    return subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two components, installed by the README's own commands, with the build's folder in place of its name."""
    prefix = tmp_path_factory.mktemp("installed") / "lockstep"
    (native,) = blocks("Without Python", "sh")
    assert "`cmake --install build --prefix DIR --component development`" in README
    for line in (native, native.replace("native", "development")):
        done = shell(line.replace("install build", f"install '{BUILD}'"), prefix.parent, DIR=prefix)
        assert done.returncode == 0, done.stderr
    return prefix


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MODEL and its golden trace."""
    folder = tmp_path_factory.mktemp("guarded")
    make_twin(folder / "MODEL", "qwen3_5")
    lockstep.trace(folder / "golden.trace", folder / "MODEL", golden=True)
    return folder


def test_every_library_is_in_the_folder(installed: Path) -> None:
    listed = subprocess.run(["ldd", installed / "bin" / "lockstep-native"], capture_output=True, text=True, check=True).stdout
    paths = {line.split()[0]: line.split("=>")[1].split()[0] for line in listed.splitlines() if "=>" in line}
    assert {"libtorch_cpu.so", "libc10.so", "libonig.so.5", "libsentencepiece.so.0"} <= set(paths)
    elsewhere = [name for name, path in paths.items() if Path(path).parent.resolve() != (installed / "lib").resolve()]
    assert set(elsewhere) <= set(C_LIBRARY)


def test_replays_where_nothing_else_is(installed: Path, embedded: Path, tmp_path: Path) -> None:
    """A root that holds the folder, the C library and a golden trace: no Python, no shell, no other library."""
    jail = tmp_path / "jail"
    for folder in ("proc", "tmp", "lib64", "lib/x86_64-linux-gnu"):
        (jail / folder).mkdir(parents=True)
    shutil.copytree(installed, jail / "lockstep", copy_function=os.link)
    for name in C_LIBRARY:
        shutil.copy(f"/lib/x86_64-linux-gnu/{name}", jail / "lib/x86_64-linux-gnu")
    shutil.copy("/lib64/ld-linux-x86-64.so.2", jail / "lib64")
    lockstep.trace(jail / "golden.trace", embedded, golden=True)
    enter = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        f"--mount-proc={jail / 'proc'}",
        "chroot",
        jail,
    ]
    program = [*enter, "/lockstep/bin/lockstep-native"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *arguments], env={"PATH": "/usr/sbin:/usr/bin"}, capture_output=True, text=True)

    version = run("--help")
    if "unshare failed" in version.stderr:
        pytest.skip(f"no new root can be made here: {version.stderr.strip()}")
    good = run("verify", "--golden", "/golden.trace")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.splitlines()[-1].startswith("passes: identical")

    def swapped(tensors: Tensors) -> None:
        tensors["model.layers.2.mlp.up_proj.weight"][5, 7] += 1e-3

    edited(embedded, jail / "faulty", swapped)
    red = run("verify", "/faulty", "--golden", "/golden.trace")
    assert red.returncode == 1
    assert "model.layers.2.mlp.up_proj.weight: reference" in red.stdout
    assert "first model.layers.2.mlp.output" in red.stdout


def test_the_sample_project_is_built_and_run(installed: Path, guarded: Path, tmp_path: Path) -> None:
    section = "In your own C++ tests"
    ((cmake,), (code,), (commands,)) = (blocks(section, language) for language in ("cmake", "cpp", "sh"))
    assert code.count("TEST(") == 2
    project = tmp_path / "a project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(cmake)
    (project / "engine_test.cpp").write_text(code)
    (project / "build").mkdir()
    shutil.copytree(guarded / "MODEL", project / "build" / "MODEL")
    shutil.copy(guarded / "golden.trace", project / "build")
    # The sample is compiled once; only what it reads changes below.
    done = shell(commands.replace("DIR=DIR", "DIR=" + shlex.quote(str(installed))), project, TORCH=TORCH)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100% tests passed, 0 tests failed out of 1" in done.stdout

    def test() -> tuple[int, str]:
        found = subprocess.run([project / "build" / "engine_test"], cwd=project / "build", capture_output=True, text=True)
        return found.returncode, found.stdout

    code_, out = test()
    assert (code_, "[  PASSED  ] 2 tests" in out) == (0, True)

    def fault(tensors: Tensors) -> None:
        tensors["model.layers.3.mlp.down_proj.weight"][1, 2] += 0.01

    edited(guarded / "MODEL", project / "build" / "MODEL", fault)
    code_, out = test()
    assert code_ == 1
    assert "model.layers.3.mlp.output (len65): deviates" in out
    assert "model.layers.3.mlp.down_proj.weight: reference" in out
    (project / "build" / "golden.trace").write_bytes(b"")
    code_, out = test()
    assert code_ == 1
    assert "golden.trace" in out


def test_another_libtorch_is_refused_by_name(installed: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "other"
    config = prefix / "lib" / "cmake" / "lockstep" / "lockstepConfig.cmake"
    shutil.copytree(installed / "lib" / "cmake", prefix / "lib" / "cmake")
    text = config.read_text()
    assert f'LOCKSTEP_TORCH_VERSION "{torch.__version__.split("+")[0]}"' in text
    config.write_text(text.replace('LOCKSTEP_TORCH_VERSION "2', 'LOCKSTEP_TORCH_VERSION "1'))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES C CXX)\nfind_package(lockstep REQUIRED)\n"
    )
    done = shell(f"cmake -S . -B build -Dlockstep_DIR='{config.parent}' -DTorch_DIR='{TORCH}/share/cmake/Torch'", tmp_path)
    assert done.returncode == 1
    assert "lockstep: expected LibTorch 1.13.0, which it was built with, found 2.13.0" in " ".join(done.stderr.split())


def test_the_wheel_holds_the_python_component_alone() -> None:
    """What carries to other machines is not in the environment a second time."""
    package = Path(lockstep.__file__).parent
    assert not list(package.parent.glob("**/lockstepConfig.cmake"))
    assert not (Path(sys.prefix) / "share" / "lockstep").exists()
