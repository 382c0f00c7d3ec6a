"""Add the step that training code passes with a report.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("metric_point", sa.Column("user_step", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("metric_point", "user_step")
