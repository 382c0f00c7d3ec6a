"""Add a column for checkpoints that users have pinned.

Revision ID: 0011b
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011b"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("checkpoint", "pinned")
