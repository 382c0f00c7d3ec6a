"""Files of checkpoints that lie on the disk of another node: they come here through Ray's object store.

Storage that every node reaches (a shared directory, a URI) needs none of this. Nothing is kept in the object store: parts of a
file are put there when somebody on another node asks for them, a few at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray

from tuner.errors import CheckpointLost
from tuner.trials import checkpoints, nodes
from tuner.trials.storage import place

log = logging.getLogger(__name__)

_DELETE_S = 60.0
_PART = 32 << 20  # bytes of a file that travel as one object
_WINDOW = 4  # parts under way at a time


def read_part(path: str, offset: int, length: int) -> Any:
    """A part of a local file, as an array of bytes, which Ray does not copy. Runs on the node that has the file."""
    import numpy

    return numpy.fromfile(place(path).path, dtype=numpy.uint8, count=length, offset=offset)


def read_small(paths: Iterable[str]) -> list[bytes | None]:
    """What is in these small files. Runs on the node that has them."""
    return [place(path).read() for path in paths]


def remove(uri: str) -> None:
    """Delete a checkpoint or part of one. Runs on the node that has it."""
    checkpoints.delete(uri)


def fetch(uri: str, node: str, target: str) -> checkpoints.Manifest:
    """Copy a committed checkpoint from the disk of that node into a local directory.

    CheckpointLost when the node is gone or no longer has it; CheckpointError when what came is torn.
    """
    content, marker = _ask(uri, node, read_small, [str(path) for path in checkpoints.papers(uri)])
    if content is None or marker is None:
        raise CheckpointLost(f"node {node[:8]} no longer has a committed checkpoint at {uri}")
    manifest = checkpoints.read_manifest(uri, content, marker)
    fetch_files(uri, node, manifest.files, target)
    checkpoints.compare(uri, manifest, target)
    return manifest


def fetch_files(uri: str, node: str, files: Mapping[str, tuple[int, str]], target: str) -> None:
    """Copy these files of a directory on the disk of that node into a local directory."""
    parts: deque[tuple[str, int, Any]] = deque()
    for name, (size, _) in files.items():
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
        for offset in range(0, size, _PART):
            parts.append((path, offset, _start(node, read_part, posixpath.join(uri, name), offset, _PART)))
            if len(parts) >= _WINDOW:
                _take(uri, node, parts)
    while parts:
        _take(uri, node, parts)


def bring(uri: str, node: str, files: Mapping[str, tuple[int, str]], target: str) -> None:
    """Move these files of one checkpoint, all that the node has of it, from its disk into a local directory."""
    fetch_files(uri, node, files, target)
    checkpoints.compare(uri, checkpoints.Manifest(files, {}), target)
    _ask(uri, node, remove, uri)


async def delete(uri: str, node: str) -> None:
    """Delete a checkpoint from the disk of that node; nothing happens where the node is gone."""
    try:
        await asyncio.wait_for(_answer(_start(node, remove, uri)), _DELETE_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        log.info("the checkpoint at %s could not be deleted on node %s: %s", uri, node[:8], error)


async def _answer(reference: Any) -> None:
    await reference


def _take(uri: str, node: str, parts: deque[tuple[str, int, Any]]) -> None:
    path, offset, reference = parts.popleft()
    content = _wait(uri, node, reference)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(memoryview(content))


def _ask(uri: str, node: str, function: Any, *arguments: Any) -> Any:
    return _wait(uri, node, _start(node, function, *arguments))


def _start(node: str, function: Any, *arguments: Any) -> Any:
    return nodes.on_node(node, function, *arguments)


def _wait(uri: str, node: str, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except (ray.exceptions.RayError, OSError) as error:
        raise CheckpointLost(
            f"the checkpoint at {uri} lies on the disk of node {node[:8]}, which does not give it: "
            f"{str(error).strip().splitlines()[-1]}. Storage that every node reaches, a shared directory or a URI, keeps "
            "checkpoints when a node is lost"
        ) from error
