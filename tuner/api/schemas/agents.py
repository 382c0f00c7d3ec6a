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
        description="the number of the report: at first the assignment's `iteration` plus 1, then 1 more with each report; a "
        "report that is sent twice is stored once",
        examples=[1],
    ),
]
MetricName = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
Metrics = Annotated[
    dict[MetricName, float | None],
    Field(
        min_length=1,
        max_length=1000,
        description="the numbers by metric name; null stands for NaN",
        examples=[{"loss": 0.71}],
    ),
]
Step = Annotated[
    int | None, Field(ge=-(2**63) + 1, le=2**63 - 1, description="the step count of the training code; below 2**63")
]
Uri = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=PRINTABLE,
        description="where the agent has stored the checkpoint; the agent that continues the trial gets this text unchanged",
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
            ge=1, le=86400, description="if the agent makes no call for this many seconds, its trial is started again"
        ),
    ] = DEFAULT_LEASE_S
    late_checkpoints: Annotated[
        bool,
        Field(
            description="keep the lease after a verdict that ends the training, until the agent releases it; it can then send a "
            "checkpoint first"
        ),
    ] = False


class StartCheckpoint(Model):
    """The checkpoint that a trial continues from."""

    id: Annotated[str, Field(description="ckp_...")]
    uri: Annotated[str, Field(description="the URI that was reported when the checkpoint was saved")]
    iteration: Annotated[int, Field(description="the iteration of the report that the checkpoint belongs to")]


class Assignment(Model):
    """A trial, or a part of a trial, for an agent to train."""

    lease: Annotated[str, Field(description="identifies the assignment in the URLs of all further calls")]
    lease_s: Annotated[float, Field(description="if the agent makes no call for this many seconds, the lease ends")]
    experiment_id: str
    trial_id: str
    segment_id: Annotated[str, Field(description="seg_...")]
    trial: Annotated[int, Field(description="number of the trial")]
    segment: int
    config: Annotated[Json, Field(description="the configuration, nested")]
    params: Json
    iteration: Annotated[
        int,
        Field(
            description="number of reports that the trial had made when its checkpoint was saved; 0 without a checkpoint"
        ),
    ]
    checkpoint: Annotated[
        StartCheckpoint | None, Field(description="the checkpoint to continue from; null: start from the beginning")
    ]
    next_milestone: Annotated[
        int | None,
        Field(description="the next iteration at which a decision may be made, so that a checkpoint is useful"),
    ]
    seed: Annotated[int, Field(description="the seed of the experiment")]
    metric: Annotated[str, Field(description="the objective, which every report must contain")]
    entrypoint: Annotated[str | None, Field(description="the entrypoint of the experiment, if it names one")]
    storage: Annotated[
        str, Field(description="the storage in which the driver deletes the checkpoints that it need not keep")
    ]
    space: Annotated[Json | None, Field(description="the search space")]
    stop_grace_s: Annotated[float, Field(description="seconds that an agent has to stop when `wanted` says so")]
    hang_timeout_s: Annotated[
        float | None, Field(description="if a trial makes no report for this many seconds, it counts as hung")
    ]
    checkpoint_every: Annotated[
        int | None, Field(description="the user wants a checkpoint each time after this many reports")
    ]
    checkpoint_at_milestones: Annotated[
        bool, Field(description="true if the scheduler needs a checkpoint at every milestone")
    ]
    checkpoint_at_end: Annotated[bool, Field(description="true if the user wants a checkpoint at the end")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Assignment:
        """Return the assignment in the driver's answer."""
        return cls.model_validate(found)


class AgentCheckpoint(Body):
    """A checkpoint that an agent has written."""

    uri: Uri
    bytes: Annotated[int, Field(ge=0, le=2**62, description="its size in bytes; 0: unknown")] = 0
    ready: Annotated[
        bool,
        Field(description="false while the checkpoint is being written; send it again with true when it is complete"),
    ] = True


class EarlierReport(Body):
    """A report for which the agent did not wait for a verdict."""

    iteration: Iteration
    metrics: Metrics
    step: Step = None
    checkpoint: Annotated[Uri | AgentCheckpoint | None, Field(description="the checkpoint of this report")] = None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False, description="seconds since the report was made")] = 0.0
    offer: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="the iteration at which a checkpoint could be saved next")
    ] = None


