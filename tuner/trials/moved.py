"""Keep the old names of moved modules importable, for old pickles.

Databases and files contain pickles of training functions, searchers and checkpoints. A pickle refers to objects by
module and name: an old pickle of a function that calls `tuner.report` refers to `report` in `tuner.trials.session`. So
when a module moves, its old name must stay importable. This module adds the old names to Python's import system. That
works for all pickles, including nested ones and those that Ray loads.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ROOMS = {
    "tuner.trials.checkpoints": ("checkpoints", "objects", "packages", "saver", "storage"),
    "tuner.trials.compat": ("class_form", "datasets", "forms", "on_import", "optuna_compat", "ray_compat"),
    "tuner.trials.groups": ("failures", "nodes", "placement", "pool"),
    "tuner.trials.groups.cluster": ("cut_nodes", "growth", "node_names", "nodes", "ray_nodes"),
    "tuner.trials.groups.pools": (
        "admission", "builder", "fair_share", "group", "local_pool", "local_ranks", "placement", "pool", "warm",
    ),
    "tuner.trials.groups.segments": ("interrupts", "manager", "segment_run", "uploads", "watch"),
    "tuner.trials.messages": ("channel", "launch", "protocol"),
    "tuner.trials.runtime": (
        "calling", "code", "directories", "hygiene", "logs", "modules", "outbox", "rendezvous", "worker",
    ),
    "tuner.trials.runtime.function": ("calling", "code", "directories", "modules"),
    "tuner.trials.runtime.measures": ("process_stats", "profiler", "speedscope"),
    "tuner.trials.runtime.sending": ("log_shipper", "logs", "outbox", "uploads"),
    "tuner.trials.training": ("metrics", "session", "torch"),
    "tuner.search.optuna_samplers": (
        "cmaes", "define_by_run", "gp", "model_based", "nsgaii", "optuna_search", "study", "tpe",
    ),
    "tuner.schedulers.freeze_thaw.decisions": ("acquisition", "brief", "budget", "novelty", "reasons"),
    "tuner.schedulers.freeze_thaw.model": (
        "curve_model", "earlier", "learned", "levels", "repeats", "results", "score_warp", "unit_cube",
    ),
    "tuner.schedulers.shared": ("rungs", "wording"),
    "tuner.schedulers.pbt": ("explore",),
}  # fmt: skip
_STEPS = {
    **{f"{room.rpartition('.')[0]}.{name}": f"{room}.{name}" for room, names in _ROOMS.items() for name in names},
    "tuner.search.known_space": "tuner.search.optuna_samplers.tpe_sampler",
    "tuner.search.plain_cmaes": "tuner.search.optuna_samplers.cmaes_sampler",
    "tuner.search.options": "tuner.options",
    "tuner.schedulers.options": "tuner.options",
    "tuner.schedulers.halving": "tuner.schedulers.successive_halving",
    "tuner.trials.apart": "tuner.trials.runtime.gradient_sync",
    "tuner.trials.runtime.apart": "tuner.trials.runtime.gradient_sync",
    "tuner.trials.asking": "tuner.trials.messages.rpc",
    "tuner.trials.desk": "tuner.trials.training.driver_calls",
    "tuner.trials.figures": "tuner.trials.runtime.process_stats",
    "tuner.trials.line": "tuner.trials.messages.report_socket",
    "tuner.trials.travel": "tuner.trials.checkpoints.transfer",
    "tuner.adapt": "tuner.sdk.arguments",
    "tuner.pickling": "tuner.usercode.pickling",
    "tuner.trainable": "tuner.usercode.trainable",
}
"""Maps each old name to the name that followed it."""


def _current(name: str) -> str:
    while name in _STEPS:
        name = _STEPS[name]
    return name


MOVED = {name: _current(name) for name in _STEPS}
"""Maps old names to current names. If a package now has a module's old name, it needs a `__getattr__` from `names_of`."""

_OFFERED = {"tuner.callbacks": "tuner.sdk.callbacks", "tuner.stoppers": "tuner.schedulers.stoppers"}
"""The packages that `tuner` offers by another name, so that `from tuner.callbacks import ...` works."""


def _importable(name: str) -> str | None:
    return MOVED.get(name) or _OFFERED.get(name)


def _within_offered(name: str) -> str | None:
    """Return the current name of a module of an offered package."""
    for offered, current in _OFFERED.items():
        if name.startswith(offered + "."):
            return current + name.removeprefix(offered)
    return None


class _Finder:
    """Imports the current module when an old name is imported. `sys.modules` then has the module under both names.

    It has no base class from `importlib.abc`, because importing that module would take half the time of `import tuner`.
    """

    def __init__(self, current: Callable[[str], str | None]) -> None:
        self._current = current

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if self._current(name) else None  # type: ignore[arg-type]  # needs only a loader's methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = self._current(spec.name)
        assert name is not None
        module = importlib.import_module(name)
        spec.loader_state = module.__spec__  # the import system is about to overwrite `module.__spec__`
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make the old names importable. A module that really has such a name takes precedence."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder(_importable))
        # Python would find the files of these packages, and load each module a second time.
        sys.meta_path.insert(0, _Finder(_within_offered))


def names_of(package: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package whose name is the old name of a module.

    The `__getattr__` looks up a name in the module that had the package's name before it moved.
    """

    def getattribute(name: str) -> Any:
        # The import system asks for names with underscores, and for submodules that are not imported yet.
        if not name.startswith("__") and hasattr(module := importlib.import_module(MOVED[package]), name):
            return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute
