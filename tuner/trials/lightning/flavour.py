"""Tell `lightning.pytorch` and `pytorch_lightning` apart, which have the same code but different classes.

Trainers check with isinstance that callbacks, strategies and so on come from their own package. So `tuner`'s classes
have to derive from those of the package that the user imported, without importing the other package. A `Flavoured`
class therefore gets its Lightning base class only when it is instantiated.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from abc import ABCMeta
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tuner.errors import SpecError, WrongArgument

if TYPE_CHECKING:
    # mypy sees Any.
    from lightning.pytorch import (
        Callback as _Lightning,
    )
else:
    _Lightning = object


@dataclass(frozen=True, slots=True)
class Flavour:
    """One of the two Lightning packages: its import name, and the import name of its Fabric package."""

    pytorch: str
    fabric: str

    def find(self, path: str) -> Any:
        """Import a class or function from this package, for example ``find("pytorch:callbacks.Callback")``."""
        package, _, where = path.partition(":")
        module, _, name = where.rpartition(".")
        root = self.pytorch if package == "pytorch" else self.fabric
        return getattr(importlib.import_module(f"{root}.{module}" if module else root), name)


FLAVOURS = (Flavour("lightning.pytorch", "lightning.fabric"), Flavour("pytorch_lightning", "lightning_fabric"))


def flavour_of(thing: object) -> Flavour:
    """Return the package that an object's Lightning class or base class is from. Raise WrongArgument if it has none."""
    for kind in type(thing).__mro__:
        for flavour in FLAVOURS:
            if kind.__module__ == flavour.pytorch or kind.__module__.startswith(flavour.pytorch + "."):
                return flavour
    raise WrongArgument(f"expected a Lightning object, got {thing!r}")


def imported() -> tuple[Flavour, ...]:
    """Return the Lightning packages that this process has imported; if there are none, the first installed one."""
    found = tuple(flavour for flavour in FLAVOURS if flavour.pytorch in sys.modules)
    if found:
        return found
    for flavour in FLAVOURS:
        if importlib.util.find_spec(flavour.pytorch.partition(".")[0]) is not None:
            return (flavour,)
    raise ModuleNotFoundError("Lightning is not installed: pip install lightning, or pip install pytorch-lightning")


def wanted(name: str | None, depth: int = 2) -> Flavour:
    """Return the Lightning package that a caller means.

    That is the package `name`, if given; else the only package that is imported; else, if both are imported, the only
    one that is used in the caller's code.
    """
    if name is not None:
        for flavour in FLAVOURS:
            if name in (flavour.pytorch, flavour.pytorch.partition(".")[0]):
                return flavour
        raise SpecError(f"expected {' or '.join(f.pytorch for f in FLAVOURS)}, got {name!r}", "/lightning")
    found = imported()
    if len(found) == 1:
        return found[0]
    frame = sys._getframe(depth)
    values = [*frame.f_globals.values(), *frame.f_locals.values()]
    names = {
        value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "") for value in values
    }
    used = [flavour for flavour in found if any(str(n).split(".")[0] == flavour.pytorch.split(".")[0] for n in names)]
    if len(used) == 1:
        return used[0]
    raise SpecError(
        "both lightning.pytorch and pytorch_lightning are imported; name the one that the Trainer is from: "
        'lightning="lightning.pytorch" or lightning="pytorch_lightning"'
    )


class Flavoured(_Lightning):
    """Base for classes that get their Lightning base class when they are instantiated. They can be subclassed and pickled."""

    base: ClassVar[str]
    one_flavour: ClassVar[bool] = False
    _plain: ClassVar[type]
    _flavours: ClassVar[tuple[Flavour, ...]]

    def __new__(cls, *args: Any, lightning: str | None = None, **kwargs: Any) -> Self:
        flavours = (wanted(lightning),) if cls.one_flavour or lightning else imported()
        return cls.of(*flavours)

    @classmethod
    def of(cls, *flavours: Flavour) -> Self:
        """Return a new, uninitialized object of this class, with base classes from these Lightning packages."""
        made: Self = object.__new__(_bound(cls, flavours))
        return made

    @classmethod
    def make(cls, flavour: Flavour, *args: Any, **kwargs: Any) -> Self:
        """Return a new object of this class, with a base class from this Lightning package."""
        made = cls.of(flavour)
        made.__init__(*args, **kwargs)  # type: ignore[misc]
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (self._plain, self._flavours), self.__getstate__()


_classes: dict[tuple[type, tuple[Flavour, ...]], type] = {}


def _bound(cls: Any, flavours: tuple[Flavour, ...]) -> Any:
    plain = cls.__dict__.get("_plain", cls)
    known = _classes.get((plain, flavours))
    if known is None:
        bases = tuple(flavour.find(cls.base) for flavour in flavours)
        body = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
        body |= {"_plain": plain, "_flavours": flavours}
        known = types.new_class(plain.__name__, (plain, *bases), exec_body=lambda namespace: namespace.update(body))
        _classes[plain, flavours] = known
        for base in bases:
            if isinstance(base, ABCMeta):  # LightningCLI writes the class's name to a file, and looks up `plain` by it
                base.register(plain)
    return known


def _restore(cls: Any, flavours: tuple[Flavour, ...]) -> Any:
    return cls.of(*flavours)
