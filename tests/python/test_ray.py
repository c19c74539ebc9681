"""--ray: the same findings from tasks on two local workers, also when one is killed; nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from conftest import make_twin
from lockstep import judging
from lockstep.matrix import matrix
from lockstep.native import InputError, LoadError, _core

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))


def wrong_epsilon(model: Any) -> None:
    model.model.layers[1].input_layernorm.eps = 1e-2


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(tmp_path_factory.mktemp("qwen"), "qwen3_5")


def wrong_trace(model: Path, folder: Path) -> Path:
    path = folder / "wrong.trace"
    lockstep.trace(path, model, points="all", patch=wrong_epsilon)
    return path


@pytest.fixture(scope="module")
def wrong(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wrong_trace(qwen, tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def findings(qwen: Path, wrong: Path) -> dict[str, Any]:
    """Without Ray."""
    return comparable(lockstep.bisect(qwen, str(wrong), thorough=True, threads=1).data)


def comparable(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in json.loads(json.dumps(data)).items() if key not in ("seconds", "cost")}


def of_ray(folder: str = "") -> dict[int, str]:
    """Processes of Ray that were started from `folder`'s process tree or by anybody: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"LOCKSTEP_TEST_MARK={folder}" in environment:
                found[int(entry.name)] = command
    return found


def started(mark: str, *arguments: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "LOCKSTEP_TEST_MARK": mark, "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [LOCKSTEP, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's children ignore it
    )


def wait_for(what: Any, seconds: float = 120) -> Any:
    """The first thing that `what()` finds. Fails the test if it never does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    return pytest.fail(f"nothing within {seconds} s")


def test_the_same_findings_and_two_workers(qwen: Path, wrong: Path, findings: dict[str, Any]) -> None:
    found = lockstep.bisect(qwen, str(wrong), thorough=True, threads=1, ray="local")
    assert comparable(found.data) == findings
    assert findings["faults"] and findings["power"] and findings["projections"]
    (worker,) = found.data["cost"]["workers"]  # both are of one node and one kind
    assert set(worker) == {"node", "cpu_capability"}


def with_a_worker_killed(mark: Path, exit_code: int, *arguments: Any) -> dict[str, Any]:
    """The JSON of a command over two local workers, one of which is killed in the middle of a task."""
    report = mark / "report.json"
    process = started(str(mark), *arguments, "--threads", 1, "--ray", "local", "--json", report)
    busy = wait_for(lambda: [pid for pid, command in of_ray(str(mark)).items() if command.startswith("ray::_run")])
    os.kill(busy[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=1200)
    assert process.returncode == exit_code, errors
    wait_for(lambda: not of_ray(str(mark)))
    return json.loads(report.read_text())


@pytest.mark.full
def test_a_killed_workers_task_runs_again(qwen: Path, wrong: Path, findings: dict[str, Any], tmp_path: Path) -> None:
    found = with_a_worker_killed(tmp_path, 1, "bisect", qwen, "--candidate", wrong, "--thorough")
    assert comparable(found) == findings


@pytest.mark.full
def test_the_embedded_checkpoint_with_and_without_a_killed_worker(embedded: Path, tmp_path: Path) -> None:
    """All default inputs, every hypothesis on every sublayer."""
    wrong = wrong_trace(embedded, tmp_path)
    alone = comparable(lockstep.bisect(embedded, str(wrong), thorough=True, threads=1).data)
    assert alone["exit_code"] == 1 and alone["power"]
    assert comparable(lockstep.bisect(embedded, str(wrong), thorough=True, threads=1, ray="local").data) == alone
    assert comparable(with_a_worker_killed(tmp_path, 1, "bisect", embedded, "--candidate", wrong, "--thorough")) == alone


@pytest.mark.full
def test_ctrl_c_leaves_nothing_running(qwen: Path, wrong: Path, tmp_path: Path) -> None:
    process = started(str(tmp_path), "bisect", qwen, "--candidate", wrong, "--thorough", "--threads", 1, "--ray", "local")
    wait_for(lambda: [pid for pid, command in of_ray(str(tmp_path)).items() if command.startswith("ray::_run")])
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, output + errors
    wait_for(lambda: not of_ray(str(tmp_path)))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """A cluster whose head runs no task; nodes are added by the test."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


