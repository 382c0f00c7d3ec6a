"""docs/serving.md: from a search to a prediction with curl, and Ctrl-C, which leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serving.md").read_text()
TUNER = [sys.executable, "-c", "from tuner.cli import main; main()"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--without-ray"], id="in one process"),
        pytest.param(
            [],
            id="on Ray Serve",
            marks=pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs the extra `serve`"),
        ),
    ],
)
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_a_search_to_a_prediction(options: list[str], tmp_path: Path) -> None:
    """The short form is `test_rollouts.py`, which calls the same application in this process."""
    [(name, script)] = re.findall(r"<!-- runs: (\S+) -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / name).write_text(script)
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home")}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    searched = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert searched.returncode == 0, searched.stdout + searched.stderr
    serving = subprocess.Popen(
        [*TUNER, "serve-model", "digits", f"{name}:Digits", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        line = next((line for line in serving.stdout if "answers at" in line), "")
        found = re.search(r"answers at (http://\S+)/predict", line)
        assert found is not None, line
        url = found[1]
        curl = re.search(r"^    (curl .*)$", TEXT, re.MULTILINE)
        assert curl is not None
        command = curl[1].replace("http://127.0.0.1:8100", url)
        answer = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        promised = re.search(r"The answer is `(.*?)`", TEXT)
        assert promised is not None
        assert json.loads(answer) == json.loads(promised[1])
        assert httpx.get(f"{url}/info").json()["name"] == "digits"
        assert httpx.post(f"{url}/rollout", timeout=120).json()["changed"] is False
        started = psutil.Process(serving.pid).children(recursive=True)
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
        _, alive = psutil.wait_procs(started, timeout=60)
        assert alive == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
    finally:
        serving.kill()
        serving.wait()
