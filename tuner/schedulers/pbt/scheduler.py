"""Population based training: bad members copy the weights and the configuration of good ones, and explore from there.

Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan, Fernando, Kavukcuoglu:
"Population Based Training of Neural Networks", 2017, algorithm 1, https://arxiv.org/abs/1711.09846. Quantiles and
perturbations are those of Ray Tune.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from sortedcontainers import SortedList

from tuner.domain.decisions import Decision, Exploit, Note, Pause, Resume
from tuner.domain.keys import keyed_random
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_boolean, check_number
from tuner.schedulers.base import (
    Choice,
    Fact,
    Scheduler,
    SchedulerContext,
    TrialEnded,
    TrialReported,
    TrialRestarted,
    TrialStarted,
    can_resume,
)
from tuner.schedulers.functions import function_name, import_function
from tuner.schedulers.pbt.explore import Explorer, Mutation, mutations_to_json, read_mutations
from tuner.schedulers.shared.standing import standing, violates
from tuner.schedulers.shared.wording import reported, time_in_words

NOTHING_SAVED = "no trial has saved a checkpoint"


@dataclass(slots=True)
class Move:
    """A configuration that a trial has from a certain training iteration on, and the donor if it was copied."""

    trial: int
    iteration: int  # the iteration of the checkpoint that the move starts from
    params: dict[str, Any]
    donor: int | None = None
    donors_moves: int = 0  # number of the donor's configurations at the time of the copy


@dataclass(slots=True)
class PbtState:
    ranking: SortedList[tuple[float, int]] = field(default_factory=SortedList)  # (standing at the last interval, trial)
    scores: dict[int, float] = field(default_factory=dict)  # trial -> standing at its last interval
    due: dict[int, float] = field(default_factory=dict)  # trial -> value of time_attr at which its next interval ends
    moves: dict[int, list[Move]] = field(default_factory=dict)  # trial -> its configurations, oldest first
    newest: int | None = None  # the trial that the latest fact brought to the end of an interval
    # trials whose score belongs to the weights that they had before their latest exploit
    outdated: dict[int, None] = field(default_factory=dict)
    # trials that gave up their worker group before they were judged
    yielded: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)  # synch: trials that have reached the end of the interval
    plan: dict[int, int | None] = field(default_factory=dict)  # synch: trial to be resumed -> its donor
    warned: bool = False  # whether users were told that nothing can be copied


class PopulationBasedTraining(Scheduler):
    """At the end of every interval, a member in the bottom quantile continues from a member of the top quantile.

    It continues from the checkpoint of the better member, its *donor*, with a changed copy of the donor's configuration; see
    `Explorer`. The population has `num_samples` members. If not all of them can run at once, they take turns, and the members
    that have trained least come first. Only members that have a checkpoint, and have not just copied another member, can be
    donors. If no member of the top quantile can be the donor, the trial continues unchanged, and a note in the log says so.
    Members that violate the constraints of the search are ranked below all other members.

    Args:
        perturbation_interval: how long a member trains between two decisions about it, in units of time_attr. The
            default is 5; Ray Tune's default is 60 (seconds).
        hyperparam_mutations: {parameter: list of values, domain, or function that draws a value}, as in Ray Tune,
            nested or by path. Parameters that are not named are copied. None: every parameter of the space, in its own
            domain.
        quantile_fraction: the size of the top and of the bottom quantile, as a share of the population; at most one
            half.
        resample_probability: the probability of drawing a parameter anew instead of perturbing it.
        perturbation_factors: a number is multiplied by one of these factors. In a list of values, a factor above 1
            selects the next value, and a factor below 1 selects the previous value.
        custom_explore_fn: a function that takes the new flat params ("optimizer/lr" -> value) and returns changed ones.
        synch: True to make every member wait at the end of each interval until all have reached it.
        burn_in_period: no decision is made before this value of time_attr.
        require_attrs: must be True, because a trial that never reports the objective fails.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    TYPE = "pbt"
    SAVES_AT_MILESTONES = True

    def __init__(
        self,
        perturbation_interval: float = 5,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | str | None = None,
        synch: bool = False,
        burn_in_period: float = 0,
        require_attrs: bool = True,
        time_attr: str | None = None,
    ) -> None:
        check_number("perturbation_interval", perturbation_interval, above=0)
        check_number("quantile_fraction", quantile_fraction, above=0, at_most=0.5)
        check_number("resample_probability", resample_probability, at_least=0, at_most=1)
        check_number("burn_in_period", burn_in_period, at_least=0)
        check_boolean("synch", synch)
        if require_attrs is not True:
            message = (
                "only True is supported: a report may leave the objective out, but a trial that never reports it fails"
            )
            raise SpecError(message, "/require_attrs")
        if not isinstance(perturbation_factors, (list, tuple)) or not perturbation_factors:
            raise SpecError(f"expected a list of numbers, got {perturbation_factors!r}", "/perturbation_factors")
        for place, factor in enumerate(perturbation_factors):
            check_number(f"perturbation_factors/{place}", factor, above=0)
        if not (custom_explore_fn is None or isinstance(custom_explore_fn, str) or callable(custom_explore_fn)):
            raise SpecError(f"expected a function or its name, got {custom_explore_fn!r}", "/custom_explore_fn")
        self.perturbation_interval = perturbation_interval
        self.mutations: dict[str, Mutation] = dict(read_mutations(hyperparam_mutations or {}))
        self.quantile_fraction = quantile_fraction
        self.resample_probability = resample_probability
        self.perturbation_factors = tuple(perturbation_factors)
        self.custom_explore_fn = (
            import_function("custom_explore_fn", custom_explore_fn)
            if isinstance(custom_explore_fn, str)
            else custom_explore_fn
        )
        self.synch = synch
        self.burn_in_period = burn_in_period
        self.time_attr = time_attr
        self.state = PbtState()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        self.inherited_max_t(None, self.time_attr)
        if context.num_samples is None:
            raise SpecError("population based training needs num_samples, the size of its population", "/num_samples")
        if not context.checkpoints:
            message = "population based training copies checkpoints, but this trainable saves none"
            raise SpecError(message, "/scheduler/type")
        self._explore = self._explorer(context)

    def _explorer(self, context: SchedulerContext) -> Explorer:
        return Explorer(
            context.space,
            self.mutations,
            self.resample_probability,
            self.perturbation_factors,
            self.custom_explore_fn,
        )

    def amend(self, context: SchedulerContext) -> None:
        changed = context.space is not self.context.space
        super().amend(context)
        if changed:
            self._explore = self._explorer(context)

    def to_json(self) -> dict[str, Any]:
        explore = self.custom_explore_fn
        return {
            "type": self.TYPE,
            "perturbation_interval": self.perturbation_interval,
            "hyperparam_mutations": mutations_to_json(self.mutations) or None,
            "quantile_fraction": self.quantile_fraction,
            "resample_probability": self.resample_probability,
            "perturbation_factors": list(self.perturbation_factors),
            "custom_explore_fn": None if explore is None else function_name("custom_explore_fn", explore),
            "synch": self.synch,
            "burn_in_period": self.burn_in_period,
            "time_attr": self.time_attr,
        }

    # ------------------------------------------------------------------------------------------------ facts

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        return max(self._due(trial.number), math.nextafter(trial.t, math.inf))

    def _due(self, trial: int) -> float:
        state: PbtState = self.state
        return max(state.due.get(trial, self.perturbation_interval), self.burn_in_period)

    def record(self, fact: Fact, trials: Population) -> None:
        state: PbtState = self.state
        state.newest = None
        match fact:
            case TrialStarted(trial=number):
                state.moves[number] = [Move(number, 0, dict(trials[number].params))]
            case TrialRestarted(trial=number) if _went_back(trials[number]):
                moves, params = state.moves[number], dict(trials[number].params)
                before = [count for count, move in enumerate(moves, 1) if move.params == params]
                moves.append(Move(number, fact.iteration, params, number, before[-1] if before else 1))
                state.due[number] = fact.t + self.perturbation_interval
            case TrialReported(trial=number) if fact.t >= self._due(number):
                self._rank(number, standing(fact.score, trials[number].last, self.context))
                state.outdated.pop(number, None)
                state.due[number] = fact.t + self.perturbation_interval
                state.newest = number
                if self.synch:
                    state.waiting[number] = None
            case TrialEnded(trial=number):
                self._rank(number, None)
                for group in (state.waiting, state.plan, state.yielded, state.outdated):
                    group.pop(number, None)
                state.plan = {trial: None if donor == number else donor for trial, donor in state.plan.items()}

    def _rank(self, trial: int, score: float | None) -> None:
        old = self.state.scores.pop(trial, None)
        if old is not None:
            self.state.ranking.remove((old, trial))
        if score is not None:
            self.state.scores[trial] = score
            self.state.ranking.add((score, trial))

    def enacted(self, decision: Decision, trials: Population) -> None:
        state: PbtState = self.state
        if isinstance(decision, Note) and decision.reason.startswith(NOTHING_SAVED):
            state.warned = True
        if isinstance(decision, Pause) and not decision.held and not self.synch:
            state.yielded[decision.trial] = None
        if not isinstance(decision, Exploit | Resume):
            return
        state.yielded.pop(decision.trial, None)
        if decision.trial in state.waiting and self._all_wait(trials):
            state.plan = self._plan(trials)
            state.waiting = {}
        state.waiting.pop(decision.trial, None)
        state.plan.pop(decision.trial, None)
        if isinstance(decision, Exploit):
            state.outdated[decision.trial] = None
            self._take_over(decision, trials)

    def _take_over(self, decision: Exploit, trials: Population) -> None:
        trial, donor = trials[decision.trial], trials[decision.donor]
        source = trial.inherited
        iteration = source.step if source is not None else donor.iteration
        moves = self.state.moves
        moves[decision.trial].append(
            Move(decision.trial, iteration, dict(decision.params), decision.donor, len(moves[decision.donor]))
        )
        match self.context.time_attr:
            case "training_iteration":
                begins = float(iteration)
            case "time_total_s":
                begins = trial.t
            case _:  # time_attr is a metric, which continues from the donor's value
                kept = donor.checkpoints.get(decision.checkpoint)
                begins = kept.t if kept is not None and kept.t is not None else donor.t
        self.state.due[decision.trial] = begins + self.perturbation_interval

    # ------------------------------------------------------------------------------------------------ decisions

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported) or self.state.newest != fact.trial:
            return ()
        number, where = fact.trial, time_in_words(self.context.time_attr, fact.t)
        if self.synch:
            missing = self._members(trials) - len(self.state.waiting)
            others = "1 other member has" if missing == 1 else f"{missing} other members have"
            when = f"{others} trained this far" if missing else "this member, the last one, is paused"
            why = f"the population is compared once {when}"
            return (Pause(trial=number, reason=f"paused at {where}: {why}"),)
        if self._others_wait(trials):
            why = "not all members of the population can run at once, and those that have trained less come first"
            return (Pause(trial=number, reason=f"paused at {where}: {why}"),)
        if self._in_bottom(number):
            donor = self._donor(number, trials)
            if donor is None:
                size, metric = len(self.state.ranking), self.context.objective.metric
                outside = violates(self.state.scores[number])
                what = f"trial {number} violates the constraints and" if outside else f"{metric} of trial {number}"
                why = f"at {where}, {what} is among the worst {self._quantile()} of {size}"
                found = [Note(reason=f"{why}, but none of the best has a checkpoint of its own to continue from")]
                if not self.state.warned and not any(one.checkpoints or one.checkpoint for one in trials):
                    what = (
                        f"{NOTHING_SAVED}, so {self.TYPE} copies nothing to trial {number} and leaves its configuration"
                    )
                    found.append(Note(reason=f"{what}: pass checkpoint= to tuner.report", warning=True))
                return found
            return (self._exploit(number, donor, trials),)
        return ()

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        if may_start:
            return super().choose(trials, may_start)
        if not self.synch:
            ready = [trials[number] for number in trials.in_state(TrialState.PAUSED)]
            behind = min(filter(can_resume, ready), key=lambda trial: (trial.t, trial.number), default=None)
            if behind is None:
                return None
            if behind.number in self.state.yielded and self._in_bottom(behind.number):
                donor = self._donor(behind.number, trials)
                if donor is not None:
                    return self._exploit(behind.number, donor, trials)
            return Resume(
                trial=behind.number, reason="resumed: of the population's paused members, it has trained least"
            )
        plan = self.state.plan or (self._plan(trials) if self.state.waiting and self._all_wait(trials) else {})
        for number, donor in plan.items():
            if can_resume(trials[number]):
                if donor is not None:
                    return self._exploit(number, donor, trials)
                return Resume(trial=number, reason="resumed: all members of the population have trained this far")
        return None

    def _members(self, trials: Population) -> int:
        """Return the number of members that have not ended, including members that have not been started yet."""
        ended = sum(trials.count(state) for state in TrialState if state.ended)
        return max(len(trials), self.context.num_samples or 0) - ended

    def _all_wait(self, trials: Population) -> bool:
        ended = sum(trials.count(state) for state in TrialState if state.ended)
        return len(self.state.waiting) == len(trials) - ended

    def _others_wait(self, trials: Population) -> bool:
        paused = trials.in_state(TrialState.PAUSED)
        return len(trials) < (self.context.num_samples or 0) or any(can_resume(trials[number]) for number in paused)

    def _quantile(self) -> int:
        """Return the number of members in the top quantile, which is also the number in the bottom quantile."""
        size = len(self.state.ranking)
        return min(math.ceil(size * self.quantile_fraction), size // 2)

    def _in_bottom(self, trial: int) -> bool:
        """Return True if a member that is judged alone belongs to the bottom quantile.

        Among members with equal scores, this member counts as the worst, so that some members explore even if all scores are
        equal.
        """
        worse = self.state.ranking.bisect_left((self.state.scores[trial], -1))  # trial numbers are above -1
        return bool(worse < self._quantile())

    def _top(self, without: int | None = None) -> list[int]:
        """Return the members of the top quantile, best first."""
        best = (trial for _, trial in reversed(self.state.ranking) if trial != without)
        return list(islice(best, self._quantile()))

    def _donor(self, trial: int, trials: Population) -> int | None:
        """Return a random member of the top quantile that has a checkpoint, or None if there is none.

        Members with a ready checkpoint are preferred to those whose checkpoint is still being saved. A member that has
        not been ranked since it copied another one cannot be a donor: it no longer has the weights that its score
        belongs to.
        """
        top = [trials[number] for number in self._top(without=trial) if number not in self.state.outdated]
        ready = [donor for donor in top if donor.checkpoint is not None]
        donors = ready or [donor for donor in top if donor.checkpoints]
        if not donors:
            return None
        rng = keyed_random(self.context.seed, "donor", trial, len(self.state.moves[trial]))
        return rng.choice(donors).number

    def _plan(self, trials: Population) -> dict[int, int | None]:
        """Return a dict from each waiting trial to its donor. Trials without a donor continue unchanged, and come last."""
        ranked = [trial for _, trial in reversed(self.state.ranking) if trial in self.state.waiting]
        bottom = set(ranked[len(ranked) - self._quantile() :])
        donors = {trial: self._donor(trial, trials) if trial in bottom else None for trial in ranked}
        return dict(sorted(donors.items(), key=lambda item: item[1] is None))

    def _carried(self, donor: Trial) -> Mapping[str, Any]:
        """Return the donor's configuration in the current space. Numbers out of range are moved to the nearest bound."""
        revisions = self.context.revisions
        return (
            donor.params
            if revisions is None
            else revisions.carried(donor.params, donor.space_revision, clip=True).params
        )

    def _exploit(self, trial: int, donor: int, trials: Population) -> Exploit:
        rng = keyed_random(self.context.seed, "explore", trial, len(self.state.moves[trial]))
        params, how = self._explored(trial, donor, trials, rng)
        ranking, scores, objective = self.state.ranking, self.state.scores, self.context.objective
        rank = len(ranking) - ranking.bisect_right((scores[trial], trial)) + 1
        where = time_in_words(self.context.time_attr, trials[trial].t)
        if not violates(scores[trial]):
            own, theirs = f"{objective.metric} {reported(objective, scores[trial])}", reported(objective, scores[donor])
            compared = f"{own} is rank {rank} of {len(ranking)}, and trial {donor} has {theirs}"
        else:
            by = "less" if scores[donor] > scores[trial] else "as much"
            other = f"violates them {by}" if violates(scores[donor]) else "satisfies them"
            compared = f"it violates the constraints and is rank {rank} of {len(ranking)}, and trial {donor} {other}"
        reason = f"copies weights and parameters of trial {donor}: at {where}, {compared}"
        if how:
            reason += "; changed from its parameters: " + ", ".join(f"{path} {words}" for path, words in how.items())
        return Exploit(trial=trial, donor=donor, params=params, reason=reason, mutations=how)

    def _explored(
        self, trial: int, donor: int, trials: Population, rng: random.Random
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the configuration with which a trial continues from its donor, and how each parameter changed, in words."""
        return self._explore(self._carried(trials[donor]), rng)

    # ---------------------------------------------------------------------------------------- the winner's schedule

    def schedule_of(self, trial: int) -> list[dict[str, Any]]:
        """Return the configurations that led to this trial's current weights, oldest first, as JSON.

        Each item is ``{"iteration": the iteration after which it applied, "params": {...}, "trial": the trial that had it}``.
        To repeat the schedule that the population found (PBT replay), train with these changes at these iterations. For an
        experiment in a database, `tuner.experiment.analysis.lineage` returns the same schedule.
        """
        moves: dict[int, list[Move]] = self.state.moves
        chain = [moves[trial][-1]]
        while (move := chain[-1]).donor is not None:
            chain.append(moves[move.donor][move.donors_moves - 1])
        chain.reverse()
        held = [move for move, after in pairwise(chain) if move.iteration < after.iteration]
        found: list[dict[str, Any]] = []
        for move in [*held, chain[-1]]:
            if not found or found[-1]["params"] != move.params:
                found.append({"iteration": move.iteration, "params": dict(move.params), "trial": move.trial})
        return found


def _went_back(trial: Trial) -> bool:
    """Return whether the trial's newest segment starts from its own checkpoint from before an exploit that was undone."""
    source, inherited = trial.segments[-1].source, trial.inherited
    return source is not None and source == inherited and source.id in trial.checkpoints
