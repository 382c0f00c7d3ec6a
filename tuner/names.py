"""Suggest the name that was most likely meant, for error messages."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from tuner.errors import WrongArgument

P = ParamSpec("P")
R = TypeVar("R")

ELSEWHERE: dict[str, tuple[str, ...]] = {
    # A name from Optuna, Ray Tune, Hyperopt, scikit-learn, W&B, Determined, a spec or Python -> our names for the same thing.
    # The first of them that is valid in the place of the wrong name is suggested.
    "algo": ("search_alg", "search"),
    "budget_s": ("time_budget_s", "limits.time_budget_s"),
    "catch": ("max_failures", "limits.max_failures"),
    "checkpoint_config": ("checkpoint",),
    "concurrency": ("max_concurrent_trials", "limits.max_concurrent_trials"),
    "config": ("space",),
    "count": ("num_samples",),
    "direction": ("mode",),
    "directions": ("mode",),
    "divisor": ("reduction_factor",),
    "early_terminate": ("scheduler",),
    "entrypoint": ("trainable",),
    "epochs": ("max_t",),
    "eta": ("reduction_factor",),
    "experiment_name": ("name",),
    "failure_config": ("max_failures", "limits.max_failures"),
    "func": ("trainable", "entrypoint"),
    "function": ("trainable", "entrypoint"),
    "goal": ("mode",),
    "grace": ("grace_period",),
    "high": ("upper",),
    "local_dir": ("storage", "checkpoint.storage"),
    "low": ("lower",),
    "max": ("upper",),
    "max_budget": ("max_t",),
    "max_config_calls": ("repeats", "limits.repeats"),
    "max_concurrent": ("max_concurrent_trials", "limits.max_concurrent_trials"),
    "max_epochs": ("max_t",),
    "max_failed_trial_count": ("max_failed_trials", "limits.max_failed_trials"),
    "max_evals": ("num_samples",),
    "max_iter": ("max_t",),
    "max_length": ("max_t",),
    "max_resource": ("max_t",),
    "max_steps": ("max_t",),
    "max_trials": ("num_samples",),
    "method": ("search_alg", "search"),
    "min": ("lower",),
    "min_budget": ("grace_period",),
    "min_early_stopping_rate": ("grace_period",),
    "min_iter": ("grace_period",),
    "min_resource": ("grace_period",),
    "min_t": ("grace_period",),
    "n_iter": ("num_samples",),
    "n_jobs": ("max_concurrent_trials", "limits.max_concurrent_trials"),
    "n_startup_trials": ("min_samples_required",),
    "n_trials": ("num_samples",),
    "n_warmup_steps": ("grace_period",),
    "num_epochs": ("max_t",),
    "num_trials": ("num_samples",),
    "objective": ("metric",),
    "parallelism": ("max_concurrent_trials", "limits.max_concurrent_trials"),
    "param_distributions": ("space",),
    "param_grid": ("space",),
    "param_space": ("space",),
    "parameters": ("space",),
    "progress_reporter": ("verbose",),
    "pruner": ("scheduler",),
    "repeat": ("repeats", "limits.repeats"),
    "replications": ("repeats", "limits.repeats"),
    "resources": ("resources_per_worker", "scaling.resources_per_worker"),
    "resources_per_trial": ("resources_per_worker", "scaling.resources_per_worker"),
    "run_or_experiment": ("trainable",),
    "sampler": ("search_alg", "search"),
    "scaling_config": ("scaling",),
    "scoring": ("metric",),
    "search": ("search_alg",),
    "search_alg": ("search",),
    "search_space": ("space",),
    "searcher": ("search_alg", "search"),
    "storage": ("checkpoint.storage",),
    "storage_path": ("storage", "checkpoint.storage"),
    "study_name": ("name",),
    "sync_config": ("storage", "checkpoint.storage"),
    "time_budget": ("time_budget_s", "limits.time_budget_s"),
    "timeout": ("time_budget_s", "limits.time_budget_s"),
    "trainable": ("entrypoint",),
    "trial_scheduler": ("scheduler",),
    # types of schedulers and searchers
    "bayes": ("gp",),
    "bayesian": ("gp",),
    "bayesopt": ("gp",),
    "halton": ("qmc",),
    "hyperopt": ("tpe",),
    "medianpruner": ("median",),
    "median_pruner": ("median",),
    "medianstopping": ("median",),
    "median_stopping_rule": ("median",),
    "hb_bohb": ("hyperband",),
    "variant_generator": ("random",),
    "nop": ("fifo",),
    "none": ("fifo",),
    "nsga2": ("nsgaii",),
    "sobol": ("qmc",),
    "successive_halving": ("asha",),
    "successivehalving": ("asha",),
}
DISTRIBUTION = "tuner-hpo"
"""The name of this package on the package index, where `tuner` is the name of another project."""
NO_ARGUMENT = {
    "constraints": "a searcher takes them: search_alg={'type': 'tpe', 'constraints': {'size': {'max': 0.25}}}",
    "fail_fast": "a failed trial does not end the other trials; max_failed_trials=1 ends the search after the first one",
    "load_if_exists": "tuner.resume(experiment_id) continues an earlier search",
    "raise_on_failed_trial": "a failed trial raises no exception; see result.errors",
    "restart_errored": "tuner.resume(experiment_id, retry=[NUMBER, ...]) runs failed trials again",
    "restore": "tuner.resume(experiment_id) continues an earlier search",
    "resume": "tuner.resume(experiment_id) continues an earlier search",
    "resume_errored": "tuner.resume(experiment_id, retry=[NUMBER, ...]) runs failed trials again",
    "storage": "everything is in one database: that of the home, or the one that TUNER_DATABASE_URL names",
}
"""Arguments of Ray Tune and Optuna that do not exist here -> what to use instead."""

OF_THE_EXPERIMENT = frozenset(
    {
        "budget",
        "max_concurrent_trials",
        "metric",
        "mode",
        "num_samples",
        "points_to_evaluate",
        "seed",
        "space",
        "time_budget_s",
    }
)
"""Options that schedulers or searchers take in other libraries, and that the experiment takes here."""


def elsewhere(name: Any, known: Iterable[str]) -> str | None:
    """Return the name in `known` for what other libraries call `name`, or None if there is no such name."""
    names = set(known)
    return next((ours for ours in ELSEWHERE.get(str(name).lower(), ()) if ours in names), None)


def option_meant(name: Any, known: Iterable[str], quote: str = "") -> str:
    """Return a suggestion as `did_you_mean` does, but look up the names that other libraries use first."""
    names = list(known)
    found = elsewhere(name, names)
    return f"; did you mean {quote}{found}{quote}?" if found is not None else did_you_mean(name, names, quote)


def of_the_experiment(name: str, known: Iterable[str]) -> str:
    """Return ``"; it belongs to the experiment, as mode"`` if `name` is an option of the experiment, else ""."""
    if name in known or elsewhere(name, known):
        return ""
    ours = name if name in OF_THE_EXPERIMENT else elsewhere(name, OF_THE_EXPERIMENT)
    return "" if ours is None else "; it belongs to the experiment" + (f", as {ours}" if ours != name else "")


def nearest(name: Any, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case, or None if no known name is similar."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    if not close:
        lower = {other.lower(): other for other in reversed(names)}
        close = [lower[found] for found in difflib.get_close_matches(str(name).lower(), lower, n=1)]
    return close[0] if close else None


def did_you_mean(name: Any, known: Iterable[str], quote: str = "") -> str:
    """Return a suggestion to append to a message, such as ``"; did you mean max_t?"``, or "" if no known name is similar."""
    found = nearest(name, known)
    return f"; did you mean {quote}{found}{quote}?" if found is not None else ""


def name_of(function: Any) -> str:
    """Return the name of a function, even one in a `functools.partial`, or that of the class of another object."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def resource_meant(name: str) -> str | None:
    """Return the Ray resource that a name such as "gpu", "GPUs" or "num_gpus" probably means.

    Return None if the name is correct already, or is not similar to any resource.
    """
    plain = name.lower().removeprefix("num_").removeprefix("n_").rstrip("s")
    meant = {"cpu": "CPU", "gpu": "GPU", "memory": "memory", "mem": "memory"}.get(plain)
    return None if meant == name else meant


