"""What a scheduler or a user wants done. Every decision is a value and carries its reason in words, with the numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tuner.domain.events import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    KIND: ClassVar[str] = "decision"
    reason: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Decision):
    """Start a new trial: with `params` if given (flat, as a `Suggestion`), else with what the searcher suggests."""

    KIND = "start"
    params: Mapping[str, Any] | None = None
    number: int = -1  # given by the core
    state: Mapping[str, Any] = field(default_factory=dict)  # the searcher's own, stored with the trial
    tags: Mapping[str, Any] = field(default_factory=dict)  # the scheduler's own (bracket and so on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Decision):
    """Let a paused trial go on from its newest checkpoint (from the beginning where it has none)."""

    KIND = "resume"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Decision):
    """The trial gives its resources back and may be resumed."""

    KIND = "pause"
    trial: int
    held: bool = False  # no scheduler may resume it: a user paused it, or it waits for `then`
    then: Mapping[str, Any] | None = None  # an Exploit's fields: what it does once the donor's checkpoint is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Decision):
    """The trial ends early: `stopped`."""

    KIND = "stop"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(Decision):
    """The trial has reached its end: `completed`."""

    KIND = "complete"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit(Decision):
    """The trial goes on from the donor's checkpoint with a new configuration (its params, flat)."""

    KIND = "exploit"
    trial: int
    donor: int
    params: Mapping[str, Any]
    checkpoint: str = ""  # id of the donor's checkpoint, filled in and pinned by the core
    mutations: Mapping[str, Any] = field(default_factory=dict)  # param -> how it was changed, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Decision):
    """A failed segment is run again from the newest checkpoint."""

    KIND = "retry"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Decision):
    """The trial is given up. `failure`: what was wrong, where no event has brought it."""

    KIND = "fail"
    trial: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Decision):
    """The trial is cancelled by a user, or with its experiment."""

    KIND = "cancel"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Decision):
    """The search is over: start nothing any more and end the experiment when nothing runs."""

    KIND = "finish"
    failed: bool = False  # the experiment has failed, rather than come to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Decision):
    """Changes nothing; something that people should be able to read later, such as what "auto" chose and why.

    trial: which trial it is about, if about one. warning: it looks like a mistake of the user's, to be shown where he looks,
    and not only in the log.
    """

    KIND = "note"
    trial: int | None = None
    warning: bool = False


_KINDS: dict[str, type[Decision]] = {
    cls.KIND: cls for cls in (Start, Resume, Pause, Stop, Complete, Exploit, Retry, Fail, Cancel, Finish, Note)
}


def from_json(kind: str, data: Mapping[str, Any]) -> Decision:
    """Return the decision that `to_json` wrote under this kind."""
    parts = dict(data)
    if parts.get("failure"):
        parts["failure"] = Failure(**parts["failure"])
    return _KINDS[kind](**parts)
