"""NSGA-II, the genetic algorithm for several objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.options import check_integer, check_number
from tuner.search.optuna_samplers.model_based import ModelBased

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class NSGAIISearch(ModelBased):
    """Proposes configurations with NSGA-II.

    Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", 2002. A generation is `population_size`
    completed trials. The best of them become the parents of the next generation. Trials from `points_to_evaluate` and
    `warm_start` belong to the first generation. The searcher does not learn from stopped trials.
    """

    TYPE = "nsgaii"
    ADOPTED: ClassVar[Mapping[str, Any]] = {"NSGAIISampler:generation": 0}

    def __init__(
        self,
        population_size: int = 50,
        mutation_prob: float | None = None,
        crossover_prob: float = 0.9,
        swapping_prob: float = 0.5,
        constraints: Mapping[str, Any] | None = None,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(constraints, warm_start)
        check_integer("population_size", population_size, at_least=2)
        if mutation_prob is not None:
            check_number("mutation_prob", mutation_prob, at_least=0, at_most=1)
        check_number("crossover_prob", crossover_prob, at_least=0, at_most=1)
        check_number("swapping_prob", swapping_prob, at_least=0, at_most=1)
        self.population_size = population_size
        self.mutation_prob = mutation_prob
        self.crossover_prob = crossover_prob
        self.swapping_prob = swapping_prob

    def sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(
            population_size=self.population_size,
            mutation_prob=self.mutation_prob,
            crossover_prob=self.crossover_prob,
            swapping_prob=self.swapping_prob,
            seed=seed,
        )
