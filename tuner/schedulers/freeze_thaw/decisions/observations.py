"""Collect what is known of the trials: their points, their results in the current space, and what follows from them.

All of it is computed from the scheduler's state and the population, and cached until there are more results.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.trial import Population, Trial
from tuner.schedulers.base import SchedulerContext
from tuner.schedulers.freeze_thaw.decisions import brief
from tuner.schedulers.freeze_thaw.decisions.novelty import Novelty
from tuner.schedulers.freeze_thaw.model import early_reports
from tuner.schedulers.freeze_thaw.model.curve_model import Floats
from tuner.schedulers.freeze_thaw.model.repeats import Repeats
from tuner.schedulers.freeze_thaw.model.results import Result, Results, within
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube
from tuner.schedulers.freeze_thaw.state import FreezeThawState

RECENT = 10  # number of the model's latest proposals that are checked for repeats


class Observations:
    """Holds what is known of the trials that lie in the space.

    Attributes:
        context: what the scheduler was told of the experiment. The scheduler replaces it if a user changes the experiment.
        cube: the encoding of configurations.
    """

    def __init__(self, context: SchedulerContext, cube: Cube) -> None:
        self.context, self.cube = context, cube
        self._results: Results | None = None
        self._made_of: tuple[int, bool] | None = None  # the number of results, and whether `peaks` are used
        self._repeats = Repeats()
        self._level_ranks = brief.LevelRanks()
        self._novelty = Novelty()
        self._points: dict[int, Floats] = {}
        self._inside: dict[int, bool] = {}
        self._misled: tuple[int, bool] | None = None  # the number of results that were judged, and the judgment

    def inside(self, state: FreezeThawState, trials: Population) -> list[Result]:
        """Return the results of the trials that lie in the space, in the order in which they arrived."""
        if self.context.revisions is None:
            return state.results
        return [result for result in state.results if self.lies_inside(trials[result[0]])]

    def lies_inside(self, trial: Trial) -> bool:
        """Return True if the trial's configuration lies in the space, which a user may have changed after the trial's start."""
        if self.context.revisions is None:
            return True
        if trial.number not in self._inside:
            self._inside[trial.number] = self.context.params_of(trial) is not None
        return self._inside[trial.number]

    def count(self, trials: Population) -> int:
        """Return how many trials lie in the space."""
        return len(trials) if self.context.revisions is None else sum(map(self.lies_inside, trials))

    def point(self, trial: Trial) -> Floats:
        """Return the realized point (p,) of a trial that lies in the space."""
        if trial.number not in self._points:
            params = self.context.params_of(trial)
            assert params is not None, "the trial lies in the space, see `lies_inside`"
            self._points[trial.number] = self.cube.point(params)
        return self._points[trial.number]

    def results(self, state: FreezeThawState, trials: Population) -> Results:
        """Return the results for the model. A result that violates the constraints has a replacement score.

        While reports fluctuate widely, each result is the best score of its trial so far.
        """
        results = self.inside(state, trials)
        made_of = len(results), state.swinging
        if self._results is None or self._made_of != made_of:
            self._made_of = made_of
            if state.swinging:
                results = [(trial, level, state.peaks.get((trial, level), score)) for trial, level, score in results]
            repeats = self.repeats(state)
            self._results = Results.of(
                within(results, state.excess),
                lambda n: self.point(trials[n]),
                lambda n: repeats.original(n) is not None,
            )
        return self._results

    def best(self, state: FreezeThawState, trials: Population) -> float:
        """Return the best score of the trials in the space that satisfy the constraints.

        If no trial satisfies them, return the best of the replacement scores (see `within`).
        """
        if self.context.revisions is None:
            return state.best if state.best is not None else float(self.results(state, trials).score.max())
        inside = self.inside(state, trials)
        good = [s for trial, level, s in inside if s is not None and (trial, level) not in state.excess]
        return max(good) if good else float(self.results(state, trials).score.max())

    def level_ranks(self, state: FreezeThawState, trials: Population) -> brief.LevelRanks:
        """Return the ranks of the trials at each level."""
        if state.excess:  # scores of results that violate the constraints change with every result
            return brief.LevelRanks().follow(within(self.inside(state, trials), state.excess))
        return self._level_ranks.follow(self.inside(state, trials))

    def repeats(self, state: FreezeThawState) -> Repeats:
        """Return which trials have repeated the results of others."""
        self._repeats.follow(state.results)
        return self._repeats

    def chance_of_repeats(self, state: FreezeThawState, trials: Population) -> Floats | None:
        """Return the probability that a new configuration repeats an earlier one, by distance; None if no trial ever has."""
        inside = self.inside(state, trials)
        self._novelty.follow(inside, lambda n: self.cube.features(self.point(trials[n])[None])[0])
        return self._novelty.chance()

    def idle_share(self, state: FreezeThawState, trials: Population, first: int) -> float:
        """Return the share of new configurations that are chosen from uniform points instead of by hill climbing.

        This is 1.5 times the share of the model's recent proposals whose first result was equal to that of an earlier trial. The
        first `first` trials were not proposed by the model.
        """
        repeats = self.repeats(state)
        recent: list[bool] = []
        for trial in reversed(trials):
            if trial.number < first or len(recent) == RECENT:
                break
            if trial.tags.get("model") and trial.number in state.reached:
                recent.append(repeats.begins_like_another(trial.number))
        return min(1.5 * sum(recent) / RECENT, 0.8)

    def misled(self, state: FreezeThawState, trials: Population, levels: Sequence[float]) -> bool:
        """Return True if early reports say little about later ones."""
        results = self.inside(state, trials)
        count = early_reports.settled(len(results))
        if self._misled is None or self._misled[0] != count:
            self._misled = count, early_reports.mislead(results[:count], levels)
        return self._misled[1]
