"""Run in place of Ray's dashboard agent, and tell the raylet that the agent is not in use. See `ray_start`.

The raylet starts this file as a script, with the options of Ray's agent but without installed packages, so the script imports
only the standard library.
"""

from __future__ import annotations

import os
import sys
import time

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""The names of files in Ray's session folder for which the raylet waits. Each contains a port, or -1 for an unused service."""
_LOOK_S = 1.0  # how often to check that the raylet is alive, in seconds


def main() -> None:
    """Write the port files, and run until the raylet exits. The raylet would exit, too, if this process exited first."""
    raylet = os.getppid()
    options = dict(
        argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--") and "=" in argument
    )
    for name in PORTS:
        path = os.path.join(options["session-dir"], f"{name}_{options['node-id']}")
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write("-1")
        os.replace(f"{path}.part", path)
    while os.getppid() == raylet:
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