def keywords_explained(
    function: Callable[P, R], part: str | None = None, instead: Callable[[str, Mapping[str, Any]], str] | None = None
) -> Callable[P, R]:
    """Decorate a function so that its TypeError for an unknown keyword suggests the right one.

    part: the name of the scheduler or searcher that the function builds, or None. For a scheduler or searcher, the message
        also says if the unknown keyword is an option of the experiment. Its integers may be those of another library.
    instead: called with an unknown keyword and all keyword arguments; returns a suggestion that comes before all others, or "".
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function
    known = [name for name in parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in known]:
            hints = {name: instead(name, kwargs) if instead else "" for name in unknown}
            raise WrongArgument("; ".join(_unknown(function, name, known, part, hints[name]) for name in unknown))
        if part is None:
            return function(*args, **kwargs)
        plain = {name: _plain(value) for name, value in kwargs.items()}
        return function(*map(_plain, args), **plain)

    return checked


def _plain(value: Any) -> Any:
    """Return the value with a Python integer for each integer of another library, such as numpy, also in lists and dicts."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, int) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # such as an array
        return value


def _unknown(function: Callable[..., Any], name: str, known: list[str], part: str | None, hint: str) -> str:
    belongs = hint or (of_the_experiment(name, known) if part else "")
    instead = f"; {NO_ARGUMENT[name]}" if name in NO_ARGUMENT else ""
    return f"{part or function.__name__}() has no parameter {name!r}{belongs or instead or option_meant(name, known, chr(39))}"


_COLORS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def with_extra(extra: str) -> str:
    """Return the command that installs this package with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


RAY_CLIENT = "ray://"
"""The prefix of a Ray Client address."""


def gp_needs_torch() -> str:
    """Say that the searcher gp needs PyTorch, and what can be done."""
    return f"gp needs PyTorch, which is not installed: {with_extra('torch')}; tpe does not need it"


def no_ray_client() -> str:
    """Return a message that explains why a search cannot run through Ray Client, and what to do instead."""
    return (
        "a search does not run through Ray Client (ray://): its driver, its database and its checkpoints belong on the cluster. "
        "Run the script there, with `ray job submit --address http://HEAD:8265 --working-dir . -- python SCRIPT`, or run "
        "`tuner serve` there and pass address='http://HEAD:8000'"
    )


def printable(text: str) -> str:
    """Return the text with placeholders for control characters, because a terminal would interpret them.

    Names and messages may come from anyone.
    """
    return text.translate(_CONTROL)


def without_colors(text: str) -> str:
    """Return the output of a program without the codes with which it colors its output."""
    return _COLORS.sub("", text)


def in_project(project: str | None) -> str:
    """Return the end of a message that something was not found: " in the project ..." if access is limited to a project."""
    return "" if project is None else f" in the project {project!r}, to which your access is limited"
