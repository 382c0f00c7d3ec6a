"""Test which experiments of a database a new one learns from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tuner
from tests.driver.stored import stored_simulation
from tuner.domain.batch import Entry
from tuner.domain.experiment import Objective, Spec
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.experiment.operations import earlier
from tuner.experiment.operations.earlier import with_earlier
from tuner.space import Space
from tuner.store import ExperimentRecord, Store
from tuner.store.drivers import Drivers

SPACE = Space.from_python({"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])})


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in range((checkpoint or 0) + 1, 10):
        yield Step({"loss": config["x"] + 8 / config["width"] / step}, checkpoint=step)


def spec_of(name: str, space: Space = SPACE, metric: str = "loss", **fields: Any) -> Spec:
    given = {"objectives": (Objective(metric, "min"),), "max_t": 9, "num_samples": 30, **fields}
    return Spec(name=name, space=space.to_json(), **given)


def searched(store: Store, name: str, space: Space = SPACE, trials: int = 12, **fields: Any) -> ExperimentRecord:
    found = simulate(
        curve, space, metric="loss", mode="min", num_samples=trials, max_t=9, scheduler="fifo", search_alg="random"
    )
    return stored_simulation(found, spec_of(name, space, **fields), store)


def names(spec: Spec) -> list[str]:
    return [each["name"] for each in spec.earlier["experiments"]]


def test_auto_learns_from_experiments_with_the_same_metric_and_parameters(sqlite_store: Store) -> None:
    searched(sqlite_store, "old")
    searched(sqlite_store, "accuracy", objectives=(Objective("accuracy", "max"),))
    searched(sqlite_store, "few", trials=3)
    searched(
        sqlite_store,
        "more",
        Space.from_python(
            {**dict.fromkeys("ab", tuner.uniform(0, 1)), "x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])}
        ),
    )
    found = with_earlier(sqlite_store, spec_of("new", warm_start="auto"))
    assert names(found) == ["more", "old"]
    assert found.earlier["notes"][0] == "learns from 2 earlier experiments: more (12 trials), old (12 trials)"
    assert len(found.earlier["portfolio"]) == 4


def test_auto_without_any_says_so_and_changes_nothing(sqlite_store: Store) -> None:
    found = with_earlier(sqlite_store, spec_of("new", warm_start="auto"))
    assert found.earlier["experiments"] == []
    assert found.earlier["notes"] == ["there is no earlier experiment to learn from, so warm_start has no effect"]


def test_experiments_that_teach_nothing_are_not_called_missing(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(sqlite_store, "old")
    monkeypatch.setattr("tuner.driver.earlier.LEAST_SKILL", 1.1)
    first, last = with_earlier(sqlite_store, spec_of("new", warm_start="auto")).earlier["notes"]
    assert first.startswith(
        "did not learn from old: its 12 trials do not show which configurations are good: predicted "
    )
    assert last == "nothing was learned from any of them, so warm_start has no effect"


def test_results_outside_the_constraints_of_the_earlier_one_are_not_good(sqlite_store: Store) -> None:
    searched(sqlite_store, "old", resolved={"constraints": {"loss": {"min": 100}}})
    found = with_earlier(sqlite_store, spec_of("new", warm_start="auto"))
    assert names(found) == []


def test_it_says_that_nothing_was_learned_if_no_earlier_one_helps(sqlite_store: Store) -> None:
    narrow = Space.from_python({"x": tuner.uniform(2, 3), "width": tuner.choice([16, 32, 64])})
    searched(sqlite_store, "old")
    found = with_earlier(sqlite_store, spec_of("new", narrow, warm_start="auto"))
    assert found.earlier["experiments"] == []
    assert found.earlier["notes"] == [
        "did not learn from old: 0 of its trials fit this space, but 5 are needed",
        "nothing was learned from any of them, so warm_start has no effect",
    ]


def test_it_is_off_by_default_with_a_hint_when_it_could_help(sqlite_store: Store) -> None:
    assert with_earlier(sqlite_store, spec_of("new")).earlier == {}
    searched(sqlite_store, "old")
    found = with_earlier(sqlite_store, spec_of("new"))
    assert found.earlier == {
        "notes": [
            'warm_start="auto" would learn from earlier experiments with the same parameters and metric, such as old'
        ]
    }


def test_experiments_are_named_by_id_or_name_whatever_their_metric(sqlite_store: Store) -> None:
    first = searched(sqlite_store, "same")
    searched(sqlite_store, "same")
    searched(sqlite_store, "other")
    found = with_earlier(sqlite_store, spec_of("new", metric="error", warm_start=[first.public_id, "other"]))
    assert names(found) == ["same", "other"]


@pytest.mark.parametrize(
    ("called", "message"),
    [("othr", "did you mean 'other'"), ("same", "2 experiments have the name"), ("exp_none", "no experiment exp_none")],
)
def test_a_wrong_name_is_a_mistake_in_the_spec(sqlite_store: Store, called: str, message: str) -> None:
    for name in ("same", "same", "other"):
        searched(sqlite_store, name)
    with pytest.raises(SpecError, match=message) as caught:
        with_earlier(sqlite_store, spec_of("new", warm_start=["other", called]))
    assert caught.value.errors[0][0] == "/warm_start/1"


def test_a_name_may_begin_like_an_id(sqlite_store: Store) -> None:
    searched(sqlite_store, "exp_sweep")
    assert names(with_earlier(sqlite_store, spec_of("new", warm_start=["exp_sweep"]))) == ["exp_sweep"]


def test_a_named_experiment_over_another_space_is_refused_with_what_it_lacks(sqlite_store: Store) -> None:
    searched(sqlite_store, "old")
    wider = Space.from_python({"x": tuner.uniform(0, 1), "depth": tuner.randint(1, 9)})
    with pytest.raises(SpecError, match="it does not have depth"):
        with_earlier(sqlite_store, spec_of("new", wider, warm_start=["old"]))


def test_an_experiment_without_a_space_is_told_to_declare_one(sqlite_store: Store) -> None:
    """An Optuna objective that was to learn from an imported study was told that a parameter has a different type."""
    searched(sqlite_store, "old")
    with pytest.raises(SpecError, match=r"cannot learn from 'old' without a space.*: declare them, such as tuner\.run"):
        with_earlier(sqlite_store, spec_of("new", Space({}), warm_start=["old"]))


def test_several_objectives_learn_nothing_yet(sqlite_store: Store) -> None:
    two = (Objective("loss", "min"), Objective("size", "min"))
    assert with_earlier(sqlite_store, spec_of("new", objectives=two)).earlier == {}
    with pytest.raises(SpecError, match="several objectives"):
        with_earlier(sqlite_store, spec_of("new", objectives=two, warm_start="auto"))


def test_the_default_of_the_project_counts_only_for_specs_without_one(sqlite_store: Store) -> None:
    searched(sqlite_store, "old", project="vision")
    taken = with_earlier(sqlite_store, spec_of("new", project="vision"), default="auto")
    assert (taken.warm_start, names(taken)) == ("auto", ["old"])
    assert taken.earlier["notes"][:2] == [
        "takes warm_start=\"auto\", the default of the project 'vision'",
        "learns from old (12 trials)",
    ]
    assert taken.earlier["of_project"] is True
    own = spec_of("new", project="vision", warm_start=["old"])
    assert with_earlier(sqlite_store, own, default="auto") == with_earlier(sqlite_store, own)
    two = (Objective("loss", "min"), Objective("size", "min"))
    several = with_earlier(sqlite_store, spec_of("new", objectives=two), default="auto")
    assert several.warm_start is None
    assert several.earlier == {
        "notes": [
            "did not take warm_start=\"auto\", the default of the project 'default': an experiment with several objectives "
            "cannot learn from earlier experiments yet"
        ]
    }


def test_auto_stays_within_the_project(sqlite_store: Store) -> None:
    searched(sqlite_store, "theirs", project="other")
    searched(sqlite_store, "ours", project="mine")
    assert names(with_earlier(sqlite_store, spec_of("new", project="mine", warm_start="auto"))) == ["ours"]
    assert with_earlier(sqlite_store, spec_of("new")).earlier == {}, "there is no hint about other projects either"


def test_no_more_reports_are_read_than_fit_into_memory(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(sqlite_store, "old")
    long = searched(sqlite_store, "long", trials=20)
    searched(sqlite_store, "new")
    load, read = Drivers.load, []

    def loading(self: Drivers, experiment_id: int, after: int = 0) -> Iterator[Entry]:
        read.append(experiment_id)
        return load(self, experiment_id, after)

    monkeypatch.setattr(Drivers, "load", loading)
    monkeypatch.setattr(earlier, "MOST_REPORTS", 2 * 12 * 9)
    found = with_earlier(sqlite_store, spec_of("next", warm_start="auto"))
    assert names(found) == ["new", "old"]
    assert "did not learn from long: with its 180 reports, the total would exceed 216" in found.earlier["notes"]
    assert long.id not in read


def test_only_complete_experiments_with_a_best_are_looked_at(sqlite_store: Store) -> None:
    kept, archived, thinned = (searched(sqlite_store, name) for name in ("kept", "archived", "thinned"))
    sqlite_store.experiments.create(spec_of("no trials"))
    elsewhere = sqlite_store.experiments.create(spec_of("elsewhere", project="other"))
    sqlite_store.experiments.archive(archived.id, True)
    with sqlite_store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET thinned_at = 1 WHERE id = ?", (thinned.id,))
    look = sqlite_store.experiments.with_a_best
    assert [found.name for found in look("default", 20)] == [kept.name]
    assert list(look("default", 1)) == [], "the newest one has no trials"
    assert list(look(elsewhere.spec.project, 20)) == []
