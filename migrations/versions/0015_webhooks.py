"""Add webhooks and their deliveries.

Revision ID: 0015
Revises: 0011b
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0011b"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "webhook",
        sa.Column("id", ID, nullable=False),
        sa.Column("public_id", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("project", sa.String(100)),
        sa.Column("experiment", sa.String(64)),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("threshold", REAL),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", REAL, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook"),
        sa.UniqueConstraint("public_id", name="uq_webhook_public_id"),
    )
    op.create_table(
        "webhook_cursor",
        sa.Column("experiment_id", ID, nullable=False, autoincrement=False),
        sa.Column("event_seq", ID, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", REAL),
        sa.Column("ended_at", REAL),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_webhook_cursor"),
    )
    op.create_table(
        "webhook_delivery",
        sa.Column("id", ID, nullable=False),
        sa.Column("public_id", sa.String(64), nullable=False),
        sa.Column("webhook_id", ID, nullable=False),
        sa.Column("occurrence", sa.String(200), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("experiment", sa.String(64), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", REAL, nullable=False),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", REAL, nullable=False),
        sa.Column("ended_at", REAL),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_delivery"),
        sa.UniqueConstraint("public_id", name="uq_webhook_delivery_public_id"),
        sa.UniqueConstraint("webhook_id", "occurrence", name="uq_webhook_delivery_webhook_id_occurrence"),
    )
    op.create_index("ix_webhook_delivery_due", "webhook_delivery", ["state", "next_at"])


def downgrade() -> None:
    op.drop_table("webhook_delivery")
    op.drop_table("webhook_cursor")
    op.drop_table("webhook")
