"""Add settings of projects.

Revision ID: 0026
Revises: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "project",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("warm_start", sa.String(16), nullable=False),
        sa.Column("changed_at", sa.Double().with_variant(sa.Float(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_project")),
    )


def downgrade() -> None:
    op.drop_table("project")
