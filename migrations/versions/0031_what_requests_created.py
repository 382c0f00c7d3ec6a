"""Name what requests created in the audit trail.

Revision ID: 0031
Revises: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit", sa.Column("created", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("audit", "created")
