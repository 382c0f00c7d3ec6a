from __future__ import annotations

import pytest

from tuner.domain.timestamps import rfc3339


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000.25, "2023-11-14T22:13:20.250000Z"),
        (float("nan"), "1970-01-01T00:00:00.000000Z"),
        (1e300, "1970-01-01T00:00:00.000000Z"),
        (-1.0, "1970-01-01T00:00:00.000000Z"),
    ],
)
def test_times(time: float, text: str) -> None:
    assert rfc3339(time) == text
