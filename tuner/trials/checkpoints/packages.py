"""Pack and store local directories of a `runtime_env`, so that workers and later processes can use them.

Ray uploads local directories for one job only, but another job may continue the experiment. So directories are packed
into zip files in the experiment's storage. The files are named by a hash of their content, and the environment refers to
them by URI.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.errors import CheckpointError, SpecError
from tuner.trials.checkpoints.storage import join, place, split_query, unknown_scheme

_SKIPPED = (".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_LIMIT = 500 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(runtime_env: Mapping[str, Any], storage: str, named: Callable[[str], str] = lambda uri: uri) -> dict[str, Any]:
    """Store the local directories and files that a `runtime_env` names, and return it with their paths replaced by URIs.

    Raise SpecError if a path does not exist.

    Args:
        runtime_env: the runtime environment.
        storage: the folder or URI below which packages are stored.
        named: called with a package's URI, which ends in the hash of its content; returns the URI under which to keep
            the package.
    """
    out = dict(runtime_env)
    excludes = out.get("excludes") or ()
    directory = out.get("working_dir")
    if directory is not None and _is_path(directory):
        out["working_dir"] = _shipped(directory, "", storage, excludes, "/runtime_env/working_dir", named)
        out.pop("excludes", None)
    if modules := out.get("py_modules"):
        shipped = []
        for i, module in enumerate(modules):
            where = f"/runtime_env/py_modules/{i}"
            path = os.path.dirname(module.__file__) if hasattr(module, "__file__") else module
            name = os.path.basename(os.path.abspath(path)) if _is_path(path) else ""
            shipped.append(_shipped(path, name, storage, excludes, where, named) if name else path)
        out["py_modules"] = shipped
    return out


def any_local(runtime_env: Mapping[str, Any]) -> bool:
    """Return whether the `runtime_env` names a directory or file on this machine."""
    modules = runtime_env.get("py_modules") or ()
    return any(_is_path(value) or hasattr(value, "__file__") for value in (runtime_env.get("working_dir"), *modules))


def uris(runtime_env: Mapping[str, Any]) -> list[str]:
    """Return the URIs of the directories and files that the `runtime_env` names."""
    places = (runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or ()))
    return [value for value in places if isinstance(value, str) and "://" in value]


def unpacked(runtime_env: Mapping[str, Any], folder: str) -> tuple[str | None, list[str]]:
    """Unpack the packages of a `runtime_env` into a folder. Return the `working_dir` there, and the entries for `sys.path`.

    Packages at URIs that only Ray can read, such as https://, are skipped.

    Raises:
        CheckpointError: a package is missing or cannot be read.
    """
    directory, modules = runtime_env.get("working_dir"), runtime_env.get("py_modules") or ()
    found = [_unpacked(uri, os.path.join(folder, str(i))) for i, uri in enumerate((directory, *modules))]
    return found[0], [path for path in found if path is not None]


def _unpacked(uri: Any, folder: str) -> str | None:
    """Unpack a package. Return the directory to import from, or the path of a wheel; None if only Ray can read it."""
    if not isinstance(uri, str) or "://" not in uri or unknown_scheme(uri) is not None:
        return None
    content = place(uri).read()
    if content is None:
        raise CheckpointError(f"the package {uri} is missing")
    os.makedirs(folder)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # a wheel is a zip file, too
        archive.extractall(folder)
    if split_query(uri)[0].endswith(".whl"):
        return folder
    # Like Ray, strip a single top-level directory, beside which macOS may have put a directory of its own.
    inside = [os.path.join(folder, name) for name in os.listdir(folder) if name != "__MACOSX"]
    return inside[0] if len(inside) == 1 and os.path.isdir(inside[0]) else folder


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and "://" not in os.fspath(value)


def _shipped(
    path: str | os.PathLike[str],
    name: str,
    storage: str,
    excludes: Sequence[str],
    pointer: str,
    named: Callable[[str], str],
) -> str:
    """Store a directory as a package, or a .zip or .whl file unchanged. Return the URI of the stored file."""
    real = os.path.abspath(os.path.expanduser(os.fspath(path)))
    suffix = os.path.splitext(real)[1]
    if os.path.isfile(real) and suffix in (".zip", ".whl"):
        with open(real, "rb") as file:
            content = file.read()
    elif os.path.isdir(real):
        content, suffix = _pack(real, name, excludes, pointer), ".zip"
    else:
        raise SpecError(f"there is no directory, .zip or .whl at {real}", pointer)
    content_hash = hashlib.blake2b(content, digest_size=16).hexdigest()
    file_name = f"{content_hash}{suffix}" if suffix != ".whl" else _wheel_name(os.path.basename(real), content_hash)
    target = place(join(storage, "packages", file_name))
    uri = f"file://{target.path}" if target.local else target.uri
    if suffix == ".zip":
        uri = named(uri)
        target = place(uri)
    if target.size() is None:
        target.write(content)
    return uri


def _wheel_name(name: str, content_hash: str) -> str:
    """Return the name of a wheel with the hash of its content in the build tag.

    pip reads the version and the platform from the name, and Ray keeps only one file per name. Without the hash, a
    wheel that was rebuilt with the same version would be mistaken for the earlier one.
    """
    parts = name.split("-")
    if len(parts) not in (5, 6):
        return name
    build = f"{parts[2]}_" if len(parts) == 6 else "0_"
    return "-".join([*parts[:2], f"{build}{content_hash}", *parts[-3:]])


def _pack(directory: str, name: str, excludes: Sequence[str], pointer: str) -> bytes:
    """Pack a directory into a zip file with a single top-level directory, as Ray expects, and return its bytes.

    The same files always give the same bytes.
    """
    buffer = io.BytesIO()
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for relative in _files(directory, excludes):
            source = os.path.join(directory, relative)
            total += os.path.getsize(source)
            if total > _LIMIT:
                raise SpecError(
                    f"{directory} has more than {_LIMIT >> 20} MiB: exclude files with 'excludes', or pass data "
                    "with tuner.with_parameters",
                    pointer,
                )
            entry = zipfile.ZipInfo("/".join(filter(None, ["package", name, relative.replace(os.sep, "/")])), _EPOCH)
            entry.external_attr = (os.stat(source).st_mode & 0xFFFF) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with open(source, "rb") as file:
                content = file.read()
            try:
                archive.writestr(entry, content)
            except UnicodeEncodeError:
                message = f"{directory} has a file whose name is not UTF-8, {relative!r}: rename or exclude it with 'excludes'"
                raise SpecError(message, pointer) from None
    return buffer.getvalue()


def _files(directory: str, excludes: Sequence[str]) -> Iterator[str]:
    """Yield the relative paths of the files to pack. Leave out what is no file, such as a pipe or a link that leads nowhere.

    Links to folders are followed, as Ray does, except those that lead back to a folder that contains them.
    """
    # folder -> the real paths of it and of the folders that lead to it
    above = {directory: {os.path.realpath(directory)}}
    for folder, folders, files in os.walk(directory, followlinks=True):
        here, inside = os.path.relpath(folder, directory), above.pop(folder)
        kept = []
        for name in sorted(folders):
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            excluded = name in _SKIPPED or _excluded(os.path.normpath(os.path.join(here, name)), excludes)
            if not excluded and real not in inside:
                above[path] = {*inside, real}
                kept.append(name)
        folders[:] = kept
        for file in sorted(files):
            relative = os.path.normpath(os.path.join(here, file))
            if os.path.isfile(os.path.join(folder, file)) and not _excluded(relative, excludes):
                yield relative


def _excluded(relative: str, excludes: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatch(relative, pattern.strip("/")) or fnmatch.fnmatch(os.path.basename(relative), pattern.strip("/"))
        for pattern in excludes
    )
