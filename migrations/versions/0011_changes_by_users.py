"""Add columns for users' changes to an experiment, and for the data of commands.

Revision ID: 0011
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0013"
branch_labels = None
depends_on = None

REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("archived_at", REAL))
    op.add_column("experiment", sa.Column("changes", sa.Text()))
    op.add_column("experiment", sa.Column("revision", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("experiment", sa.Column("tags", sa.Text()))
    op.add_column("command", sa.Column("payload", sa.Text()))


def downgrade() -> None:
    op.drop_column("command", "payload")
    for name in ("tags", "revision", "changes", "archived_at"):
        op.drop_column("experiment", name)
