"""Trials, their segments and their checkpoints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, func, select, text

from tuner.domain.events import Drawn
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState, is_state, read_state
from tuner.errors import NotFound
from tuner.names import in_project
from tuner.store import columns
from tuner.store.commands import insert, lock
from tuner.store.records import (
    CheckpointRecord,
    Page,
    SegmentRecord,
    Training,
    TrialOutcome,
    TrialRecord,
    TrialRows,
    TrialSample,
    TrialSegment,
)
from tuner.store.sql.database import Database, at
from tuner.store.sql.paging import number, page
from tuner.store.sql.tables import NO_REPORT, checkpoint, event, experiment, segment, trial

_TRIAL = [*trial.c, experiment.c.public_id.label("experiment")]
_OUTCOME = (trial.c.number, trial.c.repeat_of, trial.c.state, trial.c.params, trial.c.space_revision)
_OTHER_NAMES = {"start_step": "start_iteration", "config": "params"}
_SEGMENT = [c.label(_OTHER_NAMES.get(c.name, c.name)) for c in segment.c if c.name != "trial_id"]
_PIN = "UPDATE checkpoint SET pinned = ? WHERE public_id = ? AND pinned <> ? AND (pinned OR state <> 'deleted')"


class Trials:
    """The trials in the experiments of one project, or of all projects."""

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project
        self._sorter = columns.Sorter()

    def get(self, public_id: str) -> TrialRecord:
        """Return a trial with its segments. Raise NotFound if there is none."""
        with self._database.read() as connection:
            row = (
                connection.execute(self._only_shown(_trials()).where(trial.c.public_id == public_id)).mappings().first()
            )
            if row is None:
                raise NotFound(f"no trial {public_id}{in_project(self._project)}")
            segments = connection.execute(_segments().where(segment.c.trial_id == row["id"])).mappings()
            return _trial(row, tuple(_segment(part) for part in segments))

    def page(
        self, experiment_id: int, *, state: str | None = None, page_size: int = 100, page_token: str | None = None
    ) -> Page[TrialRecord]:
        """Return a page of an experiment's trials, without segments, ordered by number."""
        query = _trials_of(experiment_id).order_by(trial.c.number)
        if state is not None:
            query = query.where(trial.c.state == state)
        if page_token is not None:
            query = query.where(trial.c.number > number(page_token))
        with self._database.read() as connection:
            return page(connection, query, page_size, _trial, lambda found: found.number)

    def sorted_page(
        self,
        experiment_id: int,
        *,
        sort: str = "number",
        where: Sequence[str] = (),
        state: str | None = None,
        page_size: int = 100,
        page_token: str | None = None,
        fronts: bool = False,
    ) -> tuple[TrialRows, int]:
        """Return a page of the trials that match, without segments, and the total number of trials that match.

        Args:
            experiment_id: the internal id.
            sort: a column, with a minus before it for descending order: `number`, `state`, `best_value`, `params.NAME`,
                `last.METRIC`, ... Ties are ordered by number; trials without a value come last. If sorted by `best_value` or
                `expected_value`, trials that violate the constraints come after those that do not.
            where: conditions such as ``best_value>=0.5`` that must all hold; ``~`` searches a text for a substring.
            state: only trials in this state.
            page_size: the maximum number of trials on the page.
            page_token: `next_token` of the previous page.
            fronts: sort the trials into fronts by the newest values of all objectives, and return the front of each trial.

        Raises:
            SpecError: a name or a condition is wrong.
        """
        conditions = columns.parsed(where, state)
        with self._database.cursor() as (cursor, connection):
            places, token, total = self._sorter.page(
                cursor, experiment_id, sort, conditions, page_size, page_token, fronts
            )
            items = numbered(connection, experiment_id, list(places))
            return TrialRows(items, token, tuple(places[item.number] for item in items)), total

    def matching(self, experiment_id: int, where: Sequence[str]) -> list[int]:
        """Return the numbers of the trials that meet all of these conditions, in order.

        The conditions are written as for `sorted_page`. Raise SpecError if a name or a condition is wrong.
        """
        conditions = columns.parsed(where, None)
        with self._database.cursor() as (cursor, _):
            return self._sorter.matching(cursor, experiment_id, conditions)

    def numbers(self, public_ids: Sequence[str]) -> dict[str, int]:
        """Return a dict from public id to number, for the trials that exist."""
        found: dict[str, int] = {}
        with self._database.read() as connection:
            for at in range(0, len(public_ids), 1000):  # a statement takes a limited number of parameters
                query = select(trial.c.public_id, trial.c.number).where(
                    trial.c.public_id.in_(public_ids[at : at + 1000])
                )
                found.update((str(row.public_id), int(row.number)) for row in connection.execute(query))
        return found

    def configurations(self, experiment_id: int, numbers: Sequence[int]) -> list[tuple[int, Mapping[str, Any], int]]:
        """Return (number, flat params, revision of the params' search space) of these trials, ordered by number."""
        query = select(trial.c.number, trial.c.params, trial.c.space_revision)
        query = query.where(trial.c.experiment_id == experiment_id)
        found: list[tuple[int, Mapping[str, Any], int]] = []
        with self._database.read() as connection:
            for at in range(0, len(numbers), 1000):  # a statement takes a limited number of parameters
                part = query.where(trial.c.number.in_(numbers[at : at + 1000]))
                found += [(of, params, revision) for of, params, revision in connection.execute(part)]
        return sorted(found, key=lambda one: one[0])

    def sample(self, experiment_id: int, objectives: Sequence[Objective], size: int) -> TrialSample:
        """Return at most `size` trials: the best ones, and others that are spread evenly over the rest of the ranking.

        After repeats, trials rank by the expected values of their configurations. With several objectives, they rank by front,
        and the trials of a front share a rank. Trials that violate the constraints rank after those that do not. If there are no
        more than `size` trials, return all of them.
        """
        with self._database.cursor() as (cursor, connection):
            places, total = self._sorter.sample(cursor, experiment_id, _best_first(objectives), size)
            trials: list[TrialRecord] = []
            numbers = sorted(places)
            for at in range(0, len(numbers), 1000):  # a statement takes a limited number of parameters
                trials += numbered(connection, experiment_id, numbers[at : at + 1000])
            ranks, fronts = zip(*(places[found.number] for found in trials), strict=True) if trials else ((), ())
            return TrialSample(tuple(trials), ranks, fronts, total)

    def sample_numbers(self, experiment_id: int, objectives: Sequence[Objective], size: int) -> list[int]:
        """Return the numbers of the trials that `sample` returns, in order."""
        with self._database.cursor() as (cursor, _):
            return sorted(self._sorter.sample(cursor, experiment_id, _best_first(objectives), size)[0])

    def trained(self, experiment_id: int, longest: float) -> int:
        """Return how many iterations all completed and stopped trials have trained, including repeated ones.

        Iterations after `longest` do not count.
        """
        within = trial.c.reports - case((trial.c.iteration > longest, trial.c.iteration - longest), else_=0)
        query = select(func.sum(case((within > 0, within), else_=0))).where(
            trial.c.experiment_id == experiment_id, trial.c.state.in_([TrialState.COMPLETED, TrialState.STOPPED])
        )
        with self._database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def spans(self, experiment_id: int) -> list[tuple[float, float | None]]:
        """Return (start, end) of each segment of the experiment's trials, ordered by start.

        The end is None while a segment runs. Segments that never started are left out.
        """
        query = select(segment.c.started_at, segment.c.ended_at).join(trial, trial.c.id == segment.c.trial_id)
        query = query.where(trial.c.experiment_id == experiment_id, segment.c.started_at.is_not(None))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(segment.c.started_at)).all()
            return [(float(start), None if end is None else float(end)) for start, end in rows]

    def cold_start(self, experiment_id: int) -> float | None:
        """Return how long the newest cold starts took, in seconds: the median of at most 20; None if there was none.

        The time for which a start waited for resources does not count.
        """
        took = func.coalesce(segment.c.held_s, segment.c.startup_s)
        query = select(took).join(trial, trial.c.id == segment.c.trial_id)
        query = query.where(trial.c.experiment_id == experiment_id, segment.c.startup_s.is_not(None))
        query = query.where(segment.c.warm.is_not(True)).order_by(segment.c.started_at.desc()).limit(20)
        with self._database.read() as connection:
            found = [float(one) for one in connection.execute(query).scalars()]
        return statistics.median(found) if found else None

    def training(self, experiment_id: int) -> tuple[Training, Training]:
        """Return the training of all trials, and the training of the search, that is, of the trials that are not repeats."""
        sums = (func.sum(trial.c.reports), func.sum(trial.c.iteration), func.sum(trial.c.running_s))
        query = select(trial.c.repeat_of.is_(None), *sums).where(trial.c.experiment_id == experiment_id)
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(trial.c.repeat_of.is_(None))).all()
        every, searched = Training(0, 0, 0.0), Training(0, 0, 0.0)
        for searches, reports, iterations, seconds in rows:
            found = Training(int(reports), int(iterations), float(seconds))
            every = Training(
                every.reports + found.reports, every.iterations + found.iterations, every.seconds + found.seconds
            )
            searched = found if searches else searched
        return every, searched

    def newest(self, experiment_id: int, count: int) -> list[TrialRecord]:
        """Return the last `count` trials by number, without segments."""
        query = _trials_of(experiment_id).order_by(trial.c.number.desc()).limit(count)
        with self._database.read() as connection:
            return [_trial(row) for row in connection.execute(query).mappings()][::-1]

    def ended(self, experiment_id: int) -> list[int]:
        """Return the numbers of the trials that have ended, in order. This reads only an index."""
        ended = [state for state in TrialState if state.ended]
        query = select(trial.c.number).where(trial.c.experiment_id == experiment_id, trial.c.state.in_(ended))
        with self._database.read() as connection:
            return sorted(connection.execute(query).scalars())

    def results(self, experiment_id: int, trials: Sequence[int]) -> list[TrialOutcome]:
        """Return the best value of each trial that has one, with the params that led to it."""
        query = select(*_OUTCOME, trial.c.best_params, trial.c.best_value)
        query = query.where(trial.c.experiment_id == experiment_id, trial.c.best_value.is_not(None))
        found: list[TrialOutcome] = []
        with self._database.read() as connection:
            for at in range(0, len(trials), 1000):  # a statement takes a limited number of parameters
                part = query.where(trial.c.number.in_(trials[at : at + 1000])).order_by(trial.c.number)
                for of, repeat_of, state, newest, revision, reached, value in connection.execute(part):
                    params, known = (newest, revision) if reached is None else (reached, None)
                    found.append(
                        TrialOutcome(of, repeat_of, read_state(TrialState, state), params, known, float(value))
                    )
        return found

    def last_values(self, experiment_id: int, trials: Sequence[int], metric: str) -> list[TrialOutcome]:
        """Return the newest value of a metric of each trial that has reported it, with the trial's current params."""
        query = select(*_OUTCOME, trial.c.last).where(trial.c.experiment_id == experiment_id)
        found: list[TrialOutcome] = []
        with self._database.read() as connection:
            for at in range(0, len(trials), 1000):  # a statement takes a limited number of parameters
                part = query.where(trial.c.number.in_(trials[at : at + 1000])).order_by(trial.c.number)
                for of, repeat_of, state, params, revision, last in connection.execute(part):
                    if isinstance(value := last.get(metric), int | float):
                        found.append(
                            TrialOutcome(of, repeat_of, read_state(TrialState, state), params, revision, float(value))
                        )
        return found

    def draws(self, experiment_id: int, most: int = 20_000) -> list[Mapping[str, Any]]:
        """Return the searcher's state in the last `Drawn` event of each trial (define-by-run), oldest first.

        It has the distributions of all parameters that the trial has drawn. If there are more than `most` trials, return those
        of the newest events.
        """
        seq = func.max(event.c.event_seq)
        last = select(seq).where(event.c.experiment_id == experiment_id, event.c.kind == Drawn.KIND)
        last = last.where(text(NO_REPORT))  # so that SQLite uses the index
        last = last.group_by(event.c.trial_number).order_by(seq.desc()).limit(most)
        query = select(event.c.payload).where(event.c.experiment_id == experiment_id, event.c.event_seq.in_(last))
        with self._database.read() as connection:
            return [row["state"] for row in connection.execute(query.order_by(event.c.event_seq)).scalars()]

    # -- segments and checkpoints --------------------------------------------------------------------------------------

    def segments(self, experiment_id: int) -> dict[int, tuple[SegmentRecord, ...]]:
        """Return a dict from trial number to the trial's segments in order, for every trial that has segments."""
        found: dict[int, list[SegmentRecord]] = {}
        with self._database.read() as connection:
            for row in connection.execute(_segments().where(trial.c.experiment_id == experiment_id)).mappings():
                found.setdefault(row["number"], []).append(_segment(row))
        return {of: tuple(records) for of, records in found.items()}

    def segment_page(
        self, experiment_id: int, *, causes: Sequence[str] = (), page_size: int = 100, page_token: str | None = None
    ) -> Page[TrialSegment]:
        """Return a page of the segments of all trials, in the order in which they were created.

        If `causes` is not empty, return only segments with one of these causes.
        """
        query = _segments().order_by(None).order_by(segment.c.id).where(trial.c.experiment_id == experiment_id)
        if causes:
            query = query.where(segment.c.cause.in_(causes))
        if page_token is not None:
            query = query.where(segment.c.id > number(page_token))
        with self._database.read() as connection:
            return page(
                connection,
                query,
                page_size,
                lambda row: TrialSegment(row["number"], _segment(row)),
                lambda item: item.segment.id,
            )

    def checkpoints(self, experiment_id: int, *, trial_number: int | None = None) -> list[CheckpointRecord]:
        """Return all checkpoints of an experiment or of one trial, oldest first, including deleted ones."""
        query = _checkpoints().where(trial.c.experiment_id == experiment_id).order_by(checkpoint.c.id)
        if trial_number is not None:
            query = query.where(trial.c.number == trial_number)
        with self._database.read() as connection:
            return [CheckpointRecord(**row) for row in connection.execute(query).mappings()]

    def saves(
        self, experiment_id: int, numbers: Sequence[int], most: int
    ) -> tuple[list[tuple[int, int, float, float]], float]:
        """Return when these trials' training waited for a checkpoint to be saved, and the total of all waits in seconds.

        Each wait is (trial, ordinal of its segment, start, end). The waits are ordered by start. If there are more than
        `most`, only the longest are returned, but the total includes all of them.
        """
        waits = (
            select(trial.c.number, segment.c.ordinal, checkpoint.c.taken_at, checkpoint.c.took_s)
            .join(segment, segment.c.id == checkpoint.c.segment_id)
            .join(trial, trial.c.id == segment.c.trial_id)
            .where(trial.c.experiment_id == experiment_id, trial.c.number.in_(numbers), checkpoint.c.took_s > 0)
        )
        with self._database.read() as connection:
            rows = connection.execute(waits.order_by(checkpoint.c.took_s.desc()).limit(most)).all()
            whole = sum(row.took_s for row in rows)
            if len(rows) == most:
                whole = connection.execute(select(func.sum(waits.subquery().c.took_s))).scalar() or 0.0
        found = [(int(of), int(ordinal), float(end - took), float(end)) for of, ordinal, end, took in rows]
        return sorted(found, key=lambda one: one[2]), float(whole)

    def checkpoint(self, public_id: str) -> CheckpointRecord:
        """Return a checkpoint. Raise NotFound if there is none."""
        query = self._only_shown(_checkpoints())
        with self._database.read() as connection:
            row = connection.execute(query.where(checkpoint.c.public_id == public_id)).mappings().first()
        if row is None:
            raise NotFound(f"no checkpoint {public_id}{in_project(self._project)}")
        return CheckpointRecord(**row)

    def checkpoint_page(
        self,
        experiment_id: int,
        *,
        trial_number: int | None = None,
        state: str | None = None,
        page_size: int = 100,
        page_token: str | None = None,
    ) -> Page[CheckpointRecord]:
        """Return a page of the checkpoints of an experiment or of one trial, newest first."""
        query = _checkpoints().add_columns(checkpoint.c.id).where(trial.c.experiment_id == experiment_id)
        if trial_number is not None:
            query = query.where(trial.c.number == trial_number)
        if state is not None:
            query = query.where(checkpoint.c.state == state)
        if page_token is not None:
            query = query.where(checkpoint.c.id < number(page_token))
        with self._database.read() as connection:
            rows = page(connection, query.order_by(checkpoint.c.id.desc()), page_size, dict, lambda row: int(row["id"]))
        items = tuple(CheckpointRecord(**{k: v for k, v in row.items() if k != "id"}) for row in rows.items)
        return Page(items, rows.next_token)

    def pin(self, experiment_id: int, public_id: str, pinned: bool, now: float | None = None) -> None:
        """Pin or unpin a checkpoint for a user, and add a command that tells the driver, in one transaction.

        A deleted checkpoint stays as it is. The driver marks a checkpoint as deleted before it deletes the files.

        Raise NotFound if the experiment has been deleted.
        """
        payload = {"checkpoint": public_id, "pinned": pinned}
        with self._database.write() as cursor:
            lock(cursor, experiment_id)
            cursor.execute(_PIN, (pinned, public_id, pinned))
            if cursor.rowcount == 1:  # otherwise the row already had this value, or the checkpoint is deleted
                insert(cursor, experiment_id, "pin", None, "by a user", payload, at(now))

    def objectives(
        self, experiment_id: int, metrics: Sequence[str]
    ) -> tuple[list[int], list[list[float]], list[float | None]]:
        """Return the numbers of the trials that have reported all of these metrics, their newest values, and when they ended.

        Trials that violate the constraints are left out. A trial that has not ended has None as its end.
        """
        query = select(trial.c.number, trial.c.last, trial.c.ended_at).where(trial.c.experiment_id == experiment_id)
        query = query.where(trial.c.feasible.is_not(False)).order_by(trial.c.number)
        numbers: list[int] = []
        values: list[list[float]] = []
        ends: list[float | None] = []
        with self._database.read() as connection:
            for found, last, ended_at in connection.execute(query):
                if last and all(name in last for name in metrics):
                    numbers.append(found)
                    values.append([math.nan if last[name] is None else float(last[name]) for name in metrics])
                    ends.append(ended_at)
        return numbers, values, ends

    def numbered(self, experiment_id: int, numbers: Sequence[int]) -> list[TrialRecord]:
        """Return the trials with these numbers, by number, without segments."""
        query = _trials().where(trial.c.experiment_id == experiment_id, trial.c.number.in_(numbers))
        with self._database.read() as connection:
            return [_trial(row) for row in connection.execute(query.order_by(trial.c.number)).mappings()]

    def segments_of(self, experiment_id: int, numbers: Sequence[int]) -> list[TrialSegment]:
        """Return the segments of the trials with these numbers. The segments of each trial are in order."""
        with self._database.read() as connection:
            return segments_of(connection, experiment_id, numbers)

    def _only_shown(self, query: Select[Any]) -> Select[Any]:
        """Restrict a query to the experiments of this store's project, if it is limited to one."""
        return query if self._project is None else query.where(experiment.c.project == self._project)


