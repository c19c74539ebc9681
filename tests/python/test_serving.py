"""The live page's server, asked without a browser: who may ask, what is bounded, one run at a time, cancelled runs."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lockstep import inspecting
from lockstep.serving import MOST_BYTES, MOST_CHARACTERS, MOST_PROMPTS, Server

Answer = tuple[int, dict[str, str], bytes]


# What `lockstep inspect --serve` hands on.
OPTIONS: dict[str, Any] = {
    "chat": False, "dtype": "float32", "attn": "sdpa", "source": "mirror", "target": None, "ablate": (), "token": -1, "threads": None,
}  # fmt: skip


@pytest.fixture(params=["mirror", "hf"])
def server(request: pytest.FixtureRequest, embedded: Path) -> Iterator[Server]:
    with Server([embedded], ["embedded"], 0, {**OPTIONS, "source": request.param}) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()
        made.runs.join()


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Headers by name, `_` for `-`; the token unless another is given; None leaves one out."""
    stated: dict[str, str] = {"X-Lockstep-Token": server.token}
    if body is not None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        stated["Content-Type"] = "application/json"
    stated.update({name.replace("_", "-"): value for name, value in headers.items()})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, {k: v for k, v in stated.items() if v != "-"})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def finished(server: Server, started: Answer) -> dict[str, Any]:
    """The state at the end of the run that was started so."""
    assert started[0] == 200, started
    number = json.loads(started[2])["run"]
    for _ in range(600):
        state = json.loads(ask(server, "GET", f"/progress?run={number}")[2])
        if state["done"] or state["error"]:
            return state
        time.sleep(0.05)
    raise AssertionError("the run did not end")


def run(server: Server, *prompts: str, model: int = 0) -> Answer:
    return ask(server, "POST", "/run", {"model": model, "prompts": list(prompts)})


def test_a_run_and_a_second_prompt(server: Server) -> None:
    status, headers, body = ask(server, "GET", f"/?token={server.token}", X_Lockstep_Token="-")
    assert status == 200 and body.startswith(b"<!doctype html>")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "connect-src 'self'" in policy and "unsafe" not in policy
    for number in ("", "0", "1", "x", "\u00b2", "9" * 30):
        assert ask(server, "GET", f"/result?run={quote(number)}")[0] == 404
    for number, prompts in enumerate((["Permission is"], ["Permission is", "THE SOFTWARE"]), 1):
        assert finished(server, run(server, *prompts))["done"]
        told = json.loads(ask(server, "GET", f"/result?run={number}")[2])
        assert [p["text"] for p in told["models"][0]["prompts"]] == prompts
    assert ask(server, "GET", "/result?run=1")[0] == 404  # another has begun since: it is not handed out in its place


def test_only_the_loopback_address(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError), socket.create_connection((address, server.port), timeout=2):
            pass


