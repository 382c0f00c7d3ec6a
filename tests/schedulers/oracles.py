"""Schedulers of Ray Tune and Optuna, driven directly, without a cluster or a stored study."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import optuna
    from ray.tune import schedulers as ray_schedulers
    from ray.tune import stopper as ray_stoppers

optuna.logging.set_verbosity(optuna.logging.WARNING)


class RayTrial:
    """The part of a `ray.tune.experiment.Trial` that a scheduler reads."""

    status = "RUNNING"
    experiment_tag = ""

    def __init__(self, number: int) -> None:
        self.trial_id = str(number)
        self.number = number

    def is_finished(self) -> bool:
        return False


class RayController:
    """A controller that runs nothing besides the present trial."""

    search_alg = None

    def get_live_trials(self) -> list[Any]:
        return []

    def get_trials(self) -> list[Any]:
        return []


class RayDriven:
    """A Ray scheduler that is asked about one report after the other."""

    def __init__(self, scheduler: Any, mode: str = "max") -> None:
        scheduler.set_search_properties("m", mode)
        self.scheduler, self.controller = scheduler, RayController()
        self.trials: dict[int, RayTrial] = {}

    def report(self, number: int, t: float, value: float) -> str:
        if number not in self.trials:
            self.trials[number] = RayTrial(number)
            self.scheduler.on_trial_add(self.controller, self.trials[number])
        result = {"m": value, "training_iteration": t}
        return str(self.scheduler.on_trial_result(self.controller, self.trials[number], result))


class OptunaDriven:
    """An Optuna pruner that is asked about one report after the other."""

    def __init__(self, pruner: Any, mode: str = "max") -> None:
        self.study = optuna.create_study(
            direction="maximize" if mode == "max" else "minimize",
            pruner=pruner,
            sampler=optuna.samplers.RandomSampler(0),
        )
        self.trials: dict[int, optuna.Trial] = {}

    def report(self, number: int, t: int, value: float) -> bool:
        """Report a value and return whether the trial should be pruned."""
        while number not in self.trials:
            self.trials[len(self.trials)] = self.study.ask()
        self.trials[number].report(value, t)
        return bool(self.trials[number].should_prune())

    def end(self, number: int) -> None:
        self.study.tell(self.trials[number], state=optuna.trial.TrialState.PRUNED)


__all__ = ["OptunaDriven", "RayDriven", "RayTrial", "optuna", "ray_schedulers", "ray_stoppers"]
