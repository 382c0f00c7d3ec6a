"""Measure the time between trials in tuner.run, in Ray Tune and with bare actors. Prints one JSON line.

    python -m benchmarks.turnaround [--ranks 2] [--trials 60] [--peer-trials 3]

With `--peer-trials 0`, Ray Tune is left out.

`turnaround_s` is the time from one trial's end to the next one's. Each trial does an all-reduce (with two ranks) and one report.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sqlite3
import statistics
import tempfile
from typing import Any

from benchmarks import peers


def one_report(config: dict[str, Any]) -> None:
    import tuner

    tuner.report({"loss": config["x"] ** 2})


def one_reduce(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import tuner

    one = torch.ones(1)
    dist.all_reduce(one)
    tuner.report({"loss": config["x"] ** 2, "world": one.item()})


def ours(ranks: int, trials: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNER_HOME"] = home
        import tuner

        tuner.run(
            one_reduce if ranks > 1 else one_report,
            {"x": tuner.uniform(0, 1)},
            metric="loss",
            mode="min",
            num_samples=trials,
            num_workers=ranks,
            scheduler="fifo",
            search_alg="random",
            executor="ray",
            max_concurrent_trials=1,
            verbose=0,
        )
        with sqlite3.connect(os.path.join(home, "tuner.db")) as db:
            rows = list(db.execute("select startup_s, warm, ended_at from segment order by id"))
    ends = [ended for _, _, ended in rows]
    steps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert all(warm for _, warm, _ in rows[1:]), "every trial but the first has a warm group"
    return {
        "turnaround_s": statistics.median(steps),
        "turnaround_p95_s": statistics.quantiles(steps, n=20)[-1],
        "cold_start_s": rows[0][0],
        "warm_start_s": statistics.median(startup for startup, _, _ in rows[1:]),
    }


def ray_tune(ranks: int, trials: int) -> tuple[str, float]:
    """Return (name in the row, seconds of a trial) of the peer."""
    if ranks > 1:
        return "ray_tune_and_train_s", peers.measure("tune_ddp", trials=trials)["trial_s"]
    return "ray_tune_reused_s", peers.measure("tune_single", trials=10 * trials)["trial_s"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--peer-trials", type=int, default=3)
    arguments = parser.parse_args()
    row: dict[str, Any] = {
        "benchmark": "turnaround",
        "ranks": arguments.ranks,
        **ours(arguments.ranks, arguments.trials),
    }
    if arguments.ranks > 1:
        floor = peers.measure("bare_groups", repeats=10)
        row |= {"floor_warm_s": floor["warm_s"], "floor_cold_s": floor["cold_s"]}
        row["cold_over_floor"] = row["cold_start_s"] / floor["cold_s"]
    if arguments.peer_trials > 0:
        name, peer = ray_tune(arguments.ranks, arguments.peer_trials)
        row |= {name: peer, "times_faster": peer / row["turnaround_s"]}
    print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}))


if __name__ == "__main__":
    main()
