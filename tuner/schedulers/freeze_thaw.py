"""Freeze-thaw: a model of the learning curves decides, at every level, which trial trains on.

Swersky, Snoek and Adams, "Freeze-Thaw Bayesian Optimization", 2014, https://arxiv.org/abs/1406.3896, pause and resume
many trials as a model of their curves sees fit. How the model here looks is said in `curve_model`, how a decision is made
in `weighing`; this module keeps the facts and puts decisions into words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tuner.domain.decisions import Cancel, Complete, Decision, Fail, Note, Pause, Resume, Retry, Start, Stop
from tuner.domain.keys import keyed_seed
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers import weighing_words
from tuner.schedulers.base import (
    Fact,
    Fitted,
    Scheduler,
    Setting,
    StartMeasured,
    TrialEnded,
    TrialReported,
    TrialRestarted,
    TrialStarted,
    can_resume,
)
from tuner.schedulers.cube import Cube, key
from tuner.schedulers.curve_model import Evidence, Floats, Prior, Rows, Warp
from tuner.schedulers.novelty import Novelty
from tuner.schedulers.options import check_boolean, check_number, options_of
from tuner.schedulers.repeats import Repeats
from tuner.schedulers.weighing import Question, Results, Winner, tau, weigh
from tuner.schedulers.wording import at, shown

LEVEL_RATIO = 1.5
FIRST_TRIALS = 8  # drawn without the model
KEPT_TIMES = 64  # measured times that the medians are taken of
REFIT_GROWTH = 1.2
FITS_FROM_PRIOR = 7  # while data are few, the last fit may sit in a poor optimum
SCOUT_REACH = 0.2  # of max_t
SCOUTS_WHEN_STALLED = 2  # times scout_share, on top of it, while nothing gets better
PATIENCE = 5  # full trainings before it is asked whether things get better
NEARLY = 0.05  # of the way down to the median score is as good as the best
FINISH_TRIES = 3  # leading trials taken up at the end, should they fail or be overtaken
RECENT = 10  # proposals of the model that are looked back upon

PRIOR = Prior()


@dataclass(slots=True)
class FreezeThawState:
    """Facts, and the last committed fit."""

    results: list[tuple[int, int, float | None]] = field(
        default_factory=list
    )  # trial, level index, score or None: crash
    best: float | None = None  # score
    records: list[tuple[float, float]] = field(default_factory=list)  # what was spent when a score was the best so far
    running: dict[int, None] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)  # trial -> index of the highest level it has a result at
    clock: dict[int, tuple[float, float | None]] = field(
        default_factory=dict
    )  # trial -> (t, time) of its newest report
    ordinal: int = 0  # counts what a decision may depend on; keys its randomness
    held: int | None = None  # the trial whose report at a new level is the newest such fact
    spent: float = 0.0  # units of time_attr trained by all trials together
    scouts: int = 0
    scouted: float = 0.0  # of what was spent, given to scouts before they could be paused
    pace: list[float] = field(default_factory=list)  # seconds per unit of time_attr, of the latest reports
    startups: list[float] = field(default_factory=list)  # seconds, of the latest segments
    theta: list[float] = field(default_factory=list)
    fitted_at: int = 0  # results at the last fit
    fits: int = 0
    finishing: list[int] = field(default_factory=list)  # trials taken up to be trained to max_t as the leading one


class FreezeThawScheduler(Scheduler):
    """Pauses and resumes trials, and proposes new ones, as a model of their learning curves sees fit.

    max_t: a full training, in units of time_attr; the experiment's where None.
    grace_period: the lowest level; nothing is decided before it. Levels then grow by 1.5. None: 1, or max_t / 64 for a
        max_t below 2.
    budget: ends the search after so many full trainings' worth of time_attr, all trials together. None: the experiment's
        (limits.budget), else a fifth of num_samples, but at least 3 (or num_samples, if that is less); no end of its own if
        the experiment has a time budget or no num_samples.
    finish_best: whether the leading trial, the one with the best value so far, is trained to max_t at the end. What it still
        costs, at most half of the budget, is kept for it. A budget below one full training finishes none.
    thaw: how often only started trials are asked about, by their expected improvement at max_t.
    random_share: of the new trials, how many are drawn without the model, which may be wrong about the space.
    scout_share: of all training, how much goes to trials that are drawn without the model and not paused before a fifth of
        max_t, since slow starters cannot be told early and a model that never saw one does not expect any; up to three
        times as much while nothing gets better.
    """

    TYPE: ClassVar[str] = "freeze_thaw"
    VERSION: ClassVar[int] = 2
    PROPOSES: ClassVar[bool] = True
    COUNTS_BUDGET: ClassVar[bool] = True
    NEEDS_CHECKPOINTS: ClassVar[bool] = True

    def __init__(
        self,
        max_t: float | None = None,
        grace_period: float | None = None,
        budget: float | None = None,
        thaw: float = 0.3,
        random_share: float = 0.1,
        scout_share: float = 0.07,
        time_attr: str | None = None,
        finish_best: bool = True,
    ) -> None:
        check_boolean("finish_best", finish_best)
        for name, value in (("max_t", max_t), ("grace_period", grace_period), ("budget", budget)):
            if value is not None:
                check_number(name, value, above=0)
        for name, value in (("thaw", thaw), ("random_share", random_share), ("scout_share", scout_share)):
            check_number(name, value, at_least=0, at_most=1)
        self.max_t = max_t
        self.grace_period = grace_period
        self.budget = budget
        self.thaw = thaw
        self.random_share = random_share
        self.scout_share = scout_share
        self.time_attr = time_attr
        self.finish_best = finish_best
        self.state = FreezeThawState()
        self._cache = _Cache()

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        end = self.inherited_max_t(self.max_t, self.time_attr)
        if end is None:
            raise SpecError("freeze-thaw has to know how long a full training is: give max_t", "/scheduler/max_t")
        if setting.space.has_grid:
            message = "freeze_thaw picks configurations itself and runs no grid: use choice(...), not grid_search(...)"
            raise SpecError(message, "/space")
        if not len(setting.space):
            raise SpecError("there is nothing to search: the space has no parameters", "/space")
        grace = self.grace_period if self.grace_period is not None else (1 if end >= 2 else end / 64)
        if grace > end:
            raise SpecError(f"expected at least grace_period ({grace:g}), got {end:g}", "/scheduler/max_t")
        if None not in (self.budget, setting.budget) and self.budget != setting.budget:
            message = (
                f"the experiment's budget is {setting.budget:g}, the scheduler's {self.budget:g}: give one of them"
            )
            raise SpecError(message, "/scheduler/budget")
        self._levels = levels(float(grace), float(end))
        self._end = self._levels[-1]
        self._scout_end = next(level for level in self._levels if level >= SCOUT_REACH * self._end)
        self._cube = Cube(setting.space)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self, type(self))}

    def resolved(self) -> dict[str, Any]:
        """With the lowest level, and the budget that follows from num_samples; that is None where only the time ends it."""
        own = {"max_t": self._end, "grace_period": self._levels[0], "budget": self._budget()}
        whole = {name: int(value) if value is not None and value.is_integer() else value for name, value in own.items()}
        return {**super().resolved(), **whole}

    def budget_words(self) -> str | None:
        budget = self._budget()
        if budget is None:
            return None
        unit = "iterations" if self.setting.time_attr == "training_iteration" else f"of {self.setting.time_attr}"
        worth = (
            f"{shown(budget)} full training{'s' if budget != 1 else ''}' worth"
            if budget != 1
            else "1 full training's worth"
        )
        said = f"{worth} ({shown(budget * self._end)} {unit}), all trials together"
        if self.budget is not None or self.setting.budget is not None:
            return f"{said}; a larger budget=... raises it"
        return f"{said}, as follows from num_samples={self.setting.num_samples}; budget=... or a larger num_samples raises it"

    # -- facts -----------------------------------------------------------------------------------------------------------

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        """The next level at which the trial has no result yet; what is trained again after a retry is not decided again."""
        index = max(self.state.reached.get(trial.number, -1), self._passed(trial.t)) + 1
        if trial.tags.get("scout"):
            index = max(index, self._levels.index(self._scout_end))
        return self._levels[index] if index < len(self._levels) else None

    def record(self, fact: Fact, trials: Population) -> None:
        state: FreezeThawState = self.state
        match fact:
            case TrialStarted(trial=trial):
                state.running[trial] = None
            case TrialRestarted(trial=trial, t=t):
                state.running[trial] = None
                state.clock[trial] = (t, None)
            case StartMeasured(startup_s=startup_s):
                if math.isfinite(startup_s) and startup_s >= 0:
                    state.startups = [*state.startups, startup_s][-KEPT_TIMES:]
            case TrialReported():
                self._reported(fact)
            case TrialEnded():
                self._ended(fact, trials[fact.trial])
            case Fitted(payload=payload):
                state.theta = [float(v) for v in payload["theta"]]
                state.fitted_at = int(payload["results"])
                state.fits += 1
                state.ordinal += 1

    def _reported(self, fact: TrialReported) -> None:
        state: FreezeThawState = self.state
        t, time = state.clock.get(fact.trial, (0.0, None))
        if fact.t > t:
            state.spent += fact.t - t
            if time is not None and fact.time >= time:
                state.pace = [*state.pace, (fact.time - time) / (fact.t - t)][-KEPT_TIMES:]
        state.clock[fact.trial] = (fact.t, fact.time)
        if state.best is None or fact.score > state.best:
            state.best = fact.score
            state.records.append((state.spent, fact.score))
        index = self._passed(fact.t)
        if index > state.reached.get(fact.trial, -1):
            state.reached[fact.trial] = index
            state.results.append((fact.trial, index, fact.score))
            state.ordinal += 1
            state.held = fact.trial
        elif state.held == fact.trial:
            state.held = None

    def _ended(self, fact: TrialEnded, trial: Trial) -> None:
        state: FreezeThawState = self.state
        state.running.pop(fact.trial, None)
        state.clock.pop(fact.trial, None)
        state.ordinal += 1
        if state.held == fact.trial:
            state.held = None
        crashed = fact.state is TrialState.FAILED and trial.failure is not None and trial.failure.kind == "user"
        if fact.diverged or crashed:
            # worse than all others where it happened, and at the end, which it will never see
            last = len(self._levels) - 1
            index = min(state.reached.get(fact.trial, -1) + 1, last)
            state.results += [(fact.trial, i, None) for i in sorted({index, last})]
            state.reached[fact.trial] = last

    def enacted(self, decision: Decision, trials: Population) -> None:
        state: FreezeThawState = self.state
        if isinstance(decision, Resume | Note) and decision.trial not in state.finishing:
            self._take_up(decision.trial, trials)
        match decision:
            case Start(tags=tags):
                state.ordinal += 1
                state.held = None
                if tags.get("scout"):
                    state.scouts += 1
                    state.scouted += self._scout_end
            case Resume(trial=trial) | Retry(trial=trial):
                state.running[trial] = None
                state.ordinal += 1
                state.held = None
            case (
                Pause(trial=trial) | Stop(trial=trial) | Complete(trial=trial) | Fail(trial=trial) | Cancel(trial=trial)
            ):
                state.running.pop(trial, None)

    def _take_up(self, number: int | None, trials: Population) -> None:
        if number is not None and self._spent_out(trials) and number == self._last_leader(trials):
            self.state.finishing.append(number)

    # -- decisions -------------------------------------------------------------------------------------------------------

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        state: FreezeThawState = self.state
        if not isinstance(fact, TrialReported):
            return ()
        number, here = fact.trial, at(self.setting.time_attr, fact.t)
        if fact.t >= self._end:
            return (Complete(trial=number, reason=f"completed at {here}: max_t is {shown(self._end)}"),)
        if state.held != number or number not in state.running:
            return ()
        if self._spent_out(trials):
            if number == self._last_leader(trials):
                why = self._finishing_words(trials[number])
                return () if number in state.finishing else (Note(trial=number, reason=why),)
            return (Stop(trial=number, reason=f"stopped at {here}: {self._spent_words()}"),)
        if trials[number].tags.get("scout") and fact.t < self._scout_end:
            return ()
        may_start = self.setting.num_samples is None or len(trials) < self.setting.num_samples
        first = max(FIRST_TRIALS, self.setting.given_points)
        if may_start and len(trials) < first and self._spread(trials, len(trials), "") is not None:
            return (Pause(trial=number, reason=f"paused at {here}: the first {first} configurations come first"),)
        if (original := self._repeats().original(number)) is not None:
            why = f"all its results so far are those of trial {original}"
            return (Pause(trial=number, reason=f"paused at {here}: {why}"),)
        winner = self._winner(trials, number, may_start)
        if winner is None or winner.trial == number:
            return ()
        return (Pause(trial=number, reason=weighing_words.paused(self.setting.objective, here, winner)),)

    def choose(self, trials: Population, may_start: bool) -> Start | Resume | None:
        state: FreezeThawState = self.state
        if self._spent_out(trials):
            leader = self._last_leader(trials)
            if leader is None or not can_resume(trials[leader]):
                return None
            return Resume(trial=leader, reason=self._finishing_words(trials[leader]))
        count = len(trials)
        if may_start and count < self.setting.given_points:
            return Start(reason="one of points_to_evaluate")
        if may_start and (count < FIRST_TRIALS or not state.results):
            why = f"one of the first {FIRST_TRIALS}, spread over the space"
            if (start := self._spread(trials, count, why)) is not None:
                return start
        if not state.results:
            return None
        if may_start and self._scout_due():
            reach = at(self.setting.time_attr, self._scout_end)
            why = (
                f"a scout, drawn without the model and not paused before {reach}: slow starters cannot be told earlier"
            )
            return self._spread(trials, state.scouts, why, scout=True)
        held = state.held if state.held not in state.running else None
        if held is not None and self._repeats().original(held) is not None:
            held = None
        winner = self._winner(trials, held, may_start)
        if winner is not None and winner.trial is not None and winner.trial == held:
            winner = self._winner(trials, None, may_start)
        if winner is None:
            return None
        if winner.trial is not None:
            return Resume(trial=winner.trial, reason=weighing_words.resumed(self.setting.objective, winner))
        if self._draw("random") < self.random_share and not self._cube.discrete:
            return self._spread(trials, count, f"new, drawn without the model as {self.random_share:.0%} are")
        assert winner.point is not None
        reason = weighing_words.started(self.setting.objective, winner)
        return Start(params=self._cube.params(winner.point), reason=reason, tags={"model": True})

    def finished(self, trials: Population, may_start: bool) -> str | None:
        over = self._spent_out(trials) and self._last_leader(trials) is None
        return self._spent_words() if over else None

    def _winner(self, trials: Population, held: int | None, may_start: bool) -> Winner | None:
        """Who is to train next: a paused trial, the one that reported (`held`), a new one; None where there is none.

        Asked with the same state, `decide` and `choose` get the same answer, whether or not it was kept.
        """
        state: FreezeThawState = self.state
        repeats = self._repeats()
        paused = [
            n
            for n in trials.in_state(TrialState.PAUSED)
            if n in state.reached and n != held and can_resume(trials[n]) and repeats.original(n) is None
        ]
        start_cost = self._start_cost()
        waste = [start_cost + self._lost(trials[n]) for n in paused]
        if held is not None:
            paused.append(held)
            waste.append(0.0)
        running = sorted(n for n in state.running if n != held)
        asked = (state.ordinal, held, paused, waste, running, start_cost, may_start)
        if self._cache.asked != asked:
            question = Question(
                results=self._results(trials),
                levels=np.array(self._levels),
                theta=self._theta(),
                best=state.best if state.best is not None else 0.0,
                started=np.array(paused, dtype=np.int64),
                held=held is not None,
                waste=np.array(waste),
                running=np.array(running, dtype=np.int64),
                start_cost=start_cost,
                may_start=may_start,
                thaw=self.thaw,
                repeats=self._chance_of_repeats(trials),
                few=not self._cube.discrete and self._draw("few") < self._idle_share(trials),
            )
            generator = np.random.default_rng(self._key("weigh", state.ordinal, -1 if held is None else held))
            self._cache.winner = weigh(question, self._cube, lambda n: self._point(trials[n]), generator)
            self._cache.asked = asked
        return self._cache.winner

    def _idle_share(self, trials: Population) -> float:
        """How much of what the model proposed last turned out to begin like another trial, and half as much again."""
        repeats, recent = self._repeats(), []
        for number in range(len(trials) - 1, FIRST_TRIALS - 1, -1):
            if trials[number].tags.get("model") and number in self.state.reached:
                recent.append(repeats.begins_like_another(number))
                if len(recent) == RECENT:
                    break
        return min(1.5 * sum(recent) / RECENT, 0.8)

    def _chance_of_repeats(self, trials: Population) -> Floats | None:
        novelty = self._cache.novelty
        novelty.follow(self.state.results, lambda n: self._cube.features(self._point(trials[n])[None])[0])
        return novelty.chance()

    def _spread(self, trials: Population, index: int, reason: str, scout: bool = False) -> Start | None:
        """A point of a low-discrepancy sequence; scouts have one of their own, so that few of them see much of the space.

        In a finite space the first that has not been tried; None where there is none.
        """
        shift = np.random.default_rng(self._key("scouts" if scout else "first")).random(self._cube.dims)
        if self._cube.discrete:
            tried = {key(self._point(trial)) for trial in trials}
            untried = [point for point in self._cube.spread(256, shift) if key(point) not in tried]
            if not untried:
                return None
            point = untried[0]
        else:
            (point,) = self._cube.spread(1, shift, index)
        return Start(params=self._cube.params(point), reason=reason, tags={"scout": True} if scout else {})

    # -- fits ------------------------------------------------------------------------------------------------------------

    def fit_request(self, trials: Population) -> Mapping[str, Any] | None:
        state: FreezeThawState = self.state
        count = len(state.results)
        if count < REFIT_GROWTH * state.fitted_at + 4:
            return None
        results = self._results(trials)
        kept = results.thinned(np.random.default_rng(self._key("fit", count)))
        slots, trial = np.unique(results.slot[kept], return_inverse=True)
        grid = np.array(self._levels)
        return {
            "x": self._cube.features(results.points[slots]).tolist(),
            "trial": trial.tolist(),
            "tau": tau(grid, grid[results.level[kept]]).tolist(),
            "z": Warp.of(results.score[kept]).z.tolist(),
            "group": self._cube.group.tolist(),
            "theta": self._theta().tolist(),
            "from_prior": state.fits < FITS_FROM_PRIOR,
            "results": count,
        }

    @staticmethod
    def fit(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = Rows(
            x=np.array(payload["x"], dtype=float),
            trial=np.array(payload["trial"], dtype=np.int64),
            tau=np.array(payload["tau"], dtype=float),
        )
        z, group = np.array(payload["z"], dtype=float), np.array(payload["group"], dtype=np.int64)
        evidence = Evidence(rows, z, group, PRIOR)
        starts = [(np.array(payload["theta"], dtype=float), 25)]
        if payload["from_prior"]:
            starts.append((PRIOR.mean(evidence.dims), 12))
        return {"theta": evidence.fit(starts).tolist(), "results": payload["results"]}

    def _theta(self) -> Floats:
        prior = PRIOR.mean(self._cube.dims)
        # a fit of an older version's model, of other parameters, is of no use
        return np.array(self.state.theta) if len(self.state.theta) == len(prior) else prior

    # -- small things ----------------------------------------------------------------------------------------------------

    def _results(self, trials: Population) -> Results:
        results = self.state.results
        if self._cache.results is None or len(self._cache.results.slot) != len(results):
            repeats = self._repeats()
            self._cache.results = Results.of(
                results, lambda n: self._point(trials[n]), lambda n: repeats.original(n) is not None
            )
        return self._cache.results

    def _repeats(self) -> Repeats:
        self._cache.repeats.follow(self.state.results)
        return self._cache.repeats

    def _point(self, trial: Trial) -> Floats:
        if trial.number not in self._cache.points:
            self._cache.points[trial.number] = self._cube.point(trial.params)
        return self._cache.points[trial.number]

    def _passed(self, t: float) -> int:
        """The index of the highest level at or below t; -1 below the lowest."""
        return sum(level <= t for level in self._levels) - 1

    def _start_cost(self) -> float:
        """What a start or a resume costs, in units of time_attr: medians of what was measured; 0 while nothing was."""
        state: FreezeThawState = self.state
        if not state.startups or not state.pace:
            return 0.0
        pace = statistics.median(state.pace)
        return statistics.median(state.startups) / pace if pace > 0 else 0.0

    def _lost(self, trial: Trial) -> float:
        """What a paused trial has to do again because its newest checkpoint is older than its newest report."""
        if not trial.iteration:
            return 0.0
        step = trial.checkpoint.step if trial.checkpoint is not None else 0
        return trial.t * max(0.0, 1 - step / trial.iteration)

    def _scout_due(self) -> bool:
        state: FreezeThawState = self.state
        if self._cube.discrete or len(self._levels) < 3 or self._scout_end <= self._levels[1]:
            return False
        share = self.scout_share * (1 + SCOUTS_WHEN_STALLED * self._stalled())
        return state.scouted < share * state.spent

    def _stalled(self) -> float:
        """The share of all training, but for the first of it, since there was a score nearly as good as the best."""
        state: FreezeThawState = self.state
        scores = [score for _, _, score in state.results if score is not None]
        if state.best is None or not scores or not state.spent:
            return 0.0
        near = state.best - NEARLY * max(0.0, state.best - statistics.median(scores))
        since = next((spent for spent, best in state.records if best >= near), state.spent)
        return max(0.0, 1 - max(since, PATIENCE * self._end) / state.spent)

    def _key(self, *purpose: str | int) -> int:
        return keyed_seed(self.setting.seed, "freeze_thaw", *purpose)

    def _draw(self, purpose: str) -> float:
        """A number in [0, 1) for this purpose and this decision."""
        return self._key(purpose, self.state.ordinal) / 2**64

    def _budget(self) -> float | None:
        if (given := self.budget if self.budget is not None else self.setting.budget) is not None:
            return float(given)
        samples = self.setting.num_samples
        if samples is None or self.setting.time_budget_s is not None:
            return None
        return float(min(samples, max(3, samples / 5)))

    def _spent_out(self, trials: Population) -> bool:
        """Whether nothing of the budget is left but what is kept for the leading trial."""
        budget = self._budget()
        if budget is None:
            return False
        whole = budget * self._end
        kept = 0.0
        if self.state.spent < whole and (leader := self._last_leader(trials)) is not None:
            kept = min(self._remaining(trials[leader]), whole / 2)
        spent: float = self.state.spent
        return spent + kept >= whole

    def _last_leader(self, trials: Population) -> int | None:
        """The trial to train to max_t before the search ends; None if the leading one is there already.

        The best score leads, and of equals the one that is further on. Trials that ended before max_t are passed over, and so
        are those that a user has paused. No more than FINISH_TRIES are taken up, should one after the other fail.
        """
        budget = self._budget()
        if not self.finish_best or budget is None or budget < 1:
            return None
        objective, ended = self.setting.objective, (TrialState.STOPPED, TrialState.FAILED, TrialState.CANCELLED)
        best: tuple[float, bool, float, int] | None = None
        for trial in trials:
            value = trial.last_value if self.setting.scope == "last" else trial.best_value
            if value is None or trial.state in ended or trial.held or trial.diverged or trial.feasible is False:
                continue
            place = (objective.score(value), trial.state is TrialState.COMPLETED, trial.t, -trial.number)
            if best is None or place > best:
                best = place
        if best is None or best[1]:
            return None
        leader, taken = -best[3], self.state.finishing
        return leader if leader in taken or len(taken) < FINISH_TRIES else None

    def _remaining(self, trial: Trial) -> float:
        """What it still costs to train a trial to max_t; all of it if there is no checkpoint to go on from."""
        again = 0.0 if trial.state is TrialState.RUNNING else self._lost(trial)
        return max(0.0, self._end - trial.t) + again

    def _finishing_words(self, trial: Trial) -> str:
        name, value = self.setting.objective.metric, trial.best_value
        if self.setting.scope == "last":
            value = trial.last_value
        whole = trial.state is TrialState.PAUSED and trial.checkpoint is None
        how = ", from the beginning, as it has saved no checkpoint" if whole else ""
        reached = f"the best {name} so far is its {shown(value or 0.0)}"
        return f"trained to the end as the leading trial: {reached}, and the rest of the budget is kept for it{how}"

    def _spent_words(self) -> str:
        return f"the search's budget of {shown(self._budget() or 0)} full trainings is spent"


def levels(grace: float, end: float) -> list[float]:
    """grace, then about 1.5 times more each, whole where grace and end are; the last is `end`, no other close below it."""
    whole = grace.is_integer() and end.is_integer()
    found = []
    level = grace
    while level * 1.2 < end:
        found.append(level)
        level = max(level + 1, math.floor(level * LEVEL_RATIO + 0.5)) if whole else level * LEVEL_RATIO
    return [*found, end]


@dataclass(slots=True)
class _Cache:
    """What can be computed again from the state and the population, and is kept only to save time."""

    asked: Any = None
    winner: Winner | None = None
    results: Results | None = None
    repeats: Repeats = field(default_factory=Repeats)
    novelty: Novelty = field(default_factory=Novelty)
    points: dict[int, Floats] = field(default_factory=dict)
