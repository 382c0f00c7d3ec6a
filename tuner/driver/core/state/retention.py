"""Find the checkpoints of a trial that the experiment's checkpoint policy does not keep."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tuner.domain.experiment import CheckpointPolicy, Objective
from tuner.domain.trial import KeptCheckpoint


def keeps_all(policy: CheckpointPolicy) -> bool:
    """Return whether the policy never deletes anything."""
    return policy.keep_last is None or policy.keep_best is None


def superfluous(
    kept: Sequence[KeptCheckpoint], policy: CheckpointPolicy, objective: Objective, needed: Collection[str]
) -> list[KeptCheckpoint]:
    """Return the checkpoints that are neither needed, nor among the newest `keep_last`, nor among the best `keep_best`.

    Of equally good ones, the oldest count as the best, as for the best report of a trial. The newest checkpoint is never
    returned. If `keep_last` or `keep_best` is None, the policy keeps all checkpoints.

    kept: the usable checkpoints of one trial, oldest first.
    needed: the ids of checkpoints that must be kept.
    """
    if policy.keep_last is None or policy.keep_best is None:  # the same as keeps_all, in a form that mypy understands
        return []
    newest = max(1, policy.keep_last)
    if len(kept) <= newest:
        return []
    scored = sorted((k for k in reversed(kept) if k.value is not None), key=lambda k: objective.score(k.value or 0.0))
    best = scored[max(0, len(scored) - policy.keep_best) :]
    keep = {k.info.id for k in (*kept[-newest:], *best)}
    return [k for k in kept if k.info.id not in keep and k.info.id not in needed]
