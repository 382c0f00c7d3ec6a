"""Record when packages of local directories were last used, and index rare kinds of events to find them without reading reports.

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
    no_report = sa.text("kind <> 'reported'")
    columns = ["experiment_id", "kind", "event_seq", "trial_number"]
    op.create_index("ix_event_kind", "event", columns, sqlite_where=no_report, postgresql_where=no_report)


def downgrade() -> None:
    op.drop_index("ix_event_kind", "event")
    op.drop_table("package")
