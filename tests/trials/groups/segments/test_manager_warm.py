"""Warm groups: when they are used again, when not, and that they do not grow."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.trials.conftest import Bench, remains

pytestmark = pytest.mark.ray

random.random()  # the import of a training function's module may draw numbers, which only a cold process does


def draws(config: dict[str, Any]) -> None:
    import numpy as np
    import torch

    from tuner.trials.training.session import report

    report({"python": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1)[0], "pid": os.getpid()})


def leaves_a_thread(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    threading.Thread(target=threading.Event().wait, name="prefetcher", daemon=True).start()
    report({"pid": os.getpid()})


def metrics(bench: Bench, launch: Any) -> dict[str, float]:
    outcome = bench.run(launch)
    assert outcome.kind == "returned", outcome.failure
    return dict(bench.reports(launch)[0].metrics)


def test_the_same_trial_draws_the_same_numbers_wherever_it_runs(bench: Bench) -> None:
    cold = metrics(bench, bench.launch(draws, trial_number=7, seed=5))
    warm = metrics(bench, bench.launch(draws, trial_number=7, seed=5))
    other = metrics(bench, bench.launch(draws, trial_number=8, seed=5))
    resumed = metrics(bench, bench.launch(draws, trial_number=7, seed=5, start_iteration=3))
    assert len({run["pid"] for run in (cold, warm, other, resumed)}) == 1
    for name in ("python", "numpy", "torch"):
        assert cold[name] == warm[name]
        assert len({run[name] for run in (cold, other, resumed)}) == 3


def test_a_dirty_process_is_replaced_and_nobody_notices(bench: Bench) -> None:
    first = metrics(bench, bench.launch(leaves_a_thread))
    second = metrics(bench, bench.launch(leaves_a_thread))
    assert first["pid"] != second["pid"]


def leaves_a_thread_on_rank_1(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import get_context

    if get_context().world_rank == 1:
        leaves_a_thread(config)
    else:
        draws(config)


def test_no_rank_trains_if_another_one_has_to_be_replaced(bench: Bench) -> None:
    """Ranks without a process group do not wait for each other: the reports of rank 0 counted, and were made again later."""
    apart = {"scaling": {"backend": "none"}, "first_milestone": None}
    assert bench.run(bench.launch(leaves_a_thread_on_rank_1, 2, **apart)).kind == "returned"
    launch = bench.launch(draws, 2, **apart)
    assert bench.run(launch).kind == "returned"
    assert [report.report_no for report in bench.reports(launch)] == [1]


def raises(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    big = bytearray(64 << 20)
    if config.get("late"):
        report({"pid": 0})
    raise KeyError(f"no such key among {len(big)}")


def test_a_process_whose_function_raised_before_any_report_is_used_again(bench: Bench) -> None:
    first = metrics(bench, bench.launch(draws))
    outcome = bench.run(bench.launch(raises))
    assert outcome.failure is not None
    assert "KeyError" in outcome.failure.message
    assert metrics(bench, bench.launch(draws))["pid"] == first["pid"]


def test_a_process_whose_function_raised_after_a_report_is_not(bench: Bench) -> None:
    first = metrics(bench, bench.launch(draws))
    assert bench.run(bench.launch(raises, params={"late": True})).failure is not None
    assert metrics(bench, bench.launch(draws))["pid"] != first["pid"]


def test_a_trial_that_gets_a_dead_process_runs_in_another_one(bench: Bench) -> None:
    """The trial failed, as if its own code had killed the process."""
    first = metrics(bench, bench.launch(draws))
    os.kill(int(first["pid"]), signal.SIGKILL)
    assert metrics(bench, bench.launch(draws))["pid"] != first["pid"]


def test_a_module_that_kills_its_process_fails_the_trial_also_after_a_warm_process(bench: Bench) -> None:
    (bench.folder / "kills.py").write_text(
        "import os, signal\nfrom tuner.trials.training.session import report\n"
        f"if os.path.exists({str(bench.folder / 'kill')!r}):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def train(config):\n    report({'pid': os.getpid()})\n"
    )
    first = metrics(bench, bench.launch("kills:train"))
    (bench.folder / "kill").touch()
    os.kill(int(first["pid"]), signal.SIGKILL)
    outcome = bench.run(bench.launch("kills:train"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.cause) == ("user", "signal")


def test_a_module_that_has_changed_is_not_used_from_memory(bench: Bench) -> None:
    source = bench.folder / "my_training.py"
    text = "from tuner.trials.training.session import report\ndef train(config):\n    report({{'version': {}}})\n"
    source.write_text(text.format(1))
    assert metrics(bench, bench.launch("my_training:train", experiment_id="exp_1"))["version"] == 1
    source.write_text(text.format(2) + "# edited\n")
    os.utime(source, (time.time() + 10, time.time() + 10))
    same = metrics(bench, bench.launch("my_training:train", experiment_id="exp_1"))
    assert same["version"] == 1, "an experiment keeps to what it began with, while its group lives"
    assert metrics(bench, bench.launch("my_training:train", experiment_id="exp_2"))["version"] == 2


def test_a_changed_module_is_seen_that_the_training_function_imported(bench: Bench) -> None:
    """Change a module that only one trial has imported, with no other trial in this process in between."""
    (bench.folder / "outer.py").write_text(
        "from tuner.trials.training.session import report\n"
        "def train(config):\n    import inner\n    report({'version': inner.version})\n"
    )
    inner = bench.folder / "inner.py"
    inner.write_text("version = 1\n")
    assert metrics(bench, bench.launch("outer:train", experiment_id="exp_1"))["version"] == 1
    inner.write_text("version = 2  # edited\n")
    assert metrics(bench, bench.launch("outer:train", experiment_id="exp_2"))["version"] == 2


def test_idle_groups_go_back_after_a_while(local_ray: None, tmp_path: Path) -> None:
    bench = Bench(tmp_path, idle_timeout_s=0.5)
    launch = bench.launch(draws)
    bench.run(launch)
    pids = [rank["pid"] for rank in bench.started(launch)["ranks"]]
    assert bench.call("stats")["idle"] == 1
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (bench.call("stats")["idle"] or remains(pids)["processes"]):
        time.sleep(0.05)
    assert bench.call("stats")["idle"] == 0
    assert remains(pids)["processes"] == []
    bench.close()


def ends_with_a_look(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import report

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    model(torch.randn(4, 10)).sum().backward()
    total = torch.zeros(1)
    dist.all_reduce(total)
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    report(
        {
            "rss": resident,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": own_threads(),
        }
    )


def own_threads() -> int:
    """Return the number of threads of this process without those of gRPC's pool, which gets more of them on a busy machine."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            names.append(path.read_text().strip())
    return sum(name != "event_engine" for name in names)


@pytest.mark.slow
def test_sixty_trials_leave_no_trace(bench: Bench) -> None:
    runs = [metrics(bench, bench.launch(ends_with_a_look, 2)) for _ in range(60)]
    early, late = runs[20:30], runs[50:]

    def mean(part: list[dict[str, float]], name: str) -> float:
        return sum(run[name] for run in part) / len(part)

    assert mean(late, "descriptors") <= mean(early, "descriptors") + 1
    assert mean(late, "threads") <= mean(early, "threads") + 1
    assert mean(late, "rss") <= mean(early, "rss") + 3e6
    host = ray.get(bench.host.descriptors.remote())
    assert host < 200
