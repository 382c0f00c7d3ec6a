"""Directories at a local path or any `pyarrow.fs` URI, with the few operations that checkpoints need."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from tuner.errors import CheckpointError, CheckpointUnreachable
from tuner.plurals import counted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or a file. `path` is a local path if `remote` is None, else a path on that pyarrow filesystem."""

    uri: str
    path: str
    remote: Any = None

    def __truediv__(self, name: str) -> Place:
        return Place(join(self.uri, name), f"{self.path.rstrip('/')}/{name}", self.remote)

    @property
    def local(self) -> bool:
        return self.remote is None

    def beside(self, suffix: str) -> Place:
        """Return the place with this suffix added to its name."""
        base, query = split_query(self.uri)
        return Place(base.rstrip("/") + suffix + query, self.path.rstrip("/") + suffix, self.remote)

    def read(self) -> bytes | None:
        """Return the content of this small file, or None if it does not exist."""
        target = self.path
        try:
            if self.remote is None:
                return Path(target).read_bytes()
            with self.remote.open_input_stream(target) as stream:
                content: bytes = stream.read()
                return content
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, content: bytes, durable: bool = False) -> None:
        """Write this small file atomically. If `durable` is set, flush a local file to the disk before returning."""
        target = self.path
        if self.remote is None:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            aside = f"{target}.tmp{secrets.token_hex(4)}"  # another thread or machine may be writing the same file
            try:
                Path(aside).write_bytes(content)
                if durable:
                    sync(aside)
                os.replace(aside, target)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                raise
            if durable:
                sync(os.path.dirname(target))
            return
        self.remote.create_dir(os.path.dirname(target), recursive=True)
        with self.remote.open_output_stream(target) as stream:
            stream.write(content)

    def size(self) -> int | None:
        """Return the size of this file in bytes, or None if there is no such file."""
        if self.remote is None:
            return os.path.getsize(self.path) if os.path.isfile(self.path) else None
        from pyarrow import fs

        found = self.remote.get_file_info(self.path)
        return int(found.size) if found.type == fs.FileType.File else None

    def sizes(self) -> dict[str, int]:
        """Return the size of every file below this directory, by relative path."""
        if self.remote is None:
            return {name: os.path.getsize(os.path.join(self.path, name)) for name in walk(self.path)}
        from pyarrow import fs

        found = self.remote.get_file_info(fs.FileSelector(self.path, recursive=True, allow_not_found=True))
        prefix = len(self.path.rstrip("/")) + 1
        return {info.path[prefix:]: info.size for info in found if info.type == fs.FileType.File}

    def modified(self) -> dict[str, float]:
        """Return the modification time of each file in this directory, by name, in seconds since the epoch."""
        if self.remote is None:
            with contextlib.suppress(FileNotFoundError):
                return {entry.name: entry.stat().st_mtime for entry in os.scandir(self.path) if entry.is_file()}
            return {}
        from pyarrow import fs

        found = self.remote.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        files = [info for info in found if info.type == fs.FileType.File]
        return {info.base_name: info.mtime_ns / 1e9 for info in files if info.mtime_ns is not None}

    def folders(self) -> list[str]:
        """Return the names of the directories in this directory."""
        if self.remote is None:
            if not os.path.isdir(self.path):
                return []
            return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir())
        from pyarrow import fs

        found = self.remote.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def upload(self, source: str) -> None:
        """Copy the files of a local directory to this place. Keep files with other names that are already there."""
        from pyarrow import fs

        self.remote.create_dir(self.path, recursive=True)
        fs.copy_files(source, self.path, source_filesystem=fs.LocalFileSystem(), destination_filesystem=self.remote)

    def download(self, target: str) -> None:
        """Copy everything below this directory to a local directory."""
        if self.remote is None:
            shutil.copytree(self.path, target, dirs_exist_ok=True)
            return
        from pyarrow import fs

        os.makedirs(target, exist_ok=True)
        fs.copy_files(self.path, target, source_filesystem=self.remote, destination_filesystem=fs.LocalFileSystem())

    def remove(self) -> None:
        """Delete this file, or this directory with everything below it. Do nothing if it does not exist."""
        if self.remote is None:
            if os.path.isfile(self.path):
                self.unlink()
            else:
                shutil.rmtree(self.path, ignore_errors=True)
            return
        from pyarrow import fs

        match self.remote.get_file_info(self.path).type:
            case fs.FileType.Directory:
                self.remote.delete_dir(self.path)
            case fs.FileType.File:
                self.remote.delete_file(self.path)

    def unlink(self) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            if self.remote is None:
                os.unlink(self.path)
            else:
                self.remote.delete_file(self.path)


