"""Translate the arguments of `tuner.run`, including Ray and Optuna objects, into plain arguments and a function.

Ray Train trainers bring their own scaling, checkpoint and failure settings, and functions and classes wrapped by
`ray.tune.with_resources` bring resource requests. Arguments passed to `tuner.run` override both.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from tuner.errors import SpecError
from tuner.schedulers.from_ray import objective_of
from tuner.sdk import callbacks as loggers
from tuner.settings import Settings
from tuner.space import Space
from tuner.trials.checkpoints.objects import Parameterized, Stored, store, with_parameters
from tuner.trials.checkpoints.packages import any_local, ship
from tuner.trials.checkpoints.storage import absolute
from tuner.trials.compat import ray_compat
from tuner.trials.compat.forms import as_function, is_algorithm_config, is_objective, is_trainer, with_metrics
from tuner.trials.compat.train_loop import LOOP_CONFIG

_ENDLESS = 2**31 - 1  # Ray's max_failures=-1


def adapted(run: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `run` with foreign objects translated into plain ones.

    Args:
        run: the function that was called. Its defaults show which arguments the caller did not pass.
        given: all arguments of the call, by name.

    Raises:
        SpecError: a foreign object asks for something that has no equivalent here.
    """
    given = {**given, "storage": _absolute(given.get("storage")), "checkpoint": _with_storage(given.get("checkpoint"))}
    if is_algorithm_config(given["space"]):
        given["space"] = given["space"].to_dict()
    trainable = given["trainable"]
    defaults = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    brought: dict[str, Any] = {}
    for name, read in (("tune_config", tune_config), ("run_config", run_config), ("scaling_config", scaling_config)):
        if given.get(name) is not None:
            brought |= read(given[name])
    brought = _objective(given, brought) | brought
    configs = [given["run_config"]] if given.get("run_config") is not None else []
    searcher = _part("search_alg", given, brought)
    limit, seed = _concurrent_of(searcher), _seed_of(searcher)
    if seed is not None and "seed" in given:
        brought["seed"] = seed
    if not isinstance(trainable, str):
        trainable, resources = _unwrapped(trainable, given)
        brought = resources | brought
        if is_trainer(trainable):
            brought = _of_trainer(trainable, given) | brought
            if getattr(trainable, "datasets", None):
                passed = {n: given[n] for n in ("num_workers", "resources_per_worker") if given[n] != defaults[n]}
                if (room := _room_for_data(brought | passed)) is not None:
                    brought.setdefault("max_concurrent_trials", room)
            configs.append(trainable.run_config)
        if isinstance(trainable, Parameterized):
            _check_reach(given, brought, "objects of tuner.with_parameters", "/trainable")
        trainable = _stored(trainable, _storage(given, brought), given.get("address"))
        if is_objective(trainable):
            brought |= _of_objective(given["search_alg"] or brought.get("search_alg"))
        metric = given["metric"] or brought.get("metric")
        trainable = with_metrics(as_function(trainable), [metric] if isinstance(metric, str) else metric or ())
    objective = [given[name] or brought.get(name) for name in ("metric", "mode")]
    for config in configs:
        _say_how_checkpoints_are_ranked(_plain(getattr(config, "checkpoint_config", None)), *objective)
    if limit is not None:
        brought["max_concurrent_trials"] = min(limit, brought.get("max_concurrent_trials") or limit)
    environment = given.get("runtime_env") or brought.pop("runtime_env", None) or {}
    if any_local(environment):
        _check_reach(given, brought, "local directories of runtime_env", "/runtime_env")
    shipped = ship(environment, _storage(given, brought))
    arguments = {**given, "trainable": trainable, "runtime_env": shipped or None, **dict.fromkeys(_CONFIGS)}
    for name, value in brought.items():
        if name == "checkpoint":
            arguments[name] = {**value, **(arguments[name] or {})}
        elif arguments[name] == defaults[name] or (name == "search_alg" and is_objective(given["trainable"])):
            arguments[name] = value
    return arguments


def _absolute(storage: Any) -> Any:
    """Return the storage as an absolute path or URI. In a ``file://`` URI, decode ``%20`` and the like.

    Leave other values as they are; spec validation rejects them. The storage of an experiment is not decoded, since it
    may have been stored when names like ``my%20dir`` were created.
    """
    if not storage or not isinstance(storage, str | os.PathLike):
        return storage
    found = absolute(storage)
    return unquote(found) if found.startswith("file://") else found


def _with_storage(checkpoint: Any) -> Any:
    if not isinstance(checkpoint, Mapping) or "storage" not in checkpoint:
        return checkpoint
    return {**checkpoint, "storage": _absolute(checkpoint["storage"])}


_CONFIGS = ("run_config", "scaling_config", "tune_config")


