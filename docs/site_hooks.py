"""Hooks of the docs site: they let it show files that live outside of `docs/`, under links that also work in the repository."""

from __future__ import annotations

import gc
import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import tuner

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
TITLES = {
    "tuner.sdk.run": "Run a search",
    "tuner.sdk.saved": "Searches of before",
    "tuner.space": "Search spaces",
    "tuner.schedulers": "Schedulers",
    "tuner.trials.training.session": "Inside a training function",
    "tuner.trials.checkpoints.checkpoints": "Checkpoints",
    "tuner.trials.checkpoints.objects": "Large objects",
    "tuner.driver.virtual": "Simulation",
    "tuner.hosts.scripts.kept": "The Ray that is kept",
    "tuner.errors": "Errors",
}


def on_startup(command: str, dirty: bool) -> None:
    """Collect no garbage while the site is built. To look for it takes a quarter of the time, and the process ends soon."""
    if command == "build":
        gc.disable()


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, the other pages of the repository's root, and the examples."""
    for uri, source in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "python.md", content=python_reference()))
    for source in sorted((ROOT / "examples").glob("*")):
        if source.is_file():
            files.append(File.generated(config, f"examples/{source.name}", abs_src_path=str(source)))
    return files


def python_reference() -> str:
    """Return the page with every public name of the package, in the order of its table, from the docstrings."""
    lines = ["# Python", "", "Every name below is an attribute of the package: `tuner.run`, `tuner.choice`."]
    for home, names in tuner._HOMES.items():
        lines += ["", f"## {TITLES.get(home, home)}"]
        lines += [f"\n{_entry(home, name)}" for name in names]
    for name, module in tuner._MODULES.items():
        lines += [
            "",
            f"## tuner.{name}",
            "",
            f"::: {module}",
            "    options: {show_root_heading: false, filters: ['!^_']}",
        ]
    return "\n".join(lines) + "\n"


def _entry(home: str, name: str) -> str:
    found = getattr(importlib.import_module(home), name)
    if found.__qualname__ != name:
        return f"`{name}` is another name of `{found.__qualname__}`."
    return f"::: {found.__module__}.{name}"


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn links that are relative to the repository into links that are relative to the site."""
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r"\]\((?:docs/)([^)\s]+)\)", r"](\1)", markdown)
        markdown = re.sub(r"(src=\")docs/", r"\1", markdown)
    else:
        markdown = markdown.replace("](../", "](")
    for uri, source in OUTSIDE.items():
        markdown = markdown.replace(f"]({source}", f"]({uri}")
    return markdown
