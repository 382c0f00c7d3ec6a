"""Convert training code, in any form that `tuner.run` accepts, to a function of the configuration."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import EntrypointError
from tuner.trials.checkpoints.objects import Parameterized
from tuner.trials.compat.class_form import ClassForm
from tuner.trials.compat.train_loop import TrainLoop
from tuner.usercode.import_check import is_class_form

TrainFunction = Callable[[dict[str, Any]], Any]


def as_function(trainable: Any) -> TrainFunction:
    """Convert training code to a training function, even if it is wrapped by `tuner.with_parameters`.

    Training code is a function, a class with `setup` and `step`, a Ray Train trainer, or an Optuna objective. Raise
    EntrypointError for anything else.
    """
    if is_objective(trainable):
        from tuner.trials.compat.optuna_compat import Objective

        return Objective(trainable)
    if isinstance(trainable, Parameterized):
        return _ClassWithObjects(trainable) if isinstance(trainable.trainable, type) else trainable
    if isinstance(trainable, type):
        if not is_class_form(trainable):
            raise EntrypointError(
                f"the class {trainable.__name__} cannot be tuned: it needs the methods setup(config) and step()",
                "/trainable",
            )
        return ClassForm(trainable)
    if is_trainer(trainable):
        return TrainLoop.of(trainable)
    if not callable(trainable):
        instead = _INSTEAD_OF.get(f"{type(trainable).__module__}.{type(trainable).__qualname__}", "")
        if is_algorithm_config(trainable):
            instead = ": pass the algorithm, with the configuration as the space, such as tuner.run(PPO, config)"
        elif not instead and hasattr(trainable, "fit"):
            instead = ": pass a function of the configuration that calls its fit, and reports or returns the score"
        raise EntrypointError(
            f"expected a function of the configuration, a class with setup and step, a Ray Train trainer, or an Optuna "
            f"objective, got {trainable!r}{instead}",
            "/trainable",
        )
    return trainable  # type: ignore[no-any-return]


_INSTEAD_OF = {
    "ray.tune.tuner.Tuner": ": pass its arguments, tuner.run(trainable, param_space, tune_config=..., run_config=...)",
    "optuna.study.study.Study": ": pass the objective, tuner.run(objective, metric=..., mode=...); to learn from its finished "
    "trials, pass search_alg=tuner.search.DefineByRunSearch('tpe', warm_start=study)",
}


def with_metrics(function: TrainFunction, metrics: Sequence[str]) -> TrainFunction:
    """Set the names under which an Optuna objective's values are reported. Return any other function unchanged."""
    if not metrics or getattr(function, "metrics", None) != ():
        return function
    return dataclasses.replace(function, metrics=tuple(metrics))  # type: ignore[type-var]


def is_trainer(trainable: Any) -> bool:
    """Return whether this object is a Ray Train trainer, judged by its public attributes."""
    names = ("train_loop_per_worker", "train_loop_config", "scaling_config", "run_config")
    return not isinstance(trainable, type) and all(hasattr(trainable, name) for name in names)


def is_algorithm_config(value: Any) -> bool:
    """Return whether this is an RLlib algorithm's configuration, such as a `PPOConfig`, judged by its public attributes."""
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("algo_class", "env_runners", "to_dict")
    )


def is_objective(function: Any) -> bool:
    """Return whether the function's first argument is an Optuna trial, judged by the argument's name or annotation."""
    if isinstance(function, Parameterized):
        return is_objective(function.trainable)
    if isinstance(function, type) or not callable(function) or type(function).__module__.startswith("tuner.trials."):
        return False
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    kind = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    named = first.name == "trial" or first.name.endswith("_trial")
    return named or kind.rpartition(".")[2] in ("Trial", "BaseTrial")


@dataclass(frozen=True)
class _ClassWithObjects:
    given: Parameterized

    @property
    def __name__(self) -> str:
        return self.given.__name__

    @property
    def inner(self) -> Any:
        return self.given.trainable

    def __call__(self, config: dict[str, Any]) -> None:
        cls: Any = self.given.trainable
        ClassForm(cls, self.given.given())(config)
