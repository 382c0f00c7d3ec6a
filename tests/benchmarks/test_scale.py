"""The simulation of a large cluster: stub ranks report to a real driver host, which commits their reports to a real store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benchmarks import scale


def test_every_report_of_the_stub_ranks_is_committed_and_every_tenth_gets_a_verdict(tmp_path: Path) -> None:
    options = scale.arguments(
        ["--trials", "6", "--rate", "60", "--seconds", "3", "--rounds", "1", "--nodes", "3", "--no-api"]
    )
    with scale.sqlite(str(tmp_path)) as url:
        row = scale.steady(url, str(tmp_path), options, 1, "sqlite")
    assert row["ranks"] == 24
    reports = row["reports_per_s"] * 3
    assert reports > 0
    assert 0.05 < row["verdicts"] / reports < 0.2
    with sqlite3.connect(tmp_path / "tuner.db") as database:
        [(committed,)] = database.execute("SELECT COUNT(*) FROM event WHERE kind = 'reported'")
        [(trials,)] = database.execute("SELECT COUNT(DISTINCT trial_number) FROM event WHERE kind = 'reported'")
        [(points,)] = database.execute("SELECT COUNT(*) FROM metric_point")
    assert committed >= reports
    assert points == 5 * committed
    assert trials == 6
