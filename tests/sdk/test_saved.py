"""`tuner.load` and `tuner.experiments`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.store.examples import T0, a_report, a_spec, a_trial, begin
from tuner.cli.service.experiments import ask
from tuner.domain.batch import Batch
from tuner.domain.decisions import Note, Stop
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import Conflict, NewerLog, NotFound, SpecError, WrongArgument
from tuner.sdk.saved import experiments, load
from tuner.service_url import announced
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import CodeRecord, Store
from tuner.usercode.pickling import dumps


@pytest.fixture
def store(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the database of a new home."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    return Store.open(sqlite_url)


def searched(store: Store, name: str, **fields: object) -> str:
    made, epoch, trials = begin(store, spec=a_spec(name, **fields))
    best = {"trial_number": 0, "value": 0.5, "iteration": 1, "params": dict(trials[0].params), "checkpoint_id": None}
    trials[0].best_value = 0.5
    store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials, summary={"best": best}), T0)
    return made.public_id


def test_a_result_is_loaded_by_id_and_by_name(store: Store) -> None:
    made = searched(store, "digits")
    for called in (made, "digits"):
        result = tuner.load(called)
        assert result.experiment_id == made
        assert result.best_value == 0.5
        assert list(result.dataframe()["config/lr"]) == [0.01]


def test_a_result_has_the_decisions_with_their_reasons(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made, epoch, trials = begin(store, spec=a_spec("digits"))
    note = Note(reason="the first trials show which scheduler fits")
    stop = Stop(reason="worse than half of the others", trial=0)
    store.drivers.commit(made.id, epoch, Batch(log=[(4, note), (5, stop)], trials=trials), T0 + 3)
    monkeypatch.setattr("tuner.sdk.result.PAGE", 2)
    found = tuner.load("digits").decisions
    assert [(one.kind, one.trial) for one in found] == [("start", 0), ("note", None), ("stop", 0)]
    assert [one.seq for one in found] == [2, 4, 5]
    assert found[2].reason == "worse than half of the others"
    assert "worse than half of the others" in found._repr_html_()


def test_a_wrong_name_is_answered_with_the_nearest(store: Store) -> None:
    searched(store, "digits")
    with pytest.raises(NotFound, match="no experiment 'digit'.*did you mean 'digits'"):
        load("digit")


@pytest.mark.parametrize(
    "call", [tuner.load, tuner.resume, tuner.replay, lambda called: tuner.observe(called, tuner.callbacks.Callback())]
)
def test_an_experiment_that_is_no_text_is_refused(store: Store, call: Callable[[Any], Any]) -> None:
    with pytest.raises(WrongArgument, match="expected an experiment's id or name, got 3"):
        call(3)


def test_wrong_choices_of_experiments_are_refused(store: Store) -> None:
    searched(store, "digits")
    wrong: list[dict[str, Any]] = [{"limit": -1}, {"limit": "3"}, {"archived": "maybe"}, {"archived": True}]
    for given in wrong:
        (name,) = given
        with pytest.raises(SpecError, match=f"^{name}: expected .*, got {next(iter(given.values()))!r}"):
            tuner.experiments(**given)
    assert tuner.experiments(limit=0) == []


@pytest.mark.parametrize(("metric", "mode"), [(3, "min"), ("loss", 3), (None, 3)])
def test_a_metric_or_mode_that_is_no_text_is_refused(store: Store, metric: Any, mode: Any) -> None:
    space = {"x": tuner.uniform(0, 1)}
    with pytest.raises(SpecError, match="metric|mode"):
        tuner.run(print, space, metric=metric, mode=mode, executor="local")
    with pytest.raises(SpecError, match="metric|mode"):
        tuner.create_study(space, metric=metric, mode=mode, name="typed")


def test_a_name_that_several_have_is_answered_with_their_ids(store: Store) -> None:
    ids = {searched(store, "digits"), searched(store, "digits")}
    with pytest.raises(Conflict) as caught:
        load("digits")
    assert all(each in str(caught.value) for each in ids)


def test_a_second_search_of_a_name_says_at_once_that_an_id_is_needed(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNER_PORT", raising=False)

    def run(name: str) -> str:
        options: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 1, "executor": "local"}
        return tuner.run(lambda config: tuner.report({"loss": 1.0}), name=name, **options).experiment_id

    earlier = run("twice")
    assert "note: " not in capsys.readouterr().out
    later = run("twice")
    note, *_, last = capsys.readouterr().out.splitlines()
    assert last == f"curves and decisions: `tuner serve`, then http://localhost:8000/experiments/{later}"
    assert note.startswith(
        f"note: an earlier search has the name 'twice' too (the last one is {earlier}), so tuner.load"
    )
    assert f"an id: {later} for this search" in note
    with announced(Settings.from_env().home, "localhost", 8123, Settings.from_env().database_url):
        third = run("third")
    assert (
        capsys.readouterr().out.splitlines()[-1] == f"curves and decisions: http://localhost:8123/experiments/{third}"
    )


def test_a_trial_is_not_an_experiment(store: Store) -> None:
    searched(store, "digits")
    trial = tuner.load("digits").trials[0].id
    with pytest.raises(NotFound, match="is a trial"):
        load(trial)


def test_a_home_without_experiments_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "new"))
    assert experiments() == []
    with pytest.raises(NotFound, match="no experiment 'digits'"):
        load("digits")


def test_experiments_are_listed_newest_first(store: Store) -> None:
    older, newer = searched(store, "older"), searched(store, "newer")
    found = experiments()
    assert [each.id for each in found] == [newer, older]
    assert dataclasses.asdict(found[1]) == {
        "id": older,
        "name": "older",
        "project": "default",
        "state": "running",
        "metric": "accuracy",
        "mode": "max",
        "trials": 1,
        "best_value": 0.5,
        "best_params": {"lr": 0.01},
        "created_at": datetime.fromtimestamp(T0, UTC),
        "ended_at": None,
    }
    assert found[1].load().experiment_id == older


def test_experiments_can_be_filtered(store: Store) -> None:
    searched(store, "digits-mlp")
    searched(store, "letters")
    assert [each.name for each in experiments(name="mlp")] == ["digits-mlp"]
    assert len(experiments(state="running")) == 2
    assert experiments(state="completed") == []
    with pytest.raises(SpecError, match="expected one of .*did you mean running"):
        experiments(state="runing")


def test_more_experiments_than_a_page_are_all_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.sdk.saved.PAGE", 2)
    names = [f"search-{i}" for i in range(5)]
    for name in names:
        store.experiments.create(a_spec(name), now=T0)
    assert [each.name for each in experiments()] == names[::-1]


def test_a_choice_is_shown_by_its_value(store: Store) -> None:
    space = {"layers": {"type": "choice", "categories": [[16], [32, 32]]}}
    made, epoch, trials = begin(store, spec=a_spec("layers", space=space))
    best = {"trial_number": 0, "value": 0.5, "iteration": 1, "params": {"layers": 1}, "checkpoint_id": None}
    store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials, summary={"best": best}), T0)
    assert experiments()[0].best_params == {"layers": "[32, 32]"}


def test_a_state_of_its_own_is_in_the_list(store: Store) -> None:
    made, epoch, _ = begin(store, spec=a_spec("done"))
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLING), T0)
    assert experiments()[0].state == "cancelling"


def test_loading_starts_neither_ray_nor_torch(store: Store) -> None:
    searched(store, "digits")
    code = "import sys, tuner; tuner.load('digits'); print('ray' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.parametrize("state", [ExperimentState.PAUSED, ExperimentState.COMPLETED])
def test_a_search_on_agents_that_no_service_drives_is_refused_before_anything_is_written(
    store: Store, state: ExperimentState
) -> None:
    made, epoch, trials = begin(store, spec=a_spec("digits", executor="agents", num_samples=3))
    trials[0].state = TrialState.FAILED
    store.drivers.commit(
        made.id, epoch, Batch(log=[], trials=trials, state=state, summary={"counts": {"failed": 1}}), T0
    )
    store.drivers.release(made.id, epoch)
    asked = [lambda: tuner.load("digits").add(5)]
    if state is ExperimentState.PAUSED:
        asked.append(lambda: tuner.resume("digits"))
    else:
        asked.append(lambda: ask(Settings.from_env(), "retry", "digits", 0))
    for call in asked:
        with pytest.raises(SpecError, match="run on agents, which ask a service for them.* TUNER_ADDRESS"):
            call()
    assert not store.commands.pending([made.id])
    assert store.experiments.get(made.public_id).spec.num_samples == 3


def test_the_result_of_another_python_is_read_without_its_functions(store: Store) -> None:
    """To run them would fail with "unknown opcode", or crash."""

    def fails(config: Any) -> float:
        raise AssertionError("this function was called")

    space = Space.from_python({"lr": tuner.loguniform(1e-4, 0.1), "y": tuner.sample_from(fails)})
    code = CodeRecord(hash="old", space_blob=space.blob(), python="3.1.4")
    made = store.experiments.create(a_spec("digits", code="old", space=space.to_json()), code=code)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=[a_trial()]), T0)
    [trial] = tuner.load("digits").trials
    assert trial.config["lr"] == 0.01
    assert "fails" in str(trial.config["y"])


def test_a_result_can_be_read_although_a_sample_from_function_fails_for_one_of_its_trials(store: Store) -> None:
    space = Space.from_python(
        {
            "lr": tuner.loguniform(1e-4, 0.1),
            "kernel": tuner.sample_from(lambda config: {0.01: 3}[config["lr"]]),
            "padding": tuner.sample_from(lambda config: config["kernel"] // 2),
        }
    )
    code = CodeRecord(hash="kernel", space_blob=space.blob())
    made = store.experiments.create(a_spec("digits", code="kernel", space=space.to_json()), code=code)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    trials = [a_trial(), a_trial(1)]
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    good, failed = tuner.load("digits").trials
    assert good.config == {"lr": 0.01, "kernel": 3, "padding": 1}
    assert failed.config["lr"] == 0.02
    assert "<lambda>" in str(failed.config["kernel"])
    assert "<lambda>" in str(failed.config["padding"])


@pytest.mark.parametrize("state", [ExperimentState.PAUSED, ExperimentState.COMPLETED])
def test_a_search_of_another_python_is_refused_before_anything_is_written(store: Store, state: ExperimentState) -> None:
    def train(config: dict[str, Any]) -> None: ...

    code = CodeRecord(hash="old", blob=dumps(train), python="3.1.4")
    made = store.experiments.create(a_spec("digits", entrypoint=None, code="old", num_samples=3), code=code)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    store.drivers.commit(made.id, epoch, Batch(log=[], state=state), T0)
    store.drivers.release(made.id, epoch)
    asked = [lambda: tuner.load("digits").add(5)]
    if state is ExperimentState.PAUSED:
        asked.append(lambda: tuner.resume("digits"))
    for call in asked:
        with pytest.raises(SpecError, match=r"pickled by Python 3\.1\.4.*continue it with Python 3\.1\n"):
            call()
    assert not store.commands.pending([made.id])
    assert store.experiments.get(made.public_id).spec.num_samples == 3


@pytest.mark.parametrize("differs", ["state = 'resting'", "spec = json_set(spec, '$.moon', 1)"])
def test_a_search_that_this_version_cannot_read_is_refused_before_anything_is_written(
    store: Store, differs: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command stayed, so that the version that can read the search would have resumed it. A traceback was printed."""
    made, epoch, _ = begin(store, spec=a_spec("digits", num_samples=3))
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.PAUSED), T0)
    store.drivers.release(made.id, epoch)
    with store._database.write() as cursor:
        cursor.execute(f"UPDATE experiment SET {differs} WHERE id = ?", (made.id,))
    for call in (lambda: tuner.resume("digits"), lambda: tuner.load("digits").add(5)):
        with pytest.raises(NewerLog, match="another version has written it"):
            call()
    assert not store.commands.pending([made.id])
    assert store.experiments.get(made.public_id).driver_epoch == epoch
    assert "Traceback" not in capfd.readouterr().err


