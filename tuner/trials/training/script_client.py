"""`tuner.report` and related functions in a script that runs as a trial: they call the rank that started the script."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client
from typing import Any

from tuner.domain.segments import IN_SAVE
from tuner.errors import WrongArgument, text_of
from tuner.trials.checkpoints.checkpoints import Checkpoint, Source
from tuner.trials.training.metrics import MetricWarnings, flatten

FOLDER = "_TUNER_SCRIPT"
"""The environment variable that names the folder with the rank's socket."""

SOCKET = "socket"
IMPORTED = "imported"
"""A file that `import tuner` creates beside the socket. No metrics are read from the output of such a script."""


class ScriptClient:
    """Takes the place of a trial's `Session` in a script's process. It has the methods that user code calls."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self._connection = Client(os.path.join(folder, SOCKET), family="AF_UNIX")
        self._asking = threading.RLock()
        self._left: SystemExit | None = None
        self._save: Callable[[str], Any] | None = None  # the newest callable that was passed as a checkpoint
        self._error: BaseException | None = None
        self.context, objective = self._ask("hello")
        self._warnings = MetricWarnings(objective)
        atexit.register(self._end)

    @property
    def checkpoint(self) -> Checkpoint | None:
        found: Checkpoint | None = self._ask("checkpoint")
        return found

    def should_checkpoint(self) -> bool:
        return bool(self._ask("should_checkpoint"))

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None, checkpoint: Source | None = None) -> None:
        values = flatten(metrics, self._warnings)
        if isinstance(checkpoint, Checkpoint):
            with checkpoint.as_directory() as folder:
                self._ask("report", values, step, os.path.abspath(folder), False)
            return
        if callable(checkpoint):
            self._save = checkpoint
        where = os.path.abspath(checkpoint) if checkpoint is not None and not callable(checkpoint) else None
        self._ask("report", values, step, where, callable(checkpoint))

    def _ask(self, *request: Any) -> Any:
        """Send a request to the rank, and return the answer. Raise SystemExit if the trial must end.

        Before the rank answers, it may request a checkpoint. In this case, fill the directory that it names.
        """
        if self._left is not None:
            raise self._left
        with self._asking:
            self._connection.send(request)
            while True:
                kind, answer = self._connection.recv()
                if kind == "save":
                    self._connection.send(self._fill(answer))
                    continue
                if kind == "leave":
                    self._left = SystemExit(0)
                    raise self._left
                if kind != "error":
                    return answer
                error, self._error = self._error, None
                name, text = answer
                raise error or {"WrongArgument": WrongArgument, "ValueError": ValueError, "TypeError": TypeError}.get(
                    name, RuntimeError
                )(text)

    def _fill(self, folder: str) -> str | None:
        """Let the newest callable save a checkpoint to a folder. Return the text of its error, or None if it succeeds."""
        try:
            assert self._save is not None
            self._save(folder)
        except BaseException as error:
            error.add_note(IN_SAVE)  # Python prints it below the traceback, where the driver looks for it
            self._error = error
            return f"{type(error).__name__}: {text_of(error)}"
        return None

    def _end(self) -> None:
        """Tell the rank that the script is exiting, so that a last checkpoint can be saved. Do nothing after an error.

        Do nothing either if this process has passed no function that saves a checkpoint: it may be a child process of the
        script, which continues.
        """
        if self._left is None and self._save is not None and self.pid == os.getpid() and not hasattr(sys, "last_value"):
            with contextlib.suppress(OSError, EOFError):
                self._ask("end")


_client: ScriptClient | None = None
_connecting = threading.Lock()


def connected() -> ScriptClient | None:
    """Return the client for the rank that started this script, or None if this is not a script that runs as a trial."""
    global _client
    if FOLDER not in os.environ:
        return None
    with _connecting:
        if _client is None or _client.pid != os.getpid():
            _client = ScriptClient(os.environ[FOLDER])
        return _client
