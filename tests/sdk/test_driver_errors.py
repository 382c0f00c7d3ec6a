"""Test that errors of a driver host on Ray reach a script as the errors that the host raised."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tuner.errors import ClusterUnreachable, SpecError, StoreError, TunerError
from tuner.sdk import driving
from tuner.sdk.live.interrupts import Interrupts

pytestmark = pytest.mark.ray


class Silent:
    def update(self) -> None:
        pass


@ray.remote(num_cpus=0)
class Host:
    """A driver host that cannot work."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def start(self) -> None:
        raise self._error

    def drive(self, experiment: str, why: str) -> None:
        raise self._error

    def poke(self) -> None:
        pass


def starts(host: Any, interrupts: Interrupts) -> None:
    driving._wait_for_start(host, progress=Silent(), interrupts=interrupts)


def drives(host: Any, interrupts: Interrupts) -> None:
    driving._wait(host, "exp", Silent(), interrupts, "")  # type: ignore[arg-type]


@ray.remote(num_cpus=0)
class EarlierHost:
    """A driver host of an earlier version, which takes fewer arguments."""

    def __init__(self, *given: str) -> None:
        self._name = self._named(*given)

    def _named(self, name: str) -> str:
        return name

    def start(self) -> None:
        pass


def test_a_ray_with_another_version_of_tuner_is_named_as_the_reason(local_ray: None) -> None:
    """The error ended with "HostActor.__init__() takes 3 positional arguments but 4 were given"."""
    host = EarlierHost.remote("tuner-host-1", "its sources")  # type: ignore[attr-defined]
    with pytest.raises(
        ClusterUnreachable, match=r"this Ray have another version of tuner than this one \(.*`tuner serve --stop`"
    ):
        starts(host, Interrupts(lambda name: None))


class Told(Exception):
    """Ends the wait for a host when the script says something."""


class Telling(Silent):
    def say(self, text: str) -> None:
        raise Told(text)


def test_a_host_that_does_not_start_is_not_waited_for_without_a_word(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts its processes again and again if each one fails, such as for a package that is broken."""
    monkeypatch.setattr(driving, "SLOW_START_S", 0.0)
    host = Host.options(resources={"absent": 1}).remote(ValueError())  # type: ignore[attr-defined]
    with pytest.raises(Told, match=r"the driver has not started on Ray in 0 s\..* raylet\.err in .*/logs says why"):
        driving._wait_for_start(host, progress=Telling(), interrupts=Interrupts(lambda name: None))  # type: ignore[arg-type]
    ray.kill(host)


@pytest.mark.parametrize("repeats", [True, False])
def test_a_host_that_starts_late_and_is_not_reached_at_once_is_called_again(
    monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    """The call was not repeated if the process had started after half a minute, as when a node had to join."""
    now, calls = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def call() -> int:
        calls[0] += 1
        return calls[0]

    def wait(refs: list[int], timeout: float) -> tuple[list[int], list[int]]:
        now[0] += driving.SLOW_START_S - 1.0 if refs == [1] else 0.0
        return refs, []

    def get(call: int) -> None:
        if call == 1 or not repeats:
            raise ray.exceptions.ActorUnavailableError("the call was lost", None)

    monkeypatch.setattr(driving, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    host = SimpleNamespace(start=SimpleNamespace(remote=call))
    if repeats:
        starts(host, Interrupts(lambda name: None))
        assert calls == [2]
        return
    with pytest.raises(ClusterUnreachable):
        starts(host, Interrupts(lambda name: None))
    assert now[0] == driving.SLOW_START_S - 1.0 + driving.UNREACHABLE_S


@pytest.mark.parametrize("call", [starts, drives])
@pytest.mark.parametrize(
    "error", [StoreError("disk full"), SpecError("expected a number", "/space/lr"), ValueError("a bug")]
)
def test_a_script_gets_the_error_of_the_host(
    local_ray: None, error: Exception, call: Callable[[Any, Interrupts], None]
) -> None:
    host = Host.remote(error)  # type: ignore[attr-defined]
    try:
        with pytest.raises(type(error), match=str(error)) as found:
            call(host, Interrupts(lambda: None))
    finally:
        ray.kill(host)
    assert type(found.value) is type(error), "not Ray's subclass, whose text is a remote traceback"
    if not isinstance(error, TunerError):
        assert "in start" in str(found.value.__cause__) or "in drive" in str(found.value.__cause__)
