"""docs/serving.md: from a search to a prediction with curl, and Ctrl-C, which leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serving.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"<!-- runs: (\S+) -->\n```python\n(.*?)```", TEXT, re.DOTALL))
TUNER = [sys.executable, "-c", "from tuner.cli import main; main()"]


def test_every_python_block_is_one_that_is_run() -> None:
    assert list(BLOCKS) == ["digits.py", "load.py", "export.py", "deploy.py"]
    assert TEXT.count("```python") == len(BLOCKS)
    assert all(compile(code, name, "exec") for name, code in BLOCKS.items())


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
    for name in BLOCKS:
        (tmp_path / name).write_text(BLOCKS[name])
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home")}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    said = {}
    export = re.search(r"^    tuner (export-model .*)$", TEXT, re.MULTILINE)
    assert export is not None
    for command in (["digits.py"], ["load.py"], ["export.py"], [*TUNER[1:], *shlex.split(export[1])]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said[command[0]] = done.stdout
    assert "torch.Size([1, 10])" in said["load.py"]
    for folder, files in {"model": ["safetensors", "pt2", "onnx"], "exported": ["pt2"]}.items():
        assert all((tmp_path / folder / f"model.{file}").stat().st_size > 0 for file in files)
    if not options:
        _deploy(tmp_path, environment)
    serve = re.search(r"^    tuner (serve-model .*) --port 8100$", TEXT, re.MULTILINE)
    assert serve is not None
    serving = subprocess.Popen(
        [*TUNER, *shlex.split(serve[1]), *options],
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
        promised = re.search(r"The response is `(.*?)`", TEXT)
        assert promised is not None
        assert json.loads(answer) == json.loads(promised[1])
        assert httpx.get(f"{url}/info").json()["name"] == "best-digits"
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


def _deploy(folder: Path, environment: Any) -> None:
    """Run the script that deploys from Python, until it answers."""
    deployed = subprocess.Popen(
        [sys.executable, "deploy.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert deployed.stdout is not None
        url = next((line.strip() for line in deployed.stdout if line.startswith("http://")), "")
        body = (folder / "images.json").read_text()
        json_body = {"content-type": "application/json"}  # FastAPI reads no other body as JSON
        answer = httpx.post(f"{url}/predict", content=body, headers=json_body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"] == [0, 1, 2]
        deployed.send_signal(signal.SIGINT)
        assert deployed.wait(60) == 0
    finally:
        deployed.kill()
        deployed.wait()
