"""Drop the table of snapshots, which no version has ever filled.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("snapshot")


def downgrade() -> None:
    op.create_table(
        "snapshot",
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_snapshot_experiment_id"),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_snapshot"),
    )