def tune_config(config: Any) -> dict[str, Any]:
    """Translate a `ray.tune.TuneConfig`. As in Ray, its `num_samples` is 1 by default, and -1 means no limit."""
    names = ("metric", "mode", "search_alg", "scheduler")
    out = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    if (samples := getattr(config, "num_samples", -1)) != -1:
        out["num_samples"] = samples
    if concurrent := getattr(config, "max_concurrent_trials", None):
        out["max_concurrent_trials"] = concurrent
    if (budget := getattr(config, "time_budget_s", None)) is not None:
        out["time_budget_s"] = budget.total_seconds() if hasattr(budget, "total_seconds") else budget
    if getattr(config, "chdir_to_trial_dir", None) is False:
        out["working_dir"] = "caller"
    _say_what_is_left_out(config, {f"trial_{part}_creator": _TRIAL_NAMES for part in ("name", "dirname")})
    return out


def run_config(config: Any) -> dict[str, Any]:
    """Translate a `RunConfig` of `ray.train` or `ray.tune`."""
    out: dict[str, Any] = {}
    name = getattr(config, "name", None)
    if name and not name.startswith("ray_train_run-"):  # Ray's default, generated from the current time
        out["name"] = name
    storage = getattr(config, "storage_path", None)
    if storage and str(storage) != os.path.expanduser("~/ray_results"):  # Ray's default
        out["storage"] = _absolute(storage)
    if getattr(config, "storage_filesystem", None) is not None:
        raise SpecError("storage_filesystem has no counterpart; use storage='scheme://...' instead", "/run_config")
    if (stop := _plain(getattr(config, "stop", None))) is not None:
        out["stop"] = stop
    if getattr(config, "failure_config", None) is not None:
        out |= failure_config(config.failure_config)
    if getattr(config, "checkpoint_config", None) is not None:
        out |= checkpoint_config(config.checkpoint_config)
    if (environment := _plain(getattr(config, "worker_runtime_env", None))) is not None:
        out["runtime_env"] = dict(environment)
    if callbacks := _plain(getattr(config, "callbacks", None)):
        out["callbacks"] = _callbacks(callbacks)
    _say_what_is_left_out(config, _NOT_RUN)
    return out


