"""Test the errors of workers that did not start. `test_pool` builds groups on a cluster."""

from __future__ import annotations

import pytest
import ray.exceptions as r

from tuner.trials.groups.pools.builder import start_error
from tuner.trials.messages.lost import LostAtStart


def raised() -> r.RayTaskError:
    return r.RayTaskError("Rank.__init__", "ImportError: no torch\n", ImportError("no torch"))


@pytest.mark.parametrize(
    "error",
    [
        r.RuntimeEnvSetupError("pip said no"),
        raised(),
        r.ActorDiedError(raised()),
    ],
)
def test_workers_that_would_fail_again_are_refused(error: r.RayError) -> None:
    found = start_error(error)
    assert not isinstance(found, LostAtStart)
    assert str(found).startswith("the workers could not be started: ")


@pytest.mark.parametrize(
    "error",
    [
        r.ActorDiedError(),
        r.ActorUnavailableError("gone", None),
        r.NodeDiedError("its node died"),
        r.ActorUnschedulableError("the node is dead"),
        r.ActorPlacementGroupRemoved(),
    ],
)
def test_workers_that_died_may_be_well_the_next_time(error: r.RayError) -> None:
    found = start_error(error)
    assert isinstance(found, LostAtStart)
    assert str(found).startswith("the workers were lost during start-up: ")
