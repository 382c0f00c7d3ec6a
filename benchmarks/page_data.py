"""Create large experiments through the store, as a driver commits them, and start the service in a separate process."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import random
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Complete, Start
from tuner.domain.events import Reported, SegmentStarted
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.domain.trial import Segment, Trial
from tuner.store import ExperimentRecord, Store

SPACE = {
    "lr": {"type": "loguniform", "lower": 1e-5, "upper": 1.0},
    "width": {"type": "randint", "lower": 8, "upper": 512},
    "optimizer": {"type": "choice", "categories": ["adam", "sgd", "lion"]},
}


class Writer:
    """A driver that only writes."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        spec = Spec(name=name, space=SPACE, objectives=(Objective("accuracy", "max"),), entrypoint="module:train")
        self.record = store.experiments.create(spec)
        self.epoch = store.drivers.claim(self.record.id, "benchmark", 1e6, time.time())
        self.seq = 0
        self.random = random.Random(name)
        self.commit([], [], ExperimentState.RUNNING)

    def commit(self, what: list[Any], trials: list[Trial], state: ExperimentState | None = None, **counts: int) -> None:
        log: list[Entry] = [(self.seq + n, entry) for n, entry in enumerate(what, 1)]
        self.seq += len(what)
        summary = {"counts": counts} if counts else {}
        self.store.drivers.commit(
            self.record.id, self.epoch, Batch(log=log, trials=trials, state=state, summary=summary), time.time()
        )

    def start(self, number: int) -> Trial:
        params = {
            "lr": 10 ** self.random.uniform(-5, 0),
            "width": self.random.randrange(8, 512),
            "optimizer": self.random.choice(["adam", "sgd", "lion"]),
        }
        trial = Trial(number, params, TrialState.RUNNING, created_at=time.time(), started_at=time.time())
        trial.segments.append(Segment(1, "start", params, 0, None, started_at=time.time()))
        return trial

    def reports(self, trial: Trial, count: int, value: float | None = None) -> list[Reported]:
        """Return a noisy curve that rises towards a limit set by the parameters, or a constant curve."""
        fixed = value
        limit = 0.9 - 0.1 * abs(math.log10(trial.params["lr"]) + 3) + trial.params["width"] / 5120
        found = []
        for _ in range(count):
            trial.iteration += 1
            trial.segments[0].report_no = trial.iteration
            value = (
                limit * (1 - math.exp(-trial.iteration / 500)) + self.random.gauss(0, 0.01) if fixed is None else fixed
            )
            trial.last = {"accuracy": value}
            trial.last_value, trial.reports = value, trial.iteration
            if trial.best_value is None or value > trial.best_value:
                trial.best_value, trial.best_iteration = value, trial.iteration
            report = Reported(time=time.time(), trial=trial.number, segment=1, report_no=trial.iteration,
                              iteration=trial.iteration, metrics={"accuracy": value})  # fmt: skip
            found.append(report)
        return found

    def end(self, trial: Trial) -> Complete:
        trial.state, trial.reason, trial.ended_at = TrialState.COMPLETED, "reached max_t", time.time()
        trial.segments[0].ended_at, trial.segments[0].state = time.time(), SegmentState.RETURNED
        return Complete(reason=trial.reason, trial=trial.number)


def make(store: Store, name: str, trials: int, reports: int) -> ExperimentRecord:
    """Return an experiment whose trials have all ended. Create it, unless an earlier run did."""
    if found := store.experiments.named(name):
        return found[0]
    writer = Writer(store, name)
    at_once = max(1, min(trials, 5000 // reports))
    for first in range(0, trials, at_once):
        batch = [writer.start(number) for number in range(first, min(first + at_once, trials))]
        log: list[Any] = []
        for trial in batch:
            log.append(
                Start(reason="the limit on concurrent trials allows one more", number=trial.number, params=trial.params)
            )
            log.append(SegmentStarted(time=time.time(), trial=trial.number, segment=1))
        writer.commit(log, batch)
        for begin in range(0, reports, 2500):
            writer.commit([r for t in batch for r in writer.reports(t, min(2500, reports - begin))], batch)
        writer.commit([writer.end(trial) for trial in batch], batch)
    writer.commit([], [], ExperimentState.COMPLETED, completed=trials)
    return store.experiments.get(writer.record.public_id)


def serve(url: str, home: str, listening: socket.socket) -> None:
    from tuner.api import create_app
    from tuner.api.server import Server
    from tuner.settings import Settings

    with Store.open(url) as store:
        Server(create_app(Settings(home=Path(home)), store), log_level="warning").run(sockets=[listening])


class Service:
    """The API in a separate process."""

    def __init__(self, url: str, home: str) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(url, home, listening), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=300)
        while True:
            with contextlib.suppress(httpx.TransportError):
                self.client.get("/healthz")
                break
            time.sleep(0.05)
        self.process = psutil.Process(self._process.pid)

    def memory_mb(self) -> float:
        return float(self.process.memory_full_info().uss) / 2**20

    def cpu_s(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def live_trials(store: Store, trials: int, reports: int) -> tuple[Writer, list[Trial]]:
    """Return a writer with this many running trials, each with this many reports."""
    writer = Writer(store, f"live page {time.time()}")
    running = [writer.start(number) for number in range(trials)]
    log: list[Any] = []
    for trial in running:
        log.append(
            Start(reason="the limit on concurrent trials allows one more", number=trial.number, params=trial.params)
        )
        log.append(SegmentStarted(time=time.time(), trial=trial.number, segment=1))
    writer.commit(log, running, running=trials)
    for first in range(0, trials, 20):
        part = running[first : first + 20]
        writer.commit([report for trial in part for report in writer.reports(trial, reports)], part)
    return writer, running


def show(benchmark: str, **row: Any) -> None:
    shown = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps({"benchmark": f"page_scale {benchmark}", **shown}), flush=True)
