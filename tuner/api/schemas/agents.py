"""The messages of agents: programs on other machines that ask for trials over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Json, Model
from tuner.domain.experiment import PRINTABLE

MOST_EARLIER = 1000
MOST_LOG = 1024 * 1024
DEFAULT_WAIT_S, LONGEST_WAIT_S = 20.0, 60.0
DEFAULT_LEASE_S = 60.0

Iteration = Annotated[
    int,
    Field(
        ge=1,
        le=2**31 - 1,
        description="counts the reports of the trial: one more than the assignment's `iteration` at first, then one more each "
        "time; a report that is sent again is stored once",
        examples=[1],
    ),
]
MetricName = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
Metrics = Annotated[
    dict[MetricName, float | None],
    Field(
        min_length=1, max_length=1000, description="the numbers; null is not a number (NaN)", examples=[{"loss": 0.71}]
    ),
]
Step = Annotated[
    int | None, Field(ge=-(2**63) + 1, le=2**63 - 1, description="the training code's own count; below 2**63")
]
Uri = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=PRINTABLE,
        description="the place of the checkpoint; the agent that continues the trial gets this text unchanged",
        examples=["s3://bucket/trial-0/epoch-1.pt"],
    ),
]


class AssignmentRequest(Body):
    """The body with which an agent asks for a trial."""

    agent: Annotated[
        str | None,
        Field(
            max_length=200, pattern=PRINTABLE, description="name of the agent; null: its address", examples=["gpu-7"]
        ),
    ] = None
    request: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=100,
            description="a name for this request; a repeated request with the same name gets the same trial",
            examples=["gpu-7-0001"],
        ),
    ] = None
    wait_s: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for a trial before the answer is 204")
    ] = DEFAULT_WAIT_S
    lease_s: Annotated[
        float,
        Field(
            ge=1, le=86400, description="seconds without a call from the agent after which its trial is started again"
        ),
    ] = DEFAULT_LEASE_S
    late_checkpoints: Annotated[
        bool,
        Field(
            description="keep the lease after a verdict to leave until the agent releases it, so that a checkpoint can follow"
        ),
    ] = False


class StartCheckpoint(Model):
    """The checkpoint that a trial continues from."""

    id: Annotated[str, Field(description="ckp_...")]
    uri: Annotated[str, Field(description="the URI that the agent that saved it has reported")]
    iteration: Annotated[int, Field(description="the report that it belongs to")]


class Assignment(Model):
    """A trial, or a part of one, that an agent should train."""

    lease: Annotated[str, Field(description="names the assignment in the addresses of all further calls")]
    lease_s: Annotated[float, Field(description="seconds without a call from the agent after which the lease ends")]
    experiment_id: str
    trial_id: str
    segment_id: Annotated[str, Field(description="seg_...")]
    trial: Annotated[int, Field(description="number of the trial")]
    segment: int
    config: Annotated[Json, Field(description="the configuration, nested")]
    params: Json
    iteration: Annotated[
        int, Field(description="number of reports that the trial had made at its checkpoint; 0 without one")
    ]
    checkpoint: Annotated[
        StartCheckpoint | None, Field(description="the checkpoint to continue from; null: start from the beginning")
    ]
    next_milestone: Annotated[
        int | None,
        Field(description="the next iteration at which a decision may be made, so that a checkpoint is useful"),
    ]
    seed: Annotated[int, Field(description="the seed of the experiment")]
    metric: Annotated[str, Field(description="the objective, which reports must have")]
    entrypoint: Annotated[str | None, Field(description="the entrypoint of the experiment, if it names one")]
    storage: Annotated[str, Field(description="the place in which the driver deletes checkpoints when they expire")]
    space: Annotated[Json | None, Field(description="the search space")]
    stop_grace_s: Annotated[float, Field(description="seconds that an agent has to stop when `wanted` says so")]
    hang_timeout_s: Annotated[float | None, Field(description="seconds without a report that count as a hang")]
    checkpoint_every: Annotated[int | None, Field(description="reports between the checkpoints that the user wants")]
    checkpoint_at_milestones: Annotated[bool, Field(description="whether the scheduler needs one at every milestone")]
    checkpoint_at_end: Annotated[bool, Field(description="whether the user wants a checkpoint at the end")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Assignment:
        """Return the assignment in the driver's answer."""
        return cls.model_validate(found)


