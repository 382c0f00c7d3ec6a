"""Trials, with their segments, checkpoints and failures."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Number, PageOf, shown, values
from tuner.domain.keys import trial_id
from tuner.experiment.operations.trials import checkpoint_actions, trial_actions
from tuner.experiment.operations.verbs import CheckpointAction, TrialAction
from tuner.store import (
    CheckpointRecord,
    ExperimentRecord,
    SegmentRecord,
    TrialRecord,
    TrialSegment,
)
from tuner.store import TrialSample as TrialSampleRecord


class Failure(Model):
    kind: Annotated[
        Literal["user", "system", "placement", "spec"],
        Field(
            description=(
                "user: the trial's code failed; system: a node, process or device failed; placement: the cluster did not "
                "provide the resources; spec: the spec cannot work"
            )
        ),
    ]
    cause: Annotated[str, Field(description="exception, signal, exit, oom, hang, node_lost, ...")]
    message: Annotated[str, Field(description="the error in one line")]
    rank: Annotated[int | None, Field(description="the rank that failed first")]
    node: Annotated[str | None, Field(description="the node of that rank")]
    pid: Annotated[int | None, Field(description="the process id of that rank")]
    traceback: Annotated[str, Field(description="the Python traceback of that rank")]
    log_tail: Annotated[str, Field(description="the last lines that the failed rank printed")]
    stacks: Annotated[
        dict[str, str], Field(description="rank -> its Python stack, if the trial failed because its ranks hung")
    ]


class Checkpoint(Model):
    id: Annotated[str, Field(description="ckp_...")]
    uri: Annotated[str, Field(description="the path or URI of the checkpoint")]
    step: Annotated[int, Field(description="the training_iteration of the report with which the checkpoint was saved")]
    bytes: Annotated[int, Field(description="the size of the checkpoint in bytes")]
    node: Annotated[
        str | None,
        Field(
            description="Ray's id of the node that wrote the checkpoint; its disk has the files, unless all nodes share the "
            "path; null if the checkpoint is at a URI"
        ),
    ] = None


class CheckpointItem(Checkpoint):
    """A checkpoint, with the trial and the segment that saved it."""

    experiment_id: str
    trial_id: str
    trial_number: Annotated[int, Field(description="the number of the trial that saved the checkpoint")]
    segment: Annotated[int, Field(description="the ordinal of the segment that saved the checkpoint")]
    state: Annotated[
        Literal["uploading", "ready", "deleted"],
        Field(description="uploading: its files are not complete yet; ready: its files can be used"),
    ]
    pinned: Annotated[
        bool,
        Field(
            description="true if the checkpoint is pinned, so that the experiment's checkpoint policy does not delete it"
        ),
    ]
    actions: Annotated[list[CheckpointAction], Field(description="the actions that the checkpoint's state allows now")]

    @classmethod
    def of(cls, record: CheckpointRecord, experiment: ExperimentRecord) -> Self:
        return cls(
            id=record.public_id,
            uri=record.uri,
            step=record.step,
            bytes=record.bytes,
            node=record.node,
            experiment_id=record.experiment,
            trial_id=trial_id(record.experiment, record.trial),
            trial_number=record.trial,
            segment=record.segment,
            state=record.state,  # type: ignore[arg-type]
            pinned=record.pinned,
            actions=checkpoint_actions(record, experiment),
        )


class CheckpointPage(PageOf[CheckpointItem]):
    pass


class Enqueue(Body):
    """The body of a request that adds trials with given configurations."""

    configurations: Annotated[
        list[dict[str, Any]],
        Field(
            min_length=1,
            max_length=1000,
            description="the configurations as flat or nested params; params that are missing are drawn at random",
            examples=[[{"lr": 0.01, "width": 64}, {"lr": 0.1}]],
        ),
    ]


class Fork(Body):
    """The body of a request that starts a new trial from a checkpoint of an existing one."""

    checkpoint_id: Annotated[
        str | None,
        Field(max_length=100, description="a checkpoint of the existing trial; null: its newest usable checkpoint"),
    ] = None
    params: Annotated[
        dict[str, Any],
        Field(
            description="params to change, as a flat mapping; all other params are copied from the existing trial",
            examples=[{"lr": 0.001}],
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it


class Segment(shown(SegmentRecord, leave_out=("source_ordinal",))):  # type: ignore[misc]
    """One uninterrupted execution of a trial, with one configuration and one starting checkpoint."""


class SegmentItem(shown(SegmentRecord, leave_out=("public_id", "source_checkpoint", "placement"))):  # type: ignore[misc]
    """A segment in the list of all segments of an experiment."""

    trial_number: Annotated[int, Field(description="the number of the trial that the segment belongs to")]

    @classmethod
    def of(cls, item: TrialSegment) -> Self:
        return cls(**values(item.segment), trial_number=item.trial)


class SegmentPage(PageOf[SegmentItem]):
    pass


class Trial(shown(TrialRecord)):  # type: ignore[misc]
    """One configuration under evaluation, with its newest results."""

    # These fields differ from those of `TrialRecord`, which declares the rest.
    last: Annotated[dict[str, Number], Field(description="the newest value of each metric that the trial has reported")]
    error: Annotated[
        Failure | None,
        Field(
            validation_alias="failure",
            description="the latest failure of the trial, even if it was retried afterwards; null: no failure",
        ),
    ]
    checkpoint: Annotated[Checkpoint | None, Field(description="the trial's newest usable checkpoint")]
    actions: Annotated[
        list[TrialAction],
        Field(
            description=(
                "the actions that the trial's state allows now: verbs, and fork if a new trial can start from its newest "
                "checkpoint"
            )
        ),
    ] = []  # noqa: RUF012 - pydantic copies it

    @classmethod
    def of(cls, record: TrialRecord, experiment: ExperimentRecord) -> Self:
        found: Self = cls.model_validate(record, from_attributes=True)
        found.actions = trial_actions(record, experiment)
        return found


class TrialPage(PageOf[Trial]):
    total: Annotated[int, Field(description="the total number of trials on all pages")]
    fronts: Annotated[
        list[int | None],
        Field(
            description="the front of each trial in `items`, from 1 for the Pareto front; null for a trial on none; empty unless "
            "the request asks for fronts"
        ),
    ] = []  # noqa: RUF012 - pydantic copies it


class TrialSample(Model):
    """A sample of an experiment's trials: the best trials, and an even selection of the others by their best values."""

    items: Annotated[
        list[Trial], Field(description="the trials of the sample, by number; all trials if there are at most `size`")
    ]
    ranks: Annotated[
        list[int],
        Field(
            description="the rank of each trial in `items` among all trials, from 1 for the best value; after repeats, by the "
            "expected values of their configurations; with several objectives, by the front that the trial is on, so that the "
            "trials of a front share a rank; trials without a value rank last"
        ),
    ]
    fronts: Annotated[
        list[int | None],
        Field(
            description="with several objectives: the front of each trial in `items` among all trials, from 1 for the Pareto "
            "front; null for a trial on none, because a value is missing or violates the constraints; else empty"
        ),
    ]
    total: Annotated[int, Field(description="the total number of trials of the experiment")]
    trained: Annotated[
        int | None,
        Field(
            description="how many iterations all completed and stopped trials have trained, including those that restarted "
            "trials repeated; iterations after max_t do not count; null without a max_t"
        ),
    ]

    @classmethod
    def of(cls, found: TrialSampleRecord, trained: int | None, experiment: ExperimentRecord) -> Self:
        items = [Trial.of(record, experiment) for record in found.trials]
        fronts = list(found.fronts) if len(experiment.spec.objectives) > 1 else []
        return cls(items=items, ranks=list(found.ranks), fronts=fronts, total=found.total, trained=trained)


class TrialDetail(Trial):
    segments: Annotated[list[Segment], Field(description="the trial's segments, oldest first")]


class Pareto(Model):
    """The Pareto front of the trials, computed from the newest values of their objectives."""

    metrics: Annotated[list[str], Field(description="the objectives, in the order of the spec")]
    items: Annotated[list[Trial], Field(description="the trials on the front, by number; at most 1,000")]
    total: Annotated[int, Field(description="the number of trials on the front")]
    of: Annotated[int, Field(description="the number of trials that were compared")]


class Hypervolume(Model):
    """The hypervolume that the ended trials dominate, after each trial that increased it.

    It is a share of the box between the worst and the best value of each objective among all trials.
    """

    metrics: Annotated[list[str], Field(description="the objectives, in the order of the spec")]
    x: Annotated[list[float], Field(description="seconds that the experiment had been running, without pauses")]
    y: Annotated[
        list[float],
        Field(
            description="the hypervolume at these times, from 0 to 1; only some of them if there are very many; "
            "empty if no trial has ended, or if there are so many objectives that it would take too long to compute"
        ),
    ]
    front: Annotated[int, Field(description="the number of trials on the front")]
    of: Annotated[int, Field(description="the number of trials that were compared")]
