"""Tell a rank which of its trial's nodes are about to be preempted, as `ray.train.get_preemption_info` does."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from tuner.errors import TunerError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds for which Ray's answer is reused, since a training loop may ask at every step."""


class Notices:
    """The nodes of a trial's ranks that are about to be preempted.

    Args:
        rank: this rank.
        world_size: the number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._size = rank, world_size
        self._nodes: list[str] | None = None  # the node of each rank
        self._looked_at = float("-inf")
        self._draining: Mapping[str, int] = {}

    def affected(self) -> dict[str, Any] | None:
        """Return the affected ranks by node, and the earliest time at which one of their nodes will be gone; None if none is.

        The answer has the fields of Ray's `PreemptionInfo`. All ranks must call this the same number of times: rank 0 asks
        Ray, and the others get its answer.

        Raises:
            TunerError: there are several ranks and no process group.
        """
        import ray

        if not ray.is_initialized():  # on the local executor, there is only this machine
            return None
        node = ray.get_runtime_context().get_node_id()
        if self._size == 1:
            return _affected([node], self._look())
        import torch.distributed as dist

        if not dist.is_initialized():
            raise TunerError(
                "ray.train.get_preemption_info needs torch.distributed, which backend='none' does not set up"
            )
        if self._nodes is None:
            found: list[Any] = [None] * self._size
            dist.all_gather_object(found, node)
            self._nodes = found
        answers: list[Any] = [_affected(self._nodes, self._look()) if self._rank == 0 else None]
        dist.broadcast_object_list(answers, src=0)
        answer: dict[str, Any] | None = answers[0]
        return answer

    def _look(self) -> Mapping[str, int]:
        """Return the nodes that are being drained, each with the time when it will be gone, in ms since the epoch; 0 if unknown.

        If Ray does not respond, for example while its head node is restarting, its last answer still holds. An error
        here would fail the trial, and leave its other ranks waiting for rank 0's answer.
        """
        if time.monotonic() - self._looked_at >= LOOK_S:
            try:
                self._draining = draining_nodes()
            except Exception as error:
                log.warning("Ray does not say which nodes are about to be preempted: %s", error)
            self._looked_at = time.monotonic()
        return self._draining


def draining_nodes() -> Mapping[str, int]:
    """Return the nodes that are being drained, each with the time when it will be gone, in ms since the epoch; 0 if unknown."""
    from ray._private.state import state  # there is no public function; Ray's own libraries call the same one

    found: Mapping[str, int] = state.get_draining_nodes()
    return found


def _affected(nodes: list[str], draining: Mapping[str, int]) -> dict[str, Any] | None:
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        if node in draining:
            ranks.setdefault(node, []).append(rank)
    if not ranks:
        return None
    deadlines = [draining[node] for node in ranks if draining[node]]
    return {"deadline_ms": min(deadlines, default=None), "preempted_node_to_ranks": ranks}
