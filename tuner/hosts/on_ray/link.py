"""Run the service's child process that talks to Ray: keep the shared driver host running, and pass requests on to it.

Ray terminates processes that have lost their cluster, so the service itself does not connect to Ray. Instead it starts this
process, and restarts it if it exits. The two exchange lines of text: the service sends its settings, `ray` commands to run,
Ray's address, and requests; this process sends JSON objects. It exits when its standard input is closed.

Loading Ray takes a second or two. So `ray` commands run in forks of this process. The service also keeps a second
process of this kind in reserve, which has loaded Ray and waits for its first command.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import psutil

from tuner import __version__
from tuner.errors import ClusterUnreachable, NewerHost
from tuner.hosts.ray.head import COMMAND_S
from tuner.settings import Settings

CHECK_S = 1.0
"""The interval, in seconds, at which this process tells the service that the driver host works."""

START_S = 60.0
"""Timeout in seconds of a call to the driver host."""

LOOK_S = 10.0
"""Timeout in seconds of a request to the driver host about ranks or the cluster."""


_OTHER_CLUSTER = "WrongClusterID"
"""Ray's errors contain this if the cluster at the address is no longer the one that this process has joined."""

SLOW = ("agent", "profile")
"""The methods of the host that may take a long time to answer."""

MODULES = ("tuner.hosts.on_ray.shared",)
"""The modules that this process imports before it asks for the address of Ray. They import Ray."""

RESERVE_MODULES = (*MODULES, "ray.scripts.scripts", "tuner.hosts.on_ray.start")
"""The modules that a process in reserve imports. They include those that start a Ray head and a driver host."""


class Link:
    """Keeps the shared driver host running, and passes requests of the service on to it.

    `tell` is called with messages for the service.
    """

    def __init__(self, settings: Settings, adopt: bool, tell: Callable[..., None]) -> None:
        self._settings, self._adopt, self._tell = settings, adopt, tell
        self._host: Any = None
        self._owner: str | None = None
        self._gone: list[str] = []
        self._waits = False  # True while this process waits until a host of a newer version is gone
        self._unreachable = False  # True after a call that has not reached the host

    def watch(self, address: str) -> None:
        """Connect to the Ray cluster at `address`, and keep a driver host running there forever.

        Raise ClusterUnreachable if there is no Ray cluster at the address.
        """
        from tuner.hosts.ray.cluster import connect

        connect(address)
        while True:
            self.look_after()

    def look_after(self) -> None:
        """Find or start the driver host, and watch it until it dies or does not answer.

        Raise ClusterUnreachable if the cluster has been replaced by another one, or if the node of this process has died.
        """
        import ray

        from tuner.hosts.on_ray.shared import find_host
        from tuner.hosts.ray.cluster import DEAD, GIVEN_TO_A_SERVICE, OF_A_SERVICE, not_started

        was_up = self._host is not None
        try:
            if self._unreachable:  # Ray says the same of a host whose cluster has been replaced
                self._unreachable = False
                find_host(self._settings)  # raises an error in that case
            host = self._host or self._start_host()
            began = host.start.remote(serve=True, adopt=self._adopt, gone=self._gone)
            self._owner = ray.get(began, timeout=START_S)
            self._host, was_up, self._waits = host, True, False
            self._tell(up=self._owner)
            load_host()
            death = host.live.remote()
            while not ray.wait([death], timeout=CHECK_S)[0]:
                if service_is_stopped():
                    continue  # agents cannot reach the host, which learns of that if nobody asks it for news
                news, metrics = ray.get([host.news.remote(), host.metrics.remote()], timeout=START_S)
                self._tell(up=self._owner, news=news, metrics=metrics)
            ray.get(death)
        except ray.exceptions.ActorUnavailableError as error:  # the host is alive and keeps driving
            self._unreachable = True
            self._tell_silent(error)
        except DEAD as error:
            if self._owner is not None:
                self._gone.append(self._owner)
            self._host = self._owner = None
            advice = GIVEN_TO_A_SERVICE if self._settings.ray_address else OF_A_SERVICE
            self._tell(
                trouble="the driver is being started again",
                log=f"the driver host is gone: {error}" if was_up else not_started(error, advice),
            )
            if not was_up:  # wait a moment if the host could not even start
                time.sleep(CHECK_S)
        except NewerHost as error:
            self._host = None
            self._tell(trouble=str(error), **({} if self._waits else {"log": str(error)}))
            self._waits = True
            time.sleep(CHECK_S)
        except ClusterUnreachable:  # its node has died, and Ray never takes this process into another node
            raise
        except Exception as error:
            # This process belongs to the old cluster, and Ray never takes it into the new one.
            if _OTHER_CLUSTER in str(error):
                raise ClusterUnreachable("Ray has been restarted, so this process reconnects") from error
            self._tell_silent(error)

    def _tell_silent(self, error: Exception) -> None:
        self._tell(trouble=f"the driver does not answer: {error}", log=f"the driver host does not answer: {error}")
        time.sleep(CHECK_S)

    def _start_host(self) -> Any:
        """Find or start the driver host. First stop the hosts of other versions, so that it can claim their experiments."""
        from tuner.hosts.on_ray.shared import end_other_versions, find_host

        for version, owner in end_other_versions(self._settings):
            if owner is not None:
                self._gone.append(owner)
            self._tell(
                log=(
                    f"stopped the driver host of {version}, because this service has other code ({__version__}); "
                    "its experiments continue from their checkpoints"
                )
            )
        if (host := find_host(self._settings)) is not None:
            return host
        from tuner.hosts.on_ray.start import start_host

        return start_host(self._settings, shared=True)

    def listen(self, lines: Iterable[str]) -> None:
        """Pass the service's requests on to the driver host until the input ends. Then exit."""
        for line in lines:
            question = json.loads(line)
            if question["ask"] == "poke":
                self._poke()
            elif question["ask"] in SLOW:
                self._pass_on(question["id"], question["ask"], question["args"])
            else:
                asked = (question["id"], question["ask"], question["args"])
                threading.Thread(target=self._ask, args=asked, daemon=True).start()
        os._exit(0)

    def _poke(self) -> None:
        if (host := self._host) is not None:
            with contextlib.suppress(Exception):
                host.poke.remote()

    def _pass_on(self, number: int, method: str, args: Sequence[Any]) -> None:
        """Pass a request on to the driver host. The answer may take a long time, so no thread waits for it."""
        if (host := self._host) is None:
            self._tell(answer=number, error="the driver is starting")
            return

        def answered(done: Future[Any]) -> None:
            try:
                self._tell(answer=number, found=done.result())
            except Exception as error:
                self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")

        try:
            getattr(host, method).remote(*args).future().add_done_callback(answered)
        except Exception as error:
            self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")

    def _ask(self, number: int, method: str, args: Sequence[Any]) -> None:
        import ray

        if (host := self._host) is None:
            self._tell(answer=number, error="the driver is starting")
            return
        try:
            self._tell(answer=number, found=ray.get(getattr(host, method).remote(*args), timeout=LOOK_S))
        except Exception as error:
            self._tell(answer=number, error=f"the driver does not answer: {type(error).__name__}")


