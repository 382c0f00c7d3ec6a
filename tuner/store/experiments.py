"""Experiments: create, find, list."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    ColumnElement,
    Connection,
    Select,
    Text,
    case,
    cast,
    func,
    literal_column,
    select,
    true,
    type_coerce,
)

from tuner.domain.experiment import DEFAULT_PROJECT, SECTIONS, SPEC_VERSION, Spec, known
from tuner.domain.states import ExperimentState, TrialState, is_state, read_state
from tuner.errors import Conflict, NotFound, SpecError, Stale
from tuner.names import did_you_mean, in_project
from tuner.store import removal
from tuner.store.code import put
from tuner.store.commands import Request, adopt_ended, insert, is_sent, lock
from tuner.store.records import CodeRecord, ExperimentRecord, Page, Progress
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database, Share, at
from tuner.store.sql.paging import Place, behind, decoded, encoded, number, page
from tuner.store.sql.stored import readable
from tuner.store.sql.tables import JsonText, dumps, experiment
from tuner.store.writing.rows import clean

COLUMNS = [
    type_coerce(column, Text).label(column.name) if isinstance(column.type, JsonText) else column  # `record` parses it
    for column in experiment.c
    if column.name not in ("name", "spec_version", "seed", "idempotency_key", "tags", "thinned_upto")
]

_INSERT = """
INSERT INTO experiment (public_id, name, state, spec, spec_version, seed, source, idempotency_key, code_hash, project,
  driver_epoch, last_event_seq, counts, reason, created_at, revision, tags)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '{}', '', ?, 0, ?) ON CONFLICT (idempotency_key) DO NOTHING RETURNING id"""
_NEW: dict[str, Any] = {
    **dict.fromkeys(("driver_epoch", "last_event_seq", "revision"), 0),
    **dict.fromkeys(("gpu_hours", "gpu_hours_saved", "cpu_hours", "paused_s"), 0.0),
    **dict.fromkeys(("driver_owner", "lease_until", "best", "no_best", "error", "pauses", "budget_spent"), None),
    **dict.fromkeys(("started_at", "ended_at", "archived_at", "thinned_at"), None),
    "state": ExperimentState.PENDING,
    "reason": "",
}
"""The values that the record of every new experiment has, except for the mappings, which are empty."""

# This query runs for every new experiment, and SQLAlchemy would take longer than the database.
_WITH_A_BEST = f"""
SELECT {", ".join(f"e.{column.name}" for column in COLUMNS)}
FROM (SELECT id FROM experiment WHERE project = ? AND archived_at IS NULL ORDER BY id DESC LIMIT ?) newest
JOIN experiment e ON e.id = newest.id
WHERE e.thinned_at IS NULL AND e.best IS NOT NULL ORDER BY e.id DESC"""

_NOT_YET = f"""
UPDATE experiment SET state = '{ExperimentState.FAILED}', reason = ?, error = ?, started_at = created_at WHERE public_id = ?"""
_READ = "SELECT changes, revision, spec FROM experiment WHERE id = ?"
_CHANGE = "UPDATE experiment SET changes = ?, revision = revision + 1, name = ?, tags = ? WHERE id = ? AND revision = ?"
_LOCK = "UPDATE experiment SET id = id WHERE id = ?"
_RUNS = f"""
SELECT e.public_id FROM experiment e WHERE e.id = ? AND (
  e.state NOT IN ({", ".join(f"'{state}'" for state in ExperimentState if state.ended)})
  OR EXISTS (SELECT 1 FROM command c WHERE c.experiment_id = e.id AND c.state = 'pending' AND c.command = 'continue'))"""
_ARCHIVE = "UPDATE experiment SET archived_at = ? WHERE id = ?"

_ACCEPTED = (("-Infinity", "null"), ("Infinity", "null"), ("NaN", "null"), (r"\u", r"\n"))
r"""The words to replace in JSON text so that both databases accept it. Infinity and NaN are not JSON, and PostgreSQL refuses some
characters that are written with \u. Inside a string, each replacement is valid, too."""


SORTED_BY = ("name", "state", "trials", "best", "method", "started", "duration")
"""The columns by which a list of experiments can be sorted.

