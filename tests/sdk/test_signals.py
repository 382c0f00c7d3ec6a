"""Test scripts that are told to end while they search: by `kill`, by a batch system, or by a terminal that is closed."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import tuner
from tests.services import DEADLINE_S, until
from tuner.errors import StoreError
from tuner.hosts.scripts import local_host
from tuner.sdk.live.terminal import LastingConsole, tell
from tuner.store import ExperimentRecord, Store

ROOT = Path(__file__).parents[2]
SCRIPT = """
import atexit, pathlib, time, tuner

def train(config):
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = int(pathlib.Path(folder, "step").read_text())
    for step in range(start + 1, 1001):
        time.sleep(0.05)
        tuner.report({"loss": 1 / step}, checkpoint=lambda folder: pathlib.Path(folder, "step").write_text(str(step)))

if __name__ == "__main__":
    atexit.register(pathlib.Path("ended").touch)
    options = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "search_alg": "random"}
    tuner.run(train, {"x": tuner.uniform(0, 1)}, name="told", **options)
    pathlib.Path("went on").touch()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "home"


def started(home: Path, terminal: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    script = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=home.parent,
        stdin=terminal,
        stdout=terminal if terminal != subprocess.DEVNULL else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until("reports", lambda: (home / "tuner.db").exists() and iteration(home) > 2)
    return script


def the_search(home: Path) -> ExperimentRecord:
    with Store.open(f"sqlite:///{home / 'tuner.db'}") as store:
        return store.experiments.page().items[0]


def iteration(home: Path) -> int:
    """Return the iteration of the only trial, or 0 if it has not started."""
    with contextlib.suppress(StoreError), Store.open(f"sqlite:///{home / 'tuner.db'}") as store:
        trials = [row for search in store.experiments.page().items for row in store.trials.page(search.id).items]
        return trials[0].iteration if trials else 0
    return 0  # there are no tables yet


def the_script(script: subprocess.Popen[str]) -> None:
    script.send_signal(signal.SIGTERM)


def the_group(script: subprocess.Popen[str]) -> None:
    os.killpg(script.pid, signal.SIGHUP)


def everything(script: subprocess.Popen[str]) -> None:
    """Do as a batch system does: send SIGTERM to the script and to the ranks."""
    parent = psutil.Process(script.pid)
    for process in [parent, *parent.children(recursive=True)]:
        process.terminate()


def check_pause(home: Path, tell: Callable[[subprocess.Popen[str]], None], status: int) -> None:
    """Start a script, tell it to end, and check that its search is paused."""
    script = started(home)
    children = psutil.Process(script.pid).children(recursive=True)
    tell(script)
    output, _ = script.communicate(timeout=DEADLINE_S)
    assert script.returncode == status, output
    assert "paused; continue with: tuner resume" in output
    assert (home.parent / "ended").exists(), "the end is an orderly one"
    assert not (home.parent / "went on").exists()
    until("no process left", lambda: not any(child.is_running() for child in children))
    paused = the_search(home)
    # If a rank ends before the driver asks it to pause, its trial waits for a retry, and counts as pending.
    waits = paused.counts["paused"] + (paused.counts["pending"] if tell is everything else 0)
    assert (paused.state, waits) == ("paused", 1), paused.counts


@pytest.mark.parametrize(("tell", "status"), [(the_group, 129), (everything, 143)])
def test_the_search_is_paused(home: Path, tell: Callable[[subprocess.Popen[str]], None], status: int) -> None:
    check_pause(home, tell, status)


def test_the_search_is_paused_and_goes_on_later(home: Path) -> None:
    check_pause(home, the_script, 143)
    reached = iteration(home)
    command = [sys.executable, "-m", "tuner", "resume", "told"]
    resumed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    until("more reports", lambda: iteration(home) > reached)
    resumed.terminate()
    assert resumed.wait(timeout=DEADLINE_S) == 143
    with Store.open(f"sqlite:///{home / 'tuner.db'}") as store:
        trial = store.trials.get(store.trials.page(the_search(home).id).items[0].public_id)
    assert [segment.start_iteration for segment in trial.segments] == [0, reached]


@pytest.mark.parametrize(
    "told", [lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: sys.exit(signal.SIGTERM)], ids=["itself", "Ray"]
)
def test_a_script_that_is_told_to_end_while_its_driver_starts_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: Callable[[], None]
) -> None:
    """Ray's own handler of SIGTERM, which Ray sets when it starts, exits with the number of the signal."""
    monkeypatch.setattr(local_host, "borrow", lambda *_, **__: told())
    with pytest.raises(SystemExit) as ended:
        tuner.run(print, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", executor="local")
    assert ended.value.code == 143
    assert "continue with: tuner resume exp_" in capsys.readouterr().err


def test_the_search_is_paused_when_its_terminal_is_closed(home: Path) -> None:
    ours, theirs = pty.openpty()
    script = started(home, theirs)
    os.close(theirs)
    os.close(ours)  # each write fails from now on
    script.send_signal(signal.SIGHUP)
    script.wait(timeout=DEADLINE_S)
    assert (script.returncode, the_search(home).state) == (129, "paused")


SHORT = """
import os, sys, time, tuner

GONE = os.path.abspath("gone")

def train(config):
    while not os.path.exists(GONE):
        time.sleep(0.01)
    for step in range(3):
        tuner.report({"loss": 1 / (step + 1)})

if __name__ == "__main__":
    options = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "search_alg": "random"}
    tuner.run(train, {"x": tuner.uniform(0, 1)}, name="piped", executor="local", verbose=int(sys.argv[1]), **options)
    open("went on", "w").close()
"""


@pytest.mark.parametrize("verbose", ["1", "2"])
def test_a_search_goes_on_if_the_reader_of_its_output_goes_away(home: Path, verbose: str) -> None:
    """Run the script as in `python script.py | head -1`."""
    (home.parent / "script.py").write_text(SHORT)
    errors = home.parent / "errors"
    with open(errors, "w") as stderr:
        script = subprocess.Popen(
            [sys.executable, "script.py", verbose], cwd=home.parent, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        assert script.stdout is not None
        script.stdout.readline()
        script.stdout.close()
        (home.parent / "gone").touch()
        try:
            assert script.wait(timeout=DEADLINE_S) == 0, errors.read_text()
        finally:
            script.kill()
    assert (home.parent / "went on").exists()
    assert errors.read_text() == ""
    with Store.open(f"sqlite:///{home / 'tuner.db'}") as store:
        (record,) = store.experiments.named("piped")
    assert (record.state, record.counts["completed"]) == ("completed", 1)


def test_a_line_whose_reader_has_gone_away_is_discarded() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as file:
        tell("nobody reads this", file)
        LastingConsole(file=file).print("nor this")
