"""Imports inside functions: each has a reason that is written down here."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SLOW = "importing it takes long, and most of those who import this module do not need it"
UPWARD = "the module is in a layer above this one"
EXTRA = "it needs an extra of the package that may not be installed"
CIRCLE = "the two modules need each other"

EVERYTHING = "*"

ALLOWED: dict[str, dict[str, str]] = {
    "tuner.api": {"tuner.api.app": SLOW},
    "tuner.api.app": {
        "tuner.api.access.oidc": EXTRA,
        "tuner.api.routes": EXTRA,
    },
    "tuner.cli": {
        "tuner.cli": "Ctrl-C during this import ends the command without a traceback",
        "tuner.service.early": "only `tuner serve` needs it",
    },
    "tuner.cli.commands.*": {EVERYTHING: "a command loads only what it needs"},
    "tuner.cli.service.experiments": {"tuner.client.records": SLOW, "tuner.client.synchronous": SLOW},
    "tuner.cli.serving": {"tuner.serving.exports": SLOW, "tuner.serving.ray_serve": SLOW},
    "tuner.serving": {"tuner.serving": SLOW},
    "tuner.cli.doctor": {"tuner.trials.checkpoints.storage": SLOW},
    "tuner.cli.demo": {"tuner.hosts.scripts.kept": SLOW, "tuner.examples": SLOW, "tuner.service.page": SLOW},
    "tuner.driver.assemble": {"tuner.schedulers.auto": SLOW},
    "tuner.driver.earlier": {
        "tuner.schedulers.freeze_thaw.model.earlier": SLOW,
        "tuner.schedulers.freeze_thaw.model.unit_cube": SLOW,
    },
    "tuner.hosts.on_ray.link": {
        "tuner.hosts.ray.cluster": SLOW,
        "tuner.hosts.on_ray.shared": SLOW,
        "tuner.hosts.on_ray.start": SLOW,
        "tuner.hosts.ray": SLOW,
    },
    "tuner.hosts.actor": {"tuner.hosts.host": SLOW},
    "tuner.hosts.executors": {"tuner.hosts.local_executor": SLOW},
    "tuner.hosts.host": {"tuner.hosts.ray_executor": SLOW},
    "tuner.driver.part_arguments": {
        "tuner.schedulers": SLOW,
        "tuner.schedulers.stoppers": SLOW,
        "tuner.search": SLOW,
    },
    "tuner.driver.parts": {
        "tuner": SLOW,
        "tuner.schedulers": SLOW,
        "tuner.schedulers.base": SLOW,
        "tuner.search.base": SLOW,
    },
    "tuner.experiment.analysis.forecast": {"tuner.schedulers.freeze_thaw.decisions.budget": SLOW},
    "tuner.experiment.analysis.preview": {"tuner.search": SLOW},
    "tuner.schedulers": {"tuner.schedulers.from_ray": CIRCLE},
    "tuner.sdk.driving": {"tuner.hosts.scripts": SLOW, "tuner.hosts.ray.cluster": SLOW},
    "tuner.sdk.executors": {
        "tuner.hosts.scripts": SLOW,
        "tuner.hosts.scripts.needs": SLOW,
        "tuner.trials.groups.pools": SLOW,
    },
    "tuner.sdk.arguments": {"tuner.search": SLOW},
    "tuner.sdk.plots": {"tuner.search": SLOW},
    "tuner.sdk.trial_result": {"tuner.trials.checkpoints": SLOW, "tuner.trials.checkpoints.checkpoints": SLOW},
    "tuner.sdk.run": {"tuner.sdk.remote": SLOW},
    "tuner.search.optuna_samplers.cmaes": {"tuner.search.optuna_samplers.cmaes_sampler": SLOW},
    "tuner.search.optuna_samplers.define_by_run": {"tuner.search": CIRCLE},
    "tuner.search.optuna_samplers.tpe": {"tuner.search.optuna_samplers.tpe_sampler": SLOW},
    "tuner.service.page": {"tuner.api": SLOW, "tuner.api.server": SLOW, "tuner.store": SLOW},
    "tuner.service.serve": {"tuner.api": SLOW, "tuner.api.server": SLOW, "tuner.store": SLOW},
    "tuner.service.tokens": {"tuner.api.access.auth": SLOW},
    "tuner.serving.exports": {"tuner.trials.lightning.load": EXTRA},
    "tuner.trials.compat.forms": {"tuner.trials.compat.optuna_compat": SLOW},
    "tuner.trials.lightning.ray_strategy": {
        "tuner.hosts.ray.cluster": UPWARD,
        "tuner.trials.lightning.workers": SLOW,
    },
}
"""Importing module -> imported module -> why the import is not at the top. A line goes when its import does."""

NOT_OURS = "it is no dependency of the package; users who have it may use it"

LIBRARIES = {
    "IPython": NOT_OURS,
    "alembic": SLOW,
    "cloudpickle": SLOW,
    "memray": EXTRA,
    "mlflow": NOT_OURS,
    "numpy": SLOW,
    "opentelemetry": EXTRA,
    "optuna": SLOW,
    "pandas": SLOW,
    "plotly": EXTRA,
    "psutil": "`tuner doctor` says which packages are missing, even if this is one of them",
    "pyarrow": SLOW,
    "ray": SLOW,
    "safetensors": EXTRA,
    "scipy": SLOW,
    "torch": EXTRA,
}
"""Library -> why functions may import it, in any module. All other libraries are imported at the top of a module."""


def inner_imports(source: str) -> Iterator[str]:
    """Yield the modules that are imported inside functions."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            names = []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            yield from names


