"""An Optuna objective, unchanged: a conditional space that is defined while the code runs, pruning, user attributes.

python examples/optuna_objective.py [asha|pbt]
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import optuna
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import tuner


def objective(trial: optuna.Trial) -> float:
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)
    alpha = trial.suggest_float("alpha", 1e-5, 1.0, log=True)
    loss = trial.suggest_categorical("loss", ["log_loss", "hinge", "modified_huber"])
    penalty = trial.suggest_categorical("penalty", ["l2", "elasticnet"])
    mixture = trial.suggest_float("l1_ratio", 0.0, 1.0) if penalty == "elasticnet" else 0.15
    model = SGDClassifier(loss=loss, alpha=alpha, penalty=penalty, l1_ratio=mixture, random_state=0)
    trial.set_user_attr("classes", 10)
    for epoch in range(9):
        model.partial_fit(x, y, classes=range(10))
        accuracy = model.score(x_test, y_test)
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return accuracy


def objective_with_checkpoints(trial: optuna.Trial) -> float:
    """Train with checkpoints, as PBT needs: its trials continue from each other's."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)
    alpha = trial.suggest_float("alpha", 1e-5, 1.0, log=True)
    loss = trial.suggest_categorical("loss", ["log_loss", "modified_huber"])
    model, start = SGDClassifier(loss=loss, alpha=alpha, random_state=0), 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start, model = pickle.loads(Path(folder, "state.pkl").read_bytes())
        model.set_params(alpha=alpha)
    trial.set_user_attr("alpha", model.alpha)
    for epoch in range(start, 9):
        model.partial_fit(x, y, classes=range(10))
        accuracy = model.score(x_test, y_test)

        def save(folder: str, state: Any = (epoch + 1, model)) -> None:
            Path(folder, "state.pkl").write_bytes(pickle.dumps(state))

        trial.report(accuracy, epoch, checkpoint=save)  # type: ignore[call-arg]
    return accuracy


ALPHA = tuner.loguniform(1e-5, 1.0)


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    common: dict[str, Any] = {"num_samples": 12, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, **options}
    # before: optuna.create_study(direction="maximize", pruner=optuna.pruners.HyperbandPruner()).optimize(objective, n_trials=12)
    if scheduler == "pbt":
        # the parameters that PBT may change are declared; the objective asks for them, and for the others
        return tuner.run(
            objective_with_checkpoints,
            {"alpha": ALPHA},
            metric="accuracy",
            mode="max",
            scheduler=tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations={"alpha": ALPHA}),
            **{"max_t": 9, **common},
        )
    return tuner.run(
        objective,
        metric="accuracy",
        mode="max",
        scheduler=tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
        **common,
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
