"""Test the errors of workers that did not start. `test_pool` builds groups on a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions as r

from tuner.trials.groups.pools.builder import GroupBuilder, start_error
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


async def test_a_group_whose_node_is_cut_while_it_starts_is_waiting_again() -> None:
    """The event stayed set, so the second attempt counted as placed while it waited for its resources."""
    placed = asyncio.Event()
    seen: list[bool] = []
    builder: Any = object.__new__(GroupBuilder)
    builder.cut = SimpleNamespace(ids=set, add=lambda node: None)
    builder.end_soon = lambda group, hand_on=False: None

    async def reserve(*_: Any) -> Any:
        return SimpleNamespace(actors=[], held_since=0.0)

    async def until_placed(*_: Any) -> bool:
        seen.append(placed.is_set())
        if len(seen) == 2:
            raise LookupError("it was seen")
        return True

    async def cut_while_starting(*_: Any) -> str:
        return "node"

    builder._reserve, builder._until_placed, builder._cut_while_starting = reserve, until_placed, cut_while_starting
    builder._create_actors = lambda launch, group: None
    launch: Any = SimpleNamespace(scaling=SimpleNamespace(num_workers=1))
    with pytest.raises(LookupError):
        await builder.build(launch, None, lambda why: None, placed)
    assert seen == [False, False]
