"""Store logs of ranks as compressed chunks of the file that each rank writes.

Revision ID: 0009
Revises: 0008
"""

import zlib

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    """Replace the table. No driver has written to it, but if it has rows, they become one log for each rank."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.text("SELECT segment_id, rank, time, text FROM log_chunk ORDER BY segment_id, rank, time, stream, chunk_no")
    ).all()
    op.drop_table("log_chunk")
    table = op.create_table(
        "log_chunk",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "rank", "start", "size", name="pk_log_chunk"),
        sqlite_with_rowid=False,
    )
    ends: dict[tuple[int, int], int] = {}
    for row in rows:
        content = row.text.encode()
        start = ends.get((row.segment_id, row.rank), 0)
        ends[row.segment_id, row.rank] = start + len(content)
        if content:
            values = {"segment_id": row.segment_id, "rank": row.rank, "time": row.time, "start": start}
            connection.execute(table.insert().values(**values, size=len(content), data=zlib.compress(content)))


def downgrade() -> None:
    """Restore the old table, without rows: the output of ranks cannot be divided into streams again."""
    op.drop_table("log_chunk")
    op.create_table(
        "log_chunk",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stream", sa.String(8), nullable=False),
        sa.Column("chunk_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "rank", "stream", "chunk_no", name="pk_log_chunk"),
        sqlite_with_rowid=False,
    )
