"""Find out where a model comes from: its checkpoint, its configuration, and the search that found it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.domain import json_values
from tuner.errors import CheckpointError, SpecError
from tuner.sdk.result import Result
from tuner.sdk.saved import read
from tuner.space.parameter import config_as_json
from tuner.trials.checkpoints.checkpoints import Checkpoint

Source = Result | Checkpoint | str
"""A result, a checkpoint, or the id or name of an experiment in this home's database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A checkpoint and where it comes from. Most fields are None if it does not come from the result of a search."""

    checkpoint: Checkpoint
    config: Mapping[str, Any]
    experiment: str | None = None  # exp_...
    name: str | None = None
    trial: int | None = None  # the trial's number
    trial_id: str | None = None
    metric: str | None = None
    mode: str | None = None
    value: float | None = None
    iteration: int | None = None
    lineage: Sequence[Mapping[str, Any]] = ()
    """The configurations that led to the weights, as in `Result.schedule`."""

    def facts(self) -> dict[str, Any]:
        """Return all fields of the origin as JSON values. NaN and infinite numbers become None."""
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain(known), "checkpoint": self.checkpoint.path}


def origin(source: Source, config: Mapping[str, Any] | None = None) -> Origin:
    """Return the best checkpoint of a search, with its origin.

    Args:
        source: a result, an experiment, or a checkpoint.
        config: the configuration of the model. None: the best configuration of the result.

    Raises:
        CheckpointError: the search has no best checkpoint.
        NotFound: there is no such experiment.
    """
    if isinstance(source, str):
        source = read(source, log=False)
    if isinstance(source, Checkpoint):
        return Origin(checkpoint=source, config=dict(config or {}), iteration=source.iteration)
    if not isinstance(source, Result):
        raise SpecError(f"expected a result, a checkpoint or the name of an experiment, got {source!r}", "/source")
    best = source.best_trial
    if best is None or source.best_checkpoint is None:
        why = (
            "its best trial has saved no checkpoint"
            if best is not None
            else source.error or "no trial has reported yet"
        )
        raise CheckpointError(f"{source.name} ({source.experiment_id}) has no best checkpoint: {why}")
    return Origin(
        checkpoint=source.best_checkpoint,
        config=dict(config if config is not None else source.best_config or {}),
        experiment=source.experiment_id,
        name=source.name,
        trial=best.number,
        trial_id=best.id,
        metric=source.metric,
        mode=source.mode,
        value=source.best_value,
        iteration=source.best_checkpoint.iteration,
        lineage=[
            {"iteration": step["iteration"], "trial": step["trial"], "config": step["config"]}
            for step in source.schedule()
        ],
    )


def plain(value: Any) -> Any:
    """Convert a value to JSON. An object that JSON cannot represent becomes words; NaN and infinities become None."""
    return json_values.plain(config_as_json(value))
