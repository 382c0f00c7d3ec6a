"""A core that tests feed by hand."""

from __future__ import annotations

import json
from typing import Any

import tuner
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import CheckpointInfo, Event, Failure
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Spec
from tuner.domain.segments import SegmentRef
from tuner.driver.assemble import assemble
from tuner.driver.core import Core, Effects
from tuner.driver.core.actions import DeleteCheckpoint, Interrupt, RunSegment
from tuner.space import Space


class Bench:
    """A core, and a clock that moves by one second per event."""

    def __init__(self, **options: Any) -> None:
        self.space = Space.from_python(options.pop("space", {"x": tuner.uniform(0, 1)}))
        limits = options.pop("limits", {"max_concurrent_trials": 2})
        checkpoint = options.pop("checkpoint", {"interval_s": None})
        room = options.pop("room", {})  # what the driver knows of the cluster: slots and workers
        self.spec = Spec(
            name="bench",
            space=self.space.to_json(),
            objectives=options.pop("objectives", (Objective("loss", "min"),)),
            search=options.pop("search", {"type": "random"}),
            limits=Limits(**limits),
            checkpoint=CheckpointPolicy(**checkpoint),
            **{"num_samples": 3, "scheduler": {"type": "fifo"}, **options},
        )
        self.core: Core = assemble(self.spec, self.space)
        self.now = 0.0
        self.log: list[Any] = []
        self.best: dict[int, dict[str, float]] = {}  # the best values so far, if there are constraints
        self.feed(e.DriverStarted(time=0.0, epoch=1, **room))

    def feed(self, event: Event) -> Effects:
        out = self.core.handle(event)
        self.log += out.log
        self.best |= out.best
        return out

    def tick(self) -> float:
        self.now += 1
        return self.now

    def started(self, number: int) -> None:
        ordinal = self.core.trials[number].segments[-1].ordinal
        self.core.first_milestone(SegmentRef(number, ordinal))
        self.feed(e.SegmentStarted(time=self.tick(), trial=number, segment=ordinal))

    def reported(
        self,
        number: int,
        loss: float = 1.0,
        checkpoint: bool = False,
        node: str | None = None,
        waits: bool = True,
        offer: int | None = None,
        last: bool = False,
        **more: float,
    ) -> Effects:
        segment = self.core.trials[number].segments[-1]
        count = segment.report_no + 1
        step = segment.start_iteration + count
        info = (
            CheckpointInfo(id=f"ckp_{number}_{segment.ordinal}_{step}", uri="memory:", step=step, node=node)
            if checkpoint
            else None
        )
        return self.feed(
            e.Reported(
                time=self.tick(),
                trial=number,
                segment=segment.ordinal,
                report_no=count,
                iteration=step,
                metrics={"loss": loss, **more},
                checkpoint=info,
                waits=waits,
                last=last,
                offer=offer,
            )
        )

    def saved(self, number: int, name: str, step: int, segment: int | None = None, ready: bool = True) -> Effects:
        """Tell the core of a checkpoint that was written on demand, or whose upload is done."""
        ordinal = segment or self.core.trials[number].segments[-1].ordinal
        info = CheckpointInfo(id=name, uri="memory:", step=step, ready=ready)
        return self.feed(e.CheckpointSaved(time=self.tick(), trial=number, segment=ordinal, checkpoint=info))

    def verdict(self, number: int) -> str:
        return self.core.verdict(self.core.trials[number].ref).action

    def ended(self, number: int, outcome: Any = "left", failure: Failure | None = None) -> Effects:
        ordinal = self.core.trials[number].segments[-1].ordinal
        return self.feed(
            e.SegmentEnded(time=self.tick(), trial=number, segment=ordinal, outcome=outcome, failure=failure)
        )

    def command(self, command: Any, trial: int | None = None) -> Effects:
        return self.feed(e.Commanded(time=self.tick(), command=command, trial=trial))

    def successor(self, **changes: Any) -> Bench:
        """Return a new driver that has folded what this one committed.

        Before it gets reports, feed it `DriverStarted`: it does not know at which reports the living ranks wait.
        """
        other = object.__new__(Bench)
        other.space, other.spec, other.now, other.log = self.space, self.spec, self.now, list(self.log)
        other.best = dict(self.best)
        other.core = assemble(self.spec, self.space)
        for seq, entry in self.log:
            other.core.fold(seq, entry)
        return other

    @property
    def states(self) -> list[str]:
        return [str(t.state) for t in self.core.trials]


def launches(out: Effects) -> list[tuple[int, int]]:
    return [a.segment for a in out.actions if isinstance(a, RunSegment)]


def interrupts(out: Effects) -> list[int]:
    return [a.segment.trial for a in out.actions if isinstance(a, Interrupt)]


def deletions(out: Effects) -> list[str]:
    return [a.info.id for a in out.actions if isinstance(a, DeleteCheckpoint)]


def again(entry: Any) -> Any:
    """Return the entry as the database returns it."""
    data = json.loads(json.dumps(entry.to_json()))
    return e.from_json(entry.KIND, data) if isinstance(entry, Event) else d.from_json(entry.KIND, data)