name: SQLite ignores case for ASCII letters only, PostgreSQL for all letters. trials: the number of trials that have ended.
best: the best value of the first objective, as a number whatever its mode. method: the types of the searcher and the scheduler.
duration: only experiments that have ended have one, because it keeps changing for the others.
"""

Creation = Share[ExperimentRecord | str]
"""A share of a transaction that inserts an experiment. Its result is the record, or the id of an earlier experiment with the same
idempotency key."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of experiments and trials, by (project, state)."""

    experiments: Counter[tuple[str, str]] = field(default_factory=Counter)
    trials: Counter[tuple[str, str]] = field(default_factory=Counter)
    gpu_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by project
    gpu_seconds_saved: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True)
class ProjectTotals:
    """A project's totals: how many experiments it has, and the resources that they have used."""

    project: str
    experiments: int
    archived: int  # how many of the experiments are archived
    running: int  # how many of them have not ended
    gpu_hours: float
    gpu_hours_saved: float
    cpu_hours: float
    latest_at: float  # when the newest experiment was created


class Experiments:
    """The experiments of one project, or of all projects."""

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project

    def creation(
        self,
        spec: Spec,
        *,
        public_id: str | None = None,
        code: CodeRecord | None = None,
        source: str = "python",
        idempotency_key: str | None = None,
        incomplete: str | None = None,
        now: float | None = None,
    ) -> Creation:
        """Return the `Creation` that inserts a pending experiment, for `create_all`.

        If `incomplete` is given, insert an experiment that has already failed, with this text as its reason, so that no driver
        claims it. Its creator then writes the log under epoch 0, and finally the actual final state. If the creator is killed
        before that, the experiment stays failed for this reason.

        If the `idempotency_key` was used before in this project, return the experiment that was created with it. Raise Conflict
        if that experiment has a different spec. Raise SpecError if the spec names a project other than the one to which this
        store is limited.
        """
        if self._project not in (None, spec.project):
            raise SpecError(f"your access is limited to the project {self._project!r}", "/project")
        if code is not None and spec.code is None:
            spec = dataclasses.replace(spec, code=code.hash)
        wanted, time = public_id or f"exp_{secrets.token_hex(10)}", at(now)

        def write(cursor: Cursor) -> ExperimentRecord | str:
            if code is not None:
                put(cursor, code, time)
            found = _insert(cursor, spec, wanted, source, idempotency_key, time)
            if incomplete is None:
                return found
            called = found if isinstance(found, str) else found.public_id
            cursor.execute(_NOT_YET, (clean(incomplete), clean(incomplete), called))
            return called

        return Share(write, "" if code is None else code.hash)

    def create(
        self,
        spec: Spec,
        *,
        public_id: str | None = None,
        code: CodeRecord | None = None,
        source: str = "python",
        idempotency_key: str | None = None,
        incomplete: str | None = None,
        now: float | None = None,
    ) -> ExperimentRecord:
        """Insert a pending experiment; see `creation` for the arguments.

        Return its record, or that of the experiment that was created with the same `idempotency_key`.
        """
        share = self.creation(
            spec,
            public_id=public_id,
            code=code,
            source=source,
            idempotency_key=idempotency_key,
            incomplete=incomplete,
            now=now,
        )
        self.create_all([share])
        return self.created(share)

    def create_all(self, creations: Sequence[Creation], *others: Share[Any]) -> None:
        """Do the work of all these creations in one transaction. Afterwards, `created` returns each one's record.

        others: other work for this transaction. If work fails, only this work is undone.
        """
        self._database.write_all([*creations, *others])

    def created(self, creation: Creation) -> ExperimentRecord:
        """Return the record of a created experiment, or raise the error that prevented its creation."""
        if creation.error is not None:
            raise creation.error
        found = creation.result
        assert found is not None
        return self.get(found) if isinstance(found, str) else found

    def created_with(self, idempotency_key: str, spec: Spec) -> ExperimentRecord | None:
        """Return the experiment that was created with this key, or None if there is none yet.

        Raise Conflict if that experiment has a different spec.
        """
        found = self._with_key(spec.project, idempotency_key)
        if found is not None:
            _compare(found.first_spec.to_json(), spec.to_json(), idempotency_key)
        return found

    def forked_with(self, idempotency_key: str, project: str, request: str) -> ExperimentRecord | None:
        """Return the fork that this request has created with this key, or None. request: the fork's `fork_request`."""
        found = self._with_key(project, idempotency_key)
        return found if found is not None and found.first_spec.fork_request == request else None

    def _with_key(self, project: str, idempotency_key: str) -> ExperimentRecord | None:
        query = self._shown().where(experiment.c.idempotency_key == _stored_key(project, idempotency_key))
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else record(row)

    def get(self, public_id: str) -> ExperimentRecord:
        """Return an experiment by its public id. Raise NotFound if there is none."""
        return self._one(experiment.c.public_id == public_id, public_id)

    def by_id(self, experiment_id: int) -> ExperimentRecord:
        """Return an experiment by its internal id. Raise NotFound if there is none."""
        return self._one(experiment.c.id == experiment_id, str(experiment_id))

    def _one(self, condition: ColumnElement[bool], shown: str) -> ExperimentRecord:
        with self._database.read() as connection:
            return one(connection, condition & self._visible(), f"{shown}{in_project(self._project)}")

    def _visible(self) -> ColumnElement[bool]:
        return true() if self._project is None else experiment.c.project == self._project

    def _shown(self) -> Select[Any]:
        """Return a query for the experiments of this store's project, or for all experiments if the store has no project."""
        return select(*COLUMNS).where(self._visible())

    def named(self, name: str) -> list[ExperimentRecord]:
        """Return all experiments with exactly this name, newest first."""
        query = self._shown().where(experiment.c.name == name).order_by(experiment.c.id.desc())
        with self._database.read() as connection:
            return [record(row) for row in connection.execute(query).mappings()]

    def newest_names(self, count: int) -> list[str]:
        """Return the names of the `count` newest experiments that are not archived."""
        query = select(experiment.c.name).where(self._visible(), experiment.c.archived_at.is_(None))
        with self._database.read() as connection:
            return list(connection.execute(query.order_by(experiment.c.id.desc()).limit(count)).scalars())

    def page(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        project: str | None = None,
        tags: Sequence[str] = (),
        archived: bool | None = False,
        sort: str | None = None,
        page_size: int = 50,
        page_token: str | None = None,
    ) -> Page[ExperimentRecord]:
        """Return a page of experiments, newest first or in the order of a column.

        Args:
            state: only experiments in this state.
            name: only experiments with this text in their names.
            project: only experiments of this project.
            tags: only experiments that have all of these tags, each "key" or "key=value".
            archived: True: only archived experiments. False: only experiments that are not archived. None: all.
            sort: a name in SORTED_BY, with "-" before it for descending order. Experiments without a value come last.
            page_size: the maximum number of experiments on the page.
            page_token: `next_token` of the previous page.
        """
        query = self._shown()
        if project is not None:
            query = query.where(experiment.c.project == project)
        if state is not None:
            query = query.where(experiment.c.state == state)
        if name is not None:
            query = query.where(experiment.c.name.icontains(name, autoescape=True))
        if archived is not None:
            query = query.where(
                experiment.c.archived_at.is_not(None) if archived else experiment.c.archived_at.is_(None)
            )
        for tag in tags:
            query = query.where(self._has(tag))
        if sort is not None:
            return self._sorted(query, sort, page_size, page_token)
        if page_token is not None:
            query = query.where(experiment.c.id < number(page_token))
        with self._database.read() as connection:
            return page(connection, query.order_by(experiment.c.id.desc()), page_size, record, lambda found: found.id)

    def _sorted(self, query: Select[Any], sort: str, size: int, token: str | None) -> Page[ExperimentRecord]:
        name, descending = sort.removeprefix("-"), sort.startswith("-")
        if name == "method":  # the only column whose expression names its parts several times
            kinds = self._kinds(query)
            query = query.join(kinds, kinds.c.id == experiment.c.id)
            key = _method(kinds)
        else:
            key = self._sort_key(name)
        keys = self._materialized(query, sort_key=key)
        column = keys.c.sort_key
        ordered = select(*COLUMNS, column).join(keys, keys.c.id == experiment.c.id)
        if token is not None:
            last = decoded(token, sort, column.type.python_type)
            ordered = ordered.where(behind(column, descending, experiment.c.id, last))
        ordered = ordered.order_by(column.is_(None), column.desc() if descending else column, experiment.c.id.desc())
        with self._database.read() as connection:
            rows = connection.execute(ordered.limit(size + 1)).mappings().all()
        read = [dict(row) for row in rows]
        values = [row.pop("sort_key") for row in read]
        found = [record(row) for row in read[:size]]
        following = encoded(sort, Place(values[size - 1], found[-1].id)) if len(read) > size else None
        return Page(tuple(found), following)

    def _materialized(self, query: Select[Any], **columns: ColumnElement[Any]) -> CTE:
        """Return the ids of the experiments in a query with further columns, which the database computes once for each.

        Otherwise it computes an expression again wherever the statement names it, and some of them parse a spec.
        """
        labelled = [column.label(name) for name, column in columns.items()]
        return query.with_only_columns(experiment.c.id, *labelled).cte().prefix_with("MATERIALIZED")

    def _kinds(self, query: Select[Any]) -> CTE:
        """Return the types of the searcher and the scheduler in each spec, and of those that were chosen for it."""
        # Each spec is rewritten and checked only once, as it may be long.
        written = self._materialized(query, text=self._accepted(experiment.c.spec))
        checked = select(written.c.id, self._valid(written.c.text).label("text")).cte().prefix_with("MATERIALIZED")
        spec = self._parsed(checked.c.text)
        parts = {
            "search": spec["search", "type"],
            "scheduler": spec["scheduler", "type"],
            "resolved_search": spec["resolved", "search", "type"],
            "resolved_scheduler": spec["resolved", "scheduler", "type"],
        }
        labelled = [part.as_string().label(name) for name, part in parts.items()]
        return select(checked.c.id, *labelled).cte().prefix_with("MATERIALIZED")

    def _sort_key(self, name: str) -> ColumnElement[Any]:
        """Return the SQL expression by which to sort, given the name of a column in the list."""
        c = experiment.c
        match name:
            case "name":
                return type_coerce(func.lower(c.name), Text)
            case "state":
                return type_coerce(c.state, Text)
            case "started":
                return func.coalesce(c.started_at, c.created_at)
            case "duration":
                return c.ended_at - c.started_at - c.paused_s
            case "best":
                best: ColumnElement[Any] = self._json(c.best)["value"].as_float()
                return best
            case "trials":
                counts = self._json(c.counts)
                ended = [func.coalesce(counts[str(one)].as_integer(), 0) for one in TrialState if one.ended]
                return sum(ended[1:], start=ended[0])
            case _:
                expected = f"; expected one of {', '.join(SORTED_BY)}"
                raise SpecError(f"unknown column {name!r}{did_you_mean(name, SORTED_BY) or expected}", "/sort")

    def _json(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Cast a column of JSON text to JSON; see `_accepted`, `_valid` and `_parsed`."""
        return self._parsed(self._valid(self._accepted(column)))

    def _accepted(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Replace what Python writes, and the databases refuse: one row with such a parameter would break the whole list."""
        text: ColumnElement[Any] = type_coerce(column, Text)
        for written, accepted in _ACCEPTED:
            text = func.replace(text, written, accepted)
        return text

    def _valid(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Replace text that is not JSON with NULL. PostgreSQL has a function for this only since version 16."""
        dialect = self._database.engine.dialect
        if dialect.name == "sqlite":
            return case((func.json_valid(text) == 1, text))
        if (getattr(dialect, "server_version_info", None) or (0,)) >= (16,):
            return case((func.pg_input_is_valid(text, literal_column("'json'")), text))
        return text

    def _parsed(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Cast text to JSON. SQLite has no JSON type, and reads the text directly."""
        return type_coerce(text, JSON) if self._database.backend == "sqlite" else cast(text, JSON)

    def with_a_best(self, project: str, looked_at: int) -> Iterator[ExperimentRecord]:
        """Iterate over the experiments that have a best trial and still have all of their points, newest first.

        Args:
            project: only experiments of this project.
            looked_at: how many of the project's newest experiments to look at, not counting archived ones.
        """
        if self._project not in (None, project):
            return iter(())
        rows = self._database.rows(_WITH_A_BEST, (project, looked_at))
        # Build each record only when it is needed: the caller often needs only the first one, and a large spec takes some time.
        return (found for row in rows if (found := _record_of(row)).best is not None)

    def tally(self) -> Tally:
        """Count the experiments and the trials in each state, and sum up the GPU seconds of each project."""
        found = Tally()
        with self._database.read() as connection:
            c = experiment.c
            columns = (c.project, c.state, type_coerce(c.counts, Text), c.gpu_hours, c.gpu_hours_saved)
            for project, state, text, used, saved in connection.execute(select(*columns).where(self._visible())):
                counts = _counts(readable(text, "counts"))
                state = read_state(ExperimentState, state)
                found.experiments[project, str(state)] += 1
                found.gpu_seconds[project] += 3600 * used
                found.gpu_seconds_saved[project] += 3600 * saved
                for of_trial, count in counts.items():
                    found.trials[project, str(of_trial)] += count
        return found

    def projects(self) -> list[ProjectTotals]:
        """Return the totals of each project that has experiments, ordered by name."""
        c = experiment.c
        open_states = [state for state in ExperimentState if not state.ended]
        query = (
            select(
                c.project,
                func.count(),
                func.count(c.archived_at),
                func.count(case((c.state.in_(open_states), 1))),
                func.sum(c.gpu_hours),
                func.sum(c.gpu_hours_saved),
                func.sum(c.cpu_hours),
                func.max(c.created_at),
            )
            .where(self._visible())
            .group_by(c.project)
            .order_by(c.project)
        )
        with self._database.read() as connection:
            return [ProjectTotals(*row) for row in connection.execute(query)]

    def _has(self, tag: str) -> ColumnElement[bool]:
        """Return an SQL condition that is true if the experiment has this tag. Tags are stored as JSON text."""
        key, given, value = tag.partition("=")
        part = f"{dumps(key)}:{dumps(value) if given else ''}"
        find = func.instr if self._database.backend == "sqlite" else func.strpos
        return find(type_coerce(experiment.c.tags, Text), part) > 0

    def change(
        self,
        experiment_id: int,
        changes: Mapping[str, Any],
        *,
        revision: int | None = None,
        commands: Sequence[tuple[str, str, Mapping[str, Any]]] = (),
        adopt: bool = False,
        request: Request | None = None,
        now: float | None = None,
    ) -> None:
        """Change the spec as `Spec.amended` does, and send commands to the driver, all in one transaction.

        Args:
            experiment_id: the internal id.
            changes: the options to replace.
            revision: the revision from which the changes were computed. If given, the experiment must still be at this
                revision.
            commands: (name, reason, payload) of each command.
            adopt: True to hand the experiment over to the service if a script created it and it has ended.
            request: the user's request that needs this, if it has an idempotency key. If it was sent before, do nothing.
            now: the current time.

        Raises:
            Conflict: another request was sent with the idempotency key.
            Stale: the experiment was changed after `revision`, or by another process during the call.
            NotFound: there is no such experiment.
        """
        with self._database.write() as cursor:
            rows = cursor.rows(_READ, (experiment_id,))
            if not rows:
                raise NotFound(f"no experiment with the internal id {experiment_id}")
            [(stored, present, spec)] = rows
            if request is not None:
                lock(cursor, experiment_id)  # in PostgreSQL, another process may be sending the same request
                if is_sent(cursor, experiment_id, request):
                    return
            if revision is not None and revision != present:
                raise _stale(present, revision)
            if changes:
                merged = dict(json.loads(stored or "{}"))
                for name, value in changes.items():
                    merged[name] = {**merged.get(name, {}), **value} if name in SECTIONS else value
                whole = {**json.loads(spec), **merged}
                values = (dumps(merged), clean(whole["name"]), dumps(whole.get("tags", {})), experiment_id, present)
                cursor.execute(_CHANGE, values)
                if cursor.rowcount != 1:  # in PostgreSQL, another process can commit between the two statements
                    raise Stale(
                        f"the experiment has been changed in the meantime: it is no longer at revision {present}"
                    )
            if commands:
                # In PostgreSQL, another process may have deleted the experiment in the meantime.
                lock(cursor, experiment_id)
            for number, (name, reason, payload) in enumerate(commands, 1):
                asked = request if number == len(commands) else None
                insert(cursor, experiment_id, name, None, reason, payload, at(now), asked)
            if adopt:
                adopt_ended(cursor, experiment_id)

    def check_revision(self, record: ExperimentRecord, revision: int | None) -> None:
        """Raise Stale if a revision is given and the experiment's revision differs."""
        if revision is not None and revision != record.revision:
            raise _stale(record.revision, revision)

    def seize(self, experiment_id: int, epoch: int | None = None, now: float | None = None) -> bool:
        """Take the experiment away from its driver, so that it can be removed.

        If `epoch` is given, and a driver has claimed the experiment since then, do nothing and return False.
        """
        return removal.seize(self._database, experiment_id, epoch, at(now))

    def keep_seized(self, experiment_id: int, now: float | None = None, *, forever: bool = False) -> bool:
        """Renew the lease that `seize` has begun, or let it never end.

        Return False if the lease had ended and a driver has claimed the experiment, or if there is no such experiment any more.
        """
        return removal.keep(self._database, experiment_id, math.inf if forever else at(now) + removal.LEASE_S)

    def give_back(self, record: ExperimentRecord) -> None:
        """Undo `seize` after it has returned True. `record` is the experiment as it was before."""
        removal.give_back(self._database, record)

    def remove(self, experiment_id: int) -> None:
        """Delete the experiment and all its rows. Call `seize` first. Raise NotFound if there is no such experiment."""
        removal.remove(self._database, experiment_id)

    def finish_removals(self) -> int:
        """Finish each `remove` that was interrupted after it had deleted a row, and return their number."""
        return removal.finish(self._database)

    def archive(self, experiment_id: int, archived: bool, now: float | None = None) -> None:
        """Hide an experiment from lists, or show it again.

        Raise Conflict if it is to be hidden, but is running or about to be continued.
        """
        with self._database.write() as cursor:
            cursor.execute(_LOCK, (experiment_id,))  # in PostgreSQL, another process may be adding such a command
            if archived and (found := cursor.value(_RUNS, (experiment_id,))) is not None:
                raise Conflict(f"{found} is about to run again and cannot be archived before it has ended")
            cursor.execute(_ARCHIVE, (at(now) if archived else None, experiment_id))

    def progress(self, experiment_id: int) -> Progress:
        """Return the progress of an experiment, with one cheap query. Raise NotFound if there is no such experiment."""
        found = self.progress_of([experiment_id])
        if not found:
            raise NotFound(f"no experiment with the internal id {experiment_id}")
        return found[experiment_id]

    def progress_of(self, experiment_ids: Sequence[int]) -> dict[int, Progress]:
        """Return the progress of several experiments, with one query. Experiments that do not exist are left out."""
        if not experiment_ids:
            return {}
        names = ("id", *(one.name for one in dataclasses.fields(Progress)))
        query = select(*(column for column in COLUMNS if column.name in names))
        query = query.where(experiment.c.id.in_(experiment_ids))
        with self._database.read() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return {row.pop("id"): _progress(row) for row in rows}


def _progress(row: dict[str, Any]) -> Progress:
    row["state"] = read_state(ExperimentState, row["state"])
    return Progress(**row)


def _method(kinds: CTE) -> ColumnElement[Any]:
    """Return the SQL expression for the types of the searcher and the scheduler; see `Experiments._kinds`."""
    scheduler = func.coalesce(kinds.c.resolved_scheduler, kinds.c.scheduler)
    search = case((kinds.c.resolved_scheduler.is_(None), kinds.c.search), else_=kinds.c.resolved_search)
    both = search + " + " + scheduler
    return type_coerce(case((func.coalesce(search, scheduler) == scheduler, scheduler), else_=both), Text)


def _stale(present: int, given: int) -> Stale:
    return Stale(f"the experiment has been changed in the meantime: it is at revision {present}, not {given}")


def record(row: Any) -> ExperimentRecord:
    """Return the record of an experiment from a row with the columns `COLUMNS`."""
    parts, damaged = dict(row), list[str]()
    try:
        first, unknown = _spec(parts["spec"])
    except (ValueError, RecursionError):
        first, unknown = Spec.read({})
        first = dataclasses.replace(first, project=parts["project"])
        damaged.append("spec")
    for name in ("changes", "best", "counts", "pauses"):
        parts[name] = _decoded(parts[name], name, damaged)
    parts["changes"], more = known(parts["changes"] or {})
    parts["unknown"], parts["damaged"] = (*dict.fromkeys([*unknown, *more]),), (*damaged,)
    parts["first_spec"], parts["spec"] = first, first.amended(parts["changes"]) if parts["changes"] else first
    stored = str(parts["state"])
    parts["state"] = read_state(ExperimentState, stored)
    parts["unknown_state"] = None if is_state(ExperimentState, stored) else stored
    parts["counts"] = _counts(parts["counts"])
    best = parts["best"] or {}
    parts["no_best"] = best.get("why")
    parts["best"] = best if "trial_number" in best else None
    return ExperimentRecord(**parts)


def _decoded(text: str | None, name: str, damaged: list[str]) -> Any:
    """Return the JSON value of a column. If there is none of its type, return None and add the column's name to `damaged`."""
    value = readable(text, name)
    if value is None and text not in (None, "null"):
        damaged.append(name)
    return value


def _counts(stored: Mapping[str, int] | None) -> dict[str, int]:
    """Return the numbers of trials by state. States that only another version knows count as the one that stands in for them."""
    counts = stored or {}
    if all(is_state(TrialState, state) for state in counts):
        return dict(counts)
    found = Counter[str]()
    for state, count in counts.items():
        found[str(read_state(TrialState, state))] += count
    return dict(found)


@functools.lru_cache(maxsize=1000)
def _spec(text: str) -> tuple[Spec, list[str]]:
    """Return `Spec.read` of this JSON form. Raise ValueError if it is not the JSON of an object.

    Clients read the same experiments again and again. Parsing the spec takes a third of the time that an experiment in a
    list costs.
    """
    if not isinstance(found := json.loads(text), dict):
        raise ValueError("a spec is an object")
    return Spec.read(found)


def _record_of(values: Sequence[Any]) -> ExperimentRecord:
    """Return the record of an experiment from the values of the columns `COLUMNS`, as the database's driver returns them."""
    return record(dict(zip((column.name for column in COLUMNS), values, strict=True)))


def one(connection: Connection, condition: ColumnElement[bool], shown: str) -> ExperimentRecord:
    """Return the experiment that meets the condition. If there is none, raise NotFound with `shown` in the message."""
    row = connection.execute(select(*COLUMNS).where(condition)).mappings().first()
    if row is None:
        raise NotFound(f"no experiment {shown}")
    return record(row)


def _insert(
    cursor: Cursor, spec: Spec, public_id: str, source: str, key: str | None, now: float
) -> ExperimentRecord | str:
    """Insert an experiment and return its record, or return the id of the experiment that has this idempotency key."""
    stored = dumps(spec)
    values = (
        public_id,
        clean(spec.name),
        ExperimentState.PENDING.value,
        stored,
        SPEC_VERSION,
        spec.seed,
        source,
        _stored_key(spec.project, key),
        spec.code,
        spec.project,
        now,
        dumps(spec.tags),
    )
    row = cursor.value(_INSERT, values)
    if row is not None:
        return ExperimentRecord(
            **_NEW,
            id=row,
            public_id=public_id,
            spec=spec,
            first_spec=spec,
            source=source,
            code_hash=spec.code,
            project=spec.project,
            created_at=now,
            counts={},
            changes={},
        )
    [(found, earlier)] = cursor.rows(
        "SELECT public_id, spec FROM experiment WHERE idempotency_key = ?", (_stored_key(spec.project, key),)
    )
    _compare(Spec.read(json.loads(earlier))[0].to_json(), json.loads(stored), key)
    return str(found)


def _stored_key(project: str, key: str | None) -> str | None:
    """Return the stored form of an idempotency key, which includes the project, so that two projects can use the same key.

    A line break separates the two, because the key comes from an HTTP header, which cannot contain line breaks.
    """
    return clean(key) if key is None or project == DEFAULT_PROJECT else f"{project}\n{clean(key)}"


def _compare(stored: Mapping[str, Any], asked: Mapping[str, Any], key: str | None) -> None:
    """Raise Conflict if two specs come from different requests. Differences in the entrypoint's files do not count."""
    requests = stored.get("fork_request"), asked.get("fork_request")
    if None not in requests and requests[0] == requests[1]:
        return  # the original of this fork may have changed since then
    if _asked(stored) != _asked(asked):
        raise Conflict(f"the idempotency key {key!r} was used before, with another spec")


def _asked(spec: Mapping[str, Any]) -> Any:
    """Return the part of a stored spec that came from the request."""
    found = {**spec, "earlier": None, "resolved": None, "fork_request": None}
    if spec["earlier"].get("of_project"):
        found["warm_start"] = None  # the request had none; the project's settings may have changed since then
    return _plain({**found, "code": None} if spec.get("entrypoint") else found)


def _plain(value: Any) -> Any:
    return json.loads(dumps(value))
