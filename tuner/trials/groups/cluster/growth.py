"""Work out which nodes an autoscaler may still add to a cluster. This module does not use Ray.

The nodes that may join have names of their own, so that groups can be placed on them as on any other node. Ray is asked
for resources only when a group is placed; its autoscaler then starts a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PREFIX = "may-join/"
_HEAD = "node:__internal_head__"  # the resource that marks Ray's head node


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of nodes that an autoscaler may add.

    resources: the resources of one node. most: how many nodes of the type the cluster may have.
    """

    resources: Mapping[str, float]
    most: int


def may_join(types: Sequence[NodeType], nodes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the resources of the nodes that may still join, by names that no node has.

    A node counts as one of the first type whose resources it has. The head node counts as none.

    nodes: the resources of the nodes that are there.
    """
    there = [0] * len(types)
    for resources in nodes.values():
        same = (at for at, kind in enumerate(types) if there[at] < kind.most and _is_of(resources, kind))
        if _HEAD not in resources and (found := next(same, None)) is not None:
            there[found] += 1
    return {
        f"{_PREFIX}{at}/{index}": dict(kind.resources)
        for at, kind in enumerate(types)
        for index in range(kind.most - there[at])
    }


def is_there(node: str) -> bool:
    """Return whether this is a node of the cluster, and not one that may join."""
    return not node.startswith(_PREFIX)


def all_there(nodes: Iterable[str]) -> bool:
    """Return whether all of these are nodes of the cluster."""
    return all(map(is_there, nodes))


def _is_of(resources: Mapping[str, float], kind: NodeType) -> bool:
    """Return whether a node has the CPUs, GPUs and custom resources of a type. Ray sets the memory itself."""
    measured = ("memory", "object_store_memory")
    names = {name for name in resources if not name.startswith("node:")} | kind.resources.keys()
    return all(
        abs(resources.get(name, 0.0) - kind.resources.get(name, 0.0)) < 1e-6
        for name in names
        if name not in measured and not name.startswith("accelerator_type:")
    )
