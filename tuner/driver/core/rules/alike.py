"""End a search early if all its trials fail because of the same mistake."""

from __future__ import annotations

import re
from typing import NamedTuple

from tuner.domain.events import Failure
from tuner.domain.segments import IN_SAVE
from tuner.domain.states import TrialState
from tuner.domain.trial import Population

ALIKE = 3
"""The search ends if this many trials fail in the same way before any trial has reported."""

_FRAME = re.compile(r'^(?:\[rank\d+\]: )?  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)  # torch prints the rank
_NUMBER = re.compile(r"\d[\d.e+-]*")
_OWN = "/tuner/trials/"
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|/torchinductor_|^<(?:frozen|eval_with_key|string|__array_function__)"
)
"""Files in which an exception may be raised, but which rarely have the mistake: packages, Python itself, generated code."""
_MEMORY = ("memoryerror", "out of memory")
"""Parts of failure messages after which the next trial may still succeed, because its configuration may need less memory."""


class Alike(NamedTuple):
    """The features of a failure that are equal in all failures caused by the same mistake.

    place: the innermost line of the traceback.
    called_from: if that line is in a library, the innermost line that is not, which has the mistake most of the time.
    said: if a script failed without a Python traceback, the last line of its stderr. Every number in it is replaced,
        because it may be a parameter of the trial.
    """

    kind: str
    place: str
    said: str = ""
    called_from: str = ""

    @property
    def where(self) -> str:
        """Return where the mistake is, in words."""
        return f"{self.called_from} (raised at {self.place})" if self.called_from else self.place


def place_of(failure: Failure | None) -> Alike | None:
    """Return the kind and the place of a failure. They are the same for all trials that fail because of the same mistake.

    For an exception in the user's code, this is (type of the exception, "line 12 of train.py"). For a script, it is
    (what happened, the line in the traceback); without a traceback, `said` takes the place of the line. For a function
    that returned without a report, it is ("no report", "its end").
    Return None if other trials might not fail in the same way: after a lost node, a killed process or lack of memory.
    """
    if failure is not None and failure.kind == "user" and failure.cause == "no_report":
        return Alike("no report", "its end")
    if failure is None or failure.kind != "user" or failure.cause not in ("exception", "script"):
        return None
    is_script = failure.cause == "script"
    # The message of a script ends with its last line of stderr, or with the command in parentheses.
    kind = re.split(": | \\(" if is_script else ":", failure.message, maxsplit=1)[0]
    frames = _FRAME.findall(failure.traceback)
    lacks_memory = any(sign in failure.message.lower() for sign in _MEMORY)
    if lacks_memory or not (frames or is_script):
        return None
    if not frames:
        rest = failure.message.removeprefix(kind)
        return Alike(kind, "", _NUMBER.sub("#", rest) if rest.startswith(": ") else "")
    # `tuner.report` raises errors about its arguments; the mistake is in the line that calls it.
    outside = [frame for frame in reversed(frames) if _OWN not in frame[0]] or frames[-1:]
    users = next((frame for frame in outside if not _LIBRARY.search(frame[0])), outside[0])
    return Alike(kind, _line(outside[0]), called_from="" if users is outside[0] else _line(users))


def _line(frame: tuple[str, str, str]) -> str:
    file, line, _ = frame
    return f"line {line} of {file}"


def all_failed_alike(trials: Population, failing: int, failure: Failure) -> str | None:
    """Return the reason to end the search if trial `failing` and all ended trials failed in the same way; otherwise None.

    The failures are alike if all trials raised the same exception at the same line, or if all returned without a report.
    At least ALIKE trials must have failed, and no trial may ever have reported. Trials that will be retried do not count.

    A function that saves checkpoints is called only when one is due, and most often for the best trials. So if it has always
    failed in the same way, trials that have reported and needed no checkpoint do not count.
    """
    place = place_of(failure)
    if place is not None and IN_SAVE in failure.traceback:
        return _all_saves_failed_alike(trials, failing, failure, place)
    if place is None or any(trial.reports for trial in trials):
        return None
    ended = [trial for trial in trials if trial.state.ended and trial.number != failing]
    if len(ended) < ALIKE - 1:
        return None
    if any(trial.state is not TrialState.FAILED or place_of(trial.failure) != place for trial in ended):
        return None
    if failure.cause == "no_report":
        return f"the first {len(ended) + 1} trials all returned without a report"
    return f"the first {len(ended) + 1} trials all failed {_how(failure, place)}, before any of them had reported"


def _how(failure: Failure, place: Alike) -> str:
    if failure.cause == "script":
        return f"at {place.where}" if place.where else f"because {place.kind}"
    return f"with {place.kind} at {place.where}"


def _all_saves_failed_alike(trials: Population, failing: int, failure: Failure, place: Alike) -> str | None:
    if any(trial.checkpoints or trial.checkpoint is not None for trial in trials):
        return None
    others = [trial for trial in trials if trial.state is TrialState.FAILED and trial.number != failing]
    if len(others) < ALIKE - 1 or any(place_of(trial.failure) != place for trial in others):
        return None
    how = _how(failure, place)
    return (
        f"the first {len(others) + 1} trials that had to save a checkpoint all failed {how}, and no trial has saved one"
    )
