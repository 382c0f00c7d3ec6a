"""The service's child process that talks to Ray: it keeps the shared driver host running, and passes questions on to it.

Ray ends a process that has lost its cluster. So the service itself does not connect to Ray: it starts this process, which may
be ended, and starts it again. The two exchange lines: the service sends its settings, the address of Ray, and questions; this
process sends JSON objects. It ends when its standard input does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from tuner import __version__
from tuner.errors import ClusterUnreachable, NewerHost
from tuner.settings import Settings

CHECK_S = 1.0
"""Seconds between two messages to the service that everything works."""

START_S = 60.0
"""Seconds that the driver host may take for an answer."""

LOOK_S = 10.0
"""Seconds that the host may take to answer a question about ranks or the cluster."""


class Link:
    """Keeps the driver host alive. `tell` is called with what the service should know."""

    def __init__(self, settings: Settings, adopt: bool, tell: Callable[..., None]) -> None:
        self._settings, self._adopt, self._tell = settings, adopt, tell
        self._host: Any = None
        self._owner: str | None = None
        self._gone: list[str] = []
        self._waits = False  # for the end of a host of a newer version

    def watch(self, address: str) -> None:
        """Connect to Ray and watch for ever. Raise ClusterUnreachable if there is no Ray at the address."""
        from tuner.driver.hosts.cluster import connect

        connect(address)
        while True:
            self.look_after()

    def look_after(self) -> None:
        """Start the host, or find it, and watch it until it dies or does not answer."""
        import ray

        from tuner.driver.hosts.cluster import DEAD

        was_up = self._host is not None
        try:
            host = self._host or self._start_host()
            began = host.start.remote(serve=True, adopt=self._adopt, gone=self._gone)
            self._owner = ray.get(began, timeout=START_S)
            self._host, was_up, self._waits = host, True, False
            self._tell(up=self._owner)
            death = host.live.remote()
            while not ray.wait([death], timeout=CHECK_S)[0]:
                news, figures = ray.get([host.news.remote(), host.figures.remote()], timeout=START_S)
                self._tell(up=self._owner, news=news, figures=figures)
            ray.get(death)
        except DEAD as error:
            if self._owner is not None:
                self._gone.append(self._owner)
            self._host = self._owner = None
            self._tell(trouble="the driver is being started again", log=f"the driver host is gone: {error}")
            if not was_up:  # one that cannot even start is given some time
                time.sleep(CHECK_S)
        except NewerHost as error:
            self._host = None
            self._tell(trouble=str(error), **({} if self._waits else {"log": str(error)}))
            self._waits = True
            time.sleep(CHECK_S)
        except Exception as error:
            self._tell(trouble=f"the driver does not answer: {error}", log=f"the driver host does not answer: {error}")
            time.sleep(CHECK_S)

    def _start_host(self) -> Any:
        """Start or find the host. End one that runs the code of another version, so that this one can claim its experiments."""
        from tuner.driver.hosts.start import end_other_versions, start_host

        for version, owner in end_other_versions(self._settings):
            if owner is not None:
                self._gone.append(owner)
            self._tell(
                log=f"the driver host of {version} was ended, as this is {__version__}; "
                "its experiments continue from their checkpoints"
            )
        return start_host(self._settings, shared=True)

    def listen(self, lines: Iterable[str]) -> None:
        """Pass on the questions of the service until its lines end; then end this process."""
        for line in lines:
            question = json.loads(line)
            if question["ask"] == "poke":
                self._poke()
            elif question["ask"] == "agent":
                self._pass_on(question["id"], question["args"])
            else:
                asked = (question["id"], question["ask"], question["args"])
                threading.Thread(target=self._ask, args=asked, daemon=True).start()
        os._exit(0)

    def _poke(self) -> None:
        if (host := self._host) is not None:
            with contextlib.suppress(Exception):
                host.poke.remote()

    def _pass_on(self, number: int, args: Sequence[Any]) -> None:
        """Pass a question of an agent on to the host. It may wait there for long, so no thread waits with it."""
        if (host := self._host) is None:
            self._tell(answer=number, error="the driver is starting")
            return

        def answered(done: Future[Any]) -> None:
            try:
                self._tell(answer=number, found=done.result())
            except Exception as error:
                self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")

        try:
            host.agent.remote(*args).future().add_done_callback(answered)
        except Exception as error:
            self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")

    def _ask(self, number: int, method: str, args: Sequence[str]) -> None:
        import ray

        if (host := self._host) is None:
            self._tell(answer=number, error="the driver is starting")
            return
        try:
            self._tell(answer=number, found=ray.get(getattr(host, method).remote(*args), timeout=LOOK_S))
        except Exception as error:
            self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")


def packed(settings: Settings, adopt: bool) -> str:
    """Return the first line that the process reads. It may contain a password, so it is not passed on the command line."""
    return base64.b64encode(pickle.dumps((settings, adopt))).decode()


def main() -> None:
    """Read the settings, load Ray, read its address, and watch the driver host."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between the lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service ends this process
    writing = threading.Lock()

    def tell(**what: Any) -> None:
        with writing, contextlib.suppress(OSError):
            print(json.dumps(what), file=lines)

    settings, adopt = pickle.loads(base64.b64decode(sys.stdin.readline()))
    from tuner.driver.hosts import start  # noqa: F401, as loading Ray takes a second or two, in which its head may start

    address = sys.stdin.readline().strip()
    if not address:
        return
    link = Link(settings, adopt, tell)
    threading.Thread(target=link.listen, args=(sys.stdin,), daemon=True).start()
    try:
        link.watch(address)
    except ClusterUnreachable as error:
        tell(trouble=str(error), log=str(error))
        os._exit(1)


if __name__ == "__main__":
    main()
