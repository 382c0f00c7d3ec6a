"""Changes of the search space by users, on a real database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tuner
from tests.store.examples import T0, a_report, a_spec, begin
from tuner.domain.batch import Batch
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import Conflict, SpecError
from tuner.experiment.analysis.preview import importance
from tuner.experiment.analysis.replay import replay
from tuner.experiment.operations.trials import _changed as changed_params
from tuner.experiment.operations.trials import enqueue
from tuner.experiment.operations.usecases import amend_experiment
from tuner.sdk.result import Result
from tuner.space import Space
from tuner.store import ExperimentRecord, Store

LR = {"type": "loguniform", "lower": 1e-4, "upper": 0.1}
HIGH = {"type": "loguniform", "lower": 0.015, "upper": 0.5}
DROPOUT = {"type": "uniform", "lower": 0.0, "upper": 0.5}


def changed(store: Store, record: ExperimentRecord, **changes: Any) -> ExperimentRecord:
    return amend_experiment(store, record.public_id, changes)


def mistake(store: Store, record: ExperimentRecord, **changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        changed(store, record, **changes)
    [(pointer, message)] = caught.value.errors
    assert store.experiments.get(record.public_id).revision == record.revision
    return f"{pointer}: {message}"


def test_a_change_is_stored_as_a_new_revision_and_told_to_the_driver(store: Store) -> None:
    made, _, _ = begin(store, 2, spec=a_spec(num_samples=4))
    record = changed(store, made, space={"lr": HIGH, "dropout": DROPOUT}, assume={"dropout": 0.0})
    assert (record.revision, record.spec.space_revision) == (1, 1)
    assert record.spec.space == {"lr": HIGH, "dropout": DROPOUT}
    assert record.spec.former_spaces == ({"lr": LR},)
    assert record.spec.assumed == {"dropout": 0.0}
    assert record.first_spec == made.spec
    [command] = store.commands.pending([made.id])
    assert dict(command.payload) == {
        "space": {"lr": HIGH, "dropout": DROPOUT},
        "former_spaces": [{"lr": LR}],
        "assumed": {"dropout": 0.0},
    }
    assert command.reason == (
        "a user changed the search space (revision 1): lr from loguniform(0.0001, 0.1) to loguniform(0.015, 0.5); "
        "dropout is new, and was 0.0 before"
    )
    again = changed(store, record, space={"lr": LR, "dropout": None})
    assert again.spec.space == {"lr": LR}
    assert again.spec.former_spaces == ({"lr": LR}, {"lr": HIGH, "dropout": DROPOUT})
    assert again.spec.assumed == {}, "dropout is gone"
    same = changed(store, again, space={"lr": LR})
    assert (same.revision, len(store.commands.pending([made.id]))) == (2, 2), "nothing has changed"


def test_a_domain_replaces_the_one_that_was_there_and_objects_are_merged(sqlite_store: Store) -> None:
    space = {"lr": LR, "model": {"width": {"type": "choice", "categories": [16, 32]}, "depth": 2}}
    made = sqlite_store.experiments.create(a_spec(num_samples=4, space=space))
    record = changed(
        sqlite_store, made, space={"lr": {"type": "uniform", "lower": 0, "upper": 1}, "model": {"depth": 3}}
    )
    assert record.spec.space == {
        "lr": {"type": "uniform", "lower": 0, "upper": 1},
        "model": {"width": {"type": "choice", "categories": [16, 32]}, "depth": 3},
    }
    assert sqlite_store.commands.pending([made.id])


def test_what_is_refused_says_why(sqlite_store: Store) -> None:
    begun, _, _ = begin(sqlite_store, 1, spec=a_spec(num_samples=4))
    assert mistake(sqlite_store, begun, space={"dropout": DROPOUT}) == (
        "/assume/dropout: dropout is new; pass the value that it had in the trials so far, or null to exclude their results from "
        "the search"
    )
    fixed = sqlite_store.experiments.create(a_spec(num_samples=4, space={"lr": LR, "steps": 20}))
    sqlite_store.drivers.claim(fixed.id, "driver", 60.0, T0)
    fixed = sqlite_store.experiments.get(fixed.public_id)
    assert mistake(sqlite_store, fixed, space={"steps": {"type": "randint", "lower": 1, "upper": 9}}) == (
        "/assume/steps: steps was 20 so far, which lies outside its domain; pass null to exclude the results of those trials "
        "from the search"
    )
    outside = mistake(sqlite_store, begun, space={"dropout": DROPOUT}, assume={"dropout": 0.7})
    assert outside == "/assume/dropout: 0.7 lies outside the domain of dropout"
    unknown = mistake(sqlite_store, begun, space={"dropout": DROPOUT}, assume={"dropout": None, "dropuot": 1})
    assert unknown == "/assume/dropuot: not a new parameter; did you mean dropout?"
    assert mistake(sqlite_store, begun, assume={"lr": 1}) == "/assume: is only allowed with a change of the space"
    assert mistake(sqlite_store, begun, space={"lr": 0.1}) == (
        "/space: the new space has no parameters, so there is nothing to search"
    )
    wrong = mistake(sqlite_store, begun, space={"lr": {**LR, "lower": 1}})
    assert wrong == "/space/lr/lower: the bounds are reversed: lower (1) is above upper (0.1)"
    code = {"type": "choice", "categories": [{"type": "python", "index": 0, "repr": "<os.system>"}]}
    assert "a Python object cannot be sent as JSON" in mistake(sqlite_store, begun, space={"lr": code})
    assert mistake(sqlite_store, begun, space=None) == "/space: must not be null"


@pytest.mark.parametrize(
    ("parts", "space", "why"),
    [
        (
            {"space": {"lr": {"grid_search": [1, 2]}}, "search": {"type": "grid"}},
            {"lr": LR},
            "a grid is a list of trials that is fixed when the experiment is created; fork the experiment",
        ),
        ({}, {"lr": {"grid_search": [1, 2]}}, "a grid is a list of trials"),
        ({"search": {"type": "define_by_run"}}, {"lr": HIGH}, "the training code asks for parameters"),
        ({"search": {"type": "python", "repr": "Mine()"}}, {"lr": HIGH}, "the searcher is a Python object"),
        (
            {"scheduler": {"type": "pbt", "hyperparam_mutations": {"lr": [0.01, 0.02]}}, "max_t": 9},
            {"lr": None, "momentum": DROPOUT},
            "scheduler.hyperparam_mutations.lr: not in the search space",
        ),
        ({"scheduler": {"type": "pb2"}, "max_t": 9}, {"lr": HIGH}, "the model of pb2 knows only the first space"),
        (
            {"search": {"type": "cmaes"}, "space": {"lr": LR, "momentum": DROPOUT}},
            {"momentum": None},
            "search: cmaes needs at least two numeric parameters",
        ),
    ],
)
def test_what_the_parts_of_an_experiment_cannot_do(
    sqlite_store: Store, parts: dict[str, Any], space: dict[str, Any], why: str
) -> None:
    made = sqlite_store.experiments.create(a_spec(num_samples=4, **parts))
    assert why in mistake(sqlite_store, made, space=space)


def test_ask_and_tell_and_what_is_being_cancelled_keep_their_space(sqlite_store: Store) -> None:
    study = sqlite_store.experiments.create(a_spec(num_samples=4), source="study")
    with pytest.raises(Conflict, match="driven by ask and tell"):
        changed(sqlite_store, study, space={"lr": HIGH})
    made, epoch, _ = begin(sqlite_store, 1)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLING), T0 + 2)
    with pytest.raises(Conflict, match="cannot be continued"):
        changed(sqlite_store, made, space={"lr": HIGH})


def test_python_objects_of_the_space_stay(sqlite_store: Store) -> None:
    space = Space.from_python({"opt": tuner.choice([dict, list]), "lr": tuner.uniform(0, 1)}).to_json()
    made = sqlite_store.experiments.create(a_spec(num_samples=4, space=space))
    record = changed(sqlite_store, made, space={"lr": HIGH})
    assert record.spec.space == {**space, "lr": HIGH}


def ended(store: Store) -> ExperimentRecord:
    """Make an experiment that has ended: lr 0.01, 0.02, ... of the first space, and 0.2 of the second one."""
    space = {"lr": {**LR, "upper": 0.2}}
    spec = a_spec(num_samples=12, space=space, scheduler={"type": "fifo"}, search={"type": "random"})
    made, epoch, trials = begin(store, 12, spec=replace(spec, objectives=(Objective("accuracy", "max"),)))
    record = changed(store, made, space={"lr": HIGH, "dropout": DROPOUT}, assume={"dropout": 0.25})
    log = [(26 + trial.number, a_report(trial.number, 1, accuracy=trial.number / 20)) for trial in trials]
    for trial in trials:
        trial.state, trial.iteration = TrialState.COMPLETED, 1
        trial.best_value = trial.last_value = trial.number / 20
        trial.best_iteration = trial.best_segment = 1
    trials[11].params = {"lr": 0.2, "dropout": 0.1}
    trials[11].segments[0].params = trials[11].params
    trials[11].space_revision = trials[11].segments[0].space_revision = 1
    best = {"value": 11 / 20, "trial_number": 11, "iteration": 1, "segment": 1, "params": trials[11].params}
    batch = Batch(
        log=log, trials=trials, state=ExperimentState.COMPLETED, summary={"counts": {"completed": 12}, "best": best}
    )
    store.drivers.commit(record.id, epoch, batch, T0 + 9)
    store.drivers.release(record.id, epoch)
    return store.experiments.get(record.public_id)


def test_readers_see_every_trial_in_its_own_space_and_learn_from_those_that_lie_in_the_present_one(
    store: Store,
) -> None:
    record = ended(store)
    assert store.trials.numbered(record.id, [11])[0].space_revision == 1
    result = Result.load(store, record.public_id)
    assert [trial.config for trial in result.trials][:2] == [{"lr": 0.01}, {"lr": 0.02}]
    assert result.best_config == {"lr": 0.2, "dropout": 0.1}
    found = importance(store, record)
    assert (found.trials, set(found.shares)) == (11, {"lr", "dropout"}), "lr 0.01 lies outside"


def test_new_trials_of_users_are_of_the_present_space(store: Store) -> None:
    record = ended(store)
    enqueue(store, record.public_id, [{"lr": 0.2}])
    with pytest.raises(SpecError, match=r"0\.01 is not in lr"):
        enqueue(store, record.public_id, [{"lr": 0.01}])
    first, *_ = [one for one in store.commands.pending([record.id]) if one.command == "enqueue"]
    assert first.payload["points"] == [{"params": {"lr": 0.2}, "space_revision": 1}]


def test_a_fork_of_an_earlier_trial_needs_what_the_present_space_lacks(sqlite_store: Store) -> None:
    record = ended(sqlite_store)
    below, inside = sqlite_store.trials.numbered(record.id, [0, 3])
    with pytest.raises(SpecError, match=r"trial 0 is from an earlier search space .* give a value for lr"):
        changed_params(record, below, {})
    assert changed_params(record, below, {"lr": 0.3}) == {"lr": 0.3, "dropout": 0.25}
    assert changed_params(record, inside, {}) == {"lr": 0.04, "dropout": 0.25}


def test_a_replay_leaves_out_what_lies_outside(sqlite_store: Store) -> None:
    record = ended(sqlite_store)
    found = replay(sqlite_store, record, scheduler="fifo", search_alg="random")
    assert any("1 trial is left out: its configuration does not lie" in note for note in found.notes), found.notes
