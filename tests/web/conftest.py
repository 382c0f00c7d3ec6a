"""A real service on a real database, and a real browser to look at it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.conftest import FAILED
from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store
from tuner.usercode.entrypoints import EntrypointChecker

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No script runs long enough to be worth the processor time of the optimizing compilers.
    "--js-flags=--no-maglev --no-opt",
]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ROOT = Path(__file__).parents[2]
REPORT_VIOLATIONS = """document.addEventListener('securitypolicyviolation', event =>
  console.error(`the Content-Security-Policy refused ${event.blockedURI} (${event.violatedDirective})`))"""
PATIENCE_S = 60.0
"""The seconds that a page may take to show something: what a first import of PyTorch takes on a slow, busy machine."""


@pytest.fixture(scope="session")
def bundle() -> Path:
    """Build the pages from the current sources and return their folder."""
    built = subprocess.run([sys.executable, ROOT / "web" / "build.py"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / "tuner" / "_web"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Yield a browser for the tests of this folder only: while it exists, this thread has a running event loop."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is not installed")
        pytest.skip("Chromium is not installed (apt-get install chromium-headless-shell)")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE_S)

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield launched
        launched.close()


@dataclass
class Service:
    """The API in a thread of its own. It can be stopped and started again on the same port."""

    settings: Settings
    store: Store
    port: int
    checker: EntrypointChecker
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None
    _app: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._app = create_app(self.settings, self.store)
        self._app.state.context.checker = self.checker
        config = uvicorn.Config(self._app, host="127.0.0.1", port=self.port, log_level="warning", lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"
            assert time.monotonic() < deadline, "the service did not start in time"
            time.sleep(0.01)

    def answers_about_the_cluster(self, cluster: Callable[[], dict[str, Any]]) -> None:
        """Let the running service answer with what a driver would say about the cluster."""
        self._app.state.context.driver.cluster = cluster

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._app.state.context.ending.set()
        self._server.should_exit = True
        self._thread.join(timeout=PATIENCE_S)
        assert not self._thread.is_alive(), "the service did not stop"
        self._server = self._thread = None


@pytest.fixture(scope="package")
def port() -> Iterator[int]:
    """Yield a port for all services, so that their pages have the same address, and keep it while none listens there."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn does, which can then listen there
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@pytest.fixture
def service(tmp_path: Path, sqlite_url: str, bundle: Path, checker: EntrypointChecker, port: int) -> Iterator[Service]:
    settings = Settings(home=tmp_path, database_url=sqlite_url)
    with Store.open(settings.database_url) as store:
        made = Service(settings, store, port, checker)
        made.start()
        yield made
        made.stop()


Open = Callable[..., Any]


def turn_to(page: Any, address: str) -> None:
    """Show another page of the same service as a link does, which takes less than to load it.

    What was shown is gone first, so that it cannot be taken for what is shown next.
    """
    for at in ("/nowhere", address):
        page.evaluate("at => { history.pushState(null, '', at); dispatchEvent(new PopStateEvent('popstate')); }", at)
        if at == "/nowhere":
            page.get_by_role("heading", name="There is no such page").wait_for()


STILL = """() => new Promise((done) => {
  let timer = setTimeout(done, 500);
  new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 500); })
    .observe(document, { subtree: true, childList: true, characterData: true });
})"""
"""Waits until the page has not changed for half a second."""


def _unless_the_network_changes(goto: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `goto` that goes again if Chromium has given up because another test has made or removed a network interface."""

    def go(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(5)):
            try:
                return goto(*args, **kwargs)
            except Exception as error:
                if "ERR_NETWORK_CHANGED" not in str(error) or not left:
                    raise
        return None

    return go


class Tab:
    """A tab that each test hands on to the next one, as a new tab would be.

    The process of a tab keeps the scripts that it has compiled, each with its address. So a page takes less to load again.
    """

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._context: Any = None
        self._page: Any = None
        self._goto: Any = None
        self._listen: Any = None
        self._heard: list[tuple[str, Callable[..., Any]]] = []

    def prepare(self) -> None:
        """Make a new tab if the one before was closed."""
        if self._page is not None:
            return
        self._context = self._browser.new_context(timezone_id="UTC", locale="en-GB")
        self._context.add_init_script(REPORT_VIOLATIONS)
        self._page = self._context.new_page()
        self._page.set_default_timeout(1000 * PATIENCE_S)
        self._goto = self._page.goto = _unless_the_network_changes(self._page.goto)
        self._listen, self._page.on = self._page.on, self.hear

    def open(self, url: str, *, width: int, height: int, dark: bool) -> Any:
        """Load a page in a window of this size, in light or in dark colours."""
        self._page.set_viewport_size({"width": width, "height": height})
        colours = "dark" if dark else "light"
        self._page.emulate_media(media="null", color_scheme=colours, reduced_motion="null", forced_colors="null")
        self._goto(url)
        return self._page

    def hear(self, event: str, handler: Callable[..., Any]) -> None:
        """Let a function hear of events until the tab is handed on."""
        self._heard.append((event, handler))
        self._listen(event, handler)

    def hand_on(self, url: str) -> None:
        """Forget what a test has set and kept, and wait at a file of the service, which has no script."""
        try:
            self._forget(f"{url}/favicon.svg")
        except Exception:
            self.close()
            raise

    def _forget(self, url: str) -> None:
        self._page.unroute_all()
        self._context.set_offline(False)
        self._context.clear_permissions()
        self._context.clear_cookies()
        self._page.mouse.move(0, 0)
        self._goto(url)
        self._page.evaluate("localStorage.clear(); sessionStorage.clear()")
        for event, handler in self._heard:
            self._page.remove_listener(event, handler)
        self._heard.clear()

    def close(self) -> None:
        """Let the next test have a new tab, with nothing that this one has."""
        if self._context is not None:
            self._context.close()
        self._context = self._page = None
        self._heard.clear()


@pytest.fixture(scope="package")
def _tab(browser: Any) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.close()


@pytest.fixture
def visit(request: pytest.FixtureRequest, _tab: Tab, service: Service) -> Iterator[Open]:
    """Return a function that opens a page; see `Open`. The test fails if a page logs an error.

    A test has one tab: a page takes the place of the one before.
    """
    errors: list[str] = []
    opened: list[Any] = []

    def hear(message: Any) -> None:
        # Failed requests are expected by the tests of a stopped service and of missing pages.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def visit(
        path: str,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        root: str | None = None,
        new: bool = False,
    ) -> Any:
        if new:  # with nothing in its cache
            _tab.close()
        if not opened or new:
            _tab.prepare()
            _tab.hear("console", hear)
            _tab.hear("pageerror", lambda error: errors.append(str(error)))
        opened.append(path)
        return _tab.open((root or service.url) + path, width=width, height=height, dark=dark)

    yield visit
    if request.node.stash.get(FAILED, False):
        _tab.close()
    elif opened:
        _tab.hand_on(service.url)
    assert errors == []
