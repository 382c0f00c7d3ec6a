"""The result of one trial, in a `Result`."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import TrialState
from tuner.domain.trial import drawn_as
from tuner.errors import CheckpointError
from tuner.plurals import counted
from tuner.sdk.live import notebook
from tuner.space.revisions import Revisions
from tuner.store.records import TrialRecord

if TYPE_CHECKING:
    from tuner.trials.checkpoints.checkpoints import Checkpoint

FIELDS = ("training_iteration", "segment", "time")
"""The fields that every item of `TrialResult.history` has besides the metrics."""
METRICS = "metrics/"
"""The prefix of a metric that has the name of another field of its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The outcome of one trial.

    `reason` says why the trial ended, and `error` which rank failed and why.
    """

    id: str
    number: int
    state: TrialState
    config: Mapping[str, Any]  # the current configuration
    iterations: int
    metrics: Mapping[str, float]  # the newest value of each metric
    # The next fields describe the best report that satisfies the constraints or, if none does, the best report.
    best_value: float | None
    best_iteration: int | None  # training_iteration of that report
    best_config: Mapping[str, Any]  # the configuration at that report; under PBT, `config` may be a later one
    feasible: bool | None  # True if its result satisfies the constraints; None without constraints or reports
    last_value: float | None
    reason: str
    error: str | None  # one line: which rank failed, where, and why
    traceback: str = field(default="", repr=False)  # the traceback of the rank that failed
    log_tail: str = field(default="", repr=False)  # the last lines that this rank printed
    notes: Mapping[str, Any]  # what the training code attached to the trial: an Optuna trial's user attributes
    # The trial's newest checkpoint; result.best_checkpoint belongs to the best value.
    checkpoint: Checkpoint | None = field(repr=False)
    repeat_of: int | None = None  # the number of the trial whose configuration it evaluates again
    history: list[dict[str, float]] = field(repr=False)
    """One dict for each report: its metrics, training_iteration, segment, time, and the `step` that was passed, if any.

    A metric that is itself called training_iteration, segment or time is under ``metrics/training_iteration`` and so on.
    """
    # A pickle has the values of the fields in this order, so new fields belong here.
    waiting: str | None = None  # why it has not started yet; None if it does not wait to start
    COLUMNS: ClassVar[notebook.Columns] = (
        ("trial", True), ("state", False), ("iterations", True), ("best value", True), ("config", False), ("reason", False),
    )  # fmt: skip

    @property
    def iteration(self) -> int:
        """Return `iterations`, under the name that trials have in `tuner.simulate`, in schedulers and in studies."""
        return self.iterations

    def cells(self) -> tuple[object, ...]:
        """Return the cells of the trial's row in a notebook's table."""
        config = notebook.short(dict(flat(self.best_config)))
        return (
            self.number, self.state, self.iterations, notebook.number(self.best_value), config, self.error or self.reason,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        best = "" if self.best_value is None else f"{self.best_value:.6g} at iteration {self.best_iteration}"
        metrics = "\n".join(f"{name} = {value:.6g}" for name, value in self.metrics.items())
        config = "\n".join(f"{name} = {value}" for name, value in flat(self.best_config))
        return notebook.box(
            f"<b>trial {self.number}</b> {self.state}, {counted(self.iterations, 'iteration')}",
            notebook.facts(
                [
                    ("best value", best),
                    ("config", config),
                    ("metrics", metrics),
                    ("reason", self.reason),
                    ("error", self.error if self.error != self.reason else ""),
                    ("traceback", self.traceback),
                    ("checkpoint", self.checkpoint.path if self.checkpoint else ""),
                ]
            ),
        )

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take the values of the fields from a pickle. That of an earlier version lacks the last ones, whose default is None."""
        for one, value in itertools.zip_longest(fields(self), state):
            object.__setattr__(self, one.name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(not_here("trial of a Result", name, _OF_A_TRIAL))


_OF_A_TRIAL = {  # attributes of Ray Tune's and Optuna's results that have other names here
    "best_checkpoints": "checkpoint, the newest one; result.best_checkpoint is that of the best value",
    "evaluated_params": "config",
    "duration": "history, with the time of each report",
    "get_best_checkpoint": "checkpoint, the newest one; result.best_checkpoint is that of the best value",
    "intermediate_values": "history",
    "last_result": "metrics",
    "metrics_dataframe": "history, or result.dataframe(history=True)",
    "params": "config",
    "path": "checkpoint.path; the logs are beside the database",
    "user_attrs": "notes",
    "value": "best_value or last_value",
    "values": "metrics",
}


def not_here(what: str, name: str, instead: Mapping[str, str]) -> str:
    return f"a {what} has no {name!r}" + (f"; it has {instead[name]}" if name in instead else "")


def trial_of(
    row: TrialRecord, space: Revisions, seed: int, history: list[dict[str, float]], folder: str | None = None
) -> TrialResult:
    number = drawn_as(row.tags, row.number)
    return TrialResult(
        id=row.public_id,
        number=row.number,
        state=row.state,
        config=config_of(space, seed, row.params, number, row.space_revision),
        notes=row.tags.get("notes", {}),
        checkpoint=opened(CheckpointInfo(**row.checkpoint), folder) if row.checkpoint else None,
        iterations=row.iteration,
        metrics=row.last,
        best_value=row.best_value,
        best_iteration=row.best_iteration,
        best_config=config_of(space, seed, row.best_params, number, revision_of(row, row.best_params)),
        feasible=row.feasible,
        last_value=row.last_value,
        reason=row.reason,
        error=row.reason if row.state is TrialState.FAILED else None,
        traceback=(row.failure or {}).get("traceback") or "",
        log_tail=(row.failure or {}).get("log_tail") or "",
        repeat_of=row.repeat_of,
        waiting=row.waiting,
        history=history,
    )


def revision_of(row: TrialRecord, params: Mapping[str, Any]) -> int | None:
    """Return the revision of the space that these params of a trial are from; None if it is not known, as after an exploit."""
    return row.space_revision if params == row.params else None


def config_of(
    spaces: Revisions, seed: int, params: Mapping[str, Any], number: int, revision: int | None = None
) -> dict[str, Any]:
    """Return the configuration that the training function got, with the parameters that it drew itself (define-by-run).

    number: the number by which functions of `sample_from` draw; see `drawn_as`.

    If a function passed to `sample_from` fails, the trial had no configuration: the function's name is in its place.
    """
    space = spaces.holding(params, revision)
    return {name: value for name, value in params.items() if name not in space} | space.config(
        params, seed, number, to_show=True
    )


def history_row(
    iteration: int, segment: int, time: float, metrics: Mapping[str, float], step: int | None
) -> dict[str, float]:
    """Return a report as an item of `TrialResult.history`."""
    row = {"training_iteration": iteration, "segment": segment, "time": time, **renamed(metrics, FIELDS)}
    if step is not None:
        row.setdefault("step", step)
    return row


def renamed(metrics: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the metrics of a row. If a metric has the name of another field of the row, its name becomes ``metrics/NAME``."""
    return {f"{METRICS}{name}" if name in taken else name: value for name, value in metrics.items()}


def reported(row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of an item of `TrialResult.history` under the names that the training code gave them."""
    again = {f"{METRICS}{name}": name for name in FIELDS}
    return {again.get(name, name): value for name, value in row.items() if name not in FIELDS}


def opened(info: CheckpointInfo, folder: str | None = None) -> Checkpoint:
    """Return a checkpoint. folder: where the checkpoints of its experiment are, to which a user may have moved it; if known."""
    from tuner.trials.checkpoints.checkpoints import Checkpoint, where_now  # loads Ray

    if folder is not None:
        info = replace(info, uri=where_now(info.uri, folder))
    return Checkpoint(info.uri, info=info, fetch=functools.partial(_fetch, info.uri, info.node) if info.node else None)


def _fetch(uri: str, node: str, target: str) -> None:
    """Download a checkpoint that is not on this machine. This needs a process that is connected to Ray."""
    ray = sys.modules.get("ray")
    # another thread may be importing Ray just now
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        raise CheckpointError(
            f"the checkpoint at {uri} is not on this machine but on the disk of node {node[:8]}, "
            "which can be read only from a process that is connected to that Ray cluster"
        )
    from tuner.trials.checkpoints import transfer  # loads Ray

    transfer.fetch(uri, node, target)


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in config.items():
        pairs += flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return pairs
