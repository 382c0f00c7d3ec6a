"""Record which share of its training budget each experiment has spent.

Experiments written by older versions have no share until a driver takes them up again.

Revision ID: 0032
Revises: 0031
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("budget_spent", REAL))


def downgrade() -> None:
    op.drop_column("experiment", "budget_spent")
