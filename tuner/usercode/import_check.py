"""The helper process of `tuner.usercode.entrypoints`, which imports an entrypoint in a forked child and reports errors.

Each child imports the module afresh, so it sees edited files. The helper itself loads the large libraries, so that a child is
quick. For example, torch takes seconds to load. Before it forks the child, it loads the libraries that the module's file names.
It loads others after a child has needed them.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import platform
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.names import did_you_mean
from tuner.usercode.importing import importing

HEAVY = ("numpy", "torch", "pytorch_lightning", "lightning", "sklearn", "pandas", "torchvision", "transformers", "ray")
"""Large libraries. Once an entrypoint has imported one of them, the helper keeps it loaded for later entrypoints."""

ASYNCHRONOUS = "{name} is asynchronous, and trials await nothing: pass an ordinary function that calls asyncio.run"
_METHODS = ("setup", "step", "save", "load", "save_checkpoint", "load_checkpoint", "cleanup")
"""The methods of a trainable class that ranks call."""

MAX_FILES = 2_000
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_CLEAN_UP_S = 5.0  # seconds that processes which an import has started may take to end
_LOOK_S = 0.01  # seconds between two looks at the processes that are left

File = tuple[str, int, int]  # path, mtime in ns, size


def stat(path: str) -> File | None:
    """Return the file's path, modification time and size, which show whether it has changed; None if it does not exist."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: no file can have this name, such as one with a null byte
        return None
    return path, found.st_mtime_ns, found.st_size


def main() -> None:
    """Answer questions, one JSON object per line, until standard input ends. Print an empty line when ready for a question."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # keep the output of imports apart from the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the service, which then stops this process
    if sys.platform == "linux":
        # Processes that an import leaves behind then become children of this one, so that it can end them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.path.insert(0, "")  # only now, since this folder may have a module with the name of one that is imported above
    print(file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        if question["ahead"]:
            signal.setitimer(signal.ITIMER_REAL, question["timeout_s"])  # SIGALRM kills this process
            load(named_in(question["ahead"]), question["sys_path"])
            signal.setitimer(signal.ITIMER_REAL, 0)
        work = functools.partial(
            examine, *(question[name] for name in ("entrypoint", "sys_path", "environ", "trainable"))
        )
        answer = in_a_child(work, question["timeout_s"])
        print(json.dumps(answer), file=answers)
        load(answer.get("heavy", ()), question["sys_path"])
        print(file=answers)


def load(libraries: Iterable[str], sys_path: Sequence[str]) -> None:
    """Import libraries, except those in `sys_path`, which are the user's own.

    No garbage is looked for in them, neither during the import, which would take a fifth longer, nor in the forked children.
    """
    collects = gc.isenabled()
    gc.disable()
    for name in libraries:
        own = any(Path(folder, found).exists() for folder in sys_path for found in (name, f"{name}.py"))
        if not own and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()
    if collects:
        gc.enable()


def named_in(files: Iterable[str]) -> list[str]:
    """Return the large libraries that these files import when they are loaded. Files that are not Python code are left out."""
    names: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            statements: list[ast.stmt] = ast.parse(Path(file).read_bytes()).body
            for one in statements:
                match one:
                    case ast.Try():
                        statements += one.body
                    case ast.Import():
                        names.update(each.name.partition(".")[0] for each in one.names)
                    case ast.ImportFrom(module=str(module), level=0):
                        names.add(module.partition(".")[0])
    return [name for name in HEAVY if name in names]


def in_a_child(work: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    """Call `work` in a forked child and return its result, or {"error": ...} if the child dies or takes too long.

    End the processes that `work` has started. (On Linux only: elsewhere they live until the helper ends.)
    """
    before = _children()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        try:
            answer = work()
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(answer) + "\n")
        os._exit(0)
    os.close(writing)
    text, late = _read(reading, timeout_s)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _end_all_but(before)
    if late:
        return {"error": f"importing the entrypoint takes longer than {timeout_s:g} s"}
    if not text:
        code = os.waitstatus_to_exitcode(status)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return {"error": f"importing the entrypoint ends the process, {how}"}
    answer = json.loads(text)
    return dict(answer)


def _end_all_but(kept: set[int]) -> None:
    """End the children of this process except those in `kept`, and their children, which become children of this process.

    They are asked to end, and killed later: one may still have to clean up after the others, such as the process that deletes
    the shared memory of multiprocessing once nobody uses it. That process ignores the request.
    """
    asked: set[int] = set()
    until = time.monotonic() + _CLEAN_UP_S
    while left := _children() - kept:
        late = time.monotonic() >= until
        for one in left:
            try:
                if late or one not in asked:
                    os.kill(one, signal.SIGKILL if late else signal.SIGTERM)
            except ProcessLookupError:
                pass
            except PermissionError:  # it runs as another user, such as a command of `sudo`
                kept.add(one)
                continue
            asked.add(one)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one, 0 if late else os.WNOHANG)
        time.sleep(_LOOK_S)


def _children() -> set[int]:
    """Return the processes whose parent is this one. Without /proc, return none."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found |= {int(pid) for pid in file.read_text(encoding="utf-8").split()}
    return found


def _read(pipe: int, timeout_s: float) -> tuple[str, bool]:
    """Read a line from a pipe. Return its text, and True if it did not end within `timeout_s`.

    The pipe may stay open after the line, because processes that the import has forked have it too.
    """
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with os.fdopen(pipe, "rb", buffering=0) as source:
        while True:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return "", True
            part = source.read(65536)
            parts.append(part)
            if not part or part.endswith(b"\n"):
                return b"".join(parts).decode(), False


