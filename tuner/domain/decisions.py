"""Define the decisions that a scheduler, a user or the core makes about a trial or an experiment.

Every decision is immutable and contains its reason in words, with the numbers that led to it.

`Decision` is the union of all decisions. Add a new decision to it; mypy then names every `match` that does not handle it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from tuner.domain.events import Failure
from tuner.errors import unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    KIND: ClassVar[str] = "decision"
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the decision as JSON; `from_json` is the inverse."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(_Decision):
    """Start a new trial with the flat `params`, or with the searcher's suggestion if `params` is None."""

    KIND = "start"
    params: Mapping[str, Any] | None = None
    number: int = -1  # set by the core
    state: Mapping[str, Any] = field(default_factory=dict)  # state of the searcher, stored with the trial
    tags: Mapping[str, Any] = field(default_factory=dict)  # state of the scheduler, such as the bracket
    asked: bool = False  # whether a user has enqueued the trial
    checkpoint: str = ""  # id of another trial's checkpoint to start from
    parent: int | None = None  # the number of the trial that saved `checkpoint`
    space_revision: int | None = None  # the revision of the space that `params` are from; None: the present revision
    workers: int | None = None  # for an elastic trial: the ranks of its first segment; None: scaling.num_workers
    repeat_of: int | None = None  # the number of the trial whose configuration is evaluated again
    late: bool = False  # whether a user's trial starts in the time that is reserved for repeats, and may use it


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
    held: bool = False  # the scheduler may not resume the trial: a user paused it, or it waits for `then`
    then: Mapping[str, Any] | None = None  # an Exploit as JSON, to be carried out once the donor's checkpoint is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(_Decision):
    """End the trial early, in state `stopped`."""

    KIND = "stop"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(_Decision):
    """End the trial in state `completed`, because its training is finished."""

    KIND = "complete"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit(_Decision):
    """Continue the trial from the checkpoint of the donor, with a new configuration (flat `params`).

    The donor is usually another trial. A trial that is its own donor changes its configuration.
    """

    KIND = "exploit"
    trial: int
    donor: int
    params: Mapping[str, Any]
    checkpoint: str = ""  # id of the donor's checkpoint, filled in and pinned by the core
    mutations: Mapping[str, Any] = field(default_factory=dict)  # param -> how it was changed, in words
    space_revision: int | None = None  # the revision of the space that `params` are from, filled in by the core
    # True if the trial falls back to its own newest checkpoint, and to the configuration under which it was saved, in case the
    # donor's checkpoint is lost. The core sets it. It is False in logs of older versions: there, the trial started from the
    # beginning.
    goes_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(_Decision):
    """Continue an elastic trial from its own newest checkpoint with another number of ranks."""

    KIND = "resize"
    trial: int
    workers: int  # if fewer are free when the next segment opens, it gets fewer, but at least scaling.num_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(_Decision):
    """Run the trial again from its newest checkpoint, because a segment failed."""

    KIND = "retry"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(_Decision):
    """End the trial in state `failed`. `failure` is the cause, unless an event in the log already contains the cause."""

    KIND = "fail"
    trial: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(_Decision):
    """End the trial in state `cancelled`, because a user cancelled the trial or the whole experiment."""

    KIND = "cancel"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(_Decision):
    """End the search: start no more segments, and end the experiment once no segment runs.

    failed: True if the experiment has failed, False if it has completed.
    fatal: the number of the trial whose failure made the experiment fail, if any. The reason names that failure.
    """

    KIND = "finish"
    failed: bool = False
    fatal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(_Decision):
    """Record a message for users, such as what "auto" chose and why. A note has no effect on the search.

    trial: the number of the trial that the note is about, if any. warning: True if the note names a likely mistake in
        the user's code or settings, so that it is also shown on the page and in the terminal.
    """

    KIND = "note"
    trial: int | None = None
    warning: bool = False


Decision = Start | Resume | Pause | Stop | Complete | Exploit | Resize | Retry | Fail | Cancel | Finish | Note
"""The union of all decisions, for `isinstance` and for `match` statements, each of which ends in `assert_never`."""

_KINDS: dict[str, type[Decision]] = {cls.KIND: cls for cls in get_args(Decision)}


def from_json(kind: str, data: Mapping[str, Any]) -> Decision:
    """Return the decision of this kind from the JSON that its `to_json` returned.

    Raise NewerLog if a newer version of tuner has written it, and this one cannot read it.
    """
    parts = dict(data)
    try:
        if parts.get("failure"):
            parts["failure"] = Failure(**parts["failure"])
        return _KINDS[kind](**parts)
    except (KeyError, TypeError) as error:
        raise unreadable("decision", kind) from error
