"""Searches as scripts, for tests that interrupt and kill them. Run as ``python -m tests.jobs NAME ...``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tuner

if TYPE_CHECKING:
    import optuna  # takes long to load

SPACE = {"x": tuner.uniform(0.1, 1.0)}
STEP_S = "TUNER_TEST_STEP_S"
"""The environment variable with the seconds that a step of `slow` and `objective` takes."""


def slow(config: dict[str, Any]) -> None:
    """Make forty reports, or `steps`, with a checkpoint each, a tenth of a second apart, or as STEP_S says."""
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"]
    print(f"starting at {start}", flush=True)
    for step in range(start + 1, config.get("steps", 40) + 1):
        time.sleep(float(os.environ.get(STEP_S, 0.1)))

        def save(folder: str, step: int = step) -> None:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))

        tuner.report({"loss": config["x"] / step}, checkpoint=save)


def shared(config: dict[str, Any]) -> None:
    """Do as `slow` does, but with n ranks a step takes an n-th of 0.4 seconds."""
    os.environ[STEP_S] = str(0.4 / tuner.get_context().get_world_size())
    slow(config)


def many(config: dict[str, Any]) -> None:
    """Make `steps` reports without checkpoints, as fast as possible."""
    for step in range(1, config["steps"] + 1):
        tuner.report({"loss": config["x"] / step})


def accurate(config: dict[str, Any]) -> None:
    """Report an accuracy four times, half a second apart."""
    for epoch in range(4):
        time.sleep(0.5)
        tuner.report({"accuracy": epoch / 4 - config["lr"]})


def stuck(config: dict[str, Any]) -> None:
    """Report once, and then train on and on without a report."""
    tuner.report({"loss": config["x"]})
    while True:
        time.sleep(0.1)


def steady(config: dict[str, Any]) -> None:
    """Make `steps` reports without checkpoints, a tenth of a second apart.

    Rank 0 writes each step to a file in the folder `told`.
    """
    for step in range(1, config["steps"] + 1):
        time.sleep(0.1)
        tuner.report({"loss": config["x"] / step})
        if tuner.get_context().get_world_rank() == 0:
            with open(Path(config["told"], f"steps-{config['x']}"), "a") as file:
                file.write(f"{step} ")


def objective(trial: optuna.Trial) -> float:
    """Do as `slow` does, as an Optuna objective that asks for parameters at the start, in the middle and at the end."""
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"]
    seen: dict[str, Any] = {"kind": trial.suggest_categorical("kind", ["a", "b"])}
    for step in range(start + 1, 40):
        time.sleep(float(os.environ.get(STEP_S, 0.1)))
        if step >= 2:
            seen["middle"] = trial.suggest_float(f"middle_{seen['kind']}", 0.1, 1.0)
        trial.set_user_attr(f"seen from {start}", seen)

        def save(folder: str, step: int = step) -> None:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))

        trial.report(seen["middle"] / step if step >= 2 else 1.0, step, checkpoint=save)  # type: ignore[call-arg]
    return seen["middle"] / trial.suggest_int("end", 1, 1000)


OPTIONS: dict[str, Any] = {
    "metric": "loss",
    "mode": "min",
    "num_samples": 3,
    "scheduler": "fifo",
    "search_alg": "random",
    "num_workers": 2,
    "resources_per_worker": {"CPU": 0.5},
    "backend": "none",
    "max_concurrent_trials": 2,
    "checkpoint": {"frequency": 1},
    "name": "slow",
}


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            result = tuner.run(slow, SPACE, **OPTIONS)
        case ["objective"]:
            result = tuner.run(objective, **{**OPTIONS, "search_alg": "tpe"})
        case ["resume", experiment]:
            result = tuner.resume(experiment)
        case other:
            sys.exit(f"what is {other}?")
    print("STATE", result.state, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
