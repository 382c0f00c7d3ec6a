"""Test the nodes, groups and waiting groups that the API shows of the cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tuner.api.schemas import Cluster
from tuner.hosts.overview import overview, with_local
from tuner.trials.groups.pools.admission import Entitlement, HeldGroup, WaitingGroup

NODES = [
    {
        "NodeID": name,
        "NodeManagerHostname": f"host-{name}",
        "NodeManagerAddress": "10.0.0.1",
        "Alive": alive,
        "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 1e9},
    }
    for name, alive in (("a", True), ("b", True), ("gone", False))
]
ONE = {"CPU": 1.0, "GPU": 1.0}


def cluster_of(experiment: str, *, running: Sequence[str] = (), waiting: Sequence[str] = ()) -> dict[str, Any]:
    """Return the overview of the two nodes: each running trial has a rank on both, each waiting one asks for two."""
    held = [
        HeldGroup(experiment=experiment, trial=trial, segment_id=f"seg_{n}", nodes=("a", "b"), bundle=ONE, since=5.0)
        for n, trial in enumerate(running)
    ]
    ranks = [
        [{"rank": k, "node": node, "host": f"host-{node}", "pid": 7, "gpus": [str(n)]} for k, node in enumerate("ab")]
        for n in range(len(held))
    ]
    waits = [
        WaitingGroup(
            experiment=experiment,
            trial=trial,
            segment_id=f"seg_{trial}",
            workers=2,
            bundle=ONE,
            since=6.0,
            priority=0,
            reserved=n == 0,
            reason="needs 2 free GPUs, and there is none",
        )
        for n, trial in enumerate(waiting)
    ]
    gpus = 4.0 - 2 * len(held)
    free = {"CPU": 4.0 + gpus, "GPU": gpus}
    entitlements, shares = {experiment: Entitlement()}, {experiment: len(held) / 2}
    return overview(
        NODES, free, list(zip(held, ranks, strict=True)), waits, entitlements, shares, began=time.time() - 90
    )


def test_nodes_groups_and_what_waits() -> None:
    held = HeldGroup(
        experiment="exp_1", trial="trl_1", segment_id="seg_1", nodes=("a", "a", "b"), bundle=ONE, since=5.0
    )
    ranks = [
        {"rank": rank, "node": node, "host": f"host-{node}", "pid": 7, "gpus": ["0"]}
        for rank, node in enumerate(held.nodes)
    ]
    waits = WaitingGroup(
        experiment="exp_2",
        trial="trl_2",
        segment_id="seg_2",
        workers=2,
        bundle=ONE,
        since=6.0,
        priority=10,
        reserved=False,
        reason="waits for resources",
    )
    found = overview(
        NODES,
        {"CPU": 4.0, "GPU": 1.0},
        [(held, ranks)],
        [waits],
        {"exp_1": Entitlement(), "exp_2": Entitlement(priority=10)},
        {"exp_1": 0.75},
        began=1000.0,
    )
    shown = Cluster.of(found, {})
    assert (shown.cpus, shown.cpus_in_use, shown.gpus, shown.gpus_in_use) == (8.0, 4.0, 4.0, 3.0)
    assert [(node.id, node.name, node.gpus_in_use) for node in shown.nodes] == [
        ("a", "host-a", 2.0),
        ("b", "host-b", 1.0),
    ]
    [group] = shown.groups
    assert (group.experiment_id, group.since) == ("exp_1", "1970-01-01T00:16:45.000000Z")
    assert [(rank.rank, rank.host, rank.gpus) for rank in group.ranks] == [
        (0, "host-a", ["0"]),
        (1, "host-a", ["0"]),
        (2, "host-b", ["0"]),
    ]
    [wait] = shown.waiting
    assert (wait.position, wait.experiment_id, wait.trial_id, wait.priority) == (1, "exp_2", "trl_2", 10)
    assert [(one.experiment_id, one.share, one.groups, one.waiting) for one in shown.experiments] == [
        ("exp_1", 0.75, 1, 0),
        ("exp_2", 0.0, 0, 1),
    ]


def test_nodes_that_may_join_are_named_by_type() -> None:
    joining = [({"CPU": 16.0, "GPU": 4.0, "memory": 1e9}, 3), ({"CPU": 64.0}, 0), ({"CPU": 2.0}, 1)]
    found = overview(NODES, {}, [], [], {}, {}, joining, began=0.0)
    shown = Cluster.of(found, {})
    assert [(one.count, one.cpus, one.gpus) for one in shown.may_join] == [(3, 16.0, 4.0), (1, 2.0, 0.0)]
    assert shown.cpus == 8.0, "only the nodes that are there"
    del found["may_join"], found["agents"]
    older = Cluster.of(found, {})
    assert (older.may_join, older.agents) == ([], []), "as an older driver answers"


def test_a_group_that_starts_holds_its_part_of_its_node() -> None:
    """Ray counts its resources as in use, so nothing else may seem to use them."""
    starts = WaitingGroup(
        experiment="exp_1",
        trial="trl_1",
        segment_id="seg_1",
        workers=2,
        bundle=ONE,
        since=6.0,
        priority=0,
        reserved=False,
        reason="its processes are being started",
        nodes=("a", "a"),
    )
    found = overview(NODES, {"CPU": 6.0, "GPU": 2.0}, [], [starts], {}, {}, began=0.0)
    assert found["cpus_in_use"] == sum(node["cpus_in_use"] for node in found["nodes"]) == 2.0
    assert found["waiting"][0]["nodes"] == ["a", "a"]


def test_groups_without_ray_are_shown_on_the_node_of_the_drivers_machine() -> None:
    """The page said that nothing ran while trials of the local executor did."""
    ranks = [{"rank": 0, "node": "host-b", "host": "host-b", "pid": 7, "gpus": []}]
    held = HeldGroup(
        experiment="exp_1", trial="trl_1", segment_id="seg_1", nodes=("host-b",), bundle={"CPU": 1.0}, since=5.0
    )
    machine = {
        "NodeID": "host-b",
        "NodeManagerHostname": "host-b",
        "NodeManagerAddress": "127.0.0.1",
        "Alive": True,
        "Resources": {"CPU": 2.0},
    }
    free = {"CPU": 8.0, "GPU": 4.0}
    entitlements = {"exp_1": Entitlement()}

    def shown(machine: dict[str, Any]) -> dict[str, Any]:
        nodes, available, groups = with_local(NODES, free, [], machine, [(held, ranks)])
        return overview(nodes, available, groups, [], entitlements, {"exp_1": 0.5}, began=0.0)

    found = shown(machine)
    assert (found["cpus"], found["cpus_in_use"]) == (8.0, 1.0)
    assert [(node["id"], node["cpus_in_use"]) for node in found["nodes"]] == [("a", 0.0), ("b", 1.0)]
    assert [rank["node"] for rank in found["groups"][0]["ranks"]] == ["b"]
    apart = shown({**machine, "NodeID": "driver", "NodeManagerHostname": "driver"})
    assert (apart["cpus"], apart["cpus_in_use"]) == (10.0, 1.0)
    assert [(node["name"], node["cpus_in_use"]) for node in apart["nodes"]] == [
        ("host-a", 0.0),
        ("host-b", 0.0),
        ("driver", 1.0),
    ]
    assert [rank["node"] for rank in apart["groups"][0]["ranks"]] == ["driver"]


def test_trials_on_agents_hold_no_resources_and_are_listed_by_age() -> None:
    on_agent = HeldGroup(
        experiment="exp_1", trial="trl_1", segment_id="seg_1", nodes=("far",), bundle={"agent": 1.0}, since=4.0
    )
    on_ray = HeldGroup(experiment="exp_2", trial="trl_2", segment_id="seg_2", nodes=("a",), bundle=ONE, since=5.0)
    rank = {"rank": 0, "node": "far", "host": "far", "pid": 0, "gpus": []}
    agents = [{"name": "far", "experiment_id": "exp_1", "running": 1, "asking": 2}]
    entitlements = {"exp_1": Entitlement(), "exp_2": Entitlement()}
    found = overview(
        NODES, {"CPU": 7.0, "GPU": 3.0}, [(on_ray, []), (on_agent, [rank])], [], entitlements, {}, (), agents, began=0.0
    )
    shown = Cluster.of(found, {})
    assert [group.experiment_id for group in shown.groups] == ["exp_1", "exp_2"]
    assert [rank.host for rank in shown.groups[0].ranks] == ["far"]
    assert sum(node.cpus_in_use for node in shown.nodes) == shown.cpus_in_use == 1.0
    assert [(one.name, one.running, one.asking) for one in shown.agents] == [("far", 1, 2)]
    assert [one.groups for one in shown.experiments] == [1, 1]
