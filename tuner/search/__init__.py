"""Build searchers by the names that specs give them. Each searcher is imported when it is first used, as are Optuna and SciPy.

`from_json` builds a searcher from ``{"type": "tpe", "n_startup_trials": 20}``. `from_argument` takes what Python code passes
as `search_alg`. To add a searcher, write a module and add an entry to `REGISTRY`.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.errors import SpecError
from tuner.options import build, option_names, pick
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.space.words import show

# In a notebook without ipywidgets, the first import of Optuna warns that they are missing. tuner does not use them.
warnings.filterwarnings("ignore", message="IProgress not found")

if TYPE_CHECKING:
    from tuner.search.bohb import BOHBSearch
    from tuner.search.grid import GridSearch
    from tuner.search.optuna_samplers.cmaes import CMAESSearch
    from tuner.search.optuna_samplers.define_by_run import DefineByRunSearch
    from tuner.search.optuna_samplers.gp import GPSearch
    from tuner.search.optuna_samplers.nsgaii import NSGAIISearch
    from tuner.search.optuna_samplers.optuna_search import OptunaSearch
    from tuner.search.optuna_samplers.tpe import TPESearch
    from tuner.search.qmc import QMCSearch
    from tuner.search.random_search import RandomSearch
    from tuner.search.ray_searcher import RaySearcher

REGISTRY: dict[str, tuple[str, str]] = {
    "bohb": ("bohb", "BOHBSearch"),
    "cmaes": ("optuna_samplers.cmaes", "CMAESSearch"),
    "define_by_run": ("optuna_samplers.define_by_run", "DefineByRunSearch"),
    "gp": ("optuna_samplers.gp", "GPSearch"),
    "grid": ("grid", "GridSearch"),
    "nsgaii": ("optuna_samplers.nsgaii", "NSGAIISearch"),
    "optuna": ("optuna_samplers.optuna_search", "OptunaSearch"),
    "qmc": ("qmc", "QMCSearch"),
    "random": ("random_search", "RandomSearch"),
    "ray": ("ray_searcher", "RaySearcher"),
    "tpe": ("optuna_samplers.tpe", "TPESearch"),
}
_MODULE_OF = {name: module for module, name in REGISTRY.values()}

__all__ = [
    "BOHBSearch",
    "CMAESSearch",
    "DefineByRunSearch",
    "GPSearch",
    "GridSearch",
    "NSGAIISearch",
    "OptunaSearch",
    "QMCSearch",
    "RandomSearch",
    "RaySearcher",
    "Searcher",
    "SearcherContext",
    "Suggestion",
    "TPESearch",
    "from_argument",
    "from_json",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def from_json(data: Mapping[str, Any], pointer: str = "/search") -> Searcher:
    """Return the searcher described by ``{"type": ..., option: value, ...}``.

    Raises:
        SpecError: the type or an option is unknown, or a value is wrong. The error's pointer begins with `pointer`.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f'expected {{"type": ..., ...}}, got {show(data)}', pointer)
    pick(data.get("type"), REGISTRY, "searcher", pointer)
    return _build(data["type"], data, pointer)


def class_of(data: Mapping[str, Any]) -> type[Searcher] | None:
    """Return the class of the searcher that `from_json` would return; None if there is no searcher of this type."""
    place = REGISTRY.get(data.get("type", ""))
    return None if place is None else _class_of(*place)


def from_argument(argument: Any, pointer: str = "/search") -> Searcher:
    """Return the searcher for an argument that was passed in Python.

    `argument` may be a Searcher, a name, a dict as for `from_json`, an Optuna sampler, or a
    `ray.tune.search.Searcher`. Ray's `TuneBOHB` becomes our `bohb`.
    """
    if isinstance(argument, Searcher):
        return argument
    if isinstance(argument, str):
        return from_json({"type": argument}, pointer)
    if isinstance(argument, Mapping):
        return from_json(argument, pointer)
    families = {f"{cls.__module__}.{cls.__name__}" for cls in type(argument).__mro__}
    if "optuna.samplers._base.BaseSampler" in families:
        return _build("optuna", {"sampler": argument}, pointer)
    if "ray.tune.search.searcher.Searcher" in families:
        inner, around = argument, []
        while not _is_tune_bohb(inner) and getattr(inner, "searcher", None) is not None:
            around.append(type(inner).__name__)
            inner = inner.searcher
        if _is_tune_bohb(inner):
            if others := [name for name in around if name != "ConcurrencyLimiter"]:
                raise SpecError(f"a TuneBOHB cannot be used in a {others[0]}; pass it alone", pointer)
            return _build("bohb", _options_of_bohb(inner, pointer), pointer)
        return _build("ray", {"searcher": argument}, pointer)
    if "ray.tune.search.basic_variant.BasicVariantGenerator" in families:  # draws at random, and runs grids
        if getattr(argument, "_points_to_evaluate", None):
            raise SpecError("pass points_to_evaluate to tuner.run and not to BasicVariantGenerator", pointer)
        return _build("random", {}, pointer)
    if isinstance(argument, type) and issubclass(argument, Searcher):
        raise SpecError(f"expected a searcher, not its class; write {argument.__name__}()", pointer)
    wanted = "a searcher, its name, its JSON form, an Optuna sampler or a Ray Tune searcher"
    raise SpecError(f"expected {wanted}, got {show(argument)}", pointer)


def _is_tune_bohb(thing: Any) -> bool:
    name = "ray.tune.search.bohb.bohb_search.TuneBOHB"
    return name in {f"{cls.__module__}.{cls.__name__}" for cls in type(thing).__mro__}


def _options_of_bohb(theirs: Any, pointer: str) -> dict[str, Any]:
    """Return the options of a `TuneBOHB` under our names.

    It cannot be asked as other searchers of Ray are, since it learns nothing but what Ray's HyperBandForBOHB tells it.
    """
    for name, given in {"space": theirs._space, "points_to_evaluate": theirs._points_to_evaluate}.items():
        if given:
            raise SpecError(f"pass the {name} to tuner.run and not to TuneBOHB", pointer)
    options = dict(theirs._bohb_config or {})
    if "num_samples" in options:
        options["n_ei_candidates"] = options.pop("num_samples")
    return options


def _build(kind: str, options: Mapping[str, Any], pointer: str) -> Searcher:
    made = _class_of(*REGISTRY[kind])
    if "constraints" in options and "constraints" not in option_names(made):
        able = [name for name, place in REGISTRY.items() if "constraints" in option_names(_class_of(*place))]
        raise SpecError(f"{kind} takes no constraints; these do: {', '.join(able)}", f"{pointer}/constraints")
    return build(made, options, pointer)


@functools.cache
def _class_of(module: str, name: str) -> type[Searcher]:
    found: type[Searcher] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found
