"""Build a core from a spec, with the scheduler, the searcher and the stopper that the spec names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.domain.experiment import Spec
from tuner.driver.core import Core
from tuner.errors import ErrorCollector
from tuner.schedulers import from_json as scheduler_from_json
from tuner.schedulers import has_one_trial
from tuner.schedulers.base import MetricConstraint, Scheduler, SchedulerContext
from tuner.schedulers.stoppers import Stopper
from tuner.schedulers.stoppers import from_json as stopper_from_json
from tuner.search import from_json as searcher_from_json
from tuner.search.base import Searcher, SearcherContext
from tuner.space import Space
from tuner.space.meant import meant_as_parameters

DEFAULT_SAMPLES = 100
"""The number of trials to start if neither num_samples nor a time budget is set."""
BY_OBJECTIVE = frozenset(["asha_promotion", "hyperband", "median", "moasha", "pbt", "pb2"])
"""The types of the schedulers that compared trials by the objective alone in the version before, whatever the constraints."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that a Python caller passed in place of the scheduler, searcher or stopper that the spec names."""

    scheduler: Scheduler | None = None
    searcher: Searcher | None = None
    stopper: Stopper | None = None


def assemble(spec: Spec, space: Space, parts: Parts | None = None, *, saves_checkpoints: bool | None = None) -> Core:
    """Return the core of a new or a stored experiment. The arguments and errors are those of `set_up`."""
    return Core(*set_up(spec, space, parts, saves_checkpoints=saves_checkpoints))


def set_up(
    spec: Spec, space: Space, parts: Parts | None = None, *, saves_checkpoints: bool | None = None
) -> tuple[Spec, Scheduler, Searcher, Stopper | None, list[str]]:
    """Set up the parts of a core. Return the spec completed with the options that they determine, the parts, and user notes.

    saves_checkpoints: whether the training function saves checkpoints; None if that is unknown.

    Raises:
        SpecError: the scheduler, searcher and stopper do not fit the space or each other. The error lists every mistake.
    """
    parts = parts or Parts()
    searches = spec.search.get("type") if parts.searcher is None else parts.searcher.TYPE
    searched = bool(len(space)) or space.has_functions or searches == "define_by_run"
    notes = list(meant_as_parameters(spec.space, searched))
    spec = _with_num_samples(spec, space, parts, searches, notes)
    scheduler, searcher, why = _choose(spec, space, parts, saves_checkpoints)
    if why:
        notes.append(why)
    notes += spec.earlier.get("notes", ())
    stopper = parts.stopper
    if stopper is None and spec.stop:
        stopper = stopper_from_json(spec.stop)
    time_attr = getattr(scheduler, "time_attr", None)
    if time_attr and spec.time_attr == "training_iteration":
        spec = replace(spec, time_attr=time_attr)  # the scheduler's own time_attr becomes the experiment's
    mistakes = ErrorCollector()
    with mistakes:
        searcher.setup(_searcher_context(spec, space, scheduler))
    grid = not scheduler.PROPOSES and not mistakes.found  # a grid has more points than num_samples
    total = searcher.total() if grid else spec.num_samples
    context = _context(spec, space, saves_checkpoints, total, _constraints(spec, scheduler, searcher))
    with mistakes:
        scheduler.setup(context)
    spec = _with_max_t(spec, scheduler, notes)
    mistakes.found += _unsupported(spec, space, scheduler, why)
    if stopper is not None:
        with mistakes:
            stopper.setup(context)
    mistakes.check()
    if (words := scheduler.budget_words()) is not None:
        notes.append(f"budget: {words}")
    return spec, scheduler, searcher, stopper, notes


def _with_num_samples(spec: Spec, space: Space, parts: Parts, searches: str | None, notes: list[str]) -> Spec:
    """Set the number of samples if the spec has neither one nor a time budget. Add a note unless it is 1.

    searches: the type of the searcher.
    """
    if spec.num_samples is not None or spec.limits.time_budget_s is not None or searches == "grid":
        return spec
    one = has_one_trial(spec.scheduler) if parts.scheduler is None else parts.scheduler.ONE_TRIAL
    old = spec.resolved and "num_samples" not in spec.resolved  # the version before ran mixed grids 100 times
    grid = space.has_grid and (not old or all(p.grid for p in space.parameters))
    if one or not len(space) or grid:
        return replace(spec, num_samples=1)
    notes.append(f"neither num_samples nor a time budget is set: at most {DEFAULT_SAMPLES} trials are started")
    return replace(spec, num_samples=DEFAULT_SAMPLES)


def _with_max_t(spec: Spec, scheduler: Scheduler, notes: list[str]) -> Spec:
    """Give the experiment the scheduler's own max_t if it is the smaller or the only one. Add a note if there are two.

    A scheduler's max_t ends trials as the experiment's max_t does. The scheduler itself ends them at a fraction.
    """
    own = getattr(scheduler, "max_t", None)
    if not isinstance(own, int | float) or own == spec.max_t or scheduler.TYPE == "fifo":
        return spec
    if spec.max_t is not None:
        both = f"the experiment's max_t is {spec.max_t}, and the scheduler's own is {own:.15g}"
        notes.append(f"trials end at max_t {min(own, spec.max_t):.15g}, the smaller of two: {both}")
        if own >= spec.max_t:
            return spec
    return replace(spec, max_t=int(own) if own == int(own) else None)


