"""Imports of entrypoints that take long: they hold up nothing else, and they end with the service. All over HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from fastapi import FastAPI

from tuner.api.server import Server
from tuner.usercode.entrypoints import EntrypointChecker

HELPERS, WAITING = 2, 3


def until(what: str, happened: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Imports:
    """Modules whose import says that it has begun and then waits for a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.go = folder / "go"

    def spec(self, spec: dict[str, Any], name: str, after: str = "") -> dict[str, Any]:
        begun = self.folder / f"{name}.begun"
        (self.folder / f"{name}.py").write_text(
            textwrap.dedent(f"""
                import pathlib, time
                with open({str(begun)!r}, "a") as begun:
                    begun.write("x")
                while not pathlib.Path({str(self.go)!r}).exists():
                    time.sleep(0.01)
                {after}
                def train(config): ...
            """)
        )
        return {**spec, "entrypoint": f"{name}:train", "runtime_env": {"working_dir": str(self.folder)}}

    def begun(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.begun"))

    def times(self, name: str) -> int:
        return len((self.folder / f"{name}.begun").read_text())


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    folder = tmp_path / "imports"
    folder.mkdir()
    return Imports(folder)


@pytest.fixture
def narrow(app: FastAPI) -> Iterator[EntrypointChecker]:
    checker = EntrypointChecker(helpers=HELPERS, waiting=WAITING)
    app.state.context.checker = checker
    yield checker
    checker.close()


class Asking:
    """Posts specs from threads."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=60, limits=httpx.Limits(max_connections=200))
        self._threads = ThreadPoolExecutor(60)

    def dry_run(self, spec: dict[str, Any]) -> Future[httpx.Response]:
        return self._threads.submit(self.client.post, "/api/v1/experiments/dry-run", json=spec)


def test_slow_imports_hold_up_nothing_else(
    narrow: EntrypointChecker, server: str, imports: Imports, spec: dict[str, Any]
) -> None:
    asking = Asking(server)
    assert asking.client.post("/api/v1/experiments", json=spec).status_code == 201
    first = asking.dry_run(imports.spec(spec, "slow_0"))
    until("the first import to begin", lambda: imports.begun() == ["slow_0"])
    (imports.folder / "quick.py").write_text("def train(config): ...")
    quick = {**spec, "entrypoint": "quick:train", "runtime_env": {"working_dir": str(imports.folder)}}
    assert asking.client.post("/api/v1/experiments/dry-run", json=quick).status_code == 200  # by the other helper

    slow = [asking.dry_run(imports.spec(spec, f"slow_{n}")) for n in range(1, 45)]
    until("both helpers to be at it", lambda: len(imports.begun()) == HELPERS)
    until("the rest to be refused", lambda: sum(f.done() for f in slow) == 45 - HELPERS - WAITING)
    refused = [f.result() for f in slow if f.done()]
    assert {answer.status_code for answer in refused} == {503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in refused)
    for path in ("/healthz", "/readyz", "/api/v1/experiments", "/"):
        assert asking.client.get(path).status_code == 200, path
    assert asking.client.post("/api/v1/experiments", json=spec).status_code == 201  # what is known needs no helper
    assert not first.done()

    imports.go.touch()
    answers = [f.result() for f in (first, *slow)]
    assert [answer.status_code for answer in answers].count(200) == HELPERS + WAITING


def test_the_same_slow_import_runs_once_for_all_who_ask(
    narrow: EntrypointChecker, server: str, imports: Imports, spec: dict[str, Any]
) -> None:
    asking = Asking(server)
    same = imports.spec(spec, "same", after="raise ValueError('bad luck')")
    together = [asking.dry_run(same) for _ in range(HELPERS + WAITING)]
    until("the import to begin", lambda: imports.begun() == ["same"])
    until("all to wait", lambda: narrow._waiting == HELPERS + WAITING)
    imports.go.touch()
    answers = [one.result() for one in together]
    assert [answer.status_code for answer in answers] == [422] * len(together)
    assert all("bad luck" in answer.text for answer in answers)
    assert imports.times("same") == 1


def test_the_end_of_the_service_ends_imports_and_answers_those_who_wait(
    app: FastAPI, imports: Imports, spec: dict[str, Any]
) -> None:
    checker = app.state.context.checker = EntrypointChecker(helpers=1)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = Server(app, log_level="warning", grace_s=60)
    thread = threading.Thread(target=lambda: asyncio.run(serving.serve(sockets=[listening])), daemon=True)
    thread.start()
    asking = Asking(f"http://127.0.0.1:{listening.getsockname()[1]}")
    asked = [asking.dry_run(imports.spec(spec, name)) for name in ("one", "two")]
    until("an import to begin", lambda: len(imports.begun()) == 1)
    until("both to wait", lambda: checker._waiting == 2)
    (helper,) = checker.pids()
    processes = [psutil.Process(helper), *psutil.Process(helper).children(recursive=True)]
    assert len(processes) == 2
    serving.should_exit = True
    assert [answer.result().status_code for answer in asked] == [503, 503]
    thread.join(timeout=30)
    assert not thread.is_alive()
    until("no helper", lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes))
    listening.close()


SERVICE = """
import sys
from pathlib import Path
from tuner.api import create_app
from tuner.api.server import Server
from tuner.settings import Settings
from tuner.store import Store
import socket

listening = socket.create_server(("127.0.0.1", 0))
with Store.open(sys.argv[1]) as store:
    app = create_app(Settings(home=Path(sys.argv[2])), store)
    print(listening.getsockname()[1], flush=True)
    Server(app, log_level="warning", grace_s=60).run(sockets=[listening])
"""


def test_sigterm_ends_a_service_that_imports(
    sqlite_url: str, tmp_path: Path, imports: Imports, spec: dict[str, Any]
) -> None:
    service = subprocess.Popen([sys.executable, "-c", SERVICE, sqlite_url, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert service.stdout is not None
        asking = Asking(f"http://127.0.0.1:{int(service.stdout.readline())}")
        asked = asking.dry_run(imports.spec(spec, "hangs"))
        until("the import to begin", lambda: imports.begun() == ["hangs"])
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=30) in (0, -signal.SIGTERM)
        assert asked.result().status_code == 503
    finally:
        service.kill()
        service.wait()
        assert service.stdout is not None
        service.stdout.close()