def test_who_may_not_ask(server: Server) -> None:
    good = {"model": 0, "prompts": ["a"]}
    port = server.port
    for headers in (
        {"X_Lockstep_Token": "-"},
        {"X_Lockstep_Token": "x" + server.token[1:]},
        {"X_Lockstep_Token": "\u00e9"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{port}"},
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": f"127.0.0.1:{port + 1}"},
    ):
        for method, path, body in (
            ("GET", "/", None),
            ("GET", "/progress", None),
            ("POST", "/run", good),
            ("POST", "/cancel", {}),
        ):
            status, _, answer = ask(server, method, path, body, **headers)
            assert status == 403 and "error" in json.loads(answer), (headers, path)
    assert ask(server, "GET", "/progress?run=1")[0] == 404  # nothing has run
    for host in ("127.0.0.1", "localhost"):
        assert ask(server, "GET", "/", Host=f"{host}:{port}", Origin=f"http://{host}:{port}")[0] == 200


def test_what_is_refused(server: Server) -> None:
    for body, status in (
        ({"model": 0, "prompts": ["a" * 1_000_000]}, 413),
        ({"model": 0, "prompts": ["a" * (MOST_CHARACTERS + 1)]}, 413),
        ({"model": 1, "prompts": ["a"]}, 400),
        ({"model": True, "prompts": ["a"]}, 400),
        ({"model": "0", "prompts": ["a"]}, 400),
        ({"model": 0, "prompts": []}, 400),
        ({"model": 0, "prompts": ["a"] * (MOST_PROMPTS + 1)}, 400),
        ({"model": 0, "prompts": "a"}, 400),
        ({"model": 0, "prompts": [1]}, 400),
        ([], 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
    ):
        found, _, answer = ask(server, "POST", "/run", body)
        assert found == status and json.loads(answer)["error"], body if len(str(body)) < 100 else "long"
    assert ask(server, "POST", "/run", b"{}", Content_Type="text/plain")[0] == 415
    assert ask(server, "POST", "/run", b"0\r\n\r\n", Transfer_Encoding="chunked")[0] == 411
    assert ask(server, "POST", "/run", b"", Content_Length=str(MOST_BYTES + 1))[0] == 413
    assert ask(server, "POST", "/other", {})[0] == 404 and ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "PUT", "/run", {})[0] == 501
    # The server is as it was.
    assert finished(server, run(server, "Permission is"))["done"]


def test_a_peer_that_is_still_sending_sees_why_it_is_refused(server: Server) -> None:
    """More than the sockets hold, piece by piece: a connection closed at once would be reset under it."""
    piece, pieces = b"a" * (1 << 16), 160
    head = (
        f"POST /run HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nX-Lockstep-Token: {server.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(piece) * pieces}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        peer.sendall(head.encode())
        peer.sendall(piece)
        assert peer.recv(12) == b"HTTP/1.1 413"  # answered before the rest has come
        for _ in range(pieces - 1):
            peer.sendall(piece)
        answer = b""
        while more := peer.recv(1 << 16):
            answer += more
        assert b"bytes: expected at most" in answer


def test_peers_that_speak_no_http_are_no_news(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    token = f"X-Lockstep-Token: {server.token}\r\nContent-Type: application/json\r\n"
    for text, status in (
        (f"GET http://[x HTTP/1.1\r\n{host}\r\n", b" 400 "),
        (f"POST /run HTTP/1.1\r\n{host}{token}Content-Length: \u00b2\r\n\r\n", b" 411 "),
        ("\x16\x03\x01 nonsense\r\n\r\n", b"400"),
        ("GET / HT", None),
        ("", None),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as peer:
            peer.sendall(text.encode("latin-1"))
            if status is None:  # gone in the middle, with a reset
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                assert status in peer.recv(200)
    assert finished(server, run(server, "Permission is"))["done"]
    assert capfd.readouterr().err == ""


def test_a_prompt_that_cannot_run_is_said(server: Server) -> None:
    for prompt, message in (("", "empty prompt"), ("a b " * 4000, "every number is told per token")):
        started = run(server, prompt)
        state = finished(server, started)
        assert message in state["error"] and not state["done"]
        assert ask(server, "GET", f"/result?run={json.loads(started[2])['run']}")[0] == 404


def slowed(inspect: Any) -> Any:
    """The same with a fifth of a second in each layer."""

    def slow(*args: Any, passed: Any, **kwargs: Any) -> Any:
        def waits() -> None:
            time.sleep(0.2)
            passed()

        return inspect(*args, passed=waits, **kwargs)

    return slow


def test_one_run_at_a_time_and_cancel(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "inspect", slowed(inspecting.inspect))
    started = run(server, "Permission is")
    status, _, answer = run(server, "THE")
    assert status == 409 and "a run is going on" in json.loads(answer)["error"]
    assert ask(server, "POST", "/cancel", {})[0] == 200
    assert finished(server, started)["error"] == "cancelled"
    monkeypatch.undo()
    assert finished(server, run(server, "THE"))["done"]  # at once: who is told of the end may begin again


def test_text_that_is_markup_comes_back_as_text(server: Server) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    assert finished(server, run(server, evil))["done"]
    _, headers, body = ask(server, "GET", "/result?run=1")
    assert headers["Content-Type"] == "application/json" and headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body)["models"][0]["prompts"][0]["text"] == evil


def test_the_command_serves_until_ctrl_c(embedded: Path) -> None:
    command = [str(Path(sys.executable).with_name("lockstep")), "inspect", str(embedded), "--serve"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", url)
        assert found, url
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", f"/?token={found[2]}")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert "stopped" in process.stderr.read()


def test_a_port_that_is_taken(server: Server, embedded: Path) -> None:
    command = [str(Path(sys.executable).with_name("lockstep")), "inspect", str(embedded), "--serve", "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "cannot be listened on" in done.stderr and "Traceback" not in done.stderr
