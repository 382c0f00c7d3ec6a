"""Run code as soon as other code has imported a certain module, without importing that module here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Hook(MetaPathFinder, Loader):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action
        self._loader: Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)  # so that `find_spec` below finds the real module
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
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
        self.action()


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
