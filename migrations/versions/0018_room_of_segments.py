"""Add how long a segment's startup took after its group got resources, to tell waiting from starting.

Revision ID: 0018
Revises: 0017b
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017b"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("segment", sa.Column("held_s", sa.Double().with_variant(sa.Float(), "sqlite")))


def downgrade() -> None:
    op.drop_column("segment", "held_s")
