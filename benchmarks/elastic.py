"""Measure how much sooner a search with elastic trials finds a good value, in virtual time, with ASHA on 8 workers.

python -m benchmarks.elastic [--seeds 20] [--trials 16 64] [--serial 0.05] [--startup 30] [--report 60]

A search runs three times with the same configurations: with one worker for each trial, and with 1 to 8 workers, which are
allocated "even" and "top". The problems are the recorded learning curves of `benchmarks/curves`, whose reports take --report
seconds on one worker. n workers are n / (1 + serial × (n − 1)) times as fast (Amdahl's law; 5.9 times for 8 workers and 0.05).
Every start, resume and resize takes --startup seconds.

Resizes change the order of reports, and thus a few decisions of ASHA, so the three searches end with different best
values. The worst of these is the target, and "time" is the time until a search has reached it, divided by the time with
one worker for each trial. The interval is the 95 % interval of the mean over problems and seeds. "Busy" is the share of
the worker time, up to the end, in which workers trained.

    python -m benchmarks.elastic --real --trials 16 --seeds 4 --report 2

`--real` runs the same searches with `tuner.run`, on a Ray that has 8 CPUs by its own count: real driver, worker groups, process
groups, checkpoints and restarts. Only the training is not: a report sleeps for as long as the formula says, and has the value
of the recorded curve. So the figures show what restarts of real groups cost, even on a machine with fewer cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tuner
from benchmarks.intervals import interval
from benchmarks.learning_curves import RECORDED, Problem, load, recorded
from tuner.domain.decisions import Resize
from tuner.driver.virtual import Simulation

WORKERS = 8
METHODS: dict[str, dict[str, Any]] = {
    "fixed": {"num_workers": 1},
    "even": {"num_workers": {"min": 1, "max": WORKERS}, "resources_allocation": "even"},
    "top": {"num_workers": {"min": 1, "max": WORKERS}, "resources_allocation": "top"},
}
Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--serial", type=float, default=0.05, help="share of a step that more workers do not speed up")
    parser.add_argument("--startup", type=float, default=30.0, help="seconds of a start or resize")
    parser.add_argument("--report", type=float, default=60.0, help="seconds from report to report on one worker")
    parser.add_argument("--real", action="store_true", help="run real worker groups, whose training sleeps")
    arguments = parser.parse_args()
    if arguments.real:
        real(arguments)
        return
    problems = recorded()
    for trials in arguments.trials:
        rows = [compared(p, trials, seed, arguments) for p in problems for seed in range(arguments.seeds)]
        print(f"{trials} trials, {len(problems)} problems, {arguments.seeds} seeds")
        for method in METHODS:
            print(json.dumps({"trials": trials, "method": method, **summary([row[method] for row in rows])}))


def summary(rows: list[Row]) -> dict[str, Any]:
    """Return the means of several searches, and the intervals of the times."""
    found: dict[str, Any] = {name: round(statistics.fmean(row[name] for row in rows), 3) for name in rows[0]}
    for name in ("time", "end"):
        found[f"{name}_interval"] = round(interval([row[name] for row in rows]) or 0.0, 3)
    return found


def compared(problem: Problem, trials: int, seed: int, arguments: argparse.Namespace) -> dict[str, Row]:
    """Return, for each method, the times of the search in units of those of the search with fixed sizes."""
    found = {name: searched(problem, trials, seed, options, arguments) for name, options in METHODS.items()}
    aim = max(problem.regret(result.best_value or 0.0) for result in found.values())
    at = {name: reached(problem, result, aim) for name, result in found.items()}
    return {
        name: {
            "time": at[name] / at["fixed"],
            "end": result.seconds / found["fixed"].seconds,
            "resizes": float(sum(isinstance(one, Resize) for one in result.decisions)),
            "busy": busy(result),
        }
        for name, result in found.items()
    }


def searched(
    problem: Problem, trials: int, seed: int, options: dict[str, Any], arguments: argparse.Namespace
) -> Simulation:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
        values, _ = problem.curve(config)
        for report in range(checkpoint or 0, problem.max_t):
            yield tuner.Step({"value": float(values[report])}, arguments.report, report + 1)

    return tuner.simulate(
        evaluate,
        problem.space,
        metric="value",
        mode=problem.mode,
        num_samples=trials,
        max_t=problem.max_t,
        scheduler="asha",
        search_alg="random",
        seed=seed,
        max_concurrent_trials=WORKERS,
        cluster_workers=WORKERS,
        startup_s=arguments.startup,
        speedup=lambda workers: workers / (1 + arguments.serial * (workers - 1)),
        **options,
    )


def reached(problem: Problem, result: Simulation, aim: float) -> float:
    """Return the time at which the regret of the best value so far was at most `aim`."""
    return next(time for time, _, _, metrics in result.history if problem.regret(metrics["value"]) <= aim)


def busy(result: Simulation) -> float:
    """Return the share of all workers' time in which they trained."""
    segments = [segment for trial in result.trials for segment in trial.segments if segment.started_at is not None]
    trained = sum(segment.workers * (segment.clock - (segment.started_at or 0.0)) for segment in segments)
    return trained / (WORKERS * result.seconds)


