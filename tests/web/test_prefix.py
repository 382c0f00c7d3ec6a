"""The pages and the API behind a reverse proxy that serves them under a path prefix."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.web.conftest import Open, Service
from tests.web.searches import Search, digits
from tests.web.test_page import INK, expect, wait_until

pytestmark = pytest.mark.browser

PREFIX = "/some/prefix"


class Proxy(BaseHTTPRequestHandler):
    """Hands on what begins with the prefix, without it, as nginx does with `proxy_pass` and a path. Answers nothing else."""

    protocol_version = "HTTP/1.0"
    backend: int
    asked: list[str]

    def _forward(self) -> None:
        self.asked.append(self.path)
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=60)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            connection.request(self.command, self.path.removeprefix(PREFIX), body or None, dict(self.headers))
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1():  # as it comes: an event stream never ends
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            pass  # one of the two has gone away
        finally:
            connection.close()

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy(service: Service) -> Iterator[type[Proxy]]:
    handler = type("ToService", (Proxy,), {"backend": service.port, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def test_pages_api_and_stream_work_under_a_path_prefix(visit: Open, service: Service, proxy: type[Proxy]) -> None:
    search = Search(service.store, digits("behind a proxy"), start=time.time() - 30)
    search.advance(25)
    root = f"{proxy.url}{PREFIX}/"  # type: ignore[attr-defined]
    page = visit("/", root=root.rstrip("/"))
    expect(page.get_by_role("link", name="API")).to_have_attribute("href", f"{PREFIX}/openapi.json")
    page.get_by_role("link", name="behind a proxy").click()
    expect(page).to_have_url(f"{root}experiments/{search.public_id}")
    page.reload()  # the address of a page of its own, two levels below the root
    expect(page.get_by_role("status")).to_have_text("live")
    wait_until(page, lambda: page.evaluate(INK) > 200, "drawing the curves")
    trials = len(search.core.trials)
    search.advance(60)
    assert len(search.core.trials) > trials
    expect(page.get_by_role("heading", name=f"Trials · {len(search.core.trials)}")).to_be_visible()
    page.get_by_role("button", name="Pause").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    wait_until(page, lambda: service.store.commands.pending([search.id]), "the command reaching the database")
    search.obey()
    expect(page.locator("main header").first).to_contain_text(re.compile("paus(ing|ed)"))
    page.get_by_role("tab", name="Decisions").click()  # a part that is loaded when it is opened
    expect(page.get_by_label("Search the reasons")).to_be_visible()
    page.get_by_role("tab", name="Curves").click()
    link = page.get_by_role("row").nth(1).get_by_role("link")
    expect(link).to_have_attribute("href", re.compile(rf"^{PREFIX}/trials/trl_\w+$"))
    page.goto(f"{proxy.url}{link.get_attribute('href')}")  # type: ignore[attr-defined]
    expect(page.get_by_role("heading", level=1)).to_contain_text("Trial")
    page.get_by_role("link", name="Show in the experiment").click()
    expect(page).to_have_url(re.compile(rf"^{root}experiments/{search.public_id}\?trial=\d+$"))
    page.goto(f"{root}nowhere/at/all")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    asked = [path for path in proxy.asked if path != "/favicon.ico"]
    assert any("/changes" in path for path in asked)
    assert [path for path in asked if not path.startswith(f"{PREFIX}/")] == []
