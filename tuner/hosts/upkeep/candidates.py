"""Find the experiments that have no live driver and that a driver host should drive."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.domain.states import ExperimentState
from tuner.hosts.owners import owner_is_dead
from tuner.store import Store
from tuner.store.records import ExperimentRecord

SCRIPTS = ("python", "study")
"""The sources of experiments that scripts drive. A service never adopts a "study": its trials run in the user's own loop."""
LEASES_S = 2.0
"""Seconds between two searches for leases of dead drivers, which cost more than searches for experiments without a lease."""
EXPIRED_S = 2.0
"""Seconds for which a lease must have been expired before it is taken from a holder that may still be alive.

A holder that could not reach the database for a while renews its leases soon after the database is reachable again.
"""
DEFAULT_LEASE_S = 30.0
"""The default of TUNER_LEASE_S."""
WITNESS_S = 12.0
"""Seconds for which an expired lease must not have changed, either, before it is taken from such a holder.

A holder whose clock is behind renews leases that seem to have expired. It does so every 10 s by default (a third of
TUNER_LEASE_S). With a longer TUNER_LEASE_S, this time is longer, too.
"""


_Lease = tuple[int, float | None]


class ToDrive(NamedTuple):
    """An experiment that the host should drive.

    why: the reason, for the service's log.
    adopt: True if the experiment's script has ended and the service takes over the experiment.
    """

    record: ExperimentRecord
    why: str
    adopt: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The experiments that the host should drive, and the abandoned ones that users may continue."""

    to_drive: list[ToDrive] = field(default_factory=list)
    to_offer: list[ExperimentRecord] = field(default_factory=list)


class Candidates:
    """Finds the experiments that a host should drive.

    Args:
        store: the store that has the experiments.
        owner: the name under which the host holds leases.
        lease_s: the length of a lease, which the holders of expired ones are assumed to use, too.
    """

    def __init__(self, store: Store, owner: str, lease_s: float = DEFAULT_LEASE_S) -> None:
        self._store, self._owner = store, owner
        self._longer = max(1.0, lease_s / DEFAULT_LEASE_S)
        self._dead: set[str] = set()  # owners that are known to be dead, on any machine
        self._offered: set[str] = set()  # public ids
        # experiment -> (epoch and end of its lease, time since when the lease has been seen so); of expired leases, and of others
        self._expired: dict[int, tuple[_Lease, float]] = {}
        self._leased: dict[int, tuple[_Lease, float]] = {}
        self._leases_read_at = float("-inf")

    def add_dead(self, owners: Iterable[str]) -> None:
        """Record that the processes of these owners are dead."""
        self._dead |= set(owners) - {self._owner}

    def is_dead(self, owner: str | None) -> bool:
        """Return whether the process that has this owner name is known to have ended."""
        return owner in self._dead or owner_is_dead(owner)

    def find(self, now: float, *, busy: Collection[int], outage: bool, adopt: bool) -> Found:
        """Return the experiments that the host should drive, and those to offer to users.

        An experiment that was offered is not offered again, unless the host has driven it since.

        Args:
            now: the present time.
            busy: the ids of experiments to leave out.
            outage: True if the database could not be reached recently, so that the lease of a live owner may have expired.
            adopt: True to also drive experiments whose script has ended, instead of only offering them.
        """
        free = self._store.drivers.claimable(now)
        free += self._left_by_the_dead(now, {record.id for record in free})
        unclaimed = {
            record.id: record
            for record in self._without_fresh([record for record in free if record.id not in busy], outage)
        }
        cancelled = self._cancelled([record.id for record in unclaimed.values() if record.source in SCRIPTS])
        found = Found()
        for record in unclaimed.values():
            if record.incomplete and record.state is not ExperimentState.CANCELLING:
                continue  # the import of this experiment was interrupted, or still runs
            if record.source not in SCRIPTS:
                found.to_drive.append(ToDrive(record, "the experiment was created through the API"))
            elif record.state is ExperimentState.CANCELLING or record.id in cancelled:
                found.to_drive.append(ToDrive(record, "a user has cancelled the experiment"))
            elif record.state.ended and record.driver_owner is not None:
                # Otherwise the experiment would count as driven forever, so that no retention would apply to it.
                why = "its script was killed before it had deleted the checkpoints that the search no longer needs"
                found.to_drive.append(ToDrive(record, why))
            elif record.abandoned(now) and adopt:
                why = "the script has ended, and this service adopts such experiments"
                found.to_drive.append(ToDrive(record, why, adopt=True))
            elif record.abandoned(now) and record.public_id not in self._offered:
                found.to_offer.append(record)
        self._offered |= {record.public_id for record in found.to_offer}
        self._offered -= {one.record.public_id for one in found.to_drive}
        return found

    def _without_fresh(self, found: Iterable[ExperimentRecord], outage: bool) -> Iterator[ExperimentRecord]:
        """Yield the records except those whose lease a live owner may still renew.

        A live owner may renew its lease after an outage of the database. This host may have started just after an outage that
        it does not know about, so every lease is left alone until it has been expired for `EXPIRED_S`. An owner whose clock is
        behind still renews its lease, so it is also left alone until it has not changed for `WITNESS_S`.
        """
        now, before, self._expired = time.monotonic(), self._expired, {}
        for record in found:
            if record.driver_owner in (None, self._owner) or self.is_dead(record.driver_owner):
                yield record
            elif not outage:
                lease = _lease_of(record)
                since = _since(before, record.id, lease, now)
                self._expired[record.id] = (lease, since)
                unchanged_since = min(since, _since(self._leased, record.id, lease, now))
                if now >= max(since + EXPIRED_S, unchanged_since + WITNESS_S * self._longer):
                    yield record

    def _left_by_the_dead(self, now: float, free: Collection[int]) -> list[ExperimentRecord]:
        """Return the experiments whose driver is dead although its lease has not expired.

        Return an empty list if the last search was less than `LEASES_S` seconds ago. Also note how the leases are now.

        free: the experiments without a valid lease.
        """
        if time.monotonic() < self._leases_read_at + LEASES_S:
            return []
        self._leases_read_at = time.monotonic()
        leased = self._store.drivers.claimable(now, leased_from=self._owner)
        seen, before = time.monotonic(), self._leased
        self._leased = {key: before[key] for key in free if key in before}
        for one in leased:
            lease = _lease_of(one)
            self._leased[one.id] = (lease, _since(before, one.id, lease, seen))
        return [record for record in leased if self.is_dead(record.driver_owner)]

    def _cancelled(self, experiments: list[int]) -> set[int]:
        """Return the ids of the given experiments that a user has requested to cancel."""
        commands = self._store.commands.pending(experiments)
        return {c.experiment_id for c in commands if c.command in ("cancel", "kill") and c.trial is None}


def _lease_of(record: ExperimentRecord) -> _Lease:
    return record.driver_epoch, record.lease_until


def _since(seen: Mapping[int, tuple[_Lease, float]], experiment: int, lease: _Lease, now: float) -> float:
    """Return since when a lease has been seen as it is now."""
    then, since = seen.get(experiment, (None, now))
    return since if then == lease else now
