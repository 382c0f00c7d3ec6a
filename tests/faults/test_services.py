"""The API is killed between commit and answer, the database's answers get lost, and clients of streams vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from tests.api.conftest import SPEC
from tests.faults import reports
from tests.faults.campaign import (
    Campaign,
    Counts,
    kill_the_api,
    lose_answers,
    slow_database,
    streams_that_break_off,
    streams_that_nobody_reads,
    streams_that_vanish,
)
from tests.faults.service import MOMENTS
from tuner.store import Store


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_api_that_is_killed_in_a_request_has_made_one_experiment(sqlite_url: str, moment: str) -> None:
    kill_the_api(sqlite_url, Counts(), moment, SPEC)


@pytest.mark.postgres
def test_answers_to_commits_that_are_lost_change_nothing(postgres_url: str) -> None:
    lose_answers(postgres_url, Counts())


@pytest.mark.postgres
def test_a_database_that_is_slow_and_away_changes_nothing(postgres_url: str) -> None:
    slow_database(postgres_url, Counts(), away_s=0.5)


def test_streams_that_break_off_miss_nothing(sqlite_url: str) -> None:
    streams_that_break_off(sqlite_url, Counts(), readers=4, idle=20)


def test_clients_that_read_nothing_cost_no_memory_and_delay_nobody(sqlite_url: str) -> None:
    streams_that_nobody_reads(sqlite_url, Counts(), mute=30, reports=2000)


def test_every_report_is_in_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the short form of `python -m tests.faults.reports`."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    assert reports.count(4000, 4, str(tmp_path)) == 4000
    tuner.shutdown()


def test_streams_that_vanish_leave_nothing(sqlite_url: str) -> None:
    Campaign("fifo", sqlite_url, Counts())
    with Store.open(sqlite_url) as store:
        [record] = store.experiments.page().items
    streams_that_vanish(sqlite_url, record.public_id, Counts(), 25)
