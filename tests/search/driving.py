"""Drives a searcher over a small population, as a driver would: a few trials at once, stops, failures, pauses."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.search import from_json
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.space import Space, choice, loguniform, randint, randn, uniform

ONE = (Objective("score", "max"),)
TWO = (Objective("score", "max"), Objective("cost", "min"))

CONDITIONAL = Space.from_python(
    {
        "x": uniform(0, 1),
        "lr": loguniform(1e-5, 1),
        "k": randint(1, 9),
        "width": choice([16, 32, 64]),
        "branch": choice(["plain", {"z": uniform(0, 1)}, {"y": randint(0, 4)}]),
        "noise": randn(),
    }
)
FLAT = Space.from_python(
    {
        "x": uniform(0, 1),
        "lr": loguniform(1e-5, 1),
        "k": randint(1, 9),
        "width": choice([16, 32, 64]),
        "c": choice(list("abc")),
    }
)

Score = Callable[[Mapping[str, Any]], float]


def task(space: Space, objectives: Sequence[Objective] = ONE, **options: Any) -> SearcherContext:
    return SearcherContext(space, tuple(objectives), **{"seed": 1, "num_samples": 40} | options)


def make(given: Mapping[str, Any] | Searcher, of: SearcherContext) -> Searcher:
    """Return a searcher as the database gives it back: built from JSON, or unpickled if it is an object."""
    if isinstance(given, Searcher):
        searcher = pickle.loads(cloudpickle.dumps(given))
    else:
        searcher = from_json(json.loads(json.dumps(from_json(given).to_json(), allow_nan=False)))
    searcher.setup(of)
    return searcher


def hill(space: Space) -> Score:
    """Highest, 0, where every coordinate of the unit cube is 0.3."""
    return lambda params: -sum((space[path].unit(value) - 0.3) ** 2 for path, value in params.items())


class Drive:
    """Asks for trial after trial; in between all running ones report, and chance decides what becomes of them."""

    def __init__(
        self, of: SearcherContext, score: Score | None = None, seed: int = 0, stops: float = 0.15, parallel: int = 4
    ) -> None:
        self.context = of
        self.score = score or hill(of.space)
        self.rng = random.Random(seed)
        self.stops = stops
        self.parallel = parallel
        self.trials = Population()
        self.suggestions: list[Suggestion] = []

    def step(self, searcher: Searcher) -> bool:
        suggestion = searcher.suggest(len(self.suggestions), self.trials)
        if suggestion is None:
            return False
        number = len(self.trials)
        self.suggestions.append(suggestion)
        stored = json.loads(json.dumps([suggestion.params, suggestion.state], allow_nan=False))
        self.trials.add(Trial(number, stored[0], searcher_state=stored[1]))
        self.trials.move(number, TrialState.RUNNING)
        running = self.trials.in_state(TrialState.RUNNING)
        for other in running:
            self._report(self.trials[other])
        while len(self.trials.in_state(TrialState.RUNNING)) >= self.parallel:
            self.trials.move(self.trials.in_state(TrialState.RUNNING)[0], TrialState.COMPLETED)
        return True

    def enqueue(self, params: Mapping[str, Any]) -> None:
        """Start a trial that a user has enqueued."""
        number = len(self.trials)
        self.trials.add(Trial(number, dict(params)))
        self.trials.move(number, TrialState.RUNNING)

    def _report(self, trial: Trial) -> None:
        trial.iteration += 1
        trial.reports += 1
        value = self.score(trial.params) + 0.01 * trial.iteration
        trial.last_value = trial.best_value = value
        trial.last = {"score": value, "cost": self.rng.random()}
        chance = self.rng.random()
        if chance < self.stops:
            self.trials.move(trial.number, TrialState.STOPPED)
        elif chance < self.stops * 1.5:
            self.trials.move(trial.number, TrialState.FAILED)
        elif chance < self.stops * 2:
            self.trials.move(trial.number, TrialState.PAUSED)
        elif chance > 0.8:
            self.trials.move(trial.number, TrialState.COMPLETED)

    def run(self, searcher: Searcher, count: int) -> list[Suggestion]:
        for _ in range(count):
            if not self.step(searcher):
                break
        return self.suggestions
