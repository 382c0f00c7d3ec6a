"""The specification of an experiment, as plain data. `tuner.experiment.specs.spec` checks it; the database stores it as JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

Mode = Literal["min", "max"]
# Which value of a trial counts wherever trials are ranked and shown: its best, or its last.
Scope = Literal["all", "last"]
SPEC_VERSION = 1
DEFAULT_PROJECT = "default"
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters, because terminals would obey them
PROJECT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
PROJECT_IN_WORDS = "up to 100 ASCII letters, digits, '.', '_' and '-', beginning with a letter or digit"


@dataclass(frozen=True, slots=True)
class Objective:
    metric: str
    mode: Mode

    def score(self, value: float) -> float:
        """Return `value`, negated if lower is better."""
        return value if self.mode == "max" else -value


def option(default: Any, about: str, **bounds: Any) -> Any:
    """Declare an option of a section of the spec.

    The option is declared nowhere else. The check of a spec, the OpenAPI document and docs/api_reference.md are generated
    from it, and so are the signature of `tuner.run`, the options of the command `tuner run`, and the page's form.

    Args:
        default: the value of the option if the spec does not set it; `dict` for an empty mapping.
        about: the meaning of the option, in a few words.
        bounds: the conditions that a value must satisfy, by their names in pydantic: ``gt``, ``ge``, ``le``, ``pattern``, ...
            `title` is the label of a limit in the page's form; by default it is made from the name.
    """
    metadata = {"description": about, **bounds}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


_SECONDS: Mapping[str, Any] = {"gt": 0, "allow_inf_nan": False}
_COUNT: Mapping[str, Any] = {"ge": 1, "le": 2**31 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The worker group of one trial."""

    num_workers: int = option(
        1,
        'ranks of a trial. {"min": 1, "max": 8} is short for num_workers 1 and max_workers 8, and makes trials elastic: '
        "they start with 1 rank, grow up to 8 ranks while workers are free, and give them back when a trial waits",
        ge=1,
        le=100_000,
    )
    max_workers: int | None = option(
        None,
        "elastic trials: a trial starts with num_workers ranks, and may grow up to this number while workers are free; "
        "null: every trial has num_workers ranks",
        ge=1,
        le=100_000,
    )
    resources_allocation: Literal["even", "top"] = option(
        "even",
        'which elastic trials get the workers that are free. "even": all trials alike, as Ray Tune\'s DistributeResources; '
        '"top": the best trial first, as DistributeResourcesToTopJob',
    )
    keep_global_batch_size: bool = option(
        True,
        "in an elastic trial, tuner.torch.prepare_data_loader divides the total batch of num_workers ranks among the present "
        "ranks; false: the batch size per rank stays the same",
    )
    use_gpu: bool = option(False, "give each rank a GPU")
    resources_per_worker: Mapping[str, float] = option(
        dict,
        'CPU, GPU and custom resources of a rank, such as {"CPU": 0.5}; without an entry, a rank has one CPU',
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = option(
        "PACK", "Ray's strategy for placing the ranks on nodes"
    )
    backend: Literal["auto", "gloo", "nccl", "none"] = option(
        "auto",
        'backend of torch.distributed; "auto" is nccl with GPUs and gloo without; "none": the ranks have no process group',
    )
    reuse_workers: bool = option(True, "start the next trial in the worker processes of a finished one")
    working_dir: Literal["trial", "caller"] = option(
        "trial",
        'working directory of the ranks; "trial": a new one for each trial; "caller": that of the process that created the '
        "experiment",
    )

    @property
    def elastic(self) -> bool:
        """Return whether the number of ranks of a trial may change while it trains."""
        return self.max_workers is not None and self.max_workers > self.num_workers

    @property
    def most_workers(self) -> int:
        """Return the maximum number of ranks of a trial."""
        return max(self.num_workers, self.max_workers or 0)

    def bundle(self) -> dict[str, float]:
        """Return the resources of one rank: one CPU by default, and one GPU if `use_gpu` is set."""
        bundle = {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **self.resources_per_worker}
        return {name: amount for name, amount in bundle.items() if amount > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what the experiment and each trial may use, how often a trial is retried, and how long the driver waits."""

    max_concurrent_trials: int | None = option(
        None,
        "trials that may run at the same time; null: as many as the cluster holds",
        title="Trials at the same time",
        **_COUNT,
    )
    time_budget_s: float | None = option(
        None,
        "running time in seconds after which the search ends, counted from the start of the first trial. Starting Ray and the "
        "workers does not count, and neither do pauses",
        title="Running time, in seconds",
        **_SECONDS,
    )
    budget: float | None = option(
        None,
        "training that all trials together may spend, as a number of full trainings of max_t each; null: a fifth of num_samples, "
        "but at least 3. Only the default scheduler, freeze_thaw, uses it. With any other scheduler it is an error: use "
        "num_samples instead",
        gt=0,
        allow_inf_nan=False,
        title="Budget, in full trainings",
    )
    gpu_hours: float | None = option(
        None,
        "GPU hours that all trials together may use. Once they are used up, the trials end at their next report, or after "
        "stop_grace_s. A GPU counts for as long as a rank holds it",
        gt=0,
        allow_inf_nan=False,
        title="GPU hours",
    )
    max_failed_trials: int | None = option(
        None,
        "failed trials after which the search ends as failed; `continue` resets the count; null: no limit",
        title="Failed trials that end the search",
        **_COUNT,
    )
    repeats: int | Literal["auto"] = option(
        0,
        "how many times leading configurations may be evaluated again once the search has used its trials or its budget, if "
        "results differ from run to run. Each repeat is a trial of its own. The best configuration is then the one with the best "
        "expected value over its runs. auto: as many as are worthwhile, using at most a fifth of the training before them",
        title="Repeats of leading configurations",
    )
    max_failures: int = option(
        0, "retries of a trial after errors in the training code", ge=0, title="Retries of a trial"
    )
    max_system_failures: int = option(
        10, "retries of a trial after lost nodes and preemptions", ge=0, title="Retries after lost nodes"
    )
    placement_timeout_s: float = option(
        600.0,
        ("seconds to wait for resources once it is the trial's turn; a longer wait is a system failure"),
        title="Waiting time, in seconds",
        **_SECONDS,
    )
    hang_timeout_s: float | None = option(
        1800.0,
        "seconds without a report after which a trial counts as hung; null: never",
        title="Hang timeout, in seconds",
        **_SECONDS,
    )
    stop_grace_s: float = option(
        10.0,
        "seconds that a rank may take to leave the training function before its group is killed",
        title="Time to stop, in seconds",
        **_SECONDS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """The policy for checkpoints: where they are stored, when they are saved, and which are kept."""

    storage: str | None = option(
        None,
        "an absolute path, a path that begins with ~ or $NAME, or a pyarrow.fs URI; null: TUNER_STORAGE, by default in the home",
        min_length=1,
        max_length=200,
        pattern=PRINTABLE,
    )
    frequency: int | None = option(
        None,
        ("number of reports from one checkpoint to the next; null: save only when a checkpoint is needed"),
        **_COUNT,
    )
    interval_s: float | Literal["auto"] | None = option(
        60.0,
        "save a checkpoint at the next milestone once the newest one is this many seconds old, to limit what a crash can lose; "
        "auto: the interval that loses the least time, from the measured cost of a checkpoint and the rate of failures; "
        "null: never",
    )
    at_end: bool = option(True, "save a checkpoint when a trial completes")
    keep_best: int | None = option(1, "best checkpoints to keep of each trial; null: all", ge=0)
    keep_last: int | None = option(1, "newest checkpoints to keep of each trial; null: all", ge=0)


SECTIONS: Mapping[str, type[Scaling | Limits | CheckpointPolicy]] = {
    "scaling": Scaling,
    "limits": Limits,
    "checkpoint": CheckpointPolicy,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The whole specification of one experiment. `to_json` and `from_json` convert it."""

    name: str
    space: Mapping[str, Any]  # JSON form, see tuner.space
    objectives: tuple[Objective, ...]
    entrypoint: str | None = None  # "module:name"; None if the function is stored by value
    code: str | None = None  # hash of the stored cloudpickle
    num_samples: int | None = option(
        None, "trials to start; null: as many as the time budget allows, or 100 without one", **_COUNT
    )
    seed: int = option(0, "searches with the same seed draw the same configurations", ge=0, le=2**63 - 1)
    max_t: int | None = option(None, "value of time_attr at which a trial is complete", **_COUNT)
    time_attr: str = option("training_iteration", "what max_t counts", min_length=1, max_length=200, pattern=PRINTABLE)
    search: Mapping[str, Any] = field(default_factory=lambda: {"type": "auto"})
    scheduler: Mapping[str, Any] = field(default_factory=lambda: {"type": "auto"})
    stop: Mapping[str, Any] = field(default_factory=dict)  # {"type": ...} or {metric: threshold}
    points_to_evaluate: tuple[Mapping[str, Any], ...] = ()
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    scope: Scope = option("all", "which value of a trial counts: its best report, or its last")  # noqa: RUF009
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    executor: Literal["auto", "ray", "local", "agents"] = option(
        "auto",
        "where trials run. ray: on Ray. local: without Ray, each trial in one process of this machine. agents: on agents, "
        "which ask a service for trials over HTTP. auto: a service uses Ray; a script uses local processes if they can do "
        "what the experiment asks for, otherwise Ray",
    )
    warm_start: Literal["auto"] | Sequence[str] | None = option(
        None,
        "earlier experiments to learn from, by id or name; auto: those with the same metric and a similar space; "
        "null: none",
    )
    # What was learned from earlier experiments when this one was created; see `tuner.driver.earlier.learn`. It may be empty.
    # `of_project` is true if `warm_start` came from the settings of the project instead of the request.
    earlier: Mapping[str, Any] = field(default_factory=dict)
    forked_from: str | None = None  # the public id of the experiment that this one was forked from
    fork_request: str | None = None  # a hash of the request that asked for the fork, by which a repeat is recognized
    project: str = option(
        DEFAULT_PROJECT,
        "the project that the experiment belongs to; tokens may be limited to one project",
        pattern=PROJECT,
    )
    priority: int = option(0, "experiments of a higher priority get room on the cluster first", ge=-1000, le=1000)
    weight: float = option(
        1.0,
        "share of the cluster relative to other experiments of the same priority",
        ge=0.001,
        le=1000,
        allow_inf_nan=False,
    )
    notes: str = ""  # the user's notes, in Markdown
    tags: Mapping[str, str] = field(default_factory=dict)  # the user's tags, by which lists of experiments are filtered
    version: int = SPEC_VERSION
    # `former_spaces`: the search spaces that users have replaced since the experiment was created, oldest first.
    # `assumed`: path -> the value that a parameter of the present space is assumed to have in trials of spaces that lack the
    # parameter. See `tuner.space.revisions`.
    former_spaces: tuple[Mapping[str, Any], ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)
    # The scheduler and the search after "auto" and inherited options were resolved: {"scheduler": {...},
    # "search": {...} or None, "constraints": {...}, "budget": "in words", "runtime_env": {...}}. "search" is None if the
    # scheduler proposes configurations itself. "runtime_env" has the URIs of the packages into which local directories were
    # packed when the experiment was created. The last three are left out if there are none. Two more tell the drivers of later
    # versions by which rules the search began: "num_samples" of a grid, and "constraints_rank", which is True if all schedulers
    # rank trials by the constraints.
    resolved: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def method(self) -> str:
        """Return the search method in a few words, such as ``tpe + asha`` or ``freeze_thaw (auto)``.

        A scheduler or searcher of the user's own has the name that `tuner.driver.parts` has given it.
        """
        names: dict[str, list[str]] = {}
        for part, asked in (("search", self.search), ("scheduler", self.scheduler)):
            if (found := self.resolved.get(part, asked)) is not None:
                auto = " (auto)" if asked.get("type") == "auto" and found.get("type") != "auto" else ""
                name = found.get("type")
                names.setdefault(auto, []).append(str(found.get("name", name) if name == "python" else name))
        return " + ".join(" + ".join(dict.fromkeys(group)) + auto for auto, group in names.items())

    @property
    def objective(self) -> Objective:
        """The first objective, which schedulers use."""
        return self.objectives[0]

    @property
    def space_revision(self) -> int:
        """The number of the present search space: 0 for the first space, plus 1 for each change."""
        return len(self.former_spaces)

    def amended(self, changes: Mapping[str, Any]) -> Spec:
        """Return a copy of the spec with changes. In a section, only the options named in `changes` are replaced."""
        parts: dict[str, Any] = {
            name: dataclasses.replace(getattr(self, name), **value) if name in SECTIONS else value
            for name, value in changes.items()
        }
        if "former_spaces" in parts:
            parts["former_spaces"] = tuple(parts["former_spaces"])
        return dataclasses.replace(self, **parts)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> tuple[Spec, list[str]]:
        """Return the spec with this JSON form, and the names of the options that this version does not know, which it lacks.

        Another version that uses the same database may have written the JSON.
        """
        found, unknown = known(data)
        missing = {name: value for name, value in _NAMELESS.items() if not found.get(name)}
        return cls.from_json({**found, **missing}), unknown

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        parts = dict(data)
        parts["objectives"] = tuple(Objective(**o) for o in parts["objectives"])
        parts["points_to_evaluate"] = tuple(parts.get("points_to_evaluate", ()))
        parts["former_spaces"] = tuple(parts.get("former_spaces", ()))
        for name, kind in SECTIONS.items():
            if name in parts:
                parts[name] = kind(**parts[name])
        return cls(**parts)


_RESOLVED: Mapping[str, Any] = {
    "scheduler": Mapping[str, Any],
    "search": Mapping[str, Any] | None,
    "constraints": Mapping[str, Any],
    "budget": str | None,
    "runtime_env": Mapping[str, Any],
}
"""The types of the parts of `Spec.resolved`."""
_NAMELESS: Mapping[str, Any] = {"name": "?", "space": {}, "objectives": [{"metric": "?", "mode": "min"}]}
"""Replacements for what every spec has, if another version has written it in another form."""


def known(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a spec, or of changes to one, that this version knows, and the names of the others.

    data: the JSON form of the spec, or of the changes. An option also counts as unknown if it has a value that this version does
        not know, such as another executor, or a value of another type.
    """
    found, unknown = _known(Spec, data)
    for name, kind in (*SECTIONS.items(), ("objectives", Objective)):
        if name not in found:
            continue
        parts = found[name] if name == "objectives" else [found[name]]
        if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
            unknown.append(name)
            del found[name]
            continue
        read = [_known(kind, part) for part in parts]
        unknown += dict.fromkeys(f"{name}.{key}" for _, others in read for key in others)
        found[name] = [part for part, _ in read] if name == "objectives" else read[0][0]
        if name == "objectives" and any(part.keys() != {"metric", "mode"} for part in found[name]):
            del found[name]
    if others := _in_types(found.get("resolved", {}), _RESOLVED)[1]:
        unknown += [f"resolved.{name}" for name in others]
        del found["resolved"]  # its parts belong together
    return found, unknown


def _known(kind: type, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    hints = _hints(kind)
    found, _ = _in_types({name: value for name, value in data.items() if name in hints}, hints)
    return found, [name for name in data if name not in found]


def _in_types(data: Mapping[str, Any], hints: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that fit their types, and the names of the others. A value without a type fits."""
    found = {name: value for name, value in data.items() if fits(value, hints.get(name, Any))}
    return found, [name for name in data if name not in found]


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value fits a type. The parts of the spec, which are dataclasses, are left to `known`."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in inner
    if kind in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(fits(each, inner[1]) for each in value.values())
    if is_typeddict(kind):
        return (
            isinstance(value, Mapping)
            and kind.__required_keys__ <= value.keys()
            and not _in_types(value, _hints(kind))[1]
        )
    if kind is tuple and inner[-1] is not Ellipsis:
        return isinstance(value, list | tuple) and len(value) == len(inner) and all(map(fits, value, inner))
    if kind in (tuple, Sequence):
        return dataclasses.is_dataclass(inner[0]) or (
            isinstance(value, list | tuple) and all(fits(each, inner[0]) for each in value)
        )
    if kind in (int, float):  # JSON may have lost the difference between the two
        return isinstance(value, int | float)
    return kind is Any or dataclasses.is_dataclass(kind) or isinstance(value, kind)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the options of a part of the spec, or of the keys of a TypedDict."""
    hints = get_type_hints(kind)
    return hints if is_typeddict(kind) else {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
