"""Run slow searchers in helper processes, so that they do not delay the verdicts of a host's experiments.

One helper serves all searchers whose answers take tens of milliseconds. A searcher that may take seconds
(`Searcher.HEAVY`) has its own helper. A helper keeps a copy of each experiment's trials. With each question, it gets
the trials that have changed, so it gives the same answer as the searcher in the driver host would. The core remains the only
writer of the experiment, because an answer comes back as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import pickle
import struct
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tuner.domain.trial import Population, Trial
from tuner.hosts.helpers.process import end_helper, pipes_to_host, start_helper
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.usercode.pickling import dumps

AT_ONCE = 100
"""The number of trials that are sent at a time, so that pickling delays the event loop by only a few milliseconds."""

_LENGTH = struct.Struct("!Q")


class ProposalError(RuntimeError):
    """Raised when a helper could not answer: it has exited, or the searcher raised an exception that cannot be pickled."""


class Proposals:
    """The helper processes of one host. Each is started for its first question, and restarted if it has exited."""

    def __init__(self) -> None:
        self._shared = _Helper()
        self._own: dict[str, _Helper] = {}

    async def suggest(
        self, experiment: str, searcher: Searcher, number: int, trials: Population, sys_path: Sequence[str] = ()
    ) -> Suggestion | None:
        """Return the suggestion of an experiment's searcher for trial `number`; None if it has no more configurations.

        If the searcher raises an exception, the exception is raised here, too.

        Raises:
            ProposalError: the helper process has exited, or the searcher's exception could not be pickled.
        """
        return await self._call(experiment, searcher, trials, sys_path, "suggest", (number,))  # type: ignore[no-any-return]

    async def draw(
        self,
        experiment: str,
        searcher: Searcher,
        number: int,
        name: str,
        distribution: str,
        trials: Population,
        sys_path: Sequence[str] = (),
    ) -> tuple[Any, dict[str, Any]]:
        """Return the value of a parameter that trial `number` asks for, and the state to be stored with the trial.

        Raise the errors of `DefineByRunSearch.draw`, or ProposalError if the helper process has exited.
        """
        answer = await self._call(experiment, searcher, trials, sys_path, "draw", (number, name, distribution))
        return answer[0], answer[1]

    async def forget(self, experiment: str) -> None:
        """Make the helper processes release their data about an experiment."""
        if (own := self._own.pop(experiment, None)) is not None:
            await own.close()
        await self._shared.forget(experiment)

    async def close(self) -> None:
        """Stop all helper processes."""
        own, self._own = list(self._own.values()), {}
        for helper in (self._shared, *own):
            await helper.close()

    async def _call(
        self,
        experiment: str,
        searcher: Searcher,
        trials: Population,
        sys_path: Sequence[str],
        method: str,
        args: tuple[Any, ...],
    ) -> Any:
        helper = self._own.setdefault(experiment, _Helper()) if searcher.HEAVY else self._shared
        return await helper.call(experiment, searcher, trials, sys_path, method, args)


@dataclass(slots=True)
class _Copy:
    """A record of what a helper process knows about one experiment."""

    trials: Population
    context: SearcherContext
    count: int = 0  # all trials below this number have been sent
    # trials that had not ended when they were sent, with the value of `_look`
    live: dict[int, Any] = field(default_factory=dict)

    def changed(self, trials: Population) -> list[Trial]:
        """Return the trials that are new or have changed since they were sent to the helper."""
        found = [trials[number] for number, look in self.live.items() if _look(trials[number]) != look]
        found += [trials[number] for number in range(self.count, len(trials))]
        return found

    def sent(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self.count = max(self.count, trial.number + 1)
            if trial.state.ended:
                self.live.pop(trial.number, None)
            else:
                self.live[trial.number] = _look(trial)


def _look(trial: Trial) -> Any:
    """Return a value that changes whenever the trial changes in a way that searchers can see."""
    return (
        trial.state,
        trial.iteration,
        trial.reports,
        trial.best_value,
        trial.last_value,
        len(trial.segments),
        dict(trial.params),
        dict(trial.searcher_state),
    )


class _Helper:
    """One helper process, and a record of the experiments and trials that it knows."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._copies: dict[str, _Copy] = {}
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    async def call(
        self,
        experiment: str,
        searcher: Searcher,
        trials: Population,
        sys_path: Sequence[str],
        method: str,
        args: tuple[Any, ...],
    ) -> Any:
        """Call a method of the searcher in the helper process and return the result.

        If the caller is cancelled, the answer is still read, so that it is not mistaken for the answer to the next question.
        """
        call = asyncio.create_task(self._call(experiment, searcher, trials, sys_path, method, args))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def forget(self, experiment: str) -> None:
        async with self._turn:
            if self._copies.pop(experiment, None) is not None and self._process is not None:
                with contextlib.suppress(OSError):
                    await _send(self._process, ("forget", experiment))

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._end()

    async def _call(
        self,
        experiment: str,
        searcher: Searcher,
        trials: Population,
        sys_path: Sequence[str],
        method: str,
        args: tuple[Any, ...],
    ) -> Any:
        async with self._turn:
            try:
                process = self._process or await self._start()
            except OSError as error:
                raise ProposalError(f"the searcher's helper process cannot be started: {error}") from error
            try:
                await self._update(process, experiment, searcher, trials, sys_path, (method, args))
                failure, value = await _read(process)
            except (EOFError, OSError) as lost:
                code = await self._end()
                raise ProposalError(f"the searcher's helper process has exited (exit code {code})") from lost
        if failure is None:
            return value
        raise failure

    async def _update(
        self,
        process: asyncio.subprocess.Process,
        experiment: str,
        searcher: Searcher,
        trials: Population,
        sys_path: Sequence[str],
        question: tuple[str, tuple[Any, ...]],
    ) -> None:
        """Send the trials that have changed, in parts, and the question with the last part.

        No trial changes between the last part and the question, so the searcher sees the trials as they are now.
        """
        copy = self._copies.get(experiment)
        if copy is None or copy.trials is not trials or copy.context is not searcher.context:
            blob = dumps(searcher)  # may raise, and the helper then does not know the experiment
            copy = self._copies[experiment] = _Copy(trials, searcher.context)
            await _send(process, ("searcher", experiment, blob, list(sys_path)))
        while len(changed := copy.changed(trials)) > AT_ONCE:
            part = changed[:AT_ONCE]
            copy.sent(part)
            await _send(process, ("trials", experiment, part))
            await asyncio.sleep(0)
        copy.sent(changed)
        await _send(process, ("call", experiment, changed, *question))

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await start_helper("tuner.hosts.helpers.proposals", sys_path=[*filter(None, sys.path)])
        return self._process

    async def _end(self) -> int | None:
        process, self._process = self._process, None
        self._copies.clear()
        return await end_helper(process) if process is not None else None


