"""Phrases that the reasons of several schedulers share. Numbers are shown as the user reported them."""

from __future__ import annotations

from tuner.domain.experiment import Objective


def shown(number: float) -> str:
    """Return a number with at most six digits: ``0.71``, ``12``, ``1.5e-07``."""
    return f"{number:.6g}"


def at(time_attr: str, t: float) -> str:
    """Return a value of time_attr in words: ``iteration 9``, or ``time_total_s 61.5``."""
    return f"{'iteration' if time_attr == 'training_iteration' else time_attr} {shown(t)}"


def reported(objective: Objective, score: float) -> str:
    """Return a score as the value that the user reported."""
    return shown(objective.score(score))


def rank_of(rank: int, entries: int, survivors: int) -> str:
    """Return a rank in words: ``rank 2 of 9, of which 3 continue``."""
    return f"rank {rank} of {entries}, of which {survivors} continue{'s' if survivors == 1 else ''}"


def below_the_cut(objective: Objective, score: float, cut: float, rank: int, entries: int) -> str:
    """Return the reason for stopping: ``0.71 is below the cut 0.74, rank 6 of 9``, or "above" for a metric to minimize."""
    side = "below" if objective.mode == "max" else "above"
    return f"{reported(objective, score)} is {side} the cut {reported(objective, cut)}, rank {rank} of {entries}"


def reached_max_t(time_attr: str, t: float, max_t: float) -> str:
    """Return the reason for completing a trial: ``completed at iteration 27: max_t is 27``."""
    return f"completed at {at(time_attr, t)}: max_t is {shown(max_t)}"
