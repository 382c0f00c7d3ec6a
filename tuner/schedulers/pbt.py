"""Population based training: bad members copy good ones, weights and configuration, and explore from there.

Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan, Fernando, Kavukcuoglu:
"Population Based Training of Neural Networks", 2017, https://arxiv.org/abs/1711.09846.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from tuner.domain.decisions import Decision, Exploit, Note, Pause, Resume
from tuner.domain.keys import keyed_random
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Choice, Fact, Scheduler, Setting, TrialEnded, TrialReported, TrialStarted, can_resume
from tuner.schedulers.explore import Explorer, Mutation, mutations_to_json, read_mutations
from tuner.schedulers.functions import function_name, import_function
from tuner.schedulers.options import check_boolean, check_number
from tuner.schedulers.ranking import Ranking
from tuner.schedulers.wording import at, reported


@dataclass(slots=True)
class Move:
    """A trial's configuration from some training iteration on; one that exploited has a donor."""

    trial: int
    iteration: int  # of the checkpoint that it starts from
    params: dict[str, Any]
    donor: int | None = None
    donors_moves: int = 0  # how many configurations the donor had had by then


@dataclass(slots=True)
class PbtState:
    ranking: Ranking[tuple[float, int]] = field(default_factory=Ranking)  # (score at the last interval, trial)
    scores: dict[int, float] = field(default_factory=dict)  # the same by trial
    due: dict[int, float] = field(default_factory=dict)  # trial -> time_attr at which its next interval ends
    moves: dict[int, list[Move]] = field(default_factory=dict)  # trial -> its configurations, oldest first
    newest: int | None = None  # the trial that came to the end of an interval with the latest fact
    yielded: dict[int, None] = field(default_factory=dict)  # gave their worker group to others before they were judged
    waiting: dict[int, None] = field(default_factory=dict)  # synch: those that have come to the end of the interval
    plan: dict[int, int | None] = field(default_factory=dict)  # synch: trial -> donor; those that are to run on


