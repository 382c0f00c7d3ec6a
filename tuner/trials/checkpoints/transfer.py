"""Copy checkpoint files from another node's disk, through Ray's object store.

This is not needed for storage that every node can reach (a shared directory, a URI). Files are not kept in the object
store: when a process on another node requests a file, its parts are put into the store, two at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from tuner.errors import CheckpointError, CheckpointLost, CheckpointUnreachable
from tuner.plurals import counted
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.storage import place
from tuner.trials.messages.tasks import on_node

log = logging.getLogger(__name__)

_DELETE_S = 60.0  # seconds that a node may take to respond, plus one for each checkpoint
_PART = 32 << 20  # the number of bytes of a file that are sent as one object
_WINDOW = 2  # parts that are in flight at once; each is read by a separate process, while that node is also training
_FIND_S = 120.0  # seconds that all nodes together may take to say whether they have a checkpoint


def read_part(path: str, offset: int, length: int) -> Any:
    """Return part of a local file as an array of bytes, which Ray does not copy. Run this on the node that has the file."""
    import numpy

    return numpy.fromfile(path, dtype=numpy.uint8, count=length, offset=offset)


def read_small(uris: Iterable[str]) -> list[bytes | None]:
    """Return the contents of these small files. Run this on the node that has them."""
    return [place(uri).read() for uri in uris]


def delete_all(uris: Iterable[str]) -> None:
    """Delete these checkpoints. Run this on the node that has them."""
    for uri in uris:
        try:
            checkpoints.delete(uri)
        except (CheckpointError, OSError) as error:
            log.info("the checkpoint at %s could not be deleted: %s", uri, error)


def local_path(uri: str) -> str:
    """Return the local path of a URI, with environment variables replaced by their values on this node."""
    return place(uri).path


def fetch(uri: str, node: str, target: str) -> checkpoints.Manifest:
    """Copy a committed checkpoint from a node's disk into a local directory.

    If the node is not alive in Ray now, all nodes are asked: a machine gets a new node id whenever Ray is restarted
    there.

    Raises:
        CheckpointLost: no node has the checkpoint. If the disk of `node` is gone, with everything on it, the error names
        the node.
        CheckpointUnreachable: a node that may have the checkpoint is not responding at the moment.
        CheckpointError: the files that arrived are damaged.
    """
    living = known_nodes()
    if living.get(node, False):
        content, marker = _ask(uri, node, read_small, checkpoints.manifest_and_marker(uri))
        if content is None or marker is None:
            raise CheckpointLost(f"node {node[:8]} no longer has a committed checkpoint at {uri}")
    else:
        node, content, marker = _find(uri, node, living)
    manifest = checkpoints.read_manifest(uri, content, marker)
    _fetch_files(uri, _ask(uri, node, local_path, uri), node, manifest.files, target)
    checkpoints.compare(uri, manifest, target)
    return manifest


def bring(path: str, node: str, files: Mapping[str, tuple[int, str]], target: str) -> None:
    """Copy files from the directory `path` on another node's disk to the local directory `target`, and remove `path`."""
    _fetch_files(path, path, node, files, target)
    checkpoints.compare(path, checkpoints.Manifest(files, {}), target)
    _ask(path, node, shutil.rmtree, path, True)


class Deletions:
    """Deletes checkpoints from the disks of other nodes.

    Requests that arrive while a node is busy deleting are collected and sent to it as one task: after the loss of a
    disk, there are thousands of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[str, asyncio.Future[None]]]] = {}  # node -> URIs that are not sent yet
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def delete(self, uri: str, node: str) -> None:
        """Delete a checkpoint from a node's disk, or from every disk if the node is not alive in Ray now; see `fetch`."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, []).append((uri, done))
        if node not in self._sending:
            self._sending[node] = asyncio.create_task(self._send(node))
        await done

    async def _send(self, node: str) -> None:
        try:
            while batch := self._waiting.pop(node, []):
                error: Exception | None = None
                try:
                    await _delete_everywhere([uri for uri, _ in batch], node)
                except Exception as raised:
                    error = raised
                for _, done in batch:
                    if not done.done() and error is None:
                        done.set_result(None)
                    elif not done.done() and error is not None:
                        done.set_exception(error)
        finally:
            del self._sending[node]


