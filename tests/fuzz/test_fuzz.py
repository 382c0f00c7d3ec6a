"""The fuzzer's short form; `make fuzz` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.world import SCHEDULERS, World

TROUBLE = range(3)
SEEDS, MORE_SEEDS = (3, 5), (4, 6, 7)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.long)], ids=["few", "more"])
@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
def test_nothing_is_lost_whatever_the_cluster_and_its_users_do(scheduler: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        assert World(seed, scheduler).run().ended


@pytest.mark.long  # the short form of the fuzzer is above; this one tests the fuzzer itself
def test_every_kind_of_trouble_really_comes() -> None:
    """A fuzzer in whose world nothing goes wrong any more would find nothing, and nobody would notice."""
    worlds = [World(seed, scheduler) for seed in TROUBLE for scheduler in SCHEDULERS]
    for world in worlds:
        assert world.run().ended
    trace = "\n".join(line for world in worlds for line in world.trace)
    for trouble in (
        "restart",
        "checkpoint_lost",
        "Commanded",
        "CheckpointDeleted",
        "nan",
        "waits=False",
        "kind='user'",
        "cause='disk_full'",
        "paused, because a disk is full",
        "Amended(",
        "'space': {",
        "Enqueued(",
        "asked=True, checkpoint='c",
        "command='retry'",
        "command='kill'",
        "command='continue'",
        "pinned=True",
        "pinned=False",
        "GpuHoursSpent(",
        "RoomWanted(",
        "SlotsChanged(",
        "uploading=(CheckpointInfo(",
        "UploadFailed(",
        "is lost: the driver stopped before its upload was complete",
        "WorkersChanged(",
        "ClockJumped(",
        "repeat_of=1",
    ):
        assert trouble in trace, trouble
    for cause in ("Retry(", "Resume(", "Exploit(", "Pause(", "Stop(", "Complete(", "grows at", "gives way at"):
        assert cause in trace, cause


@pytest.mark.parametrize(("scheduler", "seed"), [("pbt", 302_934)])
def test_what_the_long_form_has_found_last(scheduler: str, seed: int) -> None:
    """A donor's checkpoint was ready before its report made it usable, and was then not used."""
    assert World(seed, scheduler, users=False, late_uploads=False).run().ended
