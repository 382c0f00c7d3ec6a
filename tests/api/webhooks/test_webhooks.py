"""Webhooks end to end: over REST, sent to a real server, signed, repeated, and not to the inside of the network."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import DEADLINE_S
from tests.store.examples import T0, a_report, a_spec, begin
from tuner.api import create_app
from tuner.api.webhooks import deliver, outgoing
from tuner.api.webhooks.deliver import Deliverer
from tuner.api.webhooks.outgoing import Outgoing, Unreachable, check_url, is_public
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Fail, Finish
from tuner.domain.states import ExperimentState
from tuner.errors import SpecError, StoreError
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role

ROOT = Path(__file__).parents[3]
HOOKS = "/api/v1/webhooks"
STARTED = "experiment.started"


@dataclass
class Receiver:
    """A server that keeps what it is sent, and answers with the next of `answers`, then with 200."""

    url: str
    answers: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = found.answers.pop(0) if found.answers else 200
            found.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            found.paths.append(self.path)
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not happened():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def delivering(store: Store, **options: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(Deliverer(store, **{"private": True, "every_s": 0.01, "retry_s": 0.01, **options}).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def service(store: Store, home: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run the app with its worker, and yield a client of it."""
    app = create_app(Settings(home=home, **settings), store, web=home / "web")
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            yield client


def states(store: Store, hook: str) -> list[str]:
    return [one.state for one in store.webhooks.deliveries(hook)]


def verify(secret: str, headers: dict[str, str], body: bytes, **options: float) -> bool:
    """Check a signature with the function of docs/operations.md."""
    [snippet] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    return bool(names["is_from_tuner"](secret, headers["tuner-signature"], body, **options))


async def test_a_service_tells_a_server_that_fails_first(
    sqlite_store: Store, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "EVERY_S", 0.01)
    # The service tries again 10 ms after the first failure, and then after twice that time.
    monkeypatch.setattr(random, "uniform", lambda *_: 0.002)
    receiver.answers = [500, 404, 302]
    async with service(sqlite_store, tmp_path, webhook_private=True) as client:
        made = (await client.post(HOOKS, json={"url": receiver.url, "events": [STARTED]})).json()
        experiment, _, _ = begin(sqlite_store)
        await until(lambda: states(sqlite_store, made["id"]) == ["delivered"])
        [found] = (await client.get(f"{HOOKS}/{made['id']}/deliveries")).json()["items"]
    assert receiver.paths == ["/hook"] * 4, "a redirect is a failure"
    assert (found["state"], found["attempts"], found["last_status"], found["next_attempt_at"]) == (
        "delivered",
        4,
        200,
        None,
    )
    for headers, body in receiver.got:
        assert verify(made["secret"], headers, body)
        assert not verify(made["secret"], headers, body + b" ")
        assert not verify("whsec_other", headers, body)
        assert not verify(made["secret"], headers, body, tolerance_s=-1)
        assert (headers["tuner-event"], headers["tuner-delivery"]) == (STARTED, found["id"])
        message = json.loads(body)
        assert (message["id"], message["event"]) == (found["id"], STARTED)
        assert message["experiment"]["id"] == experiment.public_id


async def test_a_delivery_survives_a_restart(sqlite_store: Store, sqlite_url: str, receiver: Receiver) -> None:
    hook = sqlite_store.webhooks.create(receiver.url, [STARTED]).public_id
    receiver.answers = [503]
    begin(sqlite_store)
    async with delivering(sqlite_store, retry_s=60):
        await until(lambda: sqlite_store.webhooks.deliveries(hook)[:1] and receiver.got)
    with Store.open(sqlite_url) as store:
        # The first service may have ended before it wrote down that its attempt had failed; either way, time passes.
        with store._database.write() as cursor:
            cursor.execute("UPDATE webhook_delivery SET next_at = next_at - 100")
        async with delivering(store):
            await until(lambda: states(store, hook) == ["delivered"])
    assert len(receiver.got) == 2
    assert receiver.got[0][0]["tuner-delivery"] == receiver.got[1][0]["tuner-delivery"]


async def test_two_services_send_each_delivery_once(sqlite_store: Store, sqlite_url: str, receiver: Receiver) -> None:
    hook = sqlite_store.webhooks.create(receiver.url, [STARTED]).public_id
    with Store.open(sqlite_url) as other:
        async with delivering(sqlite_store), delivering(other):
            for number in range(10):
                begin(sqlite_store, spec=a_spec(f"search {number}"))
            await until(lambda: states(sqlite_store, hook) == ["delivered"] * 10)
    sent = [headers["tuner-delivery"] for headers, _ in receiver.got]
    assert len(sent) == len(set(sent)) == 10


