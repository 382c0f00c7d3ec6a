"""Keep SQLite from giving the id of a deleted row to a new one (AUTOINCREMENT). PostgreSQL never does that.

SQLite cannot change a table's key, so each table is rebuilt, with its rows and indexes. `tuner.store.sql.migrate` turns foreign
keys off beforehand and checks them at the end.

Revision ID: 0017
Revises: 0015
"""

import re

from alembic import op

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None

KEY = re.compile(r"\bid (?:INTEGER|BIGINT) NOT NULL")
CONSTRAINT = re.compile(r",\s*CONSTRAINT \w+ PRIMARY KEY \(id\)")


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all()
    for name, sql in found:
        if CONSTRAINT.search(sql or ""):
            build_again(connection, name, sql)


def build_again(connection, name: str, sql: str) -> None:
    query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
    indexes = [row[0] for row in connection.exec_driver_sql(query, (name,)).all()]
    columns, keys = KEY.subn("id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", CONSTRAINT.sub("", sql, count=1), count=1)
    assert keys == 1, f"the key of {name} is not an integer"
    new = f"new_{name}"
    made = re.sub(rf'^CREATE TABLE "?{name}"?', f"CREATE TABLE {new}", columns, count=1)
    assert made != columns, sql
    connection.exec_driver_sql(made)
    connection.exec_driver_sql(f"INSERT INTO {new} SELECT * FROM {name}")
    connection.exec_driver_sql(f"DROP TABLE {name}")
    connection.exec_driver_sql(f"ALTER TABLE {new} RENAME TO {name}")
    for index in indexes:
        connection.exec_driver_sql(index)


def downgrade() -> None:
    """Keep the tables as they are: earlier versions read and write them too."""
