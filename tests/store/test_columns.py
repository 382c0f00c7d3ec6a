"""Trials by any column: what the pages give together is what sorting all rows would."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.examples import T0, a_report, a_spec, a_trial, begin
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Start, Stop
from tuner.domain.events import DriverStarted
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Trial
from tuner.errors import SpecError
from tuner.store import Store
from tuner.store.columns import Column, Filter
from tuner.store.records import Training
from tuner.store.sql.cursor import Cursor

MAX, MIN = (Objective("loss", "max"),), (Objective("loss", "min"),)
LRS: list[Any] = [0.1, 0.3, 0.1, None, 0.2, 0.3, 0.05]
NAMES: list[Any] = ["sgd", "adam", "adam", None, "sgd", "rmsprop", "adam"]


def seven(store: Store) -> tuple[Any, int, list[Trial]]:
    made, epoch, trials = begin(store, 7)
    for trial, lr, name in zip(trials, LRS, NAMES, strict=True):
        trial.params = {"lr": lr, "opt/name": name, "flag": trial.number % 2 == 0} if lr is not None else {}
        trial.best_value, trial.iteration = (None, 0) if lr is None else (round(1 - lr, 3), trial.number % 3)
        trial.last = {"loss": float("nan") if trial.number == 2 else trial.number / 10}
    trials[5].state, trials[5].reason = TrialState.STOPPED, "stopped: 100 % worse"
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    return made, epoch, trials


def numbers(store: Store, experiment: int, size: int = 3, **options: Any) -> list[int]:
    """All pages, one after the other."""
    found: list[int] = []
    token = None
    while True:
        page, total = store.trials.sorted_page(experiment, page_size=size, page_token=token, **options)
        found += [trial.number for trial in page.items]
        token = page.next_token
        if token is None:
            assert total == len(found)
            return found


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("number", [0, 1, 2, 3, 4, 5, 6]),
        ("-number", [6, 5, 4, 3, 2, 1, 0]),
        ("params.lr", [6, 0, 2, 4, 1, 5, 3]),
        ("-params.lr", [1, 5, 4, 0, 2, 6, 3]),
        ("params.opt/name", [1, 2, 6, 5, 0, 4, 3]),
        ("-params.opt/name", [0, 4, 5, 1, 2, 6, 3]),
        ("-best_value", [6, 0, 2, 4, 1, 5, 3]),
        ("iteration", [0, 3, 6, 1, 4, 2, 5]),
        ("state", [0, 1, 2, 3, 4, 6, 5]),
        ("-last.loss", [6, 5, 4, 3, 1, 0, 2]),
        ("params.nothing", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_any_column_sorts_with_ties_by_number_and_nothing_last(store: Store, sort: str, expected: list[int]) -> None:
    made, _, _ = seven(store)
    for size in (1, 3, 100):
        assert numbers(store, made.id, size, sort=sort) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("[1]", [0, 5]),
        ('["1"]', [1]),
        ('["1", 1]', [0, 1, 5]),
        ("[true]", [2]),
        ('["true", null]', [3, 6]),
        ('["2.5"]', [4]),  # no other value has this text
        ("[2.5]", [4]),
    ],
)
def test_values_of_a_choice_with_the_same_text_are_told_apart(store: Store, where: str, expected: list[int]) -> None:
    made, epoch, trials = begin(store, 7)
    for trial, value in zip(trials, [1, "1", True, "true", 2.5, 1.0, None], strict=True):
        trial.params = {} if value is None else {"kind": value}
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert numbers(store, made.id, where=[f"params.kind?={where}"]) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["params.lr>0.1"], [1, 4, 5]),
        (["params.lr>=0.1", "params.opt/name=sgd"], [0, 4]),
        (["params.lr!=0.1"], [1, 4, 5, 6]),
        (["params.opt/name~A"], [1, 2, 6]),
        (["params.opt/name!=adam"], [0, 4, 5]),
        (["params.opt/name=zebra"], []),
        (['params.opt/name?=["sgd", "rmsprop"]'], [0, 4, 5]),
        (['params.opt/name?=["adam", null]'], [1, 2, 3, 6]),
        (["params.lr?=[0.1, 0.05]"], [0, 2, 6]),
        (["params.flag?=[true]"], [0, 2, 4, 6]),
        (["params.lr?=[]"], []),
        (["params.flag=true"], [0, 2, 4, 6]),
        (["state=stopped"], [5]),
        (["state!=stopped", "number<2"], [0, 1]),
        (["reason~100 %"], [5]),
        (["last.loss<=0.1"], [0, 1]),
        (["best_value=0.9"], [0, 2]),
    ],
)
def test_conditions_hold_together(store: Store, where: list[str], expected: list[int]) -> None:
    made, _, _ = seven(store)
    assert numbers(store, made.id, where=where) == expected


@pytest.mark.parametrize(
    "condition",
    ["waiting~GPU", "waiting=GPU", 'waiting?=["GPU"]', "waiting>3", "params.nothing=adam", "last.nothing<0.5"],
)
def test_a_column_without_values_meets_no_condition(store: Store, condition: str) -> None:
    made, _, _ = seven(store)
    assert numbers(store, made.id, where=[condition]) == []
    assert numbers(store, made.id, where=["waiting?=[null]"]) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params.opt~1lr>=0.2", [2, 3]),
        ("params.opt~1name=a~1", [0, 1]),
        ("params.opt~1name~A~", [0, 1, 2, 3]),
        ('params.opt~1name?=["b=a~0"]', [2, 3]),
        ("params.a<b>1", [2, 3]),
        ("params.opt~", [0, 1, 2, 3]),
        ("last.p>0.5=1", [1]),
    ],
)
def test_names_may_contain_operators(store: Store, condition: str, expected: list[int]) -> None:
    made, epoch, trials = begin(store, 4)
    for trial in trials:
        text = "a~1" if trial.number < 2 else "b=a~0"
        trial.params = {"opt": "~1lr", "opt~1lr": trial.number / 10, "opt~1name": text, "a<b": trial.number}
        trial.last = {"p>0.5": float(trial.number)}
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert numbers(store, made.id, where=[condition]) == expected


def test_conditions_are_read_as_they_are_written() -> None:
    assert Filter.parse("params.a=b>=c") == Filter("params.a", "=", "b>=c")
    assert Filter.parse("best_value <= 1e-3") == Filter("best_value", "<=", "1e-3")
    for text, why in [
        ("best", "expected NAME"),
        ("=1", "expected NAME"),
        ("best_valeu>1", "best_value"),
        ("params.>1", "unknown"),
    ]:
        with pytest.raises(SpecError, match=why):
            Filter.parse(text)


@pytest.mark.parametrize(
    "options",
    [
        {"sort": "stat"},
        {"where": ["best_value>much"]},
        {"where": ["best_value~1"]},
        {"where": ["params.lr?=3"]},
        {"where": ["params.lr?=[1"]},
        {"where": ['params.lr?=["x"]']},
        {"page_token": "zzz"},
        {"page_token": "WzFd"},
    ],
)
def test_what_is_wrong_is_said(store: Store, options: dict[str, Any]) -> None:
    made, _, _ = seven(store)
    with pytest.raises(SpecError):
        store.trials.sorted_page(made.id, **options)
    token = store.trials.sorted_page(made.id, sort="params.lr", page_size=2)[0].next_token
    with pytest.raises(SpecError, match="page token for this sort order"):
        store.trials.sorted_page(made.id, sort="-params.lr", page_token=token)


def test_an_experiment_that_has_the_id_of_a_deleted_one_is_read_anew(sqlite_store: Store) -> None:
    store = sqlite_store
    old, _, _ = seven(store)
    assert numbers(store, old.id, sort="-params.lr")[0] == 1
    store.experiments.seize(old.id)
    store.experiments.remove(old.id)
    with store._database.engine.begin() as connection:  # as in a database that was restored from a backup
        connection.exec_driver_sql("DELETE FROM sqlite_sequence")
    new, epoch, trials = begin(store, 7)
    assert (new.id, new.last_event_seq) == (old.id, old.last_event_seq), "otherwise this test shows nothing"
    trials[4].params = {"lr": 7.0}
    store.drivers.commit(new.id, epoch, Batch(log=[], trials=trials), T0)
    assert numbers(store, new.id, sort="-params.lr")[0] == 4


def test_a_trial_that_is_stored_while_columns_are_read_is_seen_next_time(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, trials = begin(store, 3)
    assert numbers(store, made.id, sort="number") == [0, 1, 2]
    really, pending = Cursor.rows, [a_trial(3)]
    with Store.open(database_url) as other:

        def rows(cursor: Cursor, sql: str, parameters: Any = ()) -> list[Any]:
            found = really(cursor, sql, parameters)
            if pending and "last_event_seq FROM experiment" in sql:
                trial = pending.pop()
                log: list[Entry] = [(8, Start(reason="one more", params=dict(trial.params), number=3))]
                other.drivers.commit(made.id, epoch, Batch(log=log, trials=[*trials, trial]), T0 + 9)
            return found

        monkeypatch.setattr(Cursor, "rows", rows)
        assert numbers(store, made.id, 10, sort="params.lr") == [0, 1, 2]
        assert not pending
        assert numbers(store, made.id, 10, sort="params.lr") == [0, 1, 2, 3]


def test_only_what_changed_is_read_again(store: Store, database_url: str) -> None:
    made, epoch, trials = seven(store)
    with Store.open(database_url) as reader:
        assert numbers(reader, made.id, sort="best_value", where=["number<5"]) == [1, 4, 0, 2, 3]
        assert numbers(reader, made.id, sort="last.loss")[0] == 0
        trials[3].best_value, trials[3].last = 0.05, {"loss": -1.0}
        trials[4].state = TrialState.STOPPED
        new = Trial(7, {"lr": 9.0}, TrialState.RUNNING, best_value=0.01, created_at=T0)
        log = [(16, a_report(3, 1)), (17, Stop(reason="bad", trial=4)), (18, Stop(reason="bad", trial=7))]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trials[3], trials[4], new]), T0)
        with store._database.engine.begin() as connection:  # a change that no entry of the log tells of is not seen
            connection.exec_driver_sql("UPDATE trial SET best_value = 0.001 WHERE number = 6")
        assert numbers(reader, made.id, sort="best_value") == [7, 3, 1, 5, 4, 0, 2, 6]
        assert numbers(reader, made.id, sort="last.loss")[0] == 3
        assert numbers(reader, made.id, where=["params.lr=9"]) == [7]
        assert numbers(reader, made.id, where=["state=stopped"]) == [4, 5]
        store.drivers.commit(made.id, epoch, Batch(log=[(19, DriverStarted(time=T0, epoch=2))]), T0)
        assert numbers(reader, made.id, sort="best_value")[0] == 6, "a new driver touches all trials"


def test_whole_numbers_that_no_float_can_hold_are_sorted_as_texts(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 4)
    for trial, value in zip(trials, [7, 10**400, None, -(10**400)], strict=True):
        trial.params = {} if value is None else {"p": value}
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert numbers(sqlite_store, made.id, 1, sort="params.p") == [3, 1, 0, 2]
    assert numbers(sqlite_store, made.id, where=[f"params.p?=[{10**400}, null]"]) == [1, 2]


values = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.sampled_from(["a", "b", "1"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(params=st.lists(values, min_size=1, max_size=12), size=st.integers(1, 5), descending=st.booleans())
def test_pages_are_the_whole_in_order(sqlite_store: Store, params: list[Any], size: int, descending: bool) -> None:
    made, epoch, trials = begin(sqlite_store, len(params))
    for trial, value in zip(trials, params, strict=True):
        trial.params = {"p": value}
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    found = numbers(sqlite_store, made.id, size, sort="-params.p" if descending else "params.p")
    assert sorted(found) == list(range(len(params)))
    there = [params[number] for number in found if params[number] is not None]
    assert found[len(there) :] == [n for n, value in enumerate(params) if value is None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        assert there == sorted(there, reverse=descending)


def test_a_sample_has_the_best_trials_and_others_from_all_ranks(store: Store) -> None:
    made, _, _ = seven(store)
    whole = store.trials.sample(made.id, MAX, 100)
    assert [trial.number for trial in whole.trials] == list(range(7))
    assert sorted(whole.ranks) == list(range(1, 8))
    some = store.trials.sample(made.id, MAX, 4)
    by_rank = {rank: trial.number for rank, trial in zip(some.ranks, some.trials, strict=True)}
    assert [by_rank[rank] for rank in sorted(by_rank)] == [6, 0, 2, 3]
    assert sorted(by_rank) == [1, 2, 3, 7]
    assert some.total == 7
    assert store.trials.sample_numbers(made.id, MAX, 4) == [0, 2, 3, 6]
    assert [trial.number for trial in store.trials.sample(made.id, MIN, 1).trials] == [1]


def constrained(store: Store, values: list[tuple[float | None, bool | None]]) -> int:
    """Make an experiment whose trials have these best values, within (True) or outside the constraints (False)."""
    made, epoch, trials = begin(store, len(values))
    for trial, (value, feasible) in zip(trials, values, strict=True):
        trial.best_value, trial.feasible = value, feasible
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    return made.id


def test_trials_that_violate_the_constraints_come_after_the_others(store: Store) -> None:
    made = constrained(
        store, [(0.9, False), (0.5, True), (None, None), (0.95, False), (0.7, True), (0.9, False), (0.1, None)]
    )
    for size in (1, 2, 3, 100):
        assert numbers(store, made, size, sort="-best_value") == [4, 1, 6, 3, 0, 5, 2]
        assert numbers(store, made, size, sort="best_value") == [6, 1, 4, 0, 5, 3, 2]
        assert numbers(store, made, size, sort="-best_value", where=["number!=1"]) == [4, 6, 3, 0, 5, 2]
    assert numbers(store, made, sort="number") == list(range(7))
    some = store.trials.sample(made, MAX, 6)
    by_rank = {rank: trial.number for rank, trial in zip(some.ranks, some.trials, strict=True)}
    assert [by_rank[rank] for rank in sorted(by_rank)] == [4, 1, 6, 3, 0, 2]
    assert store.trials.sample_numbers(made, MIN, 2) == [1, 6]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.tuples(st.none() | st.integers(-3, 3).map(float), st.none() | st.booleans()), min_size=1, max_size=12
    ),
    size=st.integers(1, 5),
    descending=st.booleans(),
)
def test_pages_with_constraints_are_the_whole_in_order(
    sqlite_store: Store, values: list[tuple[float | None, bool | None]], size: int, descending: bool
) -> None:
    def place(number: int) -> tuple[bool, bool, float, int]:
        value, feasible = values[number]
        return value is None, feasible is False, (-1 if descending else 1) * (value or 0.0), number

    made = constrained(sqlite_store, values)
    found = numbers(sqlite_store, made, size, sort="-best_value" if descending else "best_value")
    there = [number for number in found if values[number][0] is not None]
    assert there == sorted(there, key=place)
    assert found[: len(there)] == there, "trials without a value come last"
    assert sorted(found) == list(range(len(values)))


@pytest.mark.parametrize("character", ["x", "\x01", "😀"])
def test_page_tokens_of_long_texts_fit_into_an_address(store: Store, character: str) -> None:
    name = f"params.{character * 240}"
    made, epoch, trials = begin(store, 5)
    for trial, end in zip(trials, "cabba", strict=True):
        trial.params = {character * 240: character * 5000 + end}
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert numbers(store, made.id, 1, sort=name) == [1, 4, 2, 3, 0]
    assert numbers(store, made.id, 1, sort=f"-{name}") == [0, 2, 3, 1, 4]
    token = store.trials.sorted_page(made.id, sort=name, page_size=2)[0].next_token
    assert token is not None
    assert len(token) <= 2000, "the longest that the API takes"
    trials[4].params = {character * 240: "another text"}
    store.drivers.commit(made.id, epoch, Batch(log=[(12, a_report(4, 1))], trials=[trials[4]]), T0)
    found = [trial.number for trial in store.trials.sorted_page(made.id, sort=name, page_token=token)[0].items]
    assert [number for number in found if number != 4][-3:] == [2, 3, 0], (
        "nothing is missed if the last trial of the page has changed"
    )


def test_a_sample_of_many_trials_is_spread_evenly(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 300)
    for trial in trials:
        trial.best_value = float(trial.number)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    found = sqlite_store.trials.sample(made.id, MIN, 60)
    assert len(found.trials) == len(set(found.ranks)) == 60
    numbers = [trial.number for trial in found.trials]
    assert numbers[:30] == list(range(30))
    steps = [later - earlier for earlier, later in itertools.pairwise(numbers[29:])]
    assert min(steps[1:]) >= 9
    assert max(steps) <= 10
    assert numbers[-1] == 299


def test_what_trials_were_trained_counts_no_more_than_a_full_training(store: Store) -> None:
    made, epoch, trials = seven(store)
    for trial, state, iteration in zip(
        trials, ["completed", "stopped", "failed", "stopped"], [9, 4, 5, 12], strict=False
    ):
        trial.state, trial.iteration, trial.reports = TrialState(state), iteration, iteration
    trials[5].iteration = 0
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert store.trials.trained(made.id, 10) == 9 + 4 + 10


def test_what_trials_were_trained_includes_what_they_repeated(store: Store) -> None:
    """Trial 0 started over, trial 1 began at iteration 8 of another trial, and trial 2 evaluates a configuration again."""
    made, epoch, trials = begin(store, 4)
    for trial, state, iteration, reports in zip(
        trials, ["stopped", "completed", "completed", "running"], [2, 10, 12, 3], [9, 2, 13, 5], strict=True
    ):
        trial.state, trial.iteration, trial.reports = TrialState(state), iteration, reports
        trial.running_s = 2.0 * reports
    trials[2].repeat_of = 1
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    assert store.trials.training(made.id) == (Training(29, 27, 58.0), Training(16, 15, 32.0))
    assert store.trials.trained(made.id, 10) == 9 + 2 + 11, (
        "the last two iterations of trial 2 are after the longest training"
    )
    assert store.trials.trained(made.id, 7) == 9 + 0 + 8
    other, _, _ = begin(store, 1)
    assert store.trials.training(other.id) == (Training(0, 0, 0.0), Training(0, 0, 0.0))


# Trial 0 was lucky: the mean of its runs is worse than that of trial 1. Trial 2 was run once, trial 3 does not always work.
# `web/src/curves/expected.test.ts` has the same trials.
RUNS: dict[str, Any] = {
    "trials": [1, 5],
    "values": [0.12, 0.14],
    "mean": 0.13,
    "error": 0.02,
    "noise": 0.05,
    "pairs": 2,
    "repeated": [
        {"trials": [1, 5], "mean": 0.13, "expected": 0.15},
        {"trials": [0, 4], "mean": 0.3, "expected": 0.28},
    ],
    "single": {"middle": 0.4, "weight": 0.75},
    "dropped": [3],
}
VALUES = [0.1, 0.12, 0.11, 0.05, 0.5, 0.14, None]
REPEATS = {4: 0, 5: 1, 6: 2}


def repeated(store: Store, runs: dict[str, Any] | None = RUNS) -> tuple[Any, int, list[Trial]]:
    made, epoch, trials = begin(store, len(VALUES))
    for trial, value in zip(trials, VALUES, strict=True):
        trial.best_value, trial.repeat_of = value, REPEATS.get(trial.number)
    best = {"trial_number": 1, "value": 0.13, "runs": runs}
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials, summary={"best": best}), T0)
    return made, epoch, trials


def test_expected_values_sort_trials_with_their_repeats(store: Store) -> None:
    made, _, _ = repeated(store)
    for size in (1, 2, 3, 100):
        assert numbers(store, made.id, size, sort="expected_value") == [1, 5, 2, 0, 4, 3, 6]
        assert numbers(store, made.id, size, sort="-expected_value") == [0, 4, 2, 1, 5, 3, 6]
    assert numbers(store, made.id, sort="best_value") == [3, 0, 2, 1, 5, 4, 6], "single runs"
    assert numbers(store, made.id, where=["expected_value<0.2"]) == [1, 2, 3, 5]
    assert store.trials.matching(made.id, ["expected_value>=0.28"]) == [0, 4]


def test_a_sample_ranks_by_expected_values_and_the_runs_of_a_configuration_share_a_rank(store: Store) -> None:
    made, _, _ = repeated(store)
    whole = store.trials.sample(made.id, MIN, 100)
    by_number = dict(zip([trial.number for trial in whole.trials], whole.ranks, strict=True))
    assert by_number == {1: 1, 5: 1, 2: 3, 0: 4, 4: 4, 3: 6, 6: 7}
    some = store.trials.sample(made.id, MIN, 4)
    assert [(trial.number, rank) for trial, rank in zip(some.trials, some.ranks, strict=True)] == [
        (1, 1), (2, 3), (5, 1), (6, 7),
    ]  # fmt: skip
    assert store.trials.sample_numbers(made.id, MIN, 4) == [1, 2, 5, 6]


def test_a_configuration_outside_the_constraints_comes_after_the_others_with_its_runs(store: Store) -> None:
    made, epoch, trials = repeated(store, {**RUNS, "dropped": [1]})
    trials[2].feasible = False
    store.drivers.commit(made.id, epoch, Batch(log=[(16, a_report(2, 1))], trials=trials), T0)
    assert numbers(store, made.id, 2, sort="expected_value") == [3, 0, 4, 1, 5, 2, 6]


def test_without_repeats_expected_values_are_the_best_ones(store: Store) -> None:
    made, _, _ = repeated(store, None)
    for sign in ("", "-"):
        assert numbers(store, made.id, sort=f"{sign}expected_value") == numbers(
            store, made.id, sort=f"{sign}best_value"
        )


def test_a_new_model_changes_the_values_of_all_trials(store: Store, database_url: str) -> None:
    made, epoch, _ = repeated(store)
    with Store.open(database_url) as reader:
        assert numbers(reader, made.id, sort="expected_value")[0] == 1
        page, _ = reader.trials.sorted_page(made.id, sort="expected_value", page_size=2)
        better = [RUNS["repeated"][0], {**RUNS["repeated"][1], "expected": 0.1}]
        best = {"trial_number": 0, "value": 0.3, "runs": {**RUNS, "repeated": better}}
        # The entry names trial 6 only, but the values of trials 0 and 4 change as well.
        store.drivers.commit(made.id, epoch, Batch(log=[(16, a_report(6, 1))], summary={"best": best}), T0)
        assert numbers(reader, made.id, sort="expected_value") == [0, 4, 1, 5, 2, 3, 6]
        behind = reader.trials.sorted_page(made.id, sort="expected_value", page_token=page.next_token)[0]
        assert [trial.number for trial in behind.items] == [2, 3, 6], "the page continues after the value of trial 5"


def test_fronts_sort_and_rank_the_trials_of_several_objectives(store: Store) -> None:
    objectives = (Objective("accuracy", "max"), Objective("latency", "min"))
    made, epoch, trials = begin(store, 7, spec=a_spec(objectives=objectives))
    values = [(0.9, 9.0), (0.5, 2.0), (0.4, 3.0), (0.9, 9.0), (0.3, 4.0), (None, 1.0), (0.99, 0.1)]
    for trial, (accuracy, latency) in zip(trials, values, strict=True):
        trial.best_value, trial.last = accuracy, {"accuracy": accuracy, "latency": latency}
    trials[6].feasible = False
    store.drivers.commit(made.id, epoch, Batch(log=[(16, a_report(0, 1))], trials=trials), T0)
    assert numbers(store, made.id, 2, sort="front") == [0, 1, 3, 2, 4, 5, 6]
    assert numbers(store, made.id, 2, sort="-front") == [4, 2, 0, 1, 3, 5, 6]
    assert numbers(store, made.id, where=["front=1"]) == [0, 1, 3]
    found = store.trials.sample(made.id, objectives, 100)
    assert found.ranks[:5] == (1, 1, 4, 1, 5), "the trials of a front share a rank"
    assert found.fronts == (1, 1, 2, 1, 3, None, None)
    page, _ = store.trials.sorted_page(made.id, sort="-number", page_size=4, fronts=True)
    assert ([trial.number for trial in page.items], page.fronts) == ([6, 5, 4, 3], (None, None, 3, 1))
    assert store.trials.sorted_page(made.id, sort="-number", page_size=4)[0].fronts == (None,) * 4
    assert store.trials.sample_numbers(made.id, objectives, 5) == [0, 1, 2, 3, 6], "the whole front, and others"
    trials[2].last = {"accuracy": 0.95, "latency": 0.5}
    store.drivers.commit(made.id, epoch, Batch(log=[(17, a_report(2, 2))], trials=trials), T0)
    assert numbers(store, made.id, where=["front=1"]) == [2], "a new report changes the fronts of all trials"
    assert store.trials.sorted_page(made.id, where=["number<2"], fronts=True)[0].fronts == (2, 2)


def test_a_list_that_is_nested_too_deeply_is_refused(sqlite_store: Store) -> None:
    made, *_ = seven(sqlite_store)
    with pytest.raises(SpecError, match="expected a JSON list"):
        sqlite_store.trials.sorted_page(made.id, where=["params.lr?=" + "[" * 2_000])


def test_one_long_text_takes_no_memory_for_the_others() -> None:
    texts = ["x" * 20_000, *(f"trial {number} was stopped" for number in range(5_000))]
    tracemalloc.start()
    try:
        column = Column.of(texts)
        found = column.fits(Filter.parse("reason~4999 was"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert found.nonzero()[0].tolist() == [5_000]
    assert [column.value(at) for at in (0, 5_000)] == [texts[0], texts[-1]]
