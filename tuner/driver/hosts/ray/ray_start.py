"""Start Ray without the helper processes that this project does not need.

Besides the GCS server and the raylet, Ray starts five Python processes on a head node, and each of them imports Ray: the
autoscaler, the log monitor, the dashboard's server (even if there is no dashboard), the dashboard's agent, and the agent for
runtime environments. The raylet accepts no work before both agents are up. This project needs only the agent for runtime
environments, so `without_helpers` leaves out the other four. A small process replaces the dashboard's agent. It tells the
raylet that the agent is not in use, as Ray's own agent does if the dashboard is not installed.

`python -m tuner.driver.hosts.ray.ray_start start --head ...` does the same as `ray start --head ...`, without these helpers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NODE = "ray._private.node"
SERVICES = "ray._private.services"
PRIVATE: Mapping[str, tuple[str, ...]] = {NODE: ("Node",), SERVICES: ("start_ray_process",)}
"""The private names of Ray's modules that this module uses, by module."""
STARTERS = ("start_monitor", "start_log_monitor", "start_api_server")
"""The methods of Ray's `Node` that start the helper processes that are left out."""

_AGENT_OPTION = "--dashboard_agent_command="
_AGENT = str(Path(__file__).with_name("no_dashboard_agent.py"))


def missing() -> list[str]:
    """Return a message for each private name that this version of Ray lacks. If one is missing, Ray starts with all helpers."""
    found = []
    for module, names in PRIVATE.items():
        loaded = importlib.import_module(module)
        found += [f"{module}.{name} is gone" for name in names if not hasattr(loaded, name)]
    node = getattr(importlib.import_module(NODE), "Node", None)
    return found + [f"{NODE}.Node.{name} is gone" for name in STARTERS if not hasattr(node, name)]


@contextlib.contextmanager
def without_helpers() -> Iterator[None]:
    """Let this process start Ray without the needless helper processes, within a `with` block."""
    if missing():
        yield
        return
    node: Any = importlib.import_module(NODE).Node
    services: Any = importlib.import_module(SERVICES)
    with contextlib.ExitStack() as stack:
        for name in STARTERS:
            stack.callback(setattr, node, name, getattr(node, name))
            setattr(node, name, _start_nothing)
        start = services.start_ray_process
        stack.callback(setattr, services, "start_ray_process", start)
        services.start_ray_process = functools.partial(_start_process, start)
        yield


def _start_nothing(node: Any, **options: Any) -> None:
    """Do nothing, in place of a method of Ray's `Node` that starts a helper process."""


def _start_process(start: Callable[..., Any], command: Sequence[str], *args: Any, **options: Any) -> Any:
    """Call Ray's `start_ray_process`. In the command line of a raylet, replace the command of the dashboard's agent."""
    return start([_without_agent(argument) for argument in command], *args, **options)


def _without_agent(argument: str) -> str:
    if not argument.startswith(_AGENT_OPTION):
        return argument
    theirs = shlex.split(argument.removeprefix(_AGENT_OPTION))
    ours = [sys.executable, "-S", "-E", _AGENT, *(option for option in theirs if option.startswith("--"))]
    return _AGENT_OPTION + subprocess.list2cmdline(ours)


def main() -> None:
    """Run Ray's command-line interface, with the arguments of this process and without the needless helper processes."""
    from ray.scripts.scripts import main as ray

    with without_helpers():
        ray()


if __name__ == "__main__":
    main()
