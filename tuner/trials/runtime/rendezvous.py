"""Set up torch.distributed for a worker group before the training function runs, and tear it down afterwards."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import queue
import socket
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil

from tuner.errors import MissingPackage, TunerError, text_of
from tuner.names import with_extra
from tuner.trials.messages.channel import ChannelClient, ChannelServer
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime.gloo_devices import keep_devices, shared_devices

_TIMEOUT = timedelta(minutes=30)


OURS = "tuner/"


@dataclass(slots=True)
class _Rendezvous:
    """The store through which the ranks of a worker group form process groups. runs: how many groups they have formed.

    All trials of the worker group use the same store, because a new connection would require host name lookups.
    """

    link: ChannelServer | ChannelClient | None
    store: Any
    host: str
    port: int
    runs: int = 0

    def prefix(self) -> str:
        """Return the prefix of the keys that `tuner` uses in the store for the current trial."""
        return f"{OURS}{self.runs}/"


_meeting: _Rendezvous | None = None
_ours: Any = None  # the default process group that `join` has created
_left: list[Any] = []  # the process groups that `leave` has torn down, until `free` frees their memory
_unused_keys: list[str] = []  # the keys of the last group in the store, until `free` deletes them
_freeing: queue.SimpleQueue[tuple[list[Any], list[str]]] | None = None  # the input of the thread that frees groups


def import_torch() -> None:
    """Import PyTorch, if it is installed."""
    if importlib.util.find_spec("torch") is not None:
        import torch.distributed  # noqa: F401

        give_way()


def give_way() -> None:
    """Let a call to `init_process_group` in user code replace the process group that `tuner` set up.

    Scripts for torchrun make such a call. Call this before user code is loaded, because user code may import
    `init_process_group` by name. Repeated calls have no effect.
    """
    from torch import distributed

    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    real = distributed_c10d.init_process_group
    if hasattr(real, "__wrapped__") and real.__globals__ is globals():
        return

    @functools.wraps(real)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if _ours is not None and distributed.is_initialized() and distributed.group.WORLD is _ours:
            distributed.destroy_process_group()
        real(*args, **kwargs)

    distributed.init_process_group = distributed_c10d.init_process_group = init_process_group


def join(
    assignment: RankAssignment, segment_id: str, server: ChannelServer | None, client: ChannelClient | None
) -> None:
    """Set up the process group for a segment. Every rank of the worker group must call this once for each segment."""
    global _meeting, _ours
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise MissingPackage(
            f"{assignment.world_size} ranks need a process group of PyTorch, which is not installed: {with_extra('torch')}, "
            "or set backend='none' if the code needs no process group"
        ) from error

    give_way()

    use_device(assignment)
    if _meeting is None or _meeting.link is not (server or client):
        _meeting = _meet(assignment, server, client)
    meeting = _meeting
    meeting.runs += 1
    # torchrun sets these variables too. Through them, init_process_group("env://") in user code finds this store.
    os.environ.update(
        MASTER_ADDR=meeting.host,
        MASTER_PORT=str(meeting.port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT=str(meeting.runs),
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID=segment_id,
    )
    with shared_devices():
        dist.init_process_group(
            assignment.backend,
            store=dist.PrefixStore(meeting.prefix().rstrip("/"), meeting.store),
            rank=assignment.rank,
            world_size=assignment.world_size,
            timeout=_TIMEOUT,
        )
    _ours = dist.group.WORLD
    keep_devices(_ours)


def use_device(assignment: RankAssignment) -> None:
    """Make this rank's GPU the current device of the calling thread, if its trial has a process group and PyTorch is imported.

    If PyTorch finds no GPU, do nothing, unless the ranks need one because they use NCCL; then raise TunerError.
    """
    torch = sys.modules.get("torch")
    if torch is None or not assignment.devices or assignment.backend == "none":
        return
    if assignment.backend == "nccl" or torch.cuda.is_available():
        take_device(assignment)


def take_device(assignment: RankAssignment) -> None:
    """Make this rank's GPU the current device.

    Raise TunerError if PyTorch finds no GPU although Ray has assigned one to this rank.
    """
    import torch

    if not torch.cuda.is_available():
        build = "" if torch.version.cuda or torch.version.hip else " (built without CUDA)"
        gpu = assignment.gpus[assignment.devices[0]]
        raise TunerError(f"Ray gave this rank the GPU {gpu}, but torch {torch.__version__}{build} finds no GPU here")
    torch.cuda.set_device(assignment.devices[0])


def _meet(assignment: RankAssignment, server: ChannelServer | None, client: ChannelClient | None) -> _Rendezvous:
    """On rank 0, open the worker group's store on a free port; on other ranks, connect to rank 0's store."""
    import torch.distributed as dist

    if client is not None:
        host, port = _announced(client)
        return _Rendezvous(
            client, dist.TCPStore(host, port, assignment.world_size, False, timeout=_TIMEOUT), host, port
        )
    host = server.address[0] if server is not None and assignment.nodes > 1 else "127.0.0.1"
    store = dist.TCPStore(host, 0, assignment.world_size, True, timeout=_TIMEOUT, wait_for_workers=False)
    if server is not None:
        server.broadcast(("store", host, store.port))
    return _Rendezvous(server, store, host, store.port)


def _announced(client: ChannelClient) -> tuple[str, int]:
    """Wait until rank 0 announces its store, and return the store's address.

    There is no time limit: rank 0 may first import modules or fetch a checkpoint, and the manager limits how long a start takes.
    """
    while True:
        kind, *rest = client.verdicts.receive()
        if kind == "store":
            return rest[0], rest[1]


def leave() -> None:
    """Tear down all process groups, including those of user code. The ranks may call `join` again afterwards."""
    global _ours
    _ours = None
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return
    if dist.is_initialized():
        _left.append(dist.group.WORLD)
        if dist.get_backend() == "gloo":
            with contextlib.suppress(Exception):
                _left.append(dist.group.WORLD._get_backend(_cpu()))
        dist.destroy_process_group()
    if _meeting is not None and not isinstance(_meeting.link, ChannelClient) and hasattr(_meeting.store, "list_keys"):
        # Other ranks may already be joining for the next segment, so delete only the keys of this one. Also delete the
        # keys of init_process_group("env://") in user code, which no rank uses again before this rank has joined.
        mine = _meeting.prefix()
        for key in _meeting.store.list_keys():
            if key.startswith(mine):
                _unused_keys.append(key)
            elif not key.startswith(OURS):
                _meeting.store.delete_key(key)


def free() -> None:
    """Free the process groups that `leave` has torn down, and the keys of the last one in the store, in another thread.

    The destructor of a gloo group with its own device waits 20 ms for the device's thread. So call this only after a
    garbage collection, which drops the training code's references to the group, such as those in a DDP model. Otherwise
    the garbage collection would run the destructor in the calling thread.
    """
    global _left, _unused_keys, _freeing
    (left, _left), (keys, _unused_keys) = (_left, []), (_unused_keys, [])
    if not left and not keys:
        return
    if _freeing is None:
        _freeing = queue.SimpleQueue()
        threading.Thread(target=_free, args=(_freeing,), name="tuner-free-groups", daemon=True).start()
    _freeing.put((left, keys))


def _free(freeing: queue.SimpleQueue[tuple[list[Any], list[str]]]) -> None:
    while True:
        left, keys = freeing.get()
        left.clear()
        if _meeting is not None:
            for key in keys:
                with contextlib.suppress(Exception):  # the store may be broken; the worker group is then shut down
                    _meeting.store.delete_key(key)


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


def choose_interface(ip: str) -> None:
    """Make gloo use the network interface with this IP address, instead of the one to which the host name resolves.

    Host names often resolve to the loopback interface, which cannot reach other nodes.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family == family and address.address == ip for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            return


_ECHOES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "socket closed",
    "broken pipe",
    "remote process exited",
    "connection was closed",
    "recvvalue failed",
    "sendbytes failed",
)


def is_echo(error: BaseException) -> bool:
    """Return whether an error in a collective was most likely caused by another rank's exit."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"DistNetworkError", "DistBackendError", "DistStoreError"}:
        return True
    text = text_of(error).lower()
    return isinstance(error, RuntimeError) and any(echo in text for echo in _ECHOES)
