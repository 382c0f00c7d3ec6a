"""A rank as a Ray actor, on any node of the cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
from typing import Any

import ray

from tuner.domain.events import CheckpointInfo
from tuner.domain.logs import LogLimit
from tuner.trials.checkpoints import transfer
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Bring
from tuner.trials.messages.forks import ask_for_torch, tell_used
from tuner.trials.messages.protocol import WorkerMetadata
from tuner.trials.messages.report_socket import Address
from tuner.trials.messages.rpc import RayDriver
from tuner.trials.runtime.calls import Calls
from tuner.trials.runtime.sending.uploads import MOST
from tuner.trials.runtime.threads import use_threads
from tuner.trials.runtime.worker import CONTROL, LASTING, Rank

GROUPS = {"control": 2, "lasting": MOST, "serial": 8}
"""The concurrency groups of a `RayRank`, each with its number of threads.

lasting: for each upload that outlives its segment, a call stays open until the upload has finished.
serial: the calls wait for each other in these threads. With one thread, a call that Ray has lost would be repeated, and then wait
    for the thread in which a later call waits for it.
"""


@functools.cache
def _hide_node_from_children() -> None:
    """Let processes that user code forks from this one drop the inherited connections to the Ray node.

    Ray notices that a worker has died when its connection ends. A living child process would hold the connection open,
    so that the death would go unnoticed until the child ends, too. `/dev/null` takes the place of each connection, so
    that the child does not reuse its number, under which Ray's code in the child may still write.
    """
    found = {number: os.fstat(number).st_ino for number in map(int, os.listdir("/dev/fd")) if leads_to_node(number)}
    for number in found:
        os.set_inheritable(number, False)  # for children that are not forked by Python, such as those of os.system

    def drop() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number, inode in found.items():
            with contextlib.suppress(OSError):
                # otherwise the connection has ended, and its number belongs to another file
                if os.fstat(number).st_ino == inode:
                    os.dup2(null, number, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=drop)


def leads_to_node(number: int) -> bool:
    """Return whether a file descriptor is a connection to a process of the Ray node. These processes listen in one folder."""
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with socket.socket(fileno=os.dup(number)) as connection:
            peer = connection.getpeername() if connection.family == socket.AF_UNIX else ""
            return isinstance(peer, str) and os.path.basename(os.path.dirname(peer)) == "sockets"
    return False


class RayRank(Rank):
    """A rank as a Ray actor. The methods in `CONTROL` have their own concurrency group, to answer while training runs."""

    def __init__(
        self, driver: Any, wants_torch: bool, report_address: Address | None = None, log_limit: LogLimit | None = None
    ) -> None:
        if wants_torch:
            ask_for_torch()
        use_threads()
        _hide_node_from_children()
        super().__init__(RayDriver(driver), wants_torch, report_address, log_limit)
        self._metadata: WorkerMetadata | None = None
        self._calls = Calls(lambda method, arguments: getattr(self, method)(*arguments))

    def hello(self, of_many: bool) -> WorkerMetadata:
        """Open the line to the driver and the channel of the ranks. The call is repeated if Ray loses its answer."""
        if self._metadata is None:
            if self._report_address is not None:
                self._calls.open_line(self._report_address, self._token)
            self._metadata = super().hello(of_many)
        return self._metadata

    @ray.method(concurrency_group="serial")
    def serial(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call one of the methods in `SERIAL` after the calls with lower numbers; see `Calls`.

        The arguments are in a tuple, because Ray would wait for an object reference that is itself an argument. The raylet
        says only once that the object is there. This message is lost if the port of this process was recently that of
        another worker, since gRPC then still takes the port for closed. The call would never run.
        """
        return self._calls.make(number, method, arguments)

    @ray.method(concurrency_group="control")
    def last_received(self) -> int:
        """Close the line over which the driver calls this rank. Return the number of the last call that came over it."""
        return self._calls.last_received()

    @ray.method(concurrency_group="lasting")
    def answer_to(self, number: int) -> Any:
        """Return the value of a call that came over the line, once the call has run."""
        return self._calls.answer_to(number)

    def reset(self) -> str | None:
        """Clean up after a segment (see `Rank.reset`), and tell the fork server what the segment has imported."""
        dirty = super().reset()
        tell_used()
        return dirty

    def node(self) -> str:
        """Return Ray's id of the node on which this rank runs."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def ip(self) -> str:
        """Return the IP address of the node on which this rank runs."""
        ip: str = ray.util.get_node_ip_address()
        return ip

    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs that Ray has assigned to this actor."""
        return tuple(str(gpu) for gpu in ray.get_gpu_ids())

    def bring(self) -> Bring:
        """Return the function that moves files from another node's disk to this node, through Ray's object store."""
        return transfer.bring

    def checkpoint_from(self, info: CheckpointInfo) -> Checkpoint:
        """Return the checkpoint to start from. If its files are on another node's disk, they are fetched on first use."""
        if info.node in (None, self.node()):
            return Checkpoint(info.uri, info=info)
        return Checkpoint(info.uri, info=info, fetch=functools.partial(transfer.fetch, info.uri, info.node))

    def unpacked(self, code: Any) -> bytes:
        """Return the pickled training function. code: the pickle, or a reference to it in Ray's object store."""
        found: bytes = code if isinstance(code, bytes) else ray.get(code)
        return found


for _name in CONTROL:
    setattr(RayRank, _name, ray.method(concurrency_group="control")(getattr(Rank, _name)))
for _name in LASTING:
    setattr(RayRank, _name, ray.method(concurrency_group="lasting")(getattr(Rank, _name)))
