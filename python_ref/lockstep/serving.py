"""The inspector's page, live on this machine: loopback only, a random token in the address, one run at a time."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import inspecting
from .native import Error
from .report import page

MOST_PROMPTS = 6
MOST_CHARACTERS = 20_000  # of one prompt
MOST_BYTES = 4 * MOST_PROMPTS * MOST_CHARACTERS  # of a request
LINGER, LINGER_BYTES = 2.0, 64 * MOST_BYTES  # seconds and bytes that a refused request's body is waited for


class Cancelled(BaseException):
    """The person pressed Cancel. Nobody on the way takes it for what a model raised."""


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Runs:
    """The one run that may be going on, in a thread of its own, and what came of the last one."""

    def __init__(self, models: Sequence[Any], names: Sequence[str], options: dict[str, Any]) -> None:
        self.models, self.names, self.options = models, names, options
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._closed = False
        self._number = 0
        self._text, self._steps, self._done_steps = "", 1, 0
        self._error: str | None = None
        self._result: dict[str, Any] | None = None

    def start(self, model: int, prompts: list[str]) -> int:
        """-> the run's number, by which it is asked for."""
        with self._lock:
            if self._closed:
                raise Refused(HTTPStatus.CONFLICT, "the server is ending")
            if self._alive():
                raise Refused(HTTPStatus.CONFLICT, "a run is going on; wait for it or cancel it")
            self._cancelled.clear()
            self._text, self._error, self._result = "starting", None, None
            self._steps, self._done_steps = 1, 0
            self._number += 1
            self._thread = threading.Thread(target=self._run, args=(model, prompts), daemon=True)
            self._thread.start()
            return self._number

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def cancel(self) -> None:
        self._cancelled.set()

    def state(self, run: int) -> dict[str, Any]:
        with self._lock:
            self._check(run)
            if self._alive():
                share = min(1.0, self._done_steps / self._steps)
                return {"text": self._text, "share": round(share, 3), "error": None, "done": False}
            error = self._error or (None if self._result is not None else "the run ended unexpectedly")
            return {"text": self._text, "share": 1, "error": error, "done": error is None}

    def result(self, run: int) -> dict[str, Any]:
        with self._lock:
            self._check(run)
            if self._alive() or self._result is None:
                raise Refused(HTTPStatus.NOT_FOUND, "there is no result: the run has not come to its end")
            return self._result

    def _check(self, run: int) -> None:
        if run != self._number or self._number == 0:
            raise Refused(HTTPStatus.NOT_FOUND, "no such run: another has begun since, or none has")

    def _run(self, model: int, prompts: list[str]) -> None:
        def passed() -> None:
            self._done_steps += 1
            if self._cancelled.is_set():
                raise Cancelled("cancelled")

        def say(text: str) -> None:
            self._text = text

        def opened(layers: int) -> None:
            self._steps = max(1, layers * len(prompts) * (1 + max(1, len(self.options.get("ablate") or ()))))

        try:
            found = inspecting.inspect(
                [self.models[model]], prompts, **self.options, digest=False, progress=say, passed=passed, opened=opened
            )
            found.data["models"][0]["name"] = self.names[model]  # as it was asked for, not the folder that it was found in
            self._result = found.data
        except Cancelled:
            self._error = "cancelled"
        except Error as error:
            self._error = str(error)
        except Exception as error:  # the page gets one sentence, whatever it was
            self._error = f"unexpected {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"

    def join(self) -> None:
        """Cancels what is going on and waits for it: a thread in C++ must not outlive the interpreter."""
        with self._lock:
            self._closed = True
        self.cancel()
        if self._thread is not None:
            self._thread.join()


