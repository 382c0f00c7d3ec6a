"""Declare what a callback is, and what it sees of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class ObservedTrial:
    """A trial as a callback sees it: as it was at that place of the log, even if the search is further by now."""

    number: int
    trial_id: str
    experiment_id: str
    config: dict[str, Any]  # as the training function gets it
    params: dict[str, Any]  # flat: "optimizer/lr" -> value
    status: str = "pending"  # "running", "paused", "completed", "stopped", "failed" or "cancelled"
    reason: str = ""  # of the last decision about it, in words
    error: str | None = None
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] | None = None  # the newest one: "id", "uri", "step", "bytes"

    @property
    def name(self) -> str:
        """Return a name for files and charts, such as ``trial_00003``."""
        return f"trial_{self.number:05}"

    def __str__(self) -> str:
        return self.name


class Callback:
    """A base for callbacks. Override the methods that you need, with the parameters that you need.

        class Printing(tuner.callbacks.Callback):
            def on_trial_result(self, trial, result, **info):
                print(trial, result["loss"])

        tuner.run(train, space, callbacks=[Printing()], ...)

    Every method is called with keywords. The parameters are those of Ray Tune's callbacks, and `event_seq`, the place of the
    entry in the search's log, which is never the same twice. Every entry is passed on once, except that a process that is
    killed may pass on the last few again when it is resumed: compare `event_seq` if that matters.
    """

    def setup(self, *, name: str, experiment_id: str, metric: str, mode: str, folder: str, **info: Any) -> None:
        """Prepare, before anything else is called. folder: one for files of this experiment, in the home."""

    def on_trial_start(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle that a trial has begun to train."""

    def on_trial_restore(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle that a trial trains again, after a pause, a retry or an exploit, which may have changed its config."""

    def on_trial_recover(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle that a trial failed and will be retried."""

    def on_trial_result(
        self,
        *,
        iteration: int,
        trials: Sequence[ObservedTrial],
        trial: ObservedTrial,
        result: dict[str, Any],
        event_seq: int,
        **info: Any,
    ) -> None:
        """Handle a report. result: its metrics, ``training_iteration``, ``timestamp``, ``trial_id`` and ``config``."""

    def on_checkpoint(
        self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], checkpoint: Mapping[str, Any], **info: Any
    ) -> None:
        """Handle that a trial has saved a checkpoint: its ``id``, ``uri``, ``step`` and ``bytes``."""

    def on_trial_complete(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle that a trial has ended: its status is "completed", "stopped" or "cancelled"."""

    def on_trial_error(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle that a trial was given up after a failure."""

    def on_experiment_end(self, *, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the end of the search. It is called again after `result.add` has run more trials."""

    def close(self) -> None:
        """Release files and connections. Afterwards nothing is called until the next `setup`."""
