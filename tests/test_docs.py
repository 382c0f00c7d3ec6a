"""The docs as a site: it builds without a warning, and has every page and every public name."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import tuner
from tuner import errors
from tuner.domain.segments import CAUSES
from tuner.store.sql.connect import StoreUnavailable

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


def test_every_error_and_every_cause_has_its_section_in_troubleshooting() -> None:
    sections = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE))
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.TunerError)
    }
    page = (ROOT / "docs" / "trials.md").read_text()
    rows = re.findall(r"^\|[^|]*\|([^|]*)\| (?:yes|no) \|$", page, re.MULTILINE)
    causes = {cause for cell in rows for cause in re.findall(r"`(\w+)`", cell)} - {"traceback"}  # a field, not a cause
    assert causes == CAUSES
    assert kinds | CAUSES == sections


def test_a_traceback_names_the_section() -> None:
    with pytest.raises(errors.StoreError) as caught:
        raise StoreUnavailable("the database is away")
    assert traceback.format_exception(caught.value)[-1].strip() == "What to do: tuner docs StoreError"
    assert str(caught.value) == "the database is away"
    assert pickle.loads(pickle.dumps(errors.SpecError("no", "/space"))).__notes__ == [
        "What to do: tuner docs SpecError"
    ]
