"""Read from the spec what was learned from earlier experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tuner.domain.decisions import Start
from tuner.schedulers.freeze_thaw.model.curve_model import Floats
from tuner.schedulers.freeze_thaw.model.earlier import Earlier, Surrogate, relevance
from tuner.schedulers.freeze_thaw.model.results import Results
from tuner.schedulers.freeze_thaw.model.score_warp import Warp
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube


@dataclass(frozen=True, slots=True)
class Learned:
    """The knowledge gained from earlier experiments: the first configurations, and predictions for the curve model.

    Attributes:
        picks: configurations to try first, each with the names of the experiments in which it is expected to be best.
        earlier: predicts scores from the earlier experiments; None if there are none.
        hints: realized points (h, p) that were good in earlier experiments.
        names: the names of the earlier experiments.
    """

    picks: Sequence[tuple[Mapping[str, Any], Sequence[str]]] = ()
    earlier: Earlier | None = None
    hints: Floats | None = None
    names: Sequence[str] = ()
    _expected: dict[int, Floats] = field(default_factory=dict)  # trial -> prediction of each experiment

    @classmethod
    def of(cls, data: Mapping[str, Any] | None, cube: Cube) -> Learned:
        """Return what `SchedulerContext.earlier` says about earlier experiments."""
        if not data or not data.get("experiments"):
            return cls()
        models = [Surrogate.from_json(each["model"]) for each in data["experiments"]]
        names = [each["name"] for each in data["experiments"]]
        picks = [(pick["params"], [names[i] for i in pick["covers"]]) for pick in data["portfolio"]]
        good = [params for each in data["experiments"] for params in each["best"]]
        hints = cube.realise(np.array([cube.point(params) for params in good])) if good else None
        return cls(picks, Earlier(models, cube.group), hints, names)

    def judged(self, results: Results, cube: Cube) -> Earlier | None:
        """Return `earlier` with the relevance of each experiment, computed from the results so far."""
        if self.earlier is None:
            return None
        new = [slot for slot, number in enumerate(results.number) if int(number) not in self._expected]
        if new:
            for slot, row in zip(new, self.earlier.expected(cube.features(results.points[new])), strict=True):
                self._expected[int(results.number[slot])] = row
        expected = np.array([self._expected[int(number)] for number in results.number])
        z = Warp.of(results.score).z[results.newest]
        own = ~results.repeat
        found = relevance(expected[own], z[own], results.level[results.newest][own].astype(float))
        return replace(self.earlier, relevance=found)

    def in_words(self, judged: Earlier | None) -> str:
        """Return the relevance of each earlier experiment, in words."""
        if judged is None or judged.relevance is None:
            return ""
        each = ", ".join(f"{name} {weight:.2f}" for name, weight in zip(self.names, judged.relevance, strict=True))
        return f"; the model also uses earlier experiments, weighted by how well they predict this one (0 to 1): {each}"

    def start(self, index: int) -> Start | None:
        """Return a Start with configuration `index` of the portfolio, or None if the portfolio has fewer configurations."""
        if not 0 <= index < len(self.picks):
            return None
        params, names = self.picks[index]
        where = f"the one that suits {', '.join(names)} best" if names else "one that suits all of them well on average"
        found = len(self.picks)
        one = "the configuration that covers" if found == 1 else f"one of the {found} configurations that cover"
        reason = f"started: {one} the earlier experiments, {where}"
        return Start(params=dict(params), reason=reason)
