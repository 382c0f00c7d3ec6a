"""Check that an entrypoint ("module:function") can be imported and called, without running user code in this process.

Helper processes do the checks (`tuner.usercode.import_check`). A helper forks a child for each check, so an import that hangs,
prints or exits does no harm. If all helpers are busy, another helper is started, up to a limit. Below that limit, a slow import
delays only the callers that ask about the same entrypoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tuner.errors import CheckerBusy, EntrypointError
from tuner.usercode.folder import python_without_folder
from tuner.usercode.import_check import File, stat

TIMEOUT_S = 60.0
"""The maximum time that an import may take, in seconds."""

HELPERS = 4
"""The maximum number of imports that run at the same time, each in its own helper process."""

KEPT = 2
"""The maximum number of idle helper processes that are kept. Each of them holds large libraries in memory."""

WAITING = 32
"""The maximum number of callers that wait for a helper process to answer or to become free. Others get CheckerBusy."""

FORGET_S = (1.0, 60.0)
"""The minimum and the maximum time for which a failed check is remembered, in seconds.

Between these bounds, a failure is remembered for as long as the check took. It is forgotten earlier if a file of the module
changes.
"""

KNOWN = 10_000
"""The maximum number of checked entrypoints whose results are remembered."""


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """An entrypoint that can be imported. `hash` is a hash of the user's files that the import loaded."""

    name: str
    hash: str
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why an entrypoint cannot be used, and the time until which it is not checked again."""

    message: str
    until: float
    files: tuple[File | str, ...]  # a bare path stands for a file that did not exist


class _Check(NamedTuple):
    """The arguments of a check."""

    entrypoint: str
    sys_path: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    trainable: bool


def _check_of(name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, trainable: bool) -> _Check:
    return _Check(name, tuple(sys_path), tuple(environ.items()) if environ else (), trainable)


@dataclass(slots=True)
class _Question:
    """A check that is running. All callers that ask for the same check wait for its answer."""

    check: _Check
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Entrypoint | _Failure | CheckerBusy | None = None


class Checker(Protocol):
    """Checks the functions that a spec names."""

    def check(
        self, entrypoint: str, sys_path: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Entrypoint:
        """Return the entrypoint if it can be imported and called; see `EntrypointChecker.check`."""

    def check_function(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str
    ) -> Entrypoint:
        """Return the function if it can be imported; see `EntrypointChecker.check_function`."""


class TakesLong(Exception):
    """Raised instead of doing something that may take a long time, such as an import."""


class EntrypointChecker:
    """Checks entrypoints in helper processes, which start when they are needed and live until `close`. Thread-safe.

    timeout_s: the maximum time that an import may take, in seconds.
    helpers: the maximum number of imports that run at once.
    waiting: the maximum number of waiting callers, in addition to those whose imports are running. Further callers get
        CheckerBusy.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, helpers: int = HELPERS, waiting: int = WAITING) -> None:
        self._timeout_s = timeout_s
        self._helpers, self._limit = helpers, helpers + waiting
        self._lock = threading.Condition()
        self._idle: list[_Helper] = []
        self._busy: list[_Helper] = []
        self._known: dict[_Check, Entrypoint | _Failure] = {}
        self._questions: dict[_Check, _Question] = {}
        self._waiting = 0
        self._closed = False

    @property
    def capacity(self) -> int:
        """Return the maximum number of callers that can be inside `check` at once."""
        return self._limit

    def check(
        self, entrypoint: str, sys_path: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Entrypoint:
        """Import the entrypoint in a helper process, and check that it can be called with a configuration.

        Args:
            entrypoint: "module:function".
            sys_path: folders to put before the helper's own `sys.path`.
            environ: variables to add to the helper's environment.

        Raises:
            EntrypointError: the entrypoint cannot be imported or called. The message names the file and the line.
            CheckerBusy: too many callers are already waiting, or the checker is closed.
        """
        return self._check(entrypoint, sys_path, environ, "/entrypoint", trainable=True)

    def check_function(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str
    ) -> Entrypoint:
        """Check that a function that a scheduler or a stopper calls can be imported. Raise errors as `check` does.

        pointer: the JSON pointer of the option in the spec that names the function, for the error.
        """
        return self._check(name, sys_path, environ, pointer, trainable=False)

    def remembered(self) -> Checker:
        """Return a checker that only repeats the answers of earlier checks, as long as these still hold.

        It raises TakesLong instead of importing anything.
        """
        return _Remembered(self)

    def pids(self) -> list[int]:
        """Return the process ids of the helpers."""
        with self._lock:
            return [helper.pid for helper in (*self._idle, *self._busy)]

    def close(self) -> None:
        """Kill all helpers and their imports. Callers that wait for an answer get CheckerBusy."""
        with self._lock:
            self._closed = True
            helpers = [*self._idle, *self._busy]
            self._idle.clear()
            self._lock.notify_all()
        for helper in helpers:
            helper.end()

    def _check(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str, *, trainable: bool
    ) -> Entrypoint:
        return _raised(self._find(_check_of(name, sys_path, environ, trainable)), pointer)

    def recall(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str, *, trainable: bool
    ) -> Entrypoint | None:
        """Return the answer of an earlier check that still holds, or raise its error. Return None if there is none."""
        with self._lock:
            known = self._known.get(_check_of(name, sys_path, environ, trainable))
        return _raised(known, pointer) if known is not None and _holds(known) else None

    def _find(self, check: _Check) -> Entrypoint | _Failure:
        """Return a remembered answer if it is still valid, or else the answer of a running or new import."""
        with self._lock:
            known = self._known.get(check)
        # The lock is not held here, because `_holds` reads files, and the disk may be slow.
        if known is not None and _holds(known):
            return known
        with self._lock:
            if self._closed:
                raise CheckerBusy("the service is shutting down")
            if self._waiting >= self._limit:
                raise CheckerBusy(f"{self._waiting} other requests are already waiting for the import of an entrypoint")
            self._waiting += 1
            question = self._questions.get(check)
            mine = question is None
            if question is None:
                question = self._questions[check] = _Question(check)
        try:
            if mine:
                self._answer(question)
            else:
                question.answered.wait()
        finally:
            with self._lock:
                self._waiting -= 1
        if isinstance(question.answer, Entrypoint | _Failure):
            return question.answer
        raise question.answer or CheckerBusy("the check was interrupted")

    def _answer(self, question: _Question) -> None:
        """Get the answer to a question from a helper, and pass it to all callers that wait for the answer."""
        try:
            question.answer = self._ask(question)
        except CheckerBusy as error:
            question.answer = error
        except OSError as error:
            question.answer = CheckerBusy(f"the process that checks entrypoints cannot be started: {error}")
        finally:
            with self._lock:
                del self._questions[question.check]
                if isinstance(question.answer, Entrypoint | _Failure):
                    if len(self._known) >= KNOWN:
                        self._known.clear()
                    self._known[question.check] = question.answer
            question.answered.set()

    def _ask(self, question: _Question) -> Entrypoint | _Failure:
        begun = time.monotonic()
        check = question.check
        # Read these before the import, so that edits during the import are noticed.
        seen = _module_files(check.entrypoint.partition(":")[0], check.sys_path)
        files_ahead = [file[0] for file in seen if not isinstance(file, str)]
        for ahead in (files_ahead, []):  # if a library has crashed the helper, try once more without it
            helper = self._take()
            begun = time.monotonic()
            told = {**check._asdict(), "environ": dict(check.environ), "timeout_s": self._timeout_s, "ahead": ahead}
            answer = helper.ask(json.dumps(told))
            self._give_back(helper, alive=answer is not None)
            if answer is not None:
                break
        else:
            return _Failure("the process that checks entrypoints cannot be started; see the service's log", begun, ())
        files = tuple((str(path), int(mtime), int(size)) for path, mtime, size in answer.get("files", ()))
        if error := answer.get("error"):
            took = time.monotonic() - begun
            until = time.monotonic() + min(max(took, FORGET_S[0]), FORGET_S[1])
            return _Failure(error, until, (*seen, *files))
        return Entrypoint(check.entrypoint, answer["hash"], files)

    def _take(self) -> _Helper:
        """Return a helper that no other caller uses. If none is idle, start one if the limit allows it, or else wait."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._idle or len(self._busy) < self._helpers)
            if self._closed:
                raise CheckerBusy("the service is shutting down")
            ready = next((helper for helper in self._idle if helper.is_ready()), None)
            if ready is None and len(self._idle) + len(self._busy) < self._helpers:
                helper = _Helper()
            else:
                helper = ready or self._idle[0]
                self._idle.remove(helper)
            self._busy.append(helper)
            return helper

    def _give_back(self, helper: _Helper, alive: bool) -> None:
        with self._lock:
            self._busy.remove(helper)
            closed = self._closed
            kept = alive and not closed and len(self._idle) < KEPT
            if kept:
                self._idle.append(helper)
            self._lock.notify()
        if not kept:
            helper.end()
        if closed:
            raise CheckerBusy("the service is shutting down")


class _Remembered:
    """The `Checker` that `EntrypointChecker.remembered` returns."""

    def __init__(self, checker: EntrypointChecker) -> None:
        self._checker = checker

    def check(
        self, entrypoint: str, sys_path: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Entrypoint:
        return self._recall(entrypoint, sys_path, environ, "/entrypoint", trainable=True)

    def check_function(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str
    ) -> Entrypoint:
        return self._recall(name, sys_path, environ, pointer, trainable=False)

    def _recall(
        self, name: str, sys_path: Sequence[str], environ: Mapping[str, str] | None, pointer: str, *, trainable: bool
    ) -> Entrypoint:
        found = self._checker.recall(name, sys_path, environ, pointer, trainable=trainable)
        if found is None:
            raise TakesLong
        return found


class _Helper:
    """A helper process in a new session, so that Ctrl-C at a terminal does not reach it and `end` reaches its children."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_without_folder("tuner.usercode.import_check"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ending = threading.Lock()
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_ready(self) -> bool:
        """Return False while the helper starts, or loads libraries after its last answer. Return True if it is dead."""
        if not self._ready:
            assert self._process.stdout is not None
            poll = (
                select.poll()
            )  # `select.select` takes no descriptor above 1,023, and a service may have more connections
            poll.register(self._process.stdout, select.POLLIN)
            self._ready = bool(poll.poll(0))
        return self._ready

    def ask(self, question: str) -> dict[str, Any] | None:
        """Return the answer to a question; None if the helper has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ready = False
        try:
            self._process.stdout.readline()  # the empty line that means "ready"
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                answer: dict[str, Any] = json.loads(line)
                return answer
        except (OSError, ValueError):  # the helper has died, or `end` was called in the meantime
            pass
        return None

    def end(self) -> None:
        """Kill the helper and the import that it runs."""
        with self._ending, contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the pipe may hold unsent data for the dead helper
            self._process.stdin.close()


def _raised(answer: Entrypoint | _Failure, pointer: str) -> Entrypoint:
    if isinstance(answer, Entrypoint):
        return answer
    raise EntrypointError(answer.message, pointer)


def _holds(known: Entrypoint | _Failure) -> bool:
    """Return whether an earlier answer is still valid: the user's files have not changed, and a failure has not expired."""
    if isinstance(known, Entrypoint):
        return all(stat(file[0]) == file for file in known.files)
    if time.monotonic() >= known.until:
        return False
    return all(stat(file) is None if isinstance(file, str) else stat(file[0]) == file for file in known.files)


def _module_files(module: str, sys_path: Sequence[str]) -> tuple[File | str, ...]:
    """Return `stat` of each file that can contain the module, or the path if there is no such file. Import nothing."""
    parts = module.split(".")
    found: list[File | str] = []
    for folder in sys_path:
        for path in (Path(folder, *parts[:-1], f"{parts[-1]}.py"), Path(folder, *parts, "__init__.py")):
            found.append(stat(str(path)) or str(path))
    return tuple(found)
