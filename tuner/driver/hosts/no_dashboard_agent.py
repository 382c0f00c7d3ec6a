"""Take the place of the agent of Ray's dashboard, and tell the raylet that it is not in use. See `ray_start`.

The raylet starts this file as a script, so it imports nothing but the standard library. Its options are those of Ray's agent.
"""

from __future__ import annotations

import os
import sys
import time

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""The files in Ray's session folder that the raylet waits for. Each has a port, or -1 for a service that is not in use."""
_LOOK_S = 1.0  # how often it looks whether the raylet lives


def main() -> None:
    """Write the ports, and end when the raylet does: the raylet would end if its agent did."""
    raylet = os.getppid()
    options = dict(
        argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--") and "=" in argument
    )
    for name in PORTS:
        path = os.path.join(options["session-dir"], f"{name}_{options['node-id']}")
        with open(f"{path}.part", "w") as file:
            file.write("-1")
        os.replace(f"{path}.part", path)
    while os.getppid() == raylet:
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
