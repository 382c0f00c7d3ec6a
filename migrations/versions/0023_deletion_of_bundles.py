"""Store when the deletion of a code bundle began, so that its files can be deleted without a lock on the database.

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bundle", sa.Column("deleting_since", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=True))


def downgrade() -> None:
    op.drop_column("bundle", "deleting_since")
