"""The queries behind lists, details and curves: rows in, records out. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, or_, select

from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import NotFound, SpecError
from tuner.store.records import (
    CheckpointRecord,
    CommandRecord,
    DecisionRecord,
    ExperimentRecord,
    LogChunk,
    Page,
    Progress,
    SegmentRecord,
    TrialRecord,
    TrialSegment,
    UsageSeries,
)
from tuner.store.tables import (
    checkpoint,
    command,
    decision,
    experiment,
    log_chunk,
    metric_key,
    rank_usage,
    segment,
    trial,
)

T = TypeVar("T")

_EXPERIMENT = [
    column for column in experiment.c if column.name not in ("name", "spec_version", "seed", "idempotency_key")
]
_ACTIVE = [ExperimentState.PENDING, ExperimentState.RUNNING, ExperimentState.PAUSING, ExperimentState.CANCELLING]
_TRIAL = [*trial.c, experiment.c.public_id.label("experiment")]


def experiment_by(connection: Connection, where: ColumnElement[bool], shown: str) -> ExperimentRecord:
    row = connection.execute(select(*_EXPERIMENT).where(where)).mappings().first()
    if row is None:
        raise NotFound(f"no experiment {shown}")
    return _experiment(row)


def progress(connection: Connection, experiment_id: int) -> Progress:
    found = progress_of(connection, [experiment_id])
    if not found:
        raise NotFound(f"no experiment with the internal id {experiment_id}")
    return found[experiment_id]


def progress_of(connection: Connection, experiment_ids: Sequence[int]) -> dict[int, Progress]:
    query = select(*experiment.c["id", "last_event_seq", "state", "reason", "error"])
    return {
        row.id: Progress(
            last_event_seq=row.last_event_seq, state=ExperimentState(row.state), reason=row.reason, error=row.error
        )
        for row in connection.execute(query.where(experiment.c.id.in_(experiment_ids)))
    }


def claimable(connection: Connection, now: float, leased_from: str | None = None) -> list[ExperimentRecord]:
    wanted = exists().where(
        command.c.experiment_id == experiment.c.id,
        command.c.state == "pending",
        command.c.command.in_(["resume", "cancel"]),
    )
    if leased_from is None:
        free = or_(experiment.c.lease_until.is_(None), experiment.c.lease_until <= now)
    else:
        free = and_(experiment.c.lease_until > now, experiment.c.driver_owner != leased_from)
    to_run = or_(experiment.c.state.in_(_ACTIVE), and_(experiment.c.state == ExperimentState.PAUSED, wanted))
    query = select(*_EXPERIMENT).where(free, to_run).order_by(experiment.c.id)
    return [_experiment(row) for row in connection.execute(query).mappings()]


def unfinished_code(connection: Connection) -> list[str]:
    """Hashes of the code of experiments that have not ended."""
    ended = [state for state in ExperimentState if state.ended]
    query = select(experiment.c.code_hash).where(experiment.c.state.not_in(ended), experiment.c.code_hash.is_not(None))
    return [row.code_hash for row in connection.execute(query.distinct())]


def pending_commands(connection: Connection, experiment_ids: Sequence[int]) -> list[CommandRecord]:
    columns = command.c["id", "experiment_id", "command", "reason", "created_at"]
    query = select(*columns, command.c.trial_number.label("trial")).where(command.c.experiment_id.in_(experiment_ids))
    rows = connection.execute(query.where(command.c.state == "pending").order_by(command.c.id))
    return [CommandRecord(**row) for row in rows.mappings()]


def experiments(
    connection: Connection, state: str | None, name: str | None, size: int, token: str | None
) -> Page[ExperimentRecord]:
    query = select(*_EXPERIMENT).order_by(experiment.c.id.desc())
    if state is not None:
        query = query.where(experiment.c.state == state)
    if name is not None:
        query = query.where(experiment.c.name.icontains(name, autoescape=True))
    if token is not None:
        query = query.where(experiment.c.id < _number(token))
    return _page(connection, query, size, _experiment, lambda record: record.id)


def experiments_named(connection: Connection, name: str) -> list[ExperimentRecord]:
    query = select(*_EXPERIMENT).where(experiment.c.name == name).order_by(experiment.c.id.desc())
    return [_experiment(row) for row in connection.execute(query).mappings()]


def trials(
    connection: Connection, experiment_id: int, state: str | None, size: int, token: str | None
) -> Page[TrialRecord]:
    query = _trials().where(trial.c.experiment_id == experiment_id).order_by(trial.c.number)
    if state is not None:
        query = query.where(trial.c.state == state)
    if token is not None:
        query = query.where(trial.c.number > _number(token))
    return _page(connection, query, size, _trial, lambda record: record.number)


def trials_numbered(connection: Connection, experiment_id: int, numbers: Sequence[int]) -> tuple[TrialRecord, ...]:
    """In the order of `numbers`."""
    query = _trials().where(trial.c.experiment_id == experiment_id, trial.c.number.in_(numbers))
    found = {row["number"]: _trial(row) for row in connection.execute(query).mappings()}
    return tuple(found[number] for number in numbers if number in found)


def ended_trials(connection: Connection, experiment_id: int) -> list[int]:
    ended = [state for state in TrialState if state.ended]
    query = select(trial.c.number).where(trial.c.experiment_id == experiment_id, trial.c.state.in_(ended))
    return sorted(connection.execute(query).scalars())


def results(
    connection: Connection, experiment_id: int, numbers: Sequence[int], best: bool
) -> list[tuple[Mapping[str, Any], float]]:
    value = trial.c.best_value if best else trial.c.last_value
    query = select(trial.c.params, trial.c.best_params, value)
    query = query.where(trial.c.experiment_id == experiment_id, value.is_not(None))
    found: list[tuple[Mapping[str, Any], float]] = []
    for at in range(0, len(numbers), 1000):  # a statement takes a limited number of parameters
        part = query.where(trial.c.number.in_(numbers[at : at + 1000])).order_by(trial.c.number)
        for newest, reached, result in connection.execute(part):
            found.append((reached if best and reached is not None else newest, float(result)))
    return found


def newest_trials(connection: Connection, experiment_id: int, count: int) -> list[TrialRecord]:
    query = _trials().where(trial.c.experiment_id == experiment_id).order_by(trial.c.number.desc()).limit(count)
    return [_trial(row) for row in connection.execute(query).mappings()][::-1]


def trial_by(connection: Connection, public_id: str) -> TrialRecord:
    row = connection.execute(_trials().where(trial.c.public_id == public_id)).mappings().first()
    if row is None:
        raise NotFound(f"no trial {public_id}")
    return _trial(row, _segments(connection, row["id"]))


def checkpoints(connection: Connection, experiment_id: int, number: int | None) -> list[CheckpointRecord]:
    query = _checkpoints().where(trial.c.experiment_id == experiment_id).order_by(checkpoint.c.id)
    if number is not None:
        query = query.where(trial.c.number == number)
    return [CheckpointRecord(**row) for row in connection.execute(query).mappings()]


def checkpoint_by(connection: Connection, public_id: str) -> CheckpointRecord:
    row = connection.execute(_checkpoints().where(checkpoint.c.public_id == public_id)).mappings().first()
    if row is None:
        raise NotFound(f"no checkpoint {public_id}")
    return CheckpointRecord(**row)


def decisions(
    connection: Connection,
    experiment_id: int,
    number: int | None,
    kinds: Sequence[str],
    text: str | None,
    size: int,
    token: str | None,
) -> Page[DecisionRecord]:
    columns = decision.c["event_seq", "time", "kind", "trial_number", "reason", "state", "payload"]
    query = select(*columns).where(decision.c.experiment_id == experiment_id).order_by(decision.c.event_seq.desc())
    if number is not None:
        query = query.where(decision.c.trial_number == number)
    if kinds:
        query = query.where(decision.c.kind.in_(kinds))
    if text:
        query = query.where(decision.c.reason.icontains(text, autoescape=True))
    if token is not None:
        query = query.where(decision.c.event_seq < _number(token))
    return _page(connection, query, size, _decision, lambda record: record.seq)


def warnings(connection: Connection, experiment_id: int, after: int) -> list[DecisionRecord]:
    columns = decision.c["event_seq", "time", "kind", "trial_number", "reason", "state", "payload"]
    notes = select(*columns).where(
        decision.c.experiment_id == experiment_id,
        decision.c.kind == "note",
        decision.c.event_seq > after,
    )
    found = (_decision(row) for row in connection.execute(notes.order_by(decision.c.event_seq)).mappings())
    return [record for record in found if record.payload.get("warning")]


def metric_names(connection: Connection, experiment_ids: Sequence[int]) -> dict[int, list[str]]:
    columns = select(metric_key.c.experiment_id, metric_key.c.name)
    query = columns.where(metric_key.c.experiment_id.in_(experiment_ids)).order_by(metric_key.c.id)
    found: dict[int, list[str]] = {experiment_id: [] for experiment_id in experiment_ids}
    for row in connection.execute(query):
        found[row.experiment_id].append(row.name)
    return found


def logs(
    connection: Connection, public_id: str, rank: int | None, ordinal: int | None, tail: int | None
) -> list[LogChunk]:
    number = connection.execute(select(trial.c.number).where(trial.c.public_id == public_id)).scalar()
    if number is None:
        raise NotFound(f"no trial {public_id}")
    query = (
        select(segment.c.ordinal, *log_chunk.c["rank", "stream", "chunk_no", "time", "text"])
        .join(segment, segment.c.id == log_chunk.c.segment_id)
        .join(trial, trial.c.id == segment.c.trial_id)
        .where(trial.c.public_id == public_id)
        .order_by(segment.c.ordinal, log_chunk.c.rank, log_chunk.c.stream, log_chunk.c.chunk_no)
    )
    if rank is not None:
        query = query.where(log_chunk.c.rank == rank)
    if ordinal is not None:
        query = query.where(segment.c.ordinal == ordinal)
    chunks = [
        LogChunk(
            trial=number,
            segment=row.ordinal,
            rank=row.rank,
            stream=row.stream,
            chunk_no=row.chunk_no,
            time=row.time,
            text=row.text,
        )
        for row in connection.execute(query)
    ]
    return chunks if tail is None else _tail(chunks, tail)


def usage(connection: Connection, public_id: str, rank: int | None, ordinal: int | None) -> list[UsageSeries]:
    owner = connection.execute(select(trial.c.experiment_id).where(trial.c.public_id == public_id)).scalar()
    if owner is None:
        raise NotFound(f"no trial {public_id}")
    query = (
        select(segment.c.ordinal, segment.c.started_at, rank_usage)
        .join(segment, segment.c.id == rank_usage.c.segment_id)
        .join(trial, trial.c.id == segment.c.trial_id)
        .where(trial.c.public_id == public_id)
        .order_by(segment.c.ordinal, rank_usage.c.rank, rank_usage.c.sample_no)
    )
    if rank is not None:
        query = query.where(rank_usage.c.rank == rank)
    if ordinal is not None:
        query = query.where(segment.c.ordinal == ordinal)
    found: dict[tuple[int, int], list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault((row.ordinal, row.rank), []).append(row)
    zero = begin(connection, owner)
    return [
        UsageSeries(
            segment=of,
            rank=by,
            x=[row.time - zero for row in rows],
            cpu_percent=_cpu_percent(rows),
            rss_bytes=[row.rss_bytes for row in rows],
            gpu_bytes=[row.gpu_bytes for row in rows],
            gpu_reserved_bytes=[row.gpu_reserved_bytes for row in rows],
            gpu_percent=[row.gpu_percent for row in rows],
        )
        for (of, by), rows in found.items()
    ]


def _cpu_percent(rows: Sequence[Any]) -> list[float | None]:
    """Between each sample and the one before it; before the first there was the segment's start."""
    time, used = rows[0].started_at, 0.0
    percents: list[float | None] = []
    for row in rows:
        known = time is not None and row.time > time
        percents.append(max(0.0, 100.0 * (row.cpu_s - used) / (row.time - time)) if known else None)
        time, used = row.time, row.cpu_s
    return percents


