"""Segments on real worker groups: reports, verdicts, warm hand-over, interrupts, placement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.trials.conftest import Bench
from tuner.domain.segments import Verdict
from tuner.errors import SpecError
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.runtime import gradient_sync

pytestmark = pytest.mark.ray

WHOLE = {"resources_per_worker": {"CPU": 4}, "backend": "none"}
"""One rank that takes all that `local_ray` has, and does not import torch."""


def ddp(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import get_context, report

    context = get_context()
    ranks = torch.tensor([float(context.world_rank + 1)])
    dist.all_reduce(ranks)
    for step in range(config.get("reports", 1)):
        report({"loss": config["x"] / (step + 1), "ranks": ranks[0], "val": {"pid": os.getpid()}})


def count(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    for step in range(config["reports"]):
        report({"step": step})


def forever(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import get_context, report

    for step in range(100_000):
        time.sleep(0.001 * (1 + get_context().world_rank))
        report({"step": step})


def test_two_ranks_report_as_one(bench: Bench) -> None:
    launch = bench.launch(ddp, 2, params={"x": 0.5, "reports": 3})
    outcome = bench.run(launch)
    assert (outcome.kind, outcome.reports, outcome.failure) == ("returned", 3, None)
    reports = bench.reports(launch)
    assert [message.report_no for message in reports] == [1, 2, 3]
    assert [message.metrics["loss"] for message in reports] == [0.5, 0.25, 0.5 / 3]
    assert all(message.metrics["ranks"] == 3.0 for message in reports), "the sum over both ranks of rank + 1"
    started = bench.started(launch)
    assert [rank["rank"] for rank in started["ranks"]] == [0, 1]
    assert reports[0].metrics["val/pid"] == started["ranks"][0]["pid"]


def test_a_warm_group_is_handed_on(bench: Bench) -> None:
    first, second = (bench.launch(ddp, 2, params={"x": 1.0}) for _ in range(2))
    bench.run(first)
    bench.run(second)
    assert bench.started(second)["warm"]
    assert bench.started(first)["ranks"] == bench.started(second)["ranks"]
    assert bench.started(second)["startup_s"] < 1.0
    fresh = bench.launch(ddp, 2, params={"x": 1.0}, scaling={"reuse_workers": False})
    bench.run(fresh)
    assert not bench.started(fresh)["warm"]
    assert {r["pid"] for r in bench.started(fresh)["ranks"]}.isdisjoint(r["pid"] for r in bench.started(first)["ranks"])


def test_all_ranks_leave_at_the_same_report(bench: Bench) -> None:
    launch = bench.launch(ddp, 2, params={"x": 1.0, "reports": 10})
    outcome = bench.run(launch, {4: Verdict(action="stop", reason="rank 6 of 9")})
    assert (outcome.kind, outcome.reports) == ("left", 4)
    assert len(bench.reports(launch)) == 4


def test_between_milestones_reports_come_in_batches_and_in_order(bench: Bench) -> None:
    launch = bench.launch(count, params={"reports": 500}, first_milestone=400)
    outcome = bench.run(launch, {400: Verdict(next_milestone=None)})
    assert (outcome.kind, outcome.reports) == ("returned", 500)
    reports = bench.reports(launch)
    assert [message.report_no for message in reports] == list(range(1, 501))
    assert [message.report_no for message in reports if message.waits] == [400]


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_an_interrupt_reaches_all_ranks_at_the_same_count(bench: Bench, action: str) -> None:
    launch = bench.launch(forever, 2, first_milestone=None)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    ray.get(bench.host.interrupt.remote(launch.segment_id, action))
    outcome = ray.get(running, timeout=60)
    assert outcome.kind == "left"
    reports = bench.reports(launch)
    assert reports[-1].waits
    assert [message.waits for message in reports].count(True) == 1
    assert outcome.reports == reports[-1].report_no


def test_a_stop_that_nobody_reports_for_ends_after_its_grace(bench: Bench) -> None:
    launch = bench.launch(_one_report_then_sleep, limits={"stop_grace_s": 0.5}, first_milestone=None)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    ray.get(bench.host.interrupt.remote(launch.segment_id, "cancel"))
    assert ray.get(running, timeout=30).kind == "left"


def test_an_interrupt_that_comes_late_does_not_reach_the_next_trial_of_a_warm_group(bench: Bench) -> None:
    launch = bench.launch(forever, 2, first_milestone=None)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    assert ray.get(bench.host.hold.remote(launch.segment_id, "an earlier segment")) == [None, None]
    ray.get(bench.host.interrupt.remote(launch.segment_id, "pause"))
    assert ray.get(running, timeout=60).kind == "left"
    assert [message.waits for message in bench.reports(launch)].count(True) == 1, "at its own interrupt"


def test_a_cancel_ends_a_group_whose_import_hangs(bench: Bench, tmp_path: Path) -> None:
    sign = tmp_path / "importing"
    (bench.folder / "import_that_hangs.py").write_text(
        f"import pathlib, time\npathlib.Path({str(sign)!r}).touch()\ntime.sleep(1000)\n"
    )
    launch = bench.launch("import_that_hangs:train", limits={"stop_grace_s": 0.5})
    running = bench.begin(launch)
    while not sign.exists():
        assert not ray.wait([running], timeout=0.05)[0]
    ray.get(bench.host.interrupt.remote(launch.segment_id, "cancel"))
    assert ray.get(running, timeout=30).kind == "left"


def _one_report_then_sleep(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"a": 1})
    time.sleep(1000)


def test_a_group_that_can_never_fit_is_refused_at_once(bench: Bench) -> None:
    launch = bench.launch(count, 9, params={"reports": 1})
    outcome = bench.run(launch)
    assert outcome.failure is not None
    assert outcome.failure.kind == "placement"
    assert "9 × 0.5 CPU" in outcome.failure.message
    assert "the whole cluster has 4 CPU" in outcome.failure.message


def test_waiting_says_for_what_and_idle_groups_make_room(bench: Bench) -> None:
    bench.run(bench.launch(ddp, 2, params={"x": 1.0}))  # leaves an idle group behind
    held = bench.launch(forever, scaling=WHOLE, first_milestone=None)
    running = bench.begin(held)
    bench.wait_for_report(held)
    assert bench.call("stats") == {"running": 1, "waiting": 0, "idle": 0}
    before = len(bench.waits())
    patient = bench.launch(count, scaling=WHOLE, params={"reports": 1}, limits={"placement_timeout_s": 0.1})
    waiting = bench.begin(patient)
    while len(bench.waits()) == before:  # the time during which it is not its turn does not count
        assert not ray.wait([waiting], timeout=0.05)[0]
    assert bench.waits()[-1] == "waits for a worker with 4 CPU"
    ray.get(bench.host.interrupt.remote(held.segment_id, "cancel"))
    assert ray.get(running, timeout=60).kind == "left"
    assert ray.get(waiting, timeout=60).kind == "returned"


def test_cancelling_a_segment_that_waits_leaves_at_once(bench: Bench) -> None:
    held = bench.launch(forever, scaling=WHOLE, first_milestone=None)
    running = bench.begin(held)
    bench.wait_for_report(held)
    waiting = bench.launch(count, 1, params={"reports": 1})
    ref = bench.begin(waiting)
    ray.get(bench.host.until_waiting.remote(waiting.segment_id), timeout=30)
    ray.get(bench.host.interrupt.remote(waiting.segment_id, "cancel"))
    assert ray.get(ref, timeout=10).kind == "left"
    bench.call("kill", held.segment_id, "the test is over")
    assert ray.get(running, timeout=30).failure.cause == "killed"


def test_environment_is_torchruns(bench: Bench, tmp_path: Path) -> None:
    launch = bench.launch(_environment, 2, env={"MINE": "1"}, params={"out": str(tmp_path)})
    assert bench.run(launch).kind == "returned"
    found = [dict(line.split("=", 1) for line in (tmp_path / str(r)).read_text().splitlines()) for r in range(2)]
    assert [env["RANK"] for env in found] == ["0", "1"]
    assert [env["LOCAL_RANK"] for env in found] == ["0", "1"]
    for env in found:
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["NODE_RANK"], env["MINE"]) == ("2", "2", "0", "1")
        assert env["MASTER_PORT"] == found[0]["MASTER_PORT"]
    again = bench.launch(_environment, 2, env={"MINE": "1"}, params={"out": str(tmp_path)})
    ended = bench.run(again)
    assert ended.kind == "returned", ended.failure  # what the first one set in its environment is gone
    assert bench.started(again)["warm"]


def _environment(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    from tuner.trials.training.session import report

    assert "LEFT_BEHIND" not in os.environ
    os.environ["LEFT_BEHIND"] = "1"
    dist.init_process_group("gloo")  # env://, as in scripts written for torchrun; ours gives way
    assert dist.get_world_size() == 2
    dist.barrier()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_PORT", "MINE")
    Path(config["out"], os.environ["RANK"]).write_text("\n".join(f"{name}={os.environ[name]}" for name in names))
    report({"ok": 1})


def test_output_is_kept_per_segment_and_rank(bench: Bench) -> None:
    launch = bench.launch(_talk, 2, first_milestone=2)  # which rank 1 reaches and rank 0 does not
    ended = bench.run(launch)
    assert "unequal numbers of reports: rank 0 1, rank 1 2;" in ended.warning
    for rank in range(2):
        assert bench.log(launch, rank).splitlines() == [
            f"hello from {rank}",
            f"to stderr from {rank}",
            f"a child of {rank}",
        ]


def _talk(config: dict[str, Any]) -> None:
    import subprocess
    import sys

    from tuner.trials.training.session import get_context, report

    rank = get_context().world_rank
    print(f"hello from {rank}")
    print(f"to stderr from {rank}", file=sys.stderr)
    subprocess.run(["echo", f"a child of {rank}"], check=True)
    for _ in range(rank + 1):
        report({"ok": 1})


def test_stacks_and_figures_of_a_running_segment(bench: Bench) -> None:
    launch = bench.launch(_chatty, 2, first_milestone=None)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    stacks = bench.call("stacks", launch.segment_id)
    assert set(stacks) == {"0", "1"}
    assert all("_chatty" in stack for stack in stacks.values())
    figures = bench.call("usage", launch.segment_id)
    assert figures["0"]["rss_bytes"] > 1e7
    assert figures["0"]["cpu_s"] >= 0.2
    assert 0.0 <= figures["1"]["cpu_s"] < 5.0, "of this segment, not of the imports before it"
    profiles = [bench.call("profile", launch.segment_id, rank, ProfileRequest(duration_s=0.3)) for rank in (0, 1)]
    for rank, profile in enumerate(profiles):
        assert profile["speedscope"]["name"] == f"trial {launch.trial_number}, rank {rank}"
        assert "_chatty" in {frame["name"] for frame in profile["speedscope"]["shared"]["frames"]}
        assert profile["cpu"]["threads"][0]["name"] == "train"
    with pytest.raises(SpecError, match="the trial has the ranks 0 to 1"):
        bench.call("profile", launch.segment_id, 2, ProfileRequest())
    bench.call("kill", launch.segment_id, "seen enough")
    assert ray.get(running, timeout=30).failure.message == "seen enough"


def _chatty(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import get_context, report

    print("line one")
    until = time.process_time() + 0.25
    while time.process_time() < until:
        pass
    report({"rank": get_context().world_rank})
    time.sleep(1000)


def test_figures_of_many_ranks_at_once_do_not_wait_for_one_that_is_mute(bench: Bench) -> None:
    launch = bench.launch(_chatty, 2, first_milestone=None)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    name = launch.segment_id
    found = bench.call("measure", [name, "seg_unknown"])
    assert found.keys() == {name}
    assert found[name].keys() == {0, 1}
    assert found[name][0]["cpu_s"] >= 0.2
    mute = psutil.Process(bench.started(launch)["ranks"][1]["pid"])
    mute.suspend()
    try:
        asked = [bench.call("measure", [name])[name].keys() for _ in range(3)]
    finally:
        mute.resume()
    assert all(1 not in ranks for ranks in asked), "nobody waits long for a rank that is mute"
    deadline = time.monotonic() + 30
    while bench.call("measure", [name])[name].keys() != {0, 1}:
        assert time.monotonic() < deadline, "it answers again once it goes on"
    bench.call("kill", name, "seen enough")
    assert ray.get(running, timeout=30).failure.message == "seen enough"
    assert bench.call("measure", [name]) == {}


@pytest.mark.parametrize(
    "how", ["bare", "prepared", "ddp later", "fsdp", "all_reduce", "own group", "no model", "never"]
)
def test_ranks_that_train_apart_are_warned_of(bench: Bench, how: str) -> None:
    launch = bench.launch(_shares, 2, params={"how": how}, first_milestone=None)
    outcome = bench.run(launch)
    assert outcome.kind == "returned"
    logs = [bench.log(launch, rank) for rank in range(2)]
    if how == "bare":
        assert outcome.warning == gradient_sync.MESSAGE
        assert "tuner.torch.prepare_model" in outcome.warning
        assert [log.count(f"warning: {gradient_sync.MESSAGE}") for log in logs] == [1, 0]
    else:
        assert outcome.warning == ""
        assert [log.count("warning") for log in logs] == [0, 0]


def _shares(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import report
    from tuner.trials.training.torch import prepare_model

    how, model = config["how"], torch.nn.Linear(4, 1)
    group = dist.new_group() if how == "own group" else None
    if how in ("prepared", "fsdp"):
        model = prepare_model(model, parallel_strategy="fsdp" if how == "fsdp" else "ddp")
    if how == "ddp later":
        report({"accuracy": 0.1})  # of the untrained model
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        if how != "no model":
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            for parameter in model.parameters() if how in ("all_reduce", "own group") else ():
                dist.all_reduce(parameter.grad, group=group)
            if how != "never":
                optimizer.step()
        report({"accuracy": 0.5})
