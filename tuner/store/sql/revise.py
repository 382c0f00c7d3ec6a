"""Write the migration from the last revision to the tables in `tables.py`: ``python -m tuner.store.sql.revise "its subject"``."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import Script

from tuner.store.sql.connect import connect
from tuner.store.sql.migrate import migrate, scripts


def main(message: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    with tempfile.TemporaryDirectory() as folder:
        engine = connect(f"sqlite:///{folder}/before.db")
        migrate(engine)
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            script = command.revision(config, message, autogenerate=True, rev_id=f"{_last() + 1:04d}")
        engine.dispose()
    assert isinstance(script, Script)
    path = Path(script.path)
    path.write_text(re.sub(r"\n *# ### [^\n]*", "", path.read_text()))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=True)


def _last() -> int:
    """Return the largest revision number. The newest revision may have a smaller number."""
    return max(int(path.name[:4]) for path in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]*.py"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