def _tail(chunks: list[LogChunk], lines: int) -> list[LogChunk]:
    """The last `lines` lines of each (segment, rank, stream), as one chunk each."""
    streams: dict[tuple[int, int, str], list[LogChunk]] = {}
    for chunk in chunks:
        streams.setdefault((chunk.segment, chunk.rank, chunk.stream), []).append(chunk)
    tails = []
    for parts in streams.values():
        text = "".join("".join(part.text for part in parts).splitlines(keepends=True)[-lines:]) if lines > 0 else ""
        last = parts[-1]
        tails.append(
            LogChunk(
                trial=last.trial,
                segment=last.segment,
                rank=last.rank,
                stream=last.stream,
                chunk_no=last.chunk_no,
                time=last.time,
                text=text,
            )
        )
    return tails


def begin(connection: Connection, experiment_id: int) -> float:
    row = connection.execute(
        select(experiment.c.started_at, experiment.c.created_at).where(experiment.c.id == experiment_id)
    ).first()
    if row is None:
        raise NotFound(f"no experiment with the internal id {experiment_id}")
    return float(row.created_at if row.started_at is None else row.started_at)


def _trials() -> Select[Any]:
    return select(*_TRIAL).join(experiment, experiment.c.id == trial.c.experiment_id)


def _checkpoints() -> Select[Any]:
    return (
        select(
            checkpoint.c.public_id,
            trial.c.number.label("trial"),
            segment.c.ordinal.label("segment"),
            *checkpoint.c["step", "uri", "bytes", "state", "node"],
        )
        .join(segment, segment.c.id == checkpoint.c.segment_id)
        .join(trial, trial.c.id == segment.c.trial_id)
    )


