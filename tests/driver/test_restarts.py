"""`tuner.simulate(check_restarts=True)`: schedulers that survive a restart of the driver, and mistakes that do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import tuner
from examples.own_scheduler import Halfway
from tests.schedulers.examples import SCHEDULERS
from tuner.domain.decisions import Decision, Stop
from tuner.domain.trial import Population, Trial
from tuner.errors import RestartError
from tuner.schedulers.base import Fact, Scheduler, TrialReported

SPACE = {"lr": tuner.uniform(0, 1), "width": tuner.choice([16, 32])}
SEARCH: dict[str, Any] = {"metric": "m", "mode": "max", "num_samples": 8, "max_t": 9, "search_alg": "random"}


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
    for step in range((checkpoint or 0) + 1, 10):
        yield tuner.Step({"m": config["lr"] - math.cos(step * config["width"]) / step}, config["lr"], step)


BUILT_IN = {name: SCHEDULERS[name] for name in ("asha", "promotion", "hyperband", "median, soft", "pbt", "pb2")}


@pytest.mark.parametrize("scheduler", [*BUILT_IN.values(), Halfway()], ids=[*BUILT_IN, "own"])
def test_a_restart_changes_nothing_and_the_check_neither(scheduler: Any) -> None:
    plain = tuner.simulate(curve, SPACE, scheduler=scheduler if isinstance(scheduler, dict) else Halfway(), **SEARCH)
    checked = tuner.simulate(curve, SPACE, scheduler=scheduler, check_restarts=True, **SEARCH)
    assert checked.log == plain.log


def test_the_default_scheduler_is_checked_too() -> None:
    assert tuner.simulate(curve, SPACE, check_restarts=True, **{**SEARCH, "num_samples": 5}).log


@dataclass
class Seen:
    trials: list[int] = field(default_factory=list)


class Forgetful(Scheduler):
    """It stops every second trial that reports for the first time. Where it counts is a mistake of `where`."""

    TYPE = "forgetful"

    def __init__(self, where: str) -> None:
        self.where, self.state, self.aside = where, Seen(), Seen()

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        return math.nextafter(trial.t, math.inf)

    def record(self, fact: Fact, trials: Population) -> None:
        if self.where == "record" and isinstance(fact, TrialReported):
            self._note(fact, self.state)

    def _note(self, fact: TrialReported, seen: Seen) -> None:
        if fact.trial not in seen.trials:
            seen.trials.append(fact.trial)

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        seen = self.aside if self.where == "attribute" else self.state
        if self.where != "record":
            self._note(fact, seen)
        if seen.trials.index(fact.trial) % 2 == 0:
            return ()
        return [Stop(trial=fact.trial, reason=f"trial {fact.trial} is the {len(seen.trials)}th")]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (
            "decide",
            r"changes the scheduler's state from Seen\(trials=\[3\]\) to Seen\(trials=\[\]\). Change the",
        ),
        (
            "attribute",
            r"changes the decisions: they are \[Stop\(.*\)\] without the restart, and \[\] with it. `decide`,",
        ),
    ],
)
def test_a_scheduler_that_remembers_what_the_log_does_not_tell_is_found(where: str, says: str) -> None:
    tuner.simulate(curve, SPACE, scheduler=Forgetful(where), **SEARCH)
    with pytest.raises(RestartError, match=says):
        tuner.simulate(curve, SPACE, scheduler=Forgetful(where), check_restarts=True, **SEARCH)


def test_the_same_scheduler_without_the_mistake_passes() -> None:
    result = tuner.simulate(curve, SPACE, scheduler=Forgetful("record"), check_restarts=True, **SEARCH)
    assert [str(trial.state) for trial in result.trials].count("stopped") == 4
