"""Problems for comparing searches: recorded learning curves, replayed in virtual time.

`shared(folder)` reads the LCBench and TaskSet problems on which the search was developed. They are not part of this repository.
`recorded()` reads the families of `benchmarks/curves`, which `benchmarks/record_curves.py` made from real trainings.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import tuner
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube
from tuner.space import Space

Floats = NDArray[np.float64]
Curve = Callable[[Mapping[str, Any]], tuple[Floats, Floats]]

RECORDED = Path(__file__).parent / "curves"
SHARED = Path(os.environ.get("CURVES", Path(__file__).resolve().parents[2] / "shared" / "curves"))
HALVES = ("both", "first", "second")
OTHER_CATEGORY = 10.0  # the distance between two categories, if the range of a number is 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to tune. Its family is the part of its name before the slash.

    curve: maps a configuration to its values and the seconds since its start, (max_t,) each, by report. full_seconds: the average
    time of a full training. best: the best known value. median: the value of the median random configuration after a full
    training. cube: the parameters as (kind, low, high, log), if all are numbers.
    """

    name: str
    mode: Literal["min", "max"]
    max_t: int
    space: Space
    full_seconds: float
    best: float
    median: float
    curve: Curve
    cube: Mapping[str, tuple[str, float, float, bool]] | None = None

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    def regret(self, value: float) -> float:
        """Return the regret of a value: 0 for the best known value, 1 for that of the median configuration."""
        return max(0.0, (self.best - value) / (self.best - self.median))


def problems(folder: Path) -> list[Problem]:
    """Return the problems of this repository and, if they are there, those of `folder`."""
    return [*shared(folder), *recorded()]


def seed_of(problem: str, run: int) -> int:
    """Return a different seed for each problem, so that no two problems get the same first configurations."""
    return zlib.crc32(f"{problem} {run}".encode())


def half(problems: Sequence[str], which: str) -> list[str]:
    """Return every other problem, beginning with the first or with the second one; or all of them.

    What was chosen on one half can be confirmed on the other.
    """
    return list(problems) if which == "both" else list(problems[which == "second" :: 2])


# -- LCBench and TaskSet -------------------------------------------------------------------------------------------------


def shared(folder: Path) -> list[Problem]:
    """Return the problems of `curves.py` in `folder`; none if there is no such file."""
    if not (folder / "curves.py").exists():
        return []
    module = imported("curves", folder / "curves.py")
    return [_adapted(p) for p in module.problems()]


def imported(name: str, file: Path) -> Any:
    """Import a file as the module `name`."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _adapted(theirs: Any) -> Problem:
    space: dict[str, Any] = {}
    for name, (kind, low, high, log) in theirs.space.items():
        if kind == "int":
            space[name] = (tuner.lograndint if log else tuner.randint)(int(low), int(high) + 1)
        else:
            space[name] = (tuner.loguniform if log else tuner.uniform)(low, high)
    return Problem(
        name=theirs.name,
        mode=theirs.mode,
        max_t=theirs.max_t,
        space=Space.from_python(space),
        full_seconds=theirs.full_seconds,
        best=theirs.best,
        median=theirs.median,
        curve=theirs.curve,
        cube=theirs.space,
    )


# -- our own -------------------------------------------------------------------------------------------------------------


def recorded(folder: Path = RECORDED) -> list[Problem]:
    """Return the problems that were recorded into `folder`."""
    return [load(file) for file in sorted(folder.glob("*.npz"))]


def load(file: Path) -> Problem:
    """Read a problem that `save` wrote. A configuration has the curve of the nearest recorded one.

    Times are scaled so that a report takes a second on average, because in virtual time every fit of the model takes a
    millisecond.
    """
    with np.load(file) as data:
        about = json.loads(str(data["about"]))
        points, values = data["points"].astype(float), data["values"].astype(float)
        seconds = data["seconds"] * (values.shape[1] / data["seconds"].mean(dtype=float))
    space = Space.from_json(about["space"])
    nearest = _Nearest(space, points)
    passed = np.arange(1, values.shape[1] + 1) / values.shape[1]
    best = values.max() if about["mode"] == "max" else values.min()

    def curve(config: Mapping[str, Any]) -> tuple[Floats, Floats]:
        k = nearest(config)
        return values[k], seconds[k] * passed

    return Problem(
        name=about["name"],
        mode=about["mode"],
        max_t=values.shape[1],
        space=space,
        full_seconds=float(seconds.mean()),
        best=float(best),
        median=float(np.median(values[:, -1])),
        curve=curve,
    )


def save(
    folder: Path, name: str, mode: str, space: Space, points: list[list[float]], values: Floats, seconds: Floats
) -> Path:
    """Write a problem: points (n, p) of the unit cube, values (n, max_t) by report, and seconds (n,) of a full training.

    NaN becomes the worst value that any configuration had at its first report, as if it had not been trained at all.
    """
    worst = (np.nanmin if mode == "max" else np.nanmax)(np.where(np.isfinite(values[:, 0]), values[:, 0], np.nan))
    finite = np.where(np.isfinite(values), values, worst)
    capped = np.maximum(finite, worst) if mode == "max" else np.minimum(finite, worst)
    file = folder / f"{name.replace('/', '_')}.npz"
    about = json.dumps({"name": name, "mode": mode, "space": space.to_json()})
    np.savez_compressed(
        file,
        about=np.array(about),
        points=np.array(points, dtype=np.float32),
        values=capped.astype(np.float32),
        seconds=seconds.astype(np.float32),
    )
    return file


class _Nearest:
    """Finds the recorded configuration that is nearest in the unit cube, if possible one with the same categories."""

    def __init__(self, space: Space, points: Floats) -> None:
        self._space, self._cube = space, Cube(space)
        size = np.bincount(self._cube.group)
        self._scale = np.where(size[self._cube.group] > 1, OTHER_CATEGORY, 1.0)
        self._known = self._cube.features(self._cube.realise(points)) * self._scale

    def __call__(self, config: Mapping[str, Any]) -> int:
        point = np.array([self._space.to_unit(self._space.check(config))])
        place = self._cube.features(self._cube.realise(point)) * self._scale
        return int(((self._known - place) ** 2).sum(1).argmin())
