"""docs/service.md: its scripts, its spec and its commands run as they stand there, against a real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Service

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"<!-- runs: ([^\n]*) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))
ADDRESS = "http://localhost:8000"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "home", f"sqlite:///{tmp_path / 'tuner.db'}")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def test_every_block_is_one_that_is_run() -> None:
    assert list(BLOCKS) == ["send.py", "spec.yaml", "shell", "result.py"]
    assert TEXT.count("```") == 2 * len(BLOCKS)


@pytest.mark.long  # tests/test_running_service.py, tests/cli/service and tests/client make the same calls
@pytest.mark.ray
@pytest.mark.slow
def test_the_page_as_it_stands(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    function = BLOCKS["send.py"].partition("\n\nif __name__")[0]
    (folder / "training.py").write_text(function)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = {}
    for name, code in BLOCKS.items():
        (folder / name).write_text(code.replace(ADDRESS, str(service.client.base_url).rstrip("/")))
        if name.endswith(".yaml"):
            continue
        done = subprocess.run(
            [sys.executable, name] if name.endswith(".py") else ["bash", "-e", name],
            cwd=folder,
            env={**os.environ, "TUNER_HOME": str(tmp_path / "another home"), "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        said[name] = done.stdout + done.stderr
        assert done.returncode == 0, said[name][-6000:]
    assert re.search(r"\{'lr': 0\.\d+\} 0\.\d+", said["send.py"])
    assert "filed" in said["shell"]
    assert re.search(r"completed\n\{'lr': 0\.\d+\} 0\.\d+", said["result.py"])