async def _delete_everywhere(uris: Sequence[str], node: str) -> None:
    living = await asyncio.to_thread(known_nodes)
    nodes = [node] if living.get(node, False) else [other for other, lives in living.items() if lives]
    await asyncio.gather(*(_delete(uris, each) for each in nodes))


async def _delete(uris: Sequence[str], node: str) -> None:
    deleting = on_node(node, delete_all, uris)
    try:
        await asyncio.wait_for(_answer(deleting), _DELETE_S + len(uris))
    except (ray.exceptions.RayError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            ray.cancel(deleting)  # it must not run later: a trial may use the checkpoint again
        why = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        if (await asyncio.to_thread(known_nodes)).get(node, False):
            raise CheckpointUnreachable(
                f"{counted(len(uris), 'checkpoint')} could not be deleted on node {node[:8]} ({uris[0]}, ...): {why}"
            ) from error
        log.info("%d checkpoints could not be deleted on node %s (%s, ...): %s", len(uris), node[:8], uris[0], why)


async def _answer(reference: Any) -> None:
    await reference


def known_nodes() -> dict[str, bool]:
    """Return, for each node that this Ray cluster has ever had, whether it is alive."""
    return {node["NodeID"]: node["Alive"] for node in ray.nodes()}


def _find(uri: str, node: str, living: Mapping[str, bool]) -> tuple[str, bytes, bytes]:
    """Return the live node that has a checkpoint, and the contents of its manifest and marker."""
    paths = checkpoints.manifest_and_marker(uri)
    asked = {on_node(other, read_small, paths): other for other, lives in living.items() if lives}
    silent: str | None = None
    waiting, until = list(asked), time.monotonic() + _FIND_S
    while waiting:
        answered, waiting = ray.wait(waiting, timeout=max(0.0, until - time.monotonic()))
        if not answered:
            silent = f"no answer from {len(waiting)} of {counted(len(asked), 'node')} within {_FIND_S:g} s"
            break
        try:
            content, marker = ray.get(answered[0])
        except ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else None
            # a CheckpointError: the path begins with a variable that is not set on that node
            silent = silent if isinstance(cause, CheckpointError) else str(error)
            continue
        if content is not None and marker is not None:
            return asked[answered[0]], content, marker
    if silent is not None:
        raise CheckpointUnreachable(f"a node that may have the checkpoint at {uri} cannot be reached: {silent}")
    if node in living:
        raise _disk_lost(uri, node)
    raise CheckpointLost(f"there is no committed checkpoint at {uri} on any node")


def _disk_lost(uri: str, node: str) -> CheckpointLost:
    return CheckpointLost(
        f"the checkpoint at {uri} was on the disk of node {node[:8]}, which is gone. To keep checkpoints when "
        "a node is lost, use storage that every node can reach: a shared directory or a URI",
        node=node,
    )


def _fetch_files(uri: str, folder: str, node: str, files: Mapping[str, tuple[int, str]], target: str) -> None:
    parts: deque[tuple[str, int, Any]] = deque()
    os.makedirs(target, exist_ok=True)
    for name, (size, _) in files.items():
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
        for offset in range(0, size, _PART):
            origin = os.path.join(folder, name)
            parts.append((path, offset, on_node(node, read_part, origin, offset, _PART)))
            if len(parts) >= _WINDOW:
                _take(uri, node, parts)
    while parts:
        _take(uri, node, parts)


def _take(uri: str, node: str, parts: deque[tuple[str, int, Any]]) -> None:
    path, offset, reference = parts.popleft()
    content = _wait(uri, node, reference)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(memoryview(content))


def _ask(uri: str, node: str, function: Any, *arguments: Any) -> Any:
    return _wait(uri, node, on_node(node, function, *arguments))


def _wait(uri: str, node: str, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        why = str(cause).strip().splitlines()[-1] if str(cause).strip() else type(cause).__name__
        if isinstance(cause, FileNotFoundError):
            raise CheckpointLost(f"node {node[:8]} no longer has all of the checkpoint at {uri}: {why}") from error
        if known_nodes().get(node, False):
            raise CheckpointUnreachable(
                f"the checkpoint at {uri} is on the disk of node {node[:8]}, which cannot be reached at the moment: {why}"
            ) from error
        raise _disk_lost(uri, node) from error
