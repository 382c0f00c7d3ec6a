"""The channel between rank 0 and the other ranks of its group: sockets that outlive trials and process groups.

Rank 0 sends the other ranks the rendezvous port of each trial, and the driver's verdicts. The other ranks send rank 0
what it needs to commit a checkpoint that several ranks have saved. The channel does not use torch.distributed, because
user code can destroy or break process groups, and because trials without PyTorch have no process group. If the process
at the other end of a connection dies, `PeerLost` is raised at once.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import select
import socket
import stat
import struct
import threading
import time
from typing import Any

from tuner.trials.messages.keepalive import is_cut, keep_alive

_HEADER = struct.Struct("!I")


class PeerLost(ConnectionError):
    """The process at the other end of a connection has exited, or its machine cannot be reached.

    cut: True if the machine cannot be reached.
    """

    def __init__(self, message: str, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class Link:
    """Sends and receives framed messages over a connected socket. Only one thread may receive at a time.

    large_messages: True if messages may fill the buffers of the other side.
    """

    def __init__(self, connection: socket.socket, large_messages: bool = False) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection, large_messages)
        connection.setblocking(True)
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._sending:
                self._socket.sendall(_HEADER.pack(len(body)) + body)
        except OSError as error:
            raise PeerLost(f"the peer is gone: {error}", is_cut(error)) from None

    def receive(self, timeout: float | None = None) -> Any:
        """Return the next message. Raise TimeoutError if no message begins to arrive within `timeout` seconds."""
        if timeout is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise TimeoutError
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size))
        return pickle.loads(self._exactly(size))

    def is_open(self) -> bool:
        """Return False if code of this process has closed the file descriptor, or given its number to another file."""
        try:
            return stat.S_ISSOCK(os.fstat(self._socket.fileno()).st_mode)
        except OSError:
            return False

    def close(self) -> None:
        # A thread that waits for a message is woken by shutdown, but not by close.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(size - len(parts))
            except OSError as error:
                raise PeerLost(f"the peer is gone: {error}", is_cut(error)) from None
            if not part:
                raise PeerLost("the peer is gone")
            parts += part
        return bytes(parts)


class ChannelServer:
    """Rank 0's end of the channel. It listens at `address` once it is created. `accept` waits for the other ranks."""

    def __init__(self, ip: str, token: bytes) -> None:
        self._token = token
        self._listener = socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.verdicts: dict[int, Link] = {}
        self.notes: dict[int, Link] = {}
        self.asking = threading.Lock()  # held from a question over `notes` until all ranks have answered it

    def accept(self, world_size: int, timeout: float) -> None:
        """Wait until every other rank has opened its two connections, then stop listening. Raise PeerLost if one does not."""
        deadline = time.monotonic() + timeout
        while len(self.verdicts) + len(self.notes) < 2 * (world_size - 1):
            self._listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, world_size)) - (self.verdicts.keys() & self.notes.keys()))
                raise PeerLost(f"ranks {missing} did not connect within {timeout:.0f} s") from None
            greeting = _greeting(connection, deadline)
            if greeting is None or not hmac.compare_digest(greeting[:16], self._token):
                connection.close()
                continue
            purpose, rank = struct.unpack("!BI", greeting[16:])
            (self.notes if purpose else self.verdicts)[rank] = Link(connection)
        self._listener.close()

    def give_up_listener(self) -> socket.socket:
        """Return a duplicate of the listening socket, for another use. The caller must close it."""
        return self._listener.dup()

    def broadcast(self, message: Any) -> None:
        for link in self.verdicts.values():
            link.send(message)

    def close(self) -> None:
        self._listener.close()
        for link in (*self.verdicts.values(), *self.notes.values()):
            link.close()


class ChannelClient:
    """The other end of the channel, in each rank except rank 0."""

    def __init__(self, address: tuple[str, int], token: bytes, rank: int, timeout: float) -> None:
        """Connect to rank 0. Raise PeerLost if that is impossible."""
        self.verdicts = self._connect(address, token, 0, rank, timeout)
        self.notes = self._connect(address, token, 1, rank, timeout)

    @staticmethod
    def _connect(address: tuple[str, int], token: bytes, purpose: int, rank: int, timeout: float) -> Link:
        try:
            connection = socket.create_connection(address, timeout=timeout)
            connection.sendall(token + struct.pack("!BI", purpose, rank))
        except OSError as error:
            raise PeerLost(f"rank 0 cannot be reached at {address[0]}:{address[1]}: {error}", is_cut(error)) from None
        return Link(connection)

    def close(self) -> None:
        self.verdicts.close()
        self.notes.close()


def _greeting(connection: socket.socket, deadline: float) -> bytes | None:
    """Receive the first 21 bytes from a new connection, which identify a rank. Return None if they do not arrive."""
    parts = b""
    try:
        while len(parts) < 21:
            connection.settimeout(max(0.01, min(2.0, deadline - time.monotonic())))
            part = connection.recv(21 - len(parts))
            if not part:
                return None
            parts += part
    except OSError:
        return None
    return parts
