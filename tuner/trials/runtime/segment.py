"""Run one segment on one rank: call the training function, and end it in time."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import Verdict
from tuner.errors import ReportsLost
from tuner.trials.checkpoints.saver import Saver
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.protocol import RankError, RankResult
from tuner.trials.runtime.errors import describe, not_saved
from tuner.trials.runtime.function.calling import call
from tuner.trials.runtime.measures.process_stats import cpu_s
from tuner.trials.runtime.sending.logs import Capture
from tuner.trials.runtime.sending.outbox import Outbox
from tuner.trials.runtime.sending.uploads import Uploads
from tuner.trials.training.script import ScriptFailed
from tuner.trials.training.session import LeaveTrial, Session

TAIL = 50
"""The number of log lines that come with an error."""


@dataclass(slots=True, eq=False)
class Segment:
    """The state of one segment on one rank."""

    launch: Launch
    session: Session
    saver: Saver
    outbox: Outbox | None
    capture: Capture
    function: Callable[[Any], Any]
    config: dict[str, Any]
    uploading: list[CheckpointInfo] = field(default_factory=list)
    cpu_s_before: float = field(default_factory=cpu_s)
    thread: threading.Thread | None = None
    overstay: threading.Timer | None = None
    result: RankResult | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    ending: threading.Lock = field(default_factory=threading.Lock)

    def end(self, result: RankResult) -> None:
        """Set the result of the segment, unless it is already set."""
        with self.ending:
            if self.result is None:
                self.result = result
                self.ended.set()

    def run(self, uploads: Uploads, may_continue: Callable[[], bool]) -> RankResult:
        """Run the training function, save its last checkpoints, and send its last reports. Return how it ended.

        Args:
            uploads: takes the uploads that may continue after the segment.
            may_continue: called once the function has ended; returns whether uploads may continue.
        """
        running = self.session
        error: RankError | None = None
        try:
            with _children_exit():
                call(self.function, self.config, running, self.launch)
            running.finish()
        except LeaveTrial as leave:
            if leave is not running.left:
                raise
        except BaseException as raised:
            if running.left is None:
                error = describe(raised, self.capture.tail(TAIL))
                if not isinstance(raised, ScriptFailed):  # what a script wrote to stderr is already in the log
                    with contextlib.suppress(Exception):  # the function may have closed or replaced the stream
                        sys.stderr.write(error.traceback)
        if self.overstay is not None:
            self.overstay.cancel()
        running.saving = True
        try:
            if error is not None:
                self.saver.fail()
                self.uploading = uploads.leave_failed(self.saver, may_continue())
            else:
                self.uploading = uploads.leave(self.saver, may_continue())
        except Exception as raised:
            error = error or not_saved(raised)
        if self.outbox is not None:
            try:
                self.outbox.close()
            except ReportsLost as raised:
                error = error or describe(raised, "")
                self.uploading = []  # the driver lacks the reports of these checkpoints
        if error is not None:
            return RankResult(kind="failed", reports=running.count, error=error, uploading=self.uploading)
        kind: Literal["left", "returned"] = "left" if running.left is not None else "returned"
        return RankResult(
            kind=kind,
            reports=running.count,
            as_value=running.as_value,
            warning=running.warning,
            uploading=self.uploading,
        )

    def expect_end(self, verdict: Verdict, overstays: Callable[[str], None]) -> None:
        """Fail the segment if the training function does not end within `stop_grace_s` seconds after a verdict to leave.

        The grace period gives the function time to run its `finally` blocks. overstays: called with a message if it overstays.
        """
        grace = self.launch.limits.stop_grace_s
        self.saver.patience_s = grace

        def overstayed() -> None:
            message = f"did not end within {grace:g} s of being told to {verdict.action}"
            overstays(message)
            error = RankError(type="", message=message, cause="stop_ignored", log_tail=self.capture.tail(TAIL))
            self.end(RankResult(kind="failed", reports=self.session.count, error=error))

        self.overstay = threading.Timer(grace, overstayed)
        self.overstay.name = "tuner-overstay"
        self.overstay.daemon = True
        self.overstay.start()


@contextlib.contextmanager
def _children_exit() -> Iterator[None]:
    """End the child processes that the `with` block forks and leaves, which must not end the segment of their parent.

    They exit as Python would: with status 0, with that of SystemExit, or with 1 after another error, which is printed.
    """
    owner = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != owner:
            _exit(error)
        raise
    if os.getpid() != owner:
        _exit(None)


def _exit(error: BaseException | None) -> NoReturn:
    status = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif error is not None:
        status = 1
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)
