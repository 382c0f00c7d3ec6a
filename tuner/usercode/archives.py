"""Make zip files of code, and check zip files that clients have sent before their content is used."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import os
import pickletools
import re
import site
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, BinaryIO

from tuner.errors import SpecError

MAX_BYTES = 100 << 20
"""The maximum size of a zip file, in bytes."""

MAX_UNPACKED = 500 << 20
"""The maximum total size of a zip file's files when they are unpacked, in bytes."""

MAX_FILES = 20_000
MAX_DIRECTORY = 8 << 20
"""The maximum size of a zip file's central directory (the list of its entries), in bytes.

The size is checked before the directory is read, since the entries take ten times as much space in memory.
"""

MAX_PATH = 1000
SKIPPED = frozenset(
    {
        ".git",
        "__pycache__",
        ".venv",
        "node_modules",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
    }
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # the attributes of AST nodes that hold statements
_WORD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_TAIL = 22 + 0xFFFF  # the maximum length of a zip file's last record, which contains the size of the central directory
_KINDS = frozenset({0, stat.S_IFREG, stat.S_IFDIR})
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


# -- make a zip file --------------------------------------------------------------------------------------------------------


def pack(files: Mapping[str, Path]) -> bytes:
    """Return a zip file with these files. `files` maps names in the zip file to paths. Equal files give equal bytes.

    Raises:
        SpecError: the files, or the zip file, are larger than a service accepts; or a file cannot be read, or has a name that is
            not UTF-8.
    """
    out, total = io.BytesIO(), 0
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(files):
            try:
                total += files[name].stat().st_size
                if total > MAX_UNPACKED:
                    raise SpecError(
                        f"the code has more than {MAX_UNPACKED >> 20} MiB; move data out of the code's folder",
                        "/bundle",
                    )
                archive.writestr(_entry(name), files[name].read_bytes())
            except OSError as error:
                raise SpecError(f"{str(files[name])!r} cannot be read: {error.strerror}", "/bundle") from error
            except UnicodeEncodeError as error:
                raise SpecError(f"{name!r} is a name that is not UTF-8; rename the file", "/bundle") from error
    if len(out.getvalue()) > MAX_BYTES:
        raise SpecError(
            f"the zipped code has more than {MAX_BYTES >> 20} MiB; move data out of the code's folder", "/bundle"
        )
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files_of(folder: Path, prefix: str = "") -> dict[str, Path]:
    """Return the files below a folder by relative path (after `prefix`), without links, caches and version control."""
    found: dict[str, Path] = {}
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in names:
            path = Path(here, name)
            if path.is_file() and not path.is_symlink() and not name.endswith((".pyc", ".pyo")):
                found[prefix + path.relative_to(folder).as_posix()] = path
    return found


def local_modules(blob: bytes | None, names: Iterable[str] = ()) -> dict[str, Path]:
    """Return the files of the user's own modules that a pickled function needs, directly or through their imports.

    A module is the user's own if it is neither in the standard library nor installed. No module is imported. Packages are
    returned with all their files, and namespace packages, which are folders without ``__init__.py``, with their .py files.

    Args:
        blob: a pickled function. The function is assumed to need each of the user's modules whose name occurs as a string
            in the pickle. This also finds modules that the function imports in its body.
        names: the names of further modules to include.
    """
    texts = list(_texts(blob))
    imported = {*(name.partition(".")[0] for name in names), *_imported(texts)}
    waiting = [*imported, *(text.partition(".")[0] for text in texts)]
    known: set[str] = set()
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        files = _own_files(name, name in imported)
        found |= files
        used = {used for path in files.values() if path.suffix == ".py" for used in imports_of(path)}
        known -= used - imported  # only mentioned as text, the name of a folder was not a reason to send it
        imported |= used
        waiting += used
    return found


def _texts(blob: bytes | None) -> Iterator[str]:
    """Yield the strings in a pickle that can be names of modules, without unpickling it."""
    for _, value, _ in pickletools.genops(blob) if blob is not None else ():
        if isinstance(value, str) and len(value) < 200:
            yield from (part for part in value.split(" ") if _WORD.fullmatch(part))  # GLOBAL has "module name"


def _imported(texts: Iterable[str]) -> Iterator[str]:
    """Yield the top-level names of texts such as "lib.util" that name a module of a namespace package."""
    for text in texts:
        name, _, rest = text.partition(".")
        inner = rest.partition(".")[0]
        if inner and any((folder / f"{inner}.py").is_file() or (folder / inner).is_dir() for folder in _folders(name)):
            yield name


def _folders(name: str) -> list[Path]:
    """Return the folders of a namespace package, and of a folder beside the script that only looks like one."""
    spec = _spec(name)
    if spec is None or spec.origin is not None or not spec.submodule_search_locations:
        return []
    return [Path(folder).resolve() for folder in spec.submodule_search_locations]


def _spec(name: str) -> ModuleSpec | None:
    try:
        loaded = sys.modules.get(name)
        return loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _own_files(name: str, imported: bool) -> dict[str, Path]:
    """Return the files of a top-level module or package, or none if the module is not the user's own.

    A folder without ``__init__.py`` counts only if it is imported: its name may be that of a variable, as ``data`` or ``env``.
    """
    if name in ("__main__", "tuner") or name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return {}
    if folders := _folders(name):
        return {
            path: file
            for folder in reversed(folders)  # the first one counts, as for imports
            if (imported or name in sys.modules) and not _is_installed(folder) and not (folder / "pyvenv.cfg").exists()
            for path, file in files_of(folder, f"{name}/").items()
            if file.suffix == ".py"
        }
    spec = _spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return {}
    source = Path(spec.origin)  # it may be a link to a file of another name
    origin = source.resolve()
    if not origin.is_file() or _is_installed(origin):
        return {}
    return {source.name: origin} if source.name != "__init__.py" else files_of(source.parent.resolve(), f"{name}/")


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _installed())


