"""Train with a schedule of configurations that population based training found, without a population."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tuner.domain.decisions import Decision, Exploit, Pause, Resume, Start, Stop
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Choice, Fact, Scheduler, SchedulerContext, TrialReported, can_resume
from tuner.schedulers.shared.wording import shown
from tuner.space import Space, choice
from tuner.space.words import unescape

TRIES = 3  # a trial is stopped after this many pauses at one change without saving a checkpoint


@dataclass(slots=True)
class ReplayState:
    # trial -> [iteration of its newest pauses, their number]
    pauses: dict[int, list[int]] = field(default_factory=dict)


class PBTReplayScheduler(Scheduler):
    """Trains from the beginning with the schedule that a PBT search found: the configuration changes at the same iterations.

    At each iteration of the schedule, the trial saves a checkpoint and continues from it with the next configuration. The
    schedule determines all configurations, so no searcher is used. With `num_samples`, several trials follow it.

    Args:
        schedule: the list that `result.schedule()` returns, or the `pathlib.Path` of a JSON file with this list, as
            `tuner schedule NAME` prints it. Items are ``{"iteration": ..., "params": {...}}``; other fields are ignored.
            A string is never read as a path, so that a spec cannot name a file of the service.
    """

    TYPE = "pbt_replay"
    PROPOSES = True
    ONE_TRIAL = True
    SAVES_AT_MILESTONES = True
    REVISES = False

    def __init__(self, schedule: Sequence[Mapping[str, Any]] | Path) -> None:
        self.schedule = _read(schedule)
        self._iterations = [item["iteration"] for item in self.schedule]
        self.state = ReplayState()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        if not context.checkpoints and len(self.schedule) > 1:
            raise SpecError("a schedule is replayed from checkpoints, but this trainable saves none", "/scheduler/type")
        errors: list[tuple[str, str]] = []
        counts_iterations = context.time_attr == "training_iteration"
        for place, item in enumerate(self.schedule):
            if counts_iterations and context.max_t is not None and item["iteration"] >= context.max_t:
                message = f"expected an iteration below max_t, {context.max_t}, got {item['iteration']}"
                errors.append((f"/scheduler/schedule/{place}/iteration", message))
            errors += _outside(context.space, item["params"], f"/scheduler/schedule/{place}/params")
        if errors:
            raise SpecError(errors)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "schedule": self.schedule}

    def default_space(self) -> dict[str, Any]:
        """Return a space whose parameters are choices among their values in the schedule."""
        root: dict[str, Any] = {}
        for path in {path: None for item in self.schedule for path in item["params"]}:
            values: list[Any] = []
            for item in self.schedule:
                if path in item["params"] and item["params"][path] not in values:
                    values.append(item["params"][path])
            *groups, name = path.split("/")
            inside = root
            for depth, group in enumerate(groups, 1):
                if "/".join(groups[:depth]) in self.schedule[0]["params"]:
                    message = (
                        f"the schedule has the branch {path!r} of a choice: pass the search space of the PBT search"
                    )
                    raise SpecError(message, "/space")
                inside = inside.setdefault(unescape(group), {})
            inside[unescape(name)] = choice(values)
        return root

    def _place(self, iteration: int) -> int:
        """Return the place of the configuration that applies after this iteration."""
        return max(bisect_right(self._iterations, iteration) - 1, 0)

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        place = self._place(trial.iteration)
        following = math.nextafter(trial.t, math.inf)
        if dict(trial.params) != self.schedule[place]["params"]:
            return following
        if place + 1 == len(self.schedule):
            return None
        exact = self.context.time_attr == "training_iteration"
        return max(float(self._iterations[place + 1]), following) if exact else following

    def enacted(self, decision: Decision, trials: Population) -> None:
        if isinstance(decision, Pause) and not decision.held:
            iteration = self._iterations[self._place(trials[decision.trial].iteration)]
            before, count = self.state.pauses.get(decision.trial, (-1, 0))
            self.state.pauses[decision.trial] = [iteration, count + 1 if before == iteration else 1]

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        trial, item = trials[fact.trial], self.schedule[self._place(fact.iteration)]
        if dict(trial.params) == item["params"]:
            return ()
        iteration, count = self.state.pauses.get(fact.trial, (-1, 0))
        if iteration == item["iteration"] and count >= TRIES and trial.checkpoint is None:
            reason = f"the configuration changes at iteration {iteration}, but the trial has saved no checkpoint in {count} tries"
            return (Stop(trial=fact.trial, reason=reason),)
        reason = f"paused at iteration {fact.iteration}: the schedule changes the configuration here"
        return (Pause(trial=fact.trial, reason=reason),)

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        for number in trials.in_state(TrialState.PAUSED):
            trial = trials[number]
            if can_resume(trial):
                return self._continued(trial)
        if may_start:
            return Start(params=self.schedule[0]["params"], reason="the first configuration of the schedule")
        return None

    def _continued(self, trial: Trial) -> Choice:
        item, old = self.schedule[self._place(trial.iteration)], trial.params
        new = item["params"]
        if dict(old) == new or not trial.checkpoints:
            return Resume(trial=trial.number, reason="resumed with its configuration from the schedule")
        how = {
            path: f"{shown_value(old.get(path))} → {shown_value(new.get(path))}"
            for path in {**old, **new}
            if old.get(path) != new.get(path)
        }
        changes = ", ".join(f"{path} {words}" for path, words in how.items())
        reason = f"iteration {trial.iteration}: {changes}, as in the schedule"
        return Exploit(trial=trial.number, donor=trial.number, params=new, reason=reason, mutations=how)


def shown_value(value: Any) -> str:
    """Return a parameter's value in words."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "none" if value is None else shown(value) if number else str(value)


