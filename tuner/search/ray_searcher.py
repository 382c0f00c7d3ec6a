"""Use any `ray.tune.search.Searcher`. Ray is not imported here, since code that has such a searcher has already imported it."""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tuner.domain.keys import keyed_random
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError, text_of
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.proposer import Cache, Proposer
from tuner.space import Parameter, Space
from tuner.space.primitives import domain_of
from tuner.space.words import show

log = logging.getLogger(__name__)

_HOME = "ray.tune.search.searcher"
_ATTEMPTS = 10
"""The number of times that a searcher with nothing to propose is asked while no trial trains, before the search ends."""
_INDEX = "__trial_index__"
"""The key under which Ray's `Repeater` adds a repeat's number to a configuration. It is no parameter, so it is left out."""


class RaySearcher(Proposer):
    """Asks a Ray Tune searcher for configurations, and tells it the results of trials.

    A Ray Tune searcher has state. The results that it gets before it proposes a trial are recorded with that trial, and so are
    the number of the proposal, and the calls to which it returned None. After a restart, a fresh copy of the searcher gets the
    same calls in the same order. So a deterministic (seeded) searcher proposes the same configurations again. It is not told
    about trials that it has not proposed. Give the space to the experiment, not to the searcher. Branches are not supported.

    A searcher that returns None has nothing to propose yet; it is asked again once a trial has ended.
    """

    TYPE = "ray"
    REVISES: ClassVar[bool] = False

    def __init__(self, searcher: Any = None) -> None:
        if searcher is None:
            raise SpecError("a Ray Tune searcher is a Python object, so it can only be passed from Python", "/type")
        searcher = _inner(searcher)
        if not any(c.__module__ == _HOME and c.__name__ == "Searcher" for c in type(searcher).__mro__):
            raise SpecError(f"expected a ray.tune.search.Searcher, got {show(searcher)}", "/searcher")
        self._pristine = searcher

    def to_json(self) -> dict[str, Any]:
        """Raise SpecError, since the object has no JSON form. It is pickled with the experiment's code instead."""
        raise SpecError(f"a {type(self._pristine).__name__} has no JSON form", "/searcher")

    def __repr__(self) -> str:
        return f"RaySearcher({type(self._pristine).__name__})"

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        if len(context.objectives) > 1:
            message = "Ray Tune's searchers support only one objective; nsgaii, tpe and gp support several"
            raise SpecError(message, "/search")
        branches = sorted({p.condition[0] for p in context.space.parameters if p.condition})
        if branches:
            names = ", ".join(branches)
            message = (
                f"Ray Tune's searchers do not support a choice between spaces ({names}); random, qmc, tpe and nsgaii do"
            )
            raise SpecError(message, "/search")
        if not len(context.space):
            message = "give the space to the experiment, not to the Ray Tune searcher"
            define_by_run = (
                "; a function that asks an Optuna trial for its values is an objective: pass it as the trainable"
            )
            raise SpecError(
                message + (define_by_run if callable(getattr(self._pristine, "_space", None)) else ""), "/space"
            )
        self._live = _Live(self._pristine, context, len(self._points))
        try:
            self._try_out(context)
        except SpecError:
            raise
        except Exception as error:  # the searcher can be the user's code
            name = type(self._pristine).__name__
            message = f"{name} does not support this space: {error}; random, qmc and tpe support any"
            if isinstance(error, AttributeError | ImportError):
                why = f"{type(error).__name__}: {error}"
                message = (
                    f"{name} failed, perhaps because Ray does not support the installed version of its library: {why}"
                )
            raise SpecError(message, "/search") from error

    def _try_out(self, context: SearcherContext) -> None:
        """Ask a copy of the searcher for one proposal, so that errors are found before the search begins."""
        probe = _Live(self._pristine, context, 0)
        probe.clear()
        config = probe.ask(0, 1)
        if config is not None:
            self._params(config, 0)

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        self._live.sync(trials)
        self._live.tell(trials)
        trains = any(trials.count(state) for state in (TrialState.RUNNING, TrialState.PENDING))
        try:
            config = self._live.ask(number, 1 if trains else _ATTEMPTS)
            return None if config is None else Suggestion(self._params(config, number), self._live.state(number))
        except Exception as error:  # an error in the user's code; the search continues, and the note reports the error
            log.warning("%s could not propose trial %s", self, number, exc_info=True)
            params = self.context.space.sample(keyed_random(self.context.seed, "instead", number))
            note = f"drawn at random because {self} failed: {type(error).__name__}: {text_of(error)}"
            return Suggestion(params, self._live.state(number), note)

    def waits(self) -> bool:
        return self._live.declined

    def _params(self, config: Mapping[str, Any], number: int) -> dict[str, Any]:
        space, found = self.context.space, dict(_flat(config))
        if _INDEX not in space:
            found.pop(_INDEX, None)
        unknown = [path for path in found if path not in space]
        if unknown:
            message = f"the Ray Tune searcher proposed {', '.join(unknown)}, which is not in the experiment's space"
            raise SpecError(message, "/space")
        given = {}
        for path, proposed in found.items():
            # Some searchers propose numpy's strings and numbers, as TuneBOHB does.
            p, value = space[path], domain_of(proposed)
            if p.numeric:
                given[path] = p.clip(value)
            elif p.contains(value):
                given[path] = p.normal_form(value)
            else:
                message = f"the Ray Tune searcher proposed {show(value)} for {path}, which is outside its domain"
                raise SpecError(message, "/search")
        return space.sample(keyed_random(self.context.seed, "suggest", number), given)


