"""Assign ranks to processes, and check whether a group would fit if nothing else ran on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.domain.experiment import Scaling
from tuner.names import nearest, resource_meant
from tuner.trials.groups.cluster.growth import NodeType, may_join
from tuner.trials.groups.cluster.ray_nodes import live_nodes
from tuner.trials.messages.peer_lines import Peer
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata


def assign_ranks(workers: Sequence[WorkerMetadata], scaling: Scaling) -> tuple[list[int], list[RankAssignment]]:
    """Return (order, assignments). `order[rank]` is the index of the worker that gets this rank.

    The ranks on a node are consecutive and sorted by their GPUs. The nodes are in the order of their first workers.
    """
    nodes = list(dict.fromkeys(worker.node for worker in workers))
    order = sorted(range(len(workers)), key=lambda i: (nodes.index(workers[i].node), _gpu_order(workers[i]), i))
    by_node = {node: [i for i in order if workers[i].node == node] for node in nodes}
    shared = False
    devices: dict[int, tuple[tuple[str, ...], tuple[int, ...]]] = {}
    for indices in by_node.values():
        union = tuple(dict.fromkeys(gpu for i in indices for gpu in workers[i].gpus))
        shared = shared or len(union) < sum(len(workers[i].gpus) for i in indices)
        for i in indices:
            devices[i] = union, tuple(union.index(gpu) for gpu in workers[i].gpus)
    backend = scaling.backend
    if backend == "auto":
        backend = "nccl" if any(worker.gpus for worker in workers) and not shared else "gloo"
    first = workers[order[0]]
    leaders = [(order.index(indices[0]), workers[indices[0]]) for indices in by_node.values()]
    return order, [
        RankAssignment(
            rank=rank,
            world_size=len(workers),
            local_rank=by_node[workers[i].node].index(i),
            local_world_size=len(by_node[workers[i].node]),
            node_rank=nodes.index(workers[i].node),
            nodes=len(nodes),
            gpus=devices[i][0],
            devices=devices[i][1],
            channel_address=first.channel_address,
            token=first.token,
            backend=backend,
            peers=_watched(nodes.index(workers[i].node), leaders) if i == by_node[workers[i].node][0] else (),
            watchers=len(nodes) - 1 - nodes.index(workers[i].node) if rank and i == by_node[workers[i].node][0] else 0,
        )
        for rank, i in enumerate(order)
    ]


def _watched(node: int, leaders: Sequence[tuple[int, WorkerMetadata]]) -> tuple[Peer, ...]:
    """Return the first rank of each node before this one, except rank 0, to which every rank is connected anyway."""
    return tuple(
        (rank, *worker.channel_address) for rank, worker in leaders[1:node] if worker.channel_address is not None
    )


def _gpu_order(worker: WorkerMetadata) -> tuple[tuple[int, str], ...]:
    return tuple((int(gpu) if gpu.isdigit() else 0, gpu) for gpu in worker.gpus)


def lacking(scaling: Scaling, node_types: Callable[[], Sequence[NodeType]] = tuple) -> str | None:
    """Return why a group with this scaling would not fit on the empty cluster, or None if it would.

    node_types: a function that returns the node types that an autoscaler may add.
    """
    nodes = live_nodes()
    if unmet(scaling, [*nodes.values()]) is None:
        return None
    return unmet(scaling, [*nodes.values()], [*may_join(node_types(), nodes).values()])


def unmet(
    scaling: Scaling, nodes: Sequence[Mapping[str, float]], joining: Sequence[Mapping[str, float]] = ()
) -> str | None:
    """Return why a group would not fit on these nodes if they were empty, or None if it would.

    Args:
        scaling: the group's size and resources.
        nodes: the resources of each node that is there.
        joining: the resources of each node that may still join. The group may use them too, but the reason names them separately.
    """
    bundle, count, strategy = scaling.bundle(), scaling.num_workers, scaling.placement_strategy
    for name, amount in bundle.items():
        there, more = (sum(node.get(name, 0.0) for node in part) for part in (nodes, joining))
        if there + more < amount * count - 1e-9:
            near = resource_meant(name) or nearest(name, _custom([*nodes, *joining]))
            meant = f"; did you mean {near!r}?" if near and not there + more else ""
            later = f", and the nodes that may still join have {more:g} {name}" if joining else ""
            return (
                f"{count} × {amount:g} {name} are requested, but the whole cluster has {there:g} {name}{later}{meant}"
            )
    now, soon = ([_times(node, bundle, count) for node in part] for part in (nodes, joining))
    fits = [*now, *soon]
    what = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
    if not any(fits):
        return f"no node of the cluster{' and none that may still join' if joining else ''} has {what}"
    if strategy == "STRICT_PACK" and max(fits) < count:
        later = f", and the largest that may still join {max(soon)}" if soon else ""
        return f"STRICT_PACK needs {count} × ({what}) on one node; the largest node holds {max(now, default=0)}{later}"
    if strategy == "STRICT_SPREAD" and sum(fit > 0 for fit in fits) < count:
        later = f", and {sum(fit > 0 for fit in soon)} more may join" if soon else ""
        return f"STRICT_SPREAD needs {count} nodes with {what} each; there are {sum(fit > 0 for fit in now)}{later}"
    if sum(fits) < count:
        later = f", and those that may still join {sum(soon)}" if soon else ""
        return f"{count} × ({what}) are requested; all nodes together hold {sum(now)}{later}"
    return None


def _times(node: Mapping[str, float], bundle: Mapping[str, float], count: int) -> int:
    """Return how many ranks fit on a node; `count` if they need no resources."""
    return min((int(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items()), default=count)


def _custom(nodes: Sequence[Mapping[str, float]]) -> set[str]:
    """Return the names of these nodes' custom resources, which an administrator has defined."""
    names = {name for node in nodes for name in node if not name.startswith("node:")}
    return names - {"CPU", "GPU", "memory", "object_store_memory"}
