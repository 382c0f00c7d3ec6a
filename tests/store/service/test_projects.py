"""Settings of projects in the database."""

from __future__ import annotations

import pytest

from tuner.errors import NotFound
from tuner.store import Store
from tuner.store.service.projects import ProjectSettings

AUTO = ProjectSettings(warm_start="auto")


def test_settings_are_the_defaults_until_they_are_changed(store: Store) -> None:
    assert store.projects.settings("vision") == ProjectSettings()
    for _ in range(2):
        store.projects.change("vision", warm_start="auto")
        assert store.projects.settings("vision") == AUTO
    store.projects.change("speech", warm_start="auto")
    assert store.projects.all() == {"vision": AUTO, "speech": AUTO}
    store.projects.change("vision", warm_start=None)
    assert store.projects.settings("vision") == ProjectSettings()
    assert store.projects.all() == {"speech": AUTO}


def test_a_limited_store_shows_and_changes_its_own_project_only(store: Store) -> None:
    store.projects.change("vision", warm_start="auto")
    ours = store.within("speech").projects
    assert ours.all() == {}
    assert ours.settings("vision") == ProjectSettings()
    with pytest.raises(NotFound, match="no project 'vision'"):
        ours.change("vision", warm_start=None)
    ours.change("speech", warm_start="auto")
    assert ours.all() == {"speech": AUTO}
    assert store.projects.all() == {"vision": AUTO, "speech": AUTO}