def service_is_stopped() -> bool:
    """Return whether the service, which started this process, is stopped, for example by SIGSTOP."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(os.getppid()).status() == psutil.STATUS_STOPPED)
    return False


def load_host() -> threading.Thread:
    """Import the modules that start a driver host, in a thread, so that a new host starts sooner if the present one dies."""
    loading = threading.Thread(target=importlib.import_module, args=("tuner.hosts.on_ray.start",), daemon=True)
    loading.start()
    return loading


def run_ray(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a `ray` command in a fork of this process, in a new session. Return the command's exit code and output.

    The exit code is None if the command took too long and was killed.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would not do: processes that the command starts may keep it open
        pid = os.fork()
        if not pid:
            _become_ray(arguments, environment, output.fileno())
        loading = load_host()
        code: int | None = None
        end = time.monotonic() + COMMAND_S
        while code is None and time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        loading.join()  # no thread imports anything while this process forks again
        output.seek(0)
        return {"code": code, "output": output.read().decode(errors="replace")}


def _become_ray(arguments: Sequence[str], environment: Mapping[str, str], output: int) -> NoReturn:
    """Run the `ray` command in this process, which was forked for it, and exit."""
    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ |= environment
        from tuner.hosts.ray import ray_start

        sys.argv = ["ray", *arguments]
        ray_start.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def packed(settings: Settings, adopt: bool, reserve: bool) -> str:
    """Return the first line to send to this module's process: the settings, and what the process is started for.

    The settings may contain a password, so they are not passed on the command line, which other users can see.

    adopt: True if the driver host should also drive experiments whose script has ended.
    reserve: True if the process is kept in reserve, so that it has time to import all that it may need.
    """
    return base64.b64encode(pickle.dumps((settings, adopt, reserve))).decode()


def main() -> None:
    """Read the settings, load Ray, run `ray` commands, read the address of the Ray cluster, and watch the driver host."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # keep the output of libraries apart from the messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service stops this process
    writing = threading.Lock()

    def tell(**what: Any) -> None:
        with writing, contextlib.suppress(OSError):
            print(json.dumps(what), file=lines)

    settings, adopt, reserve = pickle.loads(base64.b64decode(sys.stdin.readline()))
    for module in RESERVE_MODULES if reserve else MODULES:
        importlib.import_module(module)
    while (address := sys.stdin.readline().strip()).startswith("{"):
        command = json.loads(address)
        tell(**run_ray(command["arguments"], command["environment"]))
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
