"""Keep Ray and the driver host alive, and pass requests on to the host."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from tuner.api.driver import Driver
from tuner.errors import ClusterUnreachable, DriverSilent
from tuner.hosts.ray.head import Head, HeadStopped, OtherRuntime, exits, start_head, stop_head, stops_of, was_stopped
from tuner.service.child import Child
from tuner.settings import Settings

log = logging.getLogger(__name__)

CHECK_S = 0.25
"""Seconds between two checks that Ray and the child process are alive."""

AGAIN_S = 2.0
"""Seconds to wait after a failed attempt to start Ray or the child process, before the next one."""

SPARE_AFTER_S = 15.0
"""The seconds from the start of the driver to that of a spare child process. Until then, the first trials need the CPU."""

OTHER_S = 30.0
"""Seconds to wait before the next look, if another service has started a Ray that this one cannot use."""

ASKED_AT_ONCE = 10
"""The number of requests that may wait for the driver host in threads, so that threads are left for requests that do not."""

TURN_S = 1.0
"""Seconds that a further request waits for one of them to be answered."""

FUTILE = 3
"""The Ray head is replaced after this many child processes in a row have failed to connect to it."""


class Supervisor(Driver):
    """Keeps three things alive: the Ray head, the child process that talks to Ray and, through this child, the driver host.

    The supervisor starts and restarts only the head of this home. If the user has named a Ray cluster and it is
    gone, the supervisor waits until it is back.
    """

    def __init__(self, settings: Settings, adopt: bool = False) -> None:
        self.settings, self.adopt = settings, adopt
        self._trouble: str | None = "the driver is starting"
        self._child: Child | None = None
        # A process in reserve, which has loaded Ray already and replaces a dead child.
        self._spare: Child | None = None
        self._up_since = float("inf")
        self._metrics: Mapping[str, Any] | None = None
        self._warned: str | None = None  # what the last child logged while the driver was not up
        self._futile = 0
        self._stops = stops_of(settings.home)
        self._headed = False  # True once this supervisor has found or started a head of this home
        self._ended = threading.Event()
        self._turns = threading.BoundedSemaphore(ASKED_AT_ONCE)
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @classmethod
    @contextlib.contextmanager
    def loading(cls, settings: Settings, adopt: bool) -> Iterator[Supervisor]:
        """Yield a supervisor that is not started yet, but whose child process already loads Ray."""
        supervisor = cls(settings, adopt)
        supervisor._spare = supervisor._new_child(reserve=False)
        try:
            yield supervisor
        finally:
            if (spare := supervisor._take_spare()) is not None:
                spare.end()

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if (child := self._child) is not None:
            child.end()
        self._thread.join(timeout=10)
        if (spare := self._take_spare()) is not None:
            spare.end()

    def poke(self) -> None:
        """Tell the driver host, without waiting, that the API has written something. The host also checks from time to time."""
        if (child := self._child) is not None:
            child.poke()

    def problem(self) -> str | None:
        """Return why the driver is not ready; None if it is ready."""
        return self._trouble

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the driver host's own metrics (see `Host.metrics`); None while there is no driver."""
        return self._metrics if self._trouble is None else None

    def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """Return the stack and resource usage of each rank of a segment (see `Host.look`).

        Raises:
            DriverSilent: the driver host does not answer in time.
        """
        return self._ask("look", segment_id)

    def cluster(self) -> dict[str, Any]:
        """Return the state of the cluster (see `Host.cluster`).

        Raises:
            DriverSilent: the driver host does not answer in time.
        """
        return self._ask("cluster")

    def driver_log(self, experiment: str, tail: int, search: str | None) -> dict[str, Any]:
        """Return the host's own log of an experiment (see `Host.driver_log`).

        Raises:
            DriverSilent: the driver host does not answer in time.
        """
        return self._ask("driver_log", experiment, tail, search)

    def agents(self, question: str, experiment: str, said: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Pass an agent's request on to the driver host (see `Host.agent`), and return a future for the answer.

        The future raises DriverSilent if the driver host is gone.
        """
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        return child.asked("agent", question, experiment, said)

    def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Have the host profile a rank; see `Host.profile`. The future raises DriverSilent if the host is gone."""
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        return child.asked("profile", segment_id, arguments)

    def _ask(self, method: str, *args: Any) -> dict[str, Any]:
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        if not self._turns.acquire(timeout=TURN_S):
            raise DriverSilent("the driver has not answered earlier requests yet")
        try:
            return child.ask(method, *args)
        finally:
            self._turns.release()

    def _watch(self) -> None:
        while not self._ended.is_set():
            failed = True
            try:
                self._keep()
                failed = False
            except ClusterUnreachable as error:
                self._say(str(error))
            except Exception as error:
                log.exception("the supervisor failed")
                self._say(f"the supervisor failed: {error}")
            self._ended.wait(AGAIN_S if failed or self._futile else 0.0)

    def _keep(self) -> None:
        """Start a child process and, if there is none, a Ray head. Watch both until one of them is gone or the service ends."""
        head: Head | None = None
        if self._is_stopped():
            self._say("Ray was shut down by `tuner serve --stop`; restart the service to continue")
            self._ended.wait()
            return
        child = self._child = self._take_spare() or self._new_child(reserve=False)
        self._up_since = float("inf")
        self._futile += 1  # reset to 0 when the child reports that the driver is up
        try:
            if not self.settings.ray_address:
                if self._futile > FUTILE:
                    stop_head(self.settings.home, keep_logs=True)
                    self._headed = False  # otherwise the stopped head would look like one that the user has stopped
                    self._futile = 1
                try:
                    head = start_head(self.settings.home, child.ray, self._stops)
                except HeadStopped:
                    self._headed = True
                    return
                except OtherRuntime as error:
                    self._futile = 0  # the head is not replaced, since the other service uses it
                    self._say(str(error))
                    self._ended.wait(OTHER_S)
                    return
                self._headed = True
            child.connect(head.address if head is not None else str(self.settings.ray_address))
            with exits([child.pid, *(head.pids if head is not None else ())]) as wait:
                while not self._ended.is_set():
                    if head is not None and (gone := head.dead()):
                        self._futile = 0
                        self._say(f"Ray's {gone} is gone; Ray and the driver are being started again")
                        return
                    if (gone := child.dead()) is not None:
                        self._say(self._trouble or f"the process that talks to Ray is being restarted: {gone}")
                        return
                    if time.monotonic() >= self._up_since + SPARE_AFTER_S and self._spare is None:
                        self._spare = self._new_child(reserve=True)
                    wait(CHECK_S)
        finally:
            self._child = None
            child.end()

    def _is_stopped(self) -> bool:
        """Return whether a user has stopped the head of this home since the service began, or while it was being started."""
        home = self.settings.home
        return not self.settings.ray_address and (stops_of(home) != self._stops or (self._headed and was_stopped(home)))

    def _new_child(self, *, reserve: bool) -> Child:
        return Child(self.settings, self.adopt, self._hear, reserve)

    def _take_spare(self) -> Child | None:
        """Return the child in reserve, or None if there is no live one."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.dead() is not None:
            spare.end()
            return None
        return spare

    def _hear(self, said: dict[str, Any]) -> None:
        """Process a message from the child process."""
        if "up" in said:
            if self._trouble is not None:
                log.info("the driver is up: %s", said["up"])
                self._up_since = time.monotonic()
            self._trouble, self._warned, self._futile = None, None, 0
        elif "trouble" in said:
            self._trouble = said["trouble"]
        if "metrics" in said:
            self._metrics = said["metrics"]
        if "log" in said and said["log"] != self._warned:  # each new child says again that a cluster is away
            log.warning("%s", said["log"])
            self._warned = said["log"]
        for line in said.get("news", ()):
            log.info("%s", line)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble
