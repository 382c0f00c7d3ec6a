"""Describe the cluster for the API: nodes, agents, the worker groups on them, and the worker groups that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.trials.groups.cluster.node_names import node_names
from tuner.trials.groups.pools.admission import Entitlement, HeldGroup, WaitingGroup

Held = tuple[HeldGroup, Sequence[Mapping[str, Any]]]
"""A worker group that has resources, and its ranks."""


def overview(
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, float],
    held: Sequence[Held],
    waiting: Sequence[WaitingGroup],
    entitlements: Mapping[str, Entitlement],
    shares: Mapping[str, float],
    joining: Sequence[tuple[Mapping[str, float], int]] = (),
    agents: Sequence[Mapping[str, Any]] = (),
    *,
    began: float,
) -> dict[str, Any]:
    """Return a description of the cluster as JSON.

    Args:
        nodes: the nodes in the form of `ray.nodes`.
        available: the free resources of the whole cluster, according to Ray.
        held: the worker groups that have resources or run on agents, each with its ranks.
        waiting: the worker groups that wait for resources, in the order of the queue. Those that are starting come first,
            those that wait for an agent last.
        entitlements: the priority and the weight of each experiment of this host.
        shares: the dominant share of each experiment, as a fraction of the cluster.
        joining: the resources of each type of node that may still join, and how many of them may.
        agents: the agents, as `AgentGroups.agents` returns them.
        began: the time at which the monotonic clock was 0, as a Unix timestamp.
    """
    living = [node for node in nodes if node["Alive"]]
    names = node_names(living)
    total: dict[str, float] = {}
    for node in living:
        for name, amount in node["Resources"].items():
            total[name] = total.get(name, 0.0) + amount
    return {
        "cpus": total.get("CPU", 0.0),
        "cpus_in_use": max(0.0, total.get("CPU", 0.0) - available.get("CPU", 0.0)),
        "gpus": total.get("GPU", 0.0),
        "gpus_in_use": max(0.0, total.get("GPU", 0.0) - available.get("GPU", 0.0)),
        "nodes": [_node(node, names[node["NodeID"]], [*(group for group, _ in held), *waiting]) for node in living],
        "may_join": [
            {"count": count, "cpus": resources.get("CPU", 0.0), "gpus": resources.get("GPU", 0.0)}
            for resources, count in joining
            if count
        ],
        "agents": [dict(agent) for agent in agents],
        "groups": [
            {
                "experiment_id": group.experiment,
                "trial_id": group.trial,
                "segment_id": group.segment_id,
                "resources": dict(group.bundle),
                "since": began + group.since,
                "ranks": list(ranks),
            }
            for group, ranks in sorted(held, key=lambda one: one[0].since)
        ],
        "waiting": [
            {
                "position": position,
                "experiment_id": group.experiment,
                "trial_id": group.trial,
                "segment_id": group.segment_id,
                "workers": group.workers,
                "resources": dict(group.bundle),
                "since": began + group.since,
                "priority": group.priority,
                "reserved": group.reserved,
                "reason": group.reason,
                "nodes": list(group.nodes),
            }
            for position, group in enumerate(waiting, 1)
        ],
        "experiments": [
            {
                "experiment_id": name,
                "priority": entitlement.priority,
                "weight": entitlement.weight,
                "share": shares.get(name, 0.0),
                "groups": sum(group.experiment == name for group, _ in held),
                "waiting": sum(group.experiment == name for group in waiting),
            }
            for name, entitlement in entitlements.items()
        ],
    }


def with_local(
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, float],
    held: Sequence[Held],
    local: Mapping[str, Any],
    local_held: Sequence[Held],
) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float], Sequence[Held]]:
    """Add the worker groups that run without Ray on the driver's machine to that machine's node.

    Add a node for the machine if the cluster has none. Return (nodes, available, held) for `overview`. Ray does not know
    these groups, so more CPUs can be in use than there are.

    local: the driver's machine, in the form of `ray.nodes`.
    """
    name, cpus = local["NodeManagerHostname"], available.get("CPU", 0.0)
    node = next((one for one in nodes if one["Alive"] and one["NodeManagerHostname"] == name), None)
    if node is None:
        nodes, node, cpus = [*nodes, local], local, cpus + local["Resources"]["CPU"]
    here = node["NodeID"]
    placed = [
        (replace(group, nodes=(here,) * len(group.nodes)), [{**rank, "node": here} for rank in ranks])
        for group, ranks in local_held
    ]
    used = sum(group.bundle.get("CPU", 0.0) for group, _ in placed)
    return nodes, {**available, "CPU": cpus - used}, [*held, *placed]


def _node(node: Mapping[str, Any], name: str, groups: Sequence[HeldGroup | WaitingGroup]) -> dict[str, Any]:
    used: dict[str, float] = {}
    for group in groups:
        for resource, amount in group.bundle.items():
            used[resource] = used.get(resource, 0.0) + amount * group.nodes.count(node["NodeID"])
    resources = node["Resources"]
    return {
        "id": node["NodeID"],
        "name": name,
        "address": node["NodeManagerAddress"],
        "cpus": resources.get("CPU", 0.0),
        "cpus_in_use": used.get("CPU", 0.0),
        "gpus": resources.get("GPU", 0.0),
        "gpus_in_use": used.get("GPU", 0.0),
    }
