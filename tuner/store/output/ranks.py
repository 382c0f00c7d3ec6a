"""Store the resource usage of ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select

from tuner.errors import NotFound
from tuner.store.records import UsageSample, UsageSeries
from tuner.store.running import RunningClock
from tuner.store.series.clocks import clock
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database
from tuner.store.sql.tables import experiment, rank_usage, segment, trial

# One query for all segments keeps the transaction short: the driver cannot commit until it ends.
_SEGMENTS = """
SELECT t.number, s.ordinal, s.id FROM segment s JOIN trial t ON t.id = s.trial_id
WHERE t.experiment_id = ? AND t.number IN ({numbers}) AND s.ordinal IN ({ordinals})"""
_AT_ONCE = 200  # the maximum number of segments in one query
_USAGE_COLUMNS = [column.name for column in rank_usage.c if column.name != "segment_id"]
_USAGE = f"""
INSERT INTO rank_usage (segment_id, {", ".join(_USAGE_COLUMNS)})
VALUES (?, {", ".join("?" * len(_USAGE_COLUMNS))}) ON CONFLICT DO NOTHING"""
_USAGE_THIN = "DELETE FROM rank_usage WHERE segment_id = ? AND sample_no - (sample_no / ?) * ? <> 0"


class Ranks:
    """The resource usage of ranks, in the experiments of one project or of all projects."""

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project

    def add_usage(
        self, experiment_id: int, samples: Sequence[UsageSample], *, keep: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        """Add samples of the resource usage of ranks. Ignore samples that are already stored or whose segment is not stored.

        keep: maps (trial, segment) to n. The segment's stored samples whose sample number is not a multiple of n are deleted.
        """
        keep = keep or {}
        with self._database.write() as cursor:
            ids = _segment_ids(cursor, experiment_id, {(s.trial, s.segment) for s in samples} | keep.keys())
            for key, every in keep.items():
                if key in ids:
                    cursor.execute(_USAGE_THIN, (ids[key], every, every))
            rows = [
                (ids[s.trial, s.segment], *(getattr(s, name) for name in _USAGE_COLUMNS))
                for s in samples
                if (s.trial, s.segment) in ids
            ]
            if rows:
                cursor.executemany(_USAGE, rows)

    def usage(self, trial_public_id: str, *, rank: int | None = None, segment: int | None = None) -> list[UsageSeries]:
        """Return the resource usage of a trial's ranks, by (segment, rank). Raise NotFound if there is no such trial."""
        query = _of_ranks(rank_usage, trial_public_id, rank, segment).order_by(rank_usage.c.sample_no)
        with self._database.read() as connection:
            owner = select(trial.c.experiment_id).where(trial.c.public_id == trial_public_id)
            if self._project is not None:
                owner = owner.join(experiment, experiment.c.id == trial.c.experiment_id)
                owner = owner.where(experiment.c.project == self._project)
            if (experiment_id := connection.execute(owner).scalar()) is None:
                raise NotFound(f"no trial {trial_public_id}")
            running = clock(connection, experiment_id)
            found: dict[tuple[int, int], list[Any]] = {}
            for row in connection.execute(query):
                found.setdefault((row.ordinal, row.rank), []).append(row)
        return [_series(of, by, rows, running) for (of, by), rows in found.items()]


def _segment_ids(cursor: Cursor, experiment_id: int, keys: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return a dict from (trial number, ordinal) to id, for the segments that are stored."""
    found: dict[tuple[int, int], int] = {}
    wanted = sorted(keys)
    for first in range(0, len(wanted), _AT_ONCE):
        part = wanted[first : first + _AT_ONCE]
        numbers, ordinals = ({key[at] for key in part} for at in (0, 1))
        query = _SEGMENTS.format(numbers=_marks(numbers), ordinals=_marks(ordinals))
        rows = cursor.rows(query, (experiment_id, *numbers, *ordinals))
        found |= {(number, ordinal): row_id for number, ordinal, row_id in rows}
    return {key: found[key] for key in wanted if key in found}


def _marks(values: Collection[int]) -> str:
    return ", ".join("?" * len(values))


def _of_ranks(table: Any, trial_public_id: str, rank: int | None, ordinal: int | None) -> Select[Any]:
    query = (
        select(segment.c.ordinal, segment.c.started_at, table)
        .join(segment, segment.c.id == table.c.segment_id)
        .join(trial, trial.c.id == segment.c.trial_id)
        .where(trial.c.public_id == trial_public_id)
        .order_by(segment.c.ordinal, table.c.rank)
    )
    if rank is not None:
        query = query.where(table.c.rank == rank)
    return query if ordinal is None else query.where(segment.c.ordinal == ordinal)


def _series(ordinal: int, rank: int, rows: Sequence[Any], running: RunningClock) -> UsageSeries:
    same = ("rss_bytes", "gpu_bytes", "gpu_reserved_bytes", "gpu_percent")
    return UsageSeries(
        segment=ordinal,
        rank=rank,
        x=running.seconds([row.time for row in rows]).tolist(),
        cpu_percent=_cpu_percent(rows),
        **{name: [getattr(row, name) for row in rows] for name in same},
    )


def _cpu_percent(rows: Sequence[Any]) -> list[float | None]:
    """Return the CPU usage between each sample and the previous sample; for the first sample, since the segment's start."""
    time, used = rows[0].started_at, 0.0
    percents: list[float | None] = []
    for row in rows:
        known = time is not None and row.time > time
        percents.append(max(0.0, 100.0 * (row.cpu_s - used) / (row.time - time)) if known else None)
        time, used = row.time, row.cpu_s
    return percents
