"""Compute the rung levels and survivor counts of successive halving, in exact arithmetic.

Levels are computed by multiplication: grace, grace·eta, grace·eta², ... Floating-point logarithms would lose the top
rung for some options, such as 243 with eta 3 and 1000 with eta 10.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

from tuner.errors import SpecError
from tuner.options import check_number


def exact(value: float) -> Fraction:
    """Return the exact decimal value of a number: 0.1 becomes one tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def plain(value: Fraction) -> float:
    """Return a fraction as an int if it is whole, else as a float."""
    return value.numerator if value.denominator == 1 else float(value)


def survivors(entries: int, eta: int | Fraction) -> int:
    """Return how many of a rung's entries continue: floor(n/eta)."""
    return int(entries // eta)


def reduction(eta: float) -> int | Fraction:
    """Return eta as an exact number.

    Raises:
        SpecError: eta is below 1.1, which would give too many rungs.
    """
    check_number("reduction_factor", eta, at_least=1.1)
    value = exact(eta)
    return value.numerator if value.denominator == 1 else value


def check_max_t(max_t: float | None, grace_period: float, pointer: str = "") -> None:
    """Raise SpecError if `max_t` is below `grace_period`. None is allowed."""
    if max_t is None:
        return
    check_number("max_t", max_t, above=0)
    if max_t < grace_period:
        raise SpecError(f"expected at least grace_period ({grace_period:.15g}), got {max_t:.15g}", f"{pointer}/max_t")


class Levels:
    """The rung levels of one bracket, ascending and below `max_t`. Without `max_t`, there is no highest level."""

    def __init__(self, grace_period: float, eta: int | Fraction, max_t: float | None, bracket: int = 0) -> None:
        self._eta = eta
        self._max_t = max_t
        self._next = exact(grace_period) * Fraction(eta) ** bracket
        self._levels: list[float] = []
        self._complete = False

    def _add(self) -> bool:
        """Compute the next level. Return False if there is no further level."""
        if self._complete or (self._max_t is not None and self._next >= self._max_t):
            self._complete = True
            return False
        self._levels.append(plain(self._next))
        self._next *= self._eta
        return True

    def passed(self, t: float) -> int:
        """Return the number of rungs at or below t."""
        while (not self._levels or self._levels[-1] <= t) and self._add():
            pass
        return bisect_right(self._levels, t)

    def level(self, index: int) -> float | None:
        """Return the level of rung `index`, counted from 0, or None if there is no such rung."""
        while len(self._levels) <= index and self._add():
            pass
        return self._levels[index] if index < len(self._levels) else None

    def all(self) -> list[float]:
        """Return all levels. Without `max_t`, raise an error, because there is no highest level."""
        if self._max_t is None:
            raise ValueError("max_t is None, so there is no highest rung")
        while self._add():
            pass
        return list(self._levels)
