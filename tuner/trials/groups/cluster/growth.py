"""Work out which nodes an autoscaler may still add to a cluster. This module does not use Ray.

Each node that may join gets a placeholder name, so that groups can be assigned to it as to any other node. Ray is asked
for resources only when a group is placed; its autoscaler then starts a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PREFIX = "may-join/"
_HEAD = "node:__internal_head__"  # the resource that marks Ray's head node


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node that an autoscaler may add.

    resources: the resources of one node. most: the maximum number of nodes of this type in the cluster.
    """

    resources: Mapping[str, float]
    most: int


def count_joining(
    types: Sequence[NodeType], nodes: Mapping[str, Mapping[str, float]]
) -> list[tuple[Mapping[str, float], int]]:
    """Return the resources of each type of node that may still join, and how many nodes of it may.

    A node is taken to be of the first type whose resources it matches. The head node is of no type.

    nodes: the resources of the nodes that have joined, by node id.
    """
    there = [0] * len(types)
    for resources in nodes.values():
        same = (at for at, kind in enumerate(types) if there[at] < kind.most and _is_of(resources, kind))
        if _HEAD not in resources and (found := next(same, None)) is not None:
            there[found] += 1
    return [(kind.resources, kind.most - there[at]) for at, kind in enumerate(types)]


def may_join(types: Sequence[NodeType], nodes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the resources of the nodes that may still join, by their placeholder names; see `count_joining`."""
    return {
        f"{_PREFIX}{at}/{index}": dict(resources)
        for at, (resources, count) in enumerate(count_joining(types, nodes))
        for index in range(count)
    }


def is_there(node: str) -> bool:
    """Return whether this is an actual node, and not one that may join."""
    return not node.startswith(_PREFIX)


def all_there(nodes: Iterable[str]) -> bool:
    """Return whether all of these are actual nodes."""
    return all(map(is_there, nodes))


def _is_of(resources: Mapping[str, float], kind: NodeType) -> bool:
    """Return whether a node has the CPUs, GPUs and custom resources of a type. Memory is ignored, because Ray measures it."""
    measured = ("memory", "object_store_memory")
    names = {name for name in resources if not name.startswith("node:")} | kind.resources.keys()
    return all(
        abs(resources.get(name, 0.0) - kind.resources.get(name, 0.0)) < 1e-6
        for name in names
        if name not in measured and not name.startswith("accelerator_type:")
    )
