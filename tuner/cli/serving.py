"""`tuner export-model` and `tuner serve-model`: export and serve the best model of an experiment."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from tuner.cli.targets import imported
from tuner.errors import SpecError
from tuner.names import printable
from tuner.sdk.result import Result
from tuner.settings import Settings


def export_model(
    result: Result,
    folder: Path,
    model: str | None,
    formats: Sequence[Any],
    example_input: str | None,
    file: str | None,
    key: str | None,
) -> Path:
    """Export the best model of a search into a new folder, and return the folder.

    `model` and `example_input` name objects, as ``FILE.py:NAME`` or ``module:name``.
    """
    from tuner.serving.exports import export  # loads torch

    example = None if example_input is None else imported(example_input)
    return export(
        result,
        folder,
        model=None if model is None else imported(model),
        formats=formats,
        example_input=example() if callable(example) else example,
        file=file,
        key=key,
    )


def serve_on_ray(settings: Settings, experiment: str, predictor: str, name: str | None, **options: Any) -> None:
    """Serve the best model of an experiment with Ray Serve until Ctrl-C or SIGTERM."""
    from tuner.serving.ray_serve import application_name, deployment, finder  # loads Ray

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    find = finder(experiment, settings)
    name = name or application_name(find().name or experiment)
    with deployment(find, imported(predictor), name=name, **options) as deployed:
        signal.signal(signal.SIGINT, lambda *_: ended.set())
        _announce(experiment, deployed.url)
        while not ended.wait(1):  # Python runs signal handlers only between two waits
            pass


def serve_in_process(
    settings: Settings, experiment: str, predictor: str, host: str, port: int, token: str | None
) -> None:
    """Serve the best model of an experiment from this process until Ctrl-C or SIGTERM."""
    from tuner.serving.ray_serve import check_host, finder, in_process

    check_host(host, token)
    hosts = [host.lower(), *settings.allowed_hosts]
    app = asyncio.run(in_process(finder(experiment, settings), imported(predictor), token, hosts))
    with listening(host, port) as server:
        shown = f"[{host}]" if ":" in host else host
        _announce(experiment, f"http://{shown}:{server.getsockname()[1]}")
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([server])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address, which may be an IPv6 one. Raise SpecError if it cannot."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)  # IPv4 first, as for localhost
        return socket.create_server((str(address[0]), int(address[1])), family=family)
    except OSError as error:
        raise SpecError(f"cannot listen on port {port} of {host}: {error.strerror or error}", "/port") from error


def _announce(experiment: str, url: str) -> None:
    print(f"the best model of {printable(experiment)} answers at {url}/predict; Ctrl-C stops the server", flush=True)