_PASSING = re.compile(
    r"""HTTP\ status\ (?:429|5(?!0[15])\d\d)
    | \b(?:429|503)\ (?:Too|The|Service|Slow|Server)\b
    | AWS\ Error\ (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE)
    | \b(?:timed\ out|timeout|temporarily|unavailable|unreachable|ServerBusy|DEADLINE_EXCEEDED|Too\ Many\ Requests)\b
    | connection\ (?:reset|refused|closed|aborted)""",
    re.IGNORECASE | re.VERBOSE,
)
_LASTING = re.compile(r"curlCode: (?:1|3|58|60|77)\b")
"""Errors of connections that do not pass: of the protocol, the URL, and certificates."""
_NAMES = re.compile(r"'[^']*'")


def is_passing(error: Exception) -> bool:
    """Return whether an error of a storage may pass by itself, as when the storage is overloaded or cannot be reached.

    pyarrow raises plain OSErrors, so this reads their messages, without the names of buckets and files that these quote.
    Wrong credentials or a missing bucket do not count.
    """
    said = _NAMES.sub("", str(error))
    if _LASTING.search(said):
        return False
    return isinstance(error, ConnectionError | TimeoutError) or bool(_PASSING.search(said))


def sync(path: str) -> None:
    """Flush a local file, or the entries of a local directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some filesystems cannot do this for directories
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: str, root: str) -> None:
    """Flush to the disk a local directory, everything below it, and the directories that contain it, up to `root`."""
    for where, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(os.path.join(where, name))
        sync(where)
    parent, last = os.path.dirname(os.path.abspath(folder)), os.path.dirname(os.path.abspath(root))
    while len(parent) >= len(last):
        sync(parent)
        if parent == os.path.dirname(parent):
            break
        parent = os.path.dirname(parent)


def private_folder(name: str) -> str:
    """Return a folder in the temporary directory for the processes of this user. Create it if necessary.

    All users share the temporary directory. If the folder does not belong to this user, or if other users can write to
    it, this process uses a new folder instead, which is removed when the process exits.
    """
    folder = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode=0o700)
    return folder if _is_private(folder) else _own_folder(folder)


def _is_private(folder: str) -> bool:
    found = os.lstat(folder)  # links are not followed
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def _own_folder(instead_of: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"{os.path.basename(instead_of)}-")
    log.warning("%s is not private to this user; using %s instead", instead_of, folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def place(uri: str | os.PathLike[str]) -> Place:
    """Return the place at a local path, a ``file://`` URI, or any URI that pyarrow.fs supports.

    Raise CheckpointError for any other URI, and for a path with an environment variable that is not set in this process.
    Raise CheckpointUnreachable if the storage has to be asked, such as for the region of a bucket, and does not respond.
    """
    text = os.fspath(uri)
    if "://" not in text:
        return Place(text, os.path.abspath(_expanded(text)))
    if text.startswith("file://"):
        return Place(text, "/" + text.removeprefix("file://").lstrip("/"))
    base, path = _filesystem(text)
    return Place(text, path, base)


def is_local(uri: str) -> bool:
    """Return whether a path or URI is on a disk. This connects to nothing."""
    return "://" not in uri or uri.startswith("file://")


_SCHEMES = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "hf", "local", "s3", "viewfs")
_ONE_SLASH = re.compile(rf"({'|'.join(_SCHEMES)}):/(?!/)")  # unlikely to be a directory's name


def unknown_scheme(uri: str) -> str | None:
    """Return what is wrong with a storage URI's scheme, or None. This neither imports pyarrow nor connects to anything."""
    scheme, mark, rest = uri.partition("://")
    if one_slash := _ONE_SLASH.match(uri):
        return f"expected {one_slash[1]}://, with two slashes, got {uri!r}"
    if mark and scheme == "file" and not rest.startswith("/"):
        return f"file:// must be followed by an absolute path on this machine; expected file:///{rest}"
    if not mark or scheme in _SCHEMES or scheme.startswith("fsspec+"):
        return None
    expected = ", ".join(f"{name}://" for name in _SCHEMES)
    return f"unknown kind of storage {scheme}://; expected a path or a URI with {expected} or fsspec+NAME://"