def _best_first(objectives: Sequence[Objective]) -> str:
    """Return the column by which the best trials come first, with a minus for descending order."""
    if len(objectives) > 1:
        return columns.FRONT
    return f"-{columns.EXPECTED}" if objectives[0].mode == "max" else columns.EXPECTED


def _trials() -> Select[Any]:
    return select(*_TRIAL).join(experiment, experiment.c.id == trial.c.experiment_id)


def _trials_of(experiment_id: int) -> Select[Any]:
    return _trials().where(trial.c.experiment_id == experiment_id)


def numbered(connection: Connection, experiment_id: int, numbers: Sequence[int]) -> tuple[TrialRecord, ...]:
    """Return the trials with these numbers, in the order of `numbers`."""
    query = _trials_of(experiment_id).where(trial.c.number.in_(numbers))
    found = {row["number"]: _trial(row) for row in connection.execute(query).mappings()}
    return tuple(found[number] for number in numbers if number in found)


def segments_of(connection: Connection, experiment_id: int, numbers: Sequence[int]) -> list[TrialSegment]:
    """Return the segments of the trials with these numbers. The segments of each trial are in order."""
    query = _segments().where(trial.c.experiment_id == experiment_id, trial.c.number.in_(numbers))
    return [TrialSegment(row["number"], _segment(row)) for row in connection.execute(query).mappings()]


