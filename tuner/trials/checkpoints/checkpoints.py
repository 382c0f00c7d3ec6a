"""Checkpoints: directories with a manifest, committed by a marker that is written last.

    {uri}/...             the user's files, from all ranks, and nothing else
    {uri}.manifest.json   every file with its size and hash (128-bit XXH3), and the segment and iteration that the
                          checkpoint belongs to
    {uri}.committed       the SHA-256 of the manifest; a directory without this marker is not a checkpoint

`uri` is a local path or any `pyarrow.fs` URI. This module uses neither Ray nor torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import xxhash

from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError, CheckpointLost, CheckpointUnreachable
from tuner.trials.checkpoints.storage import (
    Place,
    difference,
    is_local,
    join,
    place,
    private_folder,
    split_query,
    sync_tree,
    walk,
)

_MANIFEST = ".manifest.json"
_MARKER = ".committed"


class Checkpoint:
    """A directory of files at a local path or a URI.

    If `tuner` saved the checkpoint, its files are compared with its manifest before they are used, and a
    CheckpointError names a missing or damaged file. For a trial's checkpoint, which has `info`, the error is
    CheckpointLost, or CheckpointUnreachable if the storage does not respond. Neither of these is blamed on the training
    code.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        info: CheckpointInfo | None = None,
        fetch: Callable[[str], Any] | None = None,
    ) -> None:
        """Create a reference to the directory at `path`. The directory is not read yet.

        info: the description of the checkpoint, if it belongs to a trial.
        fetch: copies the files from another node's disk into the local directory that is passed to it.
        """
        self.path = os.fspath(path)
        self.info = info
        self._fetch = fetch

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files into `path`, by default a new temporary directory, and return that path."""
        if path is not None:
            return self._copied(os.fspath(path))
        target = tempfile.mkdtemp(prefix="tuner-checkpoint-")
        try:
            return self._copied(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)  # nobody else knows of it
            raise

    def _copied(self, target: str) -> str:
        with self._told():
            if self._fetch is not None and self.is_elsewhere:
                self._fetch(target)
                return target
            where = place(self.path)
            manifest = self._manifest(where)
            where.download(target)
            if manifest is not None:
                compare(self.path, manifest, target)
            return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Provide the files as a local, read-only directory within a `with` block.

        A checkpoint on a local disk is not copied. Any other checkpoint is downloaded once for all processes of this node
        that use it at the same time.
        """
        if not self.is_elsewhere and (where := place(self.path)).local:
            with self._told():
                manifest = self._manifest(where)
            if manifest is None and not os.path.isdir(where.path):
                raise CheckpointError(f"there is no checkpoint at {self.path}")
            yield where.path
            return
        _sweep_cache()
        folder = os.path.join(_cache(), hashlib.blake2b(self.path.encode(), digest_size=10).hexdigest())
        with open(f"{folder}.lock", "a+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # while a process holds this lock, no other process removes the folder
            if not os.path.isdir(folder):
                # The download has a lock of its own: an exclusive lock on the other file would have to wait for all readers too.
                with open(f"{folder}.download", "a+b") as one:
                    fcntl.flock(one, fcntl.LOCK_EX)
                    if not os.path.isdir(folder):
                        self._download(folder)
            try:
                yield folder
            finally:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass  # another process is reading the folder, and will remove it afterwards
                else:
                    shutil.rmtree(folder, ignore_errors=True)

    def _download(self, folder: str) -> None:
        aside = f"{folder}.{os.getpid()}"
        try:
            self.to_directory(aside)
            os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def verify(self) -> None:
        """Read every file and check its hash. Raise CheckpointError if a file is missing or damaged."""
        if self.is_elsewhere:
            return  # `fetch` checks the hashes
        with self._told():
            where = place(self.path)
            manifest = self._manifest(where)
            if manifest is not None and where.local:
                compare(self.path, manifest, where.path)

    @property
    def iteration(self) -> int | None:
        """The training_iteration of the report with the checkpoint; None for a directory that is not a trial's checkpoint."""
        return self.info.step if self.info is not None else None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the files are on another node's disk and have to be fetched."""
        if self._fetch is None:
            return False
        try:
            where = place(self.path)
        except CheckpointError:  # the path begins with a variable that is set only on the checkpoint's node
            return True
        return where.local and where.beside(_MARKER).read() is None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Within a `with` block, turn errors into CheckpointLost or CheckpointUnreachable, which name the checkpoint."""
        try:
            yield
        except (CheckpointLost, CheckpointUnreachable):
            raise
        except CheckpointError as error:
            if self.info is None:
                raise
            raise CheckpointLost(f"checkpoint {self.info.id} of iteration {self.info.step}: {error}") from error
        except OSError as error:
            if self.info is None:
                raise
            raise CheckpointUnreachable(
                f"checkpoint {self.info.id} of iteration {self.info.step} at {self.path} cannot be read now: {error}"
            ) from error

    def _manifest(self, where: Place) -> Manifest | None:
        """Return the checkpoint's manifest, or None for a directory that `tuner` did not save."""
        if self.info is None and where.beside(_MARKER).read() is None and where.beside(_MANIFEST).read() is None:
            return None
        return committed(self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


Source = str | os.PathLike[str] | Checkpoint | Callable[[str], Any]
"""The checkpoint that is passed to `tuner.report`: a directory, or a callable that fills the directory it is given."""


@dataclass(frozen=True, slots=True)
class Manifest:
    files: Mapping[str, tuple[int, str]]  # relative path -> (bytes, XXH3-128 in hex)
    about: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def digest(folder: str) -> dict[str, tuple[int, str]]:
    """Return the size and hash of every file below a local directory."""
    files = {}
    for name in walk(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found = _hash(file)
            files[name] = (file.tell(), found)
    return files


def commit(
    uri: str, files: Mapping[str, tuple[int, str]], about: Mapping[str, Any], durable_below: str | None = None
) -> None:
    """Turn the files at `uri` into a checkpoint: check that all of them exist, write the manifest, and then the marker.

    durable_below: if the checkpoint must survive a power failure, the storage directory that contains `uri`; else None.
        If it is given, the result of each step is flushed to the disk before the next step begins. Files at a URI are
        not flushed: how safe they are depends on the remote storage.
    """
    where = place(uri)
    wrong = difference({name: size for name, (size, _) in files.items()}, where.sizes())
    if wrong is not None:
        raise CheckpointError(f"the checkpoint at {uri} is incomplete: {wrong}")
    manifest = json.dumps({"version": 1, "about": dict(about), "files": files}, sort_keys=True).encode()
    durable = durable_below is not None and where.local
    if durable_below is not None and where.local:
        sync_tree(where.path, place(durable_below).path)
    where.beside(_MANIFEST).write(manifest, durable)
    where.beside(_MARKER).write(hashlib.sha256(manifest).hexdigest().encode(), durable)


def committed(uri: str) -> Manifest:
    """Check that the checkpoint is committed and that all its files exist with the right sizes. Return its manifest.

    Raise CheckpointError if the check fails.
    """
    where = place(uri)
    marker = where.beside(_MARKER).read()
    if marker is None:
        raise CheckpointError(f"there is no committed checkpoint at {uri}")
    manifest = read_manifest(uri, where.beside(_MANIFEST).read(), marker)
    wrong = difference({name: size for name, (size, _) in manifest.files.items()}, where.sizes())
    if wrong is not None:
        raise CheckpointError(f"the checkpoint at {uri} is damaged: {wrong}")
    return manifest


def manifest_and_marker(uri: str) -> tuple[str, str]:
    """Return the paths of the manifest and the marker of a checkpoint on a node's disk.

    `uri` does not have to exist on this machine.
    """
    base = uri.rstrip("/")
    return base + _MANIFEST, base + _MARKER


def read_manifest(uri: str, content: bytes | None, marker: bytes) -> Manifest:
    """Parse the content of a manifest. Raise CheckpointError if its hash is not the one in the marker."""
    if content is None or hashlib.sha256(content).hexdigest().encode() != marker.strip():
        raise CheckpointError(f"the checkpoint at {uri} is damaged: its manifest does not match its marker")
    data = json.loads(content)
    return Manifest({name: (int(size), str(sha)) for name, (size, sha) in data["files"].items()}, data["about"])


def is_committed(uri: str) -> bool:
    """Return whether the checkpoint is committed and all its files are there, so that a trial can start from it."""
    try:
        committed(uri)
    except CheckpointError:
        return False
    return True


def is_saved_or_downloaded(folder: str) -> bool:
    """Return whether a local directory belongs to a saved checkpoint or to a download that processes share.

    The files of such a directory must stay where they are.
    """
    real = os.path.realpath(folder)
    with contextlib.suppress(OSError):  # the temporary directory is full, or cannot be written to
        if real.startswith(os.path.realpath(_cache()) + os.sep):
            return True
    return any(os.path.exists(f"{part}{_MARKER}") for part in (real, *map(str, Path(real).parents)))


def is_here(uri: str) -> bool:
    """Return whether this process can reach any part of a checkpoint, even if it is damaged or partly deleted."""
    try:
        where = place(uri)
    except CheckpointError:  # the path begins with a variable that is set only on another node
        return False
    if where.local:
        return any(os.path.lexists(part.path) for part in (where, where.beside(_MANIFEST), where.beside(_MARKER)))
    return where.beside(_MARKER).read() is not None or bool(where.sizes())


def where_now(uri: str, folder: str) -> str:
    """Return the place of a checkpoint, which is below `folder` if the folder of its experiment was moved there on a disk.

    That is so if the folder below which it was saved is gone, as after a move of the home, and `folder` has the checkpoint.
    The disk, which may not respond, is not asked about a checkpoint that was saved below `folder`.
    """
    before, *names = uri.rstrip("/").rsplit("/", 2)
    if len(names) < 2 or not before or before == folder.rstrip("/") or not (is_local(uri) and is_local(folder)):
        return uri
    with contextlib.suppress(CheckpointError):  # a path begins with a variable that is set only on other nodes
        moved = join(folder, *names)
        if not os.path.lexists(place(before).path) and os.path.lexists(place(moved).beside(_MARKER).path):
            return moved
    return uri


def delete(uri: str) -> None:
    """Delete a checkpoint, whether it is complete or damaged.

    The marker is deleted first, so that a partly deleted checkpoint never looks complete.
    """
    where = place(uri)
    where.beside(_MARKER).unlink()
    where.beside(_MANIFEST).unlink()
    where.remove()


def sweep(storage: str, known: Collection[str] | None = None) -> list[str]:
    """Delete the checkpoints in an experiment's storage that are not needed, and return their URIs.

    A checkpoint is deleted if it was never committed, or if it is not in the database. The latter happens if the ranks
    or the driver are killed before the report is stored. Call this only while no trial of the experiment is running.

    Args:
        storage: where the experiment's checkpoints are stored.
        known: the URIs of the checkpoints in the database, or None to keep all committed checkpoints.
    """
    root = place(storage)
    names = None if known is None else {tuple(split_query(uri)[0].rstrip("/").split("/")[-2:]) for uri in known}
    removed = []
    for trial in root.folders():
        for name in (root / trial).folders():
            where = root / trial / name
            is_committed = not trial.startswith(".") and where.beside(_MARKER).read() is not None
            if not is_committed:
                where.remove()
            elif names is not None and (trial, name) not in names:
                delete(where.uri)
            else:
                continue
            removed.append(where.uri)
    return removed


def compare(uri: str, manifest: Manifest, folder: str) -> None:
    """Raise CheckpointError if a file in the manifest is missing from `folder`, or if its hash differs."""
    for name, (size, sha) in manifest.files.items():
        try:
            with open(os.path.join(folder, name), "rb") as file:
                found = _hash(file)
                length = file.tell()
        except FileNotFoundError:
            raise CheckpointError(f"the checkpoint at {uri} is damaged: {name} is missing") from None
        except OSError as error:
            raise CheckpointError(f"the checkpoint at {uri} is damaged: {name} cannot be read: {error}") from error
        if length != size or found != sha:
            raise CheckpointError(f"the checkpoint at {uri} is damaged: {name} does not match its hash")


def _hash(file: BufferedReader) -> str:
    """Return the hash of a file's content, which reveals damaged and mixed-up files.

    The hash function is chosen for speed, because every save and restore waits for it. It does not protect against forgery.
    """
    return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _sweep_cache() -> None:
    """Delete downloaded checkpoints that no process has locked, because the processes that used them were killed."""
    with os.scandir(_cache()) as entries:
        folders = [entry for entry in entries if entry.is_dir()]  # complete and unfinished downloads: KEY and KEY.PID
    for folder in folders:
        key = os.path.join(_cache(), folder.name.partition(".")[0])
        with open(f"{key}.lock", "ab") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder.path, ignore_errors=True)


def _cache() -> str:
    return private_folder("tuner-cache")