def _read(given: Any) -> list[dict[str, Any]]:
    at, expected = "/schedule", 'expected a list of {"iteration": ..., "params": {...}}'
    if isinstance(given, Path):
        try:
            given = json.loads(given.read_text(encoding="utf-8"))
        except OSError as error:
            raise SpecError(
                f"cannot read {str(given)!r}: {error.strerror}; {expected}, or the path of a file with such a list", at
            ) from None
        except ValueError as error:
            raise SpecError(f"{str(given)!r} is not JSON: {error}", at) from None
    if not isinstance(given, list | tuple):
        raise SpecError(f"{expected}, or its pathlib.Path, got {given!r}", at)
    if not given:
        raise SpecError(f"the schedule is empty; {expected}", at)
    items: list[dict[str, Any]] = []
    for place, item in enumerate(given):
        if not isinstance(item, Mapping) or not isinstance(item.get("params"), Mapping):
            raise SpecError(f'expected {{"iteration": ..., "params": {{...}}}}, got {item!r}', f"{at}/{place}")
        iteration = item.get("iteration")
        if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
            raise SpecError(f"expected a whole number of at least 0, got {iteration!r}", f"{at}/{place}/iteration")
        items.append({"iteration": iteration, "params": dict(item["params"])})
    if items[0]["iteration"] != 0:
        raise SpecError(f"the first iteration must be 0, got {items[0]['iteration']}", f"{at}/0/iteration")
    for place, (before, after) in enumerate(pairwise(items), 1):
        if before["iteration"] >= after["iteration"]:
            message = (
                f"expected an iteration above {before['iteration']}, the previous item's, got {after['iteration']}"
            )
            raise SpecError(message, f"{at}/{place}/iteration")
    return items


def _outside(space: Space, params: Mapping[str, Any], at: str) -> list[tuple[str, str]]:
    """Return what is wrong with params for this space."""
    wrong = [(f"{at}/{path}", "not in the search space") for path in params if path not in space]
    wrong += [
        (f"{at}/{path}", f"{value!r} is outside the parameter's domain")
        for path, value in params.items()
        if path in space and not space[path].contains(value)
    ]
    missing = [p.path for p in space.parameters if p.condition is None and p.path not in params]
    return wrong + [(f"{at}/{path}", "missing; the search space has it") for path in missing]
