"""Scripts whose trials run in processes of this machine: cold, warm, interrupted, killed and resumed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

import tuner
from tests.store.examples import a_spec
from tuner.domain import decisions as d
from tuner.domain.events import Reported
from tuner.domain.experiment import Mode
from tuner.domain.trial import Population
from tuner.errors import StoreError
from tuner.experiment.operations.trials import fork_trial
from tuner.hosts.host import Host
from tuner.hosts.scripts import local_host, prestart
from tuner.search import Searcher, Suggestion
from tuner.settings import Settings
from tuner.store import Store
from tuner.trials.groups.segments.manager import GroupManager
from tuner.usercode.trainable import by_value

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks would import this module, with all that it imports

SPACE = {"x": tuner.uniform(0, 1)}
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    tuner.shutdown()
    assert [child for child in psutil.Process().children(recursive=True) if "local_rank" in child.cmdline()] == []


def train(config: dict[str, Any]) -> None:
    tuner.report({"loss": config["x"], "pid": os.getpid()})


def search(function: Any = train, **options: Any) -> tuner.Result:
    arguments: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 4, "scheduler": "fifo", "verbose": 0}
    return tuner.run(function, SPACE, **{**arguments, "executor": "local", **options})


def until(happened: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def pids(result: tuner.Result) -> set[float]:
    return {row["pid"] for trial in result.trials for row in trial.history}


def notes(result: tuner.Result) -> list[str]:
    with Store.open(Settings.from_env().database_url) as store:
        log = store.drivers.load(store.experiments.get(result.experiment_id).id)
        return [entry.reason for _, entry in log if isinstance(entry, d.Note)]


def test_the_worker_groups_learn_of_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(GroupManager, "reported", lambda self, segment_id: noted.append(segment_id))
    search(num_samples=1)
    assert noted
    assert len(set(noted)) == 1


def test_a_search_that_is_interrupted_while_its_host_starts_leaves_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later searches in this process used the host, which no longer released its database and its processes after them."""
    search(num_samples=1)
    kept = local_host._kept
    assert kept is not None

    def interrupted(self: local_host.LocalHost) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(local_host.LocalHost, "start", interrupted)
        search(num_samples=1)
    assert (local_host._kept, kept.users) == (None, 0)
    assert not kept.host._thread.is_alive()


class Slow(Searcher):
    """A searcher that is asked in another process."""

    TYPE = "slow"
    HEAVY = True

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}

    def suggest(self, number: int, trials: Population) -> Suggestion:
        return Suggestion({"x": (number + 1) / 8})


def test_a_slow_searcher_of_the_user_proposes_the_first_trial_too() -> None:
    """Its configuration was drawn at random after three errors, since no process for the searcher was known yet."""
    result = search(search_alg=Slow(), num_samples=2)
    assert [trial.config["x"] for trial in result.trials] == [1 / 8, 2 / 8], notes(result)


def test_a_second_search_finds_the_host_and_the_warm_processes_of_the_first() -> None:
    def given(config: dict[str, Any]) -> None:
        modules = sys.modules["tuner.trials.runtime.function.modules"]
        tuner.report({"loss": config["x"], "pid": os.getpid(), "given": len(modules._given)})

    first = search()
    assert first.state == "completed", first.error
    assert len(first.trials) == 4
    assert notes(first)[0] == "trials run in processes on this machine, without Ray, because executor is 'local'"
    kept = local_host._kept
    second = search(given)
    assert local_host._kept is kept
    assert pids(second) & pids(first)
    assert second.trials[0].history[0]["given"] > 100, "a rank does not watch what its server has imported"
    os.environ["SOMETHING_THE_TRIALS_READ"] = "1"
    try:
        third = search()
    finally:
        del os.environ["SOMETHING_THE_TRIALS_READ"]
    assert not pids(third) & pids(first)


