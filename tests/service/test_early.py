"""Test the answers while the service is loaded: health checks, and an error to try again for everything else."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tuner.errors import SpecError
from tuner.service import early as module
from tuner.service.early import (
    MOST_BYTES,
    MOST_CLIENTS,
    PATIENCE_S,
    STARTING,
    Early,
    answering,
    guess,
    guessed,
    listen,
)
from tuner.settings import Settings


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


def test_a_browser_gets_a_page_that_loads_itself_again(early: Early) -> None:
    """It showed JSON, and stayed like that."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(early), timeout=10)
    connection.request("GET", "/experiments", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    response = connection.getresponse()
    assert (response.status, response.headers["Content-Type"]) == (503, "text/html; charset=utf-8")
    body = response.read()
    assert b"http-equiv=refresh content=1" in body
    assert b"The service is starting" in body


def test_nonsense_and_silence_disturb_nobody(early: Early) -> None:
    with socket.create_connection(("127.0.0.1", port_of(early))) as silent:
        with socket.create_connection(("127.0.0.1", port_of(early))) as other:
            other.sendall(b"nonsense\r\n\r\n")
            assert other.recv(100) == b""
        assert ask(early, "GET", "/healthz")[0].status == 200
        early.end()
        assert silent.recv(100) == b""


def test_a_request_with_a_long_body_reads_its_answer(early: Early) -> None:
    with socket.create_connection(("127.0.0.1", port_of(early))) as client:
        client.sendall(b"POST /api/v1/experiments HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: client.recv(1000), b"")).startswith(b"HTTP/1.1 503 ")


def test_a_head_without_an_end_is_not_read_on(early: Early) -> None:
    with socket.create_connection(("127.0.0.1", port_of(early))) as client, pytest.raises(ConnectionError):
        while True:
            client.sendall(b"x" * MOST_BYTES)


def test_the_oldest_of_too_many_connections_is_closed(early: Early) -> None:
    with contextlib.ExitStack() as open_ones:
        first, *_ = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port_of(early))))
            for _ in range(MOST_CLIENTS + 1)
        ]
        first.settimeout(PATIENCE_S / 2)  # before its own time is up
        assert first.recv(1) == b""


def test_a_client_that_is_closed_for_a_newer_one_may_just_have_sent_something(
    early: Early, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 3)
    with contextlib.ExitStack() as open_ones:
        for _ in range(200):
            clients = [
                open_ones.enter_context(socket.create_connection(("127.0.0.1", port_of(early)))) for _ in range(4)
            ]
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b"x")
    assert ask(early, "GET", "/healthz")[0].status == 200


def test_slow_clients_are_closed(early: Early) -> None:
    with socket.create_connection(("127.0.0.1", port_of(early)), timeout=10 * PATIENCE_S) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        assert slow.recv(1) == b""


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["serve"], {}, ("127.0.0.1", 8000)),
        (["serve", "--port", "0"], {"TUNER_PORT": "9000"}, ("127.0.0.1", 0)),
        (["serve", "--auth", "--port=81", "--host", "::1"], {}, ("::1", 81)),
        (["serve", "--database-url", "x"], {"TUNER_PORT": " 82 ", "TUNER_HOST": "localhost"}, ("localhost", 82)),
        (["serve"], {"TUNER_PORT": ""}, ("127.0.0.1", 8000)),
        (["serve"], {"TUNER_PORT": "x"}, None),
        (["serve", "--port"], {}, None),
        (["serve", "--port", "-1"], {}, None),
        (["serve", "--port", "9" * 5000], {}, None),
        (["serve", "--stop"], {}, None),
        (["serve", "--help"], {}, None),
        (["ls"], {}, None),
        ([], {}, None),
    ],
)
def test_the_address_is_guessed_before_the_settings_are_loaded(
    arguments: list[str], environ: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert guess(arguments, environ) == expected


def test_the_guess_knows_the_defaults_of_the_settings() -> None:
    settings = Settings.from_env({})
    assert guess(["serve"], {}) == (settings.host, settings.port)


def test_a_right_guess_is_kept_and_a_wrong_one_is_corrected() -> None:
    with guessed(["serve", "--port", "0"], {}) as early, answering("127.0.0.1", 0, early) as answers:
        assert answers is early
    assert early is not None
    assert early.listening.fileno() == -1
    with guessed(["serve", "--port", "0"], {}) as early, answering("localhost", 0, early) as answers:
        assert early is not None
        assert early.listening.fileno() == -1
        assert ask(answers, "GET", "/healthz")[0].status == 200


@pytest.mark.parametrize("port", ["taken", "65536", "99999999999999999999"])
def test_a_guess_that_cannot_be_used_is_left_to_the_command(early: Early, port: str) -> None:
    with guessed(["serve", "--port", port.replace("taken", str(port_of(early)))], {}) as none:
        assert none is None


def test_the_first_answer_waits_for_few_modules() -> None:
    """Each of these takes longer to load than all that the answer needs; on a busy machine, that makes seconds."""
    names = ("asyncio", "json", "logging", "ssl", "tempfile", "typer", "tuner.cli.commands", "tuner.settings")
    code = f"import sys, tuner.cli, tuner.service.early; print([n for n in {names} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_command_answers_before_it_loads_its_options() -> None:
    code = """
import http.client, sys
class Asking:
    def find_spec(self, name, path=None, target=None):
        if name == "tuner.cli.commands":
            import gc
            from tuner.service.early import Early
            [early] = [found for found in gc.get_objects() if type(found) is Early]
            connection = http.client.HTTPConnection(*early.listening.getsockname())
            connection.request("GET", "/healthz")
            print(connection.getresponse().status)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Asking())
from tuner.cli import main
sys.argv = ["tuner", "serve", "--port", "0"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "200\n", "")


def test_the_socket_goes_to_whoever_answers_next(early: Early) -> None:
    early.end()
    with socket.create_connection(("127.0.0.1", port_of(early))) as client:
        early.listening.setblocking(True)
        connection, _ = early.listening.accept()
        with connection:
            connection.sendall(b"next")
            assert client.recv(100) == b"next"
    assert not [thread for thread in threading.enumerate() if thread.name == "early"]


def test_a_port_that_is_taken_is_an_error(early: Early) -> None:
    with pytest.raises(SpecError, match="cannot be used"):
        listen("127.0.0.1", port_of(early))


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.123", "nothing.invalid"])
def test_a_host_that_is_not_this_machine_is_an_error_that_names_the_host(host: str) -> None:
    """The advice was to choose another port."""
    with pytest.raises(
        SpecError, match=f"cannot listen on {host}: .*; --host .* is a name or an address of this machine"
    ):
        listen(host, 0)


@pytest.mark.parametrize("port", [-1, 65536, 10**20])
def test_a_number_that_is_no_port_is_an_error(port: int) -> None:
    with pytest.raises(SpecError, match=f"port {port} of 127.0.0.1 cannot be used: a port is a number from 0 to 65535"):
        listen("127.0.0.1", port)