def segments(connection: Connection, experiment_id: int) -> dict[int, tuple[SegmentRecord, ...]]:
    found: dict[int, list[SegmentRecord]] = {}
    for row in connection.execute(_segment_rows().where(trial.c.experiment_id == experiment_id)).mappings():
        found.setdefault(row["number"], []).append(_segment(row))
    return {number: tuple(records) for number, records in found.items()}


def segment_page(
    connection: Connection, experiment_id: int, causes: Sequence[str], size: int, token: str | None
) -> Page[TrialSegment]:
    query = _segment_rows().order_by(None).order_by(segment.c.id).where(trial.c.experiment_id == experiment_id)
    if causes:
        query = query.where(segment.c.cause.in_(causes))
    if token is not None:
        query = query.where(segment.c.id > _number(token))
    return _page(
        connection, query, size, lambda row: TrialSegment(row["number"], _segment(row)), lambda item: item.segment.id
    )


def _segments(connection: Connection, trial_row: int) -> tuple[SegmentRecord, ...]:
    rows = connection.execute(_segment_rows().where(segment.c.trial_id == trial_row)).mappings()
    return tuple(_segment(row) for row in rows)


def _segment_rows() -> Select[Any]:
    source_segment, source_trial = segment.alias("source_segment"), trial.alias("source_trial")
    return (
        select(
            segment,
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
    return SegmentRecord(
        id=row["id"],
        public_id=row["public_id"],
        ordinal=row["ordinal"],
        cause=row["cause"],
        start_iteration=row["start_step"],
        params=row["config"],
        source_checkpoint=row["source_checkpoint"],
        source_trial=row["source_trial"],
        source_ordinal=row["source_ordinal"],
        placement=row["placement"] or {},
        warm=row["warm"],
        startup_s=row["startup_s"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
    )


def _experiment(row: Any) -> ExperimentRecord:
    parts = dict(row)
    parts["spec"] = Spec.from_json(parts["spec"])
    parts["state"] = ExperimentState(parts["state"])
    parts["counts"] = parts["counts"] or {}
    best = parts["best"] or {}
    parts["no_best"] = best.get("why")
    parts["best"] = best if "trial_number" in best else None
    return ExperimentRecord(**parts)


def _trial(row: Any, segments: tuple[SegmentRecord, ...] = ()) -> TrialRecord:
    parts = dict(row)
    parts["state"] = TrialState(parts["state"])
    parts["best_params"] = parts["best_params"] if parts["best_params"] is not None else parts["params"]
    return TrialRecord(**parts, segments=segments)


def _decision(row: Any) -> DecisionRecord:
    return DecisionRecord(
        seq=row["event_seq"],
        time=row["time"],
        kind=row["kind"],
        trial=row["trial_number"],
        reason=row["reason"],
        state=row["state"],
        payload=row["payload"],
    )


def _page(
    connection: Connection, query: Select[Any], size: int, build: Callable[[Any], T], key: Callable[[T], int]
) -> Page[T]:
    """One more than asked for is read, to know whether there is a next page."""
    items = [build(row) for row in connection.execute(query.limit(size + 1)).mappings()]
    return Page(tuple(items[:size]), str(key(items[size - 1])) if len(items) > size else None)


def _number(token: str) -> int:
    try:
        number = int(token)
    except ValueError:
        number = -1
    if not 0 <= number < 2**62:
        raise SpecError("not a page token; take it from next_page_token", "/page_token")
    return number