def hub_of(folder: Path, model: Path) -> Path:
    """A hub cache that has `model` as guarded/twin at revision v1."""
    home = folder / "models--guarded--twin"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "v1").write_text("0" * 40)
    shutil.copytree(model, home / "snapshots" / ("0" * 40))
    return home / "snapshots" / ("0" * 40)


@pytest.mark.full
def test_a_node_with_other_weights_is_refused_by_name(
    qwen: Path, wrong: Path, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    hub_of(here, qwen)
    weights = hub_of(there, qwen) / "model.safetensors"
    cluster.add_node(num_cpus=1, env_vars={"HF_HUB_CACHE": str(here), "HF_HUB_OFFLINE": "1"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here))
    good = lockstep.bisect("guarded/twin", str(wrong), threads=1, ray=cluster.address, revision="v1")
    assert good.exit_code == 1
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(bytes(data))
    node = cluster.add_node(num_cpus=1, env_vars={"HF_HUB_CACHE": str(there), "HF_HUB_OFFLINE": "1"})
    with pytest.raises(LoadError) as refused:
        lockstep.bisect("guarded/twin", str(wrong), threads=1, ray=cluster.address, revision="v1")
    digest, other = (_core.digest(str(f / "models--guarded--twin" / "snapshots" / ("0" * 40))) for f in (here, there))
    assert str(refused.value).startswith(f"node {node.node_ip_address}: ")
    assert f"expected the checkpoint with digest {digest}, found {other}" in str(refused.value)
    data[-3] ^= 1
    weights.write_bytes(bytes(data))
    config = weights.with_name("config.json")
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    with pytest.raises(LoadError, match=f"node {node.node_ip_address}: .*: expected config.json with digest "):
        lockstep.bisect("guarded/twin", str(wrong), threads=1, ray=cluster.address, revision="v1")


def test_what_cannot_be_reached_or_run_is_said(qwen: Path, wrong: Path) -> None:
    with pytest.raises(InputError, match="--ray 127.0.0.1:1: .*refused"):
        lockstep.bisect(qwen, str(wrong), threads=1, ray="127.0.0.1:1")
    with pytest.raises(InputError, match="--ray nowhere: expected local, auto, or host:port"):
        lockstep.bisect(qwen, str(wrong), threads=1, ray="nowhere")
    with pytest.raises(InputError, match="a task wants 1000 threads, the cluster has .* CPUs; use --threads"):
        lockstep.bisect(qwen, str(wrong), threads=1000, ray="local")


def test_parts_cover_every_sublayer_once() -> None:
    for layers in (1, 4, 8, 24, 30):
        parts = judging._parts(layers)
        paths = [path for part in parts for path in part]
        assert len(paths) == len(set(paths)) == layers + 4
        assert paths[2:-2] == [f"model.layers.{i}" for i in range(layers)]


@pytest.mark.full
def test_the_same_matrix(qwen: Path, tmp_path: Path) -> None:
    pythons, ways = [sys.executable, Path(sys.executable).parents[1]], {"dtypes": ["float32", "bfloat16"], "threads": 1}
    alone = matrix(qwen, pythons, **ways)  # type: ignore[arg-type]
    assert alone["cost"]["workers"] == []
    found = matrix(qwen, pythons, ray="local", **ways)  # type: ignore[arg-type]
    assert comparable(found) == comparable(alone)
    assert len(found["cost"]["workers"]) == 1 and len(found["pairs"]) == 2
    environments = [x for python in pythons for x in ("--python", python)]
    killed = with_a_worker_killed(tmp_path, 0, "matrix", qwen, *environments, "--dtype", "float32", "--dtype", "bfloat16")
    assert comparable(killed) == comparable(alone)