class PopulationBasedTraining(Scheduler):
    """Every `perturbation_interval` a member in the bottom quantile goes on from a member of the top quantile.

    It takes over the donor's checkpoint and its configuration, which is then explored: see `Explorer`. The population
    is `num_samples` trials. Where it is larger than what can run at once, members take turns, those that are behind
    first. A donor always has a checkpoint; where none of the top quantile has one yet, the member goes on as it is,
    and a note says so.

    perturbation_interval: between two decisions about a member, in units of time_attr. 5, where Ray has 60 (seconds).
    hyperparam_mutations: {parameter: list of values, domain, or function that draws one}, as in Ray Tune, nested or
        by path. None: every parameter of the space, in its own domain. What is not named is copied.
    quantile_fraction: of the population, at most a half.
    resample_probability: of drawing a parameter anew instead of perturbing it.
    perturbation_factors: what a number is multiplied by; a list of values moves on or back by one.
    custom_explore_fn: takes the new params (flat: "optimizer/lr" -> value) and returns them as they shall be.
    synch: everybody waits at the end of each interval until all are there.
    burn_in_period: nothing is decided before it.
    require_attrs: always true with us: a trial that never reports the objective fails.
    time_attr: the experiment's where None; it cannot be another one.
    """

    TYPE = "pbt"
    NEEDS_CHECKPOINTS = True
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
            message = "a trial that never reports the objective fails, single reports may lack it; leave this out"
            raise SpecError(message, "/require_attrs")
        if not isinstance(perturbation_factors, (list, tuple)) or not perturbation_factors:
            raise SpecError(f"expected a list of numbers, got {perturbation_factors!r}", "/perturbation_factors")
        for place, factor in enumerate(perturbation_factors):
            check_number(f"perturbation_factors/{place}", factor, above=0)
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

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        self.inherited_max_t(None, self.time_attr)
        if setting.num_samples is None:
            raise SpecError("population based training needs the size of its population", "/num_samples")
        if not setting.checkpoints:
            message = "population based training copies checkpoints, and this trainable saves none"
            raise SpecError(message, "/scheduler/type")
        self._explore = Explorer(
            setting.space,
            self.mutations,
            self.resample_probability,
            self.perturbation_factors,
            self.custom_explore_fn,
        )

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
            case TrialReported(trial=number) if fact.t >= self._due(number):
                self._rank(number, fact.score)
                state.due[number] = fact.t + self.perturbation_interval
                state.newest = number
                if self.synch:
                    state.waiting[number] = None
            case TrialEnded(trial=number):
                self._rank(number, None)
                for group in (state.waiting, state.plan, state.yielded):
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
            self._take_over(decision, trials)

    def _take_over(self, decision: Exploit, trials: Population) -> None:
        trial, donor = trials[decision.trial], trials[decision.donor]
        source = trial.inherited
        iteration = source.step if source is not None else donor.iteration
        moves = self.state.moves
        moves[decision.trial].append(
            Move(decision.trial, iteration, dict(decision.params), decision.donor, len(moves[decision.donor]))
        )
        match self.setting.time_attr:
            case "training_iteration":
                begins = float(iteration)
            case "time_total_s":
                begins = trial.t
            case _:  # a metric, which goes on from where the donor had it
                kept = donor.checkpoints.get(decision.checkpoint)
                begins = kept.t if kept is not None and kept.t is not None else donor.t
        self.state.due[decision.trial] = begins + self.perturbation_interval

    # ------------------------------------------------------------------------------------------------ decisions

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported) or self.state.newest != fact.trial:
            return ()
        number, where = fact.trial, at(self.setting.time_attr, fact.t)
        if self.synch:
            missing = self._members(trials) - len(self.state.waiting)
            return (Pause(trial=number, reason=f"paused at {where}: waits for {missing} other members"),)
        if self._others_wait(trials):
            return (Pause(trial=number, reason=f"paused at {where}: other members wait for their turn"),)
        if self._in_bottom(number):
            donor = self._donor(number, trials)
            if donor is None:
                why = f"trial {number} is among the worst {self._quantile()} at {where}"
                return (Note(reason=f"{why}, but none of the best has a checkpoint that it could go on from"),)
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
            return Resume(trial=behind.number, reason="its turn: it is the furthest behind")
        plan = self.state.plan or (self._plan(trials) if self.state.waiting and self._all_wait(trials) else {})
        for number, donor in plan.items():
            if can_resume(trials[number]):
                if donor is not None:
                    return self._exploit(number, donor, trials)
                return Resume(trial=number, reason="all members have come to the end of the interval")
        return None

    def _members(self, trials: Population) -> int:
        """Members that have not ended, with those that are still to be started."""
        ended = sum(trials.count(state) for state in TrialState if state.ended)
        return max(len(trials), self.setting.num_samples or 0) - ended

    def _all_wait(self, trials: Population) -> bool:
        ended = sum(trials.count(state) for state in TrialState if state.ended)
        return len(self.state.waiting) == len(trials) - ended

    def _others_wait(self, trials: Population) -> bool:
        paused = trials.in_state(TrialState.PAUSED)
        return len(trials) < (self.setting.num_samples or 0) or any(can_resume(trials[number]) for number in paused)

    def _quantile(self) -> int:
        """How many are in the top, and in the bottom: together never more than all."""
        size = len(self.state.ranking)
        return min(math.ceil(size * self.quantile_fraction), size // 2)

    def _in_bottom(self, trial: int) -> bool:
        """Whether a member that is judged alone belongs to the bottom; of equals it counts as the last.

        So members that are all the same do not wait for each other: somebody explores.
        """
        ranking: Ranking[tuple[float, int]] = self.state.ranking
        better_or_equal = ranking.above((self.state.scores[trial], -1)) - 1
        return len(ranking) - better_or_equal <= self._quantile()

    def _top(self, without: int | None = None) -> list[int]:
        """The top quantile, the best first."""
        best = (trial for _, trial in reversed(self.state.ranking) if trial != without)
        return list(islice(best, self._quantile()))

    def _donor(self, trial: int, trials: Population) -> int | None:
        """One of the top quantile: with a checkpoint that is ready or, where none is, with one that is on its way."""
        top = [trials[number] for number in self._top(without=trial)]
        ready = [donor for donor in top if donor.checkpoint is not None]
        donors = ready or [donor for donor in top if donor.checkpoints]
        if not donors:
            return None
        rng = keyed_random(self.setting.seed, "donor", trial, len(self.state.moves[trial]))
        return rng.choice(donors).number

    def _plan(self, trials: Population) -> dict[int, int | None]:
        """Who takes over whose checkpoint, and then, when no donor is needed any more, who goes on as it is."""
        ranked = [trial for _, trial in reversed(self.state.ranking) if trial in self.state.waiting]
        bottom = set(ranked[len(ranked) - self._quantile() :])
        donors = {trial: self._donor(trial, trials) if trial in bottom else None for trial in ranked}
        return dict(sorted(donors.items(), key=lambda item: item[1] is None))

    def _exploit(self, trial: int, donor: int, trials: Population) -> Exploit:
        rng = keyed_random(self.setting.seed, "explore", trial, len(self.state.moves[trial]))
        params, how = self._explore(trials[donor].params, rng)
        ranking, scores, objective = self.state.ranking, self.state.scores, self.setting.objective
        rank = ranking.above((scores[trial], trial)) + 1
        where = at(self.setting.time_attr, trials[trial].t)
        own, theirs = reported(objective, scores[trial]), reported(objective, scores[donor])
        reason = (
            f"exploits trial {donor} at {where}: {own} is rank {rank} of {len(ranking)}, trial {donor} has {theirs}"
        )
        if how:
            reason += "; " + ", ".join(f"{path} {words}" for path, words in how.items())
        return Exploit(trial=trial, donor=donor, params=params, reason=reason, mutations=how)

    # ---------------------------------------------------------------------------------------- the winner's schedule

    def schedule_of(self, trial: int) -> list[dict[str, Any]]:
        """The configurations that led to this trial's present weights, oldest first, as JSON.

        Each is ``{"iteration": after which it held, "params": {...}, "trial": in which}``. Training anew with these
        changes at these iterations repeats what the population found (PBT replay). Of an experiment in a database,
        `tuner.experiments.lineage` gives the same.
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