def examine(
    entrypoint: str, sys_path: Sequence[str], environ: Mapping[str, str], trainable: bool = True
) -> dict[str, Any]:
    """Import an entrypoint in this process, and check that it is callable. If `trainable`, it must take a configuration.

    Return {"hash", "files", "heavy"}, or {"error", "files", "heavy"} if the check fails. "files" are the user's files that
    were loaded, "hash" is their hash, and "heavy" are the large libraries that were loaded.
    """
    os.environ.update(environ)
    module_name, _, qualname = entrypoint.partition(":")
    sys.path[:0] = [path for path in sys_path if path not in sys.path]
    before = set(sys.modules)
    try:
        with importing(module_name):
            found: Any = importlib.import_module(module_name)
    except BaseException as error:  # an import can raise anything, even SystemExit
        plain = module_name.removesuffix(".py")
        meant = f"; did you mean {plain}:{qualname}?" if plain != module_name else ""
        # The code may have been written for a newer Python, as on the machine of a service's client.
        version = f" with Python {platform.python_version()}" if isinstance(error, SyntaxError) else ""
        message = f"cannot import {module_name}{version}: {_last_line(error)}{_where(error)}{meant}"
        return {"error": message, "files": _files_of(error), "heavy": _heavy(before)}
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            message = f"{module_name} has no {qualname!r}{_near(part, found)}"
            return {"error": message, "files": _own_files(), "heavy": _heavy(before)}
    files, heavy = _own_files(), _heavy(before)
    if not callable(found):
        message = f"{entrypoint} is not a function but {type(found).__name__} {found!r:.60}"
        return {"error": message, "files": files, "heavy": heavy}
    if trainable and (name := asynchronous(found)):
        return {"error": f"{entrypoint}: {ASYNCHRONOUS.format(name=name)}", "files": files, "heavy": heavy}
    try:
        if trainable and not is_class_form(found):
            inspect.signature(found).bind({})
    except TypeError as error:
        message = f"{entrypoint} cannot be called with a configuration: {error}"
        return {"error": message, "files": files, "heavy": heavy}
    except ValueError:  # a builtin without a readable signature
        pass
    return {"hash": _digest(entrypoint, files), "files": files, "heavy": heavy}


def is_class_form(trainable: Any) -> bool:
    """Return whether a trainable is a class with `setup` and `step`, which is created without a configuration."""
    methods = (getattr(trainable, name, None) for name in ("setup", "step"))
    return isinstance(trainable, type) and all(map(callable, methods))


def asynchronous(trainable: Any) -> str | None:
    """Return the name of the asynchronous function in a trainable, or None if there is none: nobody would await what it returns.

    Look into partial functions, wrappers with an attribute `inner`, callable objects, and the methods of a class.
    """
    while True:
        if isinstance(trainable, functools.partial):
            trainable = trainable.func
        elif type(trainable).__module__.startswith("tuner.trials.") and hasattr(trainable, "inner"):
            trainable = trainable.inner
        else:
            break
    if is_class_form(trainable):
        functions = [getattr(trainable, name, None) for name in _METHODS]
    elif isinstance(trainable, type):
        functions = []
    else:
        functions = [trainable, inspect.getattr_static(type(trainable), "__call__", None)]
    for function in functions:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return str(getattr(function, "__qualname__", repr(function)))
    return None


def _last_line(error: BaseException) -> str:
    shown = traceback.TracebackException(type(error), error, None)
    shown.__notes__ = None  # the notes would come last
    return list(shown.format_exception_only())[-1].strip()


def _where(error: BaseException) -> str:
    """Return where the error was raised: the innermost line of the user's code in the traceback, or else of any code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    frames = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    own = [frame for frame in frames if not _installed(frame.filename)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f" ({frame.filename}, line {frame.lineno}, in {frame.name})"


def _near(name: str, owner: Any) -> str:
    names = [other for other in dir(owner) if not other.startswith("_") and callable(getattr(owner, other, None))]
    return did_you_mean(name, names, "'")


def _heavy(before: set[str]) -> list[str]:
    return [name for name in HEAVY if name in sys.modules and name not in before]


def _files_of(error: BaseException) -> list[File]:
    """Return the user's files that a failed import loaded, and the user's files in the traceback of the error."""
    names = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename:
        names.add(error.filename)
    own = {found for name in names if not _installed(name) and (found := stat(name))}
    return sorted({*_own_files(), *own})[:MAX_FILES]


def _own_files() -> list[File]:
    """Return the loaded source files that do not belong to an installed package."""
    files = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not _installed(path) and (found := stat(path)):
            files.append(found)
    return sorted(files)[:MAX_FILES]


_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).resolve().parents[1])


def _installed(path: str) -> bool:
    return path.startswith((*_LIBRARY, _PACKAGE + os.sep)) or f"{os.sep}site-packages{os.sep}" in path


def _digest(entrypoint: str, files: Sequence[File]) -> str:
    content = hashlib.blake2b(f"{entrypoint}\0{platform.python_version()}".encode(), digest_size=16)
    for path, _, _ in files:
        content.update(os.fsencode(path) + b"\0")
        content.update(Path(path).read_bytes())
    return content.hexdigest()


if __name__ == "__main__":
    main()
