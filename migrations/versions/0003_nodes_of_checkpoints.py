"""Add the node on whose disk a checkpoint is stored.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("node", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoint", "node")