class _Live(Cache):
    """The copy of the searcher that makes proposals, and the trials whose results it has been told."""

    def __init__(self, pristine: Any, context: SearcherContext, points: int) -> None:
        super().__init__()
        self._pristine = pristine
        self._task = context
        self._points = points

    def clear(self) -> None:
        self._searcher = copy.deepcopy(self._pristine)
        objective = self._task.objectives[0]
        self._searcher.set_search_properties(objective.metric, objective.mode, ray_space(self._task.space))
        self._folded = 0  # all trials below this number have been read
        self._asked: set[str] = set()  # the ids of all proposals
        self._ids: dict[int, str] = {}  # the number of each trial that the searcher proposed -> the id of the proposal
        self._told: set[int] = set()
        self._news: list[int] = []  # the trials of which it has been told since the last proposal
        # How many of these it had been told of, each time that it had nothing to propose.
        self._declines: list[int] = []
        self.declined = False  # it had nothing to propose when it was asked last

    def fold(self, trials: Population) -> None:
        """Read the new trials. After a restart, repeat the earlier calls to the searcher."""
        while self._folded in trials:
            trial = trials[self._folded]
            self._folded += 1
            told = trial.searcher_state.get("told")
            if told is None:
                continue  # the searcher did not propose this trial
            self._news, self._declines = [], []
            # Logs of earlier versions lack "asked".
            name = str(trial.searcher_state.get("asked", self._points + len(self._ids)))
            self._ids[trial.number] = name
            if name not in self._asked:
                declines = [*trial.searcher_state.get("declines", ()), len(told)]
                for i in range(len(told) + 1):
                    for _ in range(declines.count(i)):
                        with contextlib.suppress(Exception):  # the call also failed before the restart
                            self._suggest(name)
                    if i < len(told):
                        self._tell(trials[told[i]])

    def tell(self, trials: Population) -> None:
        """Tell the searcher about every trial that has ended since the last call."""
        ended = [t.number for t in trials if t.state.ended and t.number not in self._told]
        for number in ended:
            self._tell(trials[number])
        self._news += ended

    def ask(self, number: int, attempts: int) -> Mapping[str, Any] | None:
        """Return a configuration, or None if the searcher has none, now or at all; `declined` tells which."""
        self.declined = False
        for _ in range(attempts):
            config = self._suggest(str(number))
            self.declined = config is None
            if not self.declined:
                return config if isinstance(config, Mapping) else None
            self._declines.append(len(self._news))
        return None

    def state(self, number: int) -> dict[str, Any]:
        """Return the state to be stored with a trial: what the searcher was told and asked since the last proposal."""
        declines = {"declines": list(self._declines)} if self._declines else {}
        return {"told": list(self._news), "asked": number, **declines}

    def _suggest(self, name: str) -> Any:
        self._asked.add(name)
        return self._searcher.suggest(name)

    def _tell(self, trial: Trial) -> None:
        self._told.add(trial.number)
        value = trial.best_value if self._task.scope == "all" else trial.last_value
        name = self._ids.get(trial.number)
        if name is None:
            return  # the searcher did not propose this trial
        failed = trial.state is TrialState.FAILED or value is None
        metrics = {self._task.objectives[0].metric: value, "training_iteration": trial.iteration, "done": True}
        try:
            self._searcher.on_trial_complete(name, result=None if failed else {**trial.last, **metrics}, error=failed)
        except Exception:  # an error in the user's code; the search continues
            log.warning(
                "%s failed to process the result of trial %s", type(self._searcher).__name__, name, exc_info=True
            )


def ray_space(space: Space) -> dict[str, Any]:
    """Return the parameters as `ray.tune` domains, nested by path. Non-scalar choices become choices among their indices."""
    sample = sys.modules["ray.tune.search.sample"]
    nested: dict[str, Any] = {}
    for p in space.parameters:
        *parents, name = p.path.split("/")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[name] = _domain(p, sample)
    return nested


def _domain(p: Parameter, sample: Any) -> Any:
    match p.kind:
        case "choice":
            return sample.choice([p.at(i) for i in range(len(p.categories))])
        case "normal":
            return sample.randn(p.mean, p.sd) if p.step is None else sample.qrandn(p.mean, p.sd, p.step)
        case "float":
            if p.step is None:
                return (sample.loguniform if p.log else sample.uniform)(p.lower, p.upper)
            return (sample.qloguniform if p.log else sample.quniform)(p.lower, p.upper, p.step)
        case "int":
            lower, upper, step = int(p.lower), int(p.upper), int(p.step or 1)
            if step == 1:
                return (sample.lograndint if p.log else sample.randint)(lower, upper + 1)
            return (sample.qlograndint if p.log else sample.qrandint)(lower, upper, step)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _inner(searcher: Any) -> Any:
    """Return the searcher inside a ConcurrencyLimiter, even if the limiter is itself in a Repeater.

    The experiment limits how many trials run at once. A limiter proposes nothing at its limit, which would end the search.
    """
    while type(searcher).__name__ == "ConcurrencyLimiter" and hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    if type(searcher).__name__ == "Repeater" and hasattr(searcher, "searcher"):
        repeated = _inner(searcher.searcher)
        searcher = copy.copy(searcher)
        searcher.searcher = repeated
    return searcher
