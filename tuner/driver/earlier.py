"""Learn from earlier experiments: map their trials to a new experiment's search space, and fit models to them.

The result is stored as JSON in the new experiment's spec (`Spec.earlier`), so it survives a restart of the driver and the
deletion of an earlier experiment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.domain.experiment import Objective
from tuner.driver.recording import Recording
from tuner.search.constraints import Constraint
from tuner.space import Space
from tuner.space.revisions import Revisions

if TYPE_CHECKING:
    from tuner.schedulers.freeze_thaw.model.earlier import EarlierTrial

FEWEST = 5  # an earlier experiment is used only if at least this many of its trials fit the space
# Minimum correlation between trials' results and the results predicted for them from the other trials.
LEAST_SKILL = 0.3
HINTS = 3  # the model looks for new configurations near this many of the best trials of each earlier experiment


@dataclass(frozen=True, slots=True)
class EarlierExperiment:
    """An earlier experiment to learn from.

    Attributes:
        name: its name in the new experiment's log.
        objective: the experiment's first objective.
        space: the experiment's search space.
        recording: the experiment's trials, with configurations in `space`.
        constraints: the constraints of the experiment.
    """

    name: str
    objective: Objective
    space: Space
    recording: Recording
    constraints: Sequence[Constraint] = ()


def learn(space: Space, experiments: Sequence[EarlierExperiment]) -> dict[str, Any]:
    """Return what an experiment over `space` learns from earlier experiments, as JSON for `Spec.earlier`.

    Returns:
        ``{"experiments": [{"name", "trials", "model", "best"}], "portfolio": [{"params", "covers"}], "notes": [...]}``.
            The portfolio holds the configurations to try first; the `covers` of a configuration lists the indices of the
            experiments for which it is the best in the portfolio.
    """
    if space.has_grid or not len(space):
        return {
            "experiments": [],
            "portfolio": [],
            "notes": ["a search over a grid or an empty space cannot learn from earlier experiments"],
        }
    from tuner.schedulers.freeze_thaw.model.earlier import best_score, portfolio, surrogate  # loads scipy
    from tuner.schedulers.freeze_thaw.model.unit_cube import Cube

    cube = Cube(space)
    notes, kept, models, found = [], [], [], []
    for earlier in experiments:
        trials = mapped(space, earlier)
        if len(trials) < FEWEST:
            fit = "fits" if len(trials) == 1 else "fit"
            notes.append(
                f"did not learn from {earlier.name}: {len(trials)} of its trials {fit} this space, but {FEWEST} are needed"
            )
            continue
        longest = max(len(trial.scores) for trial in trials)
        model = surrogate(cube, trials, longest)
        if model.skill < LEAST_SKILL:
            why = (
                f"its {len(trials)} trials do not show which configurations are good: "
                f"predicted and true results hardly agree (correlation {model.skill:.2f})"
            )
            notes.append(f"did not learn from {earlier.name}: {why}")
            continue
        order = sorted(trials, key=best_score, reverse=True)
        kept.append(trials)
        models.append(model)
        found.append(
            {
                "name": earlier.name,
                "trials": len(trials),
                "model": model.to_json(),
                "best": [dict(trial.params) for trial in order[:HINTS]],
            }
        )
    picks = portfolio(cube, kept, models)
    if found:
        names = ", ".join(f"{each['name']} ({each['trials']} trials)" for each in found)
        notes.insert(
            0, f"learns from {len(found)} earlier experiments: {names}" if len(found) > 1 else f"learns from {names}"
        )
    return {
        "experiments": found,
        "portfolio": [{"params": dict(pick.params), "covers": list(pick.covers)} for pick in picks],
        "notes": notes,
    }


def mapped(space: Space, earlier: EarlierExperiment) -> list[EarlierTrial]:
    """Return an earlier experiment's trials that have reports and whose configurations fit `space`.

    Parameters are matched by their paths, and categories by their values; branches and objects, by their labels. Parameters that
    only the earlier space has are ignored. Trials that lack a parameter of this space, or have a value outside its range, are
    left out. A report that violates the constraints of the earlier experiment is as bad as one that is not finite.
    """
    from tuner.schedulers.freeze_thaw.model.earlier import EarlierTrial  # loads scipy

    revisions, metric = Revisions([earlier.space, space]), earlier.objective.metric
    found = []
    for trial in earlier.recording.trials.values():
        params = revisions.inside(trial.params, 0)
        newest: dict[str, float] = {}
        scores = []
        for report in trial.reports:
            newest |= report.metrics
            if metric in report.metrics:
                inside = all(constraint.excess(newest) <= 0 for constraint in earlier.constraints)
                scores.append(earlier.objective.score(newest[metric]) if inside else -math.inf)
        if params is not None and scores:
            found.append(EarlierTrial(params, tuple(scores)))
    return found


def may_fit(space: Space, theirs: Space) -> bool:
    """Return True if trials with configurations of the space `theirs` can fit `space`."""
    mine = {p.path: p.kind == "choice" for p in space.parameters if p.condition is None}
    known = {p.path: p.kind == "choice" for p in theirs.parameters}
    return bool(mine) and mine.items() <= known.items()
