"""Phrases that the reasons of several schedulers share. Numbers are shown as the user reported them."""

from __future__ import annotations

from tuner.domain.experiment import Objective
from tuner.schedulers.shared.standing import violates


def shown(number: float) -> str:
    """Return a whole number in full, and another one with at most six digits: ``1024761``, ``0.71``, ``1.5e-07``."""
    return f"{number:.15g}" if float(number).is_integer() else f"{number:.6g}"


def time_in_words(time_attr: str, t: float) -> str:
    """Return a value of time_attr in words: ``iteration 9`` or ``time_total_s 61.5``."""
    return f"{'iteration' if time_attr == 'training_iteration' else time_attr} {shown(t)}"


def reported(objective: Objective, score: float) -> str:
    """Return a score as the value that the user reported."""
    return shown(objective.score(score))


def rank_in_words(rank: int, entries: int, survivors: int) -> str:
    """Return a rank in words: ``rank 2 of 9 there, and only the best 3 continue``."""
    if survivors == 0:
        return f"rank {rank} of {entries} there, and none continues until there are more to compare"
    return f"rank {rank} of {entries} there, and only the best {'continues' if survivors == 1 else f'{survivors} continue'}"


def score_and_rank(objective: Objective, score: float, rank: int, entries: int, survivors: int) -> str:
    """Return a score and its rank in words: ``accuracy 0.71 is rank 2 of 9 there, and only the best 3 continue``.

    `score` may be a standing; see `tuner.schedulers.shared.standing`.
    """
    if violates(score):
        ranked = rank_in_words(rank, entries, survivors)
        return f"it violates the constraints, and trials that satisfy them come first; {ranked}"
    return f"{objective.metric} {reported(objective, score)} is {rank_in_words(rank, entries, survivors)}"


def below_the_cut(objective: Objective, score: float, cut: float, rank: int, entries: int, survivors: int) -> str:
    """Return the reason for stopping a trial: its score and rank, and the score that it needed, as in ``(at least 0.74)``."""
    if violates(score):
        return score_and_rank(objective, score, rank, entries, survivors)
    bound = "at least" if objective.mode == "max" else "at most"
    return f"{score_and_rank(objective, score, rank, entries, survivors)} ({bound} {reported(objective, cut)})"


def reached_max_t(time_attr: str, t: float, max_t: float) -> str:
    """Return the reason for completing a trial: ``completed at iteration 27: reached max_t (27), a full training``."""
    return f"completed at {time_in_words(time_attr, t)}: reached max_t ({shown(max_t)}), a full training"
