"""Test the server: its end in a process of its own, and the collection of garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.api.conftest import serving
from tuner.api.server import Server
from tuner.store import Store

SERVICE = """
import asyncio, signal, socket, sys
from pathlib import Path
from tuner.api import create_app
from tuner.api.access.auth import Authenticator
from tuner.api.server import Server
from tuner.settings import Settings
from tuner.store import Store

write = Authenticator._write_notes

async def write_late(authenticator):
    await asyncio.sleep(0.3)
    await write(authenticator)

Authenticator._write_notes = write_late  # as on a busy machine

signal.signal(signal.SIGHUP, signal.default_int_handler)
for grace_s in (1, 1, 60, 60):
    listening = socket.create_server(("127.0.0.1", 0))
    with Store.open(sys.argv[1]) as store:
        app = create_app(Settings(home=Path(sys.argv[2])), store)
        print(listening.getsockname()[1], flush=True)
        try:
            Server(app, log_level="info", grace_s=grace_s).run(sockets=[listening])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    listening.close()
"""
"""Four services, one after the other, since the modules take long to load."""


@pytest.fixture
def services(sqlite_url: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVICE, sqlite_url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def wait_for_an_answer(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
            return
        time.sleep(0.05)


def test_signals_end_a_service_without_an_error_in_its_log(services: subprocess.Popen[str], sqlite_url: str) -> None:
    """A request that took too long to be answered got 500, with a traceback in the log of the service.

    SIGHUP, which a closed terminal sends, cut requests.
    """
    assert services.stdout is not None
    for number, end in enumerate((signal.SIGINT, signal.SIGHUP), 1):
        with socket.create_connection(("127.0.0.1", int(services.stdout.readline()))) as client:
            head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue"
            client.sendall(f"POST /api/v1/experiments HTTP/1.1\r\n{head}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 100"), "it waits for the body"
            services.send_signal(end)
            answer = b"".join(iter(lambda: client.recv(1000), b""))
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the service was stopped before the request was answered" in answer
        assert b"x-request-id: " in answer.lower()
        assert services.stdout.readline() == "interrupted\n"
        with Store.open(sqlite_url) as store:
            assert [entry.status for _, entry in store.access.trail()] == [503] * number

    wait_for_an_answer(int(services.stdout.readline()))
    services.send_signal(signal.SIGINT)
    assert services.stdout.readline() == "interrupted\n"

    wait_for_an_answer(int(services.stdout.readline()))
    for _ in range(2):  # the user is impatient
        services.send_signal(signal.SIGINT)
        time.sleep(0.02)  # signals of the same number that come at once are one
    out, err = services.communicate(timeout=60)
    assert "interrupted" in out
    assert "Traceback" not in err


def test_a_connection_outlives_the_idle_time_of_a_load_balancer(app: FastAPI) -> None:
    """It was closed after 5 s, at times just when a load balancer sent the next request, which it then answered with 502."""
    assert Server(app).config.timeout_keep_alive > 60


def test_garbage_collections_leave_out_what_was_loaded_at_the_start(app: FastAPI) -> None:
    gc.unfreeze()
    for server in serving(app):
        assert httpx.get(f"{server}/healthz").status_code == 200
        assert gc.get_freeze_count() > 50_000


def test_the_server_uses_the_quicker_event_loop_if_it_is_installed(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[str] = []
    tick = Server.on_tick

    async def noting(self: Server, counter: int) -> bool:
        loops.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return await tick(self, counter)

    monkeypatch.setattr(Server, "on_tick", noting)
    for server in serving(app):
        assert httpx.get(f"{server}/healthz").status_code == 200
    assert set(loops) == {"uvloop" if find_spec("uvloop") else "asyncio"}


def test_a_burst_of_requests_starts_no_garbage_collection(app: FastAPI, spec: dict[str, Any]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(700)
    begun: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            begun.append(about["generation"])

    try:
        for server in serving(app):
            with httpx.Client(base_url=server) as client:
                client.post("/api/v1/experiments", json=spec).raise_for_status()
                gc.collect()
                gc.callbacks.append(note)
                kept = [[number] for number in range(2000)]  # as many objects as the requests of a burst have
                gc.callbacks.remove(note)
    finally:
        gc.set_threshold(*before)
    assert kept
    assert begun == []


def test_a_closed_terminal_does_not_end_a_service_that_runs_under_nohup(app: FastAPI) -> None:
    server, before = Server(app), signal.getsignal(signal.SIGHUP)
    try:
        for set_before, meanwhile in ((signal.SIG_IGN, signal.SIG_IGN), (signal.SIG_DFL, server.handle_exit)):
            signal.signal(signal.SIGHUP, set_before)
            with server.capture_signals():
                assert signal.getsignal(signal.SIGHUP) == meanwhile
            assert signal.getsignal(signal.SIGHUP) == set_before
    finally:
        signal.signal(signal.SIGHUP, before)
