"""The child process of the service that talks to Ray."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from tuner.errors import ClusterUnreachable, DriverSilent
from tuner.hosts.on_ray.link import LOOK_S, packed
from tuner.hosts.ray import tokens
from tuner.hosts.ray.head import COMMAND_S, too_slow
from tuner.settings import Settings
from tuner.usercode.folder import python_without_folder

LINK = "tuner.hosts.on_ray.link"
"""The module that the child process runs."""

SILENT_S = 150.0
"""Seconds without a message after which a child process is replaced.

A child sends a message every second, except while it waits for an answer from the driver host. It never waits this long.
"""

END_S = 2.0
"""Seconds to wait until the thread that writes to a child process has noticed that the child is dead."""

MOST_LINES = 1000
"""The service sends no further news to a child process while this many lines are waiting to be written to it."""


class Child:
    """A child process that runs `tuner.hosts.on_ray.link`, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, settings: Settings, adopt: bool, hear: Any, reserve: bool = False) -> None:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        if not settings.ray_address:
            environment |= tokens.of_home(settings.home)  # those with which `start_head` starts a head
        self._process = subprocess.Popen(
            python_without_folder(LINK),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._hear = hear
        self._heard_at = float("inf")  # a child sends nothing before it has Ray's address
        self._ran: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._over = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._send(packed(settings, adopt, reserve))
        # Writing to a child that hangs would block, so a thread does it, and requests are not delayed.
        self._writing = threading.Thread(target=self._write, name="to-link", daemon=True)
        self._writing.start()
        threading.Thread(target=self._read, name="link", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ray(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a `ray` command in the child process, and return its exit code and output (see `head.RunRay`)."""
        self._send(json.dumps({"arguments": list(arguments), "environment": dict(environment)}))
        with contextlib.suppress(queue.Empty):
            if (ran := self._ran.get(timeout=COMMAND_S + LOOK_S)) is None:
                raise ClusterUnreachable(f"the process that was to run `ray {arguments[0]}` has exited")
            if ran["code"] is not None:
                return subprocess.CompletedProcess(arguments, ran["code"], ran["output"], "")
        raise too_slow(arguments)

    def connect(self, address: str) -> None:
        """Tell the child process to connect to Ray at this address, and to keep its driver host running."""
        self._heard_at = time.monotonic()
        self._send(address)

    def poke(self) -> None:
        # If more are waiting, the child hangs; the driver host also checks for news by itself.
        if self._lines.qsize() < MOST_LINES:
            self._send(json.dumps({"ask": "poke"}))

    def ask(self, method: str, *args: Any) -> dict[str, Any]:
        """Call a method of the driver host and return its result. Raise DriverSilent if it does not answer in time."""
        answer = self.asked(method, *args)
        try:
            return answer.result(timeout=0 if self._over else LOOK_S + 2)
        except TimeoutError:
            answer.cancel()
            raise DriverSilent("the process that talks to Ray does not answer") from None

    def asked(self, method: str, *args: Any) -> Future[dict[str, Any]]:
        """Call a method of the driver host, and return a future for its result. Cancel the future to stop waiting."""
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        self._asked[number] = answer
        answer.add_done_callback(lambda done: self._asked.pop(number, None))
        if self._over:
            answer.set_exception(DriverSilent("the driver is being started again"))
        else:
            self._send(json.dumps({"ask": method, "id": number, "args": args}))
        return answer

    def dead(self) -> str | None:
        """Return how the child process exited, or why it must be killed. Return None if it is healthy."""
        if (code := self._process.poll()) is not None:
            return f"it exited with code {code}"
        if time.monotonic() - self._heard_at > SILENT_S:
            return f"it has sent nothing for {SILENT_S:g} s"
        return None

    def end(self) -> None:
        """Kill the child process. The driver host that it watches is not affected."""
        self._over = True
        self._process.kill()
        self._process.wait()
        self._lines.put(None)
        self._writing.join(END_S)
        assert self._process.stdin is not None
        if not self._writing.is_alive():  # otherwise the thread could write to a file that gets the same descriptor
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        for answer in list(self._asked.values()):
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(DriverSilent("the driver is being started again"))

    def _send(self, line: str) -> None:
        self._lines.put(line)

    def _write(self) -> None:
        """Write lines to the child process until `end` is called or the child is dead."""
        assert self._process.stdin is not None
        while (line := self._lines.get()) is not None:
            try:
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()
            except OSError:
                return

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if self._over:
                return
            if "code" in said:
                self._ran.put(said)
                continue
            self._heard_at = time.monotonic()
            if "answer" not in said:
                self._hear(said)
            elif (answer := self._asked.get(said["answer"])) is not None:
                with contextlib.suppress(InvalidStateError):  # the caller has cancelled the future
                    if "error" in said:
                        answer.set_exception(DriverSilent(said["error"]))
                    else:
                        answer.set_result(said["found"])
        self._ran.put(None)
