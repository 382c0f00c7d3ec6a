"""Every module of the package is in the layers that import-linter checks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def layers() -> list[str]:
    """Return the modules and packages that the layers contract names, from top to bottom."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = config["tool"]["importlinter"]["contracts"][0]
    assert contract["type"] == "layers"
    return [name.strip() for layer in contract["layers"] for name in layer.replace(":", "|").split("|")]


def modules() -> list[str]:
    """Every module that has code in it, apart from `tuner` itself, which names all the others."""
    found = []
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name != "tuner" and path.read_text().strip():
            found.append(name)
    return found


def is_placed(module: str, names: list[str]) -> bool:
    """Say whether the module or a package that it is in has a layer, or it is only a package of modules that have one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_every_module_is_in_a_layer() -> None:
    names = layers()
    split = {name.rpartition(".")[0] for name in names} - {"tuner"}
    outside = [module for module in modules() if not is_placed(module, names) and module not in split]
    assert outside == [], "give each of them a place in the layers of pyproject.toml"


def test_every_layer_is_there() -> None:
    known = modules()
    gone = [name for name in layers() if not any(module == name or module.startswith(f"{name}.") for module in known)]
    assert gone == []


def test_a_module_in_no_layer_is_noticed() -> None:
    assert not is_placed("tuner.newcomer", layers())
    assert not is_placed("tuner.driver.newcomer", layers())
    assert is_placed("tuner.schedulers.newcomer", layers())
