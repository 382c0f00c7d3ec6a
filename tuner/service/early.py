"""Answer health checks while the service loads its modules, which takes a second or two.

The port is open from the start. `/healthz` answers that the process is alive; all other paths answer that it is not ready yet.
This module is loaded before the command line and the settings, which take much longer to load. So it imports little, and neither
asyncio nor json.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from tuner.errors import SpecError

PATIENCE_S = 2.0
"""Seconds that a client may take to send a request."""

MOST_BYTES = 16_384
"""The maximum size of a request head, in bytes."""

MOST_CLIENTS = 100
"""The maximum number of open connections. If another one arrives, the oldest is closed."""

DEFAULTS = {"host": "127.0.0.1", "port": "8000"}
"""The defaults of these settings. A test checks that they match `Settings`."""

HOST_ADVICE = (
    "--host (TUNER_HOST) is a name or an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
)

STARTING = "the service is starting"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this host and port. Raise SpecError if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        if isinstance(error, OSError) and (isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL):
            raise SpecError(f"cannot listen on {host}: {error.strerror}; {HOST_ADVICE}", "/host") from error
        why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise SpecError(f"port {port} of {host} cannot be used: {why}; --port 0 picks a free one", "/port") from error
    return listening


class Early:
    """Answers requests on a socket, in a thread, until `end` is called. The socket then stays open for the service."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.listening = listen(host, port)
        self._told, self._tell = socket.socketpair()
        self._clients: dict[socket.socket, _Client] = {}
        self._thread = threading.Thread(target=self._run, name="early", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop answering. Close accepted connections, and leave those that were not accepted yet to the service."""
        self._tell.close()
        self._thread.join()

    def close(self) -> None:
        """Stop answering, and close the socket."""
        self.end()
        self.listening.close()

    def _run(self) -> None:
        self.listening.setblocking(False)
        with contextlib.ExitStack() as stack, self._told, selectors.DefaultSelector() as waiting:
            waiting.register(self._told, selectors.EVENT_READ)
            waiting.register(self.listening, selectors.EVENT_READ)
            stack.callback(self._close_clients)
            while True:
                for key, _ in waiting.select(PATIENCE_S if self._clients else None):
                    if key.fileobj is self._told:
                        return
                    if key.fileobj is self.listening:
                        self._accept(waiting)
                    elif (client := self._clients.get(key.data)) is not None and not client.read():
                        self._drop(key.data, waiting)
                while self._clients and next(iter(self._clients.values())).until <= time.monotonic():
                    self._drop(next(iter(self._clients)), waiting)

    def _accept(self, waiting: selectors.BaseSelector) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            self._drop(next(iter(self._clients)), waiting)
        try:
            connection, _ = self.listening.accept()
        except OSError:  # the client has gone away, or the process has too many open files
            time.sleep(0.01)
            return
        connection.setblocking(False)
        self._clients[connection] = _Client(connection)
        waiting.register(connection, selectors.EVENT_READ, connection)

    def _close_clients(self) -> None:
        for connection in self._clients:
            connection.close()

    def _drop(self, connection: socket.socket, waiting: selectors.BaseSelector) -> None:
        del self._clients[connection]
        waiting.unregister(connection)
        connection.close()


class _Client:
    """A connection, and what was read from it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + PATIENCE_S
        self._head: bytes | None = b""  # None: the request is answered

    def read(self) -> bool:
        """Read what has arrived, and answer if it is a whole head. Return whether to read more."""
        try:
            data = self.connection.recv(MOST_BYTES)
            if self._head is None:
                return bool(data)  # reads a body without using it: closing with unread bytes would discard the answer
            self._head += data
            if b"\r\n\r\n" not in self._head:
                return bool(data) and len(self._head) < MOST_BYTES
            first, fields = self._head.split(b"\r\n", 1)
            method, target, _ = first.split(b" ")
            self._head = None
            # A browser that opens a page asks for HTML; other clients do not.
            page = method == b"GET" and b"text/html" in fields
            self.connection.sendall(_response(method == b"HEAD", target.split(b"?")[0], page))
            self.connection.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):  # the client has gone away, or this is not HTTP
            return False
        return True


@contextlib.contextmanager
def guessed(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[Early | None]:
    """Yield an `Early` on the port that `tuner serve` will probably use, before its options and settings are read.

    `answering` takes it over if the guess was right. Yield None if the command will not serve or the port cannot be used;
    the command then says why.

    Args:
        arguments: those of the command `tuner`.
        environ: the environment variables.
    """
    early: Early | None = None
    if (found := guess(arguments, environ)) is not None:
        with contextlib.suppress(SpecError):
            early = Early(*found)
    try:
        yield early
    finally:
        if early is not None:
            early.close()


def guess(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and the port that these arguments and variables name, or None if they do not name a port to open."""
    if arguments[:1] != ["serve"] or {"--stop", "--help"} & {*arguments}:
        return None
    found: dict[str, str] = {}
    for name, default in DEFAULTS.items():
        found[name] = environ.get(f"TUNER_{name.upper()}", "").strip() or default
        for number, argument in enumerate(arguments):
            if argument == f"--{name}":
                found[name] = "".join(arguments[number + 1 : number + 2])
            elif argument.startswith(f"--{name}="):
                found[name] = argument.partition("=")[2]
    is_port = found["port"].isdecimal() and len(found["port"]) <= len("65535")
    return (found["host"], int(found["port"])) if found["host"] and is_port else None


@contextlib.contextmanager
def answering(host: str, port: int, begun: Early | None = None) -> Iterator[Early]:
    """Yield an `Early` that answers on this port until the block ends. Raise SpecError if the port cannot be used.

    Args:
        host: the address to listen on.
        port: the port; 0 picks a free one.
        begun: an `Early` that already answers. It is used if it is on this host and port, and closed otherwise.
    """
    if begun is not None and (begun.host, begun.port) == (host, port):
        yield begun
        return
    if begun is not None:
        begun.close()
    early = Early(host, port)
    try:
        yield early
    finally:
        early.close()


def _response(only_head: bool, path: bytes, page: bool = False) -> bytes:
    """Return the response to a request of this path. If `page` is true, it is a page that reloads itself."""
    kind, more = "application/json", ""
    if path == b"/healthz":
        status, body = "200 OK", '{"status": "ok"}'
    elif path == b"/readyz":
        status, body = "503 Service Unavailable", f'{{"status": "unready", "problems": ["{STARTING}"]}}'
    elif page:
        status, kind, more = "503 Service Unavailable", "text/html; charset=utf-8", "Retry-After: 1\r\n"
        body = (
            "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=1>"
            "<meta name=color-scheme content='light dark'><title>Tuner</title><p>The service is starting..."
        )
    else:
        status, kind, more = "503 Service Unavailable", "application/problem+json", "Retry-After: 1\r\n"
        body = (
            '{"type": "about:blank", "title": "Service Unavailable", "status": 503, '
            f'"detail": "{STARTING}", "errors": []}}'
        )
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
        "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return (head + ("" if only_head else body)).encode()
