"""The store's part for drivers: leases, and the log as a driver reads and writes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlalchemy import ColumnElement, and_, exists, or_, select

from tuner.domain.batch import Batch, Entry
from tuner.domain.states import ExperimentState, read_state
from tuner.domain.thinned import why_thinned
from tuner.errors import Conflict, LostLease, NotFound
from tuner.store.commands import DELETION
from tuner.store.experiments import COLUMNS, record
from tuner.store.records import ExperimentRecord
from tuner.store.sql.database import Database
from tuner.store.sql.tables import command, experiment
from tuner.store.writing import history
from tuner.store.writing.writer import Writer

_ACTIVE = [ExperimentState.PENDING, ExperimentState.RUNNING, ExperimentState.PAUSING, ExperimentState.CANCELLING]
_OVER = [state for state in ExperimentState if state.ended]
_ENDED = ", ".join(f"'{state}'" for state in ExperimentState if state.ended)

_CONTINUED = """EXISTS (SELECT 1 FROM command c
  WHERE c.experiment_id = experiment.id AND c.state = 'pending' AND c.command = 'continue')"""

_ADOPT = "UPDATE experiment SET source = 'adopted' WHERE id = ? AND source = 'python'"
_CLAIM = f"""
UPDATE experiment SET driver_epoch = driver_epoch + 1, driver_owner = ?, lease_until = ?
WHERE id = ? AND (state NOT IN ({_ENDED}) OR driver_owner IS NOT NULL OR {_CONTINUED})
  AND (lease_until IS NULL OR lease_until <= ? OR driver_owner = ?)
RETURNING driver_epoch"""
_RENEW = "UPDATE experiment SET lease_until = ? WHERE id = ? AND driver_epoch = ?"
_RELEASE = "UPDATE experiment SET lease_until = NULL, driver_owner = NULL WHERE id = ? AND driver_epoch = ?"


class Drivers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._writers: dict[int, Writer] = {}

    def claimable(self, now: float, *, leased_from: str | None = None) -> list[ExperimentRecord]:
        """Return the experiments that need a driver and have no valid lease, oldest first.

        An experiment needs a driver in these cases: it is meant to run; it is paused, and a user has asked to resume or end
        it; it has ended, and a user has asked to continue it; or it has ended, but its driver was killed before it deleted the
        checkpoints that it had decided to delete. One whose deletion was interrupted needs none: its log may say that it runs.

        Args:
            now: the current time.
            leased_from: if given, return instead the experiments with a valid lease that belongs to an owner other than this one.
        """
        if leased_from is None:
            free = or_(experiment.c.lease_until.is_(None), experiment.c.lease_until <= now)
        else:
            free = and_(experiment.c.lease_until > now, experiment.c.driver_owner != leased_from)
        to_run = or_(
            experiment.c.state.in_(_ACTIVE),
            and_(experiment.c.state == ExperimentState.PAUSED, _asked_for("resume", "cancel", "kill")),
            and_(experiment.c.state.in_(_OVER), or_(_asked_for("continue"), experiment.c.driver_owner != DELETION)),
        )
        query = select(*COLUMNS).where(free, to_run).order_by(experiment.c.id)
        with self._database.read() as connection:
            return [record(row) for row in connection.execute(query).mappings()]

    def adopt(self, experiment_id: int) -> None:
        """Hand an experiment over to the service if a script created it. From then on, the service drives it."""
        with self._database.write() as cursor:
            cursor.execute(_ADOPT, (experiment_id,))

    def claim(self, experiment_id: int, owner: str, lease_s: float, now: float) -> int:
        """Become the experiment's driver. If several drivers try at once, one succeeds.

        Returns:
            The epoch under which the driver must write.

        Raises:
            Conflict: another owner's lease has not expired, or the experiment has ended and its driver has released it.
            NotFound: there is no such experiment.
        """
        with self._database.write() as cursor:
            epoch = cursor.value(_CLAIM, (owner, now + lease_s, experiment_id, now, owner))
            if epoch is None:
                query = "SELECT public_id, state, driver_owner FROM experiment WHERE id = ?"
                self._refuse(experiment_id, cursor.rows(query, (experiment_id,)))
            # In a database that was restored from a backup, id and epoch may be those of an experiment that has been deleted.
            self._writers.pop(experiment_id, None)
        return int(epoch)

    def _refuse(self, experiment_id: int, rows: list[tuple[str, str, str]]) -> None:
        if not rows:
            raise NotFound(f"no experiment with the internal id {experiment_id}")
        public, state, holder = rows[0]
        if read_state(ExperimentState, state).ended:
            raise Conflict(f"{public} is {state}")
        raise Conflict(f"{public} is driven by {holder}, whose lease has not expired")

    def renew(self, experiment_id: int, epoch: int, lease_s: float, now: float) -> None:
        """Extend the lease. Raise LostLease if another driver has claimed the experiment."""
        with self._database.write() as cursor:
            cursor.execute(_RENEW, (now + lease_s, experiment_id, epoch))
            if cursor.rowcount != 1:
                raise LostLease(f"experiment {experiment_id}: another driver has claimed it, so epoch {epoch} is over")

    def release(self, experiment_id: int, epoch: int) -> None:
        """Give the lease back. Do nothing if another driver has the lease."""
        with self._database.write() as cursor:
            cursor.execute(_RELEASE, (experiment_id, epoch))
            self._writers.pop(experiment_id, None)

    def load(self, experiment_id: int, after: int = 0, *, thinned: bool = False) -> Iterator[Entry]:
        """Yield the committed log entries after entry `after`, in order.

        The entries are equal to those that were committed. Every mapping in them is a dict, and the metrics of a report are in
        the order in which the experiment first reported their names.

        Args:
            experiment_id: the internal id.
            after: yield only entries after this event_seq.
            thinned: also yield the log of a thinned experiment, in which most reports lack some or all of their metrics.

        Raises:
            Conflict: the experiment is thinned, so that its log cannot be folded.
        """
        with self._database.read() as connection:
            if not thinned:
                query = select(experiment.c.public_id, experiment.c.thinned_at).where(experiment.c.id == experiment_id)
                row = connection.execute(query).first()
                if row is not None and row.thinned_at is not None:
                    why = why_thinned(row.thinned_at, "folding its log")
                    raise Conflict(f"{row.public_id}: {why}")
            yield from history.entries(connection, experiment_id, after)

    def commit(self, experiment_id: int, epoch: int, batch: Batch, now: float) -> Collection[str]:
        """Write the whole batch durably, or nothing at all. Writing the same batch again changes nothing.

        Return the ids in `batch.deletes` that users have pinned. The others can no longer be pinned.

        Raises:
            LostLease: another driver has claimed the experiment since `epoch`.
        """
        try:
            with self._database.write() as cursor:
                writer = self._writers.get(experiment_id)
                if writer is None or writer.epoch != epoch:
                    writer = self._writers[experiment_id] = Writer(cursor, experiment_id, epoch)
                return writer.write(cursor, batch, now)
        except BaseException:
            self._writers.pop(experiment_id, None)  # the ids that the writer remembers may not be in the database
            raise


def _asked_for(*names: str) -> ColumnElement[bool]:
    """Return an SQL condition that is true if one of these commands is pending for the experiment."""
    same = command.c.experiment_id == experiment.c.id
    return exists().where(same, command.c.state == "pending", command.c.command.in_(names))
