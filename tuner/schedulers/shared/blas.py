"""Limit the threads of BLAS while a scheduler computes with small matrices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_limits: list[AbstractContextManager[object]] = []  # one for each thread inside `one_thread`


@functools.cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # has a BLAS of its own, which the controller knows only if it is loaded

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread in the `with` block.

    The matrices of the models are small. On a busy machine, several threads use ten times the CPU of one, because they wait
    for each other in busy loops. The limit holds for the whole process. If several threads are inside such a block, the last
    one that leaves it ends the limit.
    """
    libraries = _libraries()
    with _lock:
        # Each limit remembers the number of threads before it. So they end in the reverse order, whichever thread leaves first.
        _limits.append(libraries.limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            _limits.pop().__exit__(None, None, None)
