from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.store.thinning import thin

values = st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=300)


@given(values, st.integers(0, 100))
def test_few_points_that_are_all_real_with_both_ends_and_extremes(y: list[float | None], max_points: int) -> None:
    x = [float(at) for at in range(len(y))]
    xs, ys = thin(x, y, max_points)
    assert len(xs) == len(ys) <= max(max_points, 4)
    assert xs == sorted(set(xs))
    assert all(y[int(at)] is value or y[int(at)] == value for at, value in zip(xs, ys, strict=True))
    if y:
        assert (xs[0], xs[-1]) == (x[0], x[-1])
    real = [value for value in y if value is not None]
    if real:
        kept = [value for value in ys if value is not None]
        assert (min(kept), max(kept)) == (min(real), max(real))


def test_a_single_spike_survives() -> None:
    y: list[float | None] = [0.0] * 100_000
    y[54_321], y[77_777] = 9.0, -9.0
    xs, ys = thin(list(range(100_000)), y, 100)
    assert (54_321, 9.0) in zip(xs, ys, strict=True)
    assert (77_777, -9.0) in zip(xs, ys, strict=True)


def test_what_fits_is_left_alone() -> None:
    assert thin([1, 2, 3], [1.0, None, 3.0], 3) == ([1, 2, 3], [1.0, None, 3.0])
