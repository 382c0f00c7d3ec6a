"""Add buckets of metric points and the improvements of objectives, and an index of trials by state.

Revision ID: 0006
Revises: 0005
"""

import json

import sqlalchemy as sa
from alembic import op

from tuner.store.series.pyramid import fill
from tuner.store.sql.cursor import Cursor

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "metric_bucket",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("key_id", Id, autoincrement=False, nullable=False),
        sa.Column("level", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("chunk", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_no", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "key_id", "level", "chunk", name="pk_metric_bucket"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "best_point",
        sa.Column("key_id", Id, autoincrement=False, nullable=False),
        sa.Column("event_seq", Id, autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("value", Real, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "event_seq", name="pk_best_point"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_trial_state", "trial", ["experiment_id", "state", "number"])
    connection = op.get_bind()
    cursor = Cursor(connection.connection.driver_connection.cursor(), connection.dialect.name)
    fill(cursor)
    _fill_best(cursor)


def _fill_best(cursor: Cursor) -> None:
    """Keep the improvements of each objective, in the order of the log."""
    for experiment, spec in cursor.rows("SELECT id, spec FROM experiment ORDER BY id"):
        for objective in json.loads(spec)["objectives"]:
            best, better = ("MAX", ">") if objective["mode"] == "max" else ("MIN", "<")
            cursor.execute(
                f"""INSERT INTO best_point (key_id, event_seq, time, value)
                SELECT key_id, event_seq, time, value FROM (
                  SELECT k.id AS key_id, e.event_seq, e.time, p.value, {best}(p.value) OVER (
                    ORDER BY e.event_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                  FROM metric_key k CROSS JOIN event e
                  JOIN metric_point p ON p.segment_id = e.segment_id AND p.key_id = k.id AND p.report_no = e.report_no
                  WHERE k.experiment_id = ? AND k.name = ? AND e.experiment_id = ? AND p.value IS NOT NULL) AS points
                WHERE before IS NULL OR value {better} before""",
                (experiment, objective["metric"], experiment),
            )


def downgrade() -> None:
    op.drop_index("ix_trial_state", "trial")
    op.drop_table("best_point")
    op.drop_table("metric_bucket")
