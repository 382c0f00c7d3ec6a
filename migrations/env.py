"""Run the migrations on the connection of `tuner.store.sql.migrate`, which has begun a transaction and taken a lock."""

from alembic import context

from tuner.store.sql.tables import JsonText, metadata


def render(kind, item, _):
    """Render JSON columns as plain text, so that revisions do not depend on a class of the package."""
    return "sa.Text()" if kind == "type" and isinstance(item, JsonText) else False


connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `tuner migrate`; to write a new revision see docs/database.md")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_item=render,
    transactional_ddl=True,
)
context.run_migrations()
