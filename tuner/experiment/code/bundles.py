"""Code bundles: zip files of Python code that clients upload, addressed by their SHA-256.

Bundles are kept in the service's storage, which the nodes of its cluster can also read. A bundle is a zip file in
the form that Ray's ``py_modules`` expects. If the storage is a local folder, the bundle is also unpacked there, so that
the service can check entrypoints in the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tuner.errors import Conflict, NotFound, SpecError
from tuner.store import Store
from tuner.trials.checkpoints.storage import Place, join, place
from tuner.usercode.archives import Archive

SHA256 = re.compile(r"[0-9a-f]{64}")
_STORED = re.compile(r".*/bundles/([0-9a-f]{64})\.zip(\?.*)?")

DELETION_S = 20.0
"""An upload of a bundle that is being deleted waits up to this many seconds until the deletion is complete."""

LOOK_S = 0.05

ASIDE = ".aside-"
"""The prefix of the names of folders that are being unpacked or deleted."""


LEFT_S = 86400.0
"""Seconds after which an upload that has not ended counts as left by a process that was killed."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """An uploaded bundle. Workers load it from `uri`."""

    sha256: str
    bytes: int
    uri: str


class Bundles:
    """The bundles in the storage of a service.

    Each method records the use of a bundle before it looks for the bundle's file. So either `prune` keeps the file, or the
    method learns that the bundle is being deleted, and treats it as deleted.
    """

    def __init__(self, storage: str, store: Store) -> None:
        self._folder = join(storage, "bundles")
        self._used = store.bundles

    def put(self, sha256: str, file: BinaryIO) -> Bundle:
        """Check an uploaded zip file and store it. A bundle with the same SHA-256 is not replaced.

        Raises:
            SpecError: the file is not a zip file, or contains something that must not be unpacked.
            Conflict: an earlier bundle with the same SHA-256 is still being deleted.
        """
        self._use_when_deleted(sha256)
        if (found := self._found(sha256)) is not None:
            return found
        archive = Archive(file)
        target = self._place(sha256)
        if target.local:
            _clear(Path(target.path).parent)
            _unpack(archive, Path(_folder_of(target.path)))
        try:
            target.write(archive.repacked("package"))
            if target.local:  # a failed upload of the same bundle may have removed the folder
                _unpack(archive, Path(_folder_of(target.path)))
        except OSError:
            if target.local and self._found(sha256) is None:
                _remove(Path(_folder_of(target.path)))  # without its zip file, nothing would delete it later
            raise
        self._used.add(sha256)
        return self.get(sha256)

    def get(self, sha256: str) -> Bundle:
        """Return the bundle with this SHA-256. Raise NotFound if there is none."""
        if (found := self._in_use(sha256)) is None:
            raise NotFound(f"no bundle {sha256}; PUT /api/v1/bundles/{{sha256}} uploads it")
        return found

    def applied(self, data: Any) -> Any:
        """Return a spec with the bundle that it names added to the ``py_modules`` of its runtime environment.

        The bundle replaces an earlier one, such as the bundle of the experiment from which this one is forked. A spec without
        the field `bundle` is returned unchanged, after a check that the bundles in its runtime environment still exist.

        Raises:
            SpecError: there is no such bundle.
        """
        if not isinstance(data, Mapping):
            return data
        if data.get("bundle") is None:
            self._check_stored(data.get("runtime_env"))
            return data
        name = data["bundle"]
        if not isinstance(name, str) or not SHA256.fullmatch(name):
            raise SpecError(f"expected a SHA-256 in lower-case hex digits, got {str(name)[:80]!r}", "/bundle")
        if (found := self._in_use(name)) is None:
            raise SpecError(f"there is no bundle {name}; PUT /api/v1/bundles/{{sha256}} uploads it", "/bundle")
        environment = data.get("runtime_env") or {}
        if not isinstance(environment, Mapping) or not isinstance(environment.get("py_modules") or [], list):
            return data  # the check of the spec reports this mistake
        others = [one for one in environment.get("py_modules") or [] if not is_bundle(one)]
        rest = {name: value for name, value in data.items() if name != "bundle"}
        return {**rest, "runtime_env": {**environment, "py_modules": [found.uri, *others]}}

    def prune(self, before: float, now: float | None = None) -> int:
        """Delete the bundles that no experiment refers to and that were last used before this time. Return their number."""
        stored = [name for name, end, rest in (each.partition(".zip") for each in place(self._folder).modified())
                  if end and not rest and SHA256.fullmatch(name)]  # fmt: skip
        return self._used.prune(stored, before, self._delete, now)

    def _delete(self, sha256: str) -> bool:
        found, target = self._found(sha256), self._place(sha256)
        target.remove()
        if target.local:
            _remove(Path(_folder_of(target.path)))
        return found is not None

    def _in_use(self, sha256: str) -> Bundle | None:
        """Record that a bundle is used, and return it. Return None if it does not exist or is being deleted."""
        return None if self._used.touch([sha256]) else self._found(sha256)

    def _use_when_deleted(self, sha256: str) -> None:
        """Record that a bundle is used. If it is being deleted, first wait until the deletion is complete.

        Continue a deletion that was interrupted. Raise Conflict if the deletion takes too long.
        """
        until = time.monotonic() + DELETION_S
        while self._used.touch([sha256]) and not self._used.finish(sha256, self._delete):
            if time.monotonic() > until:
                raise Conflict(f"an earlier upload of the bundle {sha256} is being deleted; try again later")
            time.sleep(LOOK_S)

    def _check_stored(self, environment: Any) -> None:
        """Raise SpecError if a runtime environment names a bundle of this storage that no longer exists."""
        modules = environment.get("py_modules") if isinstance(environment, Mapping) else None
        ours = {
            one: name
            for one in (modules if isinstance(modules, list) else [])
            if is_bundle(one) and one in self._uris(name := one.rpartition("/")[2].partition(".zip")[0])
        }
        if not ours:
            return
        leaving = self._used.touch(ours.values())
        for uri, name in ours.items():
            if name in leaving or self._found(name) is None:
                raise SpecError(f"the bundle {uri} has been deleted; upload it again", "/runtime_env/py_modules")

    def _uris(self, sha256: str) -> tuple[str, str]:
        target = self._place(sha256)
        return target.uri, f"file://{target.path}"

    def _place(self, sha256: str) -> Place:
        return place(join(self._folder, f"{sha256}.zip"))

    def _found(self, sha256: str) -> Bundle | None:
        target = self._place(sha256)
        if (size := target.size()) is None:
            return None
        return Bundle(sha256, size, f"file://{target.path}" if target.local else target.uri)


def unpacked(uri: str) -> str:
    """Return the folder with a bundle's files if `uri` is the URI of a bundle on this machine. Otherwise return `uri`."""
    path = uri.removeprefix("file://")
    folder = _folder_of(path)
    return folder if uri.startswith("file://") and is_bundle(uri) and os.path.isdir(folder) else uri