async def test_a_delivery_is_given_up_in_the_end(
    sqlite_store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deliver, "ATTEMPTS", 3)
    hook = sqlite_store.webhooks.create(receiver.url, [STARTED]).public_id
    receiver.answers = [500] * 9
    begin(sqlite_store)
    async with delivering(sqlite_store):
        await until(lambda: states(sqlite_store, hook) == ["failed"])
        await until(lambda: "after 3 attempts" in caplog.text)  # logged once the outcome is stored
    [found] = sqlite_store.webhooks.deliveries(hook)
    assert (found.attempts, found.last_status) == (3, 500)
    assert found.last_error == "the receiver answered with the status 500"


async def test_a_delivery_that_cannot_even_be_tried_is_given_up_in_the_end(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(deliver, "ATTEMPTS", 3)
    monkeypatch.setattr(Outgoing, "post", fail)
    hook = sqlite_store.webhooks.create("https://example.com/", [STARTED]).public_id
    begin(sqlite_store)
    async with delivering(sqlite_store):
        await until(lambda: states(sqlite_store, hook) == ["failed"])
    [found] = sqlite_store.webhooks.deliveries(hook)
    assert (found.attempts, found.last_error) == (3, "RuntimeError: a bug")


@pytest.mark.parametrize("host", ["hooks..example.com", f"{'a' * 64}.example.com"])
async def test_a_name_that_no_host_can_have_is_a_host_that_cannot_be_reached(host: str) -> None:
    sender = Outgoing()
    try:
        with pytest.raises(Unreachable):
            await sender.post(f"https://{host}/", b"{}", {})
    finally:
        await sender.close()


def test_pauses_grow_until_they_are_an_hour(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 1.0)
    pauses = [Deliverer(sqlite_store)._wait_s(attempts) for attempts in range(1, deliver.ATTEMPTS)]
    assert pauses[:4] == [5, 10, 20, 40]
    assert max(pauses) == pauses[-1] == 3600
    assert 10 * 3600 < sum(pauses) < 12 * 3600


async def test_receivers_that_do_not_answer_hold_up_no_other(
    sqlite_store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "TIMEOUT_S", 60.0)
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    # With one more, they could take all places.
    dead = [sqlite_store.webhooks.create(f"http://127.0.0.1:{port}/", [STARTED]).public_id for _ in range(15)]
    alive = sqlite_store.webhooks.create(receiver.url, [STARTED]).public_id
    async with delivering(sqlite_store):
        for number in range(2 * deliver.AT_ONCE_EACH):
            begin(sqlite_store, spec=a_spec(f"search {number}"))
        await until(lambda: states(sqlite_store, alive) == ["delivered"] * 2 * deliver.AT_ONCE_EACH)
        assert {state for hook in dead for state in states(sqlite_store, hook)} == {"pending"}
    for writer in accepted:
        writer.close()
    silent.close()
    await silent.wait_closed()


async def test_the_worker_outlives_the_database(
    sqlite_store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deliver, "AGAIN_S", 0.01)
    hook = sqlite_store.webhooks.create(receiver.url, [STARTED]).public_id
    errors = [StoreError("away"), StoreError("away"), ValueError("a defect")]
    collect, failures = sqlite_store.webhooks.collect, iter(errors)

    def fail_first(*args: Any) -> None:
        for error in failures:
            raise error
        collect(*args)

    monkeypatch.setattr(sqlite_store.webhooks, "collect", fail_first)
    begin(sqlite_store)
    async with delivering(sqlite_store):
        await until(lambda: states(sqlite_store, hook) == ["delivered"])
    assert caplog.text.count("webhooks are waiting for the database: away") == 1
    assert "a defect" in caplog.text


async def test_slack_gets_a_sentence(sqlite_store: Store, receiver: Receiver) -> None:
    events = [STARTED, "trial.failed", "objective.reached", "experiment.failed"]
    sqlite_store.webhooks.create(receiver.url, events, format="slack", threshold=0.5)
    experiment, epoch, trials = begin(sqlite_store, spec=a_spec("a <b> & c"))
    async with delivering(sqlite_store):
        await until(lambda: receiver.got)
        log: list[Entry] = [
            (4, a_report(0, 1, accuracy=0.75)),
            (5, Fail(reason="<loss> is NaN", trial=0)),
            (6, Finish(reason="it failed", failed=True)),
        ]
        summary = {"reason": "it failed", "error": "<no> module"}
        failed = Batch(log=log, trials=trials, state=ExperimentState.FAILED, summary=summary)
        sqlite_store.drivers.commit(experiment.id, epoch, failed, T0 + 2)
        await until(lambda: len(receiver.got) == 4)
    name = f"*a &lt;b&gt; &amp; c* ({experiment.public_id})"
    assert {json.loads(body)["text"] for _, body in receiver.got} == {
        f"{name} started. started",
        f"{name}: trial 0 failed. &lt;loss&gt; is NaN",
        f"{name}: accuracy reached 0.75 (threshold 0.5).",
        f"{name} failed. &lt;no&gt; module",
    }


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1"),
    ],
)
def test_an_address_inside_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_address_of_the_internet_is_known(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "127.1"])
async def test_no_name_leads_inside(receiver: Receiver, host: str) -> None:
    """The address is checked when the connection is made, so names and other ways to write an address are no way around."""
    url = receiver.url.replace("127.0.0.1", host)
    closed, opened = Outgoing(), Outgoing(private=True)
    try:
        with pytest.raises(Unreachable, match="127.0.0.1 is not a public address|::1 is not"):
            await closed.post(url, b"{}", {})
        assert receiver.got == []
        if host != "localhost":  # it may be ::1
            assert await opened.post(url, b"{}", {}) == 200
    finally:
        await closed.close()
        await opened.close()