class AgentReport(EarlierReport):
    """A report of an agent."""

    waits: Annotated[
        bool, Field(description="true if the agent waits for the verdict; if false, the answer is always continue")
    ] = True
    earlier: Annotated[
        list[EarlierReport],
        Field(max_length=MOST_EARLIER, description="earlier reports that have not been sent yet, in order"),
    ] = Field(default_factory=list)


class AgentVerdict(Model):
    """The answer to a report. It is sent after the report was stored in the database."""

    verdict: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(
            description="continue: go on training; anything else: end the training. After pause, the trial continues later; "
            "after exploit, it continues with another configuration. A verdict other than continue ends the lease, unless "
            "late_checkpoints keeps it"
        ),
    ]
    reason: Annotated[str, Field(description="the reason, in words; empty for continue")]
    save_checkpoint: Annotated[bool, Field(description="true if a checkpoint of this report is wanted")]
    next_milestone: Annotated[
        int | None,
        Field(description="the next iteration at which a decision may be made, so that a checkpoint is useful"),
    ]
    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(description="the verdict that the next report will get, as in the answer to a heartbeat"),
    ]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> AgentVerdict:
        """Return the driver's answer."""
        return cls.model_validate(found)


class LateCheckpoint(AgentCheckpoint):
    """A checkpoint that is sent after its report."""

    iteration: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="the iteration of the report that the checkpoint belongs to")
    ]


class Heartbeat(Model):
    """The answer to a heartbeat."""

    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(description="stop: report or release soon; pause and exploit: the next report will get this verdict"),
    ]
    lease_s: Annotated[float, Field(description="unless the agent calls again, the lease ends after this many seconds")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Heartbeat:
        """Return the driver's answer."""
        return cls.model_validate(found)


class AgentLog(Body):
    """A piece of a trial's output."""

    text: Annotated[str | None, Field(max_length=MOST_LOG, description="the text")] = None
    data: Annotated[
        str | None, Field(max_length=2 * MOST_LOG, description="the bytes of the output in base64, in place of `text`")
    ] = None
    start: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**53,
            description="offset of the first byte, by which a repeated piece is recognised; null: it follows the previous piece",
        ),
    ] = None


class Completion(Body):
    """The end of a trial, optionally with a last report."""

    metrics: Annotated[
        dict[MetricName, float | None] | None,
        Field(description="the metrics of a last report; null: there is no further report"),
    ] = None
    iteration: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="the iteration of that report; null: the next iteration")
    ] = None
    checkpoint: Annotated[Uri | AgentCheckpoint | None, Field(description="the checkpoint of that report")] = None
    step: Step = None


class AgentFailure(Body):
    """The failure of a trial."""

    message: Annotated[str, Field(min_length=1, max_length=10_000, description="what went wrong, in one line")]
    traceback: Annotated[str, Field(max_length=200_000, description="the traceback")] = ""
    log_tail: Annotated[str, Field(max_length=200_000, description="the last lines of the trial's output")] = ""
    kind: Annotated[
        Literal["user", "system", "spec"],
        Field(
            description="user: the failure counts towards max_failures; system: the code was not the cause; "
            "spec: no retry would help"
        ),
    ] = "user"
    cause: Annotated[
        str | None, Field(max_length=50, description="one of the causes of the troubleshooting page", examples=["oom"])
    ] = None


class LeaseState(Model):
    """The answer to a request that returns no other data."""

    ended: Annotated[bool, Field(description="true if this call has ended the lease")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> LeaseState:
        """Return the driver's answer."""
        return cls.model_validate(found)
