"""Calls of the driver's actor that outlast a connection that breaks for a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tuner.errors import DriverSilent
from tuner.trials.messages.rpc import ask

UNAVAILABLE = ray.exceptions.ActorUnavailableError("a connection broke", None)


class Driver:
    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0
        self.timeouts: list[float | None] = []
        self.note = SimpleNamespace(remote=lambda *args: args)

    def get(self, args: Any, timeout: float | None) -> Any:
        self.asked += 1
        self.timeouts.append(timeout)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return (answer, args)


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.trials.messages.rpc.time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("no_sleep")
def test_an_actor_that_is_out_of_reach_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(UNAVAILABLE, UNAVAILABLE, "done")
    monkeypatch.setattr(ray, "get", driver.get)
    assert ask(driver.note, "seg", 1) == ("done", ("seg", 1))
    assert driver.asked == 3
    assert driver.timeouts == [None] * 3, "a driver may take long for an answer"


def test_an_answer_that_must_come_in_time_has_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(UNAVAILABLE, "done")
    monkeypatch.setattr(ray, "get", driver.get)
    assert ask(driver.note, patience_s=20.0, in_time=True) == ("done", ())
    first, second = driver.timeouts
    assert first is not None
    assert second is not None
    assert 0 < second < first <= 20


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize(
    ("trouble", "raised"),
    [(UNAVAILABLE, DriverSilent), (ray.exceptions.ActorDiedError(), ray.exceptions.ActorDiedError)],
)
def test_one_that_stays_away_or_is_dead_is_told(
    trouble: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(trouble)
    monkeypatch.setattr(ray, "get", driver.get)
    with pytest.raises(raised):
        ask(driver.note, patience_s=0.0)
    assert driver.asked == 1