def bundle_in(runtime_env: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the uploaded bundle among the ``py_modules`` of a runtime environment, or None if there is none."""
    found = (_STORED.fullmatch(uri) for uri in runtime_env.get("py_modules") or [] if isinstance(uri, str))
    return next((match[1] for match in found if match), None)


def is_bundle(uri: Any) -> bool:
    """Return whether this is the URI of an uploaded bundle, in any storage."""
    return isinstance(uri, str) and _STORED.fullmatch(uri) is not None


def _folder_of(path: str) -> str:
    return path.removesuffix(".zip")


def _remove(folder: Path) -> None:
    """Delete a folder. If this is interrupted, the folder either has all its files or no longer has this name."""
    if folder.is_dir():
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=ASIDE))
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _clear(bundles: Path) -> None:
    """Delete what processes that were killed long ago have left of uploads and deletions."""
    for left in (*bundles.glob(f"{ASIDE}*"), *bundles.glob("*.zip.tmp*")):
        with contextlib.suppress(OSError):  # another process was faster, or this user may not delete it
            if left.stat().st_mtime < time.time() - LEFT_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _unpack(archive: Archive, folder: Path) -> None:
    """Write the files of an archive into a folder atomically: either the folder has all files, or it does not exist."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = tempfile.mkdtemp(dir=folder.parent, prefix=ASIDE)
    try:
        archive.unpack(Path(aside))
        os.chmod(aside, 0o755)
        os.rename(aside, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another request was faster
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