def _callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Return the callbacks of a `RunConfig` that can be called here. Warn about the others."""
    used = []
    for callback in callbacks:
        # Such a callback needs Ray's trial objects.
        if any(kind.__name__ == "LoggerCallback" for kind in type(callback).__mro__):
            if type(callback).__name__ in loggers.__all__:
                why = "tuner.callbacks has a logger of this name"
            else:
                why = "it needs trials of Ray Tune; use a logger of tuner.callbacks, or a callback with on_trial_result"
        elif not hasattr(callback, "on_trial_result"):  # Ray Train's
            why = "tuner calls trial callbacks, not worker callbacks"
        else:
            used.append(callback)
            continue
        what = f"{type(callback).__name__} of RunConfig.callbacks is not used: {why}"
        warnings.warn(what, UserWarning, stacklevel=above_this_package())
    return used


def failure_config(config: Any) -> dict[str, Any]:
    """Translate a `FailureConfig`. -1 retries means no limit."""
    _say_what_is_left_out(
        config, {"fail_fast": "trials that fail do not end the search; max_failed_trials=1 ends it after the first one"}
    )
    failures = _plain(getattr(config, "max_failures", 0)) or 0
    return {"max_failures": _ENDLESS if failures < 0 else failures} if failures else {}


def checkpoint_config(config: Any) -> dict[str, Any]:
    """Translate a `CheckpointConfig`.

    `num_to_keep` is the number of best checkpoints (by the objective) to keep if `checkpoint_score_attribute` is set, else
    the number of newest ones.
    """
    out: dict[str, Any] = {}
    keep = _plain(getattr(config, "num_to_keep", None))
    by_score = _plain(getattr(config, "checkpoint_score_attribute", None)) is not None
    if keep is not None:
        out |= {"keep_best": keep, "keep_last": 1} if by_score else {"keep_last": keep, "keep_best": 1}
    if frequency := _plain(getattr(config, "checkpoint_frequency", None)):
        out["frequency"] = frequency
    if (at_end := _plain(getattr(config, "checkpoint_at_end", None))) is not None:
        out["at_end"] = bool(at_end)
    return {"checkpoint": out} if out else {}


def scaling_config(config: Any) -> dict[str, Any]:
    """Translate a `ray.train.ScalingConfig`."""
    workers = _plain(config.num_workers)
    most: int | None = None
    if isinstance(workers, tuple | list):
        workers, most = workers
    for name in ("use_tpu", "label_selector", "topology"):
        if getattr(config, name, None):
            raise SpecError(f"{name} has no counterpart", "/scaling_config")
    resources = dict(_plain(config.resources_per_worker) or {})
    if accelerator := _plain(getattr(config, "accelerator_type", None)):
        resources.setdefault(f"accelerator_type:{accelerator}", 0.001)
    return {
        "num_workers": max(1, workers),
        "max_workers": most,
        "use_gpu": bool(_plain(config.use_gpu)),
        "resources_per_worker": resources or None,
        "placement_strategy": _plain(getattr(config, "placement_strategy", None)) or "PACK",
    }


def _of_trainer(trainer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    space = given["space"] or {}
    others = sorted(set(space) - {LOOP_CONFIG})
    if LOOP_CONFIG in space and others:
        raise SpecError(
            f"the space of a trainer can have only {LOOP_CONFIG}, not {', '.join(others)}",
            f"/space/{others[0]}",
        )
    out = run_config(trainer.run_config) | scaling_config(trainer.scaling_config)
    if backend := getattr(trainer.backend_config, "backend", None):
        out["backend"] = backend
    if getattr(trainer.backend_config, "timeout_s", _TIMEOUT_S) != _TIMEOUT_S:
        _say_what_is_left_out(trainer.backend_config, {"timeout_s": _OWN_GROUP})
    return out


def _of_objective(search: Any) -> dict[str, Any]:
    """Return the arguments for an Optuna objective.

    The objective's parameters are drawn when it asks for them, and its return value is the trial's value.
    """
    from tuner.search import DefineByRunSearch  # loads Optuna

    if isinstance(search, DefineByRunSearch):
        return {"scope": "last"}
    return {"search_alg": DefineByRunSearch(search if search not in (None, "auto") else "tpe"), "scope": "last"}


def _room_for_data(arguments: Mapping[str, Any]) -> int | None:
    """Return how many trials may run at once with one CPU left for Ray Data, or None if no cluster is running yet."""
    ray = sys.modules.get("ray")
    # another thread may be importing Ray just now
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return None
    workers = arguments["num_workers"]
    workers = workers.get("min", 1) if isinstance(workers, Mapping) else workers
    each = (arguments.get("resources_per_worker") or {}).get("CPU", 1.0) * workers
    return max(1, int((ray.cluster_resources().get("CPU", 1.0) - 1) // each)) if each else None


def _unwrapped(trainable: Any, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Remove the `ray.tune` wrappers. Return the trainable and each rank's resources."""
    given, objects = trainable, {}
    constants = functools.partial(_constants, arguments["space"])
    if isinstance(given, Parameterized):
        trainable, objects = given.trainable, dict(given.objects)
    trainable, request = ray_compat.without_resources(trainable, constants)
    if (inner := ray_compat.without_parameters(trainable)) is not None:
        trainable, more = inner
        objects = more | objects
        trainable, within = ray_compat.without_resources(trainable, constants)
        request = request if request is not None else within
    if isinstance(given, Parameterized) and trainable is given.trainable:
        trainable = given
    elif objects:
        trainable = with_parameters(trainable, **objects)
    return trainable, _bundle(request, explicit=bool(arguments["resources_per_worker"]))


def _constants(space: Any) -> dict[str, Any]:
    """Return the constants of a space, or {} if the space is invalid: spec validation will report its mistakes."""
    try:
        return Space.from_python(space or {}).constants()
    except SpecError:
        return {}


def _bundle(request: Any, explicit: bool) -> dict[str, Any]:
    """Convert a resource request to arguments of `tuner.run`. explicit: True if the caller passes `resources_per_worker`."""
    if request is None:
        return {}
    if not hasattr(request, "bundles"):
        raise SpecError(
            "resources that depend on the configuration are not supported; use resources_per_worker", "/trainable"
        )
    if len(request.bundles) != 1:
        if explicit:
            return {}
        raise SpecError(
            f"requests for {len(request.bundles)} bundles are not supported; use num_workers and resources_per_worker. "
            "Tasks and actors that a trial starts itself need none, but CPUs that no trial holds: set max_concurrent_trials. "
            "An RLlib algorithm needs only one bundle if the space has num_env_runners=0",
            "/trainable",
        )
    bundle = dict(request.bundles[0])
    return {"resources_per_worker": bundle, **({"use_gpu": True} if bundle.get("GPU") else {})}


def _storage(*arguments: Mapping[str, Any]) -> str:
    return next((a["storage"] for a in arguments if a.get("storage")), None) or Settings.from_env().storage


def _check_reach(given: Mapping[str, Any], brought: Mapping[str, Any], what: str, pointer: str) -> None:
    """Raise SpecError if a service's workers could not read the files that this process writes to its storage."""
    if given.get("address") is not None and not (given.get("storage") or brought.get("storage")):
        raise SpecError(
            f"the workers of the service have to read {what}: pass storage=, with a URI such as "
            "s3://bucket/folder or a directory that this machine shares with them",
            pointer,
        )


