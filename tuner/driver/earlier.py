"""Learn from earlier experiments: map their trials to a new experiment's search space, and fit models to them.

The result is stored as JSON in the new experiment's spec (`Spec.earlier`), so it survives a restart of the driver and the
deletion of an earlier experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.domain.experiment import Objective
from tuner.driver.recording import RecordedTrial, Recording
from tuner.errors import SpecError
from tuner.space import Space

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
    """

    name: str
    objective: Objective
    space: Space
    recording: Recording


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
    from tuner.schedulers.freeze_thaw.model.earlier import portfolio, surrogate  # loads scipy
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
        order = sorted(trials, key=lambda trial: max(trial.scores), reverse=True)
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

    Parameters are matched by their paths, and categories by their values. Parameters that only the earlier space has
    are ignored. Trials that lack a parameter of this space, or have a value outside its range, are left out.
    """
    from tuner.schedulers.freeze_thaw.model.earlier import EarlierTrial  # loads scipy

    found = []
    for trial in earlier.recording.trials.values():
        params = _params(space, earlier.space, trial)
        metric = earlier.objective.metric
        scores = [
            earlier.objective.score(report.metrics[metric]) for report in trial.reports if metric in report.metrics
        ]
        if params is not None and scores:
            found.append(EarlierTrial(params, tuple(scores)))
    return found


def _params(space: Space, theirs: Space, trial: RecordedTrial) -> dict[str, Any] | None:
    values = theirs.readable(trial.params)
    given = {path: values[path] for path in values if path in space}
    try:
        params = space.check(given)
    except SpecError:
        return None
    needed = (p.path for p, on in zip(space.parameters, space.active(params), strict=True) if on)
    return params if all(path in params for path in needed) else None


def may_fit(space: Space, theirs: Space) -> bool:
    """Return True if trials with configurations of the space `theirs` can fit `space`."""
    mine = {p.path: p.kind == "choice" for p in space.parameters if p.condition is None}
    known = {p.path: p.kind == "choice" for p in theirs.parameters}
    return bool(mine) and mine.items() <= known.items()
