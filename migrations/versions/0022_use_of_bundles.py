"""Record when code bundles were last used, so that unused ones can be deleted.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bundle",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("used_at", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_bundle")),
    )


def downgrade() -> None:
    op.drop_table("bundle")
