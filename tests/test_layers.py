"""Test that every module is in the layers that import-linter checks, and that docs/architecture.md names what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


Order = list[list[str]]
"""Layers from top to bottom, each with the modules or packages in it."""


def contracts() -> dict[str, Order]:
    """Return the layers of packages that are listed in pyproject.toml, by the package. Names are those in `tuner`."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Order] = {}
    for contract in config["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and (package := contract.get("containers", ["tuner.hosts"])[0]) not in found:
            lines = [re.split(" [|:] ", line) for line in contract["layers"]]
            found[package] = [[name.removeprefix(f"{package}.") for name in line] for line in lines]
    return found


def modules(package: str) -> list[str]:
    """Return every module of a package that has code in it, without the name of the package."""
    folder = ROOT / package.replace(".", "/")
    found = (
        path.relative_to(folder).with_suffix("").parts
        for path in sorted(folder.rglob("*.py"))
        if path.read_text().strip()
    )
    return [".".join(parts) for parts in found if parts[-1] != "__init__"]


def is_placed(module: str, order: Order) -> bool:
    """Return whether the module, or a package that it is in, has a layer."""
    return any(f"{module}.".startswith(f"{name}.") for layer in order for name in layer)


def test_every_module_of_hosts_is_in_a_layer() -> None:
    order = contracts()["tuner.hosts"]
    outside = [module for module in modules("tuner.hosts") if not is_placed(module, order)]
    assert outside == [], "give each of them a place in the layers of pyproject.toml"


def test_every_large_folder_has_its_reason_on_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    [reasons] = re.findall(r"A folder with more than a dozen modules.*?\n\n", page, re.DOTALL)
    sizes = {
        f"{folder.relative_to(ROOT)}/": len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        for folder in (ROOT / "tuner").rglob("*")
        if folder.is_dir()
    }
    large = {name: size for name, size in sizes.items() if size > 12}
    assert set(re.findall(r"`(tuner/[\w/]+/)`", reasons)) == set(large)
    assert max(large.values()) <= 17


def test_few_modules_are_in_no_package() -> None:
    assert len(set((ROOT / "tuner").glob("[!_]*.py"))) <= 8


def test_every_layer_is_there() -> None:
    for package, order in contracts().items():
        known = [f"{module}." for module in modules(package)]
        assert [name for layer in order for name in layer if not any(m.startswith(f"{name}.") for m in known)] == []


def test_a_module_in_no_layer_is_noticed() -> None:
    order = contracts()["tuner.hosts"]
    assert not is_placed("newcomer", order)
    assert not is_placed("ray.newcomer", order)
    assert is_placed("agents.newcomer", order)


def test_the_packages_themselves_are_checked_for_newcomers() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert all(
        f'containers = ["{package}"]\nexhaustive = true' in text for package in contracts() if package != "tuner.hosts"
    )
    assert {"tuner", "tuner.driver", "tuner.sdk", "tuner.trials", "tuner.experiment"} < contracts().keys()


def pictures() -> list[Order]:
    """Return the pictures of layers in the docs. Two spaces separate the names of a layer, and more precede the text."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].partition("\n| folder")[0]
    blocks = re.findall(r"(?:^    \S.*\n)+", text, flags=re.MULTILINE)
    return [[re.split(" {3,}", line.strip())[0].split("  ") for line in block.splitlines()] for block in blocks]


@pytest.mark.parametrize(("at", "package"), [(0, "tuner"), (1, "tuner.driver"), (2, "tuner.hosts")])
def test_a_picture_in_the_docs_has_the_layers_in_their_order(at: int, package: str) -> None:
    drawn, order = pictures()[at], contracts()[package]
    levels = [{level for level, layer in enumerate(order) if name in layer} for names in drawn for name in names]
    assert all(levels), "the picture names something that is in no layer"
    flat = [min(level) for level in levels]
    assert flat == sorted(flat)
    if package != "tuner.hosts":
        assert [sorted(names) for names in drawn] == [sorted(layer) for layer in order]


def test_the_table_of_folders_in_the_docs_has_every_package() -> None:
    listed = re.findall(
        r"^\| `(tuner/[\w/]+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE
    )
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tuner").rglob("*.py")} - {"tuner"}
    assert sorted(listed) == sorted(packages)
