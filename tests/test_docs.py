"""The docs as a site: it builds without a warning, and has every page and every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"contributing", "changelog", "python"}
    assert {path.parent.name for path in site.glob("*/index.html")} >= pages


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "python" / "index.html").read_text()
    assert [name for name in tuner.__all__ if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow
def test_the_first_page_is_the_readme_with_links_into_the_site(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'href="getting_started/' in page
    assert "docs/getting_started" not in page
