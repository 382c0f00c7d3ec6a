"""`tuner project` on the database of this home, and the lines that it prints, also about the projects of a service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tuner.api.schemas import Project
from tuner.api.schemas.service.projects import check_name, shown_project, shown_projects
from tuner.settings import Settings
from tuner.store import Store


def listed(settings: Settings) -> list[Project]:
    """Return the projects of this home, ordered by name."""
    with Store.open(settings.database_url) as store:
        store.migrate()
        found = shown_projects(store, settings.quotas)
    return [found[name] for name in sorted(found)]


def changed(settings: Settings, name: str, warm_start: Literal["auto"] | None) -> Project:
    """Change the settings of a project of this home, which need not have experiments yet, and return the project."""
    check_name(name)
    with Store.open(settings.database_url) as store:
        store.migrate()
        store.projects.change(name, warm_start=warm_start)
        return shown_project(store, settings.quotas, name)


def lines(found: Sequence[Project]) -> Iterator[str]:
    """Yield a line for the terminal for each project."""
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        count = (
            f"{one.experiments:>5} {'experiment ' if one.experiments == 1 else 'experiments'}  {one.running:>3} running"
        )
        hours = f"{one.gpu_hours:>8.1f} GPU hours  {one.cpu_hours:>8.1f} CPU hours"
        quota = ", ".join(f"{resource}={amount:g}" for resource, amount in one.quota.items()) or "none"
        learns = f"  warm_start {one.warm_start}" if one.warm_start is not None else ""
        yield f"{one.name:<{width}}  {count}  {hours}  quota {quota}{learns}"
