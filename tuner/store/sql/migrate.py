"""Migrate a database to the tables of this version.

Alembic's scripts are in `migrations/`, and in the wheel as `tuner/_migrations`. A new SQLite file gets the result of all scripts
from `sqlite.sql` there, which `tuner.store.sql.revise` writes: to import Alembic and run the scripts takes ten times as long.
"""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from tuner.errors import StoreError
from tuner.store.sql.connect import shown_url, translate

log = logging.getLogger(__name__)


def scripts() -> Path:
    """Return the folder of the migration scripts: beside the package in a source tree, inside it if installed."""
    package = Path(__file__).resolve().parents[2]
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise StoreError("the migration scripts are missing from this installation; install the package again")


@functools.cache
def head() -> str:
    """Return the newest revision, which is the only one in `migrations/versions` on which no other revision is based."""
    [newest] = _declared("revision") - _declared("down_revision")
    return newest


def is_known(revision: str) -> bool:
    """Return whether this version of tuner can migrate a database of this revision."""
    return revision in _declared("revision")


def _declared(field: str) -> set[str]:
    """Return the values that this field has in the scripts in `migrations/versions`."""
    texts = [path.read_text(encoding="utf-8") for path in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]*.py")]
    return {name for text in texts for name in re.findall(rf'^{field} = "(\w+)"', text, re.MULTILINE)}


def revision(engine: Engine) -> str | None:
    """Return the revision of the database, or None if it is empty."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
        return str(row[0]) if row else None


def migrate(engine: Engine) -> None:
    """Migrate the database to `head()`. Several processes may do this at once.

    If there is nothing to do, this costs only one query.
    """
    try:
        if (before := revision(engine)) == head():
            return
    except DBAPIError as error:
        kind = type(translate(error.orig or error, engine.dialect.name))
        raise kind(f"cannot open the database {_shown(engine)}: {shown_url(str(error.orig))}") from error

    if before is not None or not _create(engine):
        upgrade(engine)


def upgrade(engine: Engine) -> None:
    """Run the scripts that the database lacks."""
    # Otherwise Alembic writes a line for each plugin when it is imported, and one for each revision.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Alembic takes 0.2 s to import, so it is imported only if there is something to do.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    before = revision(engine)
    if before == head():
        return  # another process has been faster
    with engine.connect() as connection:
        lite = engine.dialect.name == "sqlite"
        config.attributes["connection"] = connection
        try:
            if lite:
                _begin(connection)
            else:
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7236512)")
            command.upgrade(config, "head")
            if lite:
                _check_references(connection)
            connection.commit()
            if before is not None:
                log.info("migrated the database %s from revision %s to %s", _shown(engine), before, head())
        except CommandError as error:
            raise StoreError(
                f"{_shown(engine)} was written by a newer version of tuner; upgrade tuner ({error})"
            ) from error
        finally:
            if lite:
                connection.invalidate()  # foreign keys are off in this connection, so nothing may use it again


def _create(engine: Engine) -> bool:
    """Create the tables in an empty SQLite file. Return False if it is none, or if `sqlite.sql` is of another revision."""
    if engine.dialect.name != "sqlite" or not (script := scripts() / "sqlite.sql").is_file():
        return False
    *statements, stamp = script.read_text(encoding="utf-8").strip().split(";\n\n")
    if f"'{head()}'" not in stamp:
        return False
    with engine.connect() as connection:
        try:
            _begin(connection)
            if connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
                return False  # another process has been faster, or the file has tables of something else
            for statement in (*statements, stamp):
                connection.exec_driver_sql(statement)
            connection.commit()
            return True
        finally:
            connection.invalidate()


def _begin(connection: Connection) -> None:
    """Begin to write to an SQLite file, in a connection that nothing may use afterwards: its foreign keys are off."""
    connection.exec_driver_sql("COMMIT")  # the read transaction that SQLAlchemy has begun
    connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # a migration may rebuild a referenced table
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _check_references(connection: Connection) -> None:
    if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(
            f"{_shown(connection.engine)} cannot be migrated: a row of {broken[0]} refers to a missing row of {broken[2]}"
        )


def _shown(engine: Engine) -> str:
    return shown_url(engine.url.render_as_string())
