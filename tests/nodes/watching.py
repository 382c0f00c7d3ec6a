"""Read the database of the only experiment of a cluster, to see what its search has come to."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests import invariants
from tests.nodes.cluster import Cluster
from tuner.domain import events as e
from tuner.domain.segments import Failure
from tuner.errors import TunerError
from tuner.store import Store
from tuner.store.records import ExperimentRecord, SegmentRecord

DEADLINE_S = 150.0


class Search:
    """Reads the database of the only experiment of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._url = f"sqlite:///{cluster.folder}/tuner/tuner.db"

    def read(self, question: Callable[[Store, ExperimentRecord], Any]) -> Any:
        with Store.open(self._url) as store:
            [experiment] = store.experiments.page().items
            return question(store, experiment)

    def segments(self) -> dict[int, tuple[SegmentRecord, ...]]:
        """Return the segments of each trial."""
        return dict(self.read(lambda store, experiment: store.trials.segments(experiment.id)))

    def ends(self) -> list[e.SegmentEnded]:
        """Return how segments have ended, in order."""
        log = self.read(lambda store, experiment: list(store.drivers.load(experiment.id)))
        return [entry for _, entry in log if isinstance(entry, e.SegmentEnded)]

    def failures(self) -> list[tuple[float, int, Failure]]:
        """Return the time, the trial and the failure of each segment that has failed."""
        return [(end.time, end.trial, end.failure) for end in self.ends() if end.failure is not None]

    def iterations(self) -> list[int]:
        """Return the number of counted reports of each trial."""
        return list(self.read(lambda store, experiment: [t.iteration for t in store.trials.page(experiment.id).items]))

    def trained_on(self, trial: int) -> list[set[str]]:
        """Return the names of the nodes of each segment of a trial."""
        return [{rank["host"] for rank in s.placement.get("ranks", ())} for s in self.segments().get(trial, ())]

    def completes(self, script: subprocess.Popen[str], *, iterations: int = 30) -> None:
        """Wait until the script has ended well, and check all that must hold."""
        assert script.wait(timeout=DEADLINE_S) == 0, self.output()
        with Store.open(self._url) as store:
            invariants.check_all(store, set())
        assert self.read(lambda store, experiment: str(experiment.state)) == "completed"
        assert self.iterations() == [iterations] * len(self.iterations())

    def reports_once(self, iterations: int) -> int:
        """Check that the training which led to each trial's last report has every iteration once. Return how many there are."""
        log = self.read(lambda store, experiment: [entry for _, entry in store.drivers.load(experiment.id)])
        reports: dict[tuple[int, int], list[int]] = {}
        for entry in log:
            if isinstance(entry, e.Reported):
                reports.setdefault((entry.ref.trial, entry.ref.ordinal), []).append(entry.iteration)
        count = 0
        for trial, segments in self.segments().items():
            led: list[int] = []
            for segment in segments:
                led = [i for i in led if i <= segment.start_iteration] + reports.get((trial, segment.ordinal), [])
            assert led == list(range(1, iterations + 1)), (trial, led)
            count += len(led)
        return count

    def output(self) -> str:
        return self.cluster.output.read_text()[-4000:]


def until(what: str, happened: Callable[[], Any], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := happened():
                return found
        except (TunerError, ValueError):  # the script has not made the database or the experiment yet
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def training(search: Search, trials: int = 2, iterations: int = 3) -> None:
    """Wait until each trial has made some reports."""
    counts = search.iterations
    until("reports", lambda: len(counts()) == trials and min(counts()) >= iterations)
