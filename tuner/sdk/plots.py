"""`result.plot()`: draw a search with plotly, an optional dependency."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.domain.experiment import Objective
from tuner.errors import MissingPackage, SpecError
from tuner.names import did_you_mean, with_extra
from tuner.plurals import counted
from tuner.schedulers.shared import pareto
from tuner.sdk.live.notebook import short
from tuner.sdk.trial_result import TrialResult, reported
from tuner.space import Space
from tuner.store.records import SegmentRecord

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST = 100
"""The maximum number of curves in a chart. More curves could not be told apart."""
SCALE = "Viridis"
MANY = 12
"""The maximum number of distinct values for which an axis has a tick at each value."""
NEAR = 0.05
"""The minimum distance between two ticks, as a fraction of the axis. The labels of closer ticks would overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The data of a search that the charts show."""

    name: str
    trials: Sequence[TrialResult]
    segments: Mapping[int, Sequence[SegmentRecord]]  # the segments of each trial, by its number
    objectives: Sequence[Objective]
    space: Space
    keeps: Callable[[Mapping[str, float]], bool]  # returns True if these metrics satisfy the constraints
    draws: Sequence[Mapping[str, Any]] = ()  # see `Trials.draws`

    @property
    def metric(self) -> str:
        return self.objectives[0].metric

    def check(self, metric: str | None) -> str:
        """Return the metric, or the objective if `metric` is None. Raise SpecError if no trial has reported this metric."""
        known = {name: None for trial in self.trials for name in trial.metrics}
        metric = self.metric if metric is None else metric
        if metric not in known:
            seen = f"expected one of {', '.join(known)}" if known else "no trial has reported"
            raise SpecError(f"{seen}, got {metric!r}{did_you_mean(metric, known)}", "/metric")
        return metric

    def score(self, trial: TrialResult) -> float:
        """Return the trial's best value as a score. Return minus infinity if it is not finite or violates the constraints."""
        value = trial.best_value
        if value is None or not math.isfinite(value) or trial.feasible is False:
            return -math.inf
        return self.objectives[0].score(value)

    def feasible(self, trial: TrialResult, metric: str) -> bool:
        """Return True if the report of the trial's `value` satisfies the constraints."""
        return trial.feasible is not False if metric == self.metric else self.keeps(trial.metrics)

    def value(self, trial: TrialResult, metric: str) -> float | None:
        """Return a trial's best value of the objective, or newest value of another metric. Return None if it is not finite."""
        value = trial.best_value if metric == self.metric else trial.metrics.get(metric)
        return value if value is not None and math.isfinite(value) else None

    def valued(self, metric: str) -> list[tuple[TrialResult, float]]:
        """Return (trial, value) for the trials that have a finite value."""
        found = [(trial, value) for trial in self.trials if (value := self.value(trial, metric)) is not None]
        if not found:
            raise SpecError(f"no trial has a finite value of {metric}, so there is nothing to draw", "/metric")
        return found


def plot(search: Search, kind: str | None, options: Mapping[str, Any]) -> Figure:
    """Draw a search. See `Result.plot`."""
    if kind is None:
        kind = "curves" if any(trial.iterations > 1 for trial in search.trials) else "history"
    if kind not in KINDS:
        raise SpecError(f"expected one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}", "/kind")
    draw = KINDS[kind]
    known = list(inspect.signature(draw).parameters)[1:]
    for name in options:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no options"
            raise SpecError(f"{kind} {takes}, not {name!r}{did_you_mean(name, known)}", f"/{name}")
    try:
        import plotly  # noqa: F401  # optional
    except ImportError as error:
        raise MissingPackage(
            "result.plot() draws with plotly, which is not installed: run `pip install plotly`, or `"
            f"{with_extra('plot')}`. `tuner serve` shows the same charts without it."
        ) from error
    figure = draw(search, **options)
    figure.update_layout(title_text=f"{search.name}: {figure.layout.title.text}")
    return figure


