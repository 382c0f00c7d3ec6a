"""Which checkpoints of a trial the policy does not keep."""

from __future__ import annotations

from collections.abc import Collection

from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import CheckpointPolicy, Objective
from tuner.domain.trial import Trial


def superfluous(
    trial: Trial, policy: CheckpointPolicy, objective: Objective, deleting: Collection[str]
) -> list[CheckpointInfo]:
    """Ready checkpoints that are neither among the newest `keep_last` nor the best `keep_best`, oldest first.

    The newest one is always kept: a restart needs it. One whose report has not come yet is not judged. Nothing is superfluous
    where the policy keeps all. Whether something else points to a checkpoint is for the caller to know.
    """
    if policy.keep_last is None or policy.keep_best is None:
        return []
    newest = max(1, policy.keep_last)
    if len(trial.checkpoints) <= newest:
        return []
    ready = [
        kept
        for kept in trial.checkpoints.values()
        if kept.info.ready and kept.info.id not in deleting and kept.info.step <= trial.iteration
    ]
    if len(ready) <= newest:
        return []
    scored = sorted((k for k in ready if k.value is not None), key=lambda k: objective.score(k.value or 0.0))
    keep = {k.info.id for k in ready[-newest:]} | {k.info.id for k in scored[len(scored) - policy.keep_best :]}
    return [kept.info for kept in ready if kept.info.id not in keep]