_SECRETS = {"client_secret", "sig"}
"""Options of pyarrow's URIs that are secrets: a password of Azure, and the signature of a shared access token (SAS)."""


def secret_in(uri: str) -> str | None:
    """Return why a storage URI must not be used because it contains a password; None if it contains none.

    The reason does not contain the URI.
    """
    scheme, mark, rest = uri.partition("://")
    user, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    has_password = bool(mark and at and user.partition(":")[2])
    if not has_password and _SECRETS.isdisjoint(name for name, _ in parse_qsl(split_query(uri)[1].removeprefix("?"))):
        return None
    azure = scheme in ("abfs", "abfss")
    names = "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET" if azure else "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return (
        "the URI contains a password, which the page, logs and webhooks would show; expected a URI without it, and the "
        f"credentials in the environment of the service and of the trials, such as {names}"
    )


def blocking_file(uri: str) -> str | None:
    """Return the first part of a local path that is a file and therefore cannot contain the rest; None if there is none."""
    if "$" in uri or ("://" in uri and not uri.startswith("file://")):
        return None
    path = Path(place(uri).path)
    return next((str(part) for part in (*reversed(path.parents), path) if os.path.isfile(part)), None)


def is_in_kernel_filesystem(uri: str) -> bool:
    """Return whether this local path is below /proc or /sys, which hold no user files and may differ between processes."""
    if "$" in uri or ("://" in uri and not uri.startswith("file://")):
        return False
    return os.path.normpath(place(uri).path).startswith(("/proc/", "/sys/"))


def nothing_around(folder: str) -> str | None:
    """Return the directory around a local folder if it is empty or missing, as where a share is not mounted.

    Return None for a URI, and if the directory contains anything.
    """
    if not is_local(folder):
        return None
    root = os.path.dirname(place(folder).path)
    with contextlib.suppress(FileNotFoundError):
        if os.listdir(root):
            return None
    return root


def is_relative(uri: str) -> bool:
    """Return whether this path depends on the working directory of the process."""
    return "://" not in uri and not uri.startswith(("/", "~", "$"))


def absolute(uri: str | os.PathLike[str]) -> str:
    """Make a relative path absolute, starting from the working directory of this process.

    URIs (even malformed ones), ``~`` and ``$NAME/...`` are returned unchanged.
    """
    text = os.fspath(uri)
    if not is_relative(text) or _ONE_SLASH.match(text):
        return text
    return os.path.abspath(text) if "$" in text else literal(os.path.abspath(text))


def literal(path: str) -> str:
    """Return an absolute path in a form in which a ``$`` is part of a name, and does not begin that of a variable."""
    return f"file://{path}" if "$" in path else path


def _expanded(path: str) -> str:
    """Replace ``~`` and environment variables (``$NAME``) in a path with their values on this node."""
    found = os.path.expanduser(os.path.expandvars(path))
    if unset := re.search(r"\$(\w+|\{\w+\})", found):
        raise CheckpointError(f"the storage {path} names the environment variable {unset[1]}, which is not set here")
    if path.startswith("$") and not os.path.isabs(found):
        raise CheckpointError(f"the storage {path} is {found} on this machine, but an absolute path was expected")
    return found


def join(uri: str, *names: str) -> str:
    """Append names to a URI or a path. A query such as ``?endpoint_override=...`` stays at the end."""
    base, query = split_query(uri)
    return "/".join([base.rstrip("/"), *names]) + query


def split_query(uri: str) -> tuple[str, str]:
    """Split a URI before its query. A path on a disk has no query: there, a ``?`` belongs to the name of a file."""
    if is_local(uri):
        return uri, ""
    base, mark, query = uri.partition("?")
    return base, mark + query


