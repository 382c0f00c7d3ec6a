"""Let a trial's last value count, instead of its best one, in experiments whose scope is "last".

The values of trials change, and so do the best values over time, unless the experiment's points were thinned.

Revision ID: 0028
Revises: 0027
"""

import json
import math
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_EXPERIMENTS = "SELECT id, spec, thinned_at FROM experiment WHERE spec LIKE '%\"last\"%'"
_TRIALS = """
UPDATE trial SET best_value = last_value, best_iteration = iteration, best_params = NULL
WHERE experiment_id = :experiment AND last_value IS NOT NULL"""
_EARLIER = """
UPDATE trial SET best_iteration = :iteration WHERE experiment_id = :experiment AND number = :number"""
_REPORTS = """
SELECT e.event_seq, e.time, e.trial_number, e.step, k.name, p.value FROM event e
CROSS JOIN metric_key k
CROSS JOIN metric_point p
WHERE e.experiment_id = :experiment AND e.kind = 'reported' AND k.experiment_id = :experiment
AND k.name IN :names AND p.segment_id = e.segment_id AND p.key_id = k.id AND p.report_no = e.report_no
ORDER BY e.event_seq"""
# (segment_id, key_id, report_no) is the key of metric_point. SQLite keeps the order of CROSS JOINs, so it looks each point up.
_FORGET = "DELETE FROM best_point WHERE key_id IN (SELECT id FROM metric_key WHERE experiment_id = :experiment)"
_ADD = """
INSERT INTO best_point (key_id, event_seq, time, value)
SELECT id, :seq, :time, :value FROM metric_key WHERE experiment_id = :experiment AND name = :name"""


def upgrade() -> None:
    connection = op.get_bind()
    for experiment, text, thinned_at in connection.execute(sa.text(_EXPERIMENTS)).all():
        spec = json.loads(text)
        if spec.get("scope") != "last":
            continue
        connection.execute(sa.text(_TRIALS), {"experiment": experiment})
        if thinned_at is not None:
            continue
        bounds = (spec.get("resolved") or {}).get("constraints") or (spec.get("search") or {}).get("constraints") or {}
        names = [*{one["metric"] for one in spec["objectives"]}.union(bounds)]
        query = sa.text(_REPORTS).bindparams(sa.bindparam("names", expanding=True))
        reports = connection.execute(query, {"experiment": experiment, "names": names})
        found, iterations = _best_of_last(reports, spec["objectives"], bounds)
        connection.execute(sa.text(_FORGET), {"experiment": experiment})
        if found:
            connection.execute(sa.text(_ADD), [{"experiment": experiment, **one} for one in found])
            of = [{"experiment": experiment, "number": number, "iteration": at} for number, at in iterations.items()]
            connection.execute(sa.text(_EARLIER), of)


def downgrade() -> None:
    pass


def _best_of_last(
    reports: Any, objectives: list[dict[str, str]], bounds: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return a row for each report that changed the best of the trials' last values, and trial -> iteration of its last value."""
    first = objectives[0]["metric"]
    newest: dict[int, dict[str, float]] = {}  # trial -> the newest value of each metric
    finite: dict[int, float] = {}  # trial -> its newest finite value of the first objective
    counting: dict[str, dict[int, float]] = {one["metric"]: {} for one in objectives}  # objective -> trial -> score
    leading: dict[str, float | None] = {}  # objective -> the best score
    iterations: dict[int, int] = {}
    found = []
    for seq, rows in groupby(reports, lambda row: row.event_seq):
        points = list(rows)
        number, last = points[0].trial_number, newest.setdefault(points[0].trial_number, {})
        reported = {row.name: math.nan if row.value is None else row.value for row in points}
        last.update(reported)
        if math.isfinite(reported.get(first, math.nan)):
            finite[number], iterations[number] = reported[first], points[0].step
        within = all(_is_within(last.get(metric, math.nan), sides) for metric, sides in bounds.items())
        for one in objectives:
            name, sign, scores = one["metric"], 1 if one["mode"] == "max" else -1, counting[one["metric"]]
            value = finite.get(number, math.nan) if name == first else last.get(name, math.nan)
            before, best = scores.pop(number, None), leading.get(name)
            if within and math.isfinite(value):
                scores[number] = sign * value
            if best is None or before == best or scores.get(number, -math.inf) > best:
                leads = leading[name] = max(scores.values(), default=None)
                if leads is not None and leads != best:
                    found.append({"seq": seq, "time": points[0].time, "name": name, "value": sign * leads})
    return found, iterations


def _is_within(value: float, sides: dict[str, float]) -> bool:
    return math.isfinite(value) and sides.get("min", -math.inf) <= value <= sides.get("max", math.inf)
