"""Add the GPU hours that stopping trials early has saved.

Revision ID: 0017b
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0017b"
down_revision = "0017"
branch_labels = None
depends_on = None

REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("gpu_hours_saved", REAL, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("experiment", "gpu_hours_saved")
