"""Ranks that the driver calls over lines, and what happens when a line breaks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.trials.conftest import DEADLINE_S, Bench

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def lined(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("lined"))
    ray.get(bench.host.listen.remote())
    yield bench
    bench.close()


def sums(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import get_context, report

    one = torch.full((1,), float(get_context().world_rank + config["add"]))
    dist.all_reduce(one)
    report({"sum": one.item(), "pid": os.getpid()})
    if "go" in config:
        while not Path(config["go"]).exists():
            time.sleep(0.01)
        dist.all_reduce(one)
        report({"sum": one.item(), "pid": os.getpid()})


def metrics(bench: Bench, launch: Any) -> dict[str, float]:
    outcome = bench.run(launch)
    assert outcome.kind == "returned", outcome.failure
    return dict(bench.reports(launch)[-1].metrics)


def test_warm_trials_get_new_process_groups_in_the_same_processes(lined: Bench) -> None:
    found = [metrics(lined, lined.launch(sums, 2, params={"add": add})) for add in range(4)]
    assert [run["sum"] for run in found] == [1.0, 3.0, 5.0, 7.0]
    assert len({run["pid"] for run in found}) == 1


def test_a_trial_goes_on_when_its_lines_break_and_the_group_stays_warm(lined: Bench, tmp_path: Path) -> None:
    before = metrics(lined, lined.launch(sums, 2, params={"add": 0}))
    launch = lined.launch(sums, 2, params={"add": 0, "go": str(tmp_path / "go")})
    running = lined.begin(launch)
    lined.started(launch)
    assert ray.get(lined.host.break_lines.remote(launch.segment_id)) == 2, "both ranks train, called over the lines"
    (tmp_path / "go").touch()
    outcome = ray.get(running, timeout=DEADLINE_S)
    assert outcome.kind == "returned", outcome.failure
    assert [report.metrics["sum"] for report in lined.reports(launch)] == [1.0, 2.0]
    after = metrics(lined, lined.launch(sums, 2, params={"add": 5}))
    assert (after["sum"], after["pid"]) == (11.0, before["pid"])


def dies(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_death_of_a_process_that_was_called_over_a_line_has_its_cause(lined: Bench) -> None:
    metrics(lined, lined.launch(sums, 2, params={"add": 0}))
    outcome = lined.run(lined.launch(dies, 2))
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.kind) == ("signal", "user"), outcome.failure
