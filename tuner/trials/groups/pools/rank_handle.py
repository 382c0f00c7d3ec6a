"""The driver's handle for a rank on Ray. The handle calls the rank over a socket if possible."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray

from tuner.trials.messages.call_lines import CallLine, CallLines
from tuner.trials.messages.lost import unavailable_errors
from tuner.trials.runtime.calls import SERIAL

_UNREACHABLE_S = 30.0  # seconds for which a call through Ray is repeated if the process lives but cannot be reached
_AGAIN_S = 0.2  # seconds from one attempt to the next


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    method: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]


class RankHandle:
    """Stands in for the handle of the rank's actor. Calls to the methods in `SERIAL` go over the rank's call line.

    The calls are numbered, and the rank runs them in the order of their numbers, no matter how they reach it. If the line breaks,
    unanswered calls continue through Ray: if the rank has received a call, the answer is fetched; otherwise, the call is sent
    again. If the process has exited, the calls raise Ray's error, which says how it exited. If Ray loses a call or its answer
    although the process lives, the call is repeated with the same number, and the rank runs it once.

    Args:
        actor: Ray's handle.
        rank: the token of the rank's process.
        lines: the lines that ranks have opened.
    """

    def __init__(self, actor: Any, rank: bytes, lines: CallLines) -> None:
        self.actor = actor
        self._rank, self._lines = rank, lines
        self._line: CallLine | None = None
        self._number = 0
        self._unanswered: dict[int, _Call] = {}  # the calls that were sent over the line
        self._held: list[_Call] = []  # calls made while it is not known which calls the rank has received
        self._recovery: asyncio.Task[None] | None = None
        self._broken = False

    def __getattr__(self, method: str) -> Any:
        if method in SERIAL:
            return _Method(self, method)
        return getattr(self.actor, method)

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Make a call. Return an awaitable for its answer, which need not be awaited."""
        number = self._number
        self._number += 1
        if self._recovery is not None:
            self._held.append(held := _Call(number, method, arguments, _future()))
            return held.answer
        for_ray = any(isinstance(argument, ray.ObjectRef) for argument in arguments)
        line = None if for_ray else self._open_line()
        if line is None:
            answer = _future()
            _pass_on(functools.partial(self.actor.serial.remote, number, method, arguments), answer)
            return answer
        call = self._unanswered[number] = _Call(number, method, arguments, _future())
        line.send(number, method, arguments)
        return call.answer

    def _open_line(self) -> CallLine | None:
        """Return the rank's line; None if it has none, or had one that broke."""
        if self._line is None and not self._broken and (line := self._lines.get(self._rank)) is not None:
            line.attend(self._heard, self._handle_broken_line)
            self._line = line
        return self._line

    def _heard(self, number: int, returned: bool, value: Any) -> None:
        call = self._unanswered.pop(number, None)
        if call is None or call.answer.done():
            return
        if returned:
            call.answer.set_result(value)
        else:
            call.answer.set_exception(RuntimeError(value))

    def _handle_broken_line(self) -> None:
        self._line, self._broken = None, True
        if self._unanswered:
            self._recovery = asyncio.get_running_loop().create_task(self._continue_through_ray())

    async def _continue_through_ray(self) -> None:
        """Continue the unanswered calls through Ray: fetch the answer if the rank has received the call, else send it again."""
        calls = list(self._unanswered.values())
        self._unanswered.clear()
        received, lost = -1, None
        try:
            received = await repeated(self.actor.last_received.remote)
        except Exception as error:
            lost = error
        finally:
            calls, self._held, self._recovery = calls + self._held, [], None
        for call in calls:  # Ray runs them in the order of their numbers, too
            if lost is not None:
                if not call.answer.done():
                    call.answer.set_exception(lost)
            elif call.number <= received:
                _pass_on(functools.partial(self.actor.answer_to.remote, call.number), call.answer)
            else:
                sent = functools.partial(self.actor.serial.remote, call.number, call.method, call.arguments)
                _pass_on(sent, call.answer)


class _Method:
    def __init__(self, handle: RankHandle, name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *arguments: Any) -> Any:
        return self._handle.call(self._name, arguments)


def _future() -> asyncio.Future[Any]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    return answer


async def repeated(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call through Ray, and return its answer. Repeat the call if the process lives but could not be reached."""
    unreachable_since: float | None = None
    while True:
        begun = time.monotonic()
        try:
            return await call()
        except unavailable_errors():
            now = time.monotonic()
            if unreachable_since is None or now - begun >= _UNREACHABLE_S:  # this attempt had reached the process
                unreachable_since = now
            if now - unreachable_since >= _UNREACHABLE_S:
                raise
        await asyncio.sleep(_AGAIN_S)


def _pass_on(call: Callable[[], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
    """Make a call through Ray as `repeated` does, and set a future to its answer."""

    async def passed_on() -> None:
        try:
            value = await repeated(call)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(value)

    task = asyncio.get_running_loop().create_task(passed_on())
    task.add_done_callback(_TASKS.discard)
    _TASKS.add(task)


_TASKS: set[asyncio.Task[None]] = set()
"""Keeps tasks alive, since the event loop has only weak references to them."""
