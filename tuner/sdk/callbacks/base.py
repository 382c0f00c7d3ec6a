"""Declare the base class of callbacks, and the trial objects that they receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class ObservedTrial:
    """A trial as it was at one log entry. The search may have continued since then."""

    number: int
    trial_id: str
    experiment_id: str
    config: dict[str, Any]  # as the training function gets it, but a service has None for the values of `sample_from`
    params: dict[str, Any]  # flat: "optimizer/lr" -> value
    status: str = "pending"  # "running", "paused", "completed", "stopped", "failed" or "cancelled"
    reason: str = ""  # the reason for the last decision about it, in words
    error: str | None = None  # why its last execution failed; None once it trains again
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] | None = None  # the newest checkpoint: "id", "uri", "step", "bytes"

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

    Every method is called with keyword arguments. They are the same as in Ray Tune, plus `event_seq`, the unique number of the
    entry in the search's log, and `timestamp`, the time of the entry in seconds since 1970. A callback receives each entry once,
    unless the process is killed: then it may receive the last few entries again after a resume. Compare `event_seq` if that
    matters.
    """

    def setup(self, *, name: str, experiment_id: str, metric: str, mode: str, folder: str, **info: Any) -> None:
        """Prepare for calls to the other methods. folder: a folder in the home for files of this experiment."""

    def on_trial_start(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the start of a trial."""

    def on_trial_restore(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle a trial that continues after a pause, a retry or an exploit. An exploit may have changed its config."""

    def on_trial_recover(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the failure of a trial that will be retried."""

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
        """Handle a report.

        result: the metrics, ``training_iteration``, ``timestamp``, ``trial_id`` and ``config``. A metric with one of these
            names, or called ``event_seq``, is in ``metrics/NAME``.
        """

    def on_checkpoint(
        self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], checkpoint: Mapping[str, Any], **info: Any
    ) -> None:
        """Handle a completely saved checkpoint. checkpoint: a dict with the keys ``id``, ``uri``, ``step`` and ``bytes``."""

    def on_trial_complete(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the end of a trial with the status "completed", "stopped" or "cancelled"."""

    def on_trial_error(self, *, trial: ObservedTrial, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the failure of a trial that will not be retried."""

    def on_experiment_end(self, *, trials: Sequence[ObservedTrial], **info: Any) -> None:
        """Handle the end of the search. This method is called again after `result.add` has run more trials."""

    def close(self) -> None:
        """Release files and connections. No method is called afterwards, unless `setup` is called again."""
