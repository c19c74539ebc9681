"""`--ray`: independent tasks on Ray, on this machine's cores or a cluster's; without it the same tasks run here in turn.

A task is given the checkpoint by its path or hub id, which each node resolves for itself; its digest is compared before the
task counts. Threads are pinned, traces go through the object store, a lost worker's tasks run again, and nothing runs on
after the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from . import hub, traces
from .engines.hf import trace_of
from .native import Error, InputError, LoadError, _core

Task = Callable[..., Any]  # (folder, *arguments) -> what can be pickled


class Here:
    """No Ray: tasks run in this process, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[dict[str, Any]] = []

    def share(self, trace: _core.Trace) -> tuple[Any, ...]:
        return (trace,)

    def share_bytes(self, data: bytes) -> tuple[Any, ...]:
        return ("", data)

    def map(self, task: Task, arguments: Sequence[tuple[Any, ...]], say: Callable[[int], None]) -> list[Any]:
        results = []
        for i, given in enumerate(arguments):
            say(i)
            results.append(task(self.folder, *given))
        return results


class Cluster:
    """Tasks on Ray. model, revision: what each node resolves; digest: what it must be there."""

    def __init__(self, ray: Any, model: str, revision: str | None, digest: str, threads: int) -> None:
        self.ray, self.model, self.revision, self.digest, self.threads = ray, model, revision, digest, threads
        self.seen: list[dict[str, Any]] = []  # the workers' nodes and CPU capabilities
        self._run = ray.remote(num_cpus=threads, max_retries=5)(_run)

    def share(self, trace: _core.Trace) -> tuple[Any, ...]:
        """A trace, once in the object store: what stands in its place among a task's arguments."""
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            path = Path(scratch) / "shared.trace"
            traces.write(trace, path, traces.manifest(trace, {"engine": "shared"}, None, self.threads))
            return self.share_bytes(path.read_bytes())

    def share_bytes(self, data: bytes) -> tuple[Any, ...]:
        return (uuid.uuid4().hex, self.ray.put(data))

    def map(self, task: Task, arguments: Sequence[tuple[Any, ...]], say: Callable[[int], None]) -> list[Any]:
        """The results in the order of the arguments, as they come. raises what a task raised"""
        of_all = (task, self.model, self.revision, self.digest, self.threads)
        pending = {self._run.remote(*of_all, *given): i for i, given in enumerate(arguments)}
        results: list[Any] = [None] * len(arguments)
        say(0)
        while pending:
            (done,), _ = self.ray.wait(list(pending), num_returns=1)
            index = pending.pop(done)
            try:
                worker, outcome, error = self.ray.get(done)
            except self.ray.exceptions.RayError as lost:
                reason = (str(lost).strip().splitlines() or [type(lost).__name__])[0]
                raise InputError(f"--ray: a task could not be finished: {reason}") from lost
            if error is not None:
                kind, text = error
                raise {"LoadError": LoadError, "InputError": InputError}.get(kind, Error)(text)
            if worker not in self.seen:
                self.seen.append(worker)
            results[index] = outcome
            say(len(arguments) - len(pending))
        return results


Workers = Here | Cluster


@contextlib.contextmanager
def workers(
    address: str | None, model: str | os.PathLike[str] | None, folder: Path, digest: str, threads: int
) -> Iterator[Workers]:
    """Where tasks run. address: None, `local`, or a Ray cluster's. raises InputError where Ray is not there"""
    if address is None:
        yield Here(folder)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--ray: Ray is not installed; install lockstep[ray]") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    try:
        if address == "local":
            ray.init(num_cpus=len(os.sched_getaffinity(0)), address="local", **options)
        else:
            options.pop("include_dashboard")
            _reach(address)
            ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OverflowError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"--ray {address}: {reason}") from error
    try:
        room = ray.cluster_resources().get("CPU", 0)
        if room < threads:
            raise InputError(f"--ray {address}: a task wants {threads} threads, the cluster has {room:g} CPUs; use --threads")
        # A folder is the same path on every node; a hub id is looked up on each.
        digest += _config_digest(folder)
        if model is None or Path(model).is_dir():
            yield Cluster(ray, os.fspath(folder.resolve()), None, digest, threads)
        else:  # by the commit that was found here, whatever a branch's name means there
            yield Cluster(ray, os.fspath(model), folder.name, digest, threads)
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself tries for minutes. raises OSError or ValueError"""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not colon or not port.isdigit():
            raise ValueError("expected local, auto, or host:port")
        socket.create_connection((host, int(port)), timeout=10).close()


def _run(
    task: Task, model: str, revision: str | None, digest: str, threads: int, *arguments: Any
) -> tuple[dict[str, Any], Any, tuple[str, str] | None]:
    """In a worker -> (who it was, the task's result, its error in words)."""
    import ray

    worker = {"node": ray.util.get_node_ip_address(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    torch.set_num_threads(threads)
    try:
        folder = _checked(model, revision, digest, worker["node"])
        return worker, task(folder, *arguments), None
    except Error as error:
        kind = "LoadError" if isinstance(error, LoadError) else "InputError" if isinstance(error, InputError) else "Error"
        return worker, None, (kind, str(error))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return worker, None, ("Error", f"--ray: a task on {worker['node']}: unexpected {type(error).__name__}: {first}")


_digests: dict[tuple[Any, ...], str] = {}


def _checked(model: str, revision: str | None, digest: str, node: str) -> Path:
    """The checkpoint on this node, if it is the driver's, bit for bit. raises LoadError"""
    folder = hub.resolve(model, revision)
    files = sorted(folder.glob("*.safetensors")) + [folder / "config.json"]
    state = tuple((str(f), (s := f.stat()).st_size, s.st_mtime_ns, s.st_ino) for f in files if f.exists())
    if state not in _digests:
        _digests[state] = _core.Mirror.open(str(folder)).digest() + _config_digest(folder)
    for what, part in (("the checkpoint", slice(0, 64)), ("config.json", slice(64, None))):
        if _digests[state][part] != digest[part]:
            raise LoadError(f"node {node}: {folder}: expected {what} with digest {digest[part]}, found {_digests[state][part]}")
    return folder


def _config_digest(folder: Path) -> str:
    """A checkpoint's digest is over its tensors; what is computed with them says the config."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


_opened: dict[str, _core.Trace] = {}


def received(shared: Sequence[Any]) -> _core.Trace:
    """The trace that share() stands for; a worker writes it to disk once, and maps it."""
    if len(shared) == 1:
        trace: _core.Trace = shared[0]
        return trace
    key, data = shared
    if not key or key not in _opened:
        trace = trace_of(data)
        if not key:
            return trace
        _opened[key] = trace
    return _opened[key]


def threads_of(threads: int | None) -> int:
    return threads or len(os.sched_getaffinity(0))