class Server(ThreadingHTTPServer):
    """Bound to the loopback address. `url` is where the page is, token included."""

    daemon_threads = True

    def __init__(self, models: Sequence[Any], names: list[str], port: int, options: dict[str, Any]) -> None:
        self.token = secrets.token_urlsafe(24)
        self.runs = Runs(models, names, options)
        self.page = page.live_page(names, self.token, MOST_PROMPTS, MOST_CHARACTERS).encode()
        super().__init__(("127.0.0.1", port), _Handler)
        self.port = int(self.server_address[1])
        self.hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        if self.port == 80:  # browsers leave out the port that http has anyway
            self.hosts |= {"127.0.0.1", "localhost"}
        self.url = f"http://127.0.0.1:{self.port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that leaves in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30  # a peer that sends nothing does not hold its thread
    server_version, sys_version = "lockstep", ""

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token."""

    def _answered(self, act: Callable[[], None]) -> None:
        try:
            self._check()
            act()
        except Refused as refusal:
            self.close_connection = True  # a body that was not read would be taken for the next request
            self._refuse(refusal.status, str(refusal))
            self._linger()
        except (ConnectionError, TimeoutError):
            raise  # the peer is gone
        except Exception as error:
            self.close_connection = True
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}: {error}")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, "application/json", json.dumps({"error": reason}).encode())

    def _linger(self) -> None:
        """Reads on after a refusal. Who closes with bytes unread resets the connection, and a peer that is still sending
        never sees the answer (RFC 9112, 9.6)."""
        until, left = time.monotonic() + LINGER, LINGER_BYTES
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (rest := until - time.monotonic()) > 0:
                self.connection.settimeout(rest)
                received = len(self.connection.recv(1 << 16))
                if received == 0:
                    return
                left -= received

    def _check(self) -> None:
        """This machine's browser, at this address, with the token: nobody else."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "Host: expected this machine's loopback address")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.server.hosts}:
            raise Refused(HTTPStatus.FORBIDDEN, "Origin: expected this page's own")
        try:
            self.address = urlsplit(self.path)
            self.query = {name: values[0] for name, values in parse_qs(self.address.query).items()}
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "no such page") from None
        stated = self.headers.get("X-Lockstep-Token") or self.query.get("token", "")
        if not hmac.compare_digest(stated.encode("utf-8", "replace"), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "token: expected the one in the address that `lockstep inspect --serve` printed")

    def _get(self) -> None:
        path = self.address.path
        if path == "/":
            return self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        if path in ("/progress", "/result"):
            run = self.query.get("run", "")
            number = int(run) if run.isascii() and run.isdigit() and len(run) < 10 else 0
            return self._json(self.server.runs.state(number) if path == "/progress" else self.server.runs.result(number))
        raise Refused(HTTPStatus.NOT_FOUND, "no such page")

    def _post(self) -> None:
        path = self.address.path
        body = self._body()
        if path == "/cancel":
            self.server.runs.cancel()
            self._json({})
            return
        if path != "/run":
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")
        model, prompts = body.get("model"), body.get("prompts")
        if not isinstance(model, int) or isinstance(model, bool) or not 0 <= model < len(self.server.runs.models):
            raise Refused(HTTPStatus.BAD_REQUEST, f"model: expected 0 to {len(self.server.runs.models) - 1}")
        if not isinstance(prompts, list) or not all(isinstance(p, str) for p in prompts):
            raise Refused(HTTPStatus.BAD_REQUEST, "prompts: expected a list of texts")
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise Refused(HTTPStatus.BAD_REQUEST, f"prompts: expected 1 to {MOST_PROMPTS}, found {len(prompts)}")
        longest = max(len(p) for p in prompts)
        if longest > MOST_CHARACTERS:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a prompt of {longest} characters: expected at most {MOST_CHARACTERS}",
            )
        self._json({"run": self.server.runs.start(model, prompts)})

    def _body(self) -> dict[str, Any]:
        if self.headers.get("Transfer-Encoding"):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        stated = self.headers.get("Content-Length", "")
        if not (stated.isascii() and stated.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(stated) > 9 or int(stated) > MOST_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{stated[:12]} bytes: expected at most {MOST_BYTES}")
        if self.headers.get("Content-Type", "").split(";")[0].strip() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        try:
            body = json.loads(self.rfile.read(int(stated)))
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected JSON") from None
        if not isinstance(body, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected an object")
        return body

    def _json(self, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._send(HTTPStatus.OK, "application/json", text.encode("utf-8", "replace"))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", page.policy(live=True)),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Connection", "close" if self.close_connection else "keep-alive"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
