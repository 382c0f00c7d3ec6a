"""Each figure of `result.plot()` shows the trials, and errors say why there is nothing to draw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.driver.stored import stored_simulation
from tests.experiment.analysis.test_lineage import population
from tests.store.examples import begin
from tuner.domain.experiment import Objective, Spec
from tuner.driver.virtual import simulate
from tuner.errors import SpecError, TunerError
from tuner.sdk.plots import Search, _axis
from tuner.sdk.result import Result
from tuner.space import Space
from tuner.store import Store

SPACE = {
    "lr": tuner.loguniform(1e-4, 1e-1),
    "opt": tuner.choice([{"name": "sgd", "momentum": tuner.uniform(0, 1)}, {"name": "adam"}]),
}


def train(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(1, 5):
        yield tuner.Step({"loss": config["lr"] + 1 / epoch, "size": config["lr"] * -2 + epoch})


def of(store: Store, *objectives: Objective) -> Result:
    metrics, modes = [o.metric for o in objectives], [o.mode for o in objectives]
    found = simulate(
        train, SPACE, metric=metrics, mode=modes, num_samples=14, max_t=4, scheduler="fifo", search_alg="random"
    )
    space = Space.from_python(SPACE).to_json()
    spec = Spec(name="net", space=space, objectives=objectives, entrypoint="module:train")
    return Result.load(store, stored_simulation(found, spec, store).public_id)


@pytest.fixture
def result(sqlite_store: Store) -> Result:
    return of(sqlite_store, Objective("loss", "min"))


def test_curves_are_the_reports_with_the_best_trial_on_top(result: Result) -> None:
    figure = result.plot()
    assert [(trace.name, list(trace.x)) for trace in figure.data if trace.name == "trial 0"] == [
        ("trial 0", [1, 2, 3, 4])
    ]
    lowest = min(result.trials, key=lambda trial: trial.best_value or 0)
    assert figure.data[-1].name == f"trial {lowest.number}"
    assert list(figure.data[-1].y) == [row["loss"] for row in lowest.history]
    few = result.plot("curves", metric="size", most=3)
    assert (len(few.data), few.layout.title.text) == (3, "net: size of the best 3 of 14 trials")


def constrained(metric: str | list[str], mode: Any, *trials: list[dict[str, float]]) -> Result:
    """Store a search in this home whose trials have these reports, and whose `size` may be 2 at most. Return its result."""
    search_alg = {"type": "tpe", "constraints": {"size": {"max": 2}}}
    with tuner.create_study(
        {"x": tuner.uniform(0, 1)},
        metric=metric,
        mode=mode,
        num_samples=len(trials),
        name="small",
        search_alg=search_alg,
    ) as study:
        for reports in trials:
            trial = study.ask()
            assert trial is not None
            for report in reports[:-1]:
                trial.report(report)
            trial.tell(reports[-1])
    return tuner.load("small")


def test_what_violates_the_constraints_is_not_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    values = [(0.2, 5.0), (1.0, 1.0), (0.1, 9.0), (0.5, 2.0)]
    result = constrained("loss", "min", *([{"loss": loss, "size": size}] for loss, size in values))
    assert result.best_value == 0.5
    every, so_far = result.plot("history").data
    assert (list(every.y), list(so_far.y)) == ([0.2, 1.0, 0.1, 0.5], [None, 1.0, 1.0, 0.5])
    assert result.plot("curves").data[-1].name == "trial 3"


def test_the_front_that_is_drawn_is_that_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    grown = [{"loss": 1.0, "acc": 1.0, "size": 1.0}, {"loss": 1.0, "acc": 2.0, "size": 9.0}]
    result = constrained(["loss", "acc"], ["min", "max"], grown, [{"loss": 2.0, "acc": 3.0, "size": 2.0}])
    assert [trial.number for trial in result.pareto_front()] == [1]
    front = next(trace for trace in result.plot("pareto").data if trace.name == "front")
    assert (list(front.x), list(front.y)) == ([2.0], [3.0])


def test_the_history_has_the_best_so_far(result: Result) -> None:
    values, best = result.plot("history").data
    assert list(values.y) == [trial.best_value for trial in result.trials]
    assert list(best.y) == [min(values.y[: i + 1]) for i in range(14)]
    (size,) = result.plot("history", metric="size").data  # it has no direction, so nothing is best
    assert list(size.y) == [trial.metrics["size"] for trial in result.trials]


def test_importance_has_a_bar_for_each_parameter(result: Result) -> None:
    (bars,) = result.plot("importance").data
    assert set(bars.y) == {"lr", "opt", "opt/0/momentum"}
    assert sum(bars.x) == pytest.approx(1)
    assert list(bars.x) == sorted(bars.x)  # the most important one is at the top


def test_parallel_coordinates_show_what_a_trial_lacks(result: Result) -> None:
    (lines,) = result.plot("parallel").data
    axes = {axis.label: axis for axis in lines.dimensions}
    assert list(axes) == ["lr", "opt/name", "opt/momentum", "loss"] or set(axes) == {
        "lr",
        "opt/name",
        "opt/momentum",
        "loss",
    }
    assert list(axes["loss"].values) == [trial.best_value for trial in result.trials]
    momentum = axes["opt/momentum"]
    assert momentum.ticktext[0] == "none"
    lacking = ["momentum" not in trial.config["opt"] for trial in result.trials]
    assert [value == momentum.tickvals[0] for value in momentum.values] == lacking
    assert any(lacking)
    assert set(axes["opt/name"].ticktext) == {"sgd", "adam"}
    assert max(axes["lr"].values) <= -1  # on the logarithmic scale


def test_the_best_trials_are_dark_in_parallel_coordinates(sqlite_store: Store) -> None:
    """Viridis begins with its darkest colour, which the lowest loss gets, and reversed the highest accuracy."""
    (lines,) = of(sqlite_store, Objective("loss", "min")).plot("parallel").data
    assert lines.line.reversescale is False
    (lines,) = of(sqlite_store, Objective("loss", "max")).plot("parallel").data
    assert lines.line.reversescale is True


def test_the_ticks_of_parallel_coordinates_do_not_overlap() -> None:
    search = Search(name="net", trials=[], segments={}, objectives=(), space=Space.from_python(SPACE), keeps=bool)
    assert _axis(search, "lr", [0.001, 0.01, 0.1])["tickvals"] == [-3, -2, -1], "a tick at each value"
    assert _axis(search, "lr", [0.001, 0.00101, 0.1])["tickvals"] == pytest.approx([-3, -2.5, -2, -1.5, -1])
    assert _axis(search, "lr", [0.001, 0.001])["tickvals"] == [-3], "all trials have the same value"


def test_slices_have_a_chart_for_each_parameter(result: Result) -> None:
    figure = result.plot("slices")
    assert len(figure.data[0].x) == 14
    assert sum(len(trace.x) < 14 for trace in figure.data) == 1  # momentum
    assert figure.layout.xaxis.type == "log"


def test_lineage_has_an_arrow_for_each_exploit(sqlite_store: Store) -> None:
    made, run, _ = population(sqlite_store)
    result = Result.load(sqlite_store, made.public_id)
    figure = result.plot("lineage")
    exploits = {
        (segment.start_iteration, trial.number, segment.source_trial)
        for trial in run.trials
        for segment in sqlite_store.trials.segments(made.id)[trial.number]
        if segment.cause == "exploit" and segment.source_trial != trial.number
    }
    arrows = {(arrow.x, arrow.y, arrow.ay) for arrow in figure.layout.annotations}
    assert arrows
    assert arrows <= exploits
    assert result.plot("lineage", param="h1").data[-1].marker.colorbar.title.text == "h1"
    curves = result.plot("curves")
    assert any(None in trace.y for trace in curves.data)  # broken where another's checkpoint was taken over


def test_two_objectives_have_a_front(sqlite_store: Store) -> None:
    result = of(sqlite_store, Objective("loss", "min"), Objective("size", "max"))
    every, front = result.plot("pareto").data
    assert len(every.x) == 14
    assert sorted(front.x) == sorted(trial.metrics["loss"] for trial in result.pareto_front())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "curvs"}, "did you mean curves"),
        ({"kind": "curves", "metrc": "loss"}, "curves takes metric, most, not 'metrc'; did you mean metric"),
        ({"kind": "curves", "metric": "los"}, "expected one of loss, size, got 'los'; did you mean loss"),
        ({"kind": "curves", "most": -3}, "expected a number of trials, 1 or more, got -3"),
        ({"kind": "pareto"}, "needs several objectives"),
        ({"kind": "lineage", "param": "l"}, "expected one of lr, "),
        ({"kind": "importance", "metric": "loss"}, "importance takes no options"),
    ],
)
def test_mistakes_are_explained(result: Result, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        result.plot(**options)


@pytest.mark.parametrize("kind", ["curves", "history", "parallel", "slices", "lineage"])
def test_a_search_without_reports_has_nothing_to_draw(sqlite_store: Store, kind: str) -> None:
    made, _, _ = begin(sqlite_store)
    with pytest.raises(SpecError, match=r"no trial has (a finite|reported)|expected one of"):
        Result.load(sqlite_store, made.public_id).plot(kind)


def test_the_error_without_plotly_says_how_to_install_it(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(TunerError, match="pip install plotly"):
        result.plot()