def _unsupported(spec: Spec, space: Space, scheduler: Scheduler, why: str | None) -> Iterator[tuple[str, str]]:
    """Yield the place and the message of each setting that the scheduler does not support.

    why: the reason if the scheduler was chosen here.
    """
    if len(spec.objectives) > 1 and not scheduler.SEVERAL_OBJECTIVES:
        message = (
            f"{scheduler.TYPE} supports only one objective; use moasha to stop trials early by several objectives, "
            "or fifo to stop none early"
        )
        yield "/scheduler", message
    if spec.limits.budget is not None and not scheduler.COUNTS_BUDGET:
        chosen = f" ({why})" if why else ""
        message = (
            f"the {scheduler.TYPE} scheduler{chosen} does not support a budget of full trainings: limit the search with "
            "num_samples or time_budget_s, or use the freeze_thaw scheduler"
        )
        yield "/limits/budget", message
    if spec.limits.repeats != 0 and (never := why_no_repeats(spec, space, type(scheduler))) is not None:
        yield "/limits/repeats", never


def runs_grid(spec: Spec) -> bool:
    """Return whether the search runs a grid. If so, num_samples is how often it does, and no number means once."""
    search = spec.resolved.get("search") or spec.search
    return search.get("type") == "grid" or Space.from_json(spec.space, opaque=True).has_grid


def why_no_repeats(spec: Spec, space: Space, scheduler: type[Scheduler]) -> str | None:
    """Return why this experiment's configurations cannot be evaluated again; None if they can."""
    if len(spec.objectives) > 1:
        return "leading configurations are repeated only in experiments with one objective: leave repeats out"
    if scheduler.SAVES_AT_MILESTONES or scheduler.ONE_TRIAL:
        return (
            f"{scheduler.TYPE} changes configurations during training, so a trial cannot be repeated: leave repeats out"
        )
    if space.has_functions:
        return "sample_from functions draw new values for each trial, so a trial cannot be repeated: leave repeats out"
    return None


def _constraints(spec: Spec, scheduler: Scheduler, searcher: Searcher) -> tuple[MetricConstraint, ...]:
    """Return the searcher's constraints on metrics, by which the scheduler ranks trials, too.

    Return none if the previous version of tuner started the experiment with a scheduler that ranks by objective. That scheduler
    made the decisions in the log without the constraints, and one that ranks by them could not follow this log.
    """
    before = spec.resolved and "constraints_rank" not in spec.resolved and scheduler.TYPE in BY_OBJECTIVE
    return () if before else tuple(searcher.metric_constraints())


def _searcher_context(spec: Spec, space: Space, scheduler: Scheduler) -> SearcherContext:
    return SearcherContext(
        space=space,
        objectives=spec.objectives,
        seed=spec.seed,
        num_samples=spec.num_samples,
        scope=spec.scope,
        points_to_evaluate=_first_points(spec, scheduler),
    )


def _context(
    spec: Spec,
    space: Space,
    saves_checkpoints: bool | None,
    num_samples: int | None,
    constraints: tuple[MetricConstraint, ...] = (),
) -> SchedulerContext:
    return SchedulerContext(
        objective=spec.objective,
        objectives=spec.objectives,
        time_attr=spec.time_attr,
        max_t=spec.max_t,
        num_samples=num_samples,
        seed=spec.seed,
        space=space,
        slots=spec.limits.max_concurrent_trials,
        checkpoints=saves_checkpoints is not False,
        time_budget_s=spec.limits.time_budget_s,
        scope=spec.scope,
        budget=spec.limits.budget,
        given_points=len(spec.points_to_evaluate),
        gpus=spec.scaling.bundle().get("GPU", 0.0) * spec.scaling.num_workers,
        earlier=spec.earlier or None,
        constraints=constraints,
    )


def _first_points(spec: Spec, scheduler: Scheduler) -> tuple[Mapping[str, Any], ...]:
    """Return the points that the searcher suggests first: the user's points, then the best ones of earlier experiments.

    A scheduler that proposes configurations starts the points of earlier experiments itself.
    """
    learned = () if scheduler.PROPOSES else tuple(each["params"] for each in spec.earlier.get("portfolio", ()))
    return (*spec.points_to_evaluate, *learned)


def _choose(
    spec: Spec, space: Space, parts: Parts, saves_checkpoints: bool | None
) -> tuple[Scheduler, Searcher, str | None]:
    """Return the scheduler, the searcher, and the reason for the choice if the scheduler was chosen here ("auto")."""
    scheduler, searcher, why = parts.scheduler, parts.searcher, None
    search: dict[str, Any] = dict(spec.search)
    if scheduler is None and spec.scheduler.get("type") == "auto":
        from tuner.schedulers.auto import resolve

        if searcher is None and search.get("type") != "auto":
            searcher = searcher_from_json(search)
        draws: Any = searcher
        if searcher is not None and searcher.TYPE == "define_by_run":
            draws = draws.search  # the searcher that draws the parameters of an Optuna objective
        context = _context(spec, space, saves_checkpoints, spec.num_samples)
        scheduler, proposed, why = resolve(
            context,
            saves_checkpoints,
            objectives=len(spec.objectives),
            searcher_given=searcher is not None,
            searcher=draws.TYPE if draws is not None else None,
        )
        if searcher is None:
            search = dict(proposed)
    if scheduler is None:
        scheduler = scheduler_from_json(spec.scheduler)
    if searcher is None:
        if search.get("type") == "auto":
            learns = scheduler.TYPE == "fifo"  # trials that were stopped early would mislead a model
            search = {"type": "grid" if space.has_grid else "tpe" if learns and not scheduler.PROPOSES else "random"}
        searcher = searcher_from_json(search)
    return scheduler, searcher, why
