"""Define the messages of agents. Agents are programs on other machines that ask for trials over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Json, Model
from tuner.domain.experiment import PRINTABLE
from tuner.trials.training.metrics import LONGEST_NAME

MOST_EARLIER = 1000
MOST_LOG = 1024 * 1024
DEFAULT_WAIT_S, LONGEST_WAIT_S = 20.0, 60.0
DEFAULT_LEASE_S = 60.0

Iteration = Annotated[
    int,
    Field(
        ge=1,
        le=2**31 - 1,
        description="the number of the report: the assignment's `iteration` plus 1 for the first report, and 1 more for each "
        "further report; a report that is sent twice is stored once",
        examples=[1],
    ),
]
MetricName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=PRINTABLE)]
Value = float | Literal["Infinity", "-Infinity"] | None
Metrics = Annotated[
    dict[MetricName, Value],
    Field(
        description="the values of the metrics by name; null stands for NaN, and the infinities are texts",
        examples=[{"loss": 0.71}],
    ),
]
Step = Annotated[
    int | None,
    Field(
        ge=-(2**63) + 1, le=2**63 - 1, description="the step count that the training code passed, if any; below 2**63"
    ),
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
    """The body of a request by which an agent asks for a trial."""

    agent: Annotated[
        str | None,
        Field(
            max_length=200,
            pattern=PRINTABLE,
            description="the name of the agent; null: its IP address is used",
            examples=["gpu-7"],
        ),
    ] = None
    request: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=100,
            description="a key that identifies this request; if it is repeated with the same key, it gets the same trial",
            examples=["gpu-7-0001"],
        ),
    ] = None
    wait_s: Annotated[
        float,
        Field(
            ge=0,
            le=LONGEST_WAIT_S,
            description="seconds to wait until a trial is available; after that the response is 204",
        ),
    ] = DEFAULT_WAIT_S
    lease_s: Annotated[
        float,
        Field(
            ge=1,
            le=86400,
            description="if the agent sends no request for this many seconds, its trial is given to another agent",
        ),
    ] = DEFAULT_LEASE_S
    late_checkpoints: Annotated[
        bool,
        Field(
            description="true: a verdict that ends the training does not end the lease, so that the agent can still send a "
            "checkpoint; the agent then has to release the lease"
        ),
    ] = False


class StartCheckpoint(Model):
    """The checkpoint that a trial continues from."""

    id: Annotated[str, Field(description="ckp_...")]
    uri: Annotated[str, Field(description="the URI of the checkpoint, as reported by the agent that saved it")]
    iteration: Annotated[int, Field(description="the iteration of the report that the checkpoint belongs to")]


class Assignment(Model):
    """A trial that an agent gets to train, from the beginning or from a checkpoint."""

    lease: Annotated[str, Field(description="identifies the assignment in the URLs of the agent's further requests")]
    lease_s: Annotated[float, Field(description="if the agent sends no request for this many seconds, the lease ends")]
    experiment_id: str
    trial_id: str
    segment_id: str
    trial: Annotated[int, Field(description="number of the trial")]
    segment: int
    config: Annotated[Json, Field(description="the configuration, nested")]
    params: Json
    iteration: Annotated[
        int,
        Field(
            description="the number of reports that the trial had made when the checkpoint was saved; 0 without a checkpoint"
        ),
    ]
    checkpoint: Annotated[
        StartCheckpoint | None, Field(description="the checkpoint to continue from; null: train from the beginning")
    ]
    next_milestone: Annotated[
        int | None,
        Field(
            description="the next iteration at which the trial may be paused or stopped; a checkpoint is useful there"
        ),
    ]
    seed: Annotated[int, Field(description="the seed of the experiment")]
    metric: Annotated[str, Field(description="the first objective, a metric that every report must contain")]
    entrypoint: Annotated[str | None, Field(description="the entrypoint of the experiment; null if the spec has none")]
    storage: Annotated[
        str,
        Field(description="the experiment's storage; the driver deletes checkpoints there that are no longer needed"),
    ]
    space: Annotated[Json | None, Field(description="the search space")]
    stop_grace_s: Annotated[
        float, Field(description="seconds that the agent has to stop the training once `wanted` asks for it")
    ]
    hang_timeout_s: Annotated[
        float | None,
        Field(description="if the trial makes no report for this many seconds, it counts as hung; null: no limit"),
    ]
    checkpoint_every: Annotated[
        int | None,
        Field(
            description="the number of reports from one checkpoint to the next, as the user configured it; null: not configured"
        ),
    ]
    checkpoint_at_milestones: Annotated[
        bool, Field(description="true if the scheduler needs a checkpoint at every milestone")
    ]
    checkpoint_at_end: Annotated[
        bool, Field(description="true if the user wants a checkpoint at the end of the training")
    ]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Assignment:
        """Return the driver's answer as this model."""
        return cls.model_validate(found)


class AgentCheckpoint(Body):
    """A checkpoint that an agent has written."""

    uri: Uri
    bytes: Annotated[int, Field(ge=0, le=2**62, description="the size of the checkpoint in bytes; 0: unknown")] = 0
    ready: Annotated[
        bool,
        Field(description="false while the checkpoint is being written; send true once it is complete"),
    ] = True


