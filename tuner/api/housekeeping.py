"""Once an hour, delete rows, log files and code bundles that are older than the settings allow, and unused packages.

Also finish the deletions of experiments that were interrupted.

Several services with the same database can run this at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tuner.errors import StoreError
from tuner.experiment.code.bundles import Bundles
from tuner.experiment.code.local_packages import Packages
from tuner.experiment.logs import remove_old_logs
from tuner.settings import Settings
from tuner.store import Store

log = logging.getLogger(__name__)

EVERY_S = 3600.0
DAY_S = 86400.0
DELIVERY_DAYS = 30
"""Days after which the records of webhook deliveries are deleted."""


def clean_up(store: Store, settings: Settings, now: float) -> dict[str, int]:
    """Delete old data, and return the number of deleted items by kind of data.

    If one kind of data cannot be deleted, log the error and continue with the other kinds.
    """

    def before(days: float) -> float:
        return now - days * DAY_S

    steps: dict[str, Callable[[], int]] = {}
    if settings.audit_days:
        steps["entries of the audit trail"] = lambda: store.access.prune_trail(before(settings.audit_days))
    if settings.log_days:
        steps["experiments' logs"] = lambda: remove_old_logs(store, settings.home, before(settings.log_days))
    steps["deliveries of webhooks"] = lambda: store.webhooks.prune(before(DELIVERY_DAYS))
    if settings.point_days:
        steps["experiments' points"] = lambda: store.metrics.thin(before(settings.point_days), now)
    if settings.bundle_days:
        steps["code bundles"] = lambda: Bundles(settings.storage, store).prune(before(settings.bundle_days), now)
    steps["half-deleted experiments"] = store.experiments.finish_removals
    steps["packages of local directories"] = lambda: Packages(store).prune(now)
    found = {}
    for what, step in steps.items():
        try:
            found[what] = step()
        except (StoreError, OSError) as error:  # the storage of bundles raises OSError
            log.warning("could not delete old %s; trying again in an hour: %s", what, error)
        except Exception:
            log.exception("could not delete old %s; trying again in an hour", what)
    deleted = {what: count for what, count in found.items() if count}
    if deleted:
        try:
            store.shrink()
        except StoreError as error:
            log.warning("could not release the disk space of deleted data: %s", error)
    return deleted


async def keep_clean(store: Store, settings: Settings) -> None:
    """Delete old data now, and then every hour until this task is cancelled."""
    while True:
        found = await asyncio.to_thread(clean_up, store, settings, time.time())
        for what, count in found.items():
            log.info("deleted %d old %s", count, what)
        await asyncio.sleep(EVERY_S)
