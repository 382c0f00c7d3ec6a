"""Test that every module is in the layers that import-linter checks, and that docs/architecture.md names what there is."""

from __future__ import annotations

import re
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
    """Return every module that has code in it, apart from `tuner` itself, which names all the others."""
    found = []
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name != "tuner" and path.read_text().strip():
            found.append(name)
    return found


def is_placed(module: str, names: list[str]) -> bool:
    """Return whether the module, or a package that it is in, has a layer."""
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


def picture() -> list[str]:
    """Return the modules in the picture of the layers, from top to bottom. A name without a dot may be beside another one."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2]
    found = []
    for line in re.findall(r"^    (\S.*)$", text.partition("\nEach layer")[0], flags=re.MULTILINE):
        package = ""
        for name in re.match(r"[\w.]+(?: {2,3}[\w.]+)*(?! \w)", line)[0].split():  # type: ignore[index]
            beside = f"tuner.{package}.{name}"
            is_beside = package and "." not in name and beside in layers()
            package = name.rpartition(".")[0] if "." in name else package
            found.append(beside if is_beside else f"tuner.{name}")
    return found


def test_the_picture_in_the_docs_has_the_layers_in_their_order() -> None:
    names = layers()
    assert len(picture()) > 40
    assert [name for name in picture() if name not in names] == []
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    order = config["tool"]["importlinter"]["contracts"][0]["layers"]
    levels = [next(i for i, layer in enumerate(order) if name in layer.split(" | ")) for name in picture()]
    assert levels == sorted(levels)


def test_the_table_of_folders_in_the_docs_has_every_package() -> None:
    listed = re.findall(
        r"^\| `(tuner/[\w/]+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE
    )
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tuner").rglob("*.py")} - {"tuner"}
    assert sorted(listed) == sorted(packages)
