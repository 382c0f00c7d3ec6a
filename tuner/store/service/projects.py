"""Settings of projects. A project whose settings are the defaults has no row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, select, true

from tuner.errors import NotFound
from tuner.store.sql.database import Database, at
from tuner.store.sql.tables import project

WarmStart = Literal["auto"]

# This query runs for every new experiment, and SQLAlchemy would take longer than the database.
_GET = "SELECT warm_start FROM project WHERE name = ?"
_SET = """
INSERT INTO project (name, warm_start, changed_at) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET warm_start = excluded.warm_start, changed_at = excluded.changed_at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """A project's defaults for new experiments whose specs do not set these values."""

    warm_start: WarmStart | None = None  # None: new experiments do not learn from earlier ones


class Projects:
    """The settings of the projects of one database. Every method may be called from any thread.

    project: show and change only this project.
    """

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project

    def all(self) -> Mapping[str, ProjectSettings]:
        """Return a dict from project to settings, for each project that has any."""
        with self._database.read() as connection:
            rows = connection.execute(select(project).where(self._shown()))
            return {row.name: ProjectSettings(warm_start=row.warm_start) for row in rows}

    def settings(self, name: str) -> ProjectSettings:
        """Return the settings of a project: the defaults if there is no such project, or if this store does not show it."""
        if self._project not in (None, name):
            return ProjectSettings()
        rows = self._database.rows(_GET, (name,))
        return ProjectSettings(warm_start=rows[0][0] if rows else None)

    def change(self, name: str, *, warm_start: WarmStart | None, now: float | None = None) -> None:
        """Change the settings of a project. Existing experiments do not change.

        Raises:
            NotFound: this store is limited to another project.
        """
        self.check(name)
        with self._database.write() as cursor:
            if warm_start is None:
                cursor.execute("DELETE FROM project WHERE name = ?", (name,))
            else:
                cursor.execute(_SET, (name, warm_start, at(now)))

    def check(self, name: str) -> None:
        """Raise NotFound if this store is limited to another project."""
        if self._project not in (None, name):
            raise NotFound(f"no project {name!r}")

    def _shown(self) -> ColumnElement[bool]:
        return true() if self._project is None else project.c.name == self._project
