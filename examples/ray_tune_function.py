"""A function written for Ray Tune: `tune.report`, `tune.get_checkpoint`, `tune.Checkpoint`. Only the run line is new.

python examples/ray_tune_function.py [asha|pbt]
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from typing import Any

from ray import tune
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import tuner


def train(config: dict[str, Any]) -> None:
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)
    model = SGDClassifier(loss="log_loss", alpha=config["alpha"], random_state=0)
    start = 0

    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.pkl"), "rb") as file:
            start, model = pickle.load(file)
        model.set_params(alpha=config["alpha"])

    for epoch in range(start, 27):
        model.partial_fit(x, y, classes=range(10))
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.pkl"), "wb") as file:
                pickle.dump((epoch + 1, model), file)
            metrics = {"accuracy": model.score(x_test, y_test), "alpha": model.alpha}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


SPACE = {"alpha": tune.loguniform(1e-5, 1.0)}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations=SPACE),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    # before: tune.Tuner(train, param_space=SPACE, tune_config=tune.TuneConfig(metric="accuracy", mode="max", ...)).fit()
    return tuner.run(
        train,
        SPACE,
        metric="accuracy",
        mode="max",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 9, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 27, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
