"""`tuner serve`: the API in this process, and a supervisor that keeps Ray and the driver host alive in other processes.

The API drives no experiment: it writes to the database and wakes the driver host, a Ray actor. Since Ray and the driver host
run in separate processes, training continues when the API ends or restarts; `tuner serve --stop` ends them too. This process
does not connect to Ray, since a crash of Ray could end it. A child process (`tuner.driver.hosts.link`) connects instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from tuner import __version__, log_format, tracing
from tuner.driver.hosts.head import COMMAND_S, Head, exits, start_head, stop_head, too_slow, was_stopped
from tuner.driver.hosts.link import LOOK_S, packed
from tuner.early import Early, listen
from tuner.errors import ClusterUnreachable, DriverSilent, SpecError
from tuner.settings import Settings

if TYPE_CHECKING:
    import uvicorn
    from rich.console import Console

    from tuner.store import Store

log = logging.getLogger(__name__)

LINK = "tuner.driver.hosts.link"
"""The module that the child process runs."""

CHECK_S = 0.25
"""Seconds between two checks by the supervisor that Ray and its child process are alive."""

AGAIN_S = 2.0
"""Seconds to wait after Ray or the child process could not be started, before the next attempt."""

SILENT_S = 150.0
"""Seconds without a message after which a child process is replaced.

