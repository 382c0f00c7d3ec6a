"""Learn from earlier experiments: map their trials onto the present space, and compute what the new experiment's spec stores.

What is learned is part of the new experiment's spec (`Spec.earlier`), as JSON. So a restart knows the same, and deleting an
earlier experiment changes nothing.
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
    from tuner.schedulers.freeze_thaw.earlier import EarlierTrial

FEWEST = 5  # trials of an earlier experiment that fit the space; with fewer, nothing is learned from it
LEAST_SKILL = (
    0.3  # learn nothing below this correlation between the results of trials and their predictions from other trials
)
HINTS = 3  # the best trials of each earlier experiment, near which the model looks for new configurations


@dataclass(frozen=True, slots=True)
class EarlierExperiment:
    """An experiment from which another one may learn.

    Attributes:
        name: what the log calls it.
        objective: its first objective.
        space: its space.
        recording: its trials. Each configuration is of `space`.
    """

    name: str
    objective: Objective
    space: Space
    recording: Recording


def learn(space: Space, experiments: Sequence[EarlierExperiment]) -> dict[str, Any]:
    """Return what `Spec.earlier` keeps.

    Returns:
        ``{"experiments": [{"name", "trials", "model", "best"}], "portfolio": [{"params", "covers"}], "notes": [...]}``.
            `covers` are indices of experiments.
    """
    if space.has_grid or not len(space):
        return {
            "experiments": [],
            "portfolio": [],
            "notes": ["a grid and an empty space learn nothing from earlier experiments"],
        }
    from tuner.schedulers.freeze_thaw.earlier import portfolio, surrogate  # loads scipy
    from tuner.schedulers.freeze_thaw.unit_cube import Cube

    cube = Cube(space)
    notes, kept, models, found = [], [], [], []
    for earlier in experiments:
        trials = mapped(space, earlier)
        if len(trials) < FEWEST:
            notes.append(
                f"learned nothing from {earlier.name}: {len(trials)} of its trials fit this space, {FEWEST} are needed"
            )
            continue
        longest = max(len(trial.scores) for trial in trials)
        model = surrogate(cube, trials, longest)
        if model.skill < LEAST_SKILL:
            why = f"its results do not depend on the configuration in a way that can be predicted (correlation {model.skill:.2f})"
            notes.append(f"learned nothing from {earlier.name}: {why}")
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
    """Return the trials of an earlier experiment that reported and whose configuration belongs to this space.

    Parameters are matched by their paths, and categories by their values. Parameters that only the earlier space has are left
    out. A trial that lacks a parameter of this space, or has a value outside its range, does not belong to it.
    """
    from tuner.schedulers.freeze_thaw.earlier import EarlierTrial  # loads scipy

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
    """Return True if an experiment over the space `theirs` may have trials that belong to `space`."""
    mine = {p.path: p.kind == "choice" for p in space.parameters if p.condition is None}
    known = {p.path: p.kind == "choice" for p in theirs.parameters}
    return bool(mine) and mine.items() <= known.items()
