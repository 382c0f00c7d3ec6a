"""The server that forks the processes of local trials."""

from __future__ import annotations

import socket
import subprocess
import sys


def test_the_server_ends_silently_if_the_script_ends_first() -> None:
    """A script with a mistake in its arguments ends before the server is ready. Its error must be the last thing it prints."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [sys.executable, "-m", "tuner.trials.runtime.local_rank", str(theirs.fileno())]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
