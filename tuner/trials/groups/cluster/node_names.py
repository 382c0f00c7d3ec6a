"""Name the nodes of a cluster for messages and for the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of each node, by node id: its host name, or its address if several addresses share that host name.

    nodes: the nodes in the form of `ray.nodes`.
    """
    addresses: dict[str, set[str]] = {}
    for node in nodes:
        addresses.setdefault(node["NodeManagerHostname"], set()).add(node["NodeManagerAddress"])
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        if len(addresses[node["NodeManagerHostname"]]) > 1
        else node["NodeManagerHostname"]
        for node in nodes
    }
