"""The driver's handles for the local executor's processes, which run `tuner.trials.runtime.local_rank`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from tuner.domain.logs import LogLimit
from tuner.trials.messages.lost import RankLost
from tuner.trials.messages.report_socket import Address

log = logging.getLogger(__name__)

_HEADER = struct.Struct("!I")
_ROOT = str(Path(__file__).resolve().parents[4])
_END_S = 5.0  # seconds that the server may take to exit


class LocalRank:
    """The handle for a rank's process. It is used like a Ray actor's handle: ``rank.usage.remote()`` returns an awaitable."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid: int | None = None
        self.killed = False  # set even if the process has no pid yet, because the server has not forked it
        self.killed_for = ""
        self.refused = ""  # why the server could not fork the process
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._reading = asyncio.ensure_future(self._read())

    def __getattr__(self, method: str) -> _Method:
        if method.startswith("_"):
            raise AttributeError(method)
        return _Method(self, method)

    def begin(self, address: Address, log_limit: LogLimit | None) -> None:
        """Send the process its settings. Call this before calling any of its methods."""
        self._send((address, log_limit))

    def call(self, method: str, arguments: Any) -> asyncio.Future[Any]:
        """Call a method in the process, and return a future for its value. The future need not be awaited.

        If the process exits before it has answered, the future raises RankLost.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.ended.done():
            answer.set_exception(self._lost())
            return answer
        number = next(self._numbers)
        self._answers[number] = answer
        self._send((number, method, arguments))
        return answer

    def kill(self, why: str = "") -> None:
        """Kill the process and the processes that it has started. The future `ended` is done once the process has exited."""
        self.killed, self.killed_for = True, self.killed_for or why
        if self.pid is not None and not self.ended.done():
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def set_ended(self, status: int | None) -> None:
        """Record that the process has exited, and make all unanswered calls raise RankLost."""
        if not self.ended.done():
            self.ended.set_result(status)
        self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost())
        self._answers.clear()

    def _lost(self) -> RankLost:
        return RankLost(self.ended.result(), self.killed_for, self.refused)

    def _send(self, message: Any) -> None:
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        framed = _HEADER.pack(len(body)) + body
        if self._writer is None:
            self._unsent.append(framed)
        else:
            self._writer.write(framed)

    async def _read(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=2**20)
        for framed in self._unsent:
            self._writer.write(framed)
        self._unsent.clear()
        try:
            while True:
                (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                number, done, value = pickle.loads(await reader.readexactly(size))
                answer = self._answers.pop(number)
                if answer.done():  # nobody is waiting for the answer any longer
                    continue
                if done:
                    answer.set_result(value)
                else:
                    answer.set_exception(RuntimeError(value))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has exited; the server sends its exit status


class _Method:
    def __init__(self, rank: LocalRank, name: str) -> None:
        self._rank, self._name = rank, name

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        return self._rank.call(self._name, arguments)


def _open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed. A socket with such a number would not reach the server."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # this takes the lowest free number


class RankServer:
    """The handle for the server process, which forks the ranks' processes.

    The object can be created in any thread and before there is an event loop, so that the server starts early. Call all
    methods except `kill` in one event loop.
    """

    def __init__(self, ahead: int = 0, *, gpus: bool = False) -> None:
        """Start the server, which forks `ahead` processes at once. gpus: whether processes see the machine's GPUs."""
        self.gpus = gpus
        _open_standard_streams()
        self._control, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "tuner.trials.runtime.local_rank",
                str(theirs.fileno()),
                *(["gpus"] if gpus else []),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C at a terminal does not reach it
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._ahead: deque[socket.socket] = deque(self._ask() for _ in range(ahead))
        self._order: deque[LocalRank] = deque()  # the ranks whose pids the server will send, in this order
        self._ranks: dict[int, LocalRank] = {}
        self._listening: asyncio.Task[None] | None = None
        self.over = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def adopt(self) -> list[LocalRank]:
        """Return handles for the processes that were forked in advance, and begin to read the server's messages."""
        ranks = [LocalRank(connection) for connection in self._ahead]
        self._ahead.clear()
        self._order.extend(ranks)
        self._listening = asyncio.ensure_future(self._listen())
        return ranks

    def fork(self) -> LocalRank:
        """Request a new process and return its handle. Messages sent before the process exists are delivered later.

        Raises:
            OSError: this process has too many open files, or the server has not read earlier requests yet.
            RankLost: the server has exited.
        """
        try:
            rank = LocalRank(self._ask())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
            self.over = True
            raise RankLost(None) from error
        self._order.append(rank)
        return rank

    def kill(self) -> None:
        """Stop the server and all processes that it has forked. This can be called from any thread, and more than once."""
        self.over = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # the server then kills the process groups of its ranks and exits
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        finally:
            theirs.close()
        return ours

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._control)
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except (OSError, ValueError):
            pass
        finally:
            self.over = True
            writer.close()
            for rank in [*self._ranks.values(), *self._order]:
                rank.set_ended(None)

    def _hear(self, told: dict[str, Any]) -> None:
        if "refused" in told:
            rank = self._order.popleft()
            rank.refused = told["refused"]
            rank.set_ended(None)
        elif "pid" in told:
            rank = self._order.popleft()
            rank.pid = told["pid"]
            self._ranks[told["pid"]] = rank
            if rank.killed:
                rank.kill()
        elif "ended" in told and (ended := self._ranks.pop(told["ended"], None)) is not None:
            ended.set_ended(told["status"])
