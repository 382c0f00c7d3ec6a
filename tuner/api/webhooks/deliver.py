"""Send events to webhooks while the service runs.

Webhooks never delay a search: drivers know nothing about webhooks, and separate threads read the committed events from the
database. Each delivery is sent at least once. It is repeated, with growing pauses, until the receiver answers with a status
from 200 to 299 or `ATTEMPTS` attempts have failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tuner import __version__
from tuner.api.webhooks.outgoing import Outgoing, Unreachable
from tuner.domain.timestamps import rfc3339
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.service.webhooks import Due

log = logging.getLogger(__name__)

T = TypeVar("T")

EVERY_S = 1.0
"""Seconds between two queries for new events."""

BUSY_S = 0.1
"""Seconds between two queries for due deliveries, while deliveries are being sent."""

AGAIN_S = 5.0
"""Seconds to wait after the database has failed, before the next query."""

RETRY_S, MAX_RETRY_S = 5.0, 3600.0
"""The first and the longest pause between two attempts, in seconds. Each pause is about twice as long as the previous one."""

ATTEMPTS = 20
"""The number of failed attempts, over about eleven hours, after which a delivery is abandoned."""

CLAIM_S = 60.0
"""Seconds for which a delivery belongs to the service that has claimed it. An attempt takes less time than this."""

AT_ONCE, AT_ONCE_EACH = 64, 4
"""The number of deliveries that may be sent at the same time: to all webhooks together, and to each webhook.

If the receivers of up to 15 webhooks do not answer, deliveries to the others are still sent at once.
"""

SIGNATURE, EVENT, DELIVERY = "Tuner-Signature", "Tuner-Event", "Tuner-Delivery"
"""The headers that each delivery has."""


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `Tuner-Signature`: the time, and the HMAC-SHA256 of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


def body_of(due: Due) -> bytes:
    """Return the body of a delivery, which is the same for every attempt."""
    if due.format == "slack":
        return json.dumps({"text": _sentence(due)}).encode()
    message = {"id": due.public_id, "event": due.event, "time": rfc3339(due.created_at), **due.data}
    return json.dumps(message).encode()


def _sentence(due: Due) -> str:
    experiment: dict[str, Any] = due.data["experiment"]
    if due.event == "test":
        return "This is a test of a tuner webhook."
    name = f"*{_slack(experiment['name'])}* ({experiment['id']})"
    if (trial := due.data.get("trial")) is not None:
        return f"{name}: trial {trial['number']} failed. {_slack(trial['reason'])}"
    if (reached := due.data.get("objective")) is not None:
        metric = _slack(reached["metric"])
        return f"{name}: {metric} reached {reached['value']:g} (threshold {reached['threshold']:g})."
    why = experiment["error"] or experiment["reason"]
    return f"{name} {due.event.partition('.')[2]}. {_slack(why)}".rstrip()


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


async def _attempt(outgoing: Outgoing, due: Due) -> tuple[int | None, str]:
    """Send a delivery once. Return the status of the response, or None and the reason why there is none."""
    try:
        body, timestamp = body_of(due), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tuner/{__version__}",
            SIGNATURE: signature(due.secret, timestamp, body),
            EVENT: due.event,
            DELIVERY: due.public_id,
        }
        return await outgoing.post(due.url, body, headers), ""
    except Unreachable as reason:
        return None, str(reason)
    except Exception as error:
        log.exception("sending delivery %s failed", due.public_id)
        return None, f"{type(error).__name__}: {error}"


class Deliverer:
    """Sends deliveries to webhooks until `run` is cancelled. Several services with the same database can send at once.

    Args:
        store: the database.
        private: also send to private and loopback addresses.
        every_s: seconds between two queries for new events.
        retry_s: the pause in seconds after the first failed attempt.
    """

    def __init__(
        self, store: Store, *, private: bool = False, every_s: float | None = None, retry_s: float = RETRY_S
    ) -> None:
        self._store = store
        self._private = private
        self._every_s = every_s
        self._retry_s = retry_s
        self._sending: dict[asyncio.Task[None], int] = {}  # task that sends a delivery -> internal id of its webhook
        self._collect_at = 0.0
        self._trouble = ""

    async def run(self) -> None:
        """Collect events and send deliveries until this task is cancelled. Errors are logged and do not end the task."""
        outgoing = Outgoing(private=self._private)
        threads = ThreadPoolExecutor(2, thread_name_prefix="webhooks")

        async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
            return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*args, **kwargs))

        try:
            while True:
                await asyncio.sleep(await self._round(outgoing, call))
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)
            threads.shutdown(wait=False, cancel_futures=True)
            await outgoing.close()

    async def _round(self, outgoing: Outgoing, call: Any) -> float:
        """Collect new events, and start sending the deliveries that are due. Return the seconds until the next round."""
        try:
            if time.monotonic() >= self._collect_at:
                await call(self._store.webhooks.collect)
                self._collect_at = time.monotonic() + self._pause_s
            busy = [hook for hook, count in Counter(self._sending.values()).items() if count >= AT_ONCE_EACH]
            # One round may exceed `AT_ONCE_EACH` for a webhook; this does no harm.
            if (room := AT_ONCE - len(self._sending)) > 0:
                room = min(room, AT_ONCE_EACH)
                for due in await call(self._store.webhooks.claim, room, CLAIM_S, busy=busy):
                    task = asyncio.create_task(self._send(outgoing, call, due))
                    self._sending[task] = due.webhook
                    task.add_done_callback(self._sending.pop)
            self._trouble = ""
        except StoreError as error:
            if str(error) != self._trouble:
                log.warning("webhooks are waiting for the database: %s", error)
            self._trouble = str(error)
            return AGAIN_S
        except Exception:
            log.exception("handling webhooks failed; trying again")
            return AGAIN_S
        return min(self._pause_s, BUSY_S) if self._sending else self._pause_s

    @property
    def _pause_s(self) -> float:
        return EVERY_S if self._every_s is None else self._every_s

    async def _send(self, outgoing: Outgoing, call: Any, due: Due) -> None:
        """Make one attempt to send a delivery, and store the outcome of the attempt.

        If the outcome cannot be stored, the delivery is sent again once the claim on it expires.
        """
        try:
            status, error = await _attempt(outgoing, due)
            if status is not None and 200 <= status <= 299:
                await call(self._store.webhooks.delivered, due, status)
                return
            error = error or f"the receiver answered with the status {status}"
            wait_s = None if due.attempts >= ATTEMPTS else self._wait_s(due.attempts)
            await call(self._store.webhooks.failed, due, error, status=status, wait_s=wait_s)
            if wait_s is None:
                log.warning("giving up on delivery %s after %d attempts: %s", due.public_id, due.attempts, error)
        except StoreError as failure:
            log.warning(
                "could not store the outcome of delivery %s, so it will be sent again: %s", due.public_id, failure
            )
        except Exception:
            log.exception("could not store the outcome of delivery %s, so it will be sent again", due.public_id)

    def _wait_s(self, attempts: int) -> float:
        pause: float = min(self._retry_s * 2.0 ** (attempts - 1), MAX_RETRY_S)
        return pause * random.uniform(0.9, 1.1)
