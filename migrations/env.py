"""Run the migrations on the connection of `tuner.store.sql.migrate`, which has begun a transaction and taken a lock."""

from alembic import context
from alembic.operations import ops

from tuner.store.sql.tables import JsonText, metadata


def render(kind, item, _):
    """Render JSON columns as plain text, so that revisions do not depend on a class of the package."""
    return "sa.Text()" if kind == "type" and isinstance(item, JsonText) else False


NEED_A_NEW_TABLE = (ops.AlterColumnOp, ops.AddConstraintOp, ops.DropConstraintOp)


def copy_where_needed(migration, _, scripts):
    """Let a new revision copy a table if SQLite cannot change it in place. Adding and dropping columns needs no copy."""
    [script] = scripts
    parts = [part for table in script.upgrade_ops.ops for part in getattr(table, "ops", ())]
    migration.opts["render_as_batch"] = any(isinstance(part, NEED_A_NEW_TABLE) for part in parts)


connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `tuner migrate`; to write a new revision see docs/database.md")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_item=render,
    transactional_ddl=True,
    process_revision_directives=copy_where_needed,
)
context.run_migrations()