class EarlierReport(Body):
    """A report after which the agent continued to train without waiting for a verdict."""

    iteration: Iteration
    metrics: Metrics
    step: Step = None
    checkpoint: Annotated[
        Uri | AgentCheckpoint | None, Field(description="the checkpoint that was saved with this report, or its URI")
    ] = None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False, description="seconds since the report was made")] = 0.0
    offer: Annotated[
        int | None,
        Field(ge=1, le=2**31 - 1, description="the next iteration at which the training code can save a checkpoint"),
    ] = None


class AgentReport(EarlierReport):
    """A report that an agent sends, with earlier reports that have not been sent yet."""

    waits: Annotated[
        bool,
        Field(description="true if the agent waits for the verdict; if it does not, the verdict is always continue"),
    ] = True
    last: Annotated[
        bool,
        Field(
            description="true if the training has ended with this report, and `complete` follows: the trial is not paused or "
            "stopped early"
        ),
    ] = False
    earlier: Annotated[
        list[EarlierReport],
        Field(
            max_length=MOST_EARLIER,
            description="the earlier reports of this trial that have not been sent yet, oldest first",
        ),
    ] = Field(default_factory=list)


class AgentVerdict(Model):
    """The answer to a report. It is sent once the report is stored in the database."""

    verdict: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(
            description="continue: continue training; all other verdicts: end the training. After pause, the trial continues "
            "later; after exploit, it continues with another configuration. All verdicts except continue also end the lease, "
            "unless the request for the assignment set late_checkpoints"
        ),
    ]
    reason: Annotated[str, Field(description="the reason for the verdict, in words; empty for continue")]
    completed: Annotated[
        bool,
        Field(
            description="true with the verdict stop if the trial has reached max_t or a stop criterion; false if it is "
            "stopped early"
        ),
    ]
    save_checkpoint: Annotated[
        bool, Field(description="true if the agent should save a checkpoint that belongs to this report")
    ]
    next_milestone: Annotated[
        int | None,
        Field(
            description="the next iteration at which the trial may be paused or stopped; a checkpoint is useful there"
        ),
    ]
    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(description="the verdict that the next report will get, if it is known already"),
    ]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> AgentVerdict:
        """Return the driver's answer as this model."""
        return cls.model_validate(found)


class LateCheckpoint(AgentCheckpoint):
    """A checkpoint that an agent sends after the report that it belongs to."""

    iteration: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="the iteration of the report that the checkpoint belongs to")
    ]


class Heartbeat(Model):
    """The answer to a heartbeat, by which an agent renews its lease."""

    wanted: Annotated[
        Literal["continue", "pause", "stop", "exploit"],
        Field(
            description="the verdict that the next report will get, if it is known already; stop: report or release soon"
        ),
    ]
    lease_s: Annotated[
        float, Field(description="the lease ends in this many seconds, unless the agent sends another request")
    ]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Heartbeat:
        """Return the driver's answer as this model."""
        return cls.model_validate(found)


class AgentLog(Body):
    """A piece of what a trial prints, as `text` or as `data`."""

    text: Annotated[str | None, Field(max_length=MOST_LOG, description="the output as text")] = None
    data: Annotated[
        str | None, Field(max_length=2 * MOST_LOG, description="the bytes of the output in base64, instead of `text`")
    ] = None
    start: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**53,
            description="the offset of the first byte in the whole output, so that a piece that is sent twice is stored once; "
            "null: this piece follows the previous one",
        ),
    ] = None


class Completion(Body):
    """The body of a request that ends a trial, optionally with a last report."""

    metrics: Annotated[
        dict[MetricName, Value] | None,
        Field(description="the metrics of the last report; null: there is no last report"),
    ] = None
    iteration: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="the iteration of the last report; null: the iteration of the previous report plus 1",
        ),
    ] = None
    checkpoint: Annotated[
        Uri | AgentCheckpoint | None,
        Field(description="the checkpoint that was saved with the last report, or its URI"),
    ] = None
    step: Step = None


class AgentFailure(Body):
    """The body of a request that says why a trial has failed."""

    message: Annotated[str, Field(min_length=1, max_length=10_000, description="what went wrong, in one line")]
    traceback: Annotated[str, Field(max_length=200_000, description="the traceback")] = ""
    log_tail: Annotated[str, Field(max_length=200_000, description="the last lines of the trial's output")] = ""
    kind: Annotated[
        Literal["user", "system", "spec"],
        Field(
            description="user: the trial's code failed, which counts towards max_failures; system: something other than the "
            "code failed; spec: the spec cannot work, so a retry would not help"
        ),
    ] = "user"
    cause: Annotated[
        str | None,
        Field(max_length=50, description="one of the causes that docs/troubleshooting.md lists", examples=["oom"]),
    ] = None


class LeaseState(Model):
    """The answer to a request about a lease: whether the lease has ended."""

    ended: Annotated[bool, Field(description="true if this request has ended the lease")]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> LeaseState:
        """Return the driver's answer as this model."""
        return cls.model_validate(found)
