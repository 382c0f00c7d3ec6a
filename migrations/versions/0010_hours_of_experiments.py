"""Add the GPU hours and CPU hours that an experiment has used.

Revision ID: 0010
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0011"
branch_labels = None
depends_on = None

REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("gpu_hours", REAL, nullable=False, server_default="0"))
    op.add_column("experiment", sa.Column("cpu_hours", REAL, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("experiment", "cpu_hours")
    op.drop_column("experiment", "gpu_hours")
