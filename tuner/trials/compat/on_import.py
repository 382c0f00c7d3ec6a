"""Run code as soon as other code has imported a certain module, without importing that module here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Hook(MetaPathFinder, Loader):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action
        self._loader: Loader | None = None
        self._finding = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Libraries look for a module without importing it, too, so the hook stays until the import.
        if fullname != self.name or getattr(self._finding, "real", False):
            return None
        self._finding.real = True
        try:
            spec = find_spec(fullname)
        finally:
            self._finding.real = False
        if spec is None or spec.loader is None or fullname in sys.modules:  # another thread is importing the module
            return spec
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:  # else the call was cancelled
            sys.meta_path.remove(self)
            self.action()

    def __getattr__(self, name: str) -> Any:
        """Return the other attributes of the module's own loader, such as `get_source`, to those who only look for the module."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def on_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` once this top-level module has been imported (immediately, if it already is).

    Return a function that cancels the call.
    """
    if name in sys.modules:
        action()
        return lambda: None
    hook = _Hook(name, action)
    sys.meta_path.insert(0, hook)

    def cancel() -> None:
        if hook in sys.meta_path:
            sys.meta_path.remove(hook)

    return cancel
