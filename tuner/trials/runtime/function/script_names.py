"""Let pickle find the functions and classes of the user's script in a rank.

A function of a script belongs to the module `__main__`, and so do the functions and classes that it uses. A rank gets them by
value, so its own `__main__` lacks them. pickle refers to them by name: without this module, `torch.save(model)`,
`dist.broadcast_object_list` and `multiprocessing.Pool` would fail for whatever the script itself defines.
"""

from __future__ import annotations

import functools
import multiprocessing.spawn
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from tuner.usercode.pickling import SCRIPT

_DEPTH = 4
"""The number of wrappers, such as partials and objects with the function as an attribute, that are looked through."""
_OF_CHILD = """import cloudpickle
from pathlib import Path
from tuner.trials.runtime.function.script_names import definitions

globals().update(definitions(cloudpickle.loads(Path(__file__).with_name("trainable").read_bytes())))
"""
"""The file that a spawned process of a rank runs in place of the script."""

_added: dict[str, Any] = {}
_undo: list[Callable[[], Any]] = []


def add(trainable: Any, blob: bytes) -> None:
    """Add what the trainable's script defines to `__main__`, as far as it was sent along. Names that exist there are kept.

    blob: the pickled trainable.
    """
    remove()
    own = vars(sys.modules["__main__"])
    _added.update((name, value) for name, value in definitions(trainable).items() if name not in own)
    own.update(_added)
    if _added:
        _tell_spawned_processes(blob)


def remove() -> None:
    """Remove what `add` has added. It would keep alive what the script's functions refer to."""
    own = vars(sys.modules["__main__"])
    while _added:
        name, value = _added.popitem()
        if own.get(name) is value:
            del own[name]
    while _undo:
        _undo.pop()()


def definitions(trainable: Any) -> dict[str, Any]:
    """Return the functions and classes of the script that an unpickled trainable uses, by their names."""
    found: dict[str, Any] = {}
    for function in _functions(trainable, _DEPTH):
        names = function.__globals__
        if names.get("__name__") in SCRIPT and names is not vars(sys.modules["__main__"]):
            for name, value in (*names.items(), (function.__name__, function)):
                if isinstance(value, type | FunctionType) and value.__module__ in SCRIPT:
                    found.setdefault(name, value)
    return found


def _tell_spawned_processes(blob: bytes) -> None:
    """Give the names to processes that multiprocessing starts without a fork, too. They would run the rank's own main file."""
    usual = multiprocessing.spawn.get_preparation_data

    @functools.cache
    def file() -> str:
        folder = Path(tempfile.mkdtemp(prefix="tuner-main-"))
        _undo.append(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        (folder / "trainable").write_bytes(blob)
        (folder / "names.py").write_text(_OF_CHILD, encoding="utf-8")
        return str(folder / "names.py")

    def with_names(name: str) -> dict[str, Any]:
        data = usual(name)
        data.pop("init_main_from_name", None)
        return {**data, "init_main_from_path": file()}

    multiprocessing.spawn.get_preparation_data = with_names
    _undo.append(functools.partial(setattr, multiprocessing.spawn, "get_preparation_data", usual))


def _functions(value: Any, depth: int) -> Iterator[FunctionType]:
    """Yield the functions of which a trainable consists."""
    if isinstance(value, FunctionType):
        yield value
    if depth == 0:
        return
    inner: list[Any]
    if isinstance(value, functools.partial):
        inner = [value.func]
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, type):
        inner = [getattr(part, "__func__", part) for part in vars(value).values()]
    elif isinstance(value, FunctionType):
        inner = [value.__wrapped__] if hasattr(value, "__wrapped__") else []
    else:
        inner = [type(value), *getattr(value, "__dict__", {}).values()]
    for part in inner:
        if callable(part):
            yield from _functions(part, depth - 1)
