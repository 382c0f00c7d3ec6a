"""`tuner.create_study`: ask and tell, without Ray, over the real core and a real database."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest

import tuner
from tests.invariants import check_all
from tuner.domain.batch import Batch
from tuner.domain.states import TrialState
from tuner.driver import asked
from tuner.driver.core import Core
from tuner.driver.virtual import Step, simulate
from tuner.errors import Conflict, SpecError, TunerError
from tuner.experiment.operations.earlier import with_earlier
from tuner.experiment.operations.trials import enqueue
from tuner.experiment.operations.usecases import amend_experiment, continue_experiment
from tuner.experiment.operations.verbs import act, act_on_trial
from tuner.sdk import study as study_module
from tuner.sdk.study import Study
from tuner.search import DefineByRunSearch, OptunaSearch
from tuner.store import Store

SPACE = {"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return the database of a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    monkeypatch.setattr(asked, "KEEP_S", 0.05)
    with Store.open(sqlite_url) as store:
        yield store


def loss(config: dict[str, Any], epoch: int) -> float:
    return float(config["x"] + 8 / config["width"] / epoch)


def study_of(space: Mapping[str, Any] = SPACE, **options: Any) -> Study:
    given: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "num_samples": 12,
        "max_t": 9,
        "scheduler": {"type": "asha", "reduction_factor": 3},
        "search_alg": "random",
        "name": "by-hand",
        **options,
    }
    return tuner.create_study(space, **given)


def train(study: Study, most: int = 10**6) -> int:
    """Train what the study hands out, and return how many reports were made."""
    made = 0
    while made < most and (trial := study.ask()) is not None:
        for epoch in range(trial.iteration + 1, 10):
            made += 1
            if trial.report({"loss": loss(trial.config, epoch)}, checkpoint=f"epoch-{epoch}") != "continue":
                break
            if made >= most:
                return made
        trial.tell()
    return made


@pytest.mark.parametrize("scheduler", ["asha", "asha_promotion", "median", "fifo"])
def test_it_decides_as_a_search_in_virtual_time(scheduler: str) -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for epoch in range((checkpoint or 0) + 1, 10):
            yield Step({"loss": loss(config, epoch)}, checkpoint=epoch)

    known = {"metric": "loss", "mode": "min", "num_samples": 12, "max_t": 9, "search_alg": "random"}
    direct = simulate(evaluate, SPACE, scheduler=scheduler, max_concurrent_trials=1, **known)  # type: ignore[arg-type]
    with study_of(scheduler=scheduler) as study:
        made = train(study)
        result = study.result()
        assert study.state == "completed"
    assert made == len(direct.history)
    assert [(t.state, t.iterations, t.config) for t in result.trials] == [
        (t.state, t.iteration, c) for t, c in zip(direct.trials, direct.configs, strict=True)
    ]
    assert result.best_value == direct.best_value


def test_a_study_is_an_experiment_like_any_other(store: Store) -> None:
    with study_of() as study:
        train(study)
        record = store.experiments.get(study.id)
        assert (record.name, record.source) == ("by-hand", "study")
        assert not record.abandoned(1e12)
        [listed] = tuner.experiments()
        assert (listed.id, listed.trials) == (study.id, 12)
        assert tuner.load("by-hand").best_value == study.result().best_value
        kinds = {d.kind for d in store.log.decisions(record.id, page_size=1000).items}
        assert {"start", "stop", "complete", "finish"} <= kinds
    check_all(store, set())


def test_a_paused_trial_is_handed_out_again_where_its_checkpoint_is() -> None:
    with study_of(scheduler="asha_promotion") as study:
        paused: dict[int, int] = {}
        resumed = 0
        while (trial := study.ask()) is not None:
            if trial.number in paused:
                resumed += 1
                assert trial.iteration == paused[trial.number]
                assert trial.checkpoint == f"epoch-{paused[trial.number]}"
            for epoch in range(trial.iteration + 1, 10):
                if trial.report({"loss": loss(trial.config, epoch)}, checkpoint=f"epoch-{epoch}") != "continue":
                    paused[trial.number] = epoch
                    assert trial.answer == "stop" or "paused" in trial.reason or trial.reason
                    break
            trial.tell()
        assert resumed > 0


def test_the_default_search_needs_no_more_than_a_space_and_max_t() -> None:
    with study_of(scheduler=None, search_alg=None, budget=3, num_samples=40) as study:
        made = train(study)
        assert made <= 5 * 9
        assert study.result().best_finished is not None
        assert study.state == "completed"


def test_what_optuna_calls_its_parts_is_named() -> None:
    with tuner.create_study(SPACE, metric="loss", mode="min", num_samples=1) as study:
        with pytest.raises(AttributeError, match=r"a study has no 'best_params'; it has result\(\)\.best_config"):
            _ = study.best_params
        trial = study.ask()
        assert trial is not None
        with pytest.raises(AttributeError, match="a trial of a study has no 'suggest_float'; it has config"):
            trial.suggest_float("x", 0, 1)


def test_tell_alone_is_enough_without_early_stopping() -> None:
    with study_of(scheduler="fifo", max_t=None, num_samples=5, search_alg="tpe") as study:
        while (trial := study.ask()) is not None:
            study.tell(trial, {"loss": trial.config["x"]})
        result = study.result()
    assert [t.state for t in result.trials] == [TrialState.COMPLETED] * 5
    assert result.best_value == min(t.config["x"] for t in result.trials)


def test_values_without_names_are_those_of_the_objectives_in_their_order() -> None:
    """Write reports as in Optuna, where an int after the value is the step, not a checkpoint."""
    with study_of(num_samples=2, scheduler="fifo") as study:
        trial = study.ask(timeout_s=None)
        assert trial is not None
        assert trial.report(0.5, np.int64(10)) == trial.report(np.float32(0.25), checkpoint="a", step=20) == "continue"
        with pytest.raises(TypeError, match="2 values for the 1 objective loss"):
            trial.report([1.0, 2.0])
        with pytest.raises(TypeError, match="metrics must be a dict of numbers, not NoneType"):
            trial.report(None)  # type: ignore[arg-type]
        trial.tell(0.125)
        told = study.result().trials[0]
        assert [(row["loss"], row.get("step")) for row in told.history] == [(0.5, 10), (0.25, 20), (0.125, None)]
        assert told.state == TrialState.COMPLETED
    both = {"metric": ["loss", "size"], "mode": ["min", "max"], "name": "both", "scheduler": "fifo", "max_t": None}
    with study_of(**both) as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(TypeError, match="1 value for the 2 objectives loss, size"):
            study.tell(trial, 0.5)
        with pytest.raises(TypeError, match=r"expected a trial that ask\(\) has returned, got 0"):
            study.tell(trial.number, 0.5)  # type: ignore[arg-type]
        study.tell(trial, (0.5, 3))
        assert study.result().trials[0].metrics == {"loss": 0.5, "size": 3.0}


def test_a_failed_trial_says_why_and_is_handed_out_again_if_retries_are_left() -> None:
    with study_of(num_samples=2, max_failures=1, scheduler="fifo") as study:
        first = study.ask()
        assert first is not None
        first.tell(error=MemoryError("out of memory"))
        again = study.ask()
        assert again is not None
        assert again.number == first.number
        again.tell(error="out of memory for \udcff.txt")  # as in a name that is not UTF-8
        other = study.ask()
        assert other is not None
        other.tell({"loss": 1.0})
        assert study.ask() is None
        result = study.result()
    assert result.trials[0].state is TrialState.FAILED
    assert "out of memory for \\udcff.txt" in (result.trials[0].error or "")


def test_more_than_may_train_at_once_is_refused_with_the_reason() -> None:
    with study_of(max_concurrent_trials=2) as study:
        first, second = study.ask(), study.ask()
        assert first is not None
        assert second is not None
        assert first.number != second.number
        with pytest.raises(Conflict, match="2 trials have not ended yet.*max_concurrent_trials is 2"):
            study.ask()
        first.report({"loss": 1.0})
        first.tell()
        assert study.ask() is not None


def test_a_trial_that_an_interrupted_loop_has_lost_can_be_had_again_as_the_error_says() -> None:
    with study_of() as study:
        lost = study.ask()
        assert lost is not None
        with pytest.raises(Conflict, match=r"tell\(\) of trial 0 .* study\.close\(\) and then tuner\.create_study"):
            study.ask()
    with study_of() as study:
        again = study.ask()
        assert again is not None
        assert again.number == lost.number


def test_several_threads_share_a_study() -> None:
    made: list[int] = []
    with study_of(max_concurrent_trials=3, num_samples=15) as study:
        threads = [threading.Thread(target=lambda: made.append(train(study))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        result = study.result()
    assert len(result.trials) == 15
    assert sum(t.iterations for t in result.trials) == sum(made)


def test_the_same_name_goes_on_with_it_in_another_process(store: Store) -> None:
    with study_of() as study:
        made = train(study, most=17)
        before = study.result()
    with study_of() as study:
        assert study.id == before.experiment_id
        more = train(study)
        after = study.result()
        assert study.state == "completed"
    straight = study_of(name="other")
    total = train(straight)
    assert [t.config for t in after.trials] == [t.config for t in straight.result().trials]
    assert total <= made + more <= total + 9, "only what the open trial had not saved is trained again"
    straight.close()
    check_all(store, set())


KILLED = """
    import os, signal, sys
    import tuner
    study = tuner.create_study({"x": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=4, scheduler="fifo",
                               search_alg="random", max_t=9, name="killed")
    trial = study.ask()
    for epoch in range(1, 6):
        trial.report({"loss": trial.config["x"] / epoch}, checkpoint=f"epoch-{epoch}")
    print(trial.number, trial.config["x"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_that_was_reported_is_lost_when_the_process_is_killed(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    number, x = done.stdout.split()
    [record] = store.experiments.named("killed")
    store.drivers.renew(record.id, record.driver_epoch, 0.0, 0.0)  # as if the lease had run out
    with tuner.create_study(
        {"x": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=4,
        scheduler="fifo",
        search_alg="random",
        max_t=9,
        name="killed",
    ) as study:
        trial = study.ask()
        assert trial is not None
        assert (trial.number, trial.config["x"]) == (int(number), float(x))
        assert (trial.iteration, trial.checkpoint) == (5, "epoch-5")


def test_two_processes_cannot_drive_the_same_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "LEASE_S", 0.5)
    with study_of(), pytest.raises(Conflict, match="is driven by study:.* when that process ends or calls close"):
        monkeypatch.setattr(study_module, "_OPEN", set())  # as in another process
        study_of()


@pytest.mark.parametrize("seed", [1, 2])
def test_two_processes_that_create_a_study_at_the_same_time_create_one(
    monkeypatch: pytest.MonkeyPatch, store: Store, seed: int
) -> None:
    """Each of them had a study of its own with this name."""
    made: list[Study] = []

    def create_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(study_module, "with_earlier", with_earlier)
        made.append(study_of(seed=1))
        made[0].close()
        return with_earlier(*args)

    monkeypatch.setattr(study_module, "with_earlier", create_meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the seed is that of the other process
        study_of(seed=seed).close()
    [record] = store.experiments.named(made[0].name)
    store.experiments.change(record.id, {"name": "renamed"})
    with study_of() as second:
        assert second.id != record.public_id


def test_a_study_whose_log_cannot_be_read_is_free_again_at_once(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Its lease had to expire first, so the next attempt waited for 15 s."""
    with study_of() as study:
        pass

    def fail(*args: Any) -> None:
        raise OSError("the log cannot be read")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the log cannot be read"):
        patched.setattr(Core, "fold", fail)
        study_of()
    record = store.experiments.get(study.id)
    assert store.drivers.claim(record.id, "another process", 15.0, time.time())


def test_a_study_that_this_process_has_open_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of a notebook that is run again creates the study again."""

    def wait(*args: Any) -> None:
        raise AssertionError("waited for the lease of this process")

    with study_of() as first:
        with monkeypatch.context() as patched, pytest.raises(Conflict, match=r"this process drives .*study\.close\(\)"):
            patched.setattr(asked, "_claimed", wait)
            study_of()
        assert first.ask() is not None
    study_of().close()


def test_a_study_that_has_ended_or_is_paused_can_be_created_again_without_close(store: Store) -> None:
    """Such as by a cell of a notebook that is run again."""
    options: dict[str, Any] = {"num_samples": 2, "scheduler": "fifo", "max_t": None}
    first = study_of(**options)
    trial = first.ask()
    assert trial is not None
    act(store, "pause", first.id)
    while (answer := trial.report({"loss": 1.0}, checkpoint="saved")) == "continue":
        pass
    assert answer == "pause"
    assert first.ask() is None
    second = study_of(**options)
    for _ in range(2):
        trial = second.ask()
        assert trial is not None
        trial.tell({"loss": 0.5})
    third = study_of(**options)
    assert third.state == "completed"
    assert third.ask() is None
    for study in (third, second, first):
        study.close()


def test_a_trial_whose_end_is_told_is_neither_paused_nor_stopped_early(store: Store) -> None:
    """A paused trial was handed out again, and trained again for the result that it has."""
    with study_of(num_samples=2, scheduler="fifo") as study:
        trial = study.ask()
        assert trial is not None
        act(store, "pause", study.id)
        while store.commands.pending([store.experiments.get(study.id).id]):
            pass
        trial.tell({"loss": 1.0})
        assert study.ask() is None
        assert study.state == "paused"
        assert [each.state for each in study.result().trials] == ["completed"]
    with study_of(num_samples=4, name="rungs") as study:
        for number in range(4):
            trial = study.ask()
            assert trial is not None
            trial.tell({"loss": float(number)})
        assert [each.state for each in study.result().trials] == ["completed"] * 4


def test_another_definition_under_the_same_name_is_refused() -> None:
    study_of().close()
    for options, what in (
        ({"metric": "error"}, "objective"),
        ({"scheduler": "fifo"}, "scheduler"),
        ({"max_t": 5}, "max_t"),
    ):
        with pytest.raises(Conflict, match=f"has a different {what}"):
            study_of(**options)
    with pytest.raises(Conflict, match="load_if_exists=True continues it"):
        study_of(load_if_exists=False)


def test_a_study_whose_functions_another_python_has_pickled_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To call them would fail with "unknown opcode", or crash."""
    space = {"x": tuner.uniform(0, 1), "twice": tuner.sample_from(lambda config: 2 * config["x"])}
    with study_of(space) as study:
        name = study.id
    study_of(name="without functions").close()
    monkeypatch.setattr(platform, "python_version", lambda: "3.1.4")
    with pytest.raises(SpecError, match=r"cannot be continued: .* continue it with Python 3\.\d\d"):
        study_of(space)
    assert not store.commands.pending([store.experiments.get(name).id])
    study_of(name="without functions").close()


def test_only_a_study_of_the_same_project_is_continued(store: Store) -> None:
    """A search of the same name that `tuner.run` has created is another experiment, even in this project."""
    with study_of() as study:
        spec = store.experiments.get(study.id).spec
        with study_of(project="elsewhere") as other:
            assert other.id != study.id
    creation = store.experiments.creation(replace(spec, name="search"))
    store.experiments.create_all([creation])
    with study_of(name="search") as study:
        assert [record.source for record in store.experiments.named("search")] == ["study", "python"]


def test_a_study_that_has_ended_still_has_its_result() -> None:
    with study_of() as study:
        train(study)
        best = study.result().best_value
    with study_of() as study:
        assert study.ask() is None
        assert study.result().best_value == best


def test_a_study_goes_on_after_its_limits_were_changed(store: Store) -> None:
    options: dict[str, Any] = {"max_concurrent_trials": 3, "num_samples": 4, "scheduler": "fifo"}
    with study_of(**options) as study:
        before = [study.ask() for _ in range(3)]
    amend_experiment(store, study.id, {"limits": {"max_concurrent_trials": 1}})
    with study_of(**options) as study:
        first = study.ask()
        assert first is not None
        assert first.config == next(trial.config for trial in before if trial is not None)
        first.tell({"loss": 1.0})
        train(study)
        assert [trial.state for trial in study.result().trials] == ["completed"] * 4
    check_all(store, set())


def test_continue_and_enqueue_give_a_study_that_has_ended_more_trials(store: Store) -> None:
    options: dict[str, Any] = {"num_samples": 1, "scheduler": "fifo"}
    with study_of(**options) as study:
        train(study)
        assert study.state == "completed"
    continue_experiment(store, study.id, 1)
    with study_of(**options) as study:
        train(study)
        assert [trial.state for trial in study.result().trials] == ["completed"] * 2
        assert study.state == "completed"
    enqueue(store, study.id, [{"x": 0.25, "width": 16}])
    with study_of(**options) as study:
        trial = study.ask()
        assert trial is not None
        assert trial.config == {"x": 0.25, "width": 16}


def test_a_retry_has_the_values_that_functions_of_the_space_have_drawn(store: Store) -> None:
    """They were drawn anew, so the retry trained another configuration."""
    space = {"x": tuner.uniform(0, 1), "noise": tuner.sample_from(lambda: random.random())}
    options: dict[str, Any] = {"num_samples": 1, "scheduler": "fifo", "max_failures": 0}
    with study_of(space, **options) as study:
        first = study.ask()
        assert first is not None
        first.tell({"loss": 1.0}, error="no more memory")
    act_on_trial(store, "retry", store.trials.page(store.experiments.get(study.id).id).items[0].public_id)
    with study_of(space, **options) as study:
        again = study.ask()
        assert again is not None
        assert (again.number, again.config) == (1, first.config)
        again.tell({"loss": 0.5})
        result = study.result()
        assert [trial.config for trial in result.trials] == [first.config] * 2
        assert result.best_config == first.config
        assert [one["config"] for one in result.schedule(1)] == [first.config]


def test_arguments_that_an_existing_study_does_not_take_are_warned_of(store: Store) -> None:
    with study_of(num_samples=1, max_t=None) as study:
        trial = study.ask()
        assert trial is not None
        trial.tell({"loss": 0.5})
    given = {"num_samples": 2, "max_t": None, "max_concurrent_trials": 4, "seed": 3}
    said = (
        rf"continues with its own num_samples 1, max_concurrent_trials 1, seed; use `tuner change {study.id} "
        rf"--set num_samples=2 --set limits.max_concurrent_trials=4`, and then `tuner continue {study.id}`; for another seed"
    )
    with pytest.warns(UserWarning, match=said):
        study_of(**given).close()
    with store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET thinned_at = 1")
    with pytest.warns(
        UserWarning, match="concurrent_trials 1, seed; it cannot be continued: .* a fork of it can run; for"
    ):
        study_of(**given).close()
    with store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET thinned_at = NULL")
    given["seed"] = 0
    amend_experiment(store, study.id, {"num_samples": 2, "limits": {"max_concurrent_trials": 4}})
    continue_experiment(store, study.id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with study_of(**given) as study:
            assert study.ask() is not None
        study_of(num_samples=1, max_t=None).close()  # a script that does not know of the change


def test_trials_that_are_added_to_the_result_of_a_study_wait_for_the_script_that_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with study_of(num_samples=1, max_t=None) as study:
        trial = study.ask()
        assert trial is not None
        trial.tell({"loss": 0.5})
    assert [trial.state for trial in tuner.load("by-hand").add(1).trials] == ["completed"]
    assert "tuner.create_study(..., name='by-hand')" in capsys.readouterr().out
    with study_of(num_samples=1, max_t=None) as study:
        trial = study.ask()
        assert trial is not None
        assert trial.number == 1


def test_retry_hands_out_a_failed_trial_of_a_study_that_has_ended(store: Store) -> None:
    with study_of(num_samples=1) as study:
        trial = study.ask()
        assert trial is not None
        trial.report({"loss": 1.0}, checkpoint="epoch-1")
        trial.tell(error="out of memory")
        assert study.state == "failed"
    act_on_trial(store, "retry", store.trials.page(store.experiments.get(study.id).id).items[0].public_id)
    with study_of(num_samples=1) as study:
        again = study.ask()
        assert again is not None
        assert (again.number, again.config, again.checkpoint) == (1, trial.config, "epoch-1")


def test_a_user_can_cancel_it_from_the_page(store: Store) -> None:
    with study_of() as study:
        trial = study.ask()
        assert trial is not None
        assert trial.report({"loss": 1.0}) in ("continue", "stop")
        store.commands.add(store.experiments.get(study.id).id, "cancel", reason="not needed any more")
        for _ in range(1000):
            if trial.report({"loss": 1.0}) == "stop":
                break
            threading.Event().wait(0.01)
        assert trial.answer == "stop"
        assert study.ask() is None
        assert study.state == "cancelled"


def test_resume_leaves_it_to_the_script_that_asks() -> None:
    study_of().close()
    with pytest.raises(Conflict, match="continue it with tuner.create_study"):
        tuner.resume("by-hand")


def test_wrong_arguments_are_listed_and_nothing_is_created(store: Store) -> None:
    with pytest.raises(SpecError, match="max_t"):
        study_of(max_t=-1)
    with pytest.raises(TypeError, match="did you mean 'max_concurrent_trials'"):
        study_of(max_concurent_trials=3)
    assert not store.experiments.page().items


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_a_searcher_that_was_refused_can_be_used_with_another_space(nested: bool) -> None:
    searcher: Any = OptunaSearch(optuna.samplers.BruteForceSampler())
    searcher = DefineByRunSearch(searcher) if nested else searcher
    options: dict[str, Any] = {"metric": "m", "mode": "min", "scheduler": "fifo", "search_alg": searcher}
    with pytest.raises(SpecError, match="BruteForceSampler does not support this space"):
        tuner.create_study({"x": tuner.uniform(0, 1)}, name="first", **options)
    with tuner.create_study({"x": tuner.choice(["a", "b"])}, name="second", **options) as study:
        trial = study.ask()
        assert trial is not None
        assert trial.config["x"] in ("a", "b")


def test_a_report_without_numbers_is_refused_and_the_trial_goes_on() -> None:
    """A step that was too large had ended the study."""
    with study_of() as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(TypeError, match="loss"):
            trial.report({"loss": "low"})
        for step in (2**63, 1.5, "3"):
            with pytest.raises(TypeError, match="step must be"):
                trial.report({"loss": 0.1}, step=step)  # type: ignore[arg-type]
        assert trial.report({"loss": 0.1}) in ("continue", "stop")


def test_a_call_that_the_loop_did_not_begin_before_its_end_leaves_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the loop when it has a task for the call, but has not begun the task."""
    study = study_of()
    assert study._driver is not None
    events = study._driver._events
    posted, run = threading.Event(), asyncio.run_coroutine_threadsafe

    def run_and_stop(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        running = run(work, loop)
        events.call_soon_threadsafe(events.stop)
        posted.set()
        return running

    events.call_soon_threadsafe(posted.wait)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", run_and_stop)
    with warnings.catch_warnings(record=True) as seen, pytest.raises(TunerError, match="no longer driven"):
        warnings.simplefilter("always")
        study.ask()
    gc.collect()
    assert [str(warning.message) for warning in seen if "never awaited" in str(warning.message)] == []


def test_calls_after_the_lease_is_lost_say_so(store: Store) -> None:
    study = study_of()
    trial = study.ask()
    assert trial is not None
    record = store.experiments.get(study.id)
    store.drivers.renew(record.id, record.driver_epoch, 0.0, 0.0)
    with pytest.raises(TunerError, match="another driver"):
        store.drivers.claim(record.id, "thief", 60.0, 1e12)
        for _ in range(1000):
            trial.report({"loss": 1.0})
            threading.Event().wait(0.01)
    study.close()


def test_a_closed_study_takes_no_reports_and_does_not_look_ended() -> None:
    """`ask` returned None, as if the study had ended, and a report was lost without a word."""
    with study_of() as study:
        trial = study.ask()
        assert trial is not None
    for call in (study.ask, lambda: trial.report({"loss": 1.0}), lambda: trial.tell({"loss": 1.0}), trial.tell):
        with pytest.raises(TunerError, match="no longer driven: it was closed; tuner.create_study with the same name"):
            call()
    assert study.state == "running"
    with study_of(num_samples=1, name="ended") as ended:
        train(ended)
    assert ended.ask() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_process_is_told_that_the_study_is_not_its_own() -> None:
    """A call in a fork waited forever for the driver, whose thread it does not have."""
    with study_of() as study:
        trial = study.ask()
        assert trial is not None
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                trial.report({"loss": 1.0})
            except TunerError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.close(writing)
        try:
            assert select.select([reading], [], [], 20)[0], "the child waits"
            assert f"driven by the process {os.getpid()}" in os.read(reading, 1000).decode()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
        assert trial.report({"loss": 1.0}) == "continue"


def test_a_report_of_another_thread_that_is_under_way_when_a_study_is_closed_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = study_of()
    trial = study.ask()
    assert trial is not None
    begun = threading.Event()

    async def commit(self: asked.StoreJournal, batch: Batch) -> Collection[str]:
        begun.set()
        await asyncio.sleep(3600)
        return ()

    monkeypatch.setattr(asked.StoreJournal, "commit", commit)
    with ThreadPoolExecutor(1) as thread:
        reporting = thread.submit(trial.report, {"loss": 1.0})
        assert begun.wait(20)
        study.close()
        with pytest.raises(TunerError, match="it was closed"):
            reporting.result()


@pytest.mark.parametrize("metrics", [{"los": 1.0}, {"accuracy": 1.0}])
def test_a_trial_told_without_the_objective_is_an_error_of_the_caller(metrics: dict[str, float]) -> None:
    with study_of(num_samples=2) as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(SpecError, match="the objective 'loss' is not among the reported metrics"):
            study.tell(trial, metrics)
        assert study.state == "running"
        study.tell(trial, {"loss": 1.0})
        assert study.result().trials[0].best_value == 1.0
        assert len(study.result().trials[0].history) == 1
        train(study)
        assert study.state == "completed"


def test_a_report_with_a_misspelt_objective_is_an_error_of_the_caller() -> None:
    with study_of() as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(SpecError, match="'loss' is not among .* did you mean 'los'"):
            trial.report({"los": 1.0})
        assert trial.report({"other": 1.0}) == "continue", "the objective may come with a later report"
        with pytest.raises(SpecError, match="the objective 'loss' is not among"):
            trial.tell()
        assert trial.report({"loss": 1.0}) == "continue"
        trial.tell()
        assert study.result().trials[0].state == "completed"


def test_closing_an_ended_study_closes_its_database(tmp_path: Path) -> None:
    def study() -> Study:
        return tuner.create_study({"x": tuner.uniform(0, 1)}, metric="loss", mode="min", name="over", num_samples=1)

    def open_files() -> int:
        return sum(tmp_path.samefile(Path(file.path).parent) for file in psutil.Process().open_files())

    with study() as first:
        trial = first.ask()
        assert trial is not None
        trial.tell({"loss": 1.0})
    before = open_files()
    again = study()
    assert again.result().state == "completed"
    again.close()
    again.close()
    assert open_files() == before
