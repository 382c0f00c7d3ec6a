"""Connections between a group's nodes, by which ranks notice a cut link between two nodes that do not host rank 0.

Every rank is connected to rank 0, and the first rank of each node also to the driver. The link between two other nodes
can be cut while all these connections work, and the training code would then hang in a collective for a long time. So
the first rank of each node connects to the first rank of each node before it, except to rank 0. The kernels exchange
keepalive probes (see `tuner.trials.messages.keepalive`). Nothing else is sent over these connections.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from tuner.trials.messages.keepalive import SILENT_S, is_cut, keep_alive

_AGAIN_S = 1.0
_TRIES = 30  # attempts to connect to a rank that does not listen yet

Peer = tuple[int, str, int]
"""A rank, and the host and the port at which it listens."""


def accept(listener: socket.socket, token: bytes, count: int, timeout: float) -> threading.Thread:
    """Accept `count` connections in a thread, and keep them open until the other ends are closed.

    Args:
        listener: the socket at which this rank listens. It is closed when all have connected or the time is up.
        token: the secret of the group, which each connection sends first.
        count: the number of connections to expect.
        timeout: seconds to wait for them.
    """
    held: list[socket.socket] = []

    def take() -> None:
        deadline = time.monotonic() + timeout
        with listener:
            while len(held) < count and (left := deadline - time.monotonic()) > 0:
                listener.settimeout(left)
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(2.0)
                    if hmac.compare_digest(connection.recv(len(token), socket.MSG_WAITALL), token):
                        keep_alive(connection)
                        held.append(connection)
                    else:
                        connection.close()
        _until_closed({each.fileno(): each for each in held}, lambda connection, error: None)

    return _begin(take, "tuner-peers")


def watch(peers: Sequence[Peer], token: bytes, cut: Callable[[int, str], object]) -> threading.Thread:
    """Connect to other ranks in a thread, and call `cut` with the rank and host of each that can no longer be reached.

    A rank whose process has exited is not reported here: that is noticed elsewhere.
    """

    def hold() -> None:
        held: dict[int, socket.socket] = {}
        about: dict[socket.socket, Peer] = {}
        for peer in peers:
            try:
                connection = _connect(peer)
                connection.sendall(token)
            except OSError as error:
                if isinstance(error, TimeoutError) or is_cut(error):
                    cut(peer[0], peer[1])
                continue
            keep_alive(connection)
            connection.settimeout(None)
            held[connection.fileno()], about[connection] = connection, peer

        def closed(connection: socket.socket, error: OSError | None) -> None:
            if error is not None and is_cut(error):
                rank, host, _ = about[connection]
                cut(rank, host)

        _until_closed(held, closed)

    return _begin(hold, "tuner-peers")


def _begin(function: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


def _connect(peer: Peer) -> socket.socket:
    for _ in range(_TRIES):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(peer[1:], timeout=SILENT_S)
        time.sleep(_AGAIN_S)
    return socket.create_connection(peer[1:], timeout=SILENT_S)


def _until_closed(held: dict[int, socket.socket], closed: Callable[[socket.socket, OSError | None], None]) -> None:
    """Wait until all connections are closed or broken, and call `closed` for each, with the error if it is broken."""
    poll = select.poll()
    for number in held:
        poll.register(number, select.POLLIN)
    while held:
        for number, _ in poll.poll():
            connection = held.pop(number)
            poll.unregister(number)
            error = None
            try:
                connection.recv(1)  # the other end sends nothing: the connection has ended
            except OSError as found:
                error = found
            connection.close()
            closed(connection, error)
