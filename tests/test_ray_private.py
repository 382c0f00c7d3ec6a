"""Private names of Ray are known to the modules that say so, and to no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KNOW_MODULES = {
    "tuner/hosts/ray/ray_start.py",
    "tuner/hosts/ray/tokens.py",
    "tuner/trials/compat/datasets.py",
    "tuner/trials/compat/preemption.py",
    "tuner/trials/compat/ray_compat.py",
    "tuner/trials/groups/cluster/ray_nodes.py",
}
KNOW_ATTRIBUTES = ("tuner/schedulers/from_ray.py", "tuner/schedulers/stoppers/from_ray.py")
LOGGER = "ray._private.authentication"
"""A logger is called so; naming it imports nothing, and a Ray without it goes on as well."""
_PRIVATE_MODULE = re.compile(r"\bray(\.\w+)*\.(_\w+)(\.\w+)*")


def private_names(source: str) -> set[str]:
    """Return the private modules of Ray that the source names, and the private attributes that it reads off `ray`."""
    tree = ast.parse(source)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            found |= {match[0] for match in _PRIVATE_MODULE.finditer(node.value)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _PRIVATE_MODULE.fullmatch(alias.name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ray":
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in whole if _PRIVATE_MODULE.fullmatch(name)}
        elif isinstance(node, ast.Attribute) and _PRIVATE_MODULE.fullmatch(name := ast.unparse(node)):
            found.add(name)
    return found - {LOGGER}


def private_attributes(source: str) -> set[str]:
    """Return the private attributes that the source reads off objects other than its own `self` and `cls`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_few_modules_name_private_modules_of_ray() -> None:
    known = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "tuner").rglob("*.py"))
        if (names := private_names(path.read_text()))
    }
    assert set(known) == KNOW_MODULES, known


def test_private_attributes_of_schedulers_and_stoppers_of_ray_are_read_in_two_modules() -> None:
    """Reading one of these names fails the tests of these modules, if Ray renames it."""
    attributes = set().union(*(private_attributes((ROOT / path).read_text()) for path in KNOW_ATTRIBUTES))
    assert {"_reduction_factor", "_grace_period", "_quantile_fraction"} <= attributes
    own = attributes - {"_metric", "_mode", "_make"}
    for path in (ROOT / "tuner").rglob("*.py"):
        relative = str(path.relative_to(ROOT))
        if relative not in KNOW_ATTRIBUTES and "ray.tune" in (source := path.read_text()):
            assert not private_attributes(source) & own, relative


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import ray._private.worker", {"ray._private.worker"}),
        ("from ray.train._internal import session", {"ray.train._internal.session"}),
        ("from ray.tune import _x", {"ray.tune._x"}),
        ("ray._raylet.GcsClient()", {"ray._raylet.GcsClient", "ray._raylet"}),
        ("name = 'ray.train.v2._internal.x'", {"ray.train.v2._internal.x"}),
        ("import ray\nray.util.placement_group(self._x)", set()),
    ],
)
def test_private_names_are_noticed(source: str, names: set[str]) -> None:
    assert private_names(source) == names
