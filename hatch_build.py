"""Build hook of the wheel: it builds the bundle of the web pages if that is out of date, and adds the pages of the docs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WebBundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `web/build.py` before a wheel or an sdist is put together.

    An editable install does not need this: `make` builds the bundle, and it is read from the checkout.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        pages = {str(file): f"tuner/_docs/{file.name}" for file in (root / "docs").glob("*.md")}
        if self.target_name == "wheel":
            build_data["force_include"] = {**build_data.get("force_include", {}), **pages}
        bundle = root / "tuner" / "_web" / "index.html"
        script = root / "web" / "build.py"
        if script.is_file():
            _load(script).build()
        elif not bundle.is_file():
            raise RuntimeError(f"neither the web pages ({bundle}) nor their sources ({script}) are there")


def _load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tuner_web_build", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
