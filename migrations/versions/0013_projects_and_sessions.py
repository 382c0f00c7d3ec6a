"""Add projects for experiments and tokens, and browser sessions.

Revision ID: 0013
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0009"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.add_column("experiment", sa.Column("project", sa.String(100), nullable=False, server_default="default"))
    op.create_index("ix_experiment_project_id", "experiment", ["project", "id"])
    op.add_column("token", sa.Column("project", sa.String(100)))
    op.add_column("audit", sa.Column("project", sa.String(100)))
    op.create_table(
        "session",
        sa.Column("id", ID, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("token_id", ID),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("project", sa.String(100)),
        sa.Column("created_at", REAL, nullable=False),
        sa.Column("expires_at", REAL, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_session"),
        sa.UniqueConstraint("hash", name="uq_session_hash"),
        sa.ForeignKeyConstraint(["token_id"], ["token.id"], name="fk_session_token_id"),
    )


def downgrade() -> None:
    op.drop_table("session")
    op.drop_column("audit", "project")
    op.drop_column("token", "project")
    op.drop_index("ix_experiment_project_id", "experiment")
    op.drop_column("experiment", "project")
