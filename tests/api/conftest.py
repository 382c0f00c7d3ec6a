"""The API over a real database: called in process, or over a socket if the stream matters."""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.api.answering import Answers
from tuner.api import create_app
from tuner.api.routes import trials
from tuner.api.server import Server
from tuner.settings import Settings
from tuner.store import Store
from tuner.usercode.entrypoints import EntrypointChecker


class Poked:
    """Counts the calls that wake the driver, and returns the driver's problem."""

    def __init__(self) -> None:
        self.count = 0
        self.trouble: str | None = None

    def __call__(self) -> None:
        self.count += 1

    def problem(self) -> str | None:
        return self.trouble


@pytest.fixture(autouse=True)
def _no_wait_for_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a fork at once: most tests have no driver that would start the trial."""
    monkeypatch.setattr(trials, "FORK_WAIT_S", 0.0)


@pytest.fixture
def poked() -> Poked:
    return Poked()


_documents: list[dict[str, Any]] = []
"""The OpenAPI document of the apps, once one of them has generated it.

This is no fixture, because other folders import `app`, and would have to import the fixture too.
"""


@pytest.fixture
def app(sqlite_store: Store, poked: Poked, checker: EntrypointChecker, tmp_path: Path) -> FastAPI:
    app = create_app(
        Settings(home=tmp_path), sqlite_store, Answers(poke=poked, problem=poked.problem), web=tmp_path / "web"
    )
    app.state.context.checker = checker
    return with_shared_document(app)


def with_shared_document(app: FastAPI) -> FastAPI:
    """Let the app use the document that another one has generated: it is the same for all, and takes over a second."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        if not _documents:
            _documents.append(generate())
        return copy.deepcopy(_documents[0])

    app.openapi = document  # type: ignore[method-assign]
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        yield client


@pytest.fixture
def server(app: FastAPI) -> Iterator[str]:
    """Serve the app over a socket and yield its URL."""
    yield from serving(app)


def serving(app: FastAPI) -> Iterator[str]:
    """Serve the app until the iterator is closed, and yield its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    serving = Server(app, log_level="warning", grace_s=60)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive()
    listening.close()


SPEC: dict[str, Any] = {
    "name": "digits",
    "entrypoint": "tests.api.trainables:train",
    "space": {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32, 64]},
    },
    "metric": "accuracy",
    "mode": "max",
    "num_samples": 16,
    "seed": 1,
    "search": {"type": "random"},
    "scheduler": {"type": "asha", "max_t": 27, "grace_period": 1, "reduction_factor": 3},
    "scaling": {"num_workers": 2, "use_gpu": False, "resources_per_worker": {"CPU": 0.5}},
    "limits": {"max_concurrent_trials": 2, "time_budget_s": 600},
}


@pytest.fixture
def spec() -> dict[str, Any]:
    return dict(SPEC)
