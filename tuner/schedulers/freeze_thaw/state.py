"""The state of the freeze-thaw scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FreezeThawState:
    """The results and other facts so far, and the last committed fit of the curve model."""

    # trial, level index, score (None: crashed)
    results: list[tuple[int, int, float | None]] = field(default_factory=list)
    # (trial, level index) of results that violate the constraints -> size of the violation
    excess: dict[tuple[int, int], float] = field(default_factory=dict)
    # (trial, level index) -> the trial's best score up to there, if that is better than its score at the level
    peaks: dict[tuple[int, int], float] = field(default_factory=dict)
    # trial -> its second-to-last score, its last score, and its best score within the constraints. The first two are None after a
    # restart from an earlier checkpoint
    latest: dict[int, tuple[float | None, float | None, float | None]] = field(default_factory=dict)
    furthest: dict[int, int] = field(default_factory=dict)  # trial -> the highest iteration that it has reported
    # The swings of the latest reports; see `swings.swing`.
    swings: list[tuple[float, float]] = field(default_factory=list)
    swinging: bool = False  # True while these are large, so that the model gets `peaks`
    best: float | None = None  # the best score so far, within the constraints
    # the pair (`spent`, score) each time the best score improved
    records: list[tuple[float, float]] = field(default_factory=list)
    running: dict[int, None] = field(default_factory=dict)
    # trial -> index of the highest level at which it has a result
    reached: dict[int, int] = field(default_factory=dict)
    # trial -> (t, time) of its newest report
    clock: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    ordinal: int = 0  # number of facts that a decision may depend on; part of the decision's random key
    # The trial that has just reported at a new level, if that report is the newest fact in `ordinal`.
    held: int | None = None
    asked: int = 0  # number of trials that users have added
    spent: float = 0.0  # training of all trials together, in units of time_attr
    scouts: int = 0
    scouted: float = 0.0  # the part of `spent` that went to scouts before they could be paused
    pace: list[float] = field(default_factory=list)  # seconds per unit of time_attr, of the latest reports
    startups: list[float] = field(default_factory=list)  # seconds, of the latest segments
    theta: list[float] = field(default_factory=list)  # parameters of the curve model
    fitted_at: int = 0  # number of results at the last fit
    fitted_spent: float = 0.0  # `spent` at the last fit
    fits: int = 0
    models: int = 0  # counts the changes of the search space, each of which starts a new model
    finishing: list[int] = field(default_factory=list)  # trials that were chosen to train to max_t as the leading trial
    granted: float = 0.0  # lower bound of the derived budget in full trainings, raised when users add trials