def curves(search: Search, metric: str | None = None, most: int = MOST) -> Figure:
    """Draw a metric over the reports. A line has a break where its trial continued from another trial's checkpoint."""
    from plotly import graph_objects as go

    metric = search.check(metric)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SpecError(f"expected a number of trials, 1 or more, got {most!r}", "/most")
    ranked = sorted((trial for trial in search.trials if trial.history), key=search.score, reverse=True)
    shades = _shades(len(ranked[:most]))
    figure = go.Figure()
    for at, trial in reversed(list(enumerate(ranked[:most]))):  # the best ones are drawn last, on top
        xs: list[float | None] = []
        ys: list[float | None] = []
        for before, row in itertools.pairwise([None, *_current(trial.history)]):
            assert row is not None
            if (value := reported(row).get(metric)) is None:
                continue
            if before is not None and before["segment"] != row["segment"] and _took_over(search, trial.number, row):
                xs.append(None)
                ys.append(None)
            xs.append(row["training_iteration"])
            ys.append(value)
        figure.add_scatter(
            x=xs, y=ys, name=f"trial {trial.number}", mode="lines+markers" if len(xs) < 2 else "lines",
            line={"color": shades[at], "width": 3 if at == 0 else 1.5}, opacity=1 if at < 10 else 0.6,
            hovertemplate=f"trial {trial.number}<br>%{{x}}: %{{y:.6g}}<br>{_hover(trial)}<extra></extra>",
        )  # fmt: skip
    total = len(ranked)
    which = f" of the best {most} of {total:,} trials" if total > most else ""
    return _laid_out(figure, f"{metric}{which}", "training_iteration", metric)


