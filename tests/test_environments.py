"""Test trials whose packages Ray installs for them, through `tuner serve`.

The package is a wheel that the test makes, so that pip and uv need no package index for it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import SLOW, Service, until

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

TRAIN = """
import tuner


def train(config):
    import only_in_the_environment

    tuner.report({"loss": only_in_the_environment.VALUE})
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel with a module that no other environment has."""
    path = tmp_path / "only_in_the_environment-1.0-py3-none-any.whl"
    info = "only_in_the_environment-1.0.dist-info"
    files = {
        "only_in_the_environment.py": "VALUE = 0.25\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: only-in-the-environment\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            packed.writestr(name, text)
    return path


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    home = tmp_path / "home"
    home.mkdir()
    found = Service(home, f"sqlite:///{home}/tuner.db")
    try:
        found.start()
        yield found
    finally:
        found.clean_up()


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_package_is_installed_for_the_trials(service: Service, wheel: Path, tmp_path: Path, installer: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "in_environment.py").write_text(TRAIN)
    environment = {"working_dir": str(code), installer: [str(wheel)]}
    spec: dict[str, Any] = {**SLOW, "entrypoint": "in_environment:train", "runtime_env": environment}
    answer = service.client.post("/api/v1/experiments", json=spec)
    assert answer.status_code == 201, answer.text
    path = f"/experiments/{answer.json()['id']}"
    until("the end", lambda: service.get(path)["ended_at"], seconds=500)
    ended = service.get(path)
    trials = service.get(f"{path}/trials")["items"]
    assert ended["state"] == "completed", [one["reason"] for one in trials]
    assert [one["best_value"] for one in trials] == [0.25, 0.25]
