"""`tuner webhook`, and the webhooks of the Python client, against a service and a receiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.api.conftest import serving
from tests.api.webhooks.test_webhooks import Receiver, receiver, verify
from tests.store.examples import a_spec
from tuner.api import create_app
from tuner.api.webhooks import deliver
from tuner.cli.commands import app
from tuner.client.synchronous import Client
from tuner.errors import NotFound, SpecError
from tuner.settings import Settings
from tuner.store import Store

__all__ = ["receiver"]


@pytest.fixture
def address(sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(deliver, "EVERY_S", 0.01)
    settings = Settings(home=tmp_path, webhook_private=True)
    for address in serving(create_app(settings, sqlite_store, web=tmp_path / "web")):
        monkeypatch.setenv("TUNER_ADDRESS", address)
        yield address


def output(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["webhook", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


def test_the_experiment_of_a_webhook_may_be_named(address: str, sqlite_store: Store) -> None:
    made = sqlite_store.experiments.create(a_spec(name="my digits"))
    output("add", "https://example.com/hook", "experiment.completed", "--experiment", "my digits")
    assert output("list").split()[1] == made.public_id
    with pytest.raises(NotFound, match="no experiment 'my digit'; did you mean 'my digits'"):
        output("add", "https://example.com/hook", "experiment.completed", "--experiment", "my digit")


def test_a_webhook_is_added_tested_listed_and_removed(address: str, receiver: Receiver) -> None:
    hook, secret = output("add", receiver.url, "experiment.completed", "trial.failed", "--project", "vision").split(
        "\n"
    )[:2]
    assert "was delivered (status 200)" in output("test", hook)
    headers, body = receiver.got[0]
    assert verify(secret.removeprefix("secret "), headers, body)
    [line] = output("list").splitlines()
    assert line.startswith(f"{hook}  vision")
    assert "experiment.completed,trial.failed" in line
    assert secret.removeprefix("secret ") not in line
    receiver.answers = [500]
    assert "was not delivered: the receiver answered with the status 500" in output("test", hook, status=1)
    assert output("rm", hook) == f"removed {hook}\n"
    assert output("list") == ""
    with pytest.raises(NotFound, match="no webhook"):
        output("rm", hook)
    with pytest.raises(SpecError, match="threshold"):
        output("add", receiver.url, "objective.reached")


def test_the_client_manages_webhooks(address: str, receiver: Receiver) -> None:
    with Client(address) as client:
        made = client.create_webhook(receiver.url, ["objective.reached"], format="slack", threshold=0.5)
        assert made.secret is not None
        changed = client.change_webhook(made.id, events=["experiment.paused"])
        assert (changed.events, changed.format, changed.secret) == (["experiment.paused"], "slack", None)
        sent = client.test_webhook(made.id)
        assert (sent.event, sent.state, sent.last_status) == ("test", "delivered", 200)
        assert [one.id for one in client.webhook_deliveries(made.id)] == [sent.id]
        client.delete_webhook(made.id)
        assert client.webhooks() == []
