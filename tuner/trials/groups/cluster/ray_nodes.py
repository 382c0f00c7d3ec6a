"""Ask Ray which nodes are alive, which are about to be taken away, and which ones an autoscaler may add."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray._private.state import state

from tuner.trials.groups.cluster.growth import NodeType

log = logging.getLogger(__name__)

_MANY = 1000  # the number of nodes that stands for "as many as needed"


def live_nodes() -> dict[str, dict[str, float]]:
    """Return the resources of every live node."""
    return {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}


def leaving_nodes() -> dict[str, float | None]:
    """Return the nodes that are being drained, each with the time at which it will be gone, or None if that is unknown.

    Nodes are drained when their cloud provider has announced a preemption, or by hand with `ray drain-node`. The time
    is in seconds since the epoch. Ray has no public function for this; its own libraries call the same one.
    """
    draining: Mapping[str, int] = state.get_draining_nodes()
    return {node: deadline / 1000 if deadline else None for node, deadline in draining.items()}


def known_types() -> Sequence[NodeType]:
    """Return the node types that an autoscaler may add, as far as Ray knows them. Most autoscalers do not tell Ray."""
    try:
        config: Any = state.get_cluster_config()
    except Exception:  # the function is not public, so it may be missing
        log.info("Ray does not say which nodes may join", exc_info=True)
        return ()
    groups = config.node_group_configs if config is not None else ()
    return [
        NodeType(
            {name: float(amount) for name, amount in group.resources.items() if amount > 0},
            _MANY if group.max_count < 0 else group.max_count,
        )
        for group in groups
        if group.max_count
    ]
