"""What an experiment asks for, as plain data. `tuner.experiments.spec` checks it and fills it in; it is stored as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["min", "max"]
SPEC_VERSION = 1


@dataclass(frozen=True, slots=True)
class Objective:
    metric: str
    mode: Mode

    def score(self, value: float) -> float:
        """Return the value, negated if lower is better, so that a higher score is always better."""
        return value if self.mode == "max" else -value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The worker group of a trial: how many ranks, with which resources, and where."""

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)  # CPU, GPU, custom; fractions allowed
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    backend: Literal["auto", "gloo", "nccl", "none"] = "auto"  # of torch.distributed
    reuse_workers: bool = True
    working_dir: Literal["trial", "caller"] = (
        "trial"  # of the ranks: the trial's own, or where the experiment was created
    )

    def bundle(self) -> dict[str, float]:
        """Return the resources of one rank: one CPU unless the spec says otherwise, and one GPU if `use_gpu` is set."""
        bundle = {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **self.resources_per_worker}
        return {name: amount for name, amount in bundle.items() if amount > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_concurrent_trials: int | None = None  # None: as many as the cluster holds
    time_budget_s: float | None = None  # running time only
    budget: float | None = (
        None  # full trainings' worth, each of max_t, all trials together; for schedulers that count it
    )
    max_failures: int = 0  # retries of a trial after errors of the user's code
    max_system_failures: int = 10  # retries of a trial after lost nodes and preemptions
    placement_timeout_s: float = 600.0  # waiting longer than this for resources is a system failure
    hang_timeout_s: float | None = 1800.0  # no report for this long ends the segment as hung
    stop_grace_s: float = 10.0  # a rank that does not leave within this is killed with its group


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    storage: str | None = None  # a path or any pyarrow.fs URI; None: under the home
    frequency: int | None = None  # callables are asked every n reports; None: only when something needs one
    interval_s: float | None = (
        60.0  # and at the first milestone so long after the last one; bounds what a crash can cost
    )
    at_end: bool = True
    keep_best: int | None = 1
    keep_last: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The whole of what an experiment asks for. `to_json` and `from_json` convert it."""

    name: str
    space: Mapping[str, Any]  # JSON form, see tuner.space
    objectives: tuple[Objective, ...]
    entrypoint: str | None = None  # "module:name"; None where the function travels by value
    code: str | None = None  # hash of the stored cloudpickle
    num_samples: int | None = None  # None: as many as the time budget allows
    seed: int = 0
    max_t: int | None = None  # in units of time_attr; a trial that gets there is completed
    time_attr: str = "training_iteration"
    search: Mapping[str, Any] = field(default_factory=lambda: {"type": "auto"})
    scheduler: Mapping[str, Any] = field(default_factory=lambda: {"type": "auto"})
    stop: Mapping[str, Any] = field(default_factory=dict)  # {"type": ...} or {metric: threshold}
    points_to_evaluate: tuple[Mapping[str, Any], ...] = ()
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    scope: Literal["all", "last"] = "all"  # which value of a trial counts
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    version: int = SPEC_VERSION
    # What scheduler and search were found to mean when this was checked: {"scheduler": {...}, "search": {...} or None,
    # "constraints": {...}, "budget": "in words"}. "search" is None if the scheduler proposes configurations itself; the last
    # two are left out if there are none. Nothing is decided by it.
    resolved: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def method(self) -> str:
        """Return how it searches, in a few words, such as ``tpe + asha`` or ``freeze_thaw (auto)``."""
        names: dict[str, list[str]] = {}
        for part, asked in (("search", self.search), ("scheduler", self.scheduler)):
            if (found := self.resolved.get(part, asked)) is not None:
                auto = " (auto)" if asked.get("type") == "auto" and found.get("type") != "auto" else ""
                names.setdefault(auto, []).append(str(found.get("type")))
        return " + ".join(" + ".join(dict.fromkeys(group)) + auto for auto, group in names.items())

    @property
    def objective(self) -> Objective:
        """Return the first objective, which is the one that schedulers look at."""
        return self.objectives[0]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        parts = dict(data)
        parts["objectives"] = tuple(Objective(**o) for o in parts["objectives"])
        parts["points_to_evaluate"] = tuple(parts.get("points_to_evaluate", ()))
        for name, kind in (("scaling", Scaling), ("limits", Limits), ("checkpoint", CheckpointPolicy)):
            if name in parts:
                parts[name] = kind(**parts[name])
        return cls(**parts)


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
