"""The number of threads that numerical libraries use in a rank's process."""

from __future__ import annotations

import os
import sys

from threadpoolctl import threadpool_limits


def use_threads() -> None:
    """Give libraries that were loaded before the threads that OMP_NUM_THREADS says, which Ray sets to the rank's CPUs.

    Libraries read this variable when they are loaded. The server that forks Ray's workers loads some of them with one thread.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if not wanted.isdigit() or int(wanted) < 1:  # not set, or a list for nested levels
        return
    if "numpy" in sys.modules:
        threadpool_limits(int(wanted), user_api="blas")
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != int(wanted):
        torch.set_num_threads(int(wanted))
