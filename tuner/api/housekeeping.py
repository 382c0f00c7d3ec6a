"""Delete rows and code bundles that are older than the settings allow, once an hour while the service runs.

Several services with the same database can do this at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time

from tuner.errors import StoreError
from tuner.experiment.bundles import Bundles
from tuner.settings import Settings
from tuner.store import Store

log = logging.getLogger(__name__)

EVERY_S = 3600.0
DAY_S = 86400.0
DELIVERY_DAYS = 30
"""Days after which deliveries of webhooks are deleted."""


def clean_up(store: Store, settings: Settings, now: float) -> dict[str, int]:
    """Delete old data. Return the number of deleted items, by kind."""
    found = {}
    if settings.audit_days:
        found["entries of the audit trail"] = store.access.prune_trail(now - settings.audit_days * DAY_S)
    if settings.log_days:
        found["experiments' logs"] = store.logs.prune(now - settings.log_days * DAY_S)
    if settings.point_days:
        found["experiments' points"] = store.metrics.thin(now - settings.point_days * DAY_S, now)
    if settings.bundle_days:
        bundles = Bundles(settings.storage, store)
        found["code bundles"] = bundles.prune(now - settings.bundle_days * DAY_S, now)
    found["deliveries of webhooks"] = store.webhooks.prune(now - DELIVERY_DAYS * DAY_S)
    return {what: count for what, count in found.items() if count}


async def keep_clean(store: Store, settings: Settings) -> None:
    """Clean up at once, and then every hour until this task is cancelled."""
    while True:
        try:
            found = await asyncio.to_thread(clean_up, store, settings, time.time())
            for what, count in found.items():
                log.info("deleted %d old %s", count, what)
        except (StoreError, OSError) as error:  # OSError: the storage of the bundles failed
            log.warning("could not delete old data; trying again in an hour: %s", error)
        await asyncio.sleep(EVERY_S)
