"""`tuner serve`: the API in this process, the driver in a host of its own on Ray, and a supervisor that keeps the host alive.

The API never drives: it writes rows and pokes the host. Ray and the host run in processes of their own, so that ending or
restarting the API disturbs no training; `tuner serve --stop` ends them too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from tuner.errors import DriverSilent, SpecError
from tuner.settings import Settings
from tuner.store import Store, shown_url

if TYPE_CHECKING:
    import uvicorn
    from rich.console import Console

log = logging.getLogger(__name__)

CHECK_S = 2.0
START_S = 60.0
LOOK_S = 10.0


def serve(settings: Settings, adopt: bool = False) -> None:
    """Serve until SIGINT or SIGTERM. SpecError if the port is taken, or tokens are needed and no admin has one.

    adopt: take up what scripts have left behind as well, not only what was given to a service.
    """
    if not settings.ray_address:
        os.environ["RAY_AUTH_MODE"] = (
            "token"  # as the Ray that is started here; Ray looks at it once, when it is imported
        )
    from tuner.api import create_app
    from tuner.api.server import Server
    from tuner.driver.cluster import connect, start_head

    settings = _secured(settings)
    listening = _listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings.home.mkdir(parents=True, exist_ok=True)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
        _check_tokens(settings, store)
        connect(settings.ray_address or start_head(settings.home))
        with Supervisor(settings, adopt) as supervisor:
            created = create_app(settings, store, supervisor.poke, supervisor.problem, supervisor.look)
            print(
                f"tuner is at http://{settings.host}:{port}   (database {shown_url(settings.database_url)})", flush=True
            )
            if settings.auth != "on":
                print(
                    "It asks for no token: every user of this machine can run code by it. --auth asks for one.",
                    flush=True,
                )
            Server(created, log_level=settings.log_level.lower()).run(sockets=[listening])
    if not settings.ray_address:
        print(
            "The driver and its trials go on. `tuner serve` shows them again; `tuner serve --stop` ends them.",
            flush=True,
        )


def stop(settings: Settings) -> bool:
    """End the Ray that `serve` started for this home, with the driver and all trials; whether there was one."""
    from tuner.driver.cluster import stop_head

    return stop_head(settings.home)


class Supervisor:
    """Starts the shared driver host, and starts it again when it is gone."""

    def __init__(self, settings: Settings, adopt: bool = False) -> None:
        self.settings, self.adopt = settings, adopt
        self._host: Any = None
        self._trouble: str | None = "the driver is starting"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def poke(self) -> None:
        """Tell the host that there is something new; if it cannot be told, it finds out by itself."""
        if (host := self._host) is not None:
            with contextlib.suppress(Exception):
                host.poke.remote()

    def problem(self) -> str | None:
        """Why the driver is not ready; None when it is."""
        return self._trouble

    def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """The ranks of a segment at this moment, see `Host.look`. DriverSilent where the host does not answer soon."""
        import ray

        if (host := self._host) is None:
            raise DriverSilent(self._trouble or "the driver is starting")
        try:
            found: dict[str, dict[str, Any]] = ray.get(host.look.remote(segment_id), timeout=LOOK_S)
        except ray.exceptions.RayError as error:
            raise DriverSilent(f"the driver does not answer: {type(error).__name__}") from error
        return found

    def _watch(self) -> None:
        import ray

        from tuner.driver.cluster import DEAD
        from tuner.driver.host import start_host

        while not self._ended.is_set():
            try:
                host = self._host or start_host(self.settings, shared=True)
                ray.get(host.start.remote(serve=True, adopt=self.adopt), timeout=START_S)
                self._host = host
                self._trouble = None
                for line in ray.get(host.news.remote(), timeout=START_S):
                    log.info("%s", line)
            except DEAD as error:
                was_up = self._trouble is None
                self._host, self._trouble = None, "the driver is being started again"
                if was_up:  # at once; one that cannot even start is given some time
                    log.warning("the driver host is gone and is started again: %s", error)
                    continue
            except Exception as error:
                log.warning("the driver host does not answer: %s", error)
                self._trouble = f"the driver does not answer: {error}"
            self._ended.wait(CHECK_S)


class Page:
    """The API and the web page without a driver, in a thread: to look at what a script is doing."""

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
        """Until Ctrl-C."""
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
    """Return the settings with tokens needed, if the address is not loopback: an entrypoint is code that the service runs."""
    try:
        addresses = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(settings.host, None)}
    except OSError as error:
        raise SpecError(f"{settings.host!r} is not an address of this machine: {error}", "/host") from error
    if all(address.is_loopback for address in addresses):
        return settings
    return dataclasses.replace(settings, auth="on")


def _check_tokens(settings: Settings, store: Store) -> None:
    """Raise SpecError if tokens are needed and nobody has one that may create others."""
    if settings.auth == "on" and not store.access.has_admin():
        raise SpecError(
            f"serving on {settings.host} with tokens needs one of an admin, and there is none; "
            "create it with `tuner token create NAME --role admin`",
            "/auth",
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise SpecError(
            f"port {port} of {host} cannot be had: {error.strerror}; --port 0 picks a free one", "/port"
        ) from error
    return listening


def _listen_somewhere(host: str, port: int) -> socket.socket:
    try:
        return _listen(host, port)
    except SpecError:
        return _listen(host, 0)
