"""Serve the data of `page_scale` with optuna-dashboard, for comparison.

It runs in an environment of its own, which --peer names:

python -m venv /tmp/peer && /tmp/peer/bin/pip install optuna-dashboard
python -m benchmarks.page_scale --only page --peer /tmp/peer/bin/python
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

_MAKE = """
import json, sys
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
distributions = {"lr": FloatDistribution(1e-5, 1.0, log=True), "width": IntDistribution(8, 512),
                 "optimizer": CategoricalDistribution(["adam", "sgd", "lion"])}
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(storage=sys.argv[1], study_name="peer", direction="maximize")
for line in sys.stdin:
    params, values = json.loads(line)
    study.add_trial(create_trial(state=TrialState.COMPLETE, value=max(values), params=params, distributions=distributions,
                                 intermediate_values=dict(enumerate(values, 1))))
"""
_VERSION = "from importlib.metadata import version; print(version('optuna-dashboard'))"

PATH = "/dashboard/studies/1"
DRAWN = "n => document.querySelectorAll('#graph-intermediate-values .scatterlayer .trace').length >= n"


def make(python: str, file: Path, trials: Sequence[tuple[dict[str, Any], Sequence[float]]]) -> None:
    """Write a study with these trials: their parameters and what they reported."""
    if file.exists():
        return
    lines = "".join(json.dumps([params, list(values)]) + "\n" for params, values in trials)
    subprocess.run([python, "-c", _MAKE, f"sqlite:///{file}"], input=lines, text=True, check=True)


def version(python: str) -> str:
    return subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def serving(python: str, file: Path) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of a dashboard on this study."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(Path(python).with_name("optuna-dashboard")), f"sqlite:///{file}", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(url, timeout=60)
                break
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()
