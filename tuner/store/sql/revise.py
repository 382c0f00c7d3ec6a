"""Write the migration from the last revision to the tables in `tables.py`: ``python -m tuner.store.sql.revise "its subject"``.

Without a subject, only write `sqlite.sql`, which has the statements that create the tables in a new SQLite file. Do so if you
have changed a migration by hand.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import Script

from tuner.store.sql.connect import connect
from tuner.store.sql.migrate import scripts, upgrade


def main(message: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    with tempfile.TemporaryDirectory() as folder:
        engine = connect(f"sqlite:///{folder}/before.db")
        upgrade(engine)
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            script = command.revision(config, message, autogenerate=True, rev_id=f"{_last() + 1:04d}")
        engine.dispose()
    assert isinstance(script, Script)
    path = Path(script.path)
    path.write_text(re.sub(r"\n *# ### [^\n]*", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=True)
    write_new()


def write_new() -> None:
    """Write the statements that all migrations together have carried out, as SQLite itself keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        engine = connect(f"sqlite:///{folder}/new.db")
        upgrade(engine)
        engine.dispose()
        with contextlib.closing(sqlite3.connect(f"{folder}/new.db")) as made:
            found = made.execute(
                "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY rowid"
            )
            statements = [str(sql) for (sql,) in found]
            [(newest,)] = made.execute("SELECT version_num FROM alembic_version")
    statements.append(f"INSERT INTO alembic_version VALUES ('{newest}')")
    (scripts() / "sqlite.sql").write_text(";\n\n".join(statements) + "\n", encoding="utf-8")


def _last() -> int:
    """Return the largest revision number. The newest revision may have a smaller number."""
    return max(int(path.name[:4]) for path in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]*.py"))


def command_line(arguments: list[str]) -> None:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    if arguments:
        main(arguments[0])
    else:
        write_new()


if __name__ == "__main__":
    command_line(sys.argv[1:])
