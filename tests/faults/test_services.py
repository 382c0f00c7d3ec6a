"""The API is killed between commit and answer, the database's answers get lost, and clients of streams vanish."""

from __future__ import annotations

import pytest

from tests.api.conftest import SPEC
from tests.faults.campaign import Campaign, Counts, kill_the_api, lose_answers, streams_that_vanish
from tests.faults.service import MOMENTS
from tuner.store import Store


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_api_that_is_killed_in_a_request_has_made_one_experiment(sqlite_url: str, moment: str) -> None:
    kill_the_api(sqlite_url, Counts(), moment, SPEC)


@pytest.mark.postgres
def test_answers_to_commits_that_are_lost_change_nothing(postgres_url: str) -> None:
    lose_answers(postgres_url, Counts())


def test_streams_that_vanish_leave_nothing(sqlite_url: str) -> None:
    Campaign("fifo", sqlite_url, Counts())
    with Store.open(sqlite_url) as store:
        [record] = store.experiments.page().items
    streams_that_vanish(sqlite_url, record.public_id, Counts(), 25)
