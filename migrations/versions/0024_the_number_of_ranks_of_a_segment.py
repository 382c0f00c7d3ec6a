"""Store each segment's number of ranks, which differs between the segments of an elastic trial.

Revision ID: 0024
Revises: 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("segment", schema=None) as batch_op:
        batch_op.add_column(sa.Column("workers", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("segment", schema=None) as batch_op:
        batch_op.drop_column("workers")
