"""Groups across several nodes, on one machine: Ray's cluster of processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.local_ray import ForkingCluster
from tests.sdk.test_result import won_by
from tests.trials.conftest import Bench, remains
from tuner.domain.segments import Verdict
from tuner.store import Store
from tuner.trials.checkpoints import checkpoints

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SPREAD = {"placement_strategy": "STRICT_SPREAD"}


@pytest.fixture(scope="module")
def head(without_ray: None) -> Iterator[ForkingCluster]:
    """Yield a cluster that is one node, which the tests of this module share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_initial_delay_ms", "1000")
        patch.setenv("RAY_health_check_period_ms", "1000")
        patch.setenv("RAY_health_check_failure_threshold", "10")  # a busy machine lets a raylet wait for seconds
        cluster = ForkingCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def cluster(head: ForkingCluster) -> Iterator[ForkingCluster]:
    """Yield the cluster, and remove the nodes that a test has added."""
    yield head
    for node in list(head.worker_nodes):
        head.remove_node(node)
    deadline = time.monotonic() + 60
    while [node["Alive"] for node in ray.nodes()].count(True) > 1:
        assert time.monotonic() < deadline, ray.nodes()
        time.sleep(0.05)


def where(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import get_context, report

    context = get_context()
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    mine = torch.tensor([context.node_rank * 100 + context.local_rank * 10 + context.local_world_size])
    all_of_them = [torch.zeros_like(mine) for _ in range(context.world_size)]
    dist.all_gather(all_of_them, mine)
    path = f"rank{context.world_rank}"
    report(
        {"total": total[0], **{f"seat{rank}": seat[0] for rank, seat in enumerate(all_of_them)}},
        checkpoint=lambda folder: Path(folder, path).write_text(path),
    )


def trained_by_ray(config: dict[str, Any]) -> None:
    """Run a Ray Train trainer with a Ray Data data set, as a function for Ray Tune."""
    from ray.train import DataConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        shard_of_ray,
        scaling_config=ScalingConfig(num_workers=2),
        datasets={"train": ray.data.range(40, override_num_blocks=4), "all": ray.data.range(5)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    ).fit()


def shard_of_ray(config: dict[str, Any]) -> None:
    import tempfile

    import ray.train
    import torch
    import torch.distributed as dist

    context = ray.train.get_context()
    mine = [row["id"] for row in ray.train.get_dataset_shard("train").iter_rows()]
    seat = [context.get_node_rank(), context.get_local_rank(), context.get_local_world_size(), len(mine), sum(mine)]
    of_all: list[Any] = [None] * context.get_world_size()
    dist.all_gather_object(of_all, seat)
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    names = ("node_rank", "local_rank", "local_world_size", "rows", "sum")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"rank{context.get_world_rank()}").write_text("")
        ray.train.report(
            {f"{name}{rank}": of_all[rank][i] for rank in range(len(of_all)) for i, name in enumerate(names)}
            | {"whole": len(list(ray.train.get_dataset_shard("all").iter_rows())), "ddp": hasattr(model, "module")},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
        )


def is_warned(config: dict[str, Any]) -> None:
    """Let Ray drain the node that is not the head, and report what each rank is told."""
    import torch.distributed as dist
    from ray.core.generated import autoscaler_pb2

    from tuner.trials.compat.preemption import LOOK_S, Notices
    from tuner.trials.training.session import get_context, report

    rank = get_context().world_rank
    notices = Notices(rank, 2)
    before = notices.affected()
    here = ray.get_runtime_context()
    if here.get_node_id() != config["head"]:
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        client = ray._raylet.GcsClient(address=here.gcs_address)
        client.drain_node(here.get_node_id(), reason, "a test", int(config["deadline_ms"]))
    dist.barrier()
    time.sleep(LOOK_S)
    told: list[Any] = [None, None]
    dist.all_gather_object(told, (here.get_node_id(), before, notices.affected()))
    (_, first, found), (_, second, found_too) = told
    report({
        "nothing_before": first is None and second is None,
        "the_same": found == found_too,
        "ranks": found["preempted_node_to_ranks"]
        == {node: [rank] for rank, (node, _, _) in enumerate(told) if node != config["head"]},
        "deadline_ms": found["deadline_ms"],
    })  # fmt: skip


def waits(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"a": 1}, checkpoint=lambda folder: None)
    time.sleep(1000)


