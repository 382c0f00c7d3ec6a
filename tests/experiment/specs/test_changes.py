"""Changes to an experiment, checked without a database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.examples import a_spec
from tuner.domain.experiment import Limits, Spec
from tuner.errors import SpecError
from tuner.experiment.specs.changes import parse_changes

WITHOUT_TIME = {"limits": {"time_budget_s": None}}
GRID = {"x": {"type": "grid_search", "values": [1, 2]}}


def timed(budget: float | None = None, **fields: Any) -> Spec:
    """Return a spec with a time budget."""
    return a_spec(limits=Limits(time_budget_s=60.0, budget=budget), **fields)


def test_the_only_limit_on_trials_stays() -> None:
    with pytest.raises(SpecError) as caught:
        parse_changes(timed(), WITHOUT_TIME)
    message = "null needs num_samples, because the experiment would never end without it"
    assert caught.value.errors == [("/limits/time_budget_s", message)]


@pytest.mark.parametrize(
    "spec",
    [
        timed(num_samples=4),
        timed(space=GRID),
        timed(resolved={"search": {"type": "grid"}}),
        timed(budget=3.0, scheduler={"type": "freeze_thaw"}),
        timed(scheduler={"type": "pbt_replay", "schedule": []}),
    ],
)
def test_a_time_budget_is_removed_if_the_search_ends_anyway(spec: Spec) -> None:
    assert parse_changes(spec, WITHOUT_TIME) == WITHOUT_TIME


def test_a_time_budget_is_replaced_by_a_number_of_trials() -> None:
    changes = {"num_samples": 5, **WITHOUT_TIME}
    assert parse_changes(timed(), changes) == changes


def test_no_time_budget_stays_none() -> None:
    assert parse_changes(a_spec(), WITHOUT_TIME) == {}


def test_the_last_limit_stays_if_the_other_was_removed_before() -> None:
    spec = timed(budget=3.0, scheduler={"type": "freeze_thaw"})
    spec = spec.amended(parse_changes(spec, WITHOUT_TIME))
    with pytest.raises(SpecError) as caught:
        parse_changes(spec, {"limits": {"budget": None}})
    message = "null needs num_samples or limits.time_budget_s, because the experiment would never end without it"
    assert caught.value.errors == [("/limits/budget", message)]
    for other in (timed(budget=3.0, scheduler={"type": "freeze_thaw"}), spec.amended({"num_samples": 4})):
        assert parse_changes(other, {"limits": {"budget": None}}) == {"limits": {"budget": None}}


def test_a_name_that_is_not_changed_is_not_checked() -> None:
    """Experiments of earlier versions may have a name in the form of an id."""
    spec = a_spec(name="exp_0123456789abcdef0123")
    assert parse_changes(spec, {"name": spec.name, "notes": "good"}) == {"notes": "good"}


def test_a_limit_that_takes_several_types_has_one_error() -> None:
    with pytest.raises(SpecError) as caught:
        parse_changes(timed(), {"limits": {"repeats": "two"}})
    message = 'expected a number of repeats, 0 or more, or "auto", got "two"'
    assert caught.value.errors == [("/limits/repeats", message)]
