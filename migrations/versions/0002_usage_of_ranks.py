"""Add the resource usage of ranks.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "rank_usage",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sample_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("cpu_s", Real, nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpu_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_percent", Real, nullable=True),
        sa.PrimaryKeyConstraint("segment_id", "rank", "sample_no", name="pk_rank_usage"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("rank_usage")
