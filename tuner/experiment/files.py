"""The files of a checkpoint as one stream, so that they can be downloaded, and unpacking such a download."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from tuner.errors import CheckpointError, Conflict
from tuner.store import CheckpointRecord
from tuner.trials.checkpoints.checkpoints import committed, where_now
from tuner.trials.checkpoints.storage import Place, is_within, place

CHUNK = 1024 * 1024
BLOCK = 512
MOST_OPEN = 100


def archive(record: CheckpointRecord, folder: str, *, by_agent: bool = False) -> Iterator[bytes]:
    """Yield a tar archive of a checkpoint's files, piece by piece, without writing it to the disk.

    Args:
        record: the checkpoint.
        folder: where the checkpoints of its experiment are, to which a user may have moved it.
        by_agent: True if an agent has named the checkpoint, and so may have named any file or host. Only `folder` is then read.

    Raises:
        Conflict: the files are not available, since the checkpoint was deleted, is still being saved, is on another node, or
            is elsewhere than an agent may name.
    """
    if record.state != "ready":
        raise Conflict(f"{record.public_id} has no files: it is {record.state}")
    try:
        uri = where_now(record.uri, folder)
        if by_agent and not is_within(folder, uri):
            raise Conflict(
                f"{record.public_id} is at {record.uri}, as its agent says; the service reads checkpoints of agents only below "
                f"{folder}, so read this one there yourself"
            )
        files = committed(uri).files
        pieces = _pieces(place(uri), {name: size for name, (size, _) in files.items() if _is_safe(name)})
        next(pieces)  # opens the files
    except (CheckpointError, OSError) as error:
        node = f"; node {record.node} wrote it" if record.node else ""
        raise Conflict(f"the files of {record.public_id} cannot be read here: {error}{node}") from error
    return pieces


def unpack(file: Path, folder: Path) -> Iterator[None]:
    """Write the files of an archive that `archive` has made to an empty folder. Yield after each piece, so that others can run.

    Raises:
        CheckpointError: the file is not such an archive, lacks its end, or has an entry that must not be unpacked: a link or a
            device, or one with a path that leads out of the folder.
    """
    with file.open("rb") as whole:
        whole.seek(-min(2 * BLOCK, whole.seek(0, os.SEEK_END)), os.SEEK_END)
        if whole.read() != bytes(2 * BLOCK):  # some proxies end a response that was cut as if it were complete
            raise CheckpointError("the archive lacks its end")
    try:
        with tarfile.open(file, "r:") as packed:
            for member in packed:
                if not (member.isreg() and _is_safe(member.name)):
                    raise CheckpointError(f"the archive is rejected: {member.name!r} is no file below its folder")
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with cast("BinaryIO", packed.extractfile(member)) as source, target.open("xb") as out:
                    while piece := source.read(CHUNK):
                        out.write(piece)
                        yield
    except tarfile.TarError as error:
        raise CheckpointError(f"the archive cannot be read: {error}") from error


def _pieces(where: Place, sizes: Mapping[str, int]) -> Iterator[bytes]:
    """Yield an empty piece, and then the archive.

    Before the first piece, open up to `MOST_OPEN` files on a disk. These are then complete even if the checkpoint is deleted in
    the meantime, by the experiment's policy or with the experiment.
    """
    with contextlib.ExitStack() as stack:
        first = list(sizes)[:MOST_OPEN] if where.remote is None else []
        opened = {name: stack.enter_context(_opened(where / name)) for name in first}
        yield b""
        for name, size in sizes.items():
            header = tarfile.TarInfo(name)
            header.size, header.mode = size, 0o644
            yield header.tobuf(tarfile.PAX_FORMAT)
            left = size
            with opened.pop(name, None) or _opened(where / name) as file:
                while left and (piece := file.read(min(CHUNK, left))):
                    left -= len(piece)
                    yield piece
            if left:
                raise CheckpointError(f"{name} of {where.uri} became shorter while it was read")
            yield bytes(-size % BLOCK)
        yield bytes(2 * BLOCK)


def _opened(file: Place) -> BinaryIO:
    if file.remote is None:
        return open(file.path, "rb")
    return cast("BinaryIO", file.remote.open_input_stream(file.path))


def _is_safe(name: str) -> bool:
    """Return True if a path stays below the folder into which the archive is unpacked."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)
