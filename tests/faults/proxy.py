"""A TCP proxy in front of PostgreSQL that cuts connections after a commit and before its answer."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

DONE = b"COMMIT\x00"
"""The end of PostgreSQL's answer to a COMMIT."""


class Proxy:
    """Passes everything on, but for the answers to the commits whose numbers are in `cut`, counted from 1.

    delay_s: how long each answer takes. While `is_away`, connections are refused, and those that exist are reset.
    """

    def __init__(self, upstream: str, cut: Collection[int], delay_s: float = 0.0) -> None:
        self._upstream, self._cut, self.delay_s = upstream, cut, delay_s
        self.commits = self.cuts = self.refused = 0
        self.is_away = False
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://postgres@127.0.0.1:{self._listening.getsockname()[1]}/postgres"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.is_away:
                    self.refused += 1
                    _reset(client)
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                for pump, one, other in ((self._ask, client, server), (self._answer, server, client)):
                    threading.Thread(target=pump, args=(one, other), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while client.fileno() >= 0:  # a socket that a thread reads from is not really closed by another one
                if select.select([client], [], [], 0.02)[0]:
                    if not (data := client.recv(65536)):
                        break
                    server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                time.sleep(self.delay_s)
                if self.is_away or (DONE in data and self._is_cut()):
                    _reset(client)
                    break
                client.sendall(data)
        _close(client)
        _close(server)

    def _is_cut(self) -> bool:
        with self._lock:
            self.commits += 1
            found = self.commits in self._cut
            self.cuts += found
            return found


def _reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _close(one)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.close()


@contextmanager
def proxy(url: str, cut: Collection[int] = (), delay_s: float = 0.0) -> Iterator[Proxy]:
    """Yield a proxy in front of the server at this URL, which listens at a Unix socket."""
    parts = conninfo_to_dict(url)
    made = Proxy(f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}", cut, delay_s)
    try:
        yield made
    finally:
        made.close()
