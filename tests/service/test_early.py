"""Test the answers while the service is loaded: health checks, and an error to try again for everything else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tuner.errors import SpecError
from tuner.service.early import STARTING, Early, answering, listen


@pytest.fixture
def early() -> Iterator[Early]:
    with answering("127.0.0.1", 0) as early:
        yield early


def port_of(early: Early) -> int:
    return int(early.listening.getsockname()[1])


def ask(early: Early, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(early), timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    return response, response.read()


def test_it_is_alive_and_not_ready(early: Early) -> None:
    response, body = ask(early, "GET", "/healthz?x=1")
    assert (response.status, json.loads(body)) == (200, {"status": "ok"})
    response, body = ask(early, "GET", "/readyz")
    assert (response.status, json.loads(body)) == (503, {"status": "unready", "problems": [STARTING]})
    response, body = ask(early, "HEAD", "/healthz")
    assert (response.status, body) == (200, b"")


def test_everything_else_is_to_be_tried_again(early: Early) -> None:
    response, body = ask(early, "POST", "/api/v1/experiments")
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert json.loads(body)["detail"] == STARTING


def test_nonsense_and_silence_disturb_nobody(early: Early) -> None:
    with socket.create_connection(("127.0.0.1", port_of(early))) as silent:
        with socket.create_connection(("127.0.0.1", port_of(early))) as other:
            other.sendall(b"nonsense\r\n\r\n")
            assert other.recv(100) == b""
        assert ask(early, "GET", "/healthz")[0].status == 200
        early.end()
        assert silent.recv(100) == b""


def test_the_socket_goes_to_whoever_answers_next(early: Early) -> None:
    early.end()
    with socket.create_connection(("127.0.0.1", port_of(early))) as client:
        connection, _ = early.listening.accept()
        with connection:
            connection.sendall(b"next")
            assert client.recv(100) == b"next"
    assert not [thread for thread in threading.enumerate() if thread.name == "early"]


def test_a_port_that_is_taken_is_an_error(early: Early) -> None:
    with pytest.raises(SpecError, match="cannot be used"):
        listen("127.0.0.1", port_of(early))
