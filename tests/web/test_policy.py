"""The Content-Security-Policy of the pages, in Chromium."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.web.conftest import PATIENCE_S, Service
from tests.web.searches import Search, digits
from tests.web.test_page import expect, wait_until

pytestmark = pytest.mark.browser

# The page's inline script sets `window.early`. The page deletes it as soon as anything changes, so this notes that it was there.
LISTEN = """window.violations = [];
window.askedEarly = false;
let early;
Object.defineProperty(window, 'early', {
  get: () => early,
  set: value => { early = value; window.askedEarly ||= value instanceof Map; },
});
document.addEventListener('securitypolicyviolation', event => window.violations.push(event.violatedDirective))"""

ATTACKS = """() => {
  const inline = document.createElement('script');
  inline.textContent = 'window.attacked = true';
  document.body.append(inline);
  const foreign = document.createElement('script');
  foreign.src = 'http://127.0.0.1:9/foreign.js';
  document.body.append(foreign);
  fetch('http://127.0.0.1:9/secrets').catch(() => {});
}"""


def test_the_pages_keep_to_the_policy_which_stops_foreign_scripts_and_requests(browser: Any, service: Service) -> None:
    search = Search(service.store, digits("kept to"), start=time.time() - 30)
    search.advance(25)
    page = browser.new_context().new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    page.add_init_script(LISTEN)
    for path in ("", "new", "compare", "cluster", "settings", f"experiments/{search.public_id}"):
        page.goto(f"{service.url}/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_load_state("load")
        # The first script of this page is inline, and its other parts are loaded when they are opened.
        if path.startswith("experiments/"):
            assert page.evaluate("window.askedEarly")
            tabs = page.get_by_role("tab").all()
            assert len(tabs) > 4
            for tab in tabs:
                tab.click()
                expect(tab).to_have_attribute("aria-selected", "true")
        assert page.evaluate("window.violations") == []
    page.evaluate(ATTACKS)
    wait_until(page, lambda: page.evaluate("window.violations.length") >= 3, "reporting the violations")
    assert sorted(page.evaluate("window.violations")) == ["connect-src", "script-src-elem", "script-src-elem"]
    assert page.evaluate("window.attacked") is None
    page.context.close()