async def _send(process: asyncio.subprocess.Process, message: tuple[Any, ...]) -> None:
    assert process.stdin is not None
    data = pickle.dumps(message)
    process.stdin.write(_LENGTH.pack(len(data)) + data)
    await process.stdin.drain()


async def _read(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
    return pickle.loads(await process.stdout.readexactly(length))


# -- the helper --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions from the driver host until standard input ends."""
    questions, answers = pipes_to_host()
    known: dict[str, tuple[Searcher, Population] | Exception] = {}
    while (message := _received(questions)) is not None:
        match message:
            case ("searcher", experiment, blob, sys_path):
                known[experiment] = _loaded(blob, sys_path)
            case ("forget", experiment):
                known.pop(experiment, None)
            case ("trials", experiment, trials):
                _take(known[experiment], trials)
            case ("call", experiment, trials, method, args):
                _take(known[experiment], trials)
                data = _answer(known[experiment], method, args)
                answers.write(_LENGTH.pack(len(data)) + data)


def _received(questions: BinaryIO) -> Any:
    head = questions.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(questions.read(length))


def _loaded(blob: bytes, sys_path: Sequence[str]) -> tuple[Searcher, Population] | Exception:
    sys.path[:0] = [path for path in sys_path if path not in sys.path]
    importlib.invalidate_caches()
    try:
        return pickle.loads(blob), Population()
    except Exception as error:
        return error


def _take(known: tuple[Searcher, Population] | Exception, trials: Sequence[Trial]) -> None:
    if not isinstance(known, Exception):
        for trial in trials:
            known[1].put(trial)


def _answer(known: tuple[Searcher, Population] | Exception, method: str, args: tuple[Any, ...]) -> bytes:
    """Call a method of the searcher. Return (None, value) or, if it raises, (error, None), pickled."""
    try:
        if isinstance(known, Exception):
            raise known
        searcher, trials = known
        return pickle.dumps((None, getattr(searcher, method)(*args, trials)))
    except Exception as error:
        return _pickled(error)


def _pickled(error: Exception) -> bytes:
    """Return (error, None), pickled. An error that cannot be pickled is replaced with a ProposalError with the same text."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        data = pickle.dumps((error, None))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((ProposalError(f"{type(error).__name__}: {error}"), None))
    return data


if __name__ == "__main__":
    main()
