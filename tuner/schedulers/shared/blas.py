"""Limit the threads of BLAS while a scheduler computes with small matrices."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # has a BLAS of its own, which the controller knows only if it is loaded

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread.

    The matrices of the models are small. On a busy machine, several threads use ten times the CPU of one, because they wait
    for each other in busy loops.
    """
    found: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return found
