"""Store when most of an experiment's points were deleted, and how far the deletion has progressed.

Revision ID: 0021
Revises: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("experiment", sa.Column("thinned_at", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=True))
    op.add_column(
        "experiment", sa.Column("thinned_upto", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("experiment", "thinned_upto")
    op.drop_column("experiment", "thinned_at")
