"""A service for agents without Ray: the real API over a socket, and a real driver host in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import invariants
from tests.api.answering import Answers
from tuner.api import create_app
from tuner.api.server import Server
from tuner.errors import DriverSilent
from tuner.hosts.host import Host
from tuner.hosts.local_executor import beside
from tuner.settings import Settings
from tuner.store import Store

SPEC: dict[str, Any] = {
    "name": "far",
    "executor": "agents",
    "space": {"x": {"type": "uniform", "lower": 0.0, "upper": 1.0}},
    "metric": "loss",
    "mode": "min",
    "num_samples": 3,
    "seed": 1,
    "search": "random",
    "scheduler": "fifo",
}


class AgentService:
    """The parts of `tuner serve` that agents need. The host and the API can be ended and started separately."""

    def __init__(self, home: Path, database_url: str, **settings: Any) -> None:
        self.settings = Settings(home=home, database_url=database_url, **settings)
        self.store = Store.open(database_url)
        self.host: Host | None = None
        self.client = httpx.Client(timeout=60)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.client.base_url = httpx.URL(f"{self.url}/api/v1")
        self._loop = asyncio.new_event_loop()
        self._driving = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._driving.start()

    def start_host(self) -> None:
        async def begin() -> Host:
            host = Host(self.settings, "host", beside())
            await host.start(serve=True)
            return host

        self.host = self.call(begin())

    def end_host(self) -> None:
        """End the host. Its experiments stay as they are, as when its process dies."""
        host, self.host = self.host, None
        if host is not None:
            self.call(host.close())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start_api(self) -> None:
        driver = Answers(poke=self._poke, agents=self._agents, cluster=self._cluster, profile=self._profile)
        app = create_app(self.settings, self.store, driver)
        server = self._server = Server(app, log_level="warning", grace_s=5)
        self._serving = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[self._listening.dup()])), daemon=True
        )
        self._serving.start()

    def end_api(self) -> None:
        self._server.should_exit = True
        self._serving.join(20)
        assert not self._serving.is_alive()

    def _poke(self) -> None:
        if self.host is not None:
            asyncio.run_coroutine_threadsafe(self.host.poke(), self._loop)

    def _agents(self, question: str, experiment: str, said: Mapping[str, Any]) -> Future[dict[str, Any]]:
        if self.host is None:
            raise DriverSilent("the driver is starting")
        return asyncio.run_coroutine_threadsafe(self.host.agent(question, experiment, said), self._loop)

    def _cluster(self) -> dict[str, Any]:
        if self.host is None:
            raise DriverSilent("the driver is starting")
        return dict(self.call(self.host.cluster()))

    def _profile(self, segment: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        if self.host is None:
            raise DriverSilent("the driver is starting")
        return asyncio.run_coroutine_threadsafe(self.host.profile(segment, arguments), self._loop)

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self.end_api()
        self.end_host()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._driving.join(10)
        self.client.close()
        self._listening.close()
        self.store.close()

    # -- what tests do with it

    def create(self, **changes: Any) -> str:
        answer = self.client.post("/experiments", json={**SPEC, **changes})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, (path, body, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def ask(self, experiment: str, **given: Any) -> Any:
        """Ask for a trial that must be there soon."""
        return self.post(f"/experiments/{experiment}/assignments", {"wait_s": 30, **given}, 201)

    def about(self, assignment: Mapping[str, Any], what: str, body: Any = None, status: int = 200) -> Any:
        path = f"/experiments/{assignment['experiment_id']}/assignments/{assignment['lease']}/{what}"
        return self.post(path, body, status)

    def report(self, assignment: Mapping[str, Any], iteration: int, loss: float | None, **more: Any) -> Any:
        return self.about(assignment, "reports", {"iteration": iteration, "metrics": {"loss": loss}, **more})

    def trials(self, experiment: str) -> list[dict[str, Any]]:
        return list(self.get(f"/experiments/{experiment}/trials?sort=number")["items"])

    def ended(self, experiment: str) -> Any:
        return self.until("the end", lambda: (e := self.get(f"/experiments/{experiment}"))["ended_at"] and e)

    def until(self, what: str, happened: Callable[[], Any], seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := happened():
                return found
            time.sleep(0.1)  # each look costs the API some milliseconds
        raise AssertionError(f"not within {seconds:g} s: {what}")


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[AgentService]:
    """Yield a service. At the end, all that must hold in its database is checked."""
    yield from _running(tmp_path, database_url)


@pytest.fixture
def sqlite_service(sqlite_url: str, tmp_path: Path) -> Iterator[AgentService]:
    """Yield a service on SQLite, for tests that are not about the store."""
    yield from _running(tmp_path, sqlite_url)


def _running(home: Path, database_url: str) -> Iterator[AgentService]:
    service = AgentService(home, database_url, lease_s=3.0)
    try:
        service.start_host()
        service.start_api()
        yield service
    finally:
        service.close()
    with Store.open(database_url) as store:
        invariants.check_all(store, set())