def _stored(trainable: Any, storage: str, address: Any) -> Any:
    """Store the objects of tuner.with_parameters where every worker can read them, in a folder for this database or service."""
    if not isinstance(trainable, Parameterized) or all(isinstance(o, Stored) for o in trainable.objects.values()):
        return trainable
    return dataclasses.replace(
        trainable,
        objects={
            name: store(name, value, storage, Settings.from_env().database_url if address is None else str(address))
            for name, value in trainable.objects.items()
        },
    )


def _objective(given: Mapping[str, Any], brought: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric and the mode of a Ray Tune scheduler or searcher, for calls that do not pass them as arguments."""
    out: dict[str, Any] = {}
    for name in ("scheduler", "search_alg"):
        for key, value in zip(("metric", "mode"), objective_of(_part(name, given, brought)), strict=True):
            if value is not None and given.get(key) is None:
                out.setdefault(key, value)
    return out


def _part(name: str, given: Mapping[str, Any], brought: Mapping[str, Any]) -> Any:
    """Return the scheduler or searcher that the caller passed, as an argument or inside a Ray object."""
    return given[name] if given.get(name) is not None else brought.get(name)


def _concurrent_of(searcher: Any) -> int | None:
    """Return how many trials may run at once according to a searcher of Ray Tune, or None if it sets no limit.

    Only a ConcurrencyLimiter, a BasicVariantGenerator and a TuneBOHB set one.
    """
    limits = []
    for each in _with_inner(searcher):
        if _is_from(each, *_LIMITING):
            limits.append(each.max_concurrent)
            _say_what_is_left_out(each, {"batch": "a trial starts as soon as another one has ended"})
        elif _is_from(each, _BOHB):
            limits.append(each._max_concurrent)
    return min((limit for limit in limits if limit and limit > 0), default=None)


def _seed_of(searcher: Any) -> int | None:
    """Return the seed of a TuneBOHB, or None. Our searcher, to which it is converted, uses the seed of the experiment."""
    return next((each._seed for each in _with_inner(searcher) if _is_from(each, _BOHB)), None)


def _with_inner(searcher: Any) -> Iterator[Any]:
    """Yield a searcher, and those that it wraps."""
    while searcher is not None:
        yield searcher
        searcher = getattr(searcher, "searcher", None)


def _is_from(thing: Any, *modules: str) -> bool:
    """Return whether a class of these modules, or one that is derived from it, has made this object."""
    return any(cls.__module__ in modules for cls in type(thing).__mro__)


_BOHB = "ray.tune.search.bohb.bohb_search"
_LIMITING = ("ray.tune.search.concurrency_limiter", "ray.tune.search.basic_variant")
_TIMEOUT_S = 1800
"""The timeout of a trial's process group, which is also the default of Ray's `TorchConfig`."""
_OWN_GROUP = (
    "a trial's process group has a timeout of 30 minutes, and torch.distributed.init_process_group(timeout=...) in the "
    "training function replaces it"
)
_TRIAL_NAMES = "trials are identified by their numbers"
_NOT_RUN = {
    "progress_reporter": "tuner.run(verbose=...) controls what is shown",
    "log_to_file": "the output of each rank is kept in its log",
}
"""The fields of a `RunConfig` that are not used, and what to use instead."""


def _say_what_is_left_out(config: Any, parts: Mapping[str, str]) -> None:
    for name, instead in parts.items():
        if _plain(getattr(config, name, None)):
            what = f"{type(config).__name__}.{name} is not used: {instead}"
            warnings.warn(what, UserWarning, stacklevel=above_this_package())


def _say_how_checkpoints_are_ranked(config: Any, metric: Any, mode: Any) -> None:
    """Warn if a `CheckpointConfig` ranks the checkpoints to keep by something other than the objective."""
    by = _plain(getattr(config, "checkpoint_score_attribute", None))
    if by is None or _plain(config.num_to_keep) is None or not (isinstance(metric, str) and isinstance(mode, str)):
        return
    order = config.checkpoint_score_order
    if (by, order) == (metric, mode):
        return
    name, value = ("attribute", by) if by != metric else ("order", order)
    what = (
        f"{type(config).__name__}.checkpoint_score_{name}={value!r} is not used: the checkpoints with the best {metric} are kept "
        f"(mode {mode!r}); checkpoint={{'keep_last': None}} keeps all"
    )
    warnings.warn(what, UserWarning, stacklevel=above_this_package())


def above_this_package() -> int:
    """Return the `stacklevel` for which a warning points at the line that called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "tuner":
        frame, level = frame.f_back, level + 1
    return level


def _plain(value: Any) -> Any:
    """Return the value, or None if it is one of the sentinels that Ray uses as defaults."""
    return None if isinstance(value, str) and value.upper() == "DEPRECATED" else value
