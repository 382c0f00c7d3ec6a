"""Derive the cause and the message of a segment's failure from the errors that Ray and the ranks report."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.domain.segments import Failure, FailureKind
from tuner.plurals import counted
from tuner.trials.messages.launch import Placed
from tuner.trials.messages.lost import CUT_OFF, RankLost
from tuner.trials.messages.protocol import RankError, RankResult
from tuner.trials.runtime.segment import TAIL
from tuner.trials.runtime.sending.logs import EXIT_NOTE, SIGTERM_NOTE
from tuner.trials.training import oom

_FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}


_NOT_THE_USERS = ("checkpoint_lost", "disk_lost", "checkpoint_unreachable", "driver_lost", "actor_unavailable")


@dataclass(frozen=True, slots=True)
class Findings:
    """Evidence about a dead rank, collected on its node: the end of its log and the node's count of OOM kills."""

    log_end: str = ""  # long enough for the stacks of several threads, of at most 100 frames each
    oom_kills: int = 0  # the number of OOM kills on the node so far
    node_alive: bool = True

    @property
    def log_tail(self) -> str:
        """The last lines of the log, to show to users."""
        return "\n".join(self.log_end.split("\n")[-TAIL:])


def from_error(error: RankError, place: Placed) -> Failure:
    """Return the failure of a rank whose process is alive and has described its error."""
    message = f"{error.type}: {error.message}" if error.type and error.type != error.message else error.message
    kind: FailureKind = "spec" if error.cause == "spec" else "system" if error.cause in _NOT_THE_USERS else "user"
    return Failure(
        kind=kind,
        cause="exception" if error.cause == "spec" else error.cause,
        message=message,
        rank=place.rank,
        node=place.host,
        pid=place.pid,
        traceback=error.traceback,
        log_tail=error.log_tail,
    )


def unequal_reports(results: Mapping[int, RankResult]) -> str:
    """Return a message if some ranks made more or fewer reports than rank 0, else an empty string.

    A verdict ends training on all ranks at the same report. So if training code makes the same number of reports on all
    ranks, the counts are equal whenever a segment ends. There is one exception: if rank 0's only report is the return
    value of its function, other ranks may return nothing, and then have no report.
    """
    even = {results[0].reports, 0} if results[0].as_value else {results[0].reports}
    others = [f"rank {rank} {result.reports}" for rank, result in sorted(results.items()) if result.reports not in even]
    if not others:
        return ""
    more = f" and {counted(len(others) - _SHOWN, 'more rank')} with other counts" if len(others) > _SHOWN else ""
    counts = ", ".join(others[:_SHOWN]) + more
    made = f"the ranks made unequal numbers of reports: rank 0 {results[0].reports}, {counts}"
    return f"{made}; every rank must call tuner.report the same number of times"


_SHOWN = 8


def from_death(error: BaseException, place: Placed, oom_kills_before: int, found: Findings) -> Failure:
    """Return the failure of a rank whose process exited without answering the driver.

    The cause is derived from `error`, which comes from Ray or the local executor, and from what was found on the node.
    """
    kind, cause, message = _why(str(error), error, oom_kills_before, found)
    return Failure(
        kind=kind,
        cause=cause,
        message=message,
        rank=place.rank,
        node=place.host,
        pid=place.pid,
        traceback=_last_words(place, message, found),
        log_tail=found.log_tail,
    )


def _last_words(place: Placed, message: str, found: Findings) -> str:
    """Return the text to show instead of a traceback for a process that died without raising an exception."""
    lines = found.log_tail.splitlines()[-_LAST_LINES:]
    silent = "it printed nothing" if found.node_alive else "its log cannot be read"
    said = "the last lines of its log:\n  " + "\n  ".join(lines) if lines else silent
    return f"no traceback: rank {place.rank} (process {place.pid} on {place.host}) raised nothing, {message}; {said}\n"


_LAST_LINES = 20
# Batch systems and service managers send SIGTERM to all processes of a job; training code hardly ever sends it to itself.
TERMINATED: tuple[FailureKind, str, str] = "system", "killed", "the process was killed by SIGTERM"


def _why(text: str, error: BaseException, oom_kills_before: int, found: Findings) -> tuple[FailureKind, str, str]:
    lower = text.lower()
    if getattr(error, "preempted", False):
        return "system", "preempted", "its node was preempted"
    if not found.node_alive or "node has died" in lower or "node was terminated" in lower:
        return "system", "node_lost", "its node was lost"
    if type(error).__name__ == "ActorUnavailableError":  # the text of this error may name other processes
        return "system", "actor_unavailable", "Ray could not reach the process for a while, and its answer was lost"
    if "low on memory" in lower:
        return "user", "oom", "killed by Ray because its node was running out of memory"
    if exited := re.search(rf"{re.escape(EXIT_NOTE)}\((-?\d+)\) was called", found.log_tail):
        return "user", "exit", f"the process called os._exit({exited[1]})"
    if fatal := re.search(r"^Fatal Python error: (.+)$", found.log_end, re.MULTILINE):
        number = _FATAL.get(fatal[1].strip())
        name = f"{number.name} ({fatal[1].strip()})" if number else fatal[1].strip()
        return "user", "signal", f"the process was killed by {name}"
    if isinstance(error, RankLost) and error.killed_for == "memory":
        return "user", "oom", "killed by the local executor because the memory of this machine was running out"
    if "killed by `ray.kill`" in lower or "ray.kill" in lower:
        return "system", "killed", "the process was killed from outside through Ray"
    status = error.status if isinstance(error, RankLost) else None
    if status == CUT_OFF:
        why = "the training code has closed the process's connection to the driver, as `os.closerange` does"
        return "user", "exit", f"{why} if it closes files that it has not opened"
    if status is not None and status >= 0:
        return "user", "exit", f"the process ended with exit code {status}"
    if status == -signal.SIGTERM or (status is None and SIGTERM_NOTE.search(found.log_end)):
        return TERMINATED
    # The kernel sends SIGKILL if memory runs out. The count may have gone up because of another process.
    if status in (None, -signal.SIGKILL) and found.oom_kills > oom_kills_before:
        return "user", "oom", oom.KILLED
    if status is not None:
        return "user", "signal", f"the process was killed by {_signal_name(-status)}"
    if "unexpectedly exits" in lower or "worker process has died" in lower:
        return "user", "signal", "the process was killed by a signal that left no trace, most likely SIGKILL"
    return "system", "lost", f"the process was lost: {text.splitlines()[-1] if text else type(error).__name__}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
