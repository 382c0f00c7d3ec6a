"""Measure where the time of a verdict goes. Prints one JSON line.

    python -m benchmarks.verdict_phases [--milestones 1000]

A trial of the local executor reports at milestones. Its driver host runs in a thread of this process, with the same sockets, loop
and store as a host on Ray, so this program can note when a report passes from one part to the next. The clock is the same in both
processes. Each figure is the median of a phase, in microseconds; a phase begins where the previous one ends. `sum` is the median
of the whole. Noting costs about a microsecond for each phase.

There are two floors, measured in the same run: a round trip over a raw socket plus a commit of one row (`over_raw`), or plus the
statements of "SQL" and "COMMIT" in bare sqlite3 (`over_raw_transaction`).
"""

from __future__ import annotations

import argparse
import functools
import inspect
import itertools
import json
import os
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks import peers
from benchmarks.report_trial import search
from benchmarks.verdict_floor import transaction_s

PHASES = (
    "make the report",  # the rank: flatten the metrics, pickle
    "to the driver",  # through the socket, until the host's event loop has read and unpickled it
    "make the event",
    "wake the loop of the experiment",
    "fold and decide",
    "make the batch",
    "wake the writer thread",
    "SQL",
    "COMMIT",
    "wake the loop again",
    "answer",  # the verdict, the next milestone, and the task that serves the socket
    "to the rank",
    "return",
)
MARKS: list[tuple[float, str]] = []


def mark(name: str) -> None:
    MARKS.append((time.perf_counter(), name))


def noted(owner: type, name: str, before: str | None = None, after: str | None = None) -> None:
    """Make a method note when it begins and when it returns."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def plain(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            mark(before)
        found = real(*args, **kwargs)
        if after is not None:
            mark(after)
        return found

    @functools.wraps(real)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            mark(before)
        found = await real(*args, **kwargs)
        if after is not None:
            mark(after)
        return found

    setattr(owner, name, awaited if inspect.iscoroutinefunction(real) else plain)


def watch_driver() -> None:
    """Note when a report passes each of the driver's parts."""
    from tuner.driver.loop import ExperimentLoop
    from tuner.hosts.writer import Writer as WriterThread
    from tuner.store.writing.writer import Writer
    from tuner.trials.messages.report_socket import ReportServer

    noted(ReportServer, "_answer", "received", "answered")
    noted(ExperimentLoop, "put", after="queued")
    noted(ExperimentLoop, "_take", after="taken")
    noted(ExperimentLoop, "_fold", after="folded")
    noted(ExperimentLoop, "_commit", before="batched", after="committed")
    noted(WriterThread, "_timed", before="writing", after="written")
    noted(Writer, "write", after="executed")


def trial(config: dict[str, Any]) -> None:
    """Report at milestones, and note when each report is made, sent and answered. Write the times to a file."""
    import tuner
    from tuner.trials.messages.channel import Link

    sent: list[float] = []
    answered: list[float] = []
    send, receive = Link.send, Link.receive

    def sending(self: Link, message: Any) -> None:
        sent.append(time.perf_counter())
        send(self, message)

    def receiving(self: Link, timeout: float | None = None) -> Any:
        found = receive(self, timeout)
        answered.append(time.perf_counter())
        return found

    made, returned = [], []
    Link.send, Link.receive = sending, receiving  # type: ignore[method-assign]
    try:
        for step in range(config["reports"]):
            until = time.perf_counter() + 0.0005
            while time.perf_counter() < until:
                pass
            made.append(time.perf_counter())
            tuner.report({"loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.1, "norm": 2.0, "epoch": step})
            returned.append(time.perf_counter())
    finally:
        Link.send, Link.receive = send, receive  # type: ignore[method-assign]
    Path(config["out"]).write_text(json.dumps([made, sent, answered, returned]))


def phases(times: list[list[float]]) -> list[list[float]]:
    """Return the lengths of the phases of each report whose marks are complete."""
    wanted = (
        "received",
        "queued",
        "taken",
        "folded",
        "batched",
        "writing",
        "executed",
        "written",
        "committed",
        "answered",
    )
    MARKS.sort()
    found = []
    made, sent, answered, returned = times
    for begun, end in zip(made, returned, strict=True):
        out, back = sent[bisect_left(sent, begun)], answered[bisect_left(answered, begun)]
        inside = MARKS[bisect_left(MARKS, (begun, "")) : bisect_left(MARKS, (end, ""))]
        at: dict[str, float] = {}
        for time_, name in inside:
            at.setdefault(name, time_)
        if back > end or not all(name in at for name in wanted):
            continue
        whole = [begun, out, *(at[name] for name in wanted), back, end]
        if whole == sorted(whole):
            found.append([later - earlier for earlier, later in itertools.pairwise(whole)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milestones", type=int, default=1000)
    count = parser.parse_args().milestones
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNER_HOME"] = home
        watch_driver()
        out = os.path.join(home, "times.json")
        search(trial, {"reports": count, "out": out}, "local")
        found = phases(json.loads(Path(out).read_text()))
    raw = peers.measure("socket_reports", repeats=count)
    transaction = transaction_s(count)
    floor: Callable[[str], float] = lambda name: round(raw[name] * 1e6, 1)  # noqa: E731
    whole = statistics.median(map(sum, found)) * 1e6
    row = {
        "benchmark": "verdict_phases",
        "reports": len(found),
        "us": {
            name: round(statistics.median(took) * 1e6, 1)
            for name, took in zip(PHASES, zip(*found, strict=True), strict=True)
        },
        "sum_us": round(whole, 1),
        "raw_round_trip_us": floor("round_trip_s"),
        "raw_commit_us": floor("commit_s"),
        "raw_transaction_us": round(transaction * 1e6, 1),
        "over_raw": round(whole / (sum(raw.values()) * 1e6), 2),
        "over_raw_transaction": round(whole / ((raw["round_trip_s"] + transaction) * 1e6), 2),
        "load": psutil.getloadavg()[0],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
