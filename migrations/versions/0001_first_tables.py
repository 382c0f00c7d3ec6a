"""Create the first tables.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.Float(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "code",
        sa.Column("hash", sa.String(length=80), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=True),
        sa.Column("space_blob", sa.LargeBinary(), nullable=True),
        sa.Column("parts_blob", sa.LargeBinary(), nullable=True),
        sa.Column("python", sa.String(length=40), nullable=False),
        sa.Column("packages", sa.Text(), nullable=False),
        sa.Column("sys_path", sa.Text(), nullable=False),
        sa.Column("working_dir", sa.Text(), nullable=False),
        sa.Column("created_at", Real, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_code"),
    )
    op.create_table(
        "decision",
        sa.Column("experiment_id", Id, autoincrement=False, nullable=False),
        sa.Column("event_seq", Id, autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "event_seq", name="pk_decision"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_decision_trial", "decision", ["experiment_id", "trial_number"])

    op.create_table(
        "event",
        sa.Column("experiment_id", Id, autoincrement=False, nullable=False),
        sa.Column("event_seq", Id, autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("segment_id", Id, nullable=True),
        sa.Column("report_no", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("experiment_id", "event_seq", name="pk_event"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "log_chunk",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stream", sa.String(length=8), nullable=False),
        sa.Column("chunk_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "rank", "stream", "chunk_no", name="pk_log_chunk"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_point",
        sa.Column("segment_id", Id, autoincrement=False, nullable=False),
        sa.Column("key_id", Id, autoincrement=False, nullable=False),
        sa.Column("report_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("time", Real, nullable=False),
        sa.Column("value", Real, nullable=True),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "key_id", "report_no", name="pk_metric_point"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "experiment",
        sa.Column("id", Id, nullable=False),
        sa.Column("public_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_version", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("code_hash", sa.String(length=80), nullable=True),
        sa.Column("driver_epoch", sa.Integer(), nullable=False),
        sa.Column("driver_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", Real, nullable=True),
        sa.Column("last_event_seq", Id, nullable=False),
        sa.Column("best", sa.Text(), nullable=True),
        sa.Column("counts", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", Real, nullable=False),
        sa.Column("started_at", Real, nullable=True),
        sa.Column("ended_at", Real, nullable=True),
        sa.ForeignKeyConstraint(["code_hash"], ["code.hash"], name="fk_experiment_code_hash"),
        sa.PrimaryKeyConstraint("id", name="pk_experiment"),
        sa.UniqueConstraint("idempotency_key", name="uq_experiment_idempotency_key"),
        sa.UniqueConstraint("public_id", name="uq_experiment_public_id"),
    )
    op.create_index("ix_experiment_name", "experiment", ["name"])
    op.create_index("ix_experiment_state", "experiment", ["state"])

    op.create_table(
        "command",
        sa.Column("id", Id, nullable=False),
        sa.Column("experiment_id", Id, nullable=False),
        sa.Column("command", sa.String(length=16), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", Real, nullable=False),
        sa.Column("done_at", Real, nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_command_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_command"),
    )
    op.create_index("ix_command_open", "command", ["experiment_id", "state"])

    op.create_table(
        "metric_key",
        sa.Column("id", Id, nullable=False),
        sa.Column("experiment_id", Id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_metric_key_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_metric_key"),
        sa.UniqueConstraint("experiment_id", "name", name="uq_metric_key_experiment_id_name"),
    )
    op.create_table(
        "snapshot",
        sa.Column("experiment_id", Id, autoincrement=False, nullable=False),
        sa.Column("event_seq", Id, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_snapshot_experiment_id"),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_snapshot"),
    )
    op.create_table(
        "trial",
        sa.Column("id", Id, nullable=False),
        sa.Column("public_id", sa.String(length=64), nullable=False),
        sa.Column("experiment_id", Id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("searcher", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("last", sa.Text(), nullable=False),
        sa.Column("last_value", Real, nullable=True),
        sa.Column("best_value", Real, nullable=True),
        sa.Column("best_iteration", sa.Integer(), nullable=True),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("running_s", Real, nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("system_failures", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=True),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("created_at", Real, nullable=False),
        sa.Column("started_at", Real, nullable=True),
        sa.Column("ended_at", Real, nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_trial_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.UniqueConstraint("experiment_id", "number", name="uq_trial_experiment_id_number"),
        sa.UniqueConstraint("public_id", name="uq_trial_public_id"),
    )
    op.create_table(
        "segment",
        sa.Column("id", Id, nullable=False),
        sa.Column("public_id", sa.String(length=64), nullable=False),
        sa.Column("trial_id", Id, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("start_step", sa.Integer(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("source_checkpoint", sa.String(length=64), nullable=True),
        sa.Column("placement", sa.Text(), nullable=True),
        sa.Column("warm", sa.Boolean(), nullable=True),
        sa.Column("startup_s", Real, nullable=True),
        sa.Column("created_at", Real, nullable=False),
        sa.Column("started_at", Real, nullable=True),
        sa.Column("ended_at", Real, nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="fk_segment_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_segment"),
        sa.UniqueConstraint("public_id", name="uq_segment_public_id"),
        sa.UniqueConstraint("trial_id", "ordinal", name="uq_segment_trial_id_ordinal"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("id", Id, nullable=False),
        sa.Column("public_id", sa.String(length=64), nullable=False),
        sa.Column("segment_id", Id, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["segment_id"], ["segment.id"], name="fk_checkpoint_segment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoint"),
        sa.UniqueConstraint("public_id", name="uq_checkpoint_public_id"),
    )
    op.create_index("ix_checkpoint_segment_id", "checkpoint", ["segment_id"])


def downgrade() -> None:
    op.drop_index("ix_checkpoint_segment_id", "checkpoint")

    op.drop_table("checkpoint")
    op.drop_table("segment")
    op.drop_table("trial")
    op.drop_table("snapshot")
    op.drop_table("metric_key")
    op.drop_index("ix_command_open", "command")

    op.drop_table("command")
    op.drop_index("ix_experiment_state", "experiment")
    op.drop_index("ix_experiment_name", "experiment")

    op.drop_table("experiment")
    op.drop_table("metric_point")
    op.drop_table("log_chunk")
    op.drop_table("event")
    op.drop_index("ix_decision_trial", "decision")

    op.drop_table("decision")
    op.drop_table("code")
