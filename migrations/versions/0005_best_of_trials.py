"""Add the configuration that reached a trial's best value, and whether its result meets the constraints.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trial", sa.Column("best_params", sa.Text(), nullable=True))
    op.add_column("trial", sa.Column("feasible", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("trial", "feasible")
    op.drop_column("trial", "best_params")