@pytest.mark.long  # test_checkpoints_travel_between_disks trains on both nodes as well
def test_ranks_on_two_nodes(cluster: ForkingCluster, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=1)
    bench = Bench(tmp_path)
    launch = bench.launch(where, 2, scaling=SPREAD)
    outcome = bench.run(launch, {1: Verdict(action="pause", save_checkpoint=True)})
    assert outcome.kind == "left", outcome.failure
    metrics = bench.reports(launch)[0].metrics
    assert metrics == {"total": 2.0, "seat0": 1.0, "seat1": 101.0}
    ranks = bench.started(launch)["ranks"]
    assert len({rank["node"] for rank in ranks}) == 2
    info = bench.checkpoints(launch)[-1]
    assert sorted(checkpoints.committed(info.uri).files) == ["rank0", "rank1"]
    packed = bench.launch(where, 4, scaling={"placement_strategy": "PACK"})
    assert bench.run(packed).kind == "returned"
    metrics = bench.reports(packed)[0].metrics
    assert [metrics[f"seat{rank}"] for rank in range(4)] == [2.0, 12.0, 102.0, 112.0], "ranks of a node are consecutive"
    impossible = bench.launch(where, 3, scaling=SPREAD)
    failure = bench.run(impossible).failure
    assert failure is not None
    assert "STRICT_SPREAD needs 3 nodes with 0.5 CPU each; there are 2" in failure.message
    bench.close()


@pytest.mark.long  # tests/trials/compat/test_preemption.py has the notice on one rank
def test_all_ranks_are_told_of_a_node_that_will_be_taken_away(cluster: ForkingCluster, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=1)
    bench = Bench(tmp_path)
    deadline = float(int(time.time()) + 60) * 1000
    head = ray.get_runtime_context().get_node_id()
    launch = bench.launch(is_warned, 2, scaling=SPREAD, params={"deadline_ms": deadline, "head": head})
    outcome = bench.run(launch)
    assert outcome.kind == "returned", outcome.failure
    metrics = bench.reports(launch)[0].metrics
    assert metrics == {"nothing_before": 1.0, "the_same": 1.0, "ranks": 1.0, "deadline_ms": deadline}
    bench.close()


@pytest.mark.long  # tests/trials/compat/test_data_sets.py has such a trainer on one node
def test_a_trainer_of_ray_on_two_nodes(cluster: ForkingCluster, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)  # whose CPU is for Ray Data
    bench = Bench(tmp_path)
    of_ray = bench.launch(trained_by_ray, 2, scaling=SPREAD)
    outcome = bench.run(of_ray)
    assert outcome.kind == "returned", outcome.failure
    found = bench.reports(of_ray)[0].metrics
    seats = [[found[f"{name}{rank}"] for name in ("node_rank", "local_rank", "local_world_size")] for rank in (0, 1)]
    assert seats == [[0, 0, 1], [1, 0, 1]]
    assert (found["rows0"], found["rows1"], found["sum0"] + found["sum1"]) == (20, 20, sum(range(40)))
    assert (found["whole"], found["ddp"]) == (5, 1)
    assert sorted(checkpoints.committed(bench.checkpoints(of_ray)[-1].uri).files) == ["rank0", "rank1"]
    bench.close()


def test_a_node_that_dies(cluster: ForkingCluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=1)
    bench = Bench(tmp_path)
    launch = bench.launch(waits, 2, scaling={**SPREAD, "backend": "none"})
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    ranks = bench.started(launch)["ranks"]
    lost = next(rank for rank in ranks if rank["node"] == doomed.node_id)
    cluster.remove_node(doomed, allow_graceful=False)
    failure = ray.get(running, timeout=90).failure
    assert (failure.kind, failure.cause, failure.rank) == ("system", "node_lost", lost["rank"])
    assert failure.message == "its node was lost"
    bench.call("settle")
    pids = [rank["pid"] for rank in ranks]
    deadline = time.monotonic() + 20
    while any(remains(pids).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert remains(pids) == {"processes": [], "placement_groups": []}
    cluster.add_node(num_cpus=1)
    again = bench.launch(where, 2, scaling=SPREAD)
    assert bench.run(again).kind == "returned", "on the node that came instead"
    bench.close()


@pytest.fixture(scope="module")
def disks(head: ForkingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Bench]]:
    """Yield a folder with the disks of two nodes, `left` and `right`, and a bench. Resources place ranks on one of the nodes.

    Adding a node, and importing PyTorch there, takes seconds of CPU. So the tests share the nodes.
    """
    folder = tmp_path_factory.mktemp("disks")
    for name in ("left", "right"):
        head.add_node(num_cpus=2, resources={name: 10}, env_vars={"TEST_DISK": str(folder / name)})
    bench = Bench(folder)
    yield folder, bench
    bench.close()


def on(name: str) -> dict[str, Any]:
    """Return where ranks are placed."""
    return {"resources_per_worker": {"CPU": 0.5, name: 1}, "backend": "none"}


