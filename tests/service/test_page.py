"""Test the address of the page that a script serves."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

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
