"""Define the freeze-thaw scheduler, which records results, decides with the help of `acquisition`, and fits the curve model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tuner.domain.decisions import Cancel, Complete, Decision, Fail, Note, Pause, Resume, Retry, Start, Stop
from tuner.domain.keys import keyed_seed
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_boolean, check_number, options_of
from tuner.schedulers.base import (
    Fact,
    Fitted,
    Scheduler,
    SchedulerContext,
    StartMeasured,
    TrialEnded,
    TrialReported,
    TrialRestarted,
    TrialStarted,
    can_resume,
)
from tuner.schedulers.freeze_thaw.decisions import brief, scouts
from tuner.schedulers.freeze_thaw.decisions.acquisition import DecisionInputs, Winner, choose_next
from tuner.schedulers.freeze_thaw.decisions.budget import Budget, derived, repeated_training
from tuner.schedulers.freeze_thaw.decisions.observations import Observations
from tuner.schedulers.freeze_thaw.decisions.reasons import Reasons
from tuner.schedulers.freeze_thaw.model import swings
from tuner.schedulers.freeze_thaw.model.curve_model import Evidence, Floats, Prior, Rows
from tuner.schedulers.freeze_thaw.model.early_reports import settled
from tuner.schedulers.freeze_thaw.model.learned import Learned
from tuner.schedulers.freeze_thaw.model.levels import levels, tau
from tuner.schedulers.freeze_thaw.model.results import MAX_ROWS
from tuner.schedulers.freeze_thaw.model.score_warp import Warp
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube, key
from tuner.schedulers.freeze_thaw.state import FreezeThawState
from tuner.schedulers.shared.blas import one_thread
from tuner.schedulers.shared.wording import reached_max_t, time_in_words

FIRST_TRIALS = 8  # this many trials are chosen without the model at first
FIRST_BESIDE = 4  # if earlier experiments are known: this many, in addition to the configurations of the portfolio
KEPT_TIMES = 64  # number of measured times from which a median is computed
REFIT_GROWTH = 1.2  # the model is refitted when the number of results has grown by this factor
FITS_FROM_PRIOR = 7  # the first fits also start from the prior, since an early fit may be a poor optimum
SHORT_S = 0.02  # if the training between two decisions takes fewer seconds than this, decisions use a smaller model
QUICK_FIT_ROWS = 100  # a fit of the smaller model uses at most this many results
FIT_S = 0.3  # after a fit, there must be this many seconds of training before the next fit

PRIOR = Prior()


class FreezeThawScheduler(Scheduler):
    """Pauses and resumes trials, and proposes new ones, based on a model of their learning curves.

    Args:
        max_t: the length of a full training, in units of time_attr. None: the experiment's max_t.
        grace_period: the lowest level. Levels are the values of time_attr at which a trial can be paused. Each further
            level is about 1.5 times the previous level. None: 1, or max_t / 64 if max_t is below 2.
        budget: ends the search when all trials together have trained for this many full trainings. None: the
            experiment's budget (limits.budget), or else a fifth of num_samples, but at least 3 (or num_samples, if
            that is less). If the experiment has neither, but has a time budget, there is no limit.
        finish_best: True to train the leading trial, the one with the best value so far, to max_t before the search
            ends. The training that it still needs, up to half of the budget, is reserved for it. With a budget below
            one full training, no trial is trained to the end.
        thaw: the share of decisions in which started trials are compared by their expected improvement at max_t.
        random_share: the share of new trials that are chosen without the model, in case the model is wrong about the
            space.
        scout_share: the share of all training that goes to scouts: trials that are chosen without the model and not
            paused before a fifth of max_t. Good trials that start slowly cannot be recognized early, and a model that
            has never seen such a trial does not expect one. While scores do not improve, up to three times this share
            goes to scouts, and five times this share while early reports say little about later ones: trials change
            their order, or none has improved notably since its first report.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    TYPE: ClassVar[str] = "freeze_thaw"
    PROPOSES: ClassVar[bool] = True
    COUNTS_BUDGET: ClassVar[bool] = True

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
        self._last = _LastAnswer()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        end = self.inherited_max_t(self.max_t, self.time_attr)
        if end is None:
            raise SpecError("freeze_thaw needs max_t, the length of a full training", "/scheduler/max_t")
        if context.space.has_grid:
            message = (
                "freeze_thaw chooses configurations itself and cannot run a grid: use choice(...) instead of "
                "grid_search(...)"
            )
            raise SpecError(message, "/space")
        if not len(context.space):
            raise SpecError("the space has no parameters, so there is nothing to search", "/space")
        grace = self.grace_period if self.grace_period is not None else (1 if end >= 2 else end / 64)
        if grace > end:
            raise SpecError(f"expected at least grace_period ({grace:.15g}), got {end:.15g}", "/scheduler/max_t")
        if None not in (self.budget, context.budget) and self.budget != context.budget:
            message = f"the experiment's budget is {context.budget:.15g} and the scheduler's is {self.budget:.15g}: set only one"
            raise SpecError(message, "/scheduler/budget")
        self._levels = levels(float(grace), float(end))
        self._end = self._levels[-1]
        self._scout_end = next(level for level in self._levels if level >= scouts.SCOUT_REACH * self._end)
        self._cube = Cube(context.space)
        self._observed = Observations(context, self._cube)
        self._budget = Budget(self.budget, self.finish_best, self._end, context)
        self._reasons = Reasons(context.objective, context.time_attr)
        self._learned = Learned.of(context.earlier, self._cube)
        self._last = _LastAnswer()

    def amend(self, context: SchedulerContext) -> None:
        """Adapt to a user's changes. Added trials raise a derived budget, even a spent one, so that the new trials run."""
        before, now = self.context.num_samples, context.num_samples
        if context.revisions is not self.context.revisions:
            self._respace(context)
        super().amend(context)
        self._observed.context = context
        state: FreezeThawState = self.state
        added = now - before if before is not None and now is not None else 0
        if added > 0 and self._budget.is_derived:
            state.granted = max(state.granted, state.spent / self._end + derived(added))
            state.finishing = []
        self._budget = Budget(self.budget, self.finish_best, self._end, context, state.granted)

    def _respace(self, context: SchedulerContext) -> None:
        """Start a new model over a changed space. The model gets the results of the trials that lie in that space."""
        self._cube = Cube(context.space)
        self._observed = Observations(context, self._cube)
        self._learned = Learned.of(None, self._cube)
        self._last = _LastAnswer()
        state: FreezeThawState = self.state
        state.theta, state.fitted_at, state.fitted_spent, state.fits = [], 0, 0.0, 0
        state.ordinal += 1
        state.models += 1

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self)}

    def resolved(self) -> dict[str, Any]:
        """Return the options with the computed lowest level and budget instead of None.

        The budget stays None if there is no limit.
        """
        own = {"max_t": self._end, "grace_period": self._levels[0], "budget": self._budget.total}
        whole = {name: int(value) if value is not None and value.is_integer() else value for name, value in own.items()}
        return {**super().resolved(), **whole}

    def budget_words(self) -> str | None:
        return self._budget.in_words()

    def budget_spent(self) -> float | None:
        return self._budget.share(self.state.spent)

    # -- facts -----------------------------------------------------------------------------------------------------------

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        """Return the next level at which the trial has no result yet.

        No decision is made again for training that is repeated after a retry.
        """
        index = max(self.state.reached.get(trial.number, -1), self._passed(trial.t)) + 1
        if trial.tags.get("scout"):
            index = max(index, self._levels.index(self._scout_end))
        return self._levels[index] if index < len(self._levels) else None

    def record(self, fact: Fact, trials: Population) -> None:
        state: FreezeThawState = self.state
        match fact:
            case TrialStarted(trial=trial):
                state.running[trial] = None
            case TrialRestarted(trial=trial, t=t, iteration=iteration):
                state.running[trial] = None
                state.clock[trial] = (t, None)
                if iteration < state.furthest.get(trial, 0) and trial in state.latest:
                    state.latest[trial] = (None, None, state.latest[trial][2])
            case StartMeasured(startup_s=startup_s):
                if math.isfinite(startup_s) and startup_s >= 0:
                    state.startups = [*state.startups, startup_s][-KEPT_TIMES:]
            case TrialReported():
                self._reported(fact, trials[fact.trial])
            case TrialEnded():
                self._ended(fact, trials[fact.trial])
            case Fitted(payload=payload):
                if payload.get("model", 0) != state.models:
                    return  # the fit was made for the space before the change
                state.theta = [float(v) for v in payload["theta"]]
                state.fitted_at = int(payload["results"])
                state.fitted_spent = state.spent
                state.fits += 1
                state.ordinal += 1

    def _reported(self, fact: TrialReported, trial: Trial) -> None:
        state: FreezeThawState = self.state
        t, time = state.clock.get(fact.trial, (0.0, None))
        if fact.t > t:
            state.spent += fact.t - t
            if time is not None and fact.time >= time:
                state.pace = [*state.pace, (fact.time - time) / (fact.t - t)][-KEPT_TIMES:]
        state.clock[fact.trial] = (fact.t, fact.time)
        excess = sum(max(0.0, c.excess(trial.last)) for c in self.context.constraints)
        if not excess and (state.best is None or fact.score > state.best):
            state.best = fact.score
            state.records.append((state.spent, fact.score))
        peak = self._follow_swings(fact, inside=not excess)
        index = self._passed(fact.t)
        if index > state.reached.get(fact.trial, -1):
            state.reached[fact.trial] = index
            if peak is not None and peak > fact.score and not excess:
                state.peaks[fact.trial, index] = peak
            state.results.append((fact.trial, index, fact.score))
            if excess:
                state.excess[fact.trial, index] = excess
            if self.context.scope == "all" and settled(len(state.results)) != settled(len(state.results) - 1):
                state.swinging = swings.are_large(state.swings, [s for _, _, s in state.results if s is not None])
            state.ordinal += 1
            state.held = fact.trial
        elif state.held == fact.trial:
            state.held = None

    def _follow_swings(self, fact: TrialReported, inside: bool) -> float | None:
        """Track how the trial's reports fluctuate. Return its best score within the constraints, if it has one.

        A report of an iteration that the trial repeats, such as after a retry, adds no swing: its first report has added one.

        `inside` is True if the report satisfies the constraints.
        """
        state: FreezeThawState = self.state
        before, middle, peak = state.latest.get(fact.trial, (None, None, None))
        furthest = state.furthest.get(fact.trial, 0)
        if before is not None and middle is not None and fact.iteration > furthest:
            state.swings = [*state.swings, swings.swing(before, middle, fact.score)][-swings.KEPT :]
        if inside:
            peak = fact.score if peak is None else max(peak, fact.score)
        state.latest[fact.trial] = (middle, fact.score, peak)
        state.furthest[fact.trial] = max(furthest, fact.iteration)
        return peak

    def _ended(self, fact: TrialEnded, trial: Trial) -> None:
        state: FreezeThawState = self.state
        state.running.pop(fact.trial, None)
        state.clock.pop(fact.trial, None)
        state.latest.pop(fact.trial, None)
        state.furthest.pop(fact.trial, None)
        state.ordinal += 1
        if state.held == fact.trial:
            state.held = None
        crashed = fact.state is TrialState.FAILED and trial.failure is not None and trial.failure.kind == "user"
        if fact.diverged or crashed:
            # The trial counts as worse than all others at the level where it crashed, and at the last level.
            last = len(self._levels) - 1
            index = min(state.reached.get(fact.trial, -1) + 1, last)
            state.results += [(fact.trial, i, None) for i in sorted({index, last})]
            state.reached[fact.trial] = last

    def enacted(self, decision: Decision, trials: Population) -> None:
        state: FreezeThawState = self.state
        if isinstance(decision, Resume | Note) and decision.trial not in state.finishing:
            self._take_up(decision.trial, trials)
        match decision:
            case Start(tags=tags, asked=asked):
                state.ordinal += 1
                state.asked += asked
                state.held = None
                if tags.get("scout"):
                    state.scouts += 1
                    state.scouted += self._scout_end
            case Resume(trial=trial):
                state.running[trial] = None
                state.ordinal += 1
                state.held = None
            case Retry(trial=trial):
                # The ordinal does not change: a failure must not change what is drawn afterwards.
                state.running[trial] = None
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
        number, here = fact.trial, time_in_words(self.context.time_attr, fact.t)
        if fact.t >= self._end:
            return (Complete(trial=number, reason=reached_max_t(self.context.time_attr, fact.t, self._end)),)
        if state.held != number or number not in state.running:
            return ()
        if self._spent_out(trials):
            if number == self._last_leader(trials):
                why = self._budget.why_finish(trials[number])
                return () if number in state.finishing else (Note(trial=number, reason=why),)
            return (Stop(trial=number, reason=f"stopped at {here}: {self._budget.why_spent()}"),)
        if not self._observed.lies_inside(trials[number]):
            why = "its configuration does not lie in the changed search space, so the model cannot judge the trial"
            return (Pause(trial=number, reason=f"paused at {here}: {why}"),)
        if trials[number].tags.get("scout") and fact.t < self._scout_end:
            return ()
        may_start = self.context.num_samples is None or len(trials) < self.context.num_samples
        first = max(self._first_trials(), self.context.given_points)
        if may_start and self._observed.count(trials) < first and self._spread(trials, len(trials), "") is not None:
            many = first if self.context.num_samples is None else min(first, self.context.num_samples)
            why = f"each of the first {many} configurations is started before any trial continues"
            return (Pause(trial=number, reason=f"paused at {here}: {why}"),)
        if (original := self._observed.repeats(self.state).original(number)) is not None:
            why = f"all its results so far equal those of trial {original}, so more training would show nothing new"
            return (Pause(trial=number, reason=f"paused at {here}: {why}"),)
        if not self._by_model(trials):
            rank, entries = self._observed.level_ranks(self.state, trials).rank(number)
            if brief.continues(rank, entries):
                return ()
            metric = self.context.objective.metric
            why = (
                f"its {metric} is rank {rank} of {entries} there, and only the best third continues (no model decides, "
                "because that would take longer than the training)"
            )
            return (Pause(trial=number, reason=f"paused at {here}: {why}"),)
        winner = self._winner(trials, number, may_start)
        if winner is None or winner.trial == number:
            return ()
        outside = "; it violates the constraints, so it counts as worse than all trials that satisfy them"
        why = (
            self._reasons.paused(fact.t, winner)
            + self._best_report_note()
            + outside * (trials[number].feasible_now is False)
        )
        return (Pause(trial=number, reason=why),)

    def choose(self, trials: Population, may_start: bool) -> Start | Resume | None:
        state: FreezeThawState = self.state
        if self._spent_out(trials):
            leader = self._last_leader(trials)
            if leader is None or not can_resume(trials[leader]):
                return None
            return Resume(trial=leader, reason=self._budget.why_finish(trials[leader]))
        count = len(trials)
        own = count - state.asked
        if may_start and own < self.context.given_points:
            return Start(reason="started: this configuration is one of points_to_evaluate")
        if may_start and (start := self._learned.start(own - self.context.given_points)) is not None:
            return start
        first, results = self._first_trials(), self._observed.inside(self.state, trials)
        if may_start and (self._observed.count(trials) < first or not results):
            why = f"started: one of the first {first} configurations, which are spread evenly over the search space"
            if (start := self._spread(trials, count, why)) is not None:
                return start
        if not results:
            return None
        if may_start and self._scout_due(trials):
            reach = time_in_words(self.context.time_attr, self._scout_end)
            why = scouts.why(reach, self._misled(trials))
            return self._spread(trials, state.scouts, why, scout=True)
        if not self._by_model(trials) and (quickly := self._without_model(trials, may_start)) is not None:
            return quickly
        held = state.held if state.held not in state.running else None
        if held is not None and (
            self._observed.repeats(self.state).original(held) is not None
            or not self._observed.lies_inside(trials[held])
        ):
            held = None
        winner = self._winner(trials, held, may_start)
        if winner is not None and winner.trial is not None and winner.trial == held:
            winner = self._winner(trials, None, may_start)
        if winner is None:
            return None
        if winner.trial is not None:
            return Resume(trial=winner.trial, reason=self._reasons.resumed(winner) + self._best_report_note())
        if self._draw("random") < self.random_share and not self._cube.discrete:
            share = f"{100 * self.random_share:.0f} % of the new ones are (random_share)"
            why = f"started: a configuration chosen without the model, in case the model is wrong; {share}"
            return self._spread(trials, count, why)
        assert winner.point is not None
        said = self._learned.in_words(self._learned.judged(self._observed.results(self.state, trials), self._cube))
        reason = self._reasons.started(winner) + self._best_report_note() + said
        return Start(params=self._cube.params(winner.point), reason=reason, tags={"model": True})

    def finished(self, trials: Population, may_start: bool) -> str | None:
        over = self._spent_out(trials) and self._last_leader(trials) is None
        return self._budget.why_spent() if over else None

    def _by_model(self, trials: Population) -> bool:
        """Return True if the model makes this decision. It makes all of them unless deciding takes longer than training."""
        return self._draw("by model") < brief.share_of_model(self._between_s(), len(trials))

    def _quick(self) -> bool:
        return self._between_s() < SHORT_S

    def _between_s(self) -> float:
        """Return the training between two decisions, in seconds."""
        state: FreezeThawState = self.state
        return self._seconds(state.spent / max(len(state.results), 1))

    def _without_model(self, trials: Population, may_start: bool) -> Start | Resume | None:
        """Return a new configuration or, if none may be started, the best paused trial; None if there is neither."""
        state: FreezeThawState = self.state
        because = "without the model, whose decision would take longer than the training that it decides about"
        ranks = self._observed.level_ranks(self.state, trials)
        if may_start:
            generator = np.random.default_rng(self._key("brief", state.ordinal))
            if generator.random() < 0.5 and (best := ranks.best(brief.BEST)):
                chosen = best[int(generator.integers(len(best)))]
                inside = filter(self._observed.lies_inside, trials)
                tried = {key(self._observed.point(trial)) for trial in inside} if self._cube.discrete else ()
                point = brief.near(self._observed.point(trials[chosen]), self._cube, tried, generator)
                if point is not None:
                    why = f"started: near trial {chosen}, one of the best; chosen {because}"
                    return Start(params=self._cube.params(point), reason=why)
            if (start := self._spread(trials, len(trials), f"started: chosen {because}")) is not None:
                return start
        for number in ranks.best(len(trials)):
            if can_resume(trials[number]) and self._observed.repeats(self.state).original(number) is None:
                return Resume(trial=number, reason=f"resumed: the best of the paused trials; chosen {because}")
        return None

    def _winner(self, trials: Population, held: int | None, may_start: bool) -> Winner | None:
        """Return what trains next: a paused trial, the trial that reported (`held`), or a new trial; None if there is none.

        In the same state, `decide` and `choose` get the same winner, whether or not it is cached.
        """
        state: FreezeThawState = self.state
        repeats = self._observed.repeats(self.state)
        paused = [
            n
            for n in trials.in_state(TrialState.PAUSED)
            if n in state.reached and n != held and can_resume(trials[n]) and repeats.original(n) is None
        ]
        paused = [n for n in paused if self._observed.lies_inside(trials[n])]
        start_cost = self._start_cost()
        waste = [start_cost + repeated_training(trials[n]) for n in paused]
        if held is not None:
            paused.append(held)
            waste.append(0.0)
        running = sorted(n for n in state.running if n != held and self._observed.lies_inside(trials[n]))
        asked = (state.ordinal, held, paused, waste, running, start_cost, may_start)
        if self._last.asked != asked:
            inputs = DecisionInputs(
                results=self._observed.results(self.state, trials),
                levels=np.array(self._levels),
                theta=self._theta(),
                best=self._observed.best(self.state, trials),
                started=np.array(paused, dtype=np.int64),
                held=held is not None,
                waste=np.array(waste),
                running=np.array(running, dtype=np.int64),
                start_cost=start_cost,
                may_start=may_start,
                thaw=self.thaw,
                repeats=self._observed.chance_of_repeats(self.state, trials),
                few=not self._cube.discrete
                and self._draw("few") < self._observed.idle_share(self.state, trials, FIRST_TRIALS),
                quick=self._quick(),
                earlier=self._learned.judged(self._observed.results(self.state, trials), self._cube),
                hints=self._learned.hints,
            )
            generator = np.random.default_rng(self._key("weigh", state.ordinal, -1 if held is None else held))
            with one_thread():
                self._last.winner = choose_next(
                    inputs, self._cube, lambda n: self._observed.point(trials[n]), generator
                )
            self._last.asked = asked
        return self._last.winner

    def _spread(self, trials: Population, index: int, reason: str, scout: bool = False) -> Start | None:
        """Return a Start at the next point of a low-discrepancy sequence.

        Scouts have a separate sequence, so that even a few scouts are spread over the whole space. In a finite space, the
        next point is the first point that has not been tried. Return None if all points have been tried.
        """
        shift = np.random.default_rng(self._key("scouts" if scout else "first")).random(self._cube.dims)
        if self._cube.discrete:
            tried = {key(self._observed.point(trial)) for trial in trials if self._observed.lies_inside(trial)}
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
        count = len(self._observed.inside(self.state, trials))
        if count < REFIT_GROWTH * state.fitted_at + 4:
            return None
        if self._seconds(state.spent - state.fitted_spent) < FIT_S:
            return None
        results = self._observed.results(self.state, trials)
        most = QUICK_FIT_ROWS if self._quick() else MAX_ROWS
        kept = results.thinned(np.random.default_rng(self._key("fit", count)), most=most)
        slots, trial = np.unique(results.slot[kept], return_inverse=True)
        grid = np.array(self._levels)
        x = self._cube.features(results.points[slots])
        earlier = self._learned.judged(results, self._cube)
        learned = {} if earlier is None else {"earlier": earlier(x).tolist()}
        return {
            **learned,
            "model": state.models,
            "x": x.tolist(),
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
        earlier = np.array(payload["earlier"], dtype=float) if "earlier" in payload else None
        evidence = Evidence(rows, z, group, PRIOR, earlier)
        starts = [(np.array(payload["theta"], dtype=float), 25)]
        if payload["from_prior"]:
            starts.append((PRIOR.mean(evidence.dims), 12))
        model = payload.get("model", 0)
        return {"theta": evidence.fit(starts).tolist(), "results": payload["results"], "model": model}

    def _theta(self) -> Floats:
        prior = PRIOR.mean(self._cube.dims)
        # A fit by an older version, whose model had other parameters, cannot be used.
        return np.array(self.state.theta) if len(self.state.theta) == len(prior) else prior

    def _first_trials(self) -> int:
        """Return how many trials are started without the model, before any trial continues."""
        return FIRST_TRIALS if self._learned.earlier is None else len(self._learned.picks) + FIRST_BESIDE

    # -- helpers -----------------------------------------------------------------------------------------------------------

    def _passed(self, t: float) -> int:
        """Return the index of the highest level at or below t, or -1 if t is below the lowest level."""
        return sum(level <= t for level in self._levels) - 1

    def _start_cost(self) -> float:
        """Return the cost of a start or a resume, in units of time_attr.

        The cost is computed from medians of measured times, and is 0 before any times are known.
        """
        state: FreezeThawState = self.state
        if not state.startups or not state.pace:
            return 0.0
        pace = statistics.median(state.pace)
        return statistics.median(state.startups) / pace if pace > 0 else 0.0

    def _seconds(self, training: float) -> float:
        """Return the seconds that this much training (in units of time_attr) takes; infinity if that is not known yet."""
        pace: list[float] = self.state.pace
        return training * statistics.median(pace) if pace else math.inf

    def _scout_due(self, trials: Population) -> bool:
        if self._cube.discrete or len(self._levels) < 3 or self._scout_end <= self._levels[1]:
            return False
        return scouts.are_due(self.state, self.scout_share, self._end, self._misled(trials))

    def _best_report_note(self) -> str:
        """Return the last words of a reason if trials are compared by their best reports, else ""."""
        return "; each trial counts by its best report, because reports fluctuate widely" if self.state.swinging else ""

    def _misled(self, trials: Population) -> bool:
        return self._observed.misled(self.state, trials, self._levels)

    def _spent_out(self, trials: Population) -> bool:
        return self._budget.is_spent(self.state.spent, self.state.finishing, trials)

    def _last_leader(self, trials: Population) -> int | None:
        return self._budget.leader(self.state.finishing, trials)

    def _key(self, *purpose: str | int) -> int:
        return keyed_seed(self.context.seed, "freeze_thaw", *purpose)

    def _draw(self, purpose: str) -> float:
        """Return a random number in [0, 1), a different one for each purpose and decision."""
        return self._key(purpose, self.state.ordinal) / 2**64


@dataclass(slots=True)
class _LastAnswer:
    """The last decision of the model, and the question to which it was the answer."""

    asked: Any = None
    winner: Winner | None = None
