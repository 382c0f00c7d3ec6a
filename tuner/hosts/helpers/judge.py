"""Call a user's stop functions in a helper process. Each experiment with stop functions has its own helper.

The driver host drives many experiments in one event loop, so a stop function that is slow, hangs, prints or exits must not
run there. Before the host handles a report, it has the helper call the functions for that report. If one of them
stops the trial, the answers are committed with the report (`StopJudged`), so that a restart does not call the functions again.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.hosts.helpers.process import end_helper, pipes_to_host, start_helper
from tuner.schedulers.functions import Unloaded
from tuner.trials.checkpoints.packages import unpacked

log = logging.getLogger(__name__)

Answer = dict[str, Any]
"""{"stop": bool}, or {"error": type, "args": [...], "text": message, "traceback": text}."""

START_S = 120.0
"""Timeout in seconds for importing the modules of the stop functions."""
CALL_S = 60.0
"""Timeout in seconds for calling the stop functions for one report."""
READ_AGAIN_S = (0.2, 1.0, 5.0, 20.0)
"""Seconds to wait before each further attempt to read the packages of a `runtime_env` from the storage."""
_LINE = 16 * 2**20


@dataclass(slots=True, eq=False)
class _Question:
    text: bytes
    answers: asyncio.Future[list[Answer]]
    died: bool = False  # True if a helper process has exited while it was answering this question


class Judge:
    """The helper process that calls an experiment's stop functions: started by the first call, restarted if it has exited."""

    def __init__(
        self,
        functions: Sequence[Unloaded],
        *,
        sys_path: Sequence[str] = (),
        working_dir: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        start_s: float = START_S,
        call_s: float = CALL_S,
    ) -> None:
        self._count = len(functions)
        self._functions, self._sys_path = list(functions), list(sys_path)
        self._working_dir = working_dir if working_dir and Path(working_dir).is_dir() else None
        self._runtime_env = dict(runtime_env or {})
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None
        self._closed, self._closing = False, threading.Lock()
        self._start_s, self._call_s = start_s, call_s
        self._helper: asyncio.subprocess.Process | None = None
        self._waiting: deque[_Question] = deque()
        self._work: asyncio.Task[None] | None = None

    async def ask(self, number: int, metrics: Mapping[str, float]) -> list[Answer]:
        """Call every stop function with a trial's number and metrics, and return one answer for each function.

        If the helper dies or hangs, each answer is an error.
        """
        text = json.dumps([number, dict(metrics)]).encode() + b"\n"
        question = _Question(text, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer())
        return await question.answers

    async def close(self) -> None:
        """Stop the helper process."""
        with self._closing:
            self._closed = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for question in self._waiting:  # whoever waits for an answer is not cancelled
            if not question.answers.done():
                question.answers.set_exception(RuntimeError("the driver has been stopped"))
        await self._end()
        if self._unpacked is not None:
            await asyncio.to_thread(self._unpacked.cleanup)

    async def _answer(self) -> None:
        """Send all waiting questions to the helper together and wait for the answers, until no question is left."""
        while self._waiting:
            batch = list(self._waiting)
            try:
                helper = self._helper or await self._start()
                assert helper.stdin is not None
                helper.stdin.write(b"".join(question.text for question in batch))
                for question in batch:
                    self._settle(question, await self._read(helper, self._call_s))
            except TimeoutError:
                await self._end()
                late = f"the function took longer than {self._call_s:g} s"
                self._fail(self._waiting[0], "TimeoutError", late)
            except (EOFError, OSError):
                code = await self._end()
                question = self._waiting[0]
                if question.died:
                    self._fail(question, "RuntimeError", f"the function ended its process{_how(code)}")
                question.died = True
            except Exception as error:  # the functions cannot be loaded, or the helper cannot be started
                log.warning("stop functions cannot be called", exc_info=True)
                await self._end()
                while self._waiting:
                    self._fail(self._waiting[0], type(error).__name__, str(error))

    async def _start(self) -> asyncio.subprocess.Process:
        await self._unpack()
        try:
            helper = self._helper = await start_helper(
                "tuner.hosts.helpers.judge",
                sys_path=[os.environ.get("PYTHONPATH", "")],
                environ=self._runtime_env.get("env_vars"),
                working_dir=self._working_dir,
                limit=_LINE,
            )
        except OSError as error:
            raise RuntimeError(f"the process for the stop functions cannot be started: {error}") from error
        assert helper.stdin is not None
        helper.stdin.write(base64.b64encode(pickle.dumps((self._sys_path, self._functions))) + b"\n")
        try:
            ready = await self._read(helper, self._start_s)
        except TimeoutError as error:
            raise RuntimeError(f"the function's module could not be imported within {self._start_s:g} s") from error
        except EOFError as error:
            raise RuntimeError("importing the function's module ended the process") from error
        if "error" in ready[0]:
            raise RuntimeError(ready[0]["text"])
        return helper

    async def _unpack(self) -> None:
        """Let the functions import from the same packages as the trials, because the packed directories may have changed since.

        If the storage cannot be read, try again a few times.
        """
        for wait in (*READ_AGAIN_S, None):
            try:
                await asyncio.to_thread(self._unpack_once)
                return
            except OSError as error:
                if wait is None:
                    raise RuntimeError(f"the packages of runtime_env cannot be read: {error}") from error
                await asyncio.sleep(wait)

    def _unpack_once(self) -> None:
        """Unpack the packages into a folder, unless this has been done. Delete the folder if the judge is closed meanwhile."""
        if self._unpacked is not None:
            return
        folder = tempfile.TemporaryDirectory(prefix="tuner-stop-", ignore_cleanup_errors=True)
        try:
            working_dir, sys_path = unpacked(self._runtime_env, folder.name)
        except BaseException:
            folder.cleanup()
            raise
        with self._closing:
            if not self._closed:
                self._unpacked = folder
                self._working_dir = working_dir or self._working_dir
                self._sys_path = [*sys_path, *self._sys_path]
                return
        folder.cleanup()

    async def _read(self, helper: asyncio.subprocess.Process, limit: float) -> list[Answer]:
        assert helper.stdout is not None
        line = await asyncio.wait_for(helper.stdout.readline(), limit)
        if not line:
            raise EOFError
        answers: list[Answer] = json.loads(line)
        return answers

    def _settle(self, question: _Question, answers: list[Answer]) -> None:
        self._waiting.remove(question)
        if not question.answers.done():
            question.answers.set_result(answers)

    def _fail(self, question: _Question, kind: str, text: str) -> None:
        self._settle(question, [{"error": kind, "args": [text], "text": text, "traceback": ""}] * self._count)

    async def _end(self) -> int | None:
        helper, self._helper = self._helper, None
        return await end_helper(helper) if helper is not None else None