def real(arguments: argparse.Namespace) -> None:
    """Run the searches on Ray, with the curves of a small network, and print the times of each search."""
    os.environ |= {
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": WORKERS}),
        "TUNER_HOME": tempfile.mkdtemp(prefix="tuner-elastic-"),
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    }
    file = RECORDED / "mlp_digits.npz"
    problem = load(file)
    with np.load(file) as data:
        curves = data["values"].astype(float)

    def train(config: dict[str, Any]) -> None:
        sleeps(curves[config["row"]].tolist(), arguments.report, arguments.serial)

    def starts(config: dict[str, Any]) -> None:
        tuner.report({"value": 0.0})

    space = {"row": tuner.randint(0, len(curves))}  # a random one of the recorded configurations
    tuner.run(starts, space, num_samples=1, **_ways(problem, METHODS["even"]))  # starts Ray
    for trials in arguments.trials:
        for seed in range(arguments.seeds):
            found = {}
            for name, options in METHODS.items():
                begun = time.time()
                result = tuner.run(
                    train,
                    space,
                    max_t=problem.max_t,
                    num_samples=trials,
                    scheduler="asha",
                    seed=seed,
                    max_concurrent_trials=WORKERS,
                    **_ways(problem, options),
                )
                if result.state != "completed":
                    raise RuntimeError(f"{name}: {result.error}")
                ended = time.time() - begun
                rows = sorted((row["time"], row["value"]) for trial in result.trials for row in trial.history)
                found[name] = (result, begun, ended, rows)
            aim = max(min(problem.regret(value) for _, value in rows) for *_, rows in found.values())
            for name, (result, begun, ended, rows) in found.items():
                at = next(moment for moment, value in rows if problem.regret(value) <= aim)
                resizes = sum(one.kind == "resize" for one in result.decisions)
                row = {"time_s": round(at - begun, 1), "end_s": round(ended, 1), "resizes": resizes}
                load_now = round(os.getloadavg()[0], 1)
                print(json.dumps({"real": problem.name, "trials": trials, "method": name, **row, "load": load_now}))


def _ways(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    return {"metric": "value", "mode": problem.mode, "search_alg": "random", "executor": "ray", "verbose": 0, **options}


def sleeps(values: list[float], report_s: float, serial: float) -> None:
    """Train: sleep for as long as the workers would need, and report the recorded value."""
    workers = tuner.get_context().get_world_size()
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "report").read_text())
    for report in range(start, len(values)):
        time.sleep(report_s * (1 + serial * (workers - 1)) / workers)
        tuner.report(
            {"value": values[report]},
            checkpoint=lambda folder, report=report: Path(folder, "report").write_text(str(report + 1)),
        )


if __name__ == "__main__":
    main()
