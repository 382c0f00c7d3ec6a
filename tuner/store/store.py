"""The port to the database: experiments, their log, their leases and commands.

Who may write: anybody may create experiments and add commands. Everything else of an experiment is written by its
driver alone, who holds its *epoch*: `claim` gives a new one and from then on every `commit` under an older one raises
`LostLease` and writes nothing. Log entries are never changed; a decision turns from pending to done, once.

Every method may be called from any thread. Errors are `StoreError`s; one that is also `Retryable` (locked, connection
lost) wrote nothing, or, when the connection broke during COMMIT, wrote everything: repeating the same call is harmless.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, select

from tuner.domain.batch import Batch, Entry
from tuner.domain.experiment import Spec
from tuner.errors import NotFound, SpecError, StoreError
from tuner.store import columns, curves, history, statements, views
from tuner.store.access import Access
from tuner.store.connect import Synchronous, connect, translated
from tuner.store.migrate import HEAD, migrate, revision
from tuner.store.records import (
    CheckpointRecord,
    CodeRecord,
    CommandRecord,
    Curves,
    CurveSegment,
    DecisionRecord,
    ExperimentRecord,
    LogChunk,
    Page,
    Progress,
    SegmentRecord,
    StreamItem,
    TrialRecord,
    TrialSegment,
    UsageSample,
    UsageSeries,
)
from tuner.store.tables import code, experiment
from tuner.store.writer import Cursor, Writer


class Store:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.backend = engine.dialect.name  # sqlite | postgresql
        self._lock = threading.Lock()
        self._write_connection: Any = None
        self._writers: dict[int, Writer] = {}
        self._sorter = columns.Sorter()
        self.access = Access(engine)

    @classmethod
    def open(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> Store:
        """Open a database, creating an SQLite file where there is none. Its tables come from `migrate`."""
        return cls(connect(url, synchronous))

    def migrate(self) -> None:
        """Bring the tables up to this version."""
        with translated(self.backend):
            migrate(self._engine)

    def check(self) -> None:
        """StoreError unless the database answers and has this version's tables."""
        with translated(self.backend):
            found = revision(self._engine)
        if found != HEAD:
            raise StoreError(f"the database is at revision {found}, this version needs {HEAD}; run `tuner migrate`")

    def check_write(self) -> None:
        """Write something that changes nothing. StoreError if the database takes no writes, because its disk is full, say."""
        with self._write() as cursor:
            cursor.execute("UPDATE alembic_version SET version_num = version_num")

    def close(self) -> None:
        with self._lock:
            self._drop_write_connection()
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- experiments ---------------------------------------------------------------------------------------------------

    def create_experiment(
        self,
        spec: Spec,
        *,
        public_id: str | None = None,
        code: CodeRecord | None = None,
        source: str = "python",
        idempotency_key: str | None = None,
        now: float | None = None,
    ) -> ExperimentRecord:
        """Insert a pending experiment. The same `idempotency_key` again gives the experiment that is there, or
        Conflict if the spec differs.
        """
        if code is not None and spec.code is None:
            spec = dataclasses.replace(spec, code=code.hash)
        wanted = public_id or f"exp_{secrets.token_hex(10)}"
        with self._write() as cursor:
            found = statements.create(cursor, spec, wanted, code, source, idempotency_key, _at(now))
        return self.get_experiment(found)

    def get_experiment(self, public_id: str) -> ExperimentRecord:
        """NotFound where there is none."""
        with self._read() as connection:
            return views.experiment_by(connection, experiment.c.public_id == public_id, public_id)

    def experiment(self, experiment_id: int) -> ExperimentRecord:
        """As `get_experiment`, by the internal id."""
        with self._read() as connection:
            return views.experiment_by(connection, experiment.c.id == experiment_id, str(experiment_id))

    def progress(self, experiment_id: int) -> Progress:
        """How far an experiment has got; one cheap query."""
        with self._read() as connection:
            return views.progress(connection, experiment_id)

    def progress_of(self, experiment_ids: Sequence[int]) -> dict[int, Progress]:
        """As `progress`, of several experiments in one query; those that are gone are left out."""
        if not experiment_ids:
            return {}
        with self._read() as connection:
            return views.progress_of(connection, experiment_ids)

    def experiments_named(self, name: str) -> list[ExperimentRecord]:
        """All that are called exactly so, newest first; empty where there is none."""
        with self._read() as connection:
            return views.experiments_named(connection, name)

    def list_experiments(
        self, *, state: str | None = None, name: str | None = None, page_size: int = 50, page_token: str | None = None
    ) -> Page[ExperimentRecord]:
        """Newest first. `name` matches any part of a name."""
        with self._read() as connection:
            return views.experiments(connection, state, name, page_size, page_token)

    def list_trials(
        self, experiment_id: int, *, state: str | None = None, page_size: int = 100, page_token: str | None = None
    ) -> Page[TrialRecord]:
        """By number, without segments."""
        with self._read() as connection:
            return views.trials(connection, experiment_id, state, page_size, page_token)

    def sorted_trials(
        self,
        experiment_id: int,
        *,
        sort: str = "number",
        where: Sequence[str] = (),
        state: str | None = None,
        page_size: int = 100,
        page_token: str | None = None,
    ) -> tuple[Page[TrialRecord], int]:
        """A page of the trials that fit, without segments, and how many fit altogether.

        sort: a column, descending with a minus before it: `number`, `state`, `best_value`, `params.NAME`, `last.METRIC`, ...
        Equal ones come by number, those without a value last. where: conditions such as ``best_value>=0.5`` that all have to
        hold; ``~`` looks for a part of a text. SpecError if a name or a condition is wrong.
        """
        conditions = columns.parsed(where, state)
        with self._cursor() as (cursor, connection):
            numbers, token, total = self._sorter.page(cursor, experiment_id, sort, conditions, page_size, page_token)
            return Page(views.trials_numbered(connection, experiment_id, numbers), token), total

    def ended_trials(self, experiment_id: int) -> list[int]:
        """The numbers of the trials that have ended, in order. Reads an index alone."""
        with self._read() as connection:
            return views.ended_trials(connection, experiment_id)

    def results(
        self, experiment_id: int, trials: Sequence[int], *, best: bool
    ) -> list[tuple[Mapping[str, Any], float]]:
        """(flat params, best or last value) of those of these trials that have one, by number."""
        with self._read() as connection:
            return views.results(connection, experiment_id, trials, best)

    def best_trials(self, experiment_id: int, mode: str, count: int) -> list[int]:
        """The numbers of so many trials with the best values, those that have none last."""
        sort = "-best_value" if mode == "max" else "best_value"
        with self._cursor() as (cursor, _):
            return self._sorter.page(cursor, experiment_id, sort, (), count, None)[0]

    def newest_trials(self, experiment_id: int, count: int) -> list[TrialRecord]:
        """The last `count` trials by number, without segments."""
        with self._read() as connection:
            return views.newest_trials(connection, experiment_id, count)

    def get_trial(self, public_id: str) -> TrialRecord:
        """With its segments. NotFound where there is none."""
        with self._read() as connection:
            return views.trial_by(connection, public_id)

    def segments(self, experiment_id: int) -> dict[int, tuple[SegmentRecord, ...]]:
        """The segments of every trial that has one, by its number, each in their order."""
        with self._read() as connection:
            return views.segments(connection, experiment_id)

    def checkpoints(self, experiment_id: int, *, trial: int | None = None) -> list[CheckpointRecord]:
        """All checkpoints, deleted ones too, oldest first."""
        with self._read() as connection:
            return views.checkpoints(connection, experiment_id, trial)

    def get_checkpoint(self, public_id: str) -> CheckpointRecord:
        """NotFound where there is none."""
        with self._read() as connection:
            return views.checkpoint_by(connection, public_id)

    def decisions(
        self,
        experiment_id: int,
        *,
        trial: int | None = None,
        kinds: Sequence[str] = (),
        text: str | None = None,
        page_size: int = 100,
        page_token: str | None = None,
    ) -> Page[DecisionRecord]:
        """Return decisions, newest first: of one trial, of these kinds, with `text` in their reasons, where given."""
        with self._read() as connection:
            return views.decisions(connection, experiment_id, trial, kinds, text, page_size, page_token)

    def list_segments(
        self, experiment_id: int, *, causes: Sequence[str] = (), page_size: int = 100, page_token: str | None = None
    ) -> Page[TrialSegment]:
        """Return the segments of all trials in the order in which they were created, those of some causes if given."""
        with self._read() as connection:
            return views.segment_page(connection, experiment_id, causes, page_size, page_token)

    def warnings(self, experiment_id: int, after: int = 0) -> list[DecisionRecord]:
        """Notes behind this event_seq that warn of what looks like a mistake, oldest first."""
        with self._read() as connection:
            return views.warnings(connection, experiment_id, after)

    def events_after(self, experiment_id: int, seq: int, limit: int = 1000) -> list[StreamItem]:
        """Events, decisions and reports whose event_seq lies in (seq, seq + limit], in order."""
        with self._read() as connection:
            return history.stream(connection, experiment_id, seq, limit)

    def metric_names(self, experiment_id: int) -> list[str]:
        """In the order in which they were first reported."""
        return self.metric_names_of([experiment_id])[experiment_id]

    def metric_names_of(self, experiment_ids: Sequence[int]) -> dict[int, list[str]]:
        """As `metric_names`, of several experiments at once."""
        with self._read() as connection:
            return views.metric_names(connection, experiment_ids)

    def curves(
        self,
        experiment_id: int,
        metric: str,
        *,
        x: str = "step",
        points: int = 1000,
        low: float | None = None,
        high: float | None = None,
        trials: Sequence[int] | None = None,
    ) -> Curves:
        """The curves of these trials, by default of all, by number. `x` is "step" (the iteration) or "time" (seconds since the
        experiment's start).

        `low`, `high`: the part of the axis that is wanted. A curve that reaches over all of it has about `points` points, the
        others proportionally fewer: of every so many reports the lowest and the highest, and of every segment the
        first and the last.
        """
        if x not in ("step", "user_step", "time"):
            raise SpecError(f"expected step, user_step or time, got {x!r}", "/x")
        with self._cursor() as (cursor, connection):
            span = curves.Span(x, views.begin(connection, experiment_id), low, high)  # type: ignore[arg-type]
            return curves.read(cursor, experiment_id, metric, span, points, trials)

    def trial_curves(
        self, trial_id: str, *, x: str = "step", max_points: int = 1000
    ) -> list[tuple[str, list[CurveSegment]]]:
        """Return the curve of every metric that this trial has reported, in the order in which they were first reported.

        `x` is that of `curves`; a curve has about `max_points` points at most.
        """
        trial = self.get_trial(trial_id)
        found = []
        for name in self.metric_names(trial.experiment_id):
            for curve in self.curves(trial.experiment_id, name, x=x, points=max_points, trials=[trial.number]).curves:
                found.append((name, list(curve.segments)))
        return found

    def best_so_far(self, experiment_id: int, metric: str, mode: str) -> tuple[list[float], list[float]]:
        """(seconds since the experiment's start, best value by then), a point for each improvement. Of a metric that is no
        objective, or with another mode, some improvements may be missing where there are very many points.
        """
        with self._cursor() as (cursor, connection):
            begin = views.begin(connection, experiment_id)
            return curves.best_so_far(cursor, experiment_id, metric, mode, begin)

    # -- code and logs -------------------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord, now: float | None = None) -> None:
        """Store a trainable. The same hash again changes nothing."""
        with self._write() as cursor:
            statements.put_code(cursor, record, _at(now))

    def get_code(self, code_hash: str) -> CodeRecord:
        """NotFound where there is none."""
        with self._read() as connection:
            row = connection.execute(select(code).where(code.c.hash == code_hash)).mappings().first()
        if row is None:
            raise NotFound(f"no code with the hash {code_hash}")
        parts = dict(row)
        del parts["created_at"]
        return CodeRecord(**parts)

    def unfinished_code(self) -> Iterator[bytes]:
        """The pickled training functions of all experiments that have not ended, one after the other."""
        with self._read() as connection:
            hashes = views.unfinished_code(connection)
        for code_hash in hashes:
            if (blob := self.get_code(code_hash).blob) is not None:
                yield blob

    def add_logs(self, experiment_id: int, chunks: Sequence[LogChunk]) -> None:
        """Append what ranks wrote. A chunk that is there already is left as it is."""
        with self._write() as cursor:
            statements.add_logs(cursor, experiment_id, chunks)

    def logs(
        self, trial_public_id: str, *, rank: int | None = None, segment: int | None = None, tail: int | None = None
    ) -> list[LogChunk]:
        """What ranks wrote, by (segment, rank, stream), in order; with `tail`, the last so many lines of each."""
        with self._read() as connection:
            return views.logs(connection, trial_public_id, rank, segment, tail)

    def add_usage(
        self, experiment_id: int, samples: Sequence[UsageSample], *, keep: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        """Append what ranks used. `keep`: of these segments (trial, segment), only the samples whose number is a multiple
        of this stay. A sample that is there already, or of a segment that is not, is left out.
        """
        with self._write() as cursor:
            statements.add_usage(cursor, experiment_id, samples, keep or {})

    def usage(self, trial_public_id: str, *, rank: int | None = None, segment: int | None = None) -> list[UsageSeries]:
        """What the ranks of a trial used, by (segment, rank). NotFound where there is no such trial."""
        with self._read() as connection:
            return views.usage(connection, trial_public_id, rank, segment)

    # -- commands ------------------------------------------------------------------------------------------------------

    def add_command(
        self, experiment_id: int, name: str, trial_number: int | None = None, reason: str = "", now: float | None = None
    ) -> int:
        """Ask the experiment's driver for something; the id of the command. Asking twice is asking once."""
        with self._write() as cursor:
            return statements.add_command(cursor, experiment_id, name, trial_number, reason, _at(now))

    def pending_commands(self, experiment_ids: Sequence[int]) -> list[CommandRecord]:
        """In the order in which they were given."""
        if not experiment_ids:
            return []
        with self._read() as connection:
            return views.pending_commands(connection, experiment_ids)

    # -- drivers -------------------------------------------------------------------------------------------------------

    def claimable(self, now: float, *, leased_from: str | None = None) -> list[ExperimentRecord]:
        """Return the experiments that want a driver and whose lease has run out, oldest first: those that are to run, and
        paused ones that somebody wants resumed or cancelled.

        leased_from: return instead those whose lease is alive and belongs to anybody but this owner.
        """
        with self._read() as connection:
            return views.claimable(connection, now, leased_from)

    def adopt(self, experiment_id: int) -> None:
        """Make an experiment that a script has created the service's: from now on services take it up by themselves."""
        with self._write() as cursor:
            statements.adopt(cursor, experiment_id)

    def claim(self, experiment_id: int, owner: str, lease_s: float, now: float) -> int:
        """Become the experiment's driver; the epoch to write under. Conflict while another owner's lease is alive, or
        when the experiment has ended. Of several at once, one wins.
        """
        with self._write() as cursor:
            epoch = statements.claim(cursor, experiment_id, owner, lease_s, now)
            self._writers.pop(experiment_id, None)
        return epoch

    def renew(self, experiment_id: int, epoch: int, lease_s: float, now: float) -> None:
        """Keep the lease. LostLease where another driver has claimed the experiment."""
        with self._write() as cursor:
            statements.renew(cursor, experiment_id, epoch, now + lease_s)

    def release(self, experiment_id: int, epoch: int) -> None:
        """Give the lease back. Does nothing where it is another's by now."""
        with self._write() as cursor:
            statements.release(cursor, experiment_id, epoch)
            self._writers.pop(experiment_id, None)

    def load(self, experiment_id: int, after: int = 0) -> Iterator[Entry]:
        """The committed log behind `after`, in order. Entries are equal to those that were committed; a mapping comes
        back as a dict, and a report's metrics in the order in which the experiment first saw their names.
        """
        with self._read() as connection:
            yield from history.entries(connection, experiment_id, after)

    def commit(self, experiment_id: int, epoch: int, batch: Batch, now: float) -> None:
        """Write the whole batch durably, or nothing. LostLease if the epoch is not the newest. Writing the same batch again
        changes nothing.
        """
        try:
            with self._write() as cursor:
                writer = self._writers.get(experiment_id)
                if writer is None or writer.epoch != epoch:
                    writer = self._writers[experiment_id] = Writer(cursor, experiment_id, epoch)
                writer.write(cursor, batch, now)
        except BaseException:
            self._writers.pop(experiment_id, None)  # the ids that it remembers may not have been written
            raise

    # -- connections ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with translated(self.backend), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _cursor(self) -> Iterator[tuple[Cursor, Connection]]:
        """A transaction that only reads, and a plain cursor in it, for queries with very many rows."""
        with self._read() as connection, connection.begin():
            yield Cursor(connection.connection.cursor(), self.backend), connection

    @contextmanager
    def _write(self) -> Iterator[Cursor]:
        """A transaction on the one connection that writes. SQLite's lock is taken at its begin: a transaction that
        reads first and then finds another writer would fail at once, however long it was told to wait.
        """
        with self._lock, translated(self.backend):
            if self._write_connection is None:
                self._write_connection = self._engine.raw_connection()
            raw = self._write_connection.driver_connection
            try:
                cursor = Cursor(raw.cursor(), self.backend)
                if self.backend == "sqlite":
                    cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                raw.commit()
            except BaseException:
                self._roll_back(raw)
                raise

    def _roll_back(self, raw: Any) -> None:
        try:
            raw.rollback()
        except Exception:  # the connection is gone; the next transaction gets a new one
            self._drop_write_connection()

    def _drop_write_connection(self) -> None:
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.invalidate()


def _at(now: float | None) -> float:
    return clock.time() if now is None else now
