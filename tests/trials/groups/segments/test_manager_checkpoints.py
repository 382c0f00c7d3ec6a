"""Checkpoints of real groups: pause and resume, exploit, shards, S3, the end of a trial."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.services import DEADLINE_S
from tests.trials.conftest import Bench
from tuner.domain.segments import Verdict
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.staging import spool
from tuner.trials.checkpoints.storage import join
from tuner.trials.messages.launch import Launch

pytestmark = pytest.mark.ray

PAUSE = Verdict(action="pause", save_checkpoint=True, reason="waits for the others")


def trains(config: dict[str, Any]) -> None:
    """Train a model whose weight counts its steps. Each rank has its own part of the state."""
    import torch

    import tuner.trials.training.session as tuner

    rank, world = tuner.get_context().world_rank, tuner.get_context().world_size
    weight, step = torch.zeros(1), 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, f"rank{rank}.pt"))
            weight, step = state["weight"], state["step"]
            assert sorted(os.listdir(folder)) == [f"rank{r}.pt" for r in range(world)]

    def save(folder: str) -> None:
        torch.save({"weight": weight, "step": step}, Path(folder, f"rank{rank}.pt"))

    while step < config["steps"]:
        step += 1
        weight += config["lr"]
        if config["form"] == "callable" or (config["form"] == "rank 0" and rank == 0):
            tuner.report({"weight": weight[0], "step": step, "due": False}, checkpoint=save)
        elif config["form"] == "rank 0":
            tuner.report({"step": step})
        else:
            with tempfile.TemporaryDirectory() as folder:
                save(folder)
                tuner.report({"weight": weight[0], "step": step}, checkpoint=folder)


def launch(bench: Bench, ranks: int = 2, form: str = "callable", **changes: Any) -> Launch:
    params = {"steps": 6, "lr": 1.0, "form": form, **changes.pop("params", {})}
    return bench.launch(trains, ranks, params=params, **changes)


@pytest.mark.parametrize("form", ["callable", "directory"])
def test_pause_and_resume(bench: Bench, form: str) -> None:
    first = launch(bench, form=form)
    outcome = bench.run(first, {4: PAUSE})
    assert (outcome.kind, outcome.reports) == ("left", 4)
    saved = bench.checkpoints(first)
    assert [info.step for info in saved if info.ready] == ([4] if form == "callable" else [1, 2, 3, 4])
    assert saved[-1].ready, "committed before the segment ended"
    again = launch(bench, form=form, checkpoint=saved[-1], start_iteration=4)
    assert bench.run(again).kind == "returned"
    assert bench.started(again)["warm"]
    assert [message.metrics["weight"] for message in bench.reports(again)] == [5.0, 6.0]


def test_a_last_checkpoint_may_take_longer_than_the_grace_of_a_stop(bench: Bench) -> None:
    paused = launch(bench, form="rank 0", limits={"stop_grace_s": 0.5})
    ray.get(bench.host.delay_commits.remote(paused.segment_id, 3.0))
    outcome = bench.run(paused, {2: PAUSE})
    assert (outcome.kind, outcome.failure) == ("left", None), "rank 1 had nothing to save and left at once"
    assert [info.step for info in bench.checkpoints(paused) if info.ready] == [2]


def test_a_stop_waits_for_the_checkpoint_that_it_asks_for(bench: Bench) -> None:
    stopped = launch(bench, 1, params={"steps": 100_000}, limits={"stop_grace_s": 2.0}, first_milestone=None)
    ray.get(bench.host.delay_commits.remote(stopped.segment_id, 6.0))
    running = bench.begin(stopped)
    bench.wait_for_report(stopped)
    ray.get(bench.host.interrupt.remote(stopped.segment_id, "stop"))
    assert ray.get(running, timeout=60).kind == "left"
    assert len([info for info in bench.checkpoints(stopped) if info.ready]) == 1


def processes(bench: Bench, segment: Any) -> list[int]:
    return [rank["pid"] for rank in bench.started(segment)["ranks"]]


def test_an_exploit_goes_on_from_the_donors_checkpoint_with_a_new_configuration(bench: Bench) -> None:
    donor, recipient = launch(bench, params={"lr": 10.0}), launch(bench, params={"lr": 1.0})
    bench.run(donor, {2: PAUSE})
    assert bench.run(recipient, {2: Verdict(action="exploit", reason="trial 1 is ahead")}).kind == "left"
    source = bench.checkpoints(donor)[-1]
    exploited = launch(bench, params={"lr": 0.5, "steps": 3}, checkpoint=source, start_iteration=2)
    assert bench.run(exploited).kind == "returned"
    assert processes(bench, exploited) == processes(bench, recipient), "the same group goes on"
    assert [message.metrics["weight"] for message in bench.reports(exploited)] == [20.5]


def test_the_end_is_kept(bench: Bench) -> None:
    ended = launch(bench, first_milestone=None)
    assert bench.run(ended).kind == "returned"
    assert [(info.step, info.ready) for info in bench.checkpoints(ended)] == [(6, True)]


def test_every_third_report(bench: Bench) -> None:
    regular = launch(bench, first_milestone=None, checkpoint_every=3)
    bench.run(regular)
    assert [info.step for info in bench.checkpoints(regular)] == [3, 6]
    marked = [m.report_no for m in bench.reports(regular) if m.checkpoint is not None]
    assert marked == [3, 6], "the reports say that their checkpoint is on its way"


def test_a_torn_checkpoint_fails_the_segment_in_words(bench: Bench) -> None:
    first = launch(bench)
    bench.run(first, {2: PAUSE})
    info = bench.checkpoints(first)[-1]
    Path(info.uri, "rank1.pt").write_bytes(b"")
    failure = bench.run(launch(bench, checkpoint=info, start_iteration=2)).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("system", "checkpoint_lost")
    assert failure.message.startswith(f"CheckpointLost: checkpoint {info.id} of iteration 2: ")
    assert "is damaged: rank1.pt has 0 bytes instead of" in failure.message


def test_a_missing_checkpoint_fails_the_segment_in_words(bench: Bench) -> None:
    first = launch(bench)
    bench.run(first, {2: PAUSE})
    info = bench.checkpoints(first)[-1]
    checkpoints.delete(info.uri)
    failure = bench.run(launch(bench, checkpoint=info, start_iteration=2)).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("system", "checkpoint_lost")
    assert f"checkpoint {info.id} of iteration 2: there is no committed checkpoint at" in failure.message


def test_a_checkpoint_is_announced_after_its_report(bench: Bench) -> None:
    one = launch(bench, form="directory", first_milestone=None)
    bench.run(one)
    order = bench.order(one)
    assert [kind for kind, _ in order].count("checkpoint") == 6
    reported = 0
    for kind, number in order:
        if kind == "report":
            reported = number
        else:
            assert number <= reported


def test_a_rank_that_is_killed_while_it_saves_leaves_nothing_to_restore(bench: Bench) -> None:
    killed = bench.launch(_dies_while_saving, 2)
    assert bench.run(killed).failure is not None
    assert bench.checkpoints(killed) == []
    for found in Path(killed.storage, f"trial_{killed.trial_number:05d}").glob("*"):
        assert not checkpoints.is_committed(str(found))
    bench.call("rest", False)
    bench.call("settle")
    assert list(Path(killed.storage, ".staging").glob(f"*{killed.segment_id}*")) == [], "its parts take no room"


def test_a_rank_that_is_killed_before_its_upload_leaves_nothing_to_upload(
    bench: Bench, s3: str, tmp_path: Path
) -> None:
    env = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    killed = bench.launch(_dies_while_saving, 2, storage=join(s3, tmp_path.name), env=env)
    assert bench.run(killed).failure is not None
    bench.call("rest", False)
    bench.call("settle")
    assert list(Path(spool()).glob(f"*{killed.segment_id}*")) == []


def _dies_while_saving(config: dict[str, Any]) -> None:
    import signal

    from tuner.trials.training.session import get_context, report

    def save(folder: str) -> None:
        Path(folder, f"part{get_context().world_rank}").write_bytes(b"x" * 1000)
        if get_context().world_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    report({"a": 1}, checkpoint=save)
    Path("never").touch()


def test_ranks_save_to_s3_and_restore_from_it(bench: Bench, s3: str, tmp_path: Path) -> None:
    storage = join(s3, tmp_path.name)
    env = {
        name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")
    }
    first = launch(bench, form="directory", storage=storage, env=env)
    assert bench.run(first, {3: PAUSE}).kind == "left"
    info = bench.checkpoints(first)[-1]
    assert info.uri.startswith("s3://bucket/")
    assert checkpoints.is_committed(info.uri)
    assert sorted(checkpoints.committed(info.uri).files) == ["rank0.pt", "rank1.pt"]
    again = launch(bench, form="callable", storage=storage, env=env, checkpoint=info, start_iteration=3)
    assert bench.run(again).kind == "returned"
    assert [message.metrics["step"] for message in bench.reports(again)] == [4.0, 5.0, 6.0]


def test_a_report_does_not_wait_for_the_upload_of_its_checkpoint(bench: Bench) -> None:
    held = bench.launch(_reports_while_its_upload_is_held, params={"seconds": DEADLINE_S}, first_milestone=None)
    bench.run(held)
    first, second = bench.reports(held)
    assert second.metrics["uploads_before"] == 0, "the first report returned while its upload was held"
    assert first.checkpoint is not None
    assert checkpoints.is_committed(first.checkpoint.uri)


def _reports_while_its_upload_is_held(config: dict[str, Any]) -> None:
    import threading

    from tuner.trials.checkpoints.saver import Saver
    from tuner.trials.training.session import report

    go_on, uploaded, really = threading.Event(), threading.Event(), Saver._save

    def save(self: Saver, job: Any) -> None:
        go_on.wait(config["seconds"])
        really(self, job)
        uploaded.set()

    Saver._save = save  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "weights").write_bytes(b"w")
            report({"uploads_before": -1}, checkpoint=folder)
        uploads = int(uploaded.is_set())
        go_on.set()
        uploaded.wait(config["seconds"])
        report({"uploads_before": uploads})
    finally:
        go_on.set()
        Saver._save = really  # type: ignore[method-assign]


def test_distributed_checkpoint_of_all_ranks(bench: Bench) -> None:
    first = bench.launch(_dcp, 2, params={"steps": 4})
    assert bench.run(first, {2: PAUSE}).kind == "left"
    info = bench.checkpoints(first)[-1]
    assert {".metadata", "__0_0.distcp", "__1_0.distcp"} <= set(checkpoints.committed(info.uri).files)
    again = bench.launch(_dcp, 2, params={"steps": 4}, checkpoint=info, start_iteration=2)
    assert bench.run(again).kind == "returned"
    assert [message.metrics["weight"] for message in bench.reports(again)] == [3.0, 4.0]


def _dcp(config: dict[str, Any]) -> None:
    """Each rank holds a part of the weights: torch.distributed.checkpoint over a sharded tensor."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import tuner.trials.training.session as tuner

    mesh = init_device_mesh("cpu", (2,))
    state: dict[str, Any] = {"weight": distribute_tensor(torch.zeros(8), mesh, [Shard(0)]), "step": 0}
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            dcp.load(state, checkpoint_id=folder)
    save: Callable[[str], Any] = lambda folder: dcp.save(state, checkpoint_id=folder)  # noqa: E731
    while state["step"] < config["steps"]:
        state["step"] += 1
        state["weight"] += 1.0
        tuner.report({"weight": state["weight"].to_local()[0]}, checkpoint=save)


def test_a_rank_that_waits_for_its_verdict_does_not_hang(bench: Bench) -> None:
    patient = launch(bench, limits={"hang_timeout_s": 1.0})
    ray.get(bench.host.delay.remote(patient.segment_id, 3.0))
    assert bench.run(patient).kind == "returned"
