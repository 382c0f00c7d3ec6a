from __future__ import annotations

import pytest

from tuner.domain.experiment import Scaling
from tuner.trials.groups.pools.placement import assign_ranks, unmet
from tuner.trials.messages.protocol import WorkerMetadata


def worker(node: str, *gpus: str) -> WorkerMetadata:
    return WorkerMetadata(
        node=node,
        host=node,
        ip="10.0.0.1",
        pid=1,
        gpus=gpus,
        channel_address=(node, 1),
        token=node.encode(),
        oom_kills=0,
    )


def test_ranks_of_a_node_are_consecutive_and_ordered_by_their_gpus() -> None:
    workers = [worker("b", "1"), worker("a", "0"), worker("b", "0"), worker("a", "10"), worker("a", "9")]
    order, found = assign_ranks(workers, Scaling(num_workers=5, use_gpu=True))
    assert [(workers[i].node, workers[i].gpus[0]) for i in order] == [
        ("b", "0"),
        ("b", "1"),
        ("a", "0"),
        ("a", "9"),
        ("a", "10"),
    ]
    assert [(s.rank, s.local_rank, s.local_world_size, s.node_rank, s.nodes) for s in found] == [
        (0, 0, 2, 0, 2),
        (1, 1, 2, 0, 2),
        (2, 0, 3, 1, 2),
        (3, 1, 3, 1, 2),
        (4, 2, 3, 1, 2),
    ]
    assert [s.gpus for s in found] == [("0", "1")] * 2 + [("0", "9", "10")] * 3, "all of its node, for peer-to-peer"
    assert [s.devices for s in found] == [(0,), (1,), (0,), (1,), (2,)]
    assert {s.channel_address for s in found} == {("b", 1)}


def test_the_first_rank_of_a_node_watches_those_of_the_nodes_before_it_without_rank_0() -> None:
    workers = [worker("a"), worker("b"), worker("b"), worker("c"), worker("d")]
    _, found = assign_ranks(workers, Scaling(num_workers=5))
    assert [assignment.peers for assignment in found] == [(), (), (), ((1, "b", 1),), ((1, "b", 1), (3, "c", 1))]
    assert [assignment.watchers for assignment in found] == [0, 2, 0, 1, 0]
    _, two = assign_ranks(workers[:3], Scaling(num_workers=3))
    assert not any(assignment.peers or assignment.watchers for assignment in two), "the channel connects them"


@pytest.mark.parametrize(
    ("workers", "asked", "backend"),
    [
        ([worker("a"), worker("a")], "auto", "gloo"),
        ([worker("a", "0"), worker("a", "1")], "auto", "nccl"),
        ([worker("a", "0"), worker("a", "0")], "auto", "gloo"),  # NCCL refuses two ranks on one GPU
        ([worker("a", "0"), worker("a", "0"), worker("b", "0")], "auto", "gloo"),
        ([worker("a", "0"), worker("b", "0")], "auto", "nccl"),
        ([worker("a", "0"), worker("a", "1")], "gloo", "gloo"),
        ([worker("a")], "none", "none"),
    ],
)
def test_the_backend(workers: list[WorkerMetadata], asked: str, backend: str) -> None:
    _, found = assign_ranks(workers, Scaling(num_workers=len(workers), backend=asked))  # type: ignore[arg-type]
    assert {assignment.backend for assignment in found} == {backend}


NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (Scaling(num_workers=8), None),
        (Scaling(num_workers=16, resources_per_worker={"CPU": 0.5}), None),
        (Scaling(num_workers=9), "9 × 1 CPU are requested, but the whole cluster has 8 CPU"),
        (Scaling(num_workers=3, use_gpu=True), "3 × 1 GPU are requested, but the whole cluster has 2 GPU"),
        (
            Scaling(resources_per_worker={"CPU": 1, "tpu": 1}),
            "1 × 1 tpu are requested, but the whole cluster has 0 tpu",
        ),
        (Scaling(resources_per_worker={"CPU": 5}), "no node of the cluster has 5 CPU"),
        (Scaling(num_workers=2, resources_per_worker={"CPU": 3}), None),
        (
            Scaling(num_workers=5, placement_strategy="STRICT_PACK"),
            "STRICT_PACK needs 5 × (1 CPU) on one node; the largest node holds 4",
        ),
        (
            Scaling(num_workers=3, placement_strategy="STRICT_SPREAD"),
            "STRICT_SPREAD needs 3 nodes with 1 CPU each; there are 2",
        ),
        (
            Scaling(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 3}),
            "2 × (3 CPU, 1 GPU) are requested; all nodes together hold 1",
        ),
    ],
)
def test_what_can_never_fit_and_why(scaling: Scaling, words: str | None) -> None:
    assert unmet(scaling, NODES) == words


SPOT = [{"CPU": 8.0, "tpu": 1.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (Scaling(num_workers=20), None),
        (
            Scaling(num_workers=2, resources_per_worker={"CPU": 8}),
            "2 × (8 CPU) are requested; all nodes together hold 0, and those that may still join 1",
        ),
        (
            Scaling(num_workers=21),
            "21 × 1 CPU are requested, but the whole cluster has 8 CPU, and the nodes that may still join have 12 CPU",
        ),
        (
            Scaling(resources_per_worker={"CPU": 1, "tpus": 1}),
            "1 × 1 tpus are requested, but the whole cluster has 0 tpus, and the nodes that may still join have 0 tpus; did you "
            "mean 'tpu'?",
        ),
        (
            Scaling(resources_per_worker={"CPU": 9}),
            "no node of the cluster and none that may still join has 9 CPU",
        ),
        (
            Scaling(num_workers=9, placement_strategy="STRICT_PACK"),
            "STRICT_PACK needs 9 × (1 CPU) on one node; the largest node holds 4, and the largest that may still join 8",
        ),
        (
            Scaling(num_workers=5, placement_strategy="STRICT_SPREAD"),
            "STRICT_SPREAD needs 5 nodes with 1 CPU each; there are 2, and 2 more may join",
        ),
    ],
)
def test_nodes_that_may_join_count_but_are_named_separately(scaling: Scaling, words: str | None) -> None:
    assert unmet(scaling, NODES, SPOT) == words


def test_a_custom_resource_that_no_node_has_names_the_one_that_was_meant() -> None:
    nodes = [{"CPU": 4.0, "fast_disk": 1.0, "node:10.0.0.1": 1.0}]
    assert unmet(Scaling(resources_per_worker={"CPU": 1, "fast_disk": 1}), nodes) is None
    wrong = unmet(Scaling(resources_per_worker={"CPU": 1, "fastdisk": 1}), nodes)
    assert wrong == "1 × 1 fastdisk are requested, but the whole cluster has 0 fastdisk; did you mean 'fast_disk'?"
    wrong = unmet(Scaling(resources_per_worker={"CPUs": 2}), nodes)
    assert wrong == "1 × 2 CPUs are requested, but the whole cluster has 0 CPUs; did you mean 'CPU'?"
    assert unmet(Scaling(resources_per_worker={"cpus": 2}), [{"CPU": 4.0, "cpus": 2.0}]) is None
