"""Serve the data of `page_scale` with optuna-dashboard, for comparison.

It runs in a separate environment, which --peer names:

    python -m venv /tmp/peer && /tmp/peer/bin/pip install optuna-dashboard
    python -m benchmarks.page_scale --only page --peer /tmp/peer/bin/python
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

# The values that a trial reported are written with one statement. Optuna would write each with several.
_MAKE = """
import json, sqlite3, sys
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
distributions = {"lr": FloatDistribution(1e-5, 1.0, log=True), "width": IntDistribution(8, 512),
                 "optimizer": CategoricalDistribution(["adam", "sgd", "lion"])}
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(storage="sqlite:///" + sys.argv[1], study_name="peer", direction="maximize")
for line in sys.stdin:
    params, values = json.loads(line)
    study.add_trial(create_trial(state=TrialState.COMPLETE, value=max(values), params=params, distributions=distributions))
    with sqlite3.connect(sys.argv[1]) as connection:
        trial, = connection.execute("SELECT max(trial_id) FROM trials").fetchone()
        connection.executemany(
            "INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type) "
            "VALUES (?, ?, ?, 'FINITE')", [(trial, step, value) for step, value in enumerate(values, 1)])
    connection.close()
last = study.trials[-1] if len(values) < 1000 else None
assert last is None or list(last.intermediate_values.values()) == values, "Optuna reads back something other than was written"
"""
_VERSION = "from importlib.metadata import version; print(version('optuna-dashboard'))"

PATH = "/dashboard/studies/1"


def make(python: str, file: Path, trials: Iterable[tuple[dict[str, Any], Sequence[float]]]) -> bool:
    """Write a study with these trials, their parameters and their reports. Return False if it exists already."""
    if file.exists():
        return False
    unfinished = file.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    process = subprocess.Popen([python, "-c", _MAKE, str(unfinished)], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    with process.stdin as lines:
        for params, values in trials:
            lines.write(json.dumps([params, list(values)]) + "\n")
    if process.wait() != 0:
        raise RuntimeError(f"{python} could not write the study; the lines above say why")
    unfinished.rename(file)
    return True


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
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(url, timeout=60)
                break
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} exited with status {process.returncode}")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.kill()
        process.wait()
