"""Turn the training loop of a Ray Train trainer into a training function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import SpecError
from tuner.names import name_of
from tuner.trials.compat.datasets import Shards, pack, unpack

LOOP_CONFIG = "train_loop_config"


@dataclass(frozen=True)
class TrainLoop:
    """The training loop of a Ray Train trainer.

    The loop gets the trainer's `train_loop_config`, with the values that the search chose in place of the trainer's own.
    """

    loop: Callable[..., Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    datasets: Mapping[str, Any] = field(default_factory=dict)
    data_config: Any = None

    @classmethod
    def of(cls, trainer: Any) -> TrainLoop:
        """Return a trainer's training loop.

        Raise SpecError if the trainer is for a framework other than PyTorch, because trials set up no other backend.
        """
        backend = type(trainer.backend_config).__name__
        if backend not in ("TorchConfig", "BackendConfig"):
            raise SpecError(
                f"{type(trainer).__name__} sets up {backend.removesuffix('Config')} between its workers, which trials here do "
                "not have: each rank would train a model of its own. Pass its training function to tuner.run, with num_workers=1",
                "/trainable",
            )
        return cls(
            trainer.train_loop_per_worker,
            dict(trainer.train_loop_config or {}),
            pack(getattr(trainer, "datasets", None) or {}),
            getattr(trainer, "data_config", None),
        )

    @property
    def __name__(self) -> str:
        return name_of(self.loop)

    @property
    def inner(self) -> Callable[..., Any]:
        return self.loop

    def __call__(self, config: dict[str, Any]) -> Any:
        whole = _merged(self.config, config.get(LOOP_CONFIG, config))
        with Shards(unpack(self.datasets), self.data_config):
            if not inspect.signature(self.loop).parameters:
                return self.loop()
            return self.loop(whole)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configurations and their nested dicts, as Ray Tune does. Values in `over` replace those in `under`."""
    out = dict(under)
    for name, value in over.items():
        mine = out.get(name)
        out[name] = _merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return out
