"""Run by `tuner.store.sql.migrate`, which hands over a connection with its transaction begun and its lock taken."""

from alembic import context

from tuner.store.sql.tables import JsonText, metadata


def render(kind, item, _):
    """JSON is text for the database: revisions must not depend on what the package calls it."""
    return "sa.Text()" if kind == "type" and isinstance(item, JsonText) else False


connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `tuner migrate`; to write a new revision see docs/database.md")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_item=render,
    transactional_ddl=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
context.run_migrations()