async def test_the_address_that_was_checked_is_the_one_that_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers differently the second time gains nothing, since there is no second time."""
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", ("127.0.0.1" if len(asked) == 1 else "10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    sender = Outgoing(private=True)
    assert await sender.post(receiver.url.replace("127.0.0.1", "hooks.example"), b"{}", {}) == 200
    await sender.close()
    assert asked == ["hooks.example"]
    assert receiver.got[0][0]["host"].startswith("hooks.example")


async def test_a_proxy_of_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, receiver.url)
    sender = Outgoing()
    with pytest.raises(Unreachable, match=r"not a public address"):
        await sender.post("http://127.0.0.2:9/", b"{}", {})
    await sender.close()
    assert receiver.got == []


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://example.com", "http://", "https://me:secret@example.com/", "http://[::1", "file:///etc/passwd"),
        *("http://exa mple.com", "http://127.0.0.1/", "http://[::1]:80/", "http://example.com:99999/", "http://ä.de"),
        *("https://hooks..example.com/x", "https://.example.com/", f"https://{'a' * 64}.example.com/"),
    ],
)
def test_a_wrong_url_is_told_of(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_url(url, private=False)
    assert [pointer for pointer, _ in caught.value.errors] == ["/url"]
    check_url("https://hooks.example.com:8443/a?b=c", private=False)
    check_url(f"https://{'a' * 63}.example_1.com./", private=False)
    check_url("http://127.0.0.1/", private=True)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "169.254.170.2", "[fe80::1]", "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16",
    ],
)  # fmt: skip
async def test_addresses_at_which_clouds_give_credentials_are_refused_whatever_the_setting(host: str) -> None:
    with pytest.raises(SpecError, match="no webhook may reach"):
        check_url(f"http://{host}/latest/meta-data", private=True)
    sender = Outgoing(private=True)
    try:
        with pytest.raises(Unreachable, match="no webhook may reach"):  # as after a name was resolved to it
            await sender.post(f"http://{host}/latest/meta-data", b"", {})
    finally:
        await sender.close()


async def test_webhooks_over_rest(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    body = {"url": "https://example.com/a", "events": ["objective.reached"], "threshold": 0.5}
    made = await client.post(HOOKS, json=body)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    hook = made.json()
    assert hook["secret"].startswith("whsec_")
    path = f"{HOOKS}/{hook['id']}"
    shown = {**hook, "secret": None}
    assert (await client.get(path)).json() == shown
    assert (await client.get(HOOKS)).json()["items"] == [shown]
    changed = await client.patch(path, json={"url": "https://example.com/b", "threshold": 0})
    assert changed.json() == {**shown, "url": "https://example.com/b", "threshold": 0.0}
    refused = await client.patch(path, json={"url": "http://10.0.0.1/"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/url")
    assert (await client.delete(path)).status_code == 204
    for method in ("GET", "PATCH", "DELETE"):
        assert (await client.request(method, path, json=None if method == "GET" else {})).status_code == 404
    assert (await client.get(f"{path}/deliveries")).status_code == 404


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"url": "http://127.0.0.1/"}, "/url"),
        ({"events": []}, "/events"),
        ({"events": ["trial.lost"]}, "/events/0"),
        ({"events": ["objective.reached"]}, "/threshold"),
        ({"format": "xml"}, "/format"),
        ({"experiment_id": "exp_none"}, "/experiment_id"),
        ({"project": "a b"}, "/project"),
        ({"secret": "mine"}, "/secret"),
    ],
)
async def test_a_wrong_webhook_is_refused(client: httpx.AsyncClient, wrong: dict[str, Any], pointer: str) -> None:
    body = {"url": "https://example.com/a", "events": [STARTED], **wrong}
    refused = await client.post(HOOKS, json=body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_deliveries_come_in_pages(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    hook = sqlite_store.webhooks.create("https://example.com/a", [STARTED]).public_id
    for number in range(4):
        begin(sqlite_store, spec=a_spec(f"search {number}"))
    sqlite_store.webhooks.collect()
    path, found, sizes, token = f"{HOOKS}/{hook}/deliveries", [], [], None
    while True:
        page = (await client.get(path, params={"page_size": 2, **({"page_token": token} if token else {})})).json()
        found += page["items"]
        sizes.append(len(page["items"]))
        if not (token := page["next_page_token"]):
            break
    assert [one["state"] for one in found] == ["pending"] * 4
    assert len({one["experiment_id"] for one in found}) == 4
    assert sizes == [2, 2], "a full last page promised another one"


async def test_who_may_have_webhooks(sqlite_store: Store, tmp_path: Path) -> None:
    def head(role: Role, project: str | None = None) -> dict[str, str]:
        secret, _ = sqlite_store.access.create_token("me", role, project=project)
        return {"Authorization": f"Bearer {secret}"}

    admin, editor, ours = head(Role.ADMIN), head(Role.EDITOR), head(Role.EDITOR, "ours")
    body = {"url": "https://example.com/a", "events": [STARTED]}
    theirs, _, _ = begin(sqlite_store, spec=a_spec("b", project="theirs"))
    async with service(sqlite_store, tmp_path, auth="on") as client:

        async def post(who: dict[str, str], **more: Any) -> httpx.Response:
            return await client.post(HOOKS, json={**body, **more}, headers=who)

        for viewer in (head(Role.VIEWER), head(Role.VIEWER, "ours")):
            assert (await client.get(HOOKS, headers=viewer)).status_code == 403
            assert (await post(viewer)).status_code == 403
        everything = (await post(admin)).json()
        assert everything["project"] is None
        assert (await post(editor)).status_code == 403, "all projects"
        path = f"{HOOKS}/{everything['id']}"
        assert (await client.delete(path, headers=editor)).status_code == 403
        assert (await client.patch(path, json={}, headers=editor)).status_code == 403
        assert (await client.post(f"{path}/test", headers=editor)).status_code == 403
        assert (await post(editor, project="theirs")).json()["project"] == "theirs"
        assert (await post(editor, experiment_id=theirs.public_id)).json()["project"] == "theirs"
        assert (await post(ours)).json()["project"] == "ours"
        for who, more in ((ours, {}), (editor, {"project": "ours"})):
            refused = await post(who, experiment_id=theirs.public_id, **more)
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/experiment_id")
        assert (await post(ours, project="theirs")).status_code == 422
        assert [one["project"] for one in (await client.get(HOOKS, headers=ours)).json()["items"]] == ["ours"]
        assert (await client.get(path, headers=ours)).status_code == 404


async def test_a_test_is_sent_to_one_webhook_whatever_it_subscribes_to(
    store: Store, tmp_path: Path, receiver: Receiver
) -> None:
    hook = store.webhooks.create(receiver.url, [STARTED], project="vision")
    slack = store.webhooks.create(receiver.url, [STARTED], format="slack")
    async with service(store, tmp_path) as client:
        made = await client.post(f"{HOOKS}/{hook.public_id}/test")
        assert (made.status_code, made.json()["event"], made.json()["state"]) == (202, "test", "pending")
        assert (await client.post(f"{HOOKS}/whk_x/test")).status_code == 404
    async with delivering(store):
        await until(lambda: states(store, hook.public_id) == ["delivered"])
        [(headers, body)] = receiver.got
        assert (headers["tuner-event"], json.loads(body)["event"]) == ("test", "test")
        assert json.loads(body)["experiment"]["project"] == "vision"
        assert verify(hook.secret, headers, body)
        store.webhooks.test(slack.public_id)
        await until(lambda: states(store, slack.public_id) == ["delivered"])
    assert json.loads(receiver.got[1][1]) == {"text": "This is a test of a tuner webhook."}
