"""A simulated cluster for one search: it runs what the core launches, and fails in every way in which a real one may."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.distributions import FloatDistribution, distribution_to_json

import tuner
from tests.fuzz import invariants
from tests.invariants import of_log
from tests.schedulers import examples
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import CheckpointInfo, Event, Failure
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, RunSegment, suggested
from tuner.schedulers import class_of
from tuner.space import Space

SCHEDULERS: dict[str, list[dict[str, Any]]] = {
    "fifo": [{"type": "fifo"}],
    "asha": [
        {"type": "asha", "grace_period": 1, "reduction_factor": 3},
        {"type": "asha", "grace_period": 2, "reduction_factor": 2, "brackets": 2},
    ],
    "moasha": [{"type": "moasha", "grace_period": 1, "reduction_factor": 3}],
    "asha_promotion": [{"type": "asha_promotion", "grace_period": 1, "reduction_factor": 3}],
    "hyperband": [{"type": "hyperband", "reduction_factor": 3}],
    "median": [
        {"type": "median", "min_time_slice": 2},
        {"type": "median", "grace_period": 2, "min_samples_required": 2, "hard_stop": False},
    ],
    "pbt": [{"type": "pbt", "perturbation_interval": 2}, {"type": "pbt", "perturbation_interval": 3}],
    "pb2": [{"type": "pb2", "perturbation_interval": 2}, {"type": "pb2", "perturbation_interval": 2, "synch": True}],
    "pbt_synch": [{"type": "pbt", "perturbation_interval": 2, "synch": True}],
    "pbt_replay": [
        {
            "type": "pbt_replay",
            "schedule": [
                {"iteration": 0, "params": {"x": 0.5, "y": 0.1, "c": "a"}},
                {"iteration": 2, "params": {"x": 0.5, "y": 0.01, "c": "a"}},
                {"iteration": 3, "params": {"x": 0.9, "y": 0.01, "c": "b"}},
            ],
        }
    ],
    "freeze_thaw": [{"type": "freeze_thaw"}],
}
for _example in examples.SCHEDULERS.values():  # a new scheduler need not be listed above as well
    if all(_example["type"] != kind["type"] for kinds in SCHEDULERS.values() for kind in kinds):
        SCHEDULERS[_example["type"]] = [_example]
SEARCHERS: list[dict[str, Any]] = [
    {"type": name} for name in ("random", "random", "qmc", "bohb", "tpe", "cmaes", "nsgaii", "gp")
]
X = distribution_to_json(FloatDistribution(0.0, 1.0))
SPACES: list[dict[str, Any]] = [
    {"x": tuner.uniform(0, 1), "y": tuner.loguniform(1e-3, 1), "c": tuner.choice(["a", "b"])},
    {"x": tuner.uniform(0.25, 0.75), "y": tuner.loguniform(1e-2, 1), "c": tuner.choice(["b", "c"])},
    {"x": tuner.uniform(0, 1), "y": tuner.loguniform(1e-3, 1), "w": tuner.randint(1, 9)},
    {"x": tuner.uniform(0.5, 2), "w": tuner.randint(3, 5), "c": tuner.choice(["a", "b"])},
]
"""The space at the beginning, and those that users change it to."""
MAX_STEPS = 8_000
"""Steps after which a search counts as without end. The longest known one, of 32 trials, ends after 4,219."""
CHAOS = 600
"""Steps after which users and the cluster leave the search alone, so that it must come to its end."""
CONTINUED = 150
"""Steps of the same after a user has continued a search that had ended."""


class Found(AssertionError):
    """A broken invariant; the message names the seed, the step and what was found."""


@dataclass(slots=True)
class Saved:
    """The true state of a checkpoint, whatever the core knows about it."""

    info: CheckpointInfo
    trial: int
    segment: int
    value: float | None
    announced: bool = False  # its report says that it is on its way
    reported: bool = False  # the core knows its report
    told: bool = False  # the core knows that it is ready
    torn: bool = False
    known_torn: bool = False
    deleted: bool = False


@dataclass(slots=True)
class Running:
    """A segment on its worker group."""

    trial: int
    ordinal: int
    start: int
    length: int  # iteration at which the training function returns
    source: str | None
    count: int = 0  # reports that the ranks have made
    delivered: int = 0  # of those, the ones that the core has taken
    buffer: list[e.Reported] = field(default_factory=list)
    milestone: int | None = None
    interrupts: list[int] = field(default_factory=list)
    started: bool = False
    announced: bool = False  # the word of its start has reached the core
    asked: bool = False  # it waits for a verdict
    left: str | None = None
    uploads: list[Saved] = field(default_factory=list)


class World:
    """One search.

    users: whether users change what was asked for. If not, the search ends only once.
    late_uploads: whether uploads may go on after the end of their segment.
    """

    def __init__(
        self, seed: int, scheduler: str | None = None, *, users: bool = True, late_uploads: bool = True
    ) -> None:
        self.seed = seed
        self.uploads = random.Random(f"{seed} {scheduler} uploads") if late_uploads else None
        self.late_share = self.uploads.choice([0.0, 0.3, 0.9]) if self.uploads is not None else 0.0
        self.uploading: list[Saved] = []  # uploads that go on after the end of their segment
        self.doomed: set[tuple[int, int]] = set()  # segments whose late uploads are to end at once
        self.users = random.Random(f"{seed} {scheduler} users") if users else None
        self.calm_at = CHAOS
        self.last_step = MAX_STEPS
        self.ends = 0  # how often the search has ended
        self.rng = rng = random.Random(f"{seed} {scheduler}")
        self.kind = scheduler or rng.choice(list(SCHEDULERS))
        options = dict(rng.choice(SCHEDULERS[self.kind]))
        self.late = rng.random() < 0.7  # news of a start may come after reports
        self.commands = rng.random() < 0.7
        self.by_tokens = rng.random() < 0.2 and self.kind != "freeze_thaw"
        max_t = 9 if self.kind in ("hyperband", "freeze_thaw", "asha_promotion") else rng.choice([9, 9, 12, None])
        if options.get("brackets"):
            max_t = 9
            self.by_tokens = False
        self.max_t = max_t
        self.own_end = rng.choice([12, 7, 5, 30 if max_t else 12])
        self.policy = CheckpointPolicy(
            interval_s=rng.choice([None, None, 5.0, "auto"]),
            keep_last=rng.choice([1, 1, 2, None]),
            keep_best=rng.choice([0, 1, 1, 3]),
        )
        self.policy_lost = False
        self.space = Space.from_python(SPACES[0])
        proposes = self.kind in ("freeze_thaw", "pbt_replay")
        search = {"type": "auto"} if proposes else rng.choice(SEARCHERS)
        if search["type"] in ("tpe", "gp", "nsgaii") and rng.random() < 0.6:
            search = {**search, "constraints": {"size": {"max": rng.choice([0.0, 0.3, 0.3, 0.7])}}}
        samples = rng.choice([4, 7, 9])
        if self.kind in ("fifo", "asha", "asha_promotion", "median") and (dice := rng.random()) < 0.2:
            search = {"type": "grid"} if dice < 0.1 else {"type": "define_by_run"}
            self.space = self.space if dice < 0.1 else Space({})
            samples = 3 if dice < 0.1 else samples
        self.spec = Spec(
            name="fuzz",
            space=self.space.to_json(),
            objectives=(Objective("loss", rng.choice(["min", "max"])),),
            seed=seed,
            num_samples=samples,
            max_t=None if self.by_tokens or max_t is None else max_t,
            time_attr="tokens" if self.by_tokens else "training_iteration",
            search=search,
            scheduler=({**options, "max_t": 100 * max_t} if self.by_tokens and "max_t" in options else options),
            stop={"loss": -0.5} if rng.random() < 0.1 else {},
            limits=Limits(max_concurrent_trials=rng.choice([1, 2, 3, 4]), max_failures=100, max_system_failures=1000),
            checkpoint=self.policy,
            scope=rng.choice(["all", "all", "last"]),
        )
        self.budget_after = rng.randrange(30, 400) if rng.random() < 0.1 else None  # steps
        if self.by_tokens and self.kind in ("hyperband",):
            self.spec = replace(self.spec, max_t=9, time_attr="training_iteration")
            self.by_tokens = False
        if self.users is not None:
            limits = replace(self.spec.limits, max_failures=self.users.choice([100, 100, 0, 1]))
            self.spec = replace(self.spec, limits=limits, scaling=Scaling(resources_per_worker={"CPU": 1, "GPU": 1}))
        self.repeating = random.Random(f"{seed} {scheduler} repeats")
        kind = class_of(options)
        assert kind is not None
        if not kind.SAVES_AT_MILESTONES and self.repeating.random() < 0.4:
            limits = replace(self.spec.limits, repeats=self.repeating.choice(["auto", "auto", 1, 3]))
            self.spec = replace(self.spec, limits=limits)
        self.clock = random.Random(f"{seed} {scheduler} clock")
        self.elastic = random.Random(f"{seed} {scheduler} elastic")
        self.ranks: int | None = None  # how many the cluster holds, if trials are elastic
        if self.elastic.random() < 0.4:
            self.make_elastic(self.elastic)
        self.core = assemble(self.spec, self.space)
        self.shadow = assemble(self.spec, self.space)
        self.log: list[Any] = []
        self.rows_of_log: list[Any] = []  # (seq, the entry as it is written to the database)
        self.now = 0.0
        self.epoch = 0
        self.step = 0
        self.running: dict[int, Running] = {}
        self.saved: dict[str, Saved] = {}
        self.pending: list[Any] = []
        self.reports = 0
        self.counted = 0
        self.trace: list[str] = []
        self.scored: dict[int, set[float]] = {}  # trial -> each time_attr that it has reported with a finite objective
        self.meddled: set[int] = set()  # trials that a user has resumed
        self.enqueued: list[Mapping[str, Any]] = []  # trials of users that have not been started, oldest first
        self.pinned: set[str] = set()  # checkpoints that users want kept
        self.unheard: list[str] = []  # pinned in the database, and the core has not heard of it yet
        self.rows: dict[int, tuple[Any, ...]] = {}  # trial -> its row in the database
        self.before = (0, 0)  # how many segments were open, and trials of the searcher started, at the last check

    # ------------------------------------------------------------------------------------------------ towards the core

    def make_elastic(self, rng: random.Random) -> None:
        """Let trials have several numbers of ranks, on a cluster that holds at least one trial of the smallest."""
        least = rng.choice([1, 1, 2])
        scaling = replace(
            self.spec.scaling,
            num_workers=least,
            max_workers=least + rng.randint(1, 6),
            resources_allocation=rng.choice(["even", "top"]),
        )
        self.spec = replace(self.spec, scaling=scaling)
        self.ranks = least * (self.spec.limits.max_concurrent_trials or 1) + rng.randint(-2, 8)

    def run(self) -> ExperimentState:
        """Drive the search to its end. Raise `Found` if an invariant does not hold."""
        self.begin()
        self.drive()
        while self.users is not None and self.ends < 4 and self.users.random() < 0.4:
            self.go_on(self.users)
            self.drive()
        self.calm_at = 0
        while self.unheard:
            self.hear()
        for name in list(self.pinned):
            self.feed(e.Pinned(time=self.tick(), checkpoint=name, pinned=False))
        while deletions := [action for action in self.pending if isinstance(action, DeleteCheckpoint)]:
            self.pending.remove(deletions[0])
            self.serve(deletions[0])
        if self.core.experiment.checkpoints.deleting:
            self.found(f"never deleted: {list(self.core.experiment.checkpoints.deleting)}")
        for problem in (*of_log(self.log, None if self.by_tokens else self.max_t), *invariants.of_end(self)):
            self.found(problem)
        return self.core.state

    def drive(self) -> None:
        """Let things happen until the search has ended."""
        self.check()
        while not self.core.ended and self.step < self.last_step:
            self.step += 1
            if not self.move():
                self.wake()
            self.check()
        if not self.core.ended:
            states = [str(trial.state) for trial in self.core.trials]
            self.found(f"no end: {self.core.state}, {states}, {self.core.experiment.waiting_exploits}")
        self.ends += 1
        if self.running:
            self.found(f"the experiment is {self.core.state}, and trials {list(self.running)} run")
        if self.enqueued and (self.core.experiment.finishing or "").endswith("ended"):
            self.found(f"the experiment has ended, and nobody has started {self.enqueued}")

    def go_on(self, rng: random.Random) -> None:
        """Let a user continue the search that has ended, with more samples or with trials of their own."""
        self.calm_at, self.last_step = self.step + CONTINUED, self.step + MAX_STEPS
        if rng.random() < 0.7:
            self.restart()  # else the driver still waits for deletions
        dice = rng.random()
        if dice < 0.6 and self.spec.search["type"] != "grid":
            more = (self.core.spec.num_samples or 0) + rng.randint(1, 3)
            self.feed(e.Amended(time=self.tick(), changes={"num_samples": more}))
        elif dice < 0.8:
            self.enqueue(rng)
        known = len(self.log)
        for _ in range(10):  # if the driver is killed before the commit, the next one gets the command again
            self.feed(e.Commanded(time=self.tick(), command="continue"))
            if any(isinstance(entry, e.Commanded) for _, entry in self.log[known:]):
                break

    def begin(self) -> None:
        """Let a driver take the experiment over."""
        self.epoch += 1
        self.running.clear()
        self.pending.clear()
        self.uploading.clear()
        self.feed(e.DriverStarted(time=self.tick(), epoch=self.epoch, workers=self.ranks))

    def restart(self, committed: bool = True) -> None:
        """Kill the driver, and its ranks with it. The next one folds what is committed."""
        self.trace.append(f"{self.step}: restart")
        fresh: Core = assemble(self.spec, self.space)
        for seq, row in self.rows_of_log:
            fresh.fold(seq, read(row))
        self.core = fresh
        self.begin()

    def feed(self, event: Event) -> None:
        self.trace.append(f"{self.step}: {event}"[:400])
        core = self.core
        finishing = core.experiment.finishing
        retried = self.retried(event)
        out = core.handle(event)
        dice = self.rng.random() if self.chaotic else 1.0
        if dice < 0.004 and not isinstance(event, e.DriverStarted):  # killed before the commit
            self.restart()
            return
        self.log += out.log
        for seq, entry in out.log:
            self.rows_of_log.append((seq, written(entry)))
            self.shadow.fold(seq, read(self.rows_of_log[-1][1]))
            match entry:
                case e.Enqueued():
                    self.enqueued += entry.points
                case e.Commanded() if retried is not None:
                    self.enqueued.append(retried)
                case e.Pinned():
                    (self.pinned.add if entry.pinned else self.pinned.discard)(entry.checkpoint)
                    self.unheard = [name for name in self.unheard if name != entry.checkpoint]
                case d.Start():
                    self.lies_inside(entry)
                    self.starts(entry, None if isinstance(event, e.Commanded) else finishing)
            if isinstance(entry, d.Exploit):
                self.lies_inside(entry)
                if newer := self.awaited(entry.donor, self.saved[entry.checkpoint]):
                    self.found(f"{entry} does not wait for {newer}")
            if isinstance(entry, d.Decision):
                self.trace.append(f"{self.step}:     {entry}"[:300])
            if isinstance(entry, e.Reported):
                self.took(entry)
            if isinstance(entry, e.CheckpointSaved) and entry.checkpoint.ready:
                self.told(self.saved[entry.checkpoint.id])
            if isinstance(entry, e.SegmentEnded) and entry.failure is not None:
                self.lost(entry, entry.failure.cause)
        for problem in (*invariants.of_fold(core, self.shadow), *invariants.of_rows(core, out.touched, self.rows)):
            self.found(problem)
        actions = [action for action in out.actions if not self.is_pinned_first(action)]
        for action in actions:
            if isinstance(action, DeleteCheckpoint):
                self.may_delete(action)
        if dice < 0.008 and not isinstance(event, e.DriverStarted):  # killed after the commit, before the actions
            self.restart()
            return
        for action in actions:
            self.act(action)

    def is_pinned_first(self, action: Action) -> bool:
        """Return whether the action is a deletion that the database leaves out, because a user has been faster with a pin."""
        if not isinstance(action, DeleteCheckpoint) or action.lost or self.saved[action.info.id].deleted:
            return False
        if self.users is not None and self.chaotic and self.users.random() < 0.2 and action.info.id not in self.unheard:
            self.unheard.append(action.info.id)
        return action.info.id in self.unheard

    def hear(self) -> None:
        """Let the core hear of a pin that is in the database. From then on, trials can start from the checkpoint again."""
        saved = self.saved[self.unheard[0]]
        self.feed(e.Pinned(time=self.tick(), checkpoint=saved.info.id, pinned=True))
        is_usable = saved.told and saved.reported and not saved.known_torn and not saved.deleted
        if saved.info.id in self.pinned and is_usable and not self.core.experiment.checkpoints.exists(saved.info.id):
            self.found(f"{saved} is pinned, and no trial can start from it")

    def retried(self, event: Event) -> Mapping[str, Any] | None:
        """Return the trial that a user wants with this event, if it retries one that has failed."""
        if not isinstance(event, e.Commanded) or event.command != "retry" or event.trial not in self.core.trials:
            return None
        trial = self.core.trials[event.trial]
        if trial.state is not TrialState.FAILED:
            return None
        name = trial.checkpoint.id if trial.checkpoint is not None else ""
        return {"params": dict(trial.params), "checkpoint": name, "parent": trial.number}

    def lies_inside(self, start: d.Start | d.Exploit) -> None:
        """Check that what is proposed lies in the space of that moment, and what users asked for in its own."""
        params, revisions = start.params or {}, self.core.experiment.revisions
        space = revisions.spaces[revisions.newest if start.space_revision is None else start.space_revision]
        searched = isinstance(start, d.Start) and not start.asked and start.repeat_of is None
        if searched and start.space_revision not in (None, revisions.newest):
            self.found(
                f"trial {start.number} is proposed in space {start.space_revision}, {revisions.newest} is the present one"
            )
        wanted = {p.path for p, on in zip(space.parameters, space.active(params), strict=True) if on}
        if self.spec.search["type"] != "define_by_run" and wanted != params.keys():
            self.found(f"{start} has {list(params)}, not {wanted}")
        if wrong := [path for path in wanted if not space[path].contains(params.get(path))]:
            self.found(f"{start} lies outside its space: {wrong}")

    def starts(self, start: d.Start, finishing: str | None) -> None:
        """Check the start of a trial: what users want comes once each, in order, and before what the searcher proposes."""
        if finishing is not None:
            self.found(f"trial {start.number} is started, and the search was about to end: {finishing}")
        if not start.asked:
            if self.enqueued:
                self.found(f"trial {start.number} of the searcher is started before {self.enqueued[0]}")
            return
        if not self.enqueued:
            self.found(f"trial {start.number} is started for users, and they have asked for none")
        queued, got = self.enqueued.pop(0), start.params or {}
        other = {name: got.get(name) for name, value in queued["params"].items() if got.get(name) != value}
        if other or (start.checkpoint, start.parent) != (queued.get("checkpoint", ""), queued.get("parent")):
            self.found(f"{start} is started for {queued}")

    def told(self, saved: Saved) -> None:
        """Note that the core knows of a ready checkpoint.

        Its value may be lost: another segment may have reported at the same count since.
        """
        saved.told = True
        segments = reversed(self.core.trials[saved.trial].segments)
        reported = next((s.ordinal for s in segments if s.start_iteration < saved.info.step <= s.iteration), None)
        if reported != saved.segment and not saved.announced:
            saved.value = None

    def lost(self, entry: e.SegmentEnded, cause: str) -> None:
        """Note that the core knows of the loss of the checkpoint that a segment was to start from, or of its whole disk."""
        source = self.core.trials[entry.trial].segments[entry.segment - 1].source
        if source is None or cause not in ("checkpoint_lost", "disk_lost"):
            return
        self.saved[source.id].known_torn = True
        for other in self.saved.values():
            if cause == "disk_lost" and other.info.node == source.node and other.told:
                other.known_torn = True

    def took(self, entry: e.Reported) -> None:
        """Note that the core has counted a report."""
        self.counted += 1
        t = entry.metrics["tokens"] if self.by_tokens else float(entry.iteration)
        if math.isfinite(entry.metrics.get("loss", math.nan)):
            self.scored.setdefault(entry.trial, set()).add(t)
        run = self.running.get(entry.trial)
        if run is not None and run.ordinal == entry.segment:
            if entry.report_no != run.delivered + 1:
                self.found(f"report {entry.report_no} of trial {entry.trial} was counted after {run.delivered}")
            run.delivered = entry.report_no
        for saved in self.saved.values():
            if (saved.trial, saved.segment) == (entry.trial, entry.segment) and saved.info.step <= entry.iteration:
                saved.reported = True

    def act(self, action: Action) -> None:
        match action:
            case RunSegment(segment=segment):
                self.launch(segment)
            case Interrupt(segment=(number, ordinal), why=why):
                run = self.running.get(number)
                if why == "kill":
                    self.doomed.add((number, ordinal))
                if run is not None and run.ordinal == ordinal:
                    run.interrupts.append(run.count + self.rng.randint(1, 2))
                    if why == "kill":
                        run.left = "killed"
                    if why in ("stop", "cancel") and self.rng.random() < 0.3:
                        run.left = "killed"  # it does not come to a report within the grace time
            case DeleteCheckpoint():
                self.pending.append(action)
            case Fit() | Ask():
                self.pending.append(action)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def line(self, number: int) -> list[Saved]:
        """Return what the trial could start from, as far as the core can know, the newest last.

        That is what it has saved since its last exploit, else the donor's checkpoint, else what it had saved before.
        """
        trial = self.core.trials[number]
        exploits = [s for s in trial.segments if s.cause in ("exploit", "fork")]
        begins = exploits[-1].ordinal if exploits else 1
        mine = [
            saved
            for saved in self.saved.values()
            if saved.trial == number
            and saved.told and saved.reported and not saved.known_torn and not saved.deleted
        ]  # fmt: skip
        inherited = [self.saved[exploits[-1].source.id]] if exploits and exploits[-1].source is not None else []
        usable = [saved for saved in inherited if not saved.known_torn and not saved.deleted]
        mine.sort(key=lambda saved: (saved.segment, saved.info.step))
        earlier = [saved for saved in mine if saved.segment < begins]
        return [*earlier, *usable, *(saved for saved in mine if saved.segment >= begins)]

    def awaited(self, number: int, instead: Saved | None) -> list[Saved]:
        """Return the late uploads that would give the trial a newer checkpoint to start from than `instead`."""
        trial = self.core.trials[number]
        begins = max((s.ordinal for s in trial.segments if s.cause in ("exploit", "fork")), default=1)
        own = instead is not None and instead.trial == number and instead.segment >= begins
        after = (instead.segment, instead.info.step) if instead is not None and own else (0, 0)
        mine = [saved for saved in self.uploading if saved.trial == number and saved.segment >= begins]
        return [saved for saved in mine if (saved.segment, saved.info.step) > after]

    def launch(self, ref: SegmentRef) -> None:
        number, ordinal = ref
        segment = self.core.trials[number].segments[ordinal - 1]
        who = f"launch {number}.{ordinal} ({segment.cause})"
        if number in self.running:
            self.found(f"{who}: segment {self.running[number].ordinal} still runs")
        if self.core.state not in (ExperimentState.RUNNING, ExperimentState.PAUSING):
            self.found(f"{who}: the experiment is {self.core.state}")
        if segment.source is not None:
            source = self.saved[segment.source.id]
            if source.deleted or not source.told or not source.reported:
                self.found(f"{who} from {source}")
        if segment.cause != "exploit":
            line = self.line(number)
            best = line[-1].info.id if line else None
            got = segment.source.id if segment.source is not None else None
            if got != best:
                self.found(f"{who} from {got}, the newest usable one is {line[-1] if line else None}")
            if newer := self.awaited(number, line[-1] if line else None):
                self.found(f"{who} from {got} does not wait for {newer}")
        start = segment.source.step if segment.source is not None else 0
        if start != segment.start_iteration:
            self.found(f"{who} at {segment.start_iteration}, its checkpoint is of {start}")
        run = Running(number, ordinal, start, self.own_end, segment.source.id if segment.source is not None else None)
        run.milestone = self.core.first_milestone(ref)
        self.running[number] = run

    def may_delete(self, action: DeleteCheckpoint) -> None:
        """Check a decision to delete a checkpoint: nothing may need it."""
        saved = self.saved[action.info.id]
        if saved.known_torn or saved.deleted:
            saved.deleted = True
            return
        name, core = saved.info.id, self.core
        if saved.reported and saved.told and name in self.pinned:
            self.found(f"{name} is deleted, and a user wants it kept")
        if any(queued.get("checkpoint") == name for queued in self.enqueued):
            self.found(f"{name} is deleted, and a user wants a trial from it")
        if not saved.reported and (run := self.running.get(saved.trial)) is not None and run.ordinal == saved.segment:
            self.found(f"{name} is deleted before its report comes")
        for run in self.running.values():
            if run.source == name and core.trials[run.trial].holds_resources:
                self.found(f"{name} is deleted while segment {run.trial}.{run.ordinal} runs from it")
        for trial in core.trials:
            if trial.state.ended:
                continue
            if trial.next is not None and trial.next.source is not None and trial.next.source.id == name:
                self.found(f"{name} is deleted, the next segment of trial {trial.number} starts from it")
            if trial.checkpoint is not None and trial.checkpoint.id == name:
                self.found(f"{name} is deleted, trial {trial.number} would start from it")
        if saved.reported and saved.told:
            newest = [
                other
                for other in self.saved.values()
                if other.trial == saved.trial and other.told and other.reported and not other.known_torn
                and (other.segment, other.info.step) > (saved.segment, saved.info.step)
            ]  # fmt: skip
            if not newest:
                self.found(f"{name} is deleted, it is the newest of trial {saved.trial}")
            if self.policy.keep_best and saved.value is not None and "constraints" not in self.spec.search:
                score = self.spec.objective.score
                kept = [k for k in core.trials[saved.trial].checkpoints.values() if k.value is not None]
                better = [k for k in kept if score(k.value or 0.0) >= score(saved.value)]
                if len(better) < self.policy.keep_best:
                    self.found(f"{name} ({saved.value}) is deleted, only {len(better)} kept ones are as good")
        saved.deleted = True

    def save(self, run: Running, value: float | None) -> Saved:
        info = CheckpointInfo(
            id=f"c{len(self.saved) + 1}",
            uri="memory:",
            step=run.start + run.count,
            ready=False,
            node=self.rng.choice([None, "n1", "n2"]),
        )
        saved = self.saved[info.id] = Saved(info, run.trial, run.ordinal, value)
        run.uploads.append(saved)
        return saved

    def end_upload(self, saved: Saved) -> None:
        """Let an upload that has outlived its segment end, well or not."""
        assert self.uploads is not None
        self.uploading.remove(saved)
        about: Any = {"time": self.tick(), "trial": saved.trial, "segment": saved.segment}
        if (saved.trial, saved.segment) in self.doomed or (self.chaotic and self.uploads.random() < 0.2):
            self.feed(e.UploadFailed(**about, checkpoint=saved.info, reason="the bucket is gone"))
        else:
            self.feed(e.CheckpointSaved(**about, checkpoint=replace(saved.info, ready=True)))

    def uploaded(self, run: Running, saved: Saved) -> None:
        run.uploads.remove(saved)
        times = 2 if self.rng.random() < 0.05 else 1  # an answer got lost, and it is told again
        for _ in range(times):
            self.feed(
                e.CheckpointSaved(
                    time=self.tick(), trial=run.trial, segment=run.ordinal, checkpoint=replace(saved.info, ready=True)
                )
            )

    # ------------------------------------------------------------------------------------------------ what happens

    @property
    def chaotic(self) -> bool:
        return self.step < self.calm_at

    def tick(self) -> float:
        jump = self.rng.random() if self.chaotic else 1.0
        self.now += 3600.0 if jump < 0.005 else -30.0 if jump < 0.01 else 1.0
        return self.now

    def move(self) -> bool:
        """Let one event happen. Return False if none is possible."""
        rng = self.rng
        if self.unheard and self.users is not None and self.users.random() < 0.3:
            self.hear()
        if self.users is not None and self.chaotic and self.users.random() < 0.06:
            self.meddle(self.users)
            return True
        if self.users is not None and self.chaotic and self.clock.random() < 0.01:
            before, seconds = self.now, self.clock.choice([3600.0, -30.0])
            self.now += seconds
            self.feed(e.ClockJumped(time=self.now, start=before, seconds=seconds))
            return True
        if self.ranks is not None and self.chaotic and self.elastic.random() < 0.03:
            workers = self.elastic.randint(0, self.ranks + 1)
            self.ranks = max(self.ranks, workers)
            self.feed(e.WorkersChanged(time=self.tick(), workers=workers))
            return True
        if self.budget_after is not None and self.step >= self.budget_after:
            self.budget_after = None
            self.feed(e.BudgetSpent(time=self.tick(), seconds=1.0))
            return True
        if self.chaotic:
            dice = rng.random()
            if self.commands and dice < 0.05:
                return self.command()
            if dice < 0.06:
                self.restart()
                return True
            if dice < 0.09 and self.running:
                run = rng.choice(list(self.running.values()))
                self.meddled.add(run.trial)
                reason = "to make room for experiment exp_1 (priority 1)"
                self.feed(e.RoomWanted(time=self.tick(), trial=run.trial, segment=run.ordinal, reason=reason))
                return True
            if dice < 0.1 and self.saved:
                rng.choice(list(self.saved.values())).torn = True
                return True
        if self.uploads is not None and self.uploading and (not self.running or self.uploads.random() < 0.2):
            self.end_upload(self.uploads.choice(self.uploading))
            return True
        if self.pending and (not self.running or rng.random() < 0.3):
            self.serve(self.pending.pop(rng.randrange(len(self.pending))))
            return True
        if not self.running:
            return False
        self.advance(rng.choice(list(self.running.values())))
        return True

    def wake(self) -> None:
        """Resume a search that is paused. A search that is not paused and in which nothing can happen is stuck."""
        if self.core.state is ExperimentState.PAUSED:
            self.feed(e.Commanded(time=self.tick(), command="resume"))
            return
        held = [t for t in self.core.trials if t.held and t.number not in self.core.experiment.waiting_exploits]
        if held:
            self.meddled.add(held[0].number)
            self.feed(e.Commanded(time=self.tick(), command="resume", trial=held[0].number))
            return
        states = [str(trial.state) for trial in self.core.trials]
        self.found(f"stuck: {self.core.state}, {states}, waits for donors: {self.core.experiment.waiting_exploits}")

    def command(self) -> bool:
        rng = self.rng
        kind: Any = rng.choice(["pause", "resume", "resume", "pause", "resume", "stop", "cancel"])
        trial = rng.randrange(len(self.core.trials)) if len(self.core.trials) and rng.random() < 0.5 else None
        if kind in ("stop", "cancel") and (trial is None or rng.random() < 0.8):
            return True
        if kind == "resume" and trial is not None:
            self.meddled.add(trial)
        self.feed(e.Commanded(time=self.tick(), command=kind, trial=trial))
        return True

    def meddle(self, rng: random.Random) -> None:
        """Let a user change limits, ask for trials, pin a checkpoint, kill a trial or all; or let the GPU hours be used up."""
        match rng.choices(
            ("amend", "enqueue", "fork", "retry", "pin", "kill", "gpu", "slots"), (8, 5, 5, 9, 8, 1, 1, 3)
        )[0]:
            case "amend":
                self.feed(e.Amended(time=self.tick(), changes=self.amendment(rng)))
            case "enqueue":
                self.enqueue(rng)
            case "fork":
                self.fork(rng)
            case "retry":
                failed = [trial.number for trial in self.core.trials if trial.state is TrialState.FAILED]
                if failed:
                    self.feed(e.Commanded(time=self.tick(), command="retry", trial=rng.choice(failed)))
            case "pin":
                there = [name for name, saved in self.saved.items() if not saved.deleted and name not in self.unheard]
                if there:  # a pin that comes after the deletion is refused
                    self.feed(e.Pinned(time=self.tick(), checkpoint=rng.choice(there), pinned=rng.random() < 0.6))
            case "kill" if len(self.core.trials) and rng.random() < 0.5:
                self.feed(e.Commanded(time=self.tick(), command="kill", trial=rng.randrange(len(self.core.trials))))
            case "kill":
                if rng.random() < 0.3:
                    self.feed(e.Commanded(time=self.tick(), command="cancel"))
                self.feed(e.Commanded(time=self.tick(), command="kill"))
            case "gpu":
                self.feed(e.GpuHoursSpent(time=self.tick(), gpu_hours=1.0))
            case "slots":
                self.feed(e.SlotsChanged(time=self.tick(), slots=rng.randint(1, 5)))

    def amendment(self, rng: random.Random) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if rng.random() < 0.7 and self.spec.search["type"] != "grid":
            changes["num_samples"] = rng.randint(1, 12)
        if rng.random() < 0.6:
            changes["limits"] = {"max_concurrent_trials": rng.randint(1, 5)}
        if not changes or rng.random() < 0.3:
            changes.setdefault("limits", {})["max_failures"] = rng.choice([0, 1, 100])
        if rng.random() < 0.4 and len(self.space) and self.core.searcher.REVISES and self.core.scheduler.REVISES:
            spec = self.core.spec
            changes["space"] = Space.from_python(rng.choice(SPACES)).to_json()
            changes["former_spaces"] = [*spec.former_spaces, spec.space]
            changes["assumed"] = rng.choice([{}, {"w": 4, "c": "a", "y": 0.1}])
        return changes

    def enqueue(self, rng: random.Random) -> None:
        """Ask for trials, with the whole configuration, a part of it, or nothing said."""
        whole = self.core.searcher.context.space.sample(rng)
        points = [dict(list(whole.items())[: rng.randint(0, 3)]) for _ in range(rng.choice([1, 1, 2, 4]))]
        self.feed(e.Enqueued(time=self.tick(), points=[{"params": point} for point in points], reason="wanted"))

    def is_below_max_t(self, checkpoint: CheckpointInfo | None) -> bool:
        return self.spec.max_t is None or checkpoint is None or checkpoint.step < self.spec.max_t

    def fork(self, rng: random.Random) -> None:
        """Ask for a trial from a checkpoint of another one, if there is one that the core knows."""
        found = [s for s in self.saved.values() if s.told and s.reported and not s.known_torn and not s.deleted]
        found = [saved for saved in found if self.is_below_max_t(saved.info)]
        if not found:
            return
        saved = rng.choice(found)
        trial, context = self.core.trials[saved.trial], self.core.searcher.context
        inside = context.params_of(trial)
        if inside is None:
            return
        params = {**inside, **({"x": context.space["x"].resample(rng)} if len(self.space) else {})}
        point = {"params": params, "checkpoint": saved.info.id, "parent": saved.trial}
        self.feed(e.Enqueued(time=self.tick(), points=[point], reason="forked"))

    def serve(self, what: Any) -> None:
        match what:
            case DeleteCheckpoint(trial=number, info=info):
                self.feed(e.CheckpointDeleted(time=self.tick(), trial=number, checkpoint=info.id))
            case Fit(payload=payload):
                failed = self.chaotic and self.rng.random() < 0.05
                result = {} if failed else self.core.scheduler.fit(payload)
                self.feed(e.ModelFitted(time=self.tick(), payload=result))
            case Ask(number=number):
                suggestion = self.core.searcher.suggest(number, self.core.trials)
                self.feed(suggested(self.tick(), number, suggestion))

    def advance(self, run: Running) -> None:
        rng = self.rng
        if run.uploads and rng.random() < 0.3:
            self.uploaded(run, rng.choice(run.uploads))
            return
        if run.left == "killed":
            self.end(run, "left", drained=False)
            return
        if run.left is not None:
            if rng.random() < 0.6:
                self.end(run, "left")
            return
        if not run.started:
            self.start(run)
            return
        if not run.announced and rng.random() < 0.3:
            self.announce(run)
            return
        if self.chaotic and rng.random() < 0.03:
            self.fail(run)
            return
        if self.spec.search["type"] == "define_by_run" and rng.random() < 0.3:
            self.draw(run)
            return
        if run.buffer and rng.random() < 0.4:
            self.deliver(run)
            return
        if run.start + run.count >= run.length:
            self.returns(run)
            return
        self.report(run)

    def draw(self, run: Running) -> None:
        """Let the training code ask for a parameter, maybe again. The answer is made as the driver host makes it."""
        name = self.rng.choice(["x", "y"])
        core = self.core
        value, state = core.searcher.draw(run.trial, name, X, core.trials)  # type: ignore[attr-defined]
        if name not in core.trials[run.trial].params:
            self.feed(
                e.Drawn(time=self.tick(), trial=run.trial, segment=run.ordinal, name=name, value=value, state=state)
            )

    def start(self, run: Running) -> None:
        saved = self.saved.get(run.source or "")
        if saved is not None and saved.torn:
            disk = self.rng.random() < 0.3 and saved.info.node is not None
            if disk:
                for other in self.saved.values():
                    other.torn = other.torn or other.info.node == saved.info.node
            self.policy_lost = True
            cause = "disk_lost" if disk else "checkpoint_lost"
            self.end(
                run, "failed", Failure(kind="system", cause=cause, message="its checkpoint is torn"), drained=False
            )
            return
        if self.chaotic and self.rng.random() < 0.02:
            self.end(run, "failed", Failure(kind="system", cause="lost_at_start", message="no"), drained=False)
            return
        if run.interrupts and self.rng.random() < 0.5:
            self.end(run, "left")  # its ranks were not there yet
            return
        run.started = True
        if not self.late or self.rng.random() < 0.6:
            self.announce(run)

    def announce(self, run: Running) -> None:
        run.announced = True
        self.feed(
            e.SegmentStarted(
                time=self.tick(), trial=run.trial, segment=run.ordinal, startup_s=self.rng.choice([0.1, 9.0])
            )
        )

    def report(self, run: Running) -> None:
        """Let the ranks make their next report, and wait for a verdict if it is a milestone."""
        rng = self.rng
        run.count += 1
        waits = (run.milestone is not None and run.count >= run.milestone) or any(
            run.count >= i for i in run.interrupts
        )
        loss = rng.choice([rng.random(), rng.random(), round(rng.random(), 1)])
        if rng.random() < 0.01:
            loss = rng.choice([math.nan, math.inf])
        metrics = {"loss": loss, "tokens": 100.0 * (run.start + run.count)}
        if rng.random() < 0.03:
            del metrics["loss"]
        if "constraints" in self.spec.search and rng.random() < 0.9:
            metrics["size"] = rng.random()
        saved = self.save(run, metrics.get("loss")) if rng.random() < 0.35 else None
        if saved is not None:
            saved.announced = True
        if saved is not None and saved.value is not None and not math.isfinite(saved.value):
            saved.value = None
        run.buffer.append(
            e.Reported(
                time=0.0,
                trial=run.trial,
                segment=run.ordinal,
                report_no=run.count,
                iteration=run.start + run.count,
                metrics=metrics,
                checkpoint=saved.info if saved is not None else None,
                waits=waits,
                offer=rng.choice([None, run.count + 1, run.count + 2]) if waits else None,
            )
        )
        if not waits:
            return
        if self.chaotic and rng.random() < 0.05 and len(run.buffer) > 1:  # those before it got lost on the way
            self.put(run, run.buffer[-1])
            if self.running.get(run.trial) is not run:
                return
            if run.delivered == run.count:
                self.found(f"report {run.count} of trial {run.trial} was counted before those before it")
        while run.buffer and self.running.get(run.trial) is run:
            self.deliver(run)
        if self.running.get(run.trial) is run:
            self.heed(run)

    def deliver(self, run: Running) -> None:
        message = run.buffer.pop(0)
        self.put(run, message)
        if self.running.get(run.trial) is run and self.chaotic and self.rng.random() < 0.05:
            counted = self.counted
            self.put(run, message)  # once more, its answer having got lost
            if self.running.get(run.trial) is run and self.counted != counted:
                self.found(f"report {message.report_no} of trial {run.trial} was counted twice")

    def put(self, run: Running, message: e.Reported) -> None:
        self.feed(replace(message, time=self.tick()))

    def heed(self, run: Running) -> None:
        """Let the ranks obey the verdict that they wait for."""
        verdict = self.core.verdict(SegmentRef(run.trial, run.ordinal))
        if verdict.save_checkpoint and self.rng.random() < 0.9:
            here = run.start + run.count
            mine = [s.info.step for s in self.saved.values() if (s.trial, s.segment) == (run.trial, run.ordinal)]
            if here not in mine:
                self.save(run, self.core.trials[run.trial].values.get(here)).reported = True
        run.interrupts = [i for i in run.interrupts if i > run.count]
        run.milestone = verdict.next_milestone
        if verdict.action != "continue":
            run.left = verdict.action

    def returns(self, run: Running) -> None:
        while run.buffer and self.running.get(run.trial) is run:
            self.deliver(run)
        if self.running.get(run.trial) is not run:
            return
        if run.count or run.start:
            self.end(run, "returned")
        else:
            self.end(run, "failed", Failure(kind="user", cause="no_report", message="no report"))

    def fail(self, run: Running) -> None:
        kind: Any = self.rng.choice(["user", "system"])
        cause = self.rng.choice(["exception", "exception", "disk_full"])
        # A rank that raises an exception sends its reports, and its uploads continue. One that is lost does not.
        raised = kind == "user" and cause == "exception" and self.uploads is not None and self.uploads.random() < 0.5
        self.end(run, "failed", Failure(kind=kind, cause=cause, message="x", rank=0), drained=raised)

    def end(self, run: Running, outcome: Any, failure: Failure | None = None, *, drained: bool = True) -> None:
        """Free the group. A rank that ended normally (`drained`) has sent its reports and committed its checkpoints."""
        late = drained and self.uploads is not None and self.uploads.random() < self.late_share
        while drained and (run.buffer or (run.uploads and not late)) and self.running.get(run.trial) is run:
            if run.buffer:
                self.deliver(run)
            else:
                self.uploaded(run, run.uploads[0])
        if self.running.get(run.trial) is not run:
            return  # the driver was killed meanwhile
        del self.running[run.trial]
        left = tuple(saved.info for saved in run.uploads) if late else ()
        epoch = self.epoch
        self.uploading += run.uploads if late else ()
        self.feed(
            e.SegmentEnded(
                time=self.tick(),
                trial=run.trial,
                segment=run.ordinal,
                outcome=outcome,
                failure=failure,
                uploading=left,
            )
        )
        if self.epoch != epoch or late:
            return
        if self.chaotic and self.rng.random() < 0.05 and run.uploads:  # a call that was under way when it was killed
            saved = run.uploads[0]
            self.feed(
                e.CheckpointSaved(
                    time=self.tick(), trial=run.trial, segment=run.ordinal, checkpoint=replace(saved.info, ready=True)
                )
            )

    # ------------------------------------------------------------------------------------------------ what must hold

    def check(self) -> None:
        if self.uploading and (self.core.ended or self.core.state is ExperimentState.PAUSED):
            self.found(f"the experiment is {self.core.state}, and {self.uploading} are being uploaded")
        for problem in invariants.of_state(self.core, self.scored, self.meddled, self.before):
            self.found(problem)
        self.before = invariants.counts(self.core)
        if len(self.enqueued) != len(self.core.experiment.queue):
            self.found(f"users wait for {self.enqueued}, and the core knows of {self.core.experiment.queue}")

    def found(self, problem: str) -> None:
        raise Found(f"{self.kind}, seed {self.seed}, step {self.step}: {problem}")


def written(entry: Any) -> Any:
    """Return a log entry as it is written to the database: its class's module, its kind and its JSON."""
    if isinstance(entry, e.Reported):
        return entry
    return d if isinstance(entry, d.Decision) else e, entry.KIND, json.dumps(entry.to_json())


def read(row: Any) -> Any:
    """Return a log entry as the next driver reads it from the database."""
    if isinstance(row, e.Reported):
        return row
    module, kind, text = row
    return module.from_json(kind, json.loads(text))
