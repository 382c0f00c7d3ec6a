"""Whether an entrypoint ("module:function") can be imported and called: asked of a helper process, so that the asker never
runs user code, and answered in milliseconds once the helper has the big libraries loaded.

The helper forks a child for every question. The child imports the module afresh, so an edited file is seen and an import
that hangs, prints or ends its process harms nobody. Afterwards the helper itself loads the well-known libraries that the
child had needed (torch takes seconds), which makes the next child quick.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import os
import platform
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import EntrypointError
from tuner.names import did_you_mean

#: loaded by the helper itself as soon as one entrypoint has needed them
HEAVY = ("numpy", "torch", "pytorch_lightning", "lightning", "sklearn", "pandas", "torchvision", "transformers", "ray")
TIMEOUT_S = 60.0
MAX_FILES = 2_000

File = tuple[str, int, int]  # path, mtime in ns, size


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """An entrypoint that can be imported. `hash` names the content of the user's files that it loaded."""

    name: str
    hash: str
    files: tuple[File, ...] = ()


class EntrypointChecker:
    """Asks the helper, which is started with the first question and lives until `close`. Any thread may ask."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._helper: subprocess.Popen[str] | None = None
        self._known: dict[str, Entrypoint] = {}

    def check(
        self, entrypoint: str, sys_path: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Entrypoint:
        """EntrypointError says what is wrong with it, in which file and line.

        `sys_path` comes before the helper's own, and `environ` is added to its environment.
        """
        return self._check(entrypoint, sys_path, environ, "/entrypoint", trainable=True)

    def check_function(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str
    ) -> Entrypoint:
        """As `check`, for a function that a scheduler or a stopper calls; an error points at `pointer`."""
        return self._check(name, sys_path, environ, pointer, trainable=False)

    def _check(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str, *, trainable: bool
    ) -> Entrypoint:
        question = {
            "entrypoint": name,
            "sys_path": list(sys_path),
            "environ": dict(environ or {}),
            "trainable": trainable,
        }
        key = json.dumps(question)
        with self._lock:
            known = self._known.get(key)
            if known is not None and all(_stat(file[0]) == file for file in known.files):
                return known
            answer = self._ask({**question, "timeout_s": self._timeout_s})
            if error := answer.get("error"):
                raise EntrypointError(error, pointer)
            files = tuple((str(path), int(mtime), int(size)) for path, mtime, size in answer["files"])
            found = self._known[key] = Entrypoint(name, answer["hash"], files)
            return found

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        for attempt in (1, 2):  # a helper that has died meanwhile is replaced, once
            helper = self._helper or self._start()
            try:
                assert helper.stdin is not None
                assert helper.stdout is not None
                helper.stdin.write(json.dumps(question) + "\n")
                helper.stdin.flush()
                if line := helper.stdout.readline():
                    answer: dict[str, Any] = json.loads(line)
                    return answer
            except OSError:
                pass
            self._stop()
            if attempt == 2:
                break
        raise EntrypointError(
            "the process that checks entrypoints cannot be started; see the service's log", "/entrypoint"
        )

    def _start(self) -> subprocess.Popen[str]:
        self._helper = subprocess.Popen(
            [sys.executable, "-m", "tuner.usercode.entrypoints"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._helper

    def _stop(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # something unsent to a helper that is gone
                    pipe.close()  # the helper ends when it reads the end of its input
        try:
            helper.wait(timeout=2)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()


def _stat(path: str) -> File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_mtime_ns, found.st_size


# -- the helper --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions, one JSON object a line, until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print must not come between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is meant for the service, which then ends this
    for line in sys.stdin:
        question = json.loads(line)
        work = functools.partial(
            examine, *(question[name] for name in ("entrypoint", "sys_path", "environ", "trainable"))
        )
        answer = in_a_child(work, question["timeout_s"])
        print(json.dumps(answer), file=answers)
        for name in answer.get("heavy", ()):
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


def in_a_child(work: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    """What `work` returns in a forked child, or {"error": ...} where the child dies or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        try:
            answer = work()
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    text, late = _read(reading, timeout_s)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"error": f"importing it takes longer than {timeout_s:g} s"}
    if not text:
        code = os.waitstatus_to_exitcode(status)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return {"error": f"importing it ends the process, {how}"}
    answer = json.loads(text)
    return dict(answer)


def _read(pipe: int, timeout_s: float) -> tuple[str, bool]:
    """(all that comes, whether it took too long)."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with os.fdopen(pipe, "rb", buffering=0) as source:
        while True:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return "", True
            part = source.read(65536)
            if not part:
                return b"".join(parts).decode(), False
            parts.append(part)


def examine(
    entrypoint: str, sys_path: Sequence[str], environ: Mapping[str, str], trainable: bool = True
) -> dict[str, Any]:
    """Import it, here, and see if it can be called: a `trainable` with a configuration.

    Returns {"hash", "files", "heavy"} or {"error"}.
    """
    os.environ.update(environ)
    module_name, _, qualname = entrypoint.partition(":")
    sys.path[:0] = [path for path in sys_path if path not in sys.path]
    before = set(sys.modules)
    try:
        found: Any = importlib.import_module(module_name)
    except BaseException as error:  # an import may raise anything, SystemExit too
        return {"error": f"cannot import {module_name}: {_last_line(error)}{_where(error)}", "heavy": _heavy(before)}
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return {"error": f"{module_name} has no {qualname!r}{_near(part, found)}", "heavy": _heavy(before)}
    if not callable(found):
        return {"error": f"{entrypoint} is no function but {type(found).__name__} {found!r:.60}"}
    try:
        if trainable:
            inspect.signature(found).bind({})
    except TypeError as error:
        return {"error": f"{entrypoint} cannot be called with a configuration: {error}"}
    except ValueError:  # a builtin that does not tell its signature
        pass
    files = _own_files()
    return {"hash": _digest(entrypoint, files), "files": files, "heavy": _heavy(before)}


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _where(error: BaseException) -> str:
    """The innermost line of the user's: not of the import system, not of an installed package, where there is a choice."""
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


def _own_files() -> list[File]:
    """The loaded source files that belong to nobody's installed package."""
    files = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not _installed(path) and (found := _stat(path)):
            files.append(found)
    return sorted(files)[:MAX_FILES]


_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).resolve().parents[1])


def _installed(path: str) -> bool:
    return path.startswith((*_LIBRARY, _PACKAGE + os.sep)) or f"{os.sep}site-packages{os.sep}" in path


def _digest(entrypoint: str, files: Sequence[File]) -> str:
    content = hashlib.blake2b(f"{entrypoint}\0{platform.python_version()}".encode(), digest_size=16)
    for path, _, _ in files:
        content.update(path.encode() + b"\0")
        content.update(Path(path).read_bytes())
    return content.hexdigest()


if __name__ == "__main__":
    main()