def _installed() -> Iterator[Path]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*(sysconfig.get_paths()[kind] for kind in kinds), *site.getsitepackages(), site.getusersitepackages()]
    return (Path(folder).resolve() for folder in folders)


def imports_of(file: Path) -> list[str]:
    """Return the top-level modules that a file imports, in any of its blocks."""
    about = file.stat()
    return _imports_of(file, about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=10_000)
def _imports_of(file: Path, mtime_ns: int, size: int) -> list[str]:
    """Parse a file. The result is cached until the file changes, because a notebook sends the same package often."""
    try:
        waiting: list[Any] = [ast.parse(file.read_bytes())]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two if it is nested deeply
        return []
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.append(node.module.partition(".")[0])
        for block in _BLOCKS:  # not the expressions, which take most of the time of `ast.walk`
            waiting += getattr(node, block, ())
    return found


# -- read a client's zip file --------------------------------------------------------------------------------------------


class Archive:
    """A zip file that a client has sent, and whose entries have been checked.

    The constructor raises SpecError if the file is not a zip file, is too large, or has an entry that must not be unpacked:
    one with a path that leads out of the archive's folder, a link or a device, an encrypted entry, one that occurs twice, or
    one that is compressed by an uncommon method.
    """

    def __init__(self, file: BinaryIO) -> None:
        _check_directory(file)
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
            raise _refused(f"the zip file cannot be read: {error}") from error
        self._members = _checked(self._zip.infolist())

    @property
    def count(self) -> int:
        return len(self._members)

    def repacked(self, prefix: str) -> bytes:
        """Return a new zip file with only the files of this archive, inside a folder named `prefix`."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for member in self._members:
                archive.writestr(_entry(f"{prefix}/{member.filename}"), self._read(member))
        return out.getvalue()

    def unpack(self, folder: Path) -> None:
        """Write the files of the archive to `folder`."""
        for member in self._members:
            path = folder / member.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._read(member))

    def _read(self, member: zipfile.ZipInfo) -> bytes:
        try:
            with self._zip.open(member) as file:  # reads no more than the size that was checked
                return file.read()
        except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
            raise _refused(f"{member.filename!r} cannot be read: {error}") from error
        except Exception as error:  # zlib.error is not a subclass of any of these
            raise _refused(f"{member.filename!r} is damaged: {error}") from error


def _check_directory(file: BinaryIO) -> None:
    """Check the size of the central directory before zipfile reads all of it into memory."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _TAIL - 20, 0))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise _refused("the file is not a zip file")
    if tail[max(at - 20, 0) : at].startswith(b"PK\6\7"):
        raise _refused("the file is in the format for very large zip files (ZIP64)")
    if int.from_bytes(tail[at + 12 : at + 16], "little") > MAX_DIRECTORY:
        raise _refused(f"the zip file's list of files (its central directory) has more than {MAX_DIRECTORY:,} bytes")
    file.seek(0)


def _checked(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return the entries of a zip file that are files, not folders. Raise SpecError if an entry must not be unpacked."""
    if not all(member.filename for member in members):
        raise _refused("an entry has no name")
    files = [member for member in members if not member.is_dir()]
    if not files:
        raise _refused("the zip file has no files")
    if len(members) > MAX_FILES:
        raise _refused(f"the zip file has {len(members):,} files, and at most {MAX_FILES:,} are allowed")
    if (total := sum(member.file_size for member in files)) > MAX_UNPACKED:
        raise _refused(f"the files have {total >> 20:,} MiB, and at most {MAX_UNPACKED >> 20} MiB are allowed")
    for member in members:
        if (why := _problem(member)) is not None:
            raise _refused(f"{member.filename!r} {why}")
    names = [member.filename.casefold() for member in files]
    taken = set(names)
    if len(taken) < len(names):
        twice = next(member.filename for member in files if names.count(member.filename.casefold()) > 1)
        raise _refused(f"{twice!r} occurs twice, if upper and lower case count as the same")
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:end]) in taken for end in range(1, len(parts))):
            raise _refused(
                f"{name!r} is in a folder that has the same path as a file, if upper and lower case count as the same"
            )
    return files


def _problem(member: zipfile.ZipInfo) -> str | None:
    name = member.filename
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "has a path that leads out of the archive's folder"
    if "\\" in name or ":" in name:
        return "has a colon or a backslash in its path, which leads out of the folder on some systems"
    if not name.isprintable() or len(name) > MAX_PATH or any(len(part.encode()) > 255 for part in parts):
        return "is a name that is too long or has characters that are not printable"
    if stat.S_IFMT(member.external_attr >> 16) not in _KINDS:
        return "is a link or a device"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type not in _METHODS:
        return "is compressed by a method other than deflate"
    return None


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _refused(why: str) -> SpecError:
    return SpecError(f"the bundle is rejected: {why}", "/bundle")