def test_a_host_that_cannot_be_closed_in_time_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python printed "Task was destroyed but it is pending" for each, as after SIGTERM while the disk was full."""
    monkeypatch.setattr(local_host, "_CLOSE_S", 0.5)
    host = local_host.LocalHost(Settings.from_env(), prestart.take())
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("a task")

    monkeypatch.setattr(host._host, "close", wait_for_ever)
    host.close()
    host._thread.join()
    assert ended == ["a task"]
    assert host._loop.is_closed(), "otherwise it keeps its three file descriptors until it is collected"


def test_what_it_cannot_run_is_refused_before_anything_is_stored() -> None:
    for options in ({"num_workers": 2}, {"use_gpu": True}, {"runtime_env": {"pip": ["x"]}}):
        with pytest.raises(tuner.SpecError, match="executor: the local executor cannot run this: "):
            search(**options)


def test_an_objective_is_not_told_to_prune_a_trial_that_has_reached_max_t() -> None:
    """One trial is trained to its end, and ASHA stops the other one, which is worse, at its first report."""

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(4):
            trial.report(x, step)
            trial.set_user_attr("pruned", trial.should_prune())
            if trial.should_prune():
                break
        return x

    scheduler = tuner.ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    points = [{"x": 0.1}, {"x": 0.9}]
    result = search(objective, scheduler=scheduler, num_samples=2, points_to_evaluate=points, max_concurrent_trials=1)
    assert result.state == "completed", result.error
    assert [(str(trial.state), trial.notes) for trial in result.trials] == [
        ("completed", {"pruned": False}),
        ("stopped", {"pruned": True}),
    ]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_an_objective_gets_the_direction_of_its_study(mode: Mode) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr("direction", trial.study.direction.name)
        return float(trial.suggest_float("y", 0, 1))

    result = tuner.run(objective, metric="loss", mode=mode, num_samples=1, executor="local", verbose=0)
    assert result.state == "completed", result.error
    assert result.best.notes == {"direction": f"{mode.upper()}IMIZE"}


def test_objects_stop_functions_draws_and_populations() -> None:
    def with_data(config: dict[str, Any], data: list[float]) -> None:
        for step in range(1, 5):
            tuner.report({"loss": config["x"] + sum(data) / step})

    result = search(
        tuner.with_parameters(with_data, data=[1.0, 2.0]),
        stop=lambda number, metrics: metrics["training_iteration"] >= 3,
    )
    assert result.state == "completed", result.error
    assert {trial.iterations for trial in result.trials} == {3}

    def objective(trial: Any) -> float:
        return float(trial.suggest_float("y", 0, 1))

    result = tuner.run(objective, metric="loss", mode="min", num_samples=3, executor="local", verbose=0)
    assert result.state == "completed", result.error
    assert all(0 <= trial.config["y"] <= 1 for trial in result.trials)

    def member(config: dict[str, Any]) -> None:
        start = 0
        if (found := tuner.get_checkpoint()) is not None:
            with found.as_directory() as folder:
                start = int(Path(folder, "step").read_text())
        for step in range(start + 1, 9):
            tuner.report(
                {"loss": config["x"] / step},
                checkpoint=lambda folder, n=step: Path(folder, "step").write_text(str(n)),
            )

    population = tuner.PopulationBasedTraining(perturbation_interval=2)
    result = search(member, scheduler=population, max_t=8)
    assert result.state == "completed", result.error
    with Store.open(Settings.from_env().database_url) as store:
        log = list(store.drivers.load(store.experiments.get(result.experiment_id).id))
    assert [entry for _, entry in log if isinstance(entry, d.Exploit)]
    best = result.best_checkpoint
    assert best is not None
    with best.as_directory() as folder:
        assert int(Path(folder, "step").read_text()) >= 1


SCRIPT = """
import os, sys, time
from pathlib import Path
import tuner

