"""Open so many files that the next file descriptors are above 1,023, as in a service with many clients."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

COUNT = 1024


@contextmanager
def many_open_files() -> Iterator[None]:
    """Keep `COUNT` files open during a `with` block. Skip the test if this process may not open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * COUNT:
        pytest.skip(f"this process may open only {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * COUNT), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(COUNT)]
    try:
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
