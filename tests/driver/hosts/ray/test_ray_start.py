"""The Ray that tuner starts has only the processes that it needs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.services import until
from tuner.driver.hosts.ray import no_dashboard_agent, ray_start

HELPERS = ("monitor.py", "log_monitor.py", "dashboard.py", "agent.py")


def test_the_installed_ray_has_the_names_that_are_used() -> None:
    """A new version of Ray has moved them if this fails; until that is mended it is started with all its helpers."""
    assert ray_start.missing() == []


def test_only_the_agent_of_a_raylet_is_replaced() -> None:
    theirs = [
        sys.executable,
        "-u",
        "/a folder/dashboard/agent.py",
        "--session-dir=/a folder/session",
        "--node-id=n",
        "--head",
    ]
    command = ["raylet", "--num_cpus=2", "--dashboard_agent_command=" + subprocess.list2cmdline(theirs)]
    *same, replaced = (ray_start._without_agent(argument) for argument in command)
    assert same == command[:2]
    program, *arguments = shlex.split(replaced.removeprefix("--dashboard_agent_command="))
    assert program == sys.executable
    assert arguments[2] == no_dashboard_agent.__file__
    assert arguments[3:] == theirs[3:]


def test_the_replacement_says_that_no_port_is_in_use_and_ends_with_the_raylet(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys
agent = subprocess.Popen([sys.executable, "-S", "-E", {no_dashboard_agent.__file__!r}, "--session-dir={tmp_path}", "--node-id=n"])
print(agent.pid, flush=True)
sys.stdin.read()
"""
    raylet = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert raylet.stdout is not None
    assert raylet.stdin is not None
    agent = psutil.Process(int(raylet.stdout.readline()))
    ports = [tmp_path / f"{name}_n" for name in no_dashboard_agent.PORTS]
    until("ports", lambda: all(port.exists() for port in ports))
    assert [port.read_text() for port in ports] == ["-1"] * 3
    assert agent.is_running()
    raylet.kill()
    raylet.communicate()
    until("end", lambda: not agent.is_running())


@pytest.mark.ray
def test_a_ray_of_our_own_starts_no_helper(local_ray: None) -> None:
    import ray

    from tuner.driver.hosts.ray.cluster import connect

    assert not connect(), "the connection is kept"
    ours = psutil.Process(os.getpid()).children(recursive=True)
    programs = [os.path.basename(part) for process in ours for part in process.cmdline()[:4]]
    assert "raylet" in programs
    assert "no_dashboard_agent.py" in programs
    assert not set(programs) & set(HELPERS)

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"COLOUR": "red"}})
    def colour() -> str:
        return os.environ["COLOUR"]

    assert ray.get(colour.remote()) == "red", "the agent for runtime environments is there"
