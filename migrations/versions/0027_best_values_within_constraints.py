"""Recompute the best values over time of experiments with constraints: they included reports that violate the constraints.

Experiments whose points were thinned keep their old values.

Revision ID: 0027
Revises: 0026
"""

import json
import math
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_EXPERIMENTS = "SELECT id, spec FROM experiment WHERE thinned_at IS NULL AND spec LIKE '%\"constraints\"%'"
_REPORTS = """
SELECT e.event_seq, e.time, e.trial_number, k.name, p.value FROM event e
CROSS JOIN metric_key k
CROSS JOIN metric_point p
WHERE e.experiment_id = :experiment AND e.kind = 'reported' AND k.experiment_id = :experiment
AND p.segment_id = e.segment_id AND p.key_id = k.id AND p.report_no = e.report_no ORDER BY e.event_seq"""
# (segment_id, key_id, report_no) is the key of metric_point. SQLite keeps the order of CROSS JOINs, so it looks each point up.
_FORGET = "DELETE FROM best_point WHERE key_id IN (SELECT id FROM metric_key WHERE experiment_id = :experiment)"
_ADD = """
INSERT INTO best_point (key_id, event_seq, time, value)
SELECT id, :seq, :time, :value FROM metric_key WHERE experiment_id = :experiment AND name = :name"""


def upgrade() -> None:
    connection = op.get_bind()
    for experiment, text in connection.execute(sa.text(_EXPERIMENTS)).all():
        spec = json.loads(text)
        bounds = (spec.get("resolved") or {}).get("constraints") or (spec.get("search") or {}).get("constraints")
        if bounds:
            reports = connection.execute(sa.text(_REPORTS), {"experiment": experiment})
            found = _improvements(reports, spec["objectives"], bounds)
            connection.execute(sa.text(_FORGET), {"experiment": experiment})
            if found:
                connection.execute(sa.text(_ADD), [{"experiment": experiment, **one} for one in found])


def downgrade() -> None:
    pass


def _improvements(reports: Any, objectives: list[dict[str, str]], bounds: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each report that is the best so far in an objective and satisfies the constraints."""
    newest: dict[int, dict[str, float]] = {}  # trial -> the newest value of each metric
    best: dict[str, float] = {}
    found = []
    for seq, rows in groupby(reports, lambda row: row.event_seq):
        points = list(rows)
        time, last = points[0].time, newest.setdefault(points[0].trial_number, {})
        reported = {row.name: math.nan if row.value is None else row.value for row in points}
        last.update(reported)
        if not all(_is_within(last.get(metric, math.nan), sides) for metric, sides in bounds.items()):
            continue
        # A constraint's metric may be reported after the objective value that the constraint judges.
        candidates = last if any(metric in reported for metric in bounds) else reported
        for one in objectives:
            name, sign = one["metric"], 1 if one["mode"] == "max" else -1
            value = candidates.get(name, math.nan)
            if math.isfinite(value) and (name not in best or sign * value > sign * best[name]):
                best[name] = value
                found.append({"seq": seq, "time": time, "name": name, "value": value})
    return found


def _is_within(value: float, sides: dict[str, float]) -> bool:
    return math.isfinite(value) and sides.get("min", -math.inf) <= value <= sides.get("max", math.inf)