def history(search: Search, metric: str | None = None) -> Figure:
    """Draw the values of the trials in the order in which the trials were created, and the best feasible value so far."""
    from plotly import graph_objects as go

    metric = search.check(metric)
    found = search.valued(metric)
    numbers, values = [trial.number for trial, _ in found], [value for _, value in found]
    figure = go.Figure()
    figure.add_scatter(
        x=numbers, y=values, mode="markers", name=metric, customdata=[_hover(trial) for trial, _ in found],
        marker={"color": "rgb(25,118,210)", "size": 7},
        hovertemplate="trial %{x}: %{y:.6g}<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    mode = next((o.mode for o in search.objectives if o.metric == metric), None)
    if mode is not None:
        worst = -math.inf if mode == "max" else math.inf
        known = (value if search.feasible(trial, metric) else worst for trial, value in found)
        so_far = itertools.accumulate(known, max if mode == "max" else min)
        best = [None if value == worst else value for value in so_far]
        figure.add_scatter(
            x=numbers, y=best, mode="lines", name="best so far", line={"shape": "hv", "color": "rgb(56,142,60)"}
        )
    return _laid_out(figure, "value of each trial", "trial", metric)


def importance(search: Search) -> Figure:
    """Draw how much each parameter mattered for the objective, by PED-ANOVA."""
    from plotly import graph_objects as go

    from tuner.search import importance as anova  # loads Optuna and scipy

    ended = [trial for trial in search.trials if trial.state.ended]
    outcomes = [
        anova.Outcome(trial.number, trial.repeat_of, trial.state, _params(search, trial), value)
        for trial in ended
        if (value := search.value(trial, search.metric)) is not None
    ]
    records = [(one.params, one.value) for one in anova.merged(outcomes)]
    drawn = anova.drawn_of(search.draws)
    shares = anova.importance(search.space, search.objectives[0].mode, records, drawn)
    if not shares:
        raise SpecError(
            f"parameter importance needs parameters and {anova.MIN_RECORDS} trials that have ended with a value; this search has "
            f"{counted(len(records), 'trial')} and {counted(len(search.space) + len(drawn), 'parameter')}",
            "/kind",
        )
    names = list(shares)[::-1]
    figure = go.Figure()
    figure.add_bar(
        x=[shares[name] for name in names], y=names, orientation="h", marker={"color": "rgb(25,118,210)"},
        texttemplate="%{x:.0%}", hovertemplate="%{y}: %{x:.1%}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(tickformat=".0%")
    return _laid_out(figure, f"parameter importance for {search.metric}", "share", "")


def parallel(search: Search, metric: str | None = None) -> Figure:
    """Draw every trial as a line through its parameters and its value. The best ones are dark, as in the curves."""
    from plotly import graph_objects as go

    metric = search.check(metric)
    found = search.valued(metric)
    configs = [_flat(trial.best_config) for trial, _ in found]
    names = list(dict.fromkeys(name for config in configs for name in config))
    axes = [_axis(search, name, [config.get(name) for config in configs]) for name in names]
    values = [value for _, value in found]
    lines = {
        "color": values,
        "colorscale": SCALE,
        "showscale": True,
        "reversescale": not _lower_is_better(search, metric),
    }
    figure = go.Figure(
        go.Parcoords(line=lines, dimensions=[*axes, {"label": metric, "values": values}], labelangle=-20)
    )
    figure = _laid_out(figure, f"parameters and {metric}", None, None)
    figure.update_layout(margin_t=100)  # room for the names of the axes, which are below the title
    return figure


def slices(search: Search, metric: str | None = None) -> Figure:
    """Draw the trials' values against each parameter, in charts side by side."""
    from plotly.subplots import make_subplots

    metric = search.check(metric)
    found = search.valued(metric)
    configs = [_flat(trial.best_config) for trial, _ in found]
    names = list(dict.fromkeys(name for config in configs for name in config))
    if not names:
        raise SpecError("the trials have no parameters, so there is nothing to draw", "/kind")
    figure = make_subplots(rows=1, cols=len(names), shared_yaxes=True, x_title="", y_title=metric)
    for column, name in enumerate(names, start=1):
        have = [
            (trial, value, config[name])
            for (trial, value), config in zip(found, configs, strict=True)
            if name in config
        ]
        numbers = _are_numbers([x for *_, x in have])
        figure.add_scatter(
            x=[x if numbers else str(x) for *_, x in have], y=[value for _, value, _ in have], mode="markers",
            showlegend=False, row=1, col=column, customdata=[_hover(trial) for trial, *_ in have],
            marker={"color": [trial.number for trial, *_ in have], "colorscale": "Blues", "cmin": -len(found) / 2,
                    "cmax": len(found), "line": {"width": 0.5, "color": "gray"}},
            hovertemplate="%{customdata}<br>%{y:.6g}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(
            title_text=name,
            type="category" if not numbers else "log" if _is_log(search, name) else "linear",
            col=column,
        )
    return _laid_out(figure, f"{metric} over each parameter; later trials are darker", None, None)


def lineage(search: Search, param: str | None = None) -> Figure:
    """Draw each trial as a row of segments. An arrow shows that a segment began with another trial's checkpoint."""
    from plotly import graph_objects as go

    pieces = [piece for trial in search.trials for piece in _pieces(search, trial)]
    if not pieces:
        raise SpecError("no trial has reported, so there is nothing to draw", "/kind")
    known = list(dict.fromkeys(name for _, segment, *_ in pieces for name in segment.params))
    if param is not None and param not in known:
        raise SpecError(f"expected one of {', '.join(known)}, got {param!r}{did_you_mean(param, known)}", "/param")
    values = [segment.params.get(param) if param is not None else value for _, segment, _, value in pieces]
    shade, legend = _colours(values)
    figure = go.Figure()
    for (trial, segment, end, value), colour in zip(pieces, shade, strict=True):
        text = f"trial {trial}, from {segment.start_iteration} to {end}: {segment.cause}<br>{short(segment.params)}"
        worth = "" if value is None else f"<br>{search.metric} {value:.6g}"
        figure.add_scatter(
            x=[segment.start_iteration, end], y=[trial, trial], mode="lines", line={"width": 8, "color": colour},
            showlegend=False, hovertemplate=f"{text}{worth}<extra></extra>",
        )  # fmt: skip
        if segment.source_trial is not None and segment.source_trial != trial:
            figure.add_annotation(
                x=segment.start_iteration, y=trial, ax=segment.start_iteration, ay=segment.source_trial, xref="x", yref="y",
                axref="x", ayref="y", showarrow=True, arrowhead=2, arrowwidth=1.2, arrowcolor="gray", text="", standoff=4,
            )  # fmt: skip
    if legend is not None:
        figure.add_scatter(
            x=[None], y=[None], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"color": legend, "colorscale": SCALE, "showscale": True,
                    "colorbar": {"title": {"text": param or search.metric}}},
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", tickformat="d")
    return _laid_out(
        figure, f"lineage of the trials, colored by {param or search.metric}", "training_iteration", "trial"
    )


def pareto_front(search: Search) -> Figure:
    """Draw the first two objectives against each other, and mark the Pareto front."""
    from plotly import graph_objects as go

    if len(search.objectives) < 2:
        raise SpecError("a Pareto front needs several objectives, but this search has one; use 'history'", "/kind")
    first, second = search.objectives[:2]
    found = [
        (trial, scores)
        for trial in search.trials
        if search.keeps(trial.metrics)
        and all(math.isfinite(trial.metrics.get(o.metric, math.nan)) for o in search.objectives)
        and (scores := tuple(o.score(trial.metrics[o.metric]) for o in search.objectives))
    ]
    if not found:
        raise SpecError("no trial has a finite value of every objective, so there is nothing to draw", "/kind")
    best = sorted((found[i][0] for i in pareto.fronts([s for _, s in found])[0]), key=lambda t: t.metrics[first.metric])
    figure = go.Figure()
    for name, trials, colour in (("trials", [t for t, _ in found], "gray"), ("front", best, "rgb(56,142,60)")):
        figure.add_scatter(
            x=[t.metrics[first.metric] for t in trials], y=[t.metrics[second.metric] for t in trials], name=name,
            mode="lines+markers" if name == "front" and len(search.objectives) == 2 else "markers", line={"color": colour},
            customdata=[f"trial {t.number}<br>{_hover(t)}" for t in trials],
            hovertemplate="%{customdata}<br>%{x:.6g}, %{y:.6g}<extra></extra>",
        )  # fmt: skip
    return _laid_out(
        figure, "objectives against each other", f"{first.metric} ({first.mode})", f"{second.metric} ({second.mode})"
    )


KINDS: Mapping[str, Callable[..., Any]] = {
    "curves": curves,
    "history": history,
    "importance": importance,
    "parallel": parallel,
    "slices": slices,
    "lineage": lineage,
    "pareto": pareto_front,
}


def _laid_out(figure: Figure, title: str, x: str | None, y: str | None) -> Figure:
    figure.update_layout(title_text=title, template="plotly_white", margin={"t": 60, "b": 50, "l": 60, "r": 30})
    if x is not None:
        figure.update_xaxes(title_text=x)
    if y is not None:
        figure.update_yaxes(title_text=y)
    return figure


def _current(history: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return the newest report of each iteration. A retry may report an iteration again."""
    newest = {int(row["training_iteration"]): row for row in history}
    return [newest[at] for at in sorted(newest)]


def _took_over(search: Search, trial: int, row: Mapping[str, float]) -> bool:
    """Return True if the segment of this report began with the checkpoint of another trial."""
    segments = search.segments.get(trial, ())
    at = int(row["segment"]) - 1
    return at < len(segments) and segments[at].source_trial not in (None, trial)


def _pieces(search: Search, trial: TrialResult) -> list[tuple[int, SegmentRecord, int, float | None]]:
    """Return (trial, segment, last iteration, last value of the objective) for each segment that has reported."""
    last: dict[int, Mapping[str, float]] = {int(row["segment"]): row for row in trial.history}
    return [
        (trial.number, segment, int(row["training_iteration"]), reported(row).get(search.metric))
        for segment in search.segments.get(trial.number, ())
        if (row := last.get(segment.ordinal)) is not None
    ]


def _params(search: Search, trial: TrialResult) -> dict[str, Any]:
    """Return the flat params with which a trial reached its best value, in their stored form."""
    segments = search.segments.get(trial.number, ())
    row = next((r for r in trial.history if r["training_iteration"] == trial.best_iteration), None)
    at = int(row["segment"]) - 1 if row is not None else -1
    return dict(segments[at].params) if segments else {}


def _axis(search: Search, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return one parameter's axis for parallel coordinates. Trials without the parameter are at the tick "none"."""
    have = [value for value in values if value is not None]
    if not _are_numbers(have):
        words = list(dict.fromkeys(str(value) for value in values))
        if name in search.space:  # the parameters keep the order of their declaration
            words.sort(
                key=[str(label) for label in search.space[name].labels].index
                if _declared(search, name, words)
                else None
            )
        places = {word: float(at) for at, word in enumerate(words)}
        ticks = {"tickvals": list(places.values()), "ticktext": ["none" if w == "None" else w for w in words]}
        return {"label": name, "values": [places[str(value)] for value in values], **ticks}
    log = _is_log(search, name) and all(value > 0 for value in have)
    scaled = [None if value is None else math.log10(value) if log else float(value) for value in values]
    known = [value for value in scaled if value is not None]
    low, high = min(known), max(known)
    axis: dict[str, Any] = {"label": name, "values": scaled}
    if log or len(have) < len(values) or len(set(known)) <= MANY:
        marks = sorted(set(known))
        gaps = [(after - before) / (high - low) for before, after in itertools.pairwise(marks)]
        if len(marks) > MANY or any(gap < NEAR for gap in gaps):
            marks = [low + (high - low) * at / 4 for at in range(5)]
        texts = [f"{10**mark if log else mark:.4g}" for mark in marks]
        if len(have) < len(values):
            none = low - 0.1 * (high - low or 1.0)
            axis["values"] = [none if value is None else value for value in scaled]
            marks, texts = [none, *marks], ["none", *texts]
        axis |= {"tickvals": marks, "ticktext": texts}
    return axis


def _declared(search: Search, name: str, words: Sequence[str]) -> bool:
    return set(words) <= {str(label) for label in search.space[name].labels}


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values
    )


def _is_log(search: Search, name: str) -> bool:
    return name in search.space and search.space[name].log


def _lower_is_better(search: Search, metric: str) -> bool:
    return any(o.metric == metric and o.mode == "min" for o in search.objectives)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _hover(trial: TrialResult) -> str:
    return short(_flat(trial.best_config)).replace("<", "&lt;").replace("%{", "% {")


def _shades(count: int) -> list[str]:
    """Return `count` colors, for trials ordered from best to worst."""
    from plotly.colors import sample_colorscale

    return [str(colour) for colour in sample_colorscale(SCALE, [0.9 * at / max(1, count - 1) for at in range(count)])]


def _colours(values: Sequence[Any]) -> tuple[list[str], list[float] | None]:
    """Return a color for each value. If the values are numbers, also return the range of a color bar."""
    from plotly.colors import qualitative, sample_colorscale

    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    if numbers and len(numbers) == len([v for v in values if v is not None]):
        low, high = min(numbers), max(numbers)
        places = [0.0 if value is None else (value - low) / ((high - low) or 1.0) for value in values]
        return [str(colour) for colour in sample_colorscale(SCALE, places)], [low, high]
    names = list(dict.fromkeys(map(str, values)))
    return [qualitative.Plotly[names.index(str(value)) % len(qualitative.Plotly)] for value in values], None
