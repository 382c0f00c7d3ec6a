"""Keep the idempotency keys of users' requests for more trials.

Revision ID: 0033
Revises: 0032
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("command", sa.Column("idempotency_key", sa.Text(), nullable=True))
    op.add_column("command", sa.Column("request", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("command", "request")
    op.drop_column("command", "idempotency_key")