def counts_up(config: dict[str, Any]) -> None:
    """Every rank saves a shard and finds the shards of all ranks again."""
    from tuner.trials.training.session import get_checkpoint, get_context, report

    context, count, shards = get_context(), 0, 0
    if (checkpoint := get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            count = int(Path(folder, "count").read_text())
            shards = len(list(Path(folder).glob("shard*")))

    def save(folder: str) -> None:
        if context.world_rank == 0:
            Path(folder, "count").write_text(str(count + 1))
        Path(folder, f"shard{context.world_rank}").write_bytes(b"x" * 100)
        # Plain DDP code does this too: it saves the model on every rank.
        Path(folder, "model").write_text(str(context.world_rank))

    report({"count": count, "shards": shards}, checkpoint=save)


PAUSE = {1: Verdict(action="pause", save_checkpoint=True)}


def test_checkpoints_travel_between_disks(disks: tuple[Path, Bench], sqlite_store: Store) -> None:
    folder, bench = disks
    storage = "$TEST_DISK/travel"
    first = bench.launch(counts_up, 2, scaling=on("left"), storage=storage)
    assert bench.run(first, PAUSE).kind == "left"
    info = bench.checkpoints(first)[-1]
    assert info.uri.startswith("$TEST_DISK/")
    assert list(folder.glob("left/travel/**/shard1"))
    assert not (folder / "right" / "travel").exists()
    won = won_by(sqlite_store, info).best_checkpoint
    assert won is not None
    with won.as_directory() as copy:
        assert sorted(os.listdir(copy)) == ["count", "model", "shard0", "shard1"], "to the script that searches, too"

    second = bench.launch(counts_up, 2, scaling=on("right"), storage=storage, checkpoint=info)
    outcome = bench.run(second, PAUSE)
    assert outcome.kind == "left", outcome.failure
    assert bench.reports(second)[0].metrics == {"count": 1.0, "shards": 2.0}

    both = {"resources_per_worker": {"CPU": 1.5}, "placement_strategy": "STRICT_SPREAD", "backend": "none"}
    third = bench.launch(counts_up, 2, scaling=both, storage=storage, checkpoint=bench.checkpoints(second)[-1])
    outcome = bench.run(third, PAUSE)
    assert outcome.kind == "left", outcome.failure
    assert bench.reports(third)[0].metrics == {"count": 2.0, "shards": 2.0}
    whole = Path(os.path.expandvars(bench.checkpoints(third)[-1].uri.replace("$TEST_DISK", "")).lstrip("/"))
    homes = [disk for disk in ("left", "right") if (folder / disk / whole).exists()]
    assert len(homes) == 1, "the shard of the other node has moved to that of rank 0"
    assert sorted(os.listdir(folder / homes[0] / whole)) == ["count", "model", "shard0", "shard1"]
    assert (folder / homes[0] / whole / "model").read_text() == "0", "that of the lowest rank"
    staged = [path for path in folder.glob("*/travel/.staging/*") if any(path.rglob("*"))]
    assert staged == [], "no copy stays on the other disk"


def test_a_checkpoint_whose_disk_has_another_node_now_or_none(head: ForkingCluster, disks: tuple[Path, Bench]) -> None:
    """Ray gives a machine another node id whenever it starts. The checkpoint was taken for lost with its disk."""
    folder, bench = disks
    storage = "$TEST_DISK/moved"
    first = bench.launch(counts_up, 1, scaling=on("left"), storage=storage)
    assert bench.run(first, PAUSE).kind == "left"
    info = bench.checkpoints(first)[-1]
    of_earlier = dataclasses.replace(info, node="e" * 56)
    second = bench.launch(counts_up, 1, scaling=on("right"), storage=storage, checkpoint=of_earlier)
    outcome = bench.run(second)
    assert outcome.kind == "returned", outcome.failure
    assert bench.reports(second)[0].metrics == {"count": 1.0, "shards": 1.0}
    shutil.rmtree(folder / "left" / "moved")
    failure = bench.run(bench.launch(counts_up, 1, scaling=on("right"), storage=storage, checkpoint=of_earlier)).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("system", "checkpoint_lost"), "other checkpoints of the node may exist"
    assert "there is no committed checkpoint at $TEST_DISK/" in failure.message

    doomed = next(node for node in head.worker_nodes if node.node_id == info.node)
    head.remove_node(doomed, allow_graceful=False)
    failure = bench.run(bench.launch(counts_up, 1, scaling=on("right"), storage=storage, checkpoint=info)).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("system", "disk_lost")
    assert f"was on the disk of node {doomed.node_id[:8]}, which is gone" in failure.message