def train(config):
    start = 0
    if (found := tuner.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
    for step in range(start + 1, 6):
        tuner.report({"loss": config["x"], "pid": os.getpid()}, checkpoint=lambda f: Path(f, "step").write_text(str(step)))
        while step == 3 and not Path(os.environ["GO"]).exists():
            time.sleep(0.02)

if __name__ == "__main__":
    result = tuner.run(
        train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=2, scheduler="fifo", executor="local",
        search_alg="random", checkpoint={"frequency": 1}, name="mine", verbose=1,
    )
    loaded = sorted({"ray", "torch", "lightning"} & set(sys.modules))
    print("STATE", result.state, "LOADED", loaded)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Yield a script whose two trials wait at their third report until the file `go` is there."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:  # closes the pipe of its output
        yield process
        process.kill()


def reported(process: subprocess.Popen[str], iteration: int) -> bool:
    assert process.poll() is None, process.stdout and process.stdout.read()
    url = Settings.from_env().database_url
    if not Path(url.removeprefix("sqlite:///")).exists():
        return False
    try:
        with Store.open(url) as store:
            found = store.experiments.named("mine")
            trials = store.trials.newest(found[0].id, 10) if found else []
            return len(trials) == 2 and all(trial.iteration >= iteration for trial in trials)
    except StoreError:  # it is being made
        return False


def test_a_cold_script_loads_neither_ray_nor_torch_and_leaves_nothing(
    script: subprocess.Popen[str], tmp_path: Path
) -> None:
    until(lambda: reported(script, 3))
    children = psutil.Process(script.pid).children(recursive=True)
    assert len(children) >= 3, "the server and two trials"
    (tmp_path / "go").touch()
    output, _ = script.communicate(timeout=60)
    assert "STATE completed LOADED []" in output
    until(lambda: not any(child.is_running() for child in children))


def test_a_script_that_is_killed_takes_its_processes_along_and_is_resumed_from_checkpoints(
    script: subprocess.Popen[str], tmp_path: Path
) -> None:
    until(lambda: reported(script, 3))
    children = psutil.Process(script.pid).children(recursive=True)
    script.kill()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    (tmp_path / "go").touch()
    result = tuner.resume("mine", verbose=0)
    assert result.state == "completed", result.error
    for trial in result.trials:
        iterations = [(row["segment"], row["training_iteration"]) for row in trial.history]
        assert (2, 5) in iterations
        assert min(i for segment, i in iterations if segment == 2) > 1, "it does not start over"


def test_ctrl_c_pauses_a_script_and_resume_goes_on(script: subprocess.Popen[str], tmp_path: Path) -> None:
    until(lambda: reported(script, 3))
    script.send_signal(signal.SIGINT)
    with Store.open(Settings.from_env().database_url) as store:
        until(lambda: store.experiments.named("mine")[0].state == "pausing")
    (tmp_path / "go").touch()
    output, _ = script.communicate(timeout=60)
    assert "paused; continue with: tuner resume" in output
    result = tuner.resume("mine", verbose=0)
    assert result.state == "completed", result.error
    assert {trial.iterations for trial in result.trials} == {5}


async def test_a_host_on_ray_runs_an_experiment_in_local_processes_if_its_spec_says_so(
    sqlite_url: str, tmp_path: Path
) -> None:
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    host._report_address = await host._report_server.open("127.0.0.1")
    code = by_value(lambda config: tuner.report({"accuracy": config["lr"], "pid": os.getpid()}))
    fields = {"num_samples": 3, "search": {"type": "random"}, "scheduler": {"type": "fifo"}, "executor": "local"}
    made = host.store.experiments.create(a_spec(**fields, entrypoint=None, code=code.hash), code=code)
    try:
        host.driving.begin(made)
        state = await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 60)
        assert state == "completed"
        log = [entry for _, entry in host.store.drivers.load(made.id)]
        reports = [entry for entry in log if isinstance(entry, Reported)]
        assert len(reports) == 3
        assert os.getpid() not in {report.metrics["pid"] for report in reports}
        first = next(entry for entry in log if isinstance(entry, d.Note))
        assert first.reason == "trials run in processes of the driver's machine, because executor is 'local'"
        assert (await host.status())["groups"]["idle"] >= 1
    finally:
        await host.close()


def counting(config: dict[str, Any]) -> None:
    first = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "count").read_text())
    for count in range(first + 1, 4):
        tuner.report(
            {"loss": 1 / count}, checkpoint=lambda folder, count=count: Path(folder, "count").write_text(str(count))
        )


def test_a_home_may_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "before"))
    search(counting, name="moved", num_samples=1, max_t=3, checkpoint={"frequency": 1, "keep_last": None})
    tuner.shutdown()
    (tmp_path / "before").rename(tmp_path / "after")
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "after"))
    best = tuner.load("moved").best_checkpoint
    assert best is not None
    with best.as_directory() as folder:
        assert Path(folder, "count").read_text() == "3"
    with Store.open(Settings.from_env().database_url) as store:
        [record] = store.experiments.page().items
        [trial] = store.trials.page(record.id).items
        first = store.trials.checkpoints(record.id)[0]
        fork_trial(store, trial.public_id, {}, first.public_id)
    result = tuner.resume("moved", verbose=0)
    assert [report["training_iteration"] for report in result.trials[1].history] == [2, 3]
    assert [str(trial.state) for trial in result.trials] == ["completed", "completed"]
    assert not (tmp_path / "before").exists()
