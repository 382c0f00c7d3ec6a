"""A service over a socket, and both clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import app, poked, server, spec
from tuner.client.synchronous import Client

__all__ = ["app", "poked", "server", "spec"]


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as client:
        yield client
