"""Write a scheduler, try it in virtual time, and run it on a cluster, all from this file.

`Halfway` lets a trial continue at half of `max_t` only if it is better than the mean of the trials that got there earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tuner
from tuner.domain.decisions import Decision, Stop
from tuner.domain.trial import Population, Trial
from tuner.schedulers.base import Fact, Scheduler, TrialReported
from tuner.schedulers.shared.wording import reported


@dataclass
class State:
    """The state of the scheduler. It is rebuilt from the log after a restart."""

    scores: dict[int, float] = field(default_factory=dict)  # trial -> its score at half time


class Halfway(Scheduler):
    TYPE = "halfway"

    def __init__(self) -> None:
        self.state = State()

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}

    @property
    def half(self) -> float:
        assert self.context.max_t is not None
        return self.context.max_t // 2

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        """Return the only report at which ranks wait for a verdict: the one at half time."""
        return self.half if trial.t < self.half else None

    def record(self, fact: Fact, trials: Population) -> None:
        """Note a fact. After a restart only this is called.

        Trials here report at every integer, so there is a report at half time exactly. If yours may skip it, take the first
        report at or after half time instead.
        """
        if isinstance(fact, TrialReported) and fact.t == self.half:
            self.state.scores[fact.trial] = fact.score  # a trial that is retried may report it twice

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        """Read the state and change nothing. A `score` is the objective, negated if lower is better."""
        if not isinstance(fact, TrialReported) or fact.t != self.half:
            return ()
        others = [score for trial, score in self.state.scores.items() if trial != fact.trial]
        if not others or fact.score >= (mean := sum(others) / len(others)):
            return ()
        value, usual = (reported(self.context.objective, score) for score in (fact.score, mean))
        reason = f"stopped half-way, at {fact.t:g}: {value} is worse than the mean of {usual}"
        return [Stop(trial=fact.trial, reason=reason)]


def simulated(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
    """Simulate a learning curve."""
    for step in range(1, 11):
        yield tuner.Step({"loss": config["x"] + 1 / step}, seconds=1.0)


def train(config: dict[str, Any]) -> None:
    """Report the same curve on a cluster, with two ranks per trial."""
    for step in range(1, 11):
        tuner.report({"loss": config["x"] + 1 / step})


SPACE = {"x": tuner.uniform(0, 1)}
SEARCH: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 12, "max_t": 10, "search_alg": "random"}


def main() -> None:
    rehearsal = tuner.simulate(simulated, SPACE, scheduler=Halfway(), check_restarts=True, **SEARCH)
    for decision in rehearsal.decisions:
        print(type(decision).__name__, decision.reason)
    print(f"{len(rehearsal.trials)} trials in {rehearsal.seconds:g} virtual seconds")
    # Without Ray, in processes on this machine: executor="local" instead of num_workers and resources_per_worker.
    result = tuner.run(
        train, SPACE, scheduler=Halfway(), num_workers=2, resources_per_worker={"CPU": 0.5}, verbose=0, **SEARCH
    )
    stopped = sum(str(trial.state) == "stopped" for trial in result.trials)
    print(
        f"{result.state}: {stopped} of {len(result.trials)} trials stopped half-way, best loss {result.best_value:.3f}"
    )


if __name__ == "__main__":
    main()
