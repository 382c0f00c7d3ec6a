"""Signing in on the page of a service that asks for tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.store.examples import a_report, a_spec, begin
from tests.web.conftest import Open, Service
from tuner.domain.batch import Batch
from tuner.store.service.access import Role

pytestmark = pytest.mark.browser


@pytest.fixture
def service(service: Service) -> Service:
    service.stop()
    service.settings = dataclasses.replace(service.settings, auth="on")
    service.start()
    return service


def sign_in(page: Any, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_a_viewer_signs_in_looks_and_signs_out(service: Service, visit: Open) -> None:
    made, _, _ = begin(service.store, spec=a_spec("digits"))
    secret, _ = service.store.access.create_token("ada", Role.VIEWER)
    page = visit("/experiments")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, "tnr_wrong")
    expect(page.get_by_text("this token is not valid")).to_be_visible()
    sign_in(page, secret)
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    assert page.evaluate("document.cookie") == "", "no script can read the token"
    page.goto(f"{service.url}/experiments/{made.public_id}")
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    page.goto(f"{service.url}/new?clone={made.public_id}")
    expect(page.get_by_role("heading", name="The spec could not be read")).to_be_visible()
    expect(page.get_by_text("needs the role editor")).to_be_visible()
    page.goto(f"{service.url}/new")
    expect(page.get_by_text("A new experiment needs the role editor.")).to_be_visible()
    expect(page.get_by_label("Spec as YAML")).to_have_count(0)
    page.get_by_role("button", name="Sign out ada").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_what_happens_is_followed_with_the_cookie(service: Service, visit: Open) -> None:
    made, epoch, trials = begin(service.store, spec=a_spec("digits"))
    secret, _ = service.store.access.create_token("ada", Role.VIEWER)
    page = visit(f"/experiments/{made.public_id}")
    sign_in(page, secret)
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    trials[0].iteration, trials[0].best_value = 1, 0.8125
    batch = Batch(log=[(4, a_report(0, 1, accuracy=0.8125))], trials=trials)
    service.store.drivers.commit(made.id, epoch, batch, made.created_at + 5)
    expect(page.get_by_text("0.8125").first).to_be_visible()


def test_a_member_of_one_project_is_offered_nothing_that_is_refused(service: Service, visit: Open) -> None:
    """The menu led to the cluster, which is refused, and the forms of the settings offered all projects."""
    begin(service.store, spec=a_spec("sight", project="vision"))
    secret, _ = service.store.access.create_token("ada", Role.EDITOR, project="vision")
    page = visit("/cluster")
    sign_in(page, secret)
    expect(page.get_by_text("Your access is limited to the project vision")).to_be_visible()
    expect(page.get_by_role("heading", name="Running in the project vision · 1")).to_be_visible()
    expect(page.get_by_role("region", name="Running").get_by_role("link", name="sight")).to_be_visible()
    menu = page.get_by_role("navigation", name="Main")
    expect(menu.get_by_role("link", name="Cluster")).to_have_count(0)
    menu.get_by_role("link", name="Settings").click()
    expect(page.get_by_text("with the role editor in the project vision")).to_be_visible()
    project = page.get_by_role("textbox", name="Project")
    expect(project).to_have_value("vision")
    expect(project).not_to_be_editable()
    page.get_by_label("Address").fill("https://example.com/hook")
    page.get_by_role("button", name="Create the webhook").click()
    expect(page.get_by_text("The key that signs its messages.")).to_be_visible()
    assert [hook.project for hook in service.store.webhooks.all()] == ["vision"]


def test_on_a_phone_the_top_of_the_page_has_room_for_a_long_name(service: Service, visit: Open) -> None:
    """The product's name covered the menu, and nothing was left of the button for signing out."""
    begin(service.store, spec=a_spec("digits"))
    name = "ada.king-countess-of-lovelace@mathematics.example.com"
    secret, _ = service.store.access.create_token(name, Role.VIEWER)
    page = visit("/experiments", width=375)
    cut = "parts => parts.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
    for _ in range(2):
        assert page.get_by_role("banner").locator("a, button, button span").evaluate_all(cut) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        if page.get_by_label("Token").is_visible():
            sign_in(page, secret)
            expect(page.get_by_role("button", name=f"Sign out {name}")).to_contain_text("sign out")
