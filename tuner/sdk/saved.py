"""`tuner.load` and `tuner.experiments`: read the searches of this home, from any process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar, Literal

from tuner.domain.states import ExperimentState
from tuner.errors import NotFound, SpecError, WrongArgument
from tuner.experiment.operations.usecases import id_of
from tuner.names import did_you_mean, keywords_explained
from tuner.sdk.live import notebook
from tuner.sdk.result import Result
from tuner.sdk.run import read_result
from tuner.settings import Settings
from tuner.space.revisions import Revisions
from tuner.store import ExperimentRecord, Store

__all__ = ["ExperimentSummary", "experiments", "load"]

PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """One experiment, as listed by `tuner.experiments`. `load` reads the whole result."""

    id: str
    name: str
    project: str
    state: str
    metric: str
    mode: str
    trials: int
    best_value: float | None
    best_params: Mapping[str, Any] | None  # flat: "optimizer/lr" -> value
    created_at: datetime  # in UTC
    ended_at: datetime | None

    COLUMNS: ClassVar[notebook.Columns] = (
        ("id", False), ("name", False), ("state", False), ("trials", True), ("metric", False), ("best value", True),
        ("best params", False), ("created", False),
    )  # fmt: skip

    def cells(self) -> tuple[object, ...]:
        """Return the cells of the experiment's row in a notebook's table."""
        params = notebook.short(self.best_params or {})
        created = f"{self.created_at:%Y-%m-%d %H:%M}"
        value = notebook.number(self.best_value)
        return self.id, self.name, self.state, self.trials, f"{self.mode} {self.metric}", value, params, created

    def _repr_html_(self) -> str:
        return notebook.Rows([self])._repr_html_()

    def load(self) -> Result:
        """Return the whole result, as `tuner.load(self.id)` does."""
        return load(self.id)


@keywords_explained
def load(experiment: str) -> Result:
    """Return the result of an experiment in this home's database, whichever process started it.

    The result is the one that `tuner.run` returns: trials, data frame, best trial, best checkpoint, decisions. For a running
    experiment it contains what has been found so far. Nothing is started.

    Args:
        experiment: ``exp_...``, or the experiment's name if no other experiment has it.

    Raises:
        NotFound: this home has no such experiment. The message names the nearest one.
        Conflict: several experiments have this name. The message lists their ids.
    """
    return read(experiment, log=True)


def read(experiment: str, *, log: bool, ray_address: str | None = None) -> Result:
    """Return the same as `load`.

    Args:
        experiment: as for `load`.
        log: False to leave out the decisions and the histories of the trials.
        ray_address: the Ray cluster on which the result's `add` runs trials, as for `run`.
    """
    if not isinstance(experiment, str):
        raise WrongArgument(f"expected an experiment's id or name, got {experiment!r}")
    with database() as store:
        found = id_of(store, experiment)
        if not found.startswith("exp_"):
            raise NotFound(f"{experiment!r} is a trial; expected an experiment's id or name")
        return read_result(store, found, ray_address, log=log)


def experiments(
    name: str | None = None,
    state: str | None = None,
    *,
    tags: str | Sequence[str] | None = None,
    project: str | None = None,
    archived: Literal["no", "yes", "all"] = "no",
    limit: int | None = None,
) -> list[ExperimentSummary]:
    """List the experiments of this home's database, newest first.

    Args:
        name: list only experiments whose name contains this text.
        state: list only experiments in this state: "running", "paused", "completed", "failed", ...
        tags: list only experiments with this tag, written as ``key`` or ``key=value``. A list: only those with all of these tags.
        project: list only experiments of this project.
        archived: "no": only experiments that are not archived; "yes": only archived ones; "all": both.
        limit: list at most this many.

    Raises:
        SpecError: there is no such state, or another argument is wrong.
    """
    if archived not in ("no", "yes", "all"):
        raise SpecError(f"expected no, yes or all, got {archived!r}", "/archived")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise SpecError(f"expected a number of experiments, 0 or more, got {limit!r}", "/limit")
    if state is not None and state not in (known := [str(each) for each in ExperimentState]):
        raise SpecError(f"expected one of {', '.join(known)}, got {state!r}{did_you_mean(str(state), known)}", "/state")
    wanted: dict[str, Any] = {
        "name": name,
        "state": state,
        "tags": [tags] if isinstance(tags, str) else tags or (),
        "project": project,
        "archived": None if archived == "all" else archived == "yes",
    }
    with database() as store:
        return notebook.Rows(summary(record) for record in islice(_records(store, wanted), limit))


@contextmanager
def database() -> Iterator[Store]:
    settings = Settings.from_env()
    settings.make_home()
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
        yield store


def summary(record: ExperimentRecord) -> ExperimentSummary:
    """Return what a list shows of an experiment."""
    objective, best = record.spec.objective, record.best
    return ExperimentSummary(
        id=record.public_id,
        name=record.name,
        project=record.project,
        state=str(record.state),
        metric=objective.metric,
        mode=objective.mode,
        trials=sum(record.counts.values()),
        best_value=best["value"] if best else None,
        best_params=_readable(record, best["params"]) if best else None,
        created_at=datetime.fromtimestamp(record.created_at, UTC),
        ended_at=None if record.ended_at is None else datetime.fromtimestamp(record.ended_at, UTC),
    )


def _readable(record: ExperimentRecord, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return Revisions.of(record.spec).holding(params).readable(params)


def _records(store: Store, wanted: Mapping[str, Any]) -> Iterator[ExperimentRecord]:
    token: str | None = None
    while True:
        page = store.experiments.page(**wanted, page_size=PAGE, page_token=token)
        yield from page.items
        token = page.next_token
        if token is None:
            return
