"""An Optuna objective that returns two values, and an earlier study to learn from.

python examples/optuna_multi_objective.py
"""

from __future__ import annotations

from typing import Any

import optuna

import tuner
from tuner.search import DefineByRunSearch


def objective(trial: optuna.Trial) -> tuple[float, float]:
    """Binh and Korn's problem."""
    x = trial.suggest_float("x", 0, 5)
    y = trial.suggest_float("y", 0, 3)
    return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2


def main(scheduler: str = "fifo", **options: Any) -> tuner.Result:
    earlier = optuna.create_study(directions=["minimize", "minimize"])
    earlier.optimize(objective, n_trials=10)
    # before: optuna.create_study(directions=["minimize", "minimize"]).optimize(objective, n_trials=20)
    return tuner.run(
        objective,
        metric=["cost", "distance"],
        mode=["min", "min"],
        scheduler=scheduler,
        search_alg=DefineByRunSearch("tpe", warm_start=earlier),
        **{"num_samples": 20, "resources_per_worker": {"CPU": 0.5}, **options},
    )


if __name__ == "__main__":
    result = main()
    for trial in result.trials:
        print(trial.config, trial.metrics)
