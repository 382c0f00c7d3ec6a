"""`tuner token`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.errors import NotFound, SpecError
from tuner.service.page import Page
from tuner.settings import Settings
from tuner.store import Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    return Settings.from_env()


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["token", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_token_is_printed_once_and_listed_without_its_secret(home: Settings) -> None:
    of_project = ("--role", "viewer", "--project", "vision")
    secret = output("create", "ci", *of_project, "--expires-days", "30").strip()
    with Store.open(home.database_url) as store:
        found = store.access.token_of(secret)
    assert found is not None
    assert found.expires_at is not None
    assert found.expires_at - found.created_at == 30 * 86400
    assert found.project == "vision", "a token without a project may do everything"
    (line,) = output("list").splitlines()
    assert secret not in line
    assert line.startswith(f"{found.id}  viewer  vision ")
    assert re.search(r"  expires \d{4}-\d\d-\d\d \d\d:\d\d  ", line)
    assert line.endswith("ci")
    assert "never used" in line


def test_a_revoked_token_is_shown_as_such(home: Settings) -> None:
    output("create", "ci")
    token = output("list").split()[0]
    assert output("revoke", token) == f"revoked {token} (ci)\n"
    assert "revoked 2" in output("list")
    with pytest.raises(NotFound, match="no token has the id 'tok_x'"):
        output("revoke", "tok_x")


def test_a_wrong_role_is_told_of(home: Settings) -> None:
    with pytest.raises(SpecError, match="did you mean admin"):
        output("create", "ci", "--role", "admn")


def test_another_address_than_loopback_needs_somebody_who_can_sign_in(home: Settings) -> None:
    open_to_all = Settings(home=home.home, host="0.0.0.0")
    page = Page(open_to_all, port=0)
    try:
        with pytest.raises(SpecError, match="tuner token create NAME --role admin"):
            page.start()
        assert page.settings.auth == "on"
    finally:
        page.stop()


def test_on_loopback_no_token_is_needed_unless_it_is_asked_for(home: Settings) -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        page = Page(Settings(home=home.home, host=host), port=0)
        assert page.settings.auth == "off"
        page.stop()
    page = Page(Settings(home=home.home, auth="on"), port=0)
    with pytest.raises(SpecError, match="role admin"):
        page.start()
    page.stop()
