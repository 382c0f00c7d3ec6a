"""`tuner.run` on real Ray: runs to the end, is paused by Ctrl-C, and is resumed after it was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray.train

import tuner
from tests.jobs import STEP_S
from tests.services import DEADLINE_S
from tuner.domain.batch import Batch
from tuner.domain.events import Reported
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import ExperimentState
from tuner.errors import SpecError
from tuner.sdk.live.interrupts import Interrupts
from tuner.settings import Settings
from tuner.store import Store

ROOT = Path(__file__).parents[2]


def until(what: str, happened: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Wait for a condition. Raise AssertionError with its name if it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if found := happened():
                return found
        time.sleep(0.25)  # most conditions open the database, or look at every process of the machine
    raise AssertionError(f"not within {seconds:g} s: {what}")


def ray_processes(home: Path) -> list[psutil.Process]:
    """Return the processes of Ray, and of our actors, that belong to a script with this home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TUNER_HOME") == str(home):
                found.append(process)
    return found


class Job:
    """A script of `tests.jobs` with a new home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, step_s: float | None = None) -> None:
        """Start the script.

        What is resumed takes short steps. What is interrupted takes long ones: on a busy machine, a trial may have been
        training for half a minute when the next one starts, and must not have ended.
        """
        if step_s is None:
            step_s = 0.02 if arguments[0] == "resume" else 1.5
        environment = {**os.environ, "TUNER_HOME": str(self.home), "PYTHONUNBUFFERED": "1", STEP_S: str(step_s)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def store(self) -> Store:
        return Store.open(f"sqlite:///{self.home / 'tuner.db'}")

    def experiment(self) -> Any:
        with self.store() as store:
            return store.experiments.page().items[0]

    def reports(self) -> list[Reported]:
        with self.store() as store:
            record = store.experiments.page().items[0]
            return [entry for _, entry in store.drivers.load(record.id) if isinstance(entry, Reported)]

    def end(self) -> str:
        assert self.process is not None
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return output

    def clean(self) -> None:
        for process in ray_processes(self.home):
            with contextlib.suppress(psutil.Error):
                process.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "home")
    yield job
    job.clean()


def no_step_twice_from_the_beginning(job: Job) -> None:
    """Check that a trial continued from its checkpoint: its later segments start above zero and reach the end."""
    with job.store() as store:
        record = store.experiments.page().items[0]
        trials = [store.trials.get(row.public_id) for row in store.trials.page(record.id).items]
    assert [trial.iteration for trial in trials] == [40, 40, 40]
    later = [segment for trial in trials for segment in trial.segments[1:]]
    assert later
    assert all(segment.start_iteration > 0 for segment in later)


def checkpointed(job: Job) -> bool:
    """Return whether both running trials have a ready checkpoint."""
    with job.store() as store:
        rows = store.trials.page(job.experiment().id).items
        return len([row for row in rows if row.checkpoint and row.checkpoint["step"] >= 3]) >= 2


@pytest.mark.ray
@pytest.mark.long  # the next test resumes on Ray, and test_local_host.py pauses by Ctrl-C
def test_ctrl_c_pauses_and_resume_goes_on(job: Job) -> None:
    job.start("run")
    until("checkpoints of both trials", lambda: checkpointed(job))
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    output = job.end()
    assert "STATE paused" in output, output
    assert "press Ctrl-C again to stop at once" in output
    assert job.experiment().state == "paused"
    until("no process left", lambda: not ray_processes(job.home))

    job.start("resume", job.experiment().public_id)
    assert "STATE completed" in job.end()
    no_step_twice_from_the_beginning(job)


def params(job: Job) -> dict[int, dict[str, Any]]:
    with job.store() as store:
        return {row.number: dict(row.params) for row in store.trials.page(job.experiment().id).items}


@pytest.mark.ray
def test_a_killed_script_leaves_nothing_running_and_is_resumed(job: Job) -> None:
    """An objective of Optuna, which has drawn some of its parameters when it is killed."""
    job.start("objective")
    until("checkpoints of both trials", lambda: checkpointed(job))
    assert job.process is not None
    job.process.kill()
    job.process.communicate()
    until("no process left", lambda: not ray_processes(job.home))
    before = len(job.reports())
    assert before >= 6
    drawn = params(job)
    assert sorted(drawn) == [0, 1]
    assert all(set(names) == {"kind", f"middle_{names['kind']}"} for names in drawn.values())
    half = job.home / "checkpoints" / job.experiment().public_id / "trial_00000" / "iteration_00000099_half"
    half.mkdir(parents=True)
    (half / "weights").write_text("of a rank that was killed before it could commit")

    job.start("resume", job.experiment().public_id)
    output = job.end()
    assert "STATE completed" in output, output
    assert not half.exists()
    no_step_twice_from_the_beginning(job)
    assert len(job.reports()) <= 120 + 3 * 10
    with job.store() as store:
        trials = store.trials.page(job.experiment().id).items
    assert sorted(trial.number for trial in trials) == [0, 1, 2]
    for trial in trials:
        middle = f"middle_{trial.params['kind']}"
        assert set(trial.params) == {"kind", middle, "end"}
        assert trial.params.items() >= drawn.get(trial.number, {}).items()
        seen = trial.tags["notes"].values()
        assert len(seen) == (2 if trial.number in drawn else 1), "what the objective saw before it was killed is kept"
        assert list(seen) == [{"kind": trial.params["kind"], "middle": trial.params[middle]}] * len(seen)


@pytest.mark.ray
@pytest.mark.long  # TestRun has the same in this process
def test_a_killed_driver_is_replaced_and_loses_nothing(job: Job) -> None:
    job.start("run", step_s=0.4)
    until("checkpoints of both trials", lambda: checkpointed(job))
    hosts = [p for p in ray_processes(job.home) if "ray::Host" in " ".join(p.cmdline())]
    ranks = [p for p in ray_processes(job.home) if "ray::RayRank" in " ".join(p.cmdline())]
    assert len(hosts) == 1
    assert ranks
    hosts[0].kill()
    output = job.end()
    assert "the driver was killed" in output, output
    assert "STATE completed" in output, output
    no_step_twice_from_the_beginning(job)
    assert not [p for p in ranks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    until("no process left", lambda: not ray_processes(job.home))


# -- results and errors ----------------------------------------------------------------------------------------------------


def search(function: Any, **options: Any) -> tuner.Result:
    defaults = {
        "metric": "loss",
        "mode": "min",
        "num_samples": 2,
        "search_alg": "random",
        "scheduler": "fifo",
        "verbose": 0,
    }
    return tuner.run(function, {"x": tuner.uniform(0.1, 1.0)}, **{**defaults, **options})


@pytest.mark.ray
@pytest.mark.usefixtures("private_ray")
class TestRun:
    def test_the_result_has_what_was_reported(self) -> None:
        offset = 10

        def train(config: dict[str, Any]) -> None:
            for step in range(1, 4):
                metrics = {"loss": offset + config["x"] / step, "nested": {"rank": tuner.get_context().world_rank}}
                tuner.report(metrics, step=step * 64)

        result = search(train, num_workers=2, resources_per_worker={"CPU": 0.5}, backend="none", num_samples=3)
        assert result.state == "completed"
        assert [t.iterations for t in result.trials] == [3, 3, 3]
        best = min(result.trials, key=lambda t: t.config["x"])
        assert result.best_trial == best
        assert result.best_config == best.config
        assert result.best_value == pytest.approx(10 + best.config["x"] / 3)
        assert best.metrics["nested/rank"] == 0
        frame = result.dataframe()
        assert list(frame["config/x"]) == [t.config["x"] for t in result.trials]
        assert len(result.dataframe(history=True)) == 9
        assert [report["step"] for report in best.history] == [64, 128, 192]

    def test_the_best_checkpoint_can_be_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

        def train(config: dict[str, Any]) -> None:
            for step in range(1, 4):

                def save(folder: str, step: int = step) -> None:
                    Path(folder, "step").write_text(str(step))

                tuner.report({"loss": abs(step - 2)}, checkpoint=save)

        result = search(train, num_samples=1, storage="ckpts")
        assert result.best_checkpoint is not None
        with result.best_checkpoint.as_directory() as folder:
            assert Path(folder, "step").read_text() == "2", "that of the best value, not the last one"
        assert result.best_checkpoint.iteration == 2
        assert Path(result.best_checkpoint.to_directory(tmp_path / "copy"), "step").read_text() == "2"
        assert Path(result.best_checkpoint.path).is_relative_to(tmp_path / "ckpts" / result.experiment_id)

    def test_a_torn_checkpoint_is_passed_over_for_an_older_one_and_is_not_the_users_failure(
        self, tmp_path: Path
    ) -> None:
        def train(config: dict[str, Any]) -> None:
            import time

            start = 0
            if (checkpoint := tuner.get_checkpoint()) is not None:
                with checkpoint.as_directory() as folder:
                    start = int(Path(folder, "epoch").read_text())
            for epoch in range(start + 1, 6):

                def save(folder: str, epoch: int = epoch) -> None:
                    Path(folder, "epoch").write_text(str(epoch))

                tuner.report({"loss": 1 / epoch, "start": start}, checkpoint=save)
                if start == 0 and epoch == 4:
                    newest = "trial_00000/iteration_00000004*"
                    while not list(tmp_path.glob(f"*/{newest}.committed")):
                        time.sleep(0.01)
                    (torn,) = (path for path in tmp_path.glob(f"*/{newest}") if path.is_dir())
                    Path(torn, "epoch").write_text("torn")
                    raise ValueError("once")

        keep = {"storage": str(tmp_path), "frequency": 1, "keep_last": 3}
        result = search(train, num_samples=1, checkpoint=keep, max_failures=1)
        assert (result.state, result.error) == ("completed", None)
        (trial,) = result.trials
        assert trial.iterations == 5
        assert trial.history[-1]["start"] == 3, "the newest checkpoint that is whole"

    def test_a_driver_that_is_killed_while_it_trains_is_replaced(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def train(config: dict[str, Any]) -> None:
            import psutil

            start = 0
            if (checkpoint := tuner.get_checkpoint()) is not None:
                with checkpoint.as_directory() as folder:
                    start = int(Path(folder, "step").read_text())
            for step in range(start + 1, 7):

                def save(folder: str, step: int = step) -> None:
                    Path(folder, "step").write_text(str(step))

                tuner.report({"loss": 1 / step, "start": start}, checkpoint=save)
                if start == 0 and step == 4:
                    while not list(tmp_path.glob("*/trial_00000/iteration_00000002*.committed")):
                        time.sleep(0.01)
                    home = os.environ["TUNER_HOME"]
                    for process in psutil.process_iter():
                        with contextlib.suppress(psutil.Error):
                            if "ray::Host" in "".join(process.cmdline()) and process.environ()["TUNER_HOME"] == home:
                                process.kill()
                    time.sleep(60)  # it ends with its driver

        keep = {"storage": str(tmp_path), "frequency": 1, "keep_last": 3}
        result = search(train, num_samples=1, checkpoint=keep, verbose=1)
        assert (result.state, result.error) == ("completed", None)
        (trial,) = result.trials
        assert {report["training_iteration"] for report in trial.history} == set(range(1, 7))
        assert trial.history[-1]["start"] > 0, "from its checkpoint"
        assert "the driver was killed" in "".join(capfd.readouterr())

    def test_a_failing_rank_is_named(self) -> None:
        def train(config: dict[str, Any]) -> None:
            if tuner.get_context().world_rank == 1:
                raise ValueError("this data set is empty")
            tuner.report({"loss": 1.0})
            tuner.report({"loss": 1.0})

        result = search(train, num_workers=2, resources_per_worker={"CPU": 0.5}, backend="none", num_samples=1)
        assert result.state == "failed"
        assert result.error is not None
        assert "trial 0" in result.error
        assert "rank 1" in result.error
        assert "ValueError: this data set is empty" in result.error

    def test_os_exit_in_one_rank_ends_the_group_and_is_named(self) -> None:
        def train(config: dict[str, Any]) -> None:
            tuner.report({"loss": 1.0})
            if tuner.get_context().world_rank == 1 and tuner.get_context().trial_number == 0:
                os._exit(3)
            time.sleep(0.5)
            tuner.report({"loss": 0.5})

        result = search(train, num_workers=2, resources_per_worker={"CPU": 0.5}, backend="none", num_samples=2)
        assert result.state == "completed", result.error
        assert [str(t.state) for t in result.trials] == ["failed", "completed"]
        assert "rank 1" in (result.trials[0].error or "")

    def test_reports_go_by_a_socket_and_by_ray_once_that_is_gone(self) -> None:
        def train(config: dict[str, Any]) -> None:
            import socket

            from tuner.trials.training.session import current

            for step in range(1, 21):
                tuner.report({"loss": 1.0 / step})
                client = current()._reports._sender._reports  # type: ignore[union-attr]
                if step == 3:
                    print("socket", client._link is not None)
                if step == 10:
                    client._link._socket.shutdown(socket.SHUT_RDWR)
                if step == 12:
                    print("socket", client._link is not None)

        always = {"type": "median", "grace_period": 1, "min_samples_required": 100}  # decides at each report
        result = search(train, num_samples=1, scheduler=always)
        assert result.state == "completed", result.error
        assert [report["training_iteration"] for report in result.trials[0].history] == list(range(1, 21))
        home = Settings.from_env().home
        [log] = (home / "logs" / result.experiment_id).rglob("rank0.log")
        assert log.read_text().splitlines() == ["socket True", "socket False"]

    def test_what_every_rank_uses_is_kept_over_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNER_USAGE_EVERY_S", "0.2")
        monkeypatch.setenv("TUNER_HOME", str(tmp_path))
        url = f"sqlite:///{tmp_path / 'tuner.db'}"

        def train(config: dict[str, Any]) -> None:
            """Busy until there are two samples of each rank."""
            with Store.open(url) as store:
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    found = store.ranks.usage(tuner.get_context().get_trial_id())
                    if len(found) == 2 and all(len(series.x) >= 2 for series in found):
                        break
            tuner.report({"loss": 1.0})

        result = search(train, num_workers=2, resources_per_worker={"CPU": 0.5}, backend="none", num_samples=1)
        assert result.state == "completed", result.error
        with Store.open(url) as store:
            found = store.ranks.usage(result.trials[0].id)
            kinds = {item.event for item in store.log.events_after(store.experiments.get(result.experiment_id).id, 0)}
        assert [(series.segment, series.rank) for series in found] == [(1, 0), (1, 1)]
        for series in found:
            assert min(series.rss_bytes) > 1e7
            assert max(percent or 0.0 for percent in series.cpu_percent) > 5.0
            assert list(series.x) == sorted(series.x)
            assert set(series.gpu_percent) <= {None}
        assert "usage" not in " ".join(kinds), "it is no part of the log"

    def test_a_function_that_never_reports_says_so(self) -> None:
        result = search(lambda config: None, num_samples=1)
        assert result.state == "failed"
        assert "without" in (result.error or "")
        assert "report" in (result.error or "")

    def test_a_demand_that_can_never_be_met_is_refused_at_once(self) -> None:
        with pytest.raises(SpecError, match="64 CPU are requested, but the whole cluster has 2 CPU"):
            search(lambda config: tuner.report({"loss": 1.0}), resources_per_worker={"CPU": 64}, num_samples=1)

    def test_a_hang_is_ended_and_shows_where_it_hung(self) -> None:
        def train(config: dict[str, Any]) -> None:
            tuner.report({"loss": 1.0})
            if tuner.get_context().trial_number == 0:
                time.sleep(600)
            tuner.report({"loss": 0.5})

        result = search(train, num_samples=2, hang_timeout_s=2.0)
        assert [str(t.state) for t in result.trials] == ["failed", "completed"]
        assert "no report" in (result.trials[0].error or "") or "hung" in (result.trials[0].error or "")


# -- what is wrong with the arguments is said before anything starts --------------------------------------------------------


def trainable(config: dict[str, Any]) -> None:
    raise AssertionError("nothing may be started")


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"address": "http://localhost:8000", "ray_address": "auto"}, "/address"),
        ({"mode": "most"}, "/mode"),
        ({"num_samples": 0}, "/num_samples"),
        ({"metric": None}, "/metric"),
        ({"mode": None}, "/mode"),
        ({"num_workers": 0}, "/scaling/num_workers"),
        ({"scheduler": {"type": "asha", "reduction_factor": 1}}, "/scheduler/reduction_factor"),
        ({"scheduler": {"type": "asha", "max_t": 2, "grace_period": 3}}, "/scheduler/max_t"),
        ({"time_budget_s": -1}, "/limits/time_budget_s"),
    ],
)
def test_bad_arguments(options: dict[str, Any], pointer: str) -> None:
    arguments = {"metric": "loss", "mode": "min", **options}
    with pytest.raises(SpecError) as caught:
        tuner.run(trainable, {"x": tuner.uniform(0, 1)}, **arguments)
    assert pointer in [p for p, _ in caught.value.errors]


@pytest.mark.parametrize("how", ["argument", "environment", "connection"])
def test_ray_client_is_refused_before_anything_is_stored(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = {"ray_address": "ray://head:10001"} if how == "argument" else {}
    if how == "environment":
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    if how == "connection":
        client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: True))
        monkeypatch.setitem(sys.modules, "ray.util.client", client)
    monkeypatch.setattr("tuner.sdk.driving.connected", lambda: how == "connection")
    with pytest.raises(
        SpecError, match=r"Ray Client \(ray://\).*`ray job submit .*`tuner serve` there and pass address="
    ):
        tuner.run(trainable, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", **given)  # type: ignore[arg-type]
    assert tuner.experiments() == []


def test_more_trials_are_refused_through_ray_client_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setattr("tuner.sdk.driving.connected", lambda: False)
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        store.migrate()
        record = store.experiments.create(Spec(name="x", space={}, objectives=(Objective("loss", "min"),)))
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
        for call in (lambda: tuner.load(record.public_id).add(1), lambda: tuner.resume(record.public_id)):
            with pytest.raises(SpecError, match="Ray Client"):
                call()
        assert store.commands.pending([record.id]) == []
        assert store.experiments.get(record.public_id).spec.limits == record.spec.limits


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"storage": "ckpts"}, "{here}/ckpts"),
        ({"storage": Path("ckpts")}, "{here}/ckpts"),
        ({"storage": "./a/../ckpts"}, "{here}/ckpts"),
        ({"checkpoint": {"storage": "ckpts", "keep_last": 2}}, "{here}/ckpts"),
        ({"run_config": ray.train.RunConfig(storage_path="ckpts")}, "{here}/ckpts"),
        ({"storage": "/data"}, "/data"),
        ({"storage": "$SCRATCH/ckpts"}, "$SCRATCH/ckpts"),
        ({"storage": "~/ckpts"}, "~/ckpts"),
        ({"storage": "s3://bucket/ckpts"}, "s3://bucket/ckpts"),
        ({"storage": "s3://bucket/my%20ckpts"}, "s3://bucket/my%20ckpts"),
        ({"storage": Path("/data/my ckpts, 100%").as_uri()}, "file:///data/my ckpts, 100%"),
        ({"checkpoint": {"storage": Path("/data/which?").as_uri()}}, "file:///data/which?"),
        ({"run_config": ray.train.RunConfig(storage_path="file:///data/my%20ckpts")}, "file:///data/my ckpts"),
        ({"storage": "/data/my%20ckpts"}, "/data/my%20ckpts"),
    ],
)
def test_a_relative_storage_is_one_of_the_callers_directory(
    options: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks work elsewhere: there it would be another directory."""

    def drive(store: Store, settings: Settings, experiment_id: str, *_: Any, **__: Any) -> Any:
        return store.experiments.get(experiment_id).spec.checkpoint

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tuner.sdk.run._drive", drive)
    found: Any = tuner.run(trainable, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", **options)
    assert found.storage == expected.format(here=tmp_path)


def perturbed(params: dict[str, Any]) -> dict[str, Any]:
    return params


def enough(trial: int, metrics: dict[str, float]) -> bool:
    return False


PBT = {"perturbation_interval": 1, "hyperparam_mutations": {}}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"scheduler": "asha", "stop": {"training_iteration": 3}}, True),
        ({"stop": enough}, False),
        ({"stop": {"type": "function", "function": f"{__name__}:enough"}}, False),
        ({"scheduler": tuner.PopulationBasedTraining(custom_explore_fn=perturbed, **PBT)}, False),
        ({"scheduler": {"type": "pbt", "custom_explore_fn": f"{__name__}:perturbed", **PBT}}, False),
    ],
)
def test_a_driver_that_imports_code_of_the_users_is_not_kept(
    options: dict[str, Any], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imported code may have changed by the next call."""
    monkeypatch.setattr("tuner.sdk.run._drive", lambda *given: given[6])  # `keep`
    found: Any = tuner.run(trainable, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", **options)
    assert found is kept


@pytest.mark.parametrize("space", [{"x": tuner.choice([])}, {"x": tuner.uniform(1, 0)}, {"x": tuner.loguniform(0, 1)}])
def test_bad_spaces(space: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"space\.x"):
        tuner.run(trainable, space, metric="loss", mode="min")


def test_a_scheduler_a_searcher_and_a_space_that_are_wrong_are_told_of_together() -> None:
    with pytest.raises(SpecError) as caught:
        tuner.run(
            trainable, {"x": tuner.choice([])}, metric="loss", mode="min", scheduler={"type": "ash"}, search_alg="tpee"
        )
    assert [pointer for pointer, _ in caught.value.errors] == ["/space/x/categories", "/scheduler/type", "/search/type"]


def test_a_function_without_a_parameter() -> None:
    with pytest.raises(SpecError, match="cannot be called with a configuration"):
        tuner.run(lambda: None, {"x": 1}, metric="loss", mode="min")  # type: ignore[misc, arg-type]


def test_what_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        with lock:
            tuner.report({"loss": 1.0})

    with pytest.raises(SpecError, match="closure variable 'lock'"):
        tuner.run(train, {"x": 1}, metric="loss", mode="min")


def test_ctrl_c_where_nobody_counts_interrupts_as_anywhere_else() -> None:
    """Nothing can be paused yet while tuner.run connects to Ray."""
    interrupts = Interrupts(lambda: None)
    with interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)  # the signal ends it
        assert interrupts.count == 0


@pytest.mark.parametrize("state", [ExperimentState.PAUSED, ExperimentState.PAUSING])
def test_more_trials_resume_a_search_that_is_paused(state: ExperimentState) -> None:
    """`add` returned at once, and ran nothing. A search whose driver was killed while it paused is still pausing."""

    def train(config: dict[str, Any]) -> None:
        while tuner.get_context().trial_number == 0 and tuner.get_checkpoint() is None:  # until it is paused
            tuner.report({"loss": config["x"]}, checkpoint=lambda folder: Path(folder, "state").write_text("0"))
        tuner.report({"loss": config["x"]})

    class Pauses:
        def on_trial_start(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    ways: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "executor": "local"}
    first = tuner.run(train, {"x": tuner.uniform(0, 1)}, **ways, callbacks=[Pauses()], verbose=0)
    assert first.state == "paused"
    with Store.open(Settings.from_env().database_url) as store:
        made = store.experiments.get(first.experiment_id)
        epoch = store.drivers.claim(made.id, "killed", 0.0, time.time())
        store.drivers.commit(made.id, epoch, Batch(log=[], state=state), time.time())
    more = tuner.load(first.experiment_id).add(num_samples=1, verbose=0)
    assert (more.state, len(more.trials)) == ("completed", 2)


@pytest.mark.ray
def test_more_of_an_ended_search_is_run(private_ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: dict[str, Any]) -> None:
        tuner.report({"loss": config["x"]})

    first = tuner.run(
        train,
        {"x": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=2,
        scheduler="fifo",
        name="more",
        verbose=0,
    )
    second = first.add(num_samples=3)
    assert ([trial.iterations for trial in second.trials], second.state) == ([1] * 5, "completed")
    assert "completed, 5/5 trials" in capsys.readouterr().out
    assert len(first.trials) == 2
    assert [trial.config for trial in second.trials[:2]] == [trial.config for trial in first.trials]
    assert len({trial.config["x"] for trial in second.trials}) == 5
    third = tuner.load(first.experiment_id).add(num_samples=1, verbose=0)
    assert len(third.trials) == 6
    assert third.best_value == min(trial.best_value or 0.0 for trial in third.trials)
