"""Add tokens, and the audit trail of who did what.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", ID, nullable=False),
        sa.Column("public_id", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", REAL, nullable=False),
        sa.Column("expires_at", REAL),
        sa.Column("revoked_at", REAL),
        sa.Column("used_at", REAL),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("public_id", name="uq_token_public_id"),
        sa.UniqueConstraint("hash", name="uq_token_hash"),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("time", REAL, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("token_id", sa.String(64)),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )


def downgrade() -> None:
    op.drop_table("audit")
    op.drop_table("token")
