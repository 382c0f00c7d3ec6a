"""`tuner serve-model` explains addresses and files that it cannot use."""

from __future__ import annotations

import json
import math
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tuner.cli import serving
from tuner.cli.commands import app
from tuner.errors import SpecError
from tuner.settings import Settings


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=rf"port: cannot listen on port {port} of 127.0.0.1: .*in use"):
            serving.listening("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(SpecError, match=r"cannot listen on port 0 of nowhere\.invalid: "):
        serving.listening("nowhere.invalid", 0)


def test_a_host_with_several_addresses_is_served_at_the_one_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = (socket.SOCK_STREAM, 6, "")
    both = [(socket.AF_INET6, *stream, ("::1", 0, 0, 0)), (socket.AF_INET, *stream, ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **options: both)
    with serving.listening("localhost", 0) as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_a_model_that_anyone_could_call_needs_a_token() -> None:
    with pytest.raises(SpecError, match="token"):
        serving.serve_in_process(Settings(), "lines", "json:JSONDecoder", "0.0.0.0", 0, None)


def test_a_function_that_makes_the_example_input_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[Any] = []
    module = SimpleNamespace(export=lambda result, folder, **options: exported.append(options))
    monkeypatch.setitem(sys.modules, "tuner.serving.exports", module)
    for example in ("json:JSONDecoder", "math:pi"):
        serving.export_model(SimpleNamespace(), tmp_path, None, ["onnx"], example, "model.pt", "net")  # type: ignore[arg-type]
    assert isinstance(exported[0].pop("example_input"), json.JSONDecoder)
    assert exported[1].pop("example_input") == math.pi
    assert exported == [{"model": None, "formats": ["onnx"], "file": "model.pt", "key": "net"}] * 2


def test_an_ipv6_address_has_brackets_in_the_url(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")

    calls: list[tuple[object, ...]] = []

    async def loaded(*given: object) -> None:
        calls.append(given)

    bound: list[socket.socket] = []
    monkeypatch.setattr("tuner.serving.ray_serve.finder", lambda *given: None)
    monkeypatch.setattr("tuner.serving.ray_serve.in_process", loaded)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: bound.extend(one.dup() for one in sockets))
    serving.serve_in_process(Settings(allowed_hosts=("model.lan",)), "lines", "json:JSONDecoder", "::1", 0, None)
    with bound[0] as server:
        assert server.family == socket.AF_INET6
        port = server.getsockname()[1]
    assert f"http://[::1]:{port}/predict" in capsys.readouterr().out
    assert calls[0][3] == ["::1", "model.lan"]  # callers without a token may use these names


def test_options_of_serve_model_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    command = ["serve-model", "lines", "module:Lines", "--without-ray"]
    missing = CliRunner().invoke(app, [*command, "--token-file", str(tmp_path / "missing")])
    assert isinstance(missing.exception, SpecError)
    assert str(missing.exception) == f"token_file: cannot read {tmp_path / 'missing'}: No such file or directory"
    assert CliRunner().invoke(app, [*command, "--port", "70000"]).exit_code == 2


def test_the_options_of_serve_model_reach_ray_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []
    monkeypatch.setattr(serving, "serve_on_ray", lambda *_, **options: called.append(options))
    (tmp_path / "token").write_text("secret\n")
    options = [
        "--host",
        "0.0.0.0",
        "--port",
        "8100",
        "--token-file",
        str(tmp_path / "token"),
        "--replicas",
        "2",
        "--num-gpus",
        "1",
    ]
    done = CliRunner().invoke(app, ["serve-model", "lines", "module:Lines", *options])
    assert done.exit_code == 0, done.output
    assert called == [
        {
            "host": "0.0.0.0", "port": 8100, "token": "secret", "ray_address": None, "num_replicas": 2, "num_cpus": 1.0,
            "num_gpus": 1.0,
        }
    ]  # fmt: skip
