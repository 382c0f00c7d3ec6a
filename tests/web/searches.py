"""Searches to show: the core and the store are real, and the training is a formula in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Decision, Exploit, Resume, Retry, Start
from tuner.domain.events import CheckpointInfo, Event, Failure
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.keys import checkpoint_id, keyed_random, segment_id
from tuner.domain.logs import LogChunk
from tuner.domain.segments import SegmentRef
from tuner.driver.assemble import assemble
from tuner.driver.commands import as_event
from tuner.driver.core import Core
from tuner.driver.core.actions import Fit, Interrupt, RunSegment
from tuner.space import Space
from tuner.store import ExperimentRecord, Store, UsageSample

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 41, in train
    loss = step(model, batch)
  File "train.py", line 18, in step
    logits = model(images)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)
"""
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)"

RUNS = (Start, Resume, Retry, Exploit)  # carried out when the trial runs

Curve = Callable[[int, int, Mapping[str, Any], int], Mapping[str, float] | None]
"""(trial number, ordinal of its segment, params, iteration) -> metrics, or None where rank 1 raises."""


def learning(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float] | None:
    """Return an accuracy, which rises to a maximum that depends on the configuration, and a loss.

    If the learning rate is too high, they are NaN and infinity. Return None where trial 2 fails once, and trial 4 always.
    """
    if (number == 2 and ordinal == 1 and iteration == 5) or (number == 4 and iteration == 4):
        return None
    rate, width = float(params["lr"]), int(params["width"])
    noise = keyed_random(1, "noise", number, iteration).gauss(0.0, 0.004)
    top = 0.97 - 0.05 * abs(math.log10(rate) + 2.2) ** 1.6 - 0.6 / width
    accuracy = top - (top - 0.1) * math.exp(-0.45 * iteration * (rate / 0.006) ** 0.4) + noise
    if rate > 0.09:
        return {"accuracy": math.nan, "loss": math.inf}
    return {"accuracy": accuracy, "loss": -math.log(max(accuracy, 1e-3))}


def digits(name: str = "digits", trials: int = 27, **fields: Any) -> Spec:
    """Return a search by ASHA over two parameters."""
    parts: dict[str, Any] = {
        "space": {
            "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
            "width": {"type": "choice", "categories": [16, 32, 64]},
        },
        "entrypoint": "tuner.examples.digits:train",
        "num_samples": trials,
        "seed": 3,
        "search": {"type": "random"},
        "scheduler": {"type": "asha", "max_t": 27, "grace_period": 1, "reduction_factor": 3},
        "limits": Limits(max_concurrent_trials=4, max_failures=1),
        **fields,
    }
    return Spec(name=name, **{"objectives": (Objective("accuracy", "max"),), **parts})


