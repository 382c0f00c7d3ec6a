"""Note when packages of local directories were last used, so that those that no experiment uses can be deleted.

Revision ID: 0025
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "package",
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("used_at", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=False),
        sa.Column("deleting_since", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=True),
        sa.PrimaryKeyConstraint("uri", name=op.f("pk_package")),
    )


def downgrade() -> None:
    op.drop_table("package")