def is_within(storage: str, uri: str) -> bool:
    """Return whether a URI is below an experiment's storage, and does not lead out of it by `..`, even if that is escaped.

    Its query must be that of the storage, since it may name another host.
    """
    (path, query), (base, own) = split_query(uri), split_query(storage)
    below = base.rstrip("/") + "/"
    parts = re.split(r"[/\\]", unquote(path.removeprefix(below)))
    return path.startswith(below) and query == own and ".." not in parts and "." not in parts and parts[-1] != ""


@lru_cache(maxsize=64)
def _filesystem(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except Exception as error:
        if is_passing(error):
            raise CheckpointUnreachable(f"{uri} cannot be reached now: {error}") from error
        raise CheckpointError(f"{uri} cannot be used as storage: {error}") from error
    return filesystem, path


def walk(folder: str) -> list[str]:
    """Return the sorted paths of all files below a local directory. The paths are relative to that directory."""
    found: list[str] = []
    for where, _, names in os.walk(folder):
        for name in names:
            found.append(os.path.relpath(os.path.join(where, name), folder))
    return sorted(found)


def replace_links(folder: str) -> None:
    """Replace symbolic links below a local directory with copies of their targets, so that the directory can be moved.

    Raise CheckpointError if there is a dangling link, a link to a directory that contains it, or a pipe, socket or device.
    """
    top = os.path.realpath(folder)
    for where, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(where, name)
            said, mode = os.path.relpath(path, top), os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                _replace_link(path, said, top)
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CheckpointError(f"{said} is a pipe, a socket or a device, and a checkpoint cannot contain these")


def _replace_link(path: str, said: str, top: str) -> None:
    source, aside = os.path.realpath(path), f"{path}.tuner-link"
    link = f"{said} is a symbolic link to {os.readlink(path)}"
    if not os.path.exists(source):
        raise CheckpointError(f"{link}, which does not exist")
    if os.path.isdir(source):
        if path.startswith(os.path.join(source, "")):
            raise CheckpointError(f"{link}, a directory that contains it")
        try:
            copy_tree(source, aside)
        except CheckpointError as error:
            raise CheckpointError(f"{link}, which cannot be copied: {error}") from error
    elif not os.path.isfile(source):
        raise CheckpointError(f"{link}, which is neither a file nor a directory")
    elif source.startswith(os.path.join(top, "")):
        os.link(source, aside)  # takes up no extra space
    else:
        try:
            shutil.copy2(source, aside)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise CheckpointError(f"{link}, which cannot be copied: {error}") from error
    os.unlink(path)
    os.rename(aside, path)


def copy_tree(source: str, target: str) -> None:
    """Copy a local directory, and the targets of the symbolic links in it. If that fails, delete what has been copied.

    Raise CheckpointError if there is a dangling link, a link to a directory that contains it, or a pipe, socket or
    device, or if a file cannot be read or written.
    """

    def check(folder: str, names: list[str]) -> list[str]:
        real = os.path.realpath(folder)
        if any(os.path.realpath(around) == real for around in Path(folder).parents):
            raise CheckpointError(
                f"{os.path.relpath(folder, source)} is a symbolic link to a directory that contains it"
            )
        for name in names:
            path = os.path.join(folder, name)
            if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
                said = os.path.relpath(path, source)
                raise CheckpointError(f"{said} is a pipe, a socket or a device, and a checkpoint cannot contain these")
        return []

    try:
        shutil.copytree(source, target, ignore=check, dirs_exist_ok=True)
    except CheckpointError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        first = error.args[0][0][2] if isinstance(error, shutil.Error) else error  # the errors are (from, to, message)
        raise CheckpointError(str(first)) from error


def move_into(source: str, target: str, names: Iterable[str] | None = None) -> None:
    """Move these files, by default all, from `source` to `target` on the same filesystem. Replace existing files."""
    for name in walk(source) if names is None else names:
        destination = os.path.join(target, name)
        os.makedirs(os.path.dirname(destination), exist_ok=True)
        os.replace(os.path.join(source, name), destination)


def difference(expected: Mapping[str, int], found: Mapping[str, int]) -> str | None:
    """Return the first difference between the expected and the found files (name -> size), or None if there is none."""
    missing = sorted(name for name in expected if name not in found)
    if missing:
        return f"{missing[0]} is missing" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    for name, size in expected.items():
        if found[name] != size:
            return f"{name} has {counted(found[name], 'byte')} instead of {size}"
    return None
