"""Phrases that occur in the reasons of several decisions."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.domain.trial import Trial
from tuner.driver.core.state.state import State


def names(of: Iterable[str]) -> str:
    """Return these names quoted and separated by commas, or "nothing"."""
    return ", ".join(repr(name) for name in of) or "nothing"


def where_from(experiment: State, trial: Trial) -> str:
    """Return where the trial's next segment would start: "from iteration 7" or "from the beginning".

    If the upload of the trial's newest checkpoint still continues, the segment waits for it.
    """
    info = experiment.checkpoints.awaits(trial) or trial.checkpoint
    return f"from iteration {info.step}" if info is not None else "from the beginning"


def paused(experiment: State) -> str:
    """Return the first words of the reason for which a trial is paused while the whole experiment is being paused."""
    return f"paused because {experiment.unsavable.why}" if experiment.unsavable else "paused by a user"
