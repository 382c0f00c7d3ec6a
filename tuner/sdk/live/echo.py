"""Show the output of the ranks soon after it is printed, each line with its trial and rank."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tuner.store import Store

LATE_S = 30.0
"""The seconds for which a log is still read after its segment has ended: its last lines may arrive late from other nodes."""
_Key = tuple[int, int, int]  # trial, segment, rank


class Echo:
    """Follows the logs of an experiment's ranks on all nodes, and skips what was printed before.

    A progress bar overwrites its line. Only the last state of such a line is shown, once the line is complete.
    """

    def __init__(self, store: Store, experiment: int) -> None:
        self._store, self._experiment = store, experiment
        self._ends: dict[_Key, int] = store.logs.ends(experiment)
        self._unfinished: dict[_Key, str] = {}

    def lines(self) -> Iterator[str]:
        """Yield ``(trial 3, rank 0) text`` for every line that was completed since the last call."""
        for log in self._store.logs.recent(self._experiment, time.time() - LATE_S, self._ends):
            key = log.trial, log.segment, log.rank
            self._ends[key] = log.end
            *finished, rest = (self._unfinished.pop(key, "") + log.text).split("\n")
            if log.complete and rest:
                finished.append(rest)
            elif rest:
                self._unfinished[key] = rest
            for line in finished:
                shown = line.rstrip("\r").rpartition("\r")[2]
                yield f"(trial {log.trial}, rank {log.rank}) {shown}"
