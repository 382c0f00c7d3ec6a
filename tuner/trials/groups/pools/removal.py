"""Remove placement groups, but not while Ray is placing them.

Ray (seen with 2.60) first reserves the resources on the nodes, and then commits them. If the placement group is removed
in between, they stay reserved until the raylet exits.
"""

from __future__ import annotations

import contextlib
import time

from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

PLACED_WITHIN_S = 10.0
"""The maximum number of seconds that a removal waits while Ray is placing the group."""
LOOK_S = 0.02
"""Seconds between two checks of whether Ray is still placing the group."""
_BEING_PLACED = ("QUEUED", "SCHEDULING_STARTED")


def is_being_placed(placement: PlacementGroup) -> bool:
    """Return whether Ray may be giving resources to the placement group at this moment."""
    return placement_group_table(placement)["stats"]["scheduling_state"] in _BEING_PLACED


def remove(placement: PlacementGroup) -> None:
    """Remove a placement group once Ray is no longer placing it, or after `PLACED_WITHIN_S`. This blocks."""
    deadline = time.monotonic() + PLACED_WITHIN_S
    while not remove_unless_being_placed(placement):
        if time.monotonic() >= deadline:
            remove_placement_group(placement)
            return
        time.sleep(LOOK_S)


def remove_unless_being_placed(placement: PlacementGroup) -> bool:
    """Remove a placement group unless Ray is placing it. Return whether it was removed. This blocks.

    The removal follows the check at once, because Ray may begin to place the group at any moment.
    """
    with contextlib.suppress(Exception):  # if Ray does not report the group's state, the group is removed at once
        if is_being_placed(placement):
            return False
    remove_placement_group(placement)
    return True