A child sends a message every second, except while it waits for an answer of the driver host. It never waits this long.
"""

END_S = 2.0
"""Seconds to wait until the thread that writes to a child process has noticed that the child is dead."""

MOST_LINES = 1000
"""While this many lines are waiting to be written to a child process, the service does not tell it of further news."""

SPARE_AFTER_S = 15.0
"""Seconds after the driver is up before a spare child process is started. Until then, the first trials need the CPU."""

FUTILE = 3
"""The Ray head is replaced after this many child processes in a row could not connect to it."""


def serve(settings: Settings, early: Early, adopt: bool = False) -> None:
    """Serve until SIGINT or SIGTERM. Raise SpecError if tokens are needed but no admin has a token.

    Args:
        settings: the settings of this installation.
        early: answers requests on the socket until the service is loaded.
        adopt: continue not only experiments that were created over the API, but also those whose script has ended.
    """
    with Supervisor.loading(settings, adopt) as supervisor:  # so Ray and the API are loaded at the same time
        _serve(settings, early, supervisor)
    if not settings.ray_address:
        print(
            "The driver and its trials continue. `tuner serve` shows them again; `tuner serve --stop` ends them.",
            flush=True,
        )


def _serve(settings: Settings, early: Early, supervisor: Supervisor) -> None:
    from tuner.api import create_app
    from tuner.api.server import Server
    from tuner.store import Store, shown_url

    settings = _secured(settings)
    port = early.listening.getsockname()[1]
    log_format.configure(settings.log_level, settings.log_format)
    tracing.configure(settings.traces, "service", __version__)
    settings.home.mkdir(parents=True, exist_ok=True)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
        _check_tokens(settings, store)
        with supervisor:
            created = create_app(
                settings,
                store,
                supervisor.poke,
                supervisor.problem,
                supervisor.look,
                supervisor.cluster,
                figures=supervisor.figures,
                agents=supervisor.agents,
                profile=supervisor.profile,
            )
            print(
                f"tuner is at http://{settings.host}:{port}   (database {shown_url(settings.database_url)})", flush=True
            )
            print(_about_tokens(settings), flush=True)
            threading.Thread(target=_load_ahead, args=(supervisor,), name="load-ahead", daemon=True).start()
            early.end()
            Server(created, log_level=settings.log_level.lower()).run(sockets=[early.listening])


SLOW_MODULES = ("tuner.search.importance",)
"""Modules that requests may need and that take seconds to load, because they import Optuna."""

LOAD_AFTER_S = 10.0
"""Timeout in seconds of the wait for the driver before `SLOW_MODULES` are loaded. The driver needs the CPU for its start."""


def _load_ahead(supervisor: Supervisor) -> None:
    """Load `SLOW_MODULES` once the driver is ready, so that the first request that needs one of them does not wait."""
    end = time.monotonic() + LOAD_AFTER_S
    while supervisor.problem() is not None and time.monotonic() < end:
        time.sleep(0.1)
    for name in SLOW_MODULES:
        importlib.import_module(name)


class Supervisor:
    """Keeps three things alive: the Ray head, the child process that talks to Ray and, through this child, the driver host.

    The supervisor starts and restarts only the head of this home. If the user has named a Ray cluster, the supervisor waits
    until that cluster is back.
    """

    def __init__(self, settings: Settings, adopt: bool = False) -> None:
        self.settings, self.adopt = settings, adopt
        self._trouble: str | None = "the driver is starting"
        self._child: _Child | None = None
        # A process in reserve, which has loaded Ray already and replaces a dead child.
        self._spare: _Child | None = None
        self._up_since = float("inf")
        self._figures: Mapping[str, Any] | None = None
        self._futile = 0
        self._headed = False  # True once this supervisor has found or started a head of this home
        self._ended = threading.Event()
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

    def figures(self) -> Mapping[str, Any] | None:
        """Return the driver host's own metrics (see `Host.figures`); None while there is no driver."""
        return self._figures if self._trouble is None else None

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

    def agents(self, question: str, experiment: str, said: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Pass an agent's request on to the driver host (see `Host.agent`), and return a future of the answer.

        The future raises DriverSilent if the driver host is gone.
        """
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        return child.asked("agent", question, experiment, said)

    def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Let the host profile a rank; see `Host.profile`. The future raises DriverSilent if the host is gone."""
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        return child.asked("profile", segment_id, arguments)

    def _ask(self, method: str, *args: str) -> dict[str, Any]:
        if (child := self._child) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        return child.ask(method, *args)

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
        if self._headed and was_stopped(self.settings.home):
            self._say("Ray was ended by `tuner serve --stop`; start the service again to continue")
            self._ended.wait()
            return
        child = self._child = self._take_spare() or self._new_child(reserve=False)
        self._up_since = float("inf")
        self._futile += 1  # reset to 0 when the child reports that the driver is up
        try:
            if not self.settings.ray_address:
                if self._futile > FUTILE:
                    stop_head(self.settings.home)
                    self._headed = False  # otherwise the stopped head would look like one that the user has stopped
                    self._futile = 1
                head = start_head(self.settings.home, child.ray)
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

    def _new_child(self, *, reserve: bool) -> _Child:
        return _Child(self.settings, self.adopt, self._hear, reserve)

    def _take_spare(self) -> _Child | None:
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
            self._trouble, self._futile = None, 0
        elif "trouble" in said:
            self._trouble = said["trouble"]
        if "figures" in said:
            self._figures = said["figures"]
        if "log" in said:
            log.warning("%s", said["log"])
        for line in said.get("news", ()):
            log.info("%s", line)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


class _Child:
    """A child process that runs `tuner.driver.hosts.link`, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, settings: Settings, adopt: bool, hear: Any, reserve: bool = False) -> None:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        if not settings.ray_address:
            environment["RAY_AUTH_MODE"] = "token"  # the mode in which `start_head` starts a head
        self._process = subprocess.Popen(
            [sys.executable, "-m", LINK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._hear = hear
        self._heard_at = float("inf")  # a child sends nothing before it has the address of Ray
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
                raise ClusterUnreachable(f"the process that was to run `ray {arguments[0]}` has ended")
            if ran["code"] is not None:
                return subprocess.CompletedProcess(arguments, ran["code"], ran["output"], "")
        raise too_slow(arguments)

    def connect(self, address: str) -> None:
        """Tell the child process to connect to Ray at this address, and to keep its driver host running."""
        self._heard_at = time.monotonic()
        self._send(address)

    def poke(self) -> None:
        if (
            self._lines.qsize() < MOST_LINES
        ):  # with more lines, the child hangs; the driver host also checks for news by itself
            self._send(json.dumps({"ask": "poke"}))

    def ask(self, method: str, *args: str) -> dict[str, Any]:
        """Call a method of the driver host and return its result. Raise DriverSilent if it does not answer in time."""
        answer = self.asked(method, *args)
        try:
            return answer.result(timeout=0 if self._over else LOOK_S + 2)
        except TimeoutError:
            answer.cancel()
            raise DriverSilent("the process that talks to Ray does not answer") from None

    def asked(self, method: str, *args: Any) -> Future[dict[str, Any]]:
        """Call a method of the driver host, and return a future of its result. Cancel the future to stop waiting."""
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        self._asked[number] = answer
        answer.add_done_callback(lambda done: self._asked.pop(number, None))
        if self._over:
            answer.set_exception(DriverSilent("the driver is being started again"))
        else:
            self._send(json.dumps({"ask": method, "id": number, "args": args}))
        return answer

    def dead(self) -> str | None:
        """Return how the child process has ended, or why it must be killed. Return None if it works."""
        if (code := self._process.poll()) is not None:
            return f"it ended with exit code {code}"
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


class Page:
    """Serves the API and the web UI from a thread, without a driver, so that the user of a script can watch its searches."""

    def __init__(self, settings: Settings | None = None, port: int | None = None) -> None:
        self.settings = _secured(settings or Settings.from_env())
        self._socket = _listen_somewhere(self.settings.host, self.settings.port if port is None else port)
        self.url = f"http://localhost:{self._socket.getsockname()[1]}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None

    def start(self) -> None:
        from tuner.api import create_app
        from tuner.api.server import Server
        from tuner.store import Store

        self.settings.home.mkdir(parents=True, exist_ok=True)
        self._store = Store.open(self.settings.database_url, synchronous=self.settings.durability)
        self._store.migrate()
        _check_tokens(self.settings, self._store)
        created = create_app(self.settings, self._store)
        server = self._server = Server(created, log_level="warning", grace_s=2)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [self._socket]}, name="page", daemon=True)
        self._thread.start()
        while not server.started and self._thread.is_alive():
            time.sleep(0.02)

    def stay(self, console: Console) -> None:
        """Serve until Ctrl-C."""
        console.print(f"\nThe page is up at [bold]{self.url}[/bold]; Ctrl-C ends it.", highlight=False)
        ended = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: ended.set())
        try:
            ended.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            self.stop()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=10)
        self._socket.close()
        if self._store is not None:
            self._store.close()


def _secured(settings: Settings) -> Settings:
    """Return the settings with `auth` "on" or "off". The value "auto" becomes "on" if `auth.secured` says so.

    Raises:
        SpecError: the host is not an address of this machine, or `auth` is "off" and the host is not loopback.
    """
    from tuner.api.auth import is_here, secured

    try:
        loopback = is_here(settings.host)
    except OSError as error:
        raise SpecError(f"{settings.host!r} is not an address of this machine: {error}", "/host") from error
    if settings.auth == "off" and not loopback:
        raise SpecError(
            f"a service on {settings.host} needs tokens, because everybody who can reach it can run code; "
            "TUNER_AUTH=off is only for a service on loopback, behind a proxy that controls access",
            "/auth",
        )
    settings = secured(settings)
    return dataclasses.replace(settings, auth="off") if settings.auth == "auto" else settings


def _about_tokens(settings: Settings) -> str:
    """Return the line that `serve` prints about who may call the API. `settings` must come from `_secured`."""
    if settings.auth == "on":
        return f"Every request needs a token{_because(settings)}."
    if settings.trusted_proxies:
        return "It requires no token (TUNER_AUTH=off): everybody whom the proxy lets through can run code."
    return "It requires no token: every user of this machine can run code through it. Use --auth to require tokens."


def _because(settings: Settings) -> str:
    return " (TUNER_TRUSTED_PROXIES is set)" if settings.trusted_proxies else ""


def _check_tokens(settings: Settings, store: Store) -> None:
    """Raise SpecError if tokens are needed, but neither a token nor a group in the settings has the role admin."""
    by_group = any(rule.role == "admin" and rule.project is None for rule in settings.oidc_roles)
    if settings.auth == "on" and not by_group and not store.access.has_admin():
        raise SpecError(
            f"serving on {settings.host} with tokens{_because(settings)} needs an admin's token, and there is "
            "none; create it with `tuner token create NAME --role admin`",
            "/auth",
        )


def _listen_somewhere(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except SpecError:
        return listen(host, 0)