def _trial(row: Any, segments: tuple[SegmentRecord, ...] = ()) -> TrialRecord:
    parts = dict(row)
    parts["best_params"] = parts["best_params"] if parts["best_params"] is not None else parts["params"]
    if not is_state(TrialState, stored := parts["state"]):
        parts["state"] = read_state(TrialState, stored)
        parts["reason"] = f"in a state that this version of tuner does not know ({stored}): {parts['reason']}"
    return TrialRecord(**parts, segments=segments)


def _segments() -> Select[Any]:
    source_segment, source_trial = segment.alias("source_segment"), trial.alias("source_trial")
    return (
        select(
            *_SEGMENT,
            trial.c.number,
            source_trial.c.number.label("source_trial"),
            source_segment.c.ordinal.label("source_ordinal"),
        )
        .join(trial, trial.c.id == segment.c.trial_id)
        .outerjoin(checkpoint, checkpoint.c.public_id == segment.c.source_checkpoint)
        .outerjoin(source_segment, source_segment.c.id == checkpoint.c.segment_id)
        .outerjoin(source_trial, source_trial.c.id == source_segment.c.trial_id)
        .order_by(segment.c.trial_id, segment.c.ordinal)
    )


def _segment(row: Any) -> SegmentRecord:
    parts = dict(row)
    del parts["number"]
    parts["placement"] = parts["placement"] or {}
    return SegmentRecord(**parts)


def _checkpoints() -> Select[Any]:
    return (
        select(
            checkpoint.c.public_id,
            trial.c.number.label("trial"),
            segment.c.ordinal.label("segment"),
            *checkpoint.c["step", "uri", "bytes", "state", "node", "pinned"],
            experiment.c.public_id.label("experiment"),
        )
        .join(segment, segment.c.id == checkpoint.c.segment_id)
        .join(trial, trial.c.id == segment.c.trial_id)
        .join(experiment, experiment.c.id == trial.c.experiment_id)
    )
