"""Packages of local directories: stored when an experiment is created, deleted after the last experiment that uses them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from tuner.errors import SpecError
from tuner.store import Store
from tuner.trials.checkpoints import packages
from tuner.trials.checkpoints.storage import place, split_query

UNUSED_S = 3600.0
"""Seconds that a package is kept after its last use. Creating an experiment uses its packages, and takes less time than this."""


class Packages:
    """The packages that services with this database have stored.

    The name of a package contains the hash of its content and a random part, so that no other database has a package of this
    name in the same storage. `ship` records the use of a package, and a deletion begins only if the last use was `UNUSED_S`
    ago and no experiment refers to the package. While a package is being deleted, `ship` stores its content under another name.

    Packages that scripts store have no random part. They are not deleted, since scripts with other databases may use them.
    """

    def __init__(self, store: Store) -> None:
        self._used = store.packages

    def ship(self, runtime_env: Mapping[str, Any], storage: str) -> dict[str, Any]:
        """Store the local directories and files that a `runtime_env` names, and return it with URIs instead of their paths.

        Raises:
            SpecError: a path does not exist.
            OSError: a file cannot be read or stored.
        """
        return packages.ship(runtime_env, storage, self._named)

    def check(self, runtime_env: Mapping[str, Any]) -> None:
        """Record the use of the packages that a `runtime_env` names. Raise SpecError if one of them is being deleted."""
        if leaving := self._used.touch(packages.uris(runtime_env)):
            raise SpecError(
                f"the package {min(leaving)} is being deleted, since no experiment uses it; name the directory instead",
                "/runtime_env",
            )

    def prune(self, now: float | None = None) -> int:
        """Delete the packages that no experiment uses. Return how many were deleted."""
        now = time.time() if now is None else now
        return self._used.prune((), now - UNUSED_S, _delete, now)

    def _named(self, uri: str) -> str:
        """Return the URI under which a package is kept, or will be. `uri` has only the hash of the content as its name."""
        path, query = split_query(uri)
        stem, end = path.removesuffix(".zip") + "-", f".zip{query}"
        if (found := self._used.find(stem, end)) is None:
            found = f"{stem}{secrets.token_hex(4)}{end}"
            self._used.add(found)
        return found


def _delete(uri: str) -> bool:
    target = place(uri)
    if existed := target.size() is not None:
        target.unlink()
    return existed