@functools.cache
def all_inner_imports() -> dict[str, set[str]]:
    """Return what each module of the package imports inside functions."""
    modules: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = set(inner_imports(path.read_text()))
    return modules


def found(*, ours: bool = True) -> dict[str, set[str]]:
    """Return what each module of the package imports inside functions: the package's own modules, or else libraries."""
    modules: dict[str, set[str]] = {}
    for name, imported in all_inner_imports().items():
        if wanted := {one for one in imported if (one.partition(".")[0] == "tuner") is ours}:
            modules[name] = wanted
    return modules


def allowed(module: str) -> set[str]:
    """Return what a module may import inside functions. A line "PACKAGE.*" is for all modules of a package."""
    package = module.rpartition(".")[0]
    return {*ALLOWED.get(module, {}), *ALLOWED.get(f"{package}.*", {})}


def test_a_new_import_inside_a_function_needs_a_reason() -> None:
    new = {
        f"{module} -> {imported}"
        for module, modules in found().items()
        for imported in modules
        if not allowed(module) & {imported, EVERYTHING}
    }
    assert new == set(), "import it at the top of the module; if that is impossible, say in ALLOWED why"


def test_every_exception_is_still_needed() -> None:
    modules = found()
    gone = {
        f"{module} -> {imported}"
        for module, names in ALLOWED.items()
        for imported in names
        if imported not in {*modules.get(module, set()), EVERYTHING}
    }
    assert gone == set(), "take these lines out of ALLOWED"


def test_a_library_that_functions_import_needs_a_reason() -> None:
    inside = {(module, one.partition(".")[0]) for module, imported in found(ours=False).items() for one in imported}
    new = {f"{module} -> {library}" for module, library in inside if library not in LIBRARIES}
    assert new == set(), "import it at the top of the module; if that is impossible, say in LIBRARIES why"
    assert LIBRARIES.keys() - {library for _, library in inside} == set(), "take these lines out of LIBRARIES"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("def f():\n    from tuner.store import Store", ["tuner.store"]),
        ("async def f():\n    import tuner.store", ["tuner.store"]),
        ("class C:\n    def f(self):\n        if True:\n            import tuner", ["tuner"]),
        ("from tuner.store import Store\ndef f():\n    import json", ["json"]),
    ],
)
def test_imports_inside_functions_are_noticed(source: str, modules: list[str]) -> None:
    assert list(inner_imports(source)) == modules