class AgentCheckpoint(Body):
    """A checkpoint that an agent has written."""

    uri: Uri
    bytes: Annotated[int, Field(ge=0, le=2**62, description="its size, if that is known")] = 0
    ready: Annotated[
        bool, Field(description="false while it is being written; send it again with true when it is complete")
    ] = True


class EarlierReport(Body):
    """A report for which the agent did not wait for a verdict."""

    iteration: Iteration
    metrics: Metrics
    step: Step = None
    checkpoint: Annotated[Uri | AgentCheckpoint | None, Field(description="the checkpoint that belongs to it")] = None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False, description="seconds since it was made")] = 0.0
    offer: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="the iteration at which a checkpoint could be saved next")
    ] = None


class AgentReport(EarlierReport):
    """A report of an agent."""

    waits: Annotated[
        bool, Field(description="whether the agent waits for the verdict; if not, the answer is always to continue")
    ] = True
    earlier: Annotated[
        list[EarlierReport],
        Field(max_length=MOST_EARLIER, description="reports before this one that have not been sent, in their order"),
    ] = Field(default_factory=list)


class AgentVerdict(Model):
    """The answer to a report. The report is in the database by then."""

    verdict: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(
            description="continue: train on; anything else: leave, the lease has ended. After pause the trial continues later, "
            "after exploit with another configuration"
        ),
    ]
    reason: Annotated[str, Field(description="the reason, in words; empty for continue")]
    save_checkpoint: Annotated[bool, Field(description="whether a checkpoint of this report is wanted")]
    next_milestone: Annotated[
        int | None,
        Field(description="the next iteration at which a decision may be made, so that a checkpoint is useful"),
    ]
    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(description="the action of the next verdict, as for heartbeats"),
    ]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> AgentVerdict:
        """Return the driver's answer."""
        return cls.model_validate(found)


class LateCheckpoint(AgentCheckpoint):
    """A checkpoint that comes after its report."""

    iteration: Annotated[int, Field(ge=0, le=2**31 - 1, description="the report that it belongs to")]


class Heartbeat(Model):
    """The answer to a heartbeat."""

    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(description="stop: report or release soon; pause and exploit: the next report will get this verdict"),
    ]
    lease_s: Annotated[float, Field(description="seconds until the lease ends, unless the agent calls again")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Heartbeat:
        """Return the driver's answer."""
        return cls.model_validate(found)


class AgentLog(Body):
    """A piece of a trial's output."""

    text: Annotated[str | None, Field(max_length=MOST_LOG, description="the text")] = None
    data: Annotated[
        str | None, Field(max_length=2 * MOST_LOG, description="instead of the text: its bytes in base64")
    ] = None
    start: Annotated[
        int | None,
        Field(
            ge=0, le=2**53, description="offset of its first byte, for repeated pieces; null: after the previous piece"
        ),
    ] = None


class Completion(Body):
    """The end of a trial, maybe with a last report."""

    metrics: Annotated[
        dict[MetricName, float | None] | None, Field(description="a last report; null: the reports so far are all")
    ] = None
    iteration: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="the iteration of that report; null: it follows")
    ] = None
    checkpoint: Annotated[Uri | AgentCheckpoint | None, Field(description="the checkpoint that belongs to it")] = None
    step: Step = None


class AgentFailure(Body):
    """The failure of a trial."""

    message: Annotated[str, Field(min_length=1, max_length=10_000, description="what went wrong, in one line")]
    traceback: Annotated[str, Field(max_length=200_000, description="where")] = ""
    log_tail: Annotated[str, Field(max_length=200_000, description="the last lines of its output")] = ""
    kind: Annotated[
        Literal["user", "system", "spec"],
        Field(
            description="user: it counts against max_failures; system: it was not the code; spec: no retry would help"
        ),
    ] = "user"
    cause: Annotated[
        str | None, Field(max_length=50, description="one of the causes of the troubleshooting page", examples=["oom"])
    ] = None


class LeaseState(Model):
    """The answer to a request that returns no other data."""

    ended: Annotated[bool, Field(description="whether the lease has ended with this call")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> LeaseState:
        """Return the driver's answer."""
        return cls.model_validate(found)
