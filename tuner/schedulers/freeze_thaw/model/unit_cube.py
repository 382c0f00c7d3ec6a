"""Treat configurations as points in the unit cube: encode them for the model, and generate new points.

A *point* has one coordinate in [0, 1] for each parameter. A point is *realized* if every coordinate belongs to a
value of its parameter: on the grid of an integer or ordered parameter, in the middle of a category's share, and
1/2 for an inactive parameter. Two configurations are equal if and only if their realized points are equal.

The model measures distances between *features*: one number for a numeric parameter, and k numbers for k categories (any
two categories are 1 apart). An inactive parameter has 1/2, so configurations in which it is inactive do not differ in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tuner.schedulers.freeze_thaw.model.curve_model import Floats, Ints
from tuner.space import Parameter, Space

INACTIVE = 0.5
MOST_POSITIONS = 1000  # a finer grid counts as continuous


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of one parameter in the unit cube.

    Attributes:
        kind: "continuous"; "grid" for discrete ordered values; "choice" for unordered categories.
        positions: the coordinates of the values of a grid or a choice, increasing.
        edges: True if the ends 0 and 1 are worth trying; False for a normal distribution and for categories.
        parent: (axis number, coordinate) that makes this parameter active. None: it is always active.
    """

    kind: Literal["continuous", "grid", "choice"]
    positions: Floats
    edges: bool
    parent: tuple[int, float] | None

    @classmethod
    def of(cls, parameter: Parameter, number: Mapping[str, int], axes: list[Axis]) -> Axis:
        """Return the axis of a parameter. `number` gives the axis number of a path; `axes` are the axes before this one."""
        parent = None
        if parameter.condition is not None:
            above = number[parameter.condition[0]]
            parent = (above, float(axes[above].positions[parameter.condition[1]]))
        size = parameter.size
        if parameter.kind == "choice":
            positions = (np.arange(size or 0) + 0.5) / (size or 1)
            return cls("grid" if parameter.ordered else "choice", positions, parameter.ordered, parent)
        if size is None or size > MOST_POSITIONS:
            return cls("continuous", np.empty(0), parameter.kind != "normal", parent)
        step = parameter.step or 1
        values = [parameter.clip(parameter.lower + step * i) for i in range(size)]
        return cls("grid", np.array([parameter.unit(value) for value in values]), True, parent)


class Cube:
    """The unit cube of a space with p parameters, encoded in q feature columns."""

    def __init__(self, space: Space) -> None:
        self.space = space
        number = {parameter.path: i for i, parameter in enumerate(space.parameters)}
        self.axes: list[Axis] = []
        for parameter in space.parameters:
            self.axes.append(Axis.of(parameter, number, self.axes))
        self.dims = len(self.axes)
        group: list[int] = []
        for place, axis in enumerate(self.axes):
            group += [place] * (len(axis.positions) if axis.kind == "choice" else 1)
        self.group: Ints = np.array(group, dtype=np.int64)
        self.choice = np.array([axis.kind == "choice" for axis in self.axes], dtype=bool)
        self._edges = np.array([axis.edges for axis in self.axes], dtype=bool)
        # Trials at the same point may still differ in the values that functions of `sample_from` draw.
        self.discrete = not space.has_functions and not any(axis.kind == "continuous" for axis in self.axes)

    def point(self, params: Mapping[str, Any]) -> Floats:
        """Return the realized point (p,) of flat params."""
        return np.array(self.space.to_unit(params), dtype=float)

    def params(self, point: Floats) -> dict[str, Any]:
        """Return the flat params at a point (p,)."""
        return self.space.from_unit([float(u) for u in point])

    def realise(self, points: Floats) -> Floats:
        """Return the points (m, p), each moved to the nearest realized point."""
        out = np.array(points, dtype=float)
        active: list[NDArray[np.bool_] | None] = []  # for each axis, where it is active; None: in every point
        for number, axis in enumerate(self.axes):
            if axis.kind != "continuous":
                middles = (axis.positions[1:] + axis.positions[:-1]) / 2
                out[:, number] = axis.positions[np.searchsorted(middles, out[:, number])]
            if axis.parent is None:
                active.append(None)
                continue
            above, place = axis.parent
            on = out[:, above] == place
            if (also := active[above]) is not None:
                on &= also
            active.append(on)
            out[~on, number] = INACTIVE
        return out

    def features(self, points: Floats) -> Floats:
        """Return the features (m, q) of realized points (m, p). `group` says which parameter each column belongs to."""
        if not self.choice.any():
            return points
        columns = []
        for number, axis in enumerate(self.axes):
            column = points[:, number : number + 1]
            if axis.kind == "choice":
                columns.append((np.abs(column - axis.positions) < 1e-9) * np.sqrt(0.5))
            else:
                columns.append(column)
        return np.concatenate(columns, axis=1)

    def spread(self, count: int, shift: Floats, start: int = 0) -> Floats:
        """Return `count` realized points (count, p) of a low-discrepancy sequence, from index `start` on.

        The sequence is R_p of Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018, shifted by
        `shift` (p,).
        """
        ratio = 2.0
        for _ in range(64):
            ratio = (1 + ratio) ** (1 / (self.dims + 1))
        steps = ratio ** -np.arange(1.0, self.dims + 1)
        return self.realise((shift + np.arange(start + 1, start + count + 1)[:, None] * steps) % 1.0)

    def scatter(self, count: int, generator: np.random.Generator) -> Floats:
        """Return uniform random points (count, p), in each of which a random share of the numbers is rounded to 0 or 1.

        Real optima often lie on an edge, where uniform points never lie.
        """
        points = generator.random((count, self.dims))
        rounded = (generator.random(points.shape) < generator.random((count, 1))) & self._edges
        return self.realise(np.where(rounded, np.round(points), points))

    def perturb(self, points: Floats, scale: Floats | float, generator: np.random.Generator) -> Floats:
        """Return the points (m, p) after random steps.

        Each coordinate moves with probability 1/2, by a normal step with standard deviation `scale`. A category
        changes rarely, and then to any category.
        """
        moved = generator.random(points.shape) < 0.5
        out = np.clip(points + moved * generator.normal(0, 1, points.shape) * scale, 0, 1)
        if self.choice.any():
            anew = moved & (generator.random(points.shape) < 2 * scale) & self.choice
            out = np.where(self.choice, np.where(anew, generator.random(points.shape), points), out)
        return self.realise(out)


def key(point: Floats) -> bytes:
    """Return a hashable key: bytes that are equal if and only if the realized points are equal."""
    return (np.round(point, 9) + 0.0).tobytes()
