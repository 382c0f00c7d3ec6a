"""Draws the pictures of docs/schedulers.md: one simulated run of each scheduler, as a small SVG.

    python docs/make_pictures.py

Every trial is a curve; what is drawn is what `tuner.simulate` reported. The runs are seeded, so the pictures come out the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.domain.states import TrialState
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.space import loguniform, uniform

HERE = Path(__file__).parent / "pictures"
WIDTH, HEIGHT, EDGE = 560, 240, 34
COLOURS = {TrialState.COMPLETED: "#1c7ed6", TrialState.STOPPED: "#adb5bd"}

RUNS: dict[str, dict[str, Any]] = {
    "fifo": {"num_samples": 12, "scheduler": "fifo"},
    "asha": {"num_samples": 40, "scheduler": {"type": "asha", "reduction_factor": 3}},
    "asha_promotion": {"num_samples": 40, "scheduler": {"type": "asha_promotion", "reduction_factor": 3}},
    "hyperband": {"num_samples": 49, "scheduler": {"type": "hyperband", "reduction_factor": 3}},
    "median": {"num_samples": 40, "scheduler": {"type": "median", "grace_period": 3}},
    "pbt": {"num_samples": 6, "scheduler": {"type": "pbt", "perturbation_interval": 3}},
}


def train(config: Mapping[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Simulate a training in which the right learning rate learns fast and a high one gets stuck early."""
    done = checkpoint or 0.0
    off = abs(math.log10(config["lr"]) + 2.3)
    rate, ceiling = 0.28 * math.exp(-0.7 * off), 0.95 - 0.15 * off * config["noise"]
    while True:
        done += rate * (ceiling - done)
        yield Step(metrics={"accuracy": done}, checkpoint=done)


def picture(run: Simulation, max_t: int) -> str:
    """Draw the curves, with a gap at each exploit of another trial's checkpoint and a dot at each end."""
    tops = max(metrics["accuracy"] for *_, metrics in run.history)
    curves: dict[int, list[list[tuple[int, float]]]] = defaultdict(lambda: [[]])
    for _, trial, step, metrics in run.history:
        pieces = curves[trial]
        if pieces[-1] and step != pieces[-1][-1][0] + 1:
            pieces.append([])
        pieces[-1].append((step, metrics["accuracy"]))

    def x(step: float) -> float:
        return round(EDGE + (step - 1) / (max_t - 1) * (WIDTH - 2 * EDGE), 1)

    def y(value: float) -> float:
        return round(HEIGHT - EDGE - value / tops * (HEIGHT - 2 * EDGE), 1)

    ended_well = [t for t in run.trials if t.state is TrialState.COMPLETED]
    others = [t for t in run.trials if t.state is not TrialState.COMPLETED]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{EDGE} {EDGE}V{HEIGHT - EDGE}H{WIDTH - EDGE}" fill="none" stroke="#868e96"/>',
        f'<text x="{WIDTH - EDGE}" y="{HEIGHT - 12}" text-anchor="end" fill="#495057">training_iteration {max_t}</text>',
        f'<text x="{EDGE}" y="{EDGE - 10}" fill="#495057">accuracy</text>',
        f'<text x="{WIDTH - EDGE}" y="{EDGE - 10}" text-anchor="end" fill="#495057">{len(run.trials)} trials, '
        f"{len(ended_well)} to the end, {len(run.history)} reports</text>",
    ]
    for trial in [*others, *ended_well]:
        colour = COLOURS.get(trial.state, "#fa5252")
        for piece in curves[trial.number]:
            points = " ".join(f"{x(step)},{y(value)}" for step, value in piece)
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-opacity="0.75"/>')
        if curves[trial.number][-1]:
            step, value = curves[trial.number][-1][-1]
            lines.append(f'<circle cx="{x(step)}" cy="{y(value)}" r="2.2" fill="{colour}"/>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    HERE.mkdir(exist_ok=True)
    space = {"lr": loguniform(1e-4, 1e-1), "noise": uniform(0.3, 1.0)}
    for name, options in RUNS.items():
        run = simulate(train, space, metric="accuracy", mode="max", max_t=27, seed=4, search_alg="random", **options)
        (HERE / f"{name}.svg").write_text(picture(run, 27), encoding="utf-8")
        print(f"{name}: {len(run.trials)} trials, {len(run.history)} reports, best {run.best_value:.4f}")


if __name__ == "__main__":
    main()
