"""Kill drivers, tear checkpoints, let drivers sleep and compete: the short form of `make chaos`."""

from __future__ import annotations

import random

import pytest

from tests.faults.campaign import SCENARIOS, Campaign, Counts
from tests.faults.driver import How
from tuner.errors import CheckpointError


def some(places: list[str], of_each: int) -> list[int]:
    """Return the numbers of some places of each kind."""
    draw = random.Random(7)
    kinds: dict[str, list[int]] = {}
    for number, kind in enumerate(places, 1):
        kinds.setdefault(kind, []).append(number)
    return sorted(n for numbers in kinds.values() for n in draw.sample(numbers, min(of_each, len(numbers))))


def test_a_driver_that_is_killed_anywhere_changes_nothing(sqlite_url: str) -> None:
    counts = Counts()
    campaign = Campaign("asha", sqlite_url, counts)
    assert {"statement", "before a commit", "after a commit", "launch", "checkpoint, committed"} <= set(campaign.places)
    for place in some(campaign.places, of_each=1):
        campaign.kill_at(place)
    assert counts.faults["kills"] >= 9
    campaign.kill_again_and_again(seed=1)


@pytest.mark.parametrize("scenario", ["pbt", "pause", "stop", "cancel"])
def test_a_driver_that_is_killed_while_trials_exploit_or_leave_changes_nothing(sqlite_url: str, scenario: str) -> None:
    counts = Counts()
    campaign = Campaign(scenario, sqlite_url, counts)
    kinds = ("interrupt", "statement", "before a commit", "after a commit")
    places = [place for place in some(campaign.places, of_each=1) if campaign.places[place - 1] in kinds]
    for place in places:
        campaign.kill_at(place)
    assert counts.faults["kills"] == len(places) >= 3


def test_a_kill_does_not_change_what_the_default_search_draws(sqlite_url: str) -> None:
    campaign = Campaign("freeze_thaw", sqlite_url, Counts())
    launches = [number for number, kind in enumerate(campaign.places, 1) if kind == "launch"]
    campaign.kill_at(launches[2])


@pytest.mark.long  # the same with every scenario and more places
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario(database_url: str, scenario: str) -> None:
    campaign = Campaign(scenario, database_url, Counts())
    for place in some(campaign.places, of_each=3):
        campaign.kill_at(place)


def test_a_torn_checkpoint_is_passed_over(sqlite_url: str) -> None:
    counts = Counts()
    campaign = Campaign("asha", sqlite_url, counts)
    for place in some(campaign.places, of_each=1)[4:7]:
        campaign.tear_after(place)
    assert counts.faults["torn checkpoints"] >= 2


def test_a_trial_whose_donors_checkpoint_is_torn_goes_on_from_its_own(sqlite_url: str) -> None:
    counts = Counts()
    campaign = Campaign("pbt", sqlite_url, counts)
    launches = [number for number, kind in enumerate(campaign.places, 1) if kind == "launch"]
    for place in launches[2:5]:
        campaign.tear_after(place)
    assert counts.faults["torn checkpoints"] == counts.outcomes == 3
    assert campaign.gone_back >= 1


def test_a_driver_that_slept_writes_nothing_when_it_wakes_up(sqlite_url: str) -> None:
    counts = Counts()
    campaign = Campaign("pbt", sqlite_url, counts)
    for place in campaign.outside_of_transactions()[5::40]:
        campaign.sleep_at(place)
    assert counts.faults["holders that slept"] >= 2


def test_what_was_flushed_survives_a_loss_of_power(sqlite_url: str) -> None:
    counts = Counts()
    campaign = Campaign("asha", sqlite_url, counts)
    places = [place for place in some(campaign.places, of_each=1) if campaign.places[place - 1] != "statement"]
    for place in places[-3:]:
        campaign.lose_power_at(place, seed=place)
    assert counts.faults["losses of power"] == 3
    assert counts.lost > 0


def test_without_a_flush_a_loss_of_power_damages_checkpoints(sqlite_url: str) -> None:
    campaign = Campaign("fifo", sqlite_url, Counts())
    last = len(campaign.places) - campaign.places[::-1].index("before a commit")
    with pytest.raises(CheckpointError):
        campaign.lose_power_at(last, seed=1, durable=False)


@pytest.mark.parametrize("seconds", [pytest.param(86_400.0, marks=pytest.mark.long), -86_400.0])
def test_a_clock_that_jumps_changes_nothing(sqlite_url: str, seconds: float) -> None:
    campaign = Campaign("pbt", sqlite_url, Counts())
    campaign.set_the_clock_at(len(campaign.places) // 2, seconds)


@pytest.mark.parametrize("how", [How.FULL, How.LOCKED])
def test_a_database_that_refuses_writes_for_a_moment_changes_nothing(sqlite_url: str, how: How) -> None:
    campaign = Campaign("asha", sqlite_url, Counts())
    campaign.refuse_writes_at(campaign.outside_of_transactions()[20], how)


def test_reports_that_must_not_count_do_not(sqlite_url: str) -> None:
    campaign = Campaign("pbt", sqlite_url, Counts())
    campaign.make_noise(len(campaign.places) // 2)


def test_one_of_several_drivers_gets_the_experiment(sqlite_url: str) -> None:
    Campaign("fifo", sqlite_url, Counts()).claim_at_once()


def test_the_campaign_notices_what_is_wrong(sqlite_url: str) -> None:
    """An outcome that differs, and a file that nobody needs."""
    campaign = Campaign("fifo", sqlite_url, Counts())
    campaign.expected["trials"][0] = "another"
    with pytest.raises(AssertionError, match="killed at place 40"):
        campaign.kill_at(40)
    with campaign.new() as run:
        run.drive()
        (run.folder / "checkpoints" / "trial_00000" / "iteration_00000009_1").mkdir()
        with pytest.raises(AssertionError, match="files without a row"):
            run.finish()
