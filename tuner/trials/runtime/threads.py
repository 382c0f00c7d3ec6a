"""The number of threads that numerical libraries use in a rank's process."""

from __future__ import annotations

import os
import sys

from threadpoolctl import threadpool_limits


def use_threads() -> None:
    """Set the thread count of already loaded libraries to OMP_NUM_THREADS, which Ray sets to the rank's number of CPUs.

    Libraries read this variable only when they are loaded, and the server that forks Ray's workers loads some of them
    with a single thread.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if not wanted.isdigit() or int(wanted) < 1:  # the variable is not set, or is a list for nested levels
        return
    if "numpy" in sys.modules:
        threadpool_limits(int(wanted), user_api="blas")
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != int(wanted):
        torch.set_num_threads(int(wanted))
