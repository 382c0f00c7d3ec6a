"""Form gloo process groups that reuse the devices of the first group in the process.

A gloo device is a listening socket and the thread that serves it. PyTorch creates a new device for each group, and
destroys it with the group. This takes up most of the time for forming a group, and 20 ms in its destructor.
Connections, counters and pending messages belong to the group, so no state of a trial is shared through a device.

PyTorch has no public way to pass devices. This module is the only one that knows the private names; if a version of
PyTorch lacks them, each group creates its own devices.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

_SETTINGS = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "TORCH_GLOO_LAZY_INIT")
"""The environment variables that determine which devices a group gets."""

_USUAL = {"enable_reconfigure": False}  # PyTorch 2.15 passes it
"""Further arguments of a group that change nothing. A group with other ones creates its own devices."""

_kept: tuple[tuple[str | None, ...], Any, int] | None = None
"""The settings, the devices, and the number of threads of a group."""


@contextlib.contextmanager
def shared_devices() -> Iterator[None]:
    """Let the gloo groups that are formed in this block use the devices that `keep_devices` has kept, if there are any."""
    from torch.distributed import distributed_c10d

    real = getattr(distributed_c10d, "ProcessGroupGloo", None)
    if real is None or _kept is None or _kept[0] != _settings():
        yield
        return
    distributed_c10d.ProcessGroupGloo = _with_devices(real, *_kept[1:])
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = real


def keep_devices(group: Any) -> None:
    """Keep the devices of a process group for later groups, unless devices with the current settings are already kept."""
    global _kept
    if _kept is not None and _kept[0] == _settings():
        return
    import torch

    # The group may have no gloo backend, or PyTorch may use other names.
    with contextlib.suppress(AttributeError, RuntimeError):
        options = group._get_backend(torch.device("cpu")).options
        _kept = _settings(), options._devices, options._threads


def _settings() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _SETTINGS))


def _with_devices(real: Any, devices: Any, threads: int) -> Any:
    """Return a class of gloo groups that use these devices. PyTorch can construct it like its own class."""

    class ProcessGroupGloo(real):
        def __init__(self, store: Any, rank: int, size: int, timeout: Any, **more: Any) -> None:
            if any(name not in _USUAL or value != _USUAL[name] for name, value in more.items()):
                super().__init__(store, rank, size, timeout, **more)
                return
            options = real._Options()
            options._devices, options._threads, options._timeout = devices, threads, timeout
            super().__init__(store, rank, size, options)

    return ProcessGroupGloo
