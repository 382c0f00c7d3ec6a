"""Define the decisions that a scheduler, a user or the core makes about a trial or an experiment.

Every decision is a value and contains its reason in words, with the numbers from which it was made.

`Decision` is the union of all decisions. Add a new decision to it; mypy then names every `match` that does not handle it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from tuner.domain.events import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    KIND: ClassVar[str] = "decision"
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON; `from_json` reads them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(_Decision):
    """Start a new trial with these flat `params`, or, if they are None, with those that the searcher suggests."""

    KIND = "start"
    params: Mapping[str, Any] | None = None
    number: int = -1  # set by the core
    state: Mapping[str, Any] = field(default_factory=dict)  # state of the searcher, stored with the trial
    tags: Mapping[str, Any] = field(default_factory=dict)  # state of the scheduler, such as the bracket
    asked: bool = False  # whether a user has enqueued the trial
    checkpoint: str = ""  # id of another trial's checkpoint to start from
    parent: int | None = None  # the number of the trial that saved `checkpoint`
    space_revision: int | None = None  # the revision of the space of `params`; None: the present revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(_Decision):
    """Continue a paused trial from its newest checkpoint, or from the beginning if it has none."""

    KIND = "resume"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(_Decision):
    """End the trial's segment and free its worker group. The trial can be resumed."""

    KIND = "pause"
    trial: int
    held: bool = False  # the scheduler may not resume it: a user paused it, or it waits for `then`
    then: Mapping[str, Any] | None = None  # an Exploit as JSON, to be carried out once the donor's checkpoint is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(_Decision):
    """End the trial early: it becomes `stopped`."""

    KIND = "stop"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(_Decision):
    """End the trial because it has reached its end: it becomes `completed`."""

    KIND = "complete"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit(_Decision):
    """Continue the trial from the donor's checkpoint with a new configuration, given as flat params."""

    KIND = "exploit"
    trial: int
    donor: int
    params: Mapping[str, Any]
    checkpoint: str = ""  # id of the donor's checkpoint, filled in and pinned by the core
    mutations: Mapping[str, Any] = field(default_factory=dict)  # param -> how it was changed, in words
    space_revision: int | None = None  # the revision of the space of `params`, filled in by the core


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(_Decision):
    """Run the trial again from its newest checkpoint, because a segment failed."""

    KIND = "retry"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(_Decision):
    """Give up the trial: it becomes `failed`. `failure`: the cause, if no event contains it."""

    KIND = "fail"
    trial: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(_Decision):
    """Cancel the trial, because a user cancelled it or its experiment."""

    KIND = "cancel"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(_Decision):
    """End the search: start no more segments, and end the experiment once no segment runs."""

    KIND = "finish"
    failed: bool = False  # True if the experiment has failed, False if it has completed


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(_Decision):
    """Record a text for people, such as what "auto" chose and why. It changes nothing.

    trial: the trial that the note is about, if any. warning: True if the note names a likely mistake in the user's code
        or settings, so that it is also shown on the page and in the terminal.
    """

    KIND = "note"
    trial: int | None = None
    warning: bool = False


Decision = Start | Resume | Pause | Stop | Complete | Exploit | Retry | Fail | Cancel | Finish | Note
"""Any decision. It works with `isinstance`, and a `match` over it ends in `assert_never`."""

_KINDS: dict[str, type[Decision]] = {cls.KIND: cls for cls in get_args(Decision)}


def from_json(kind: str, data: Mapping[str, Any]) -> Decision:
    """Return the decision that `to_json` wrote under this kind."""
    parts = dict(data)
    if parts.get("failure"):
        parts["failure"] = Failure(**parts["failure"])
    return _KINDS[kind](**parts)
