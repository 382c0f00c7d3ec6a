"""Define-by-run: the training code asks for its parameters while it runs, like Optuna's objectives.

A trial starts with the params of the given space, which may be empty. Another searcher proposes these params. The code then
asks for further parameters by name and distribution. Each value is drawn with the help of the trials so far, and committed
before the code continues. So a retried or resumed trial gets the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import TrialState as OptunaState

from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.search import warm_start as warm_start_option
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.search.constraints import Constraint
from tuner.search.optuna_samplers.optuna_search import OptunaSearch
from tuner.search.optuna_samplers.silence import quiet
from tuner.search.optuna_samplers.study import DISTRIBUTIONS, Mirror, contains
from tuner.space import Space
from tuner.space.values import is_number
from tuner.space.words import show

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

KINDS = ("random", "tpe", "gp", "optuna")
RELATIVE, POINT = "relative", "point"


class DefineByRunSearch(Searcher):
    """Answers training code that asks for its parameters while it runs.

    In JSON: ``{"type": "define_by_run", "search": {"type": "tpe"}, "warm_start": [...]}``.

    Args:
        search: the searcher that proposes the params of the given space. Its Optuna sampler also draws the other
            parameters: random, tpe (the default), gp, or any Optuna sampler that keeps no state of its own. The
            searcher's constraints do not influence these.
        warm_start: an `optuna.Study` whose finished trials the searcher learns from, or a list of ``{"params",
            "distributions", "values"}`` as returned by `records_of`.
    """

    TYPE = "define_by_run"
    #: for the searchers of earlier versions, which are stored as pickles and do not have it
    _modes_of_study: tuple[str, ...] = ()

    def __init__(self, search: Any = "tpe", warm_start: optuna.Study | Sequence[Mapping[str, Any]] = ()) -> None:
        from tuner.search import from_argument

        self.search = from_argument(search, "/search/search")
        if self.search.TYPE not in KINDS:
            raise SpecError(
                f"{self.search.TYPE} cannot draw parameters one at a time; choose from {', '.join(KINDS)}",
                "/search/search",
            )
        self.HEAVY = self.search.HEAVY  # type: ignore[misc]
        self.warm_start = records_of(warm_start) if isinstance(warm_start, optuna.Study) else list(warm_start)
        self._modes_of_study = warm_start_option.modes_of(warm_start)
        self._read = [_record(record, f"/search/warm_start/{i}") for i, record in enumerate(self.warm_start)]

    def setup(self, context: SearcherContext) -> None:
        warm_start_option.check_modes(self._modes_of_study, context.objectives)
        super().setup(context)
        self._known = bool(context.space.parameters)
        points = context.points_to_evaluate
        if self._known:
            self.search.setup(context)
            points = ()
        elif getattr(self.search, "warm_start", ()):
            message = (
                f"{self.search.TYPE} cannot use these results, since the space does not declare the parameters: pass "
                f"DefineByRunSearch({self.search.TYPE!r}, warm_start=study), or declare them"
            )
            raise SpecError(message, "/search/search/warm_start")
        elif isinstance(self.search, OptunaSearch) and self.search.sampler_name == GridSampler.__name__:
            message = (
                "GridSampler cannot draw parameters one at a time; declare them in the space of tuner.run, such as "
                '{"x": tuner.uniform(0, 3)}, and the objective gets the values of the grid'
            )
            raise SpecError(message, "/search/search")
        self._points: Sequence[Mapping[str, Any]] = points
        for i, (_, _, values) in enumerate(self._read):
            if len(values) != len(context.objectives):
                message = f"expected one value for each of the {len(context.objectives)} objectives, got {len(values)}"
                raise SpecError(message, f"/search/warm_start/{i}")
        self._study = _Study(context, self._read)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "search": self.search.to_json(), "warm_start": self.warm_start}

    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        if self._known:
            return self.search.suggest(number, trials)
        return Suggestion({}, {POINT: number} if number < len(self._points) else {})

    def is_heavy(self, trials: Population) -> bool:
        return self.search.is_heavy(trials)

    def metric_constraints(self) -> Sequence[Constraint]:
        return self.search.metric_constraints()

    def draw(self, number: int, name: str, distribution: str, trials: Population) -> tuple[Any, dict[str, Any]]:
        """Return the value of a parameter that trial `number` asks for, and the state to store with the trial.

        Args:
            number: the number of the trial.
            name: the name of the parameter.
            distribution: the distribution of the parameter, in Optuna's JSON form.
            trials: all trials so far.

        Raises:
            SpecError: this name was already used with an incompatible distribution.
        """
        trial = trials[number]
        wanted = json_to_distribution(distribution)
        if name in trial.params:
            return _inside(wanted, name, trial.params[name]), {}
        self._study.sync(trials)
        self._study.check(name, wanted)
        known: Mapping[str, str] = trial.searcher_state.get(DISTRIBUTIONS, {})
        state: dict[str, Any] = {DISTRIBUTIONS: {**known, name: distribution}}
        at = trial.searcher_state.get(POINT)
        point = self._points[at] if at is not None else {}
        if name in point:
            return _inside(wanted, name, point[name]), state
        if wanted.single():
            only: Any = wanted
            return only.choices[0] if isinstance(wanted, CategoricalDistribution) else only.low, state
        frozen = self._study.of(number)
        relative = trial.searcher_state.get(RELATIVE)
        with quiet():
            if relative is None:
                relative = self._relative(frozen, number)
                state[RELATIVE] = relative
            if name in relative and contains(wanted, relative[name]):
                return relative[name], state
            sampler = self._sampler(keyed_seed(self.context.seed, "draw", number, name))
            return sampler.sample_independent(self._study.now(), frozen, name, wanted), state

    def not_asked_for(self, trial: Trial) -> Sequence[tuple[str, str]]:
        if self._known or (at := trial.searcher_state.get(POINT)) is None:
            return []
        return [(f"points_to_evaluate/{at}", name) for name in self._points[at] if name not in trial.params]

    def _relative(self, frozen: FrozenTrial, number: int) -> dict[str, Any]:
        """Return the values that the sampler draws jointly, once per trial.

        These are the values of the parameters that all earlier trials have.
        """
        sampler = self._sampler(keyed_seed(self.context.seed, "draw", number))
        study = self._study.now()
        space = sampler.infer_relative_search_space(study, frozen)
        return dict(sampler.sample_relative(study, frozen, space)) if space else {}

    def _sampler(self, seed: int) -> BaseSampler:
        options: Any = self.search
        seed %= 2**32
        match options.TYPE:
            case "random":
                return RandomSampler(seed=seed)
            case "gp":
                return options.sampler(seed)  # type: ignore[no-any-return]
            case "optuna":
                return options.seeded(seed, self.context.seed)  # type: ignore[no-any-return]
        return TPESampler(
            seed=seed,
            n_startup_trials=options.n_startup_trials,
            n_ei_candidates=options.n_ei_candidates,
            constant_liar=options.constant_liar,
            multivariate=len(self.context.objectives) == 1 if options.multivariate is None else options.multivariate,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_study"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if hasattr(self, "context"):
            self._study = _Study(self.context, self._read)


class _Study(Mirror):
    """A study that mirrors the trials. Each trial has the distributions that its code requested."""

    def __init__(
        self,
        context: SearcherContext,
        earlier: Sequence[tuple[dict[str, Any], dict[str, BaseDistribution], list[float]]],
    ) -> None:
        super().__init__(Space({}), context.objectives, context.scope)
        self._earlier = earlier

    def clear(self) -> None:
        super().clear()
        self._first: dict[str, BaseDistribution] = {}
        for i, (params, distributions, values) in enumerate(self._earlier):
            frozen = self._frozen(i, OptunaState.COMPLETE, {}, values, {}, {})
            frozen.params, frozen.distributions = params, distributions
            self._rows.put(self._id, frozen)

    def check(self, name: str, distribution: BaseDistribution) -> None:
        """Raise SpecError if an earlier trial used this name with a different kind of distribution or different choices."""
        try:
            check_distribution_compatibility(self._first.setdefault(name, distribution), distribution)
        except ValueError as error:
            raise SpecError(
                f"{name} was {self._first[name]} in an earlier trial and is {distribution} now: {error}"
            ) from error

    def now(self) -> optuna.Study:
        """Return a new study object with the current trials, because an older object may have cached fewer trials."""
        return optuna.load_study(study_name=self.study.study_name, storage=self._rows)

    def of(self, number: int) -> FrozenTrial:
        return self._rows.get_trial(len(self._earlier) + number)

    def _put(self, trial: Trial, look: Any) -> None:
        if trial.state.ended:
            self._live.pop(trial.number, None)
        else:
            self._live[trial.number] = look
        state, values, steps = self._outcome(trial)
        frozen = self._frozen(len(self._earlier) + trial.number, state, {}, values, steps, {})
        for name, text in trial.searcher_state.get(DISTRIBUTIONS, {}).items():
            if name in trial.params:  # an exploit may have chosen a branch without this parameter
                frozen.distributions[name] = json_to_distribution(text)
                self._first.setdefault(name, frozen.distributions[name])
                frozen.params[name] = trial.params[name]
        self._rows.put(self._id, frozen)


def records_of(study: optuna.Study) -> list[dict[str, Any]]:
    """Return the finished trials of a study, without those with an infinite value, in the form that `warm_start` takes."""
    return [
        {
            "params": dict(trial.params),
            "distributions": {name: distribution_to_json(d) for name, d in trial.distributions.items()},
            "values": list(trial.values),
        }
        for trial in study.get_trials(deepcopy=False, states=(OptunaState.COMPLETE,))
        if all(map(is_number, trial.values))
    ]


def _record(record: Mapping[str, Any], pointer: str) -> tuple[dict[str, Any], dict[str, BaseDistribution], list[float]]:
    try:
        distributions = {name: json_to_distribution(text) for name, text in record["distributions"].items()}
        return dict(record["params"]), distributions, [float(v) for v in record["values"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f'expected {{"params", "distributions", "values"}}, got {show(record)}', pointer) from error


def _inside(distribution: BaseDistribution, name: str, value: Any) -> Any:
    if not contains(distribution, value):
        raise SpecError(f"{name} is {show(value)} in this trial, which is outside {distribution}")
    return value
