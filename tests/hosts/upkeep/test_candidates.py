"""Test which experiments without a driver a host drives. `test_host` drives them, too."""

from __future__ import annotations

import time

import pytest

from tests.store.examples import a_spec
from tuner.domain.batch import Batch
from tuner.domain.states import ExperimentState
from tuner.hosts.upkeep import candidates as module
from tuner.hosts.upkeep.candidates import Candidates
from tuner.store import ExperimentRecord, Store

NOW = 1_000_000.0
ELSEWHERE = "another machine:7:1@boot"


@pytest.fixture
def candidates(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> Candidates:
    monkeypatch.setattr(module, "LEASES_S", 0.0)
    monkeypatch.setattr(module, "EXPIRED_S", 0.0)
    monkeypatch.setattr(module, "WITNESS_S", 0.0)
    return Candidates(sqlite_store, "this host")


def create(store: Store, source: str, age: float = 3600.0) -> ExperimentRecord:
    return store.experiments.create(a_spec(), source=source, now=NOW - age)


def to_drive(candidates: Candidates, *, outage: bool = False, adopt: bool = False, busy: int = 0) -> dict[int, str]:
    found = candidates.find(NOW, busy=[busy], outage=outage, adopt=adopt)
    return {one.record.id: one.why + (" (adopt)" if one.adopt else "") for one in found.to_drive}


def test_experiments_of_the_service_are_driven_and_those_of_scripts_offered_once(
    candidates: Candidates, sqlite_store: Store
) -> None:
    posted, left = create(sqlite_store, "api"), create(sqlite_store, "python")
    create(sqlite_store, "study")
    create(sqlite_store, "python", age=1.0)
    found = candidates.find(NOW, busy=[], outage=False, adopt=False)
    assert [(one.record.id, one.why) for one in found.to_drive] == [
        (posted.id, "the experiment was created through the API")
    ]
    assert [record.id for record in found.to_offer] == [left.id]
    again = candidates.find(NOW, busy=[posted.id], outage=False, adopt=False)
    assert (again.to_drive, again.to_offer) == ([], [])
    sqlite_store.commands.add(left.id, "cancel", reason="by a user")
    assert to_drive(candidates, busy=posted.id) == {left.id: "a user has cancelled the experiment"}


def test_an_import_that_is_being_written_is_left_alone(candidates: Candidates, sqlite_store: Store) -> None:
    made = create(sqlite_store, "import")
    assert to_drive(candidates, adopt=True) == {}
    epoch = sqlite_store.drivers.claim(made.id, "import", 600.0, NOW - 3600.0)
    assert to_drive(candidates, adopt=True) == {}
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLING), NOW)
    assert list(to_drive(candidates)) == [made.id], "a user may end one whose import was killed"


def test_a_service_that_adopts_drives_what_scripts_left_behind(candidates: Candidates, sqlite_store: Store) -> None:
    left = create(sqlite_store, "python")
    create(sqlite_store, "study")
    create(sqlite_store, "python", age=1.0)
    why = "the script has ended, and this service adopts such experiments (adopt)"
    assert to_drive(candidates, adopt=True) == {left.id: why}


def test_an_expired_lease_is_taken_over_and_a_valid_one_only_from_the_dead(
    candidates: Candidates, sqlite_store: Store
) -> None:
    expired, held = create(sqlite_store, "api"), create(sqlite_store, "api")
    sqlite_store.drivers.claim(expired.id, ELSEWHERE, 1.0, NOW - 60.0)
    sqlite_store.drivers.claim(held.id, ELSEWHERE, 3600.0, NOW)
    assert set(to_drive(candidates)) == {expired.id}
    assert to_drive(candidates, outage=True) == {}, "its owner could not renew the lease"
    candidates.add_dead([ELSEWHERE, "this host"])
    assert set(to_drive(candidates, outage=True)) == {expired.id, held.id}
    assert not candidates.is_dead("this host")


def test_an_expired_lease_is_taken_over_once_it_has_been_seen_for_a_while(
    candidates: Candidates, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(sqlite_store, "api")
    sqlite_store.drivers.claim(made.id, ELSEWHERE, 1.0, NOW - 60.0)
    monkeypatch.setattr(module, "WITNESS_S", 3600.0)
    assert to_drive(candidates) == to_drive(candidates) == {}
    monkeypatch.setattr(module, "WITNESS_S", 0.0)
    assert set(to_drive(candidates)) == {made.id}
    assert to_drive(candidates, outage=True) == {}
    monkeypatch.setattr(module, "WITNESS_S", 3600.0)
    assert to_drive(candidates) == {}, "after an outage it is watched anew"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, in seconds, that `time.monotonic` shows. Tests set it."""
    now = [0.0]
    monkeypatch.setattr(module, "EXPIRED_S", 2.0)
    monkeypatch.setattr(module, "WITNESS_S", 12.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.usefixtures("candidates")
@pytest.mark.parametrize("lease_s", [30.0, 300.0])
def test_a_lease_that_is_renewed_is_left_alone_even_if_it_seems_to_have_expired(
    sqlite_store: Store, clock: list[float], lease_s: float
) -> None:
    """The clock of its owner is behind by more than the lease. Its experiments were taken over, and lost their progress."""
    candidates = Candidates(sqlite_store, "this host", lease_s)
    made, thirtieth = create(sqlite_store, "api"), lease_s / 30
    epoch = sqlite_store.drivers.claim(made.id, ELSEWHERE, lease_s, NOW - 3600.0)
    for step in range(60):
        clock[0] = step * thirtieth
        if step % 10 == 0:
            sqlite_store.drivers.renew(made.id, epoch, lease_s, NOW - 3600.0 + clock[0])
        assert to_drive(candidates) == {}
    clock[0] = 61 * thirtieth
    assert to_drive(candidates) == {}
    clock[0] = 62 * thirtieth
    assert set(to_drive(candidates)) == {made.id}, "its owner is gone"


def test_a_lease_that_was_seen_before_it_expired_is_taken_over_soon(
    candidates: Candidates, sqlite_store: Store, clock: list[float]
) -> None:
    made = create(sqlite_store, "api")
    sqlite_store.drivers.claim(made.id, ELSEWHERE, 30.0, NOW)
    taken = []
    for second in range(40):
        clock[0] = float(second)
        found = candidates.find(NOW + second, busy=[], outage=False, adopt=False)
        taken += [second for one in found.to_drive if one.record.id == made.id]
    assert taken[0] == 32


def test_leases_of_the_dead_are_looked_for_only_now_and_then(
    candidates: Candidates, sqlite_store: Store, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with many hosts reads all valid leases for this."""
    monkeypatch.setattr(module, "LEASES_S", 2.0)
    made = create(sqlite_store, "api")
    sqlite_store.drivers.claim(made.id, ELSEWHERE, 3600.0, NOW)
    assert to_drive(candidates) == {}
    candidates.add_dead([ELSEWHERE])
    found = []
    for clock[0] in (1.0, 2.0):
        found.append(set(to_drive(candidates)))
    assert found == [set(), {made.id}]
