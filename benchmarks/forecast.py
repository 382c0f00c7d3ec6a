"""Measure how often forecasts of a search's result and of its end are right, on recorded learning curves.

    python -m benchmarks.forecast [--runs 1] [--families lcbench mlp] [--results FILE] [--fit]

Each search is forecast at several times, from the data that was known then. An interval should contain the true value in eight of
ten cases. The constants of the forecasts are fitted on all families except the one on which they are tested. Families differ, so
the quantiles of 10 and 90 % of some families hold in fewer than 80 % of the cases of another one. So the intervals for the end
use the first of TAILS that holds in 80 % of the cases when each family is left out in turn. It is chosen without the tested
family, too. --fit prints the constants for all families together, which are those in `tuner/schedulers/shared/forecast.py` and
`tuner/experiment/analysis/forecast.py`.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

from benchmarks import contenders, learning_curves  # noqa: E402
from benchmarks.contenders import Setting  # noqa: E402
from benchmarks.learning_curves import SHARED  # noqa: E402
from tuner.domain import decisions as d  # noqa: E402
from tuner.domain import events as e  # noqa: E402
from tuner.driver.virtual import Simulation  # noqa: E402
from tuner.schedulers.shared import forecast  # noqa: E402

SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "random": {"scheduler": "fifo", "search_alg": "random", "num_samples": 24},
    "tpe": {"scheduler": "fifo", "search_alg": "tpe", "num_samples": 24},
    "median": {"scheduler": "median", "search_alg": "random", "num_samples": 48},
    "asha": {"scheduler": {"type": "asha", "reduction_factor": 3}, "search_alg": "random", "num_samples": 96},
    "default": {"budget": 16},
}
SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9)  # the shares of a search at which it is forecast
WORKERS = 4
KINDS = ("samples", "units", "budget")  # what is known of the end
LEAST = 0.02  # as a share of the training so far: the least further training that is ever expected
LOW, HIGH = 0.1, 0.9
# The tails to try for the interval of the end. The first tail whose interval holds in 80 % of the cases is used.
TAILS = (0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=SHARED)
    parser.add_argument("--families", nargs="+", default=[], help="problems whose names begin with one of these words")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--runs", type=int, default=1, help="of each problem")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, help="a file of JSON lines, to which new runs are added")
    parser.add_argument("--stored", action="store_true", help="run nothing")
    parser.add_argument("--fit", action="store_true", help="print the figures of all families together")
    args = parser.parse_args()
    rows = searches(args)
    gains, ends = [g for row in rows for g in gains_of(row)], [g for row in rows for g in ends_of(row)]
    print(f"{len(rows)} searches, {WORKERS} workers; an interval is meant to hold in {HIGH - LOW:.0%} of the cases")
    table = {"found": judged(gains, gain_figures, gain_interval), "ended": judged(ends, end_figures, end_interval)}
    for what, found in table.items():
        heads = ("cases", "right", "below", "above", "width")
        print(f"\n{what:12}" + "".join(f"{head:>16}" for head in heads))
        for name, row in found.items():
            print(f"{name:12}" + "".join(f"{row[head]:>16}" for head in heads))
    if args.fit:
        for name, figures in (("GAINS", gain_figures(gains)), ("ENDS", end_figures(ends))):
            print(name, json.dumps([[[round(v, 3) for v in cell] for cell in line] for line in figures]))
    print(json.dumps(table))


# -- searches ------------------------------------------------------------------------------------------------------------


def searches(args: argparse.Namespace) -> list[Row]:
    """Return a row for each search. Read the rows that the file has, and run the other searches now."""
    names = [p.name for p in learning_curves.problems(args.curves) if p.name.startswith(tuple(args.families or [""]))]
    wanted = [(name, search, run) for run in range(args.runs) for search in args.searches for name in names]
    lines = args.results.read_text().splitlines() if args.results and args.results.exists() else []
    rows = {(row["problem"], row["search"], row["run"]): row for row in map(json.loads, lines)}
    if not args.stored:
        with ProcessPoolExecutor(args.jobs) as pool:
            missing = [key for key in wanted if key not in rows]
            for future in as_completed([pool.submit(one, *key, args.curves) for key in missing]):
                row = future.result()
                rows[row["problem"], row["search"], row["run"]] = row
                if args.results:
                    with args.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    return [rows[key] for key in wanted if key in rows]


def one(name: str, search: str, run: int, curves: Path) -> Row:
    problem = next(p for p in learning_curves.problems(curves) if p.name == name)
    setting = Setting(WORKERS, 0.0, 1e6, curves)
    options = SEARCHES[search]
    found = contenders.simulation(problem, learning_curves.seed_of(f"{name} forecast", run), setting, **options)
    sign = 1 if problem.mode == "max" else -1
    work: list[float] = []
    score: list[float] = []
    for state in states_of(found, sign):
        if state.best > (score[-1] if score else -math.inf):
            work.append(state.trained)
            score.append(state.best)
    total = state.trained
    marks, wanted, line = [], list(SHARES), [(0.0, 0.0)]
    for state in states_of(found, sign):
        line.append((state.trained, state.now))
        while wanted and state.trained >= wanted[0] * total:
            half = line[bisect.bisect_left(line, (state.trained / 2,))]
            at_once = (state.trained - half[0]) / (state.now - half[1])
            marks.append([state.trained, state.ended, state.running, state.reports, state.now, at_once])
            del wanted[0]
    trainings = options["num_samples"] if options.get("scheduler") == "fifo" else options.get("budget")
    return {
        "problem": name,
        "search": search,
        "run": run,
        "work": work,
        "score": score,
        "marks": marks,
        "total": total,
        "seconds": found.seconds,
        "samples": options.get("num_samples"),
        "units": None if trainings is None else trainings * problem.max_t,
        "width": sign * (problem.best - problem.median),
    }


@dataclass(slots=True)
class State:
    """The state after a report: the training of all trials together in seconds, and the best score."""

    now: float = 0.0
    trained: float = 0.0
    best: float = -math.inf
    ended: int = 0
    running: int = 0
    reports: int = 0


def states_of(found: Simulation, sign: int) -> Iterator[State]:
    """Yield the state after each report. It is always the same object."""
    state = State()
    clock: dict[int, float] = {}
    for _, entry in found.log:
        if isinstance(entry, e.Event):
            state.now = entry.time
        match entry:
            case e.SegmentStarted(trial=trial):
                clock[trial] = state.now
            case e.Reported(trial=trial):
                state.trained += state.now - clock[trial]
                clock[trial] = state.now
                state.reports += 1
                score = sign * entry.metrics["value"]
                if math.isfinite(score):
                    state.best = max(score, state.best)
                state.running = len(clock)
                yield state
            case d.Stop(trial=trial) | d.Complete(trial=trial) | d.Fail(trial=trial):
                state.ended += 1
                clock.pop(trial, None)
            case d.Pause(trial=trial):
                clock.pop(trial, None)


# -- what a search will find ---------------------------------------------------------------------------------------------

Case = tuple[str, int, int, float, float, float, float]
"""(family, first class, second class, unit of the forecast, what happened, unit of the widths, the most that is ever expected)"""


def gains_of(row: Row) -> Iterator[Case]:
    work, score, total = row["work"], row["score"], row["total"]

    def best(at: float) -> float:
        return float(score[max(bisect.bisect_right(work, at) - 1, 0)])

    for now, *_ in row["marks"]:
        if not forecast.known_enough(work, now):
            continue
        unit = forecast.gain_of_a_doubling(work, score, now)
        for k, factor in enumerate(forecast.FACTORS):
            if unit > 0 and factor * now <= total:
                found = best(factor * now) - best(now)
                most = best(now) - score[0]
                yield row["problem"].split("/")[0], forecast.stall(work, now), k, unit, found, row["width"], most


def gain_figures(cases: Sequence[Case]) -> list[list[list[float]]]:
    def cell(found: list[tuple[float, float, float]]) -> list[float]:
        if len(found) < 10:
            return [math.nan] * 5
        low, middle, high = np.quantile([gain / unit for unit, gain, _ in found], [LOW, 0.5, HIGH])
        # In units of regret, cut at 1, so that a few searches that began with terrible values are not the whole mean.
        cut = [(min(unit / width, 1.0), min(gain / width, 1.0)) for unit, gain, width in found]
        mean = sum(gain for _, gain in cut) / sum(unit for unit, _ in cut)
        chance = statistics.mean(gain > 0 for _, gain, _ in found)
        return [mean, float(low), float(middle), float(high), chance]

    def of(i: int, k: int) -> list[tuple[float, float, float]]:
        return [(unit, gain, width) for _, a, b, unit, gain, width, _ in cases if (a, b) == (i, k)]

    return [[cell(of(i, k)) for k in range(len(forecast.FACTORS))] for i in range(len(forecast.STALLS) + 1)]


def gain_interval(figures: Any, case: Case) -> tuple[float, float]:
    _, i, k, unit, _, _, most = case
    return min(figures[i][k][1] * unit, most), min(figures[i][k][3] * unit, most)


# -- when a search will end ----------------------------------------------------------------------------------------------


def ends_of(row: Row) -> Iterator[Case]:
    """Yield (family, what is known, how far, seconds expected to come, seconds that came, all seconds)."""
    for trained, ended, running, reports, now, at_once in row["marks"]:
        if row["units"] is not None:
            expected = trained * (row["units"] / reports - 1)
        elif ended:
            expected = trained * (row["samples"] / (ended + running / 2) - 1)
        else:
            continue
        expected = max(expected, trained * LEAST)
        done = trained / (trained + expected)
        kind = KINDS.index("budget" if row["search"] == "default" else "samples" if row["units"] is None else "units")
        quarter = min(int(done * 4), 3)
        came = row["seconds"] - now
        yield row["problem"].split("/")[0], kind, quarter, expected / at_once, came, row["seconds"], math.inf


def end_figures(cases: Sequence[Case]) -> list[list[list[float]]]:
    """Return the figures for the end, with the first tail whose intervals hold on families that were left out of the fit."""
    for tail in TAILS:
        row = judged(cases, lambda some, tail=tail: end_quantiles(some, tail), end_interval).get("all")  # type: ignore[misc]
        if row is not None and row["held"] >= HIGH - LOW:
            break
    return end_quantiles(cases, tail)


def end_quantiles(cases: Sequence[Case], tail: float) -> list[list[list[float]]]:
    def cell(values: list[float]) -> list[float]:
        return [float(v) for v in np.quantile(values, [tail, 0.5, 1 - tail])] if len(values) >= 10 else [math.nan] * 3

    def of(i: int, k: int) -> list[float]:
        return [came / expected for _, a, b, expected, came, *_ in cases if (a, b) == (i, k)]

    return [[cell(of(i, k)) for k in range(4)] for i in range(len(KINDS))]


def end_interval(figures: Any, case: Case) -> tuple[float, float]:
    _, i, k, expected, *_ = case
    return figures[i][k][0] * expected, figures[i][k][2] * expected


# -- judging -------------------------------------------------------------------------------------------------------------


def judged(
    cases: Sequence[Case], fit: Callable[[Sequence[Case]], Any], interval: Callable[[Any, Case], tuple[float, float]]
) -> dict[str, dict[str, Any]]:
    """Return family -> the share of its intervals that were right, with constants that were fitted on the other families."""
    out: dict[str, dict[str, Any]] = {}
    everything: list[tuple[bool, bool, float]] = []
    for family in sorted({case[0] for case in cases}):
        figures = fit([case for case in cases if case[0] != family])
        found = []
        for case in cases:
            if case[0] == family:
                low, high = interval(figures, case)
                if math.isfinite(low):
                    slack = 1e-9 * case[5]
                    found.append((case[4] < low - slack, case[4] > high + slack, (high - low) / case[5]))
        if found:
            out[family] = _row(found)
            everything += found
    return {**out, "all": _row(everything)} if everything else out


def _row(found: Sequence[tuple[bool, bool, float]]) -> dict[str, Any]:
    below, above = (statistics.mean(row[i] for row in found) for i in (0, 1))
    return {
        "cases": len(found),
        "held": 1 - below - above,
        "right": f"{1 - below - above:.0%}",
        "below": f"{below:.0%}",
        "above": f"{above:.0%}",
        "width": f"{statistics.median(row[2] for row in found):.3f}",
    }


if __name__ == "__main__":
    main()
