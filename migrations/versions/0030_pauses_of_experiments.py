"""Record when each experiment was not running.

Experiments written by older versions have no pauses until a driver takes them up again.

Revision ID: 0030
Revises: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("pauses", sa.Text()))
    op.add_column("experiment", sa.Column("paused_s", REAL, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("experiment", "paused_s")
    op.drop_column("experiment", "pauses")