def test_a_search_on_agents_that_a_service_drives_is_followed(store: Store) -> None:
    made, epoch, trials = begin(store, 2, spec=a_spec("digits", executor="agents", num_samples=3))
    trials[1].state = TrialState.FAILED
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials, state=None), T0)
    store.drivers.renew(made.id, epoch, 600.0, time.time())
    with pytest.raises(Conflict, match=r"trial 0 of exp_\w+ is running and cannot be retried"):
        tuner.resume("digits", retry=[1, 0])
    assert not store.commands.pending([made.id])
    says = io.StringIO()
    commands: list[Any] = []

    def end_it() -> None:  # as the service's driver does once it has read the commands
        asked: Sequence[Any] = ()
        while not any(one.command == "retry" for one in asked):
            asked = store.commands.pending([made.id])
        commands.extend(asked)
        trials[0].state = TrialState.COMPLETED
        batch = Batch(log=[], trials=trials, state=ExperimentState.COMPLETED, commands=[one.id for one in asked])
        store.drivers.commit(made.id, epoch, batch, T0)

    with contextlib.redirect_stdout(says):
        service = threading.Thread(target=end_it)
        service.start()
        result = tuner.resume("digits", retry=[1, 1])
        service.join()
    assert result.state == "completed"
    assert "following it" in says.getvalue()
    assert [one.trial for one in commands if one.command == "retry"] == [1]
