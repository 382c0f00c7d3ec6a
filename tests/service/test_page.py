"""Test the address of the page that a script serves."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tuner.errors import SpecError
from tuner.service.page import Page
from tuner.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_the_page_is_at_its_url(tmp_path: Path, host: str) -> None:
    page = Page(Settings(home=tmp_path, host=host), port=0)
    try:
        page.start()
        assert page.url.startswith(f"http://{host}:")
        assert httpx.get(f"{page.url}/healthz").status_code == 200
    finally:
        page.stop()


def test_a_port_that_was_given_and_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for port in (taken, 99999):
            with pytest.raises(SpecError, match=f"port {port} of 127.0.0.1 cannot be used"):
                Page(Settings(home=tmp_path), port=port)
        page = Page(Settings(home=tmp_path, port=taken))
        page.stop()
        assert not page.url.endswith(f":{taken}"), "the port of the settings is only a default"
