"""Write the log of the driver host to a file for each experiment, next to the log files of its ranks.

The file has the host's own messages about the experiment, such as what a segment waits for, where it runs and how it
ended. It also has everything that `tuner`'s modules log about the experiment in this process. A message about the cluster, for
instance that a node is gone, goes into the files of all experiments that are driven at that time. Any other message
that names no experiment goes into none, because it may be about an experiment of another project.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from tuner.experiment.logs import driver_log_path
from tuner.telemetry import log_format

log = logging.getLogger(__name__)

NAME = "tuner"
"""The logger whose messages are written, with all loggers below it."""
CLUSTER = ("tuner.trials.groups.cluster",)
"""Loggers that write about nodes and never about an experiment. This includes all loggers below them."""


class _File(RotatingFileHandler):
    """The log file of an experiment.

    Args:
        path: the file. Its directory is created.
        limit: the size in bytes at which the file is rotated. One older file of that size is kept.
        failed: called with the error when a line cannot be written. The line is lost.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int, failed: Callable[[BaseException | None], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=limit, backupCount=1, encoding="utf-8", errors="backslashreplace")
        self._failed = failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name comes from logging)
        """Tell the owner that a line could not be written, instead of printing a traceback for each line."""
        self._failed(sys.exception())

    def close(self) -> None:
        """Close the file. Lines that a full disk did not take are lost."""
        with contextlib.suppress(OSError):
            super().close()


class DriverLogs(logging.Handler):
    """The log files of the experiments that a host drives. The methods may be called from any thread.

    Args:
        home: the directory of the installation.
        limit: the maximum size of an experiment's log, in bytes. If it is exceeded, the older half is dropped.
        own_process: True if the host has a process of its own. Then `tuner`'s modules log at level INFO and above; in a
            script, the level that the script has set applies.
    """

    def __init__(self, home: Path, limit: int, own_process: bool) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(log_format.TEXT))
        self._home, self._limit, self._own_process = home, limit, own_process
        self._files: dict[str, RotatingFileHandler] = {}
        self._opening = threading.Lock()
        self._warned = False

    def begin(self, experiment: str) -> None:
        """Open the log of an experiment, given its public id. New lines are appended to those that are there.

        If that fails, for instance because the disk is full, the experiment is driven without a log.
        """
        try:
            file = _File(driver_log_path(self._home, experiment), self._limit // 2, self._failed)
        except OSError as error:
            self._failed(error)
            return
        with self._opening:
            self._files[experiment] = file
            logger = logging.getLogger(NAME)
            if self._own_process and not logger.isEnabledFor(logging.INFO):
                logger.setLevel(logging.INFO)
            logger.addHandler(self)

    def end(self, experiment: str) -> None:
        """Close the log of an experiment."""
        with self._opening:
            file = self._files.pop(experiment, None)
            if not self._files:
                logging.getLogger(NAME).removeHandler(self)
        if file is not None:
            file.close()

    def _failed(self, error: BaseException | None) -> None:
        """Warn once that a log cannot be written. The cause is likely to be the same for all later lines."""
        if not self._warned:
            self._warned = True
            log.warning("the driver's logs in %s are not complete: %s", self._home / "logs", error)

    def say(self, experiment: str, message: str, *args: object) -> None:
        """Write a message of the host itself, regardless of the loggers' levels."""
        with self._opening:
            is_open = experiment in self._files
        if is_open:
            with log_format.about(experiment=experiment):
                self.handle(logging.LogRecord("tuner.driver", logging.INFO, "", 0, message, args, None))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the log of the experiment that it is about, or to all logs if it is about the cluster.

        Python prints warnings to stderr if their logger has no handler. This handler must not change that.
        """
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record.name):
            last.handle(record)
        about = log_format.ids().get("experiment")
        if about is not None:
            files = [file for name, file in list(self._files.items()) if name == about]
        else:
            files = list(self._files.values()) if _is_below(record.name, CLUSTER) else []
        if not files:
            return
        try:
            line = log_format.without_secrets(self.format(record))
            for file in files:
                file.emit(logging.makeLogRecord({"msg": line, "levelno": record.levelno}))
        except Exception:
            self.handleError(record)

    def _is_alone(self, name: str) -> bool:
        """Return whether only hosts have added handlers to a logger, and this handler is the first of them."""
        logger: logging.Logger | None = logging.getLogger(name)
        found: list[logging.Handler] = []
        while logger is not None:
            found += logger.handlers
            logger = logger.parent if logger.propagate else None
        return found[:1] == [self] and all(isinstance(handler, DriverLogs) for handler in found)


def _is_below(name: str, loggers: Sequence[str]) -> bool:
    return any(name == logger or name.startswith(f"{logger}.") for logger in loggers)
