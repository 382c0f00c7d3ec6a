"""Start Ray's agent for runtime environments when the raylet first asks it for something. See `ray_start`.

The raylet accepts no work until this agent listens. The agent takes a while to import Ray, but only workers with a
`runtime_env` need it. So the raylet starts this file in its place, as a script without installed packages and with the
command of Ray's agent as arguments. The script listens on the agent's port. When the first request arrives, it starts
itself again with Ray's packages, becomes the agent, and answers the request. This script imports only the standard library.
"""

from __future__ import annotations

import os
import runpy
import select
import socket
import sys
from typing import Any

PORT = "runtime_env_agent_port"
"""The beginning of the name of the file, in Ray's session folder, from which the raylet reads the port."""
_LISTENER = "--listener="
_LOOK_S = 1.0  # how often to check that the raylet is alive, in seconds


def wait(command: list[str]) -> None:
    """Wait for the first request and become the agent with this command, or exit if the raylet has exited."""
    raylet = os.getppid()
    options = dict(argument[2:].split("=", 1) for argument in command if argument.startswith("--") and "=" in argument)
    ip, port = options["node-ip-address"], int(options["runtime-env-agent-port"])
    family, kind, protocol, _, address = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(128)
    path = os.path.join(options["session-dir"], f"{PORT}_{options['node-id']}")
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(str(listener.getsockname()[1]))
    os.replace(f"{path}.part", path)
    while not select.select([listener], [], [], _LOOK_S)[0]:
        if os.getppid() != raylet:
            return
    listener.set_inheritable(True)
    script = next(number for number, argument in enumerate(command) if argument.endswith(".py"))
    again = [*command[:script], __file__, f"{_LISTENER}{listener.fileno()}", *command[script:]]
    os.execv(again[0], again)


def become(listener: int, script: str) -> None:
    """Run the agent's script with this listening socket in place of the one that the script would bind."""

    class Bound(socket.socket):
        def bind(self, address: Any) -> None:
            os.dup2(listener, self.fileno())

    socket.socket = Bound  # type: ignore[misc]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Wait for the first request, or become the agent if this process has already waited for it."""
    if sys.argv[1].startswith(_LISTENER):
        listener = int(sys.argv.pop(1).removeprefix(_LISTENER))
        del sys.argv[0]
        become(listener, sys.argv[0])
    else:
        wait(sys.argv[1:])


if __name__ == "__main__":
    main()