def _how(code: int | None) -> str:
    if code is None:
        return ""
    return f", with exit code {code}" if code >= 0 else f", by {signal.Signals(-code).name}"


# -- the helper --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions from the driver host, one per line, until standard input ends."""
    questions, answers = pipes_to_host()
    setting: tuple[list[str], list[Unloaded]] = pickle.loads(base64.b64decode(questions.readline()))
    sys_path, unloaded = setting
    # the packages come first, even if one of them is the working directory
    sys.path[:] = list(dict.fromkeys([*sys_path, *sys.path]))
    importlib.invalidate_caches()
    try:
        functions = [function.load() for function in unloaded]
    except BaseException as error:
        answers.write(_line([_raised(error)]))
        return
    answers.write(_line([{"stop": False}]))
    for question in questions:
        number, metrics = json.loads(question)
        answers.write(_line([_called(function, number, metrics) for function in functions]))


def _line(answers: list[Answer]) -> bytes:
    return json.dumps(answers).encode() + b"\n"


def _called(function: Any, number: int, metrics: dict[str, float]) -> Answer:
    try:
        return {"stop": bool(function(number, dict(metrics)))}
    except Exception as error:
        return _raised(error)


def _raised(error: BaseException) -> Answer:
    args = [arg if isinstance(arg, str | int | float) else repr(arg) for arg in error.args]
    text = traceback.format_exception_only(error)[-1].strip().partition(": ")[2] if not error.args else str(error)
    frames = "".join(traceback.format_exception(error))
    return {"error": type(error).__name__, "args": args, "text": text, "traceback": frames[-20_000:]}


if __name__ == "__main__":
    main()
