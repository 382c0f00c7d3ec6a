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
            description="user: its code; system: a node, a process or a device; placement: no room; spec: it cannot work"
        ),
    ]
    cause: Annotated[str, Field(description="exception, signal, exit, oom, hang, node_lost, ...")]
    message: Annotated[str, Field(description="one line: what went wrong")]
    rank: Annotated[int | None, Field(description="the rank that failed first")]
    node: Annotated[str | None, Field(description="the node of that rank")]
    pid: Annotated[int | None, Field(description="the process of that rank")]
    traceback: Annotated[str, Field(description="its Python traceback")]
    log_tail: Annotated[str, Field(description="the last lines that it printed")]
    stacks: Annotated[dict[str, str], Field(description="rank -> stack, if the ranks were hung")]


class Checkpoint(Model):
    id: Annotated[str, Field(description="ckpt_...")]
    uri: Annotated[str, Field(description="where it is stored")]
    step: Annotated[int, Field(description="training_iteration of the report that saved it")]
    bytes: Annotated[int, Field(description="its size")]
    node: Annotated[
        str | None,
        Field(
            description="Ray's id of the node that wrote it; its disk has it, unless nodes share the path. null at a URI"
        ),
    ] = None


class CheckpointItem(Checkpoint):
    """A checkpoint, with where it comes from."""

    experiment_id: Annotated[str, Field(description="exp_...")]
    trial_id: Annotated[str, Field(description="trl_...")]
    trial_number: Annotated[int, Field(description="the number of the trial that saved it")]
    segment: Annotated[int, Field(description="the ordinal of the segment that saved it")]
    state: Annotated[Literal["uploading", "ready", "deleted"], Field(description="whether its files can be used")]
    pinned: Annotated[bool, Field(description="it is kept, whatever the policy of the experiment says")]
    actions: Annotated[list[CheckpointAction], Field(description="what can be done with it now")]

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
            description="flat or nested params; what one leaves out is drawn at random",
            examples=[[{"lr": 0.01, "width": 64}, {"lr": 0.1}]],
        ),
    ]


class Fork(Body):
    """A new trial from a checkpoint of this one."""

    checkpoint_id: Annotated[
        str | None, Field(max_length=100, description="one of the trial's; null: the newest that can be used")
    ] = None
    params: Annotated[
        dict[str, Any], Field(description="flat params to change; the others are the trial's", examples=[{"lr": 0.001}])
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
    """One configuration that is evaluated, with its newest results."""

    # `TrialRecord` declares the other fields; those here look different in the API.
    last: Annotated[dict[str, Number], Field(description="the newest value of each metric")]
    error: Annotated[
        Failure | None, Field(validation_alias="failure", description="the latest failure, even if a retry followed")
    ]
    checkpoint: Annotated[Checkpoint | None, Field(description="the newest usable checkpoint")]
    actions: Annotated[
        list[TrialAction],
        Field(description="what its state allows now: verbs, and fork if a trial can start from its newest checkpoint"),
    ] = []  # noqa: RUF012 - pydantic copies it

    @classmethod
    def of(cls, record: TrialRecord, experiment: ExperimentRecord) -> Self:
        found: Self = cls.model_validate(record, from_attributes=True)
        found.actions = trial_actions(record, experiment)
        return found


class TrialPage(PageOf[Trial]):
    total: Annotated[int, Field(description="how many trials match, on all pages together")]


class TrialSample(Model):
    """Some of an experiment's trials: the best ones, and others that are spread evenly over the ranks behind them."""

    items: Annotated[list[Trial], Field(description="by number; all trials, if there are no more than were asked for")]
    ranks: Annotated[
        list[int],
        Field(
            description="the place of each item by best value among all trials, from 1; those without a value are last"
        ),
    ]
    total: Annotated[int, Field(description="how many trials there are")]
    trained: Annotated[
        int | None,
        Field(description="iterations of all completed and stopped trials, at most max_t each; null without a max_t"),
    ]

    @classmethod
    def of(cls, found: TrialSampleRecord, trained: int | None, experiment: ExperimentRecord) -> Self:
        items = [Trial.of(record, experiment) for record in found.trials]
        return cls(items=items, ranks=list(found.ranks), total=found.total, trained=trained)


class TrialDetail(Trial):
    segments: Annotated[list[Segment], Field(description="in the order in which they ran")]


class Pareto(Model):
    """The trials that no other one beats in all objectives, by their newest values."""

    metrics: Annotated[list[str], Field(description="the objectives, in their order")]
    items: Annotated[list[Trial], Field(description="by number, at most 1,000")]
    total: Annotated[int, Field(description="how many trials are on the front")]
    of: Annotated[int, Field(description="how many trials were compared")]