class Search:
    """One experiment, advanced event by event. Its time runs from `start` on and need not be now."""

    def __init__(
        self,
        store: Store,
        spec: Spec,
        *,
        start: float,
        curve: Curve = learning,
        seconds: float = 2.0,
        record: ExperimentRecord | None = None,
        core: Core | None = None,
        saves: bool = True,
    ) -> None:
        self.saves = saves  # whether each report has a checkpoint
        self.store, self.curve, self.seconds, self.now = store, curve, seconds, start
        record = record or store.experiments.create(spec, now=start - 1.0)
        self.id, self.public_id = record.id, record.public_id
        self.core = core or assemble(spec, Space.from_json(spec.space))
        self.epoch = store.drivers.claim(self.id, "test", 1e6, start)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._log: list[Entry] = []
        self._touched: dict[int, None] = {}
        self._started: list[int] = []
        self._best: dict[int, dict[str, float]] = {}
        self._reports: dict[tuple[int, int], int] = {}
        self._feed(e.DriverStarted(time=start, epoch=self.epoch))
        self.commit()

    @property
    def reports(self) -> int:
        return sum(self._reports.values())

    def advance(self, events: int | None = None, *, at_once: int = 1) -> None:
        """Run this many events, or all that are left, `at_once` of them in one transaction."""
        for count in itertools.count(1) if events is None else range(1, events + 1):
            if not self._heap or self.core.ended:
                break
            self.now, _, what = heapq.heappop(self._heap)
            what()
            if count % at_once == 0:
                self.commit()
        self.commit()

    def obey(self) -> None:
        """Do what users have asked for."""
        for command in self.store.commands.pending([self.id]):
            self._feed(replace(as_event(command), time=self.now))
            self.commit(commands=[command.id])

    def commit(self, commands: list[int] | None = None) -> None:
        if not self._log and not commands:
            return
        decided = [seq for seq, entry in self._log if isinstance(entry, Decision) and not isinstance(entry, RUNS)]
        batch = Batch(
            log=self._log,
            trials=[self.core.trials[number] for number in self._touched],
            state=self.core.state,
            summary=self.core.summary(),
            carried_out=decided + self._started,
            best=self._best if self.core.experiment.leaderboard.tells_best else None,
            commands=commands or [],
        )
        self.store.drivers.commit(self.id, self.epoch, batch, self.now)
        self._log, self._touched, self._started, self._best = [], {}, [], {}

    def _feed(self, event: Event) -> None:
        out = self.core.handle(event)
        self._log += out.log
        self._touched |= out.touched
        self._best |= out.best
        for action in out.actions:
            match action:
                case RunSegment(segment=(number, ordinal), decision_seq=seq):
                    self._at(0.4 * self.seconds, lambda n=number, o=ordinal, s=seq: self._start(n, o, s))
                case Interrupt(segment=(number, ordinal)):
                    self._at(0.0, lambda n=number, o=ordinal: self._leave(n, o))
                case Fit(payload=payload):
                    fitted = self.core.scheduler.fit(payload)
                    self._at(0.1, lambda f=fitted: self._feed(e.ModelFitted(time=self.now, payload=f)))
                case _:
                    pass  # checkpoints of a formula take no room

    def _at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), what))

    def _open(self, number: int, ordinal: int) -> bool:
        segment = self.core.trials[number].segment
        return segment is not None and segment.ordinal == ordinal and segment.open

    def _start(self, number: int, ordinal: int, decision: int) -> None:
        self._started.append(decision)
        if not self._open(number, ordinal):
            return
        hosts = ["10.0.0.4", "10.0.0.5"]
        placement = {
            "ranks": [{"rank": r, "node": "", "host": h, "pid": 4711, "gpus": []} for r, h in enumerate(hosts)]
        }
        self._feed(
            e.SegmentStarted(
                time=self.now, trial=number, segment=ordinal, placement=placement, startup_s=1.3, warm=number > 3
            )
        )
        self.core.first_milestone(SegmentRef(number, ordinal))
        self._next(number, ordinal)

    def _next(self, number: int, ordinal: int) -> None:
        pace = 0.5 + keyed_random(2, "pace", number).random()
        self._at(self.seconds * pace, lambda: self._report(number, ordinal))

    def _report(self, number: int, ordinal: int) -> None:
        if not self._open(number, ordinal):
            return
        trial = self.core.trials[number]
        segment = trial.segments[-1]
        count = self._reports.get((number, ordinal), 0) + 1
        iteration = segment.start_iteration + count
        metrics = self.curve(number, ordinal, trial.params, iteration)
        if metrics is None:
            self._fail(number, ordinal)
            return
        self._reports[number, ordinal] = count
        name = checkpoint_id(segment_id(self.public_id, number, ordinal), count)
        saved = CheckpointInfo(id=name, uri=f"/data/{name}", step=iteration, bytes=2_400_000)
        self._feed(
            e.Reported(
                time=self.now,
                trial=number,
                segment=ordinal,
                report_no=count,
                iteration=iteration,
                metrics=metrics,
                checkpoint=saved if self.saves else None,
            )
        )
        if self.core.verdict(SegmentRef(number, ordinal)).action == "continue":
            self._next(number, ordinal)
        else:
            self._leave(number, ordinal)

    def _fail(self, number: int, ordinal: int) -> None:
        failure = Failure(
            kind="user",
            cause="exception",
            message=SHAPES,
            rank=1,
            node="10.0.0.5",
            pid=4711,
            traceback=TRACEBACK,
            log_tail="epoch 1 loss 2.31\nepoch 2 loss 1.98\n",
        )
        self._feed(e.SegmentEnded(time=self.now, trial=number, segment=ordinal, outcome="failed", failure=failure))

    def _leave(self, number: int, ordinal: int) -> None:
        if self._open(number, ordinal):
            self._feed(e.SegmentEnded(time=self.now, trial=number, segment=ordinal, outcome="left"))

    def write_logs(self, number: int, ordinal: int = 1, line: str = "") -> None:
        """Write what two ranks would have printed. line: a line to end with."""
        chunks = []
        for rank in (0, 1):
            lines = (f"[rank {rank}] epoch {epoch} loss {2.3 / epoch:.3f}\n" for epoch in range(1, 9))
            content = "".join([*lines, f"{line}\n" if line else ""]).encode()
            chunks += [LogChunk.of(rank, 0, content, self.now), LogChunk.of(rank, len(content), b"", self.now)]
        self.store.logs.add(self.id, {(number, ordinal): chunks})

    def write_usage(self, number: int, ordinal: int = 1) -> None:
        """Write what two ranks would have used: a core each, and memory that rises to 2 GiB."""
        samples = [
            UsageSample(
                trial=number,
                segment=ordinal,
                rank=rank,
                sample_no=n,
                time=self.now + 10 * n,
                cpu_s=10.0 * n,
                rss_bytes=n * 2**28,
            )
            for rank in (0, 1)
            for n in range(1, 9)
        ]
        self.store.ranks.add_usage(self.id, samples)


def steady(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
    """Return an accuracy for searches with many trials, without failures and divergence."""
    found = learning(0, ordinal, {**params, "lr": min(0.08, float(params["lr"]))}, iteration)
    assert found is not None
    return found


def bred(store: Store, trials: int = 8, start: float = 1.7e9) -> Search:
    """Write a finished PBT search: every few intervals, the worst members copy the weights of the best."""
    pbt = {
        "type": "pbt",
        "perturbation_interval": 4,
        "hyperparam_mutations": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}},
    }
    limits = Limits(max_concurrent_trials=trials)
    search = Search(store, digits("bred", trials, scheduler=pbt, max_t=30, limits=limits), start=start, curve=steady)
    search.advance(at_once=20)
    return search


def two_objectives(store: Store, trials: int = 40, start: float = 1.7e9) -> Search:
    """Write a finished search for high accuracy and low latency, with one report per trial."""

    def curve(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        width, rate = int(params["width"]), float(params["lr"])
        noise = keyed_random(1, "noise", number).random()
        accuracy = 0.97 - 0.9 / width - 0.03 * abs(math.log10(rate) + 2.2)
        return {"accuracy": accuracy, "latency": 0.2 + width / 20 * (1 + noise), "loss": 1 - accuracy}

    spec = digits(
        "two objectives",
        trials,
        scheduler={"type": "fifo"},
        max_t=1,
        objectives=(Objective("accuracy", "max"), Objective("latency", "min")),
    )
    search = Search(store, spec, start=start, curve=curve)
    search.advance(at_once=20)
    return search
