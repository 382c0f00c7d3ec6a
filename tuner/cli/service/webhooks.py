"""`tuner webhook`: manage the webhooks of a service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tuner.cli.service.experiments import connected
from tuner.service_url import url_of
from tuner.settings import Settings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.client.synchronous import Client


def added(
    settings: Settings,
    url: str,
    events: Sequence[str],
    project: str | None,
    experiment: str | None,
    slack: bool,
    threshold: float | None,
) -> Iterator[str]:
    """Create a webhook. Yield a line with its id, and a line with the secret that signs its deliveries."""
    with _service(settings) as client:
        made = client.create_webhook(
            url,
            events,
            project=project,
            experiment_id=None if experiment is None else client.experiment(experiment).get().id,
            format="slack" if slack else "json",
            threshold=threshold,
        )
    yield made.id
    yield f"secret {made.secret}"


def listed(settings: Settings) -> Iterator[str]:
    """Yield a line for each webhook of the service, newest first."""
    with _service(settings) as client:
        found = client.webhooks()
    for hook in found:
        of = hook.experiment_id or hook.project or "(all)"
        at = f" at {hook.threshold:g}" if hook.threshold is not None else ""
        yield f"{hook.id}  {of:<10}  {hook.format:<5}  {hook.url}  {','.join(hook.events)}{at}"


def removed(settings: Settings, webhook: str) -> None:
    """Delete a webhook."""
    with _service(settings) as client:
        client.delete_webhook(webhook)


def tested(settings: Settings, webhook: str) -> tuple[bool, str]:
    """Send a test delivery to a webhook. Return whether it arrived, and a line for the terminal about the outcome."""
    with _service(settings) as client:
        made = client.test_webhook(webhook)
    if made.state == "delivered":
        return True, f"{made.id} was delivered (status {made.last_status})"
    return False, f"{made.id} was not delivered: {made.last_error or 'the service has not tried to send it yet'}"


def _service(settings: Settings) -> AbstractContextManager[Client]:
    return connected(settings, settings.address or url_of(settings.host, settings.port))
