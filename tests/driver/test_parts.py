"""Python objects in a spec: the placeholder that stands for a scheduler of the user's own, and the name that lists show."""

from __future__ import annotations

from typing import Any

import pytest

import tuner
from tuner.domain.experiment import Objective, Spec
from tuner.driver.parts import plain_json
from tuner.schedulers.base import Scheduler


class Named(Scheduler):
    TYPE = "halfway"

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}


class Careful(tuner.ASHAScheduler):
    """A subclass without a TYPE of its own. It is no ASHA, so its name is not asha either."""


@pytest.mark.parametrize(("scheduler", "name"), [(Named(), "halfway"), (Careful(), "Careful")])
def test_a_scheduler_of_the_users_own_has_a_name_in_lists(scheduler: Scheduler, name: str) -> None:
    data = plain_json(scheduler)
    assert data == {"type": "python", "name": name, "repr": repr(scheduler)[:200]}
    spec = Spec(name="x", space={}, objectives=(Objective("m", "max"),), scheduler=data, search={"type": "random"})
    assert spec.method == f"random + {name}"


def test_a_placeholder_of_an_earlier_version_has_no_name() -> None:
    data = {"type": "python", "repr": "<mine>"}
    spec = Spec(name="x", space={}, objectives=(Objective("m", "max"),), scheduler=data, search={"type": "random"})
    assert spec.method == "random + python"


def test_a_scheduler_with_a_json_form_needs_no_placeholder() -> None:
    assert plain_json(tuner.ASHAScheduler())["type"] == "asha"
    assert plain_json(None) == {"type": "auto"}
