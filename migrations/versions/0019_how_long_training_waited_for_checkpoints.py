"""Add the seconds that training waited for checkpoints, for the timeline.

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("taken_at", "took_s"):
        op.add_column("checkpoint", sa.Column(name, sa.Double().with_variant(sa.Float(), "sqlite")))


def downgrade() -> None:
    for name in ("took_s", "taken_at"):
        op.drop_column("checkpoint", name)
