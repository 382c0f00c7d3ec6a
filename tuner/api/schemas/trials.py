"""Trials, with their segments, checkpoints and failures."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Number, PageOf, shown, values
from tuner.domain.keys import trial_id
from tuner.experiment.trials import checkpoint_actions, trial_actions
from tuner.experiment.verbs import CheckpointAction, TrialAction
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
                "user: the trial's code failed; system: a node, process or device failed; placement: no "
                "resources; spec: the spec cannot work"
            )
        ),
    ]
    cause: Annotated[str, Field(description="exception, signal, exit, oom, hang, node_lost, ...")]
    message: Annotated[str, Field(description="the error in one line")]
    rank: Annotated[int | None, Field(description="the rank that failed first")]
    node: Annotated[str | None, Field(description="the node of that rank")]
    pid: Annotated[int | None, Field(description="the process id of that rank")]
    traceback: Annotated[str, Field(description="its Python traceback")]
    log_tail: Annotated[str, Field(description="the last lines that this rank printed")]
    stacks: Annotated[dict[str, str], Field(description="rank -> stack, if the ranks were hung")]


class Checkpoint(Model):
    id: Annotated[str, Field(description="ckpt_...")]
    uri: Annotated[str, Field(description="its path or URI")]
    step: Annotated[int, Field(description="training_iteration of the report that saved it")]
    bytes: Annotated[int, Field(description="its size")]
    node: Annotated[
        str | None,
        Field(
            description="Ray's id of the node that wrote the checkpoint; the files are on that node's disk, unless the path "
            "is shared; null if the checkpoint is at a URI"
        ),
    ] = None


class CheckpointItem(Checkpoint):
    """A checkpoint and its source."""

    experiment_id: Annotated[str, Field(description="exp_...")]
    trial_id: Annotated[str, Field(description="trl_...")]
    trial_number: Annotated[int, Field(description="the number of the trial that saved it")]
    segment: Annotated[int, Field(description="the ordinal of the segment that saved it")]
    state: Annotated[Literal["uploading", "ready", "deleted"], Field(description="ready: its files can be used")]
    pinned: Annotated[
        bool, Field(description="true if it is pinned, so that the experiment's policy does not delete it")
    ]
    actions: Annotated[list[CheckpointAction], Field(description="the actions that its state allows now")]

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
    """Configurations to try next."""

    configurations: Annotated[
        list[dict[str, Any]],
        Field(
            min_length=1,
            max_length=1000,
            description="flat or nested params; missing ones are drawn at random",
            examples=[[{"lr": 0.01, "width": 64}, {"lr": 0.1}]],
        ),
    ]


class Fork(Body):
    """A new trial from a checkpoint of this one."""

    checkpoint_id: Annotated[
        str | None, Field(max_length=100, description="one of the trial's checkpoints; null: the newest usable one")
    ] = None
    params: Annotated[
        dict[str, Any],
        Field(description="flat params to change; the others are copied from the trial", examples=[{"lr": 0.001}]),
    ] = {}  # noqa: RUF012 - pydantic copies it


class Segment(shown(SegmentRecord, leave_out=("source_ordinal",))):  # type: ignore[misc]
    """One uninterrupted execution of a trial, with one configuration and one starting checkpoint."""


class SegmentItem(shown(SegmentRecord, leave_out=("public_id", "source_checkpoint", "placement"))):  # type: ignore[misc]
    """A segment in the list of all segments of an experiment."""

    trial_number: Annotated[int, Field(description="the number of its trial")]

    @classmethod
    def of(cls, item: TrialSegment) -> Self:
        return cls(**values(item.segment), trial_number=item.trial)


class SegmentPage(PageOf[SegmentItem]):
    pass


class Trial(shown(TrialRecord)):  # type: ignore[misc]
    """One configuration under evaluation, with its newest results."""

    # `TrialRecord` declares the other fields; these have another form in the API.
    last: Annotated[dict[str, Number], Field(description="the newest value of each metric")]
    error: Annotated[
        Failure | None, Field(validation_alias="failure", description="the latest failure, even if a retry followed")
    ]
    checkpoint: Annotated[Checkpoint | None, Field(description="the newest usable checkpoint")]
    actions: Annotated[
        list[TrialAction],
        Field(
            description=(
                "the actions that its state allows now: verbs, and fork if a trial can start from its newest checkpoint"
            )
        ),
    ] = []  # noqa: RUF012 - pydantic copies it

    @classmethod
    def of(cls, record: TrialRecord, experiment: ExperimentRecord) -> Self:
        found: Self = cls.model_validate(record, from_attributes=True)
        found.actions = trial_actions(record, experiment)
        return found


class TrialPage(PageOf[Trial]):
    total: Annotated[int, Field(description="number of matching trials on all pages")]


class TrialSample(Model):
    """A sample of an experiment's trials: the best trials, and trials spread evenly over the lower ranks."""

    items: Annotated[list[Trial], Field(description="ordered by number; all trials if there are at most `size`")]
    ranks: Annotated[
        list[int],
        Field(
            description="the rank of each item among all trials by best value, from 1; trials without a value are last"
        ),
    ]
    total: Annotated[int, Field(description="number of all trials")]
    trained: Annotated[
        int | None,
        Field(
            description="sum of the iterations of all completed and stopped trials, at most max_t each; null without a max_t"
        ),
    ]

    @classmethod
    def of(cls, found: TrialSampleRecord, trained: int | None, experiment: ExperimentRecord) -> Self:
        items = [Trial.of(record, experiment) for record in found.trials]
        return cls(items=items, ranks=list(found.ranks), total=found.total, trained=trained)


class TrialDetail(Trial):
    segments: Annotated[list[Segment], Field(description="its segments, oldest first")]


class Pareto(Model):
    """The Pareto front, by the newest values of the trials."""

    metrics: Annotated[list[str], Field(description="the objectives, in the order of the spec")]
    items: Annotated[list[Trial], Field(description="ordered by number; at most 1,000")]
    total: Annotated[int, Field(description="number of trials on the front")]
    of: Annotated[int, Field(description="number of trials that were compared")]
