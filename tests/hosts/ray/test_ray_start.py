"""The Ray that tuner starts has only the processes that it needs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.services import until
from tuner.hosts.ray import fork_client, late_agent, no_dashboard_agent, ray_start
from tuner.hosts.ray.fork_server import FORKS, ForkServer
from tuner.sdk.live.interrupts import Interrupts

HELPERS = ("monitor.py", "log_monitor.py", "dashboard.py", "agent.py")


def test_the_installed_ray_has_the_names_that_are_used() -> None:
    """A new version of Ray has moved them if this fails; until that is mended it is started with all its helpers."""
    assert ray_start.missing() == []


def test_the_files_of_a_ray_are_where_the_paths_of_its_sockets_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No service became ready if the path of TMPDIR had more than some 15 characters."""
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert ray_start.temporary("ray") == ray_start.temporary("tuner-ray-0-0123456789abcdef") == "/scratch"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/job.1234567")
    assert ray_start.temporary("ray") == "/scratch/job.1234567"
    assert ray_start.temporary("tuner-ray-0-0123456789abcdef") == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/" + "é" * 20)
    assert ray_start.temporary("ray") == "/tmp"


def test_the_agents_of_a_raylet_are_replaced() -> None:
    theirs = [
        sys.executable,
        "-u",
        "/a folder/dashboard/agent.py",
        "--session-dir=/a folder/session",
        "--node-id=n",
        "--head",
    ]
    line = subprocess.list2cmdline(theirs)
    command = ["raylet", "--num_cpus=2", f"--dashboard_agent_command={line}", f"--runtime_env_agent_command={line}"]
    *same, dashboard, environments = (ray_start._with_our_agents(argument) for argument in command)
    assert same == command[:2]
    program, *arguments = shlex.split(dashboard.removeprefix("--dashboard_agent_command="))
    assert program == sys.executable
    assert arguments[2] == no_dashboard_agent.__file__
    assert arguments[3:] == theirs[3:]
    program, *arguments = shlex.split(environments.removeprefix("--runtime_env_agent_command="))
    assert program == sys.executable
    assert arguments[2] == late_agent.__file__
    assert arguments[3:] == theirs, "it starts the agent with the whole command"


def test_only_the_script_of_a_raylets_workers_is_replaced() -> None:
    theirs = [
        sys.executable,
        "/ray/setup_worker.py",
        "-s",
        "/a folder/default_worker.py",
        "--raylet-name=/a folder/raylet",
    ]
    command = ["raylet", "--num_cpus=2", "--python_worker_command=" + subprocess.list2cmdline(theirs)]
    *same, replaced = (ray_start._forking(argument, "/a folder/forks") for argument in command)
    assert same == command[:2]
    found = shlex.split(replaced.removeprefix("--python_worker_command="))
    assert found == [*theirs[:3], "-S", "-E", fork_client.__file__, "/a folder/forks", *theirs[3:]]
    unknown = "--python_worker_command=python worker_of_the_future.py"
    assert ray_start._forking(unknown, "/a folder/forks") == unknown


def test_the_name_of_a_raylet_that_has_ended_can_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of the second node were not forked, because the socket of the first one's server was still there."""
    monkeypatch.setattr(ForkServer, "__init__", lambda server: None)
    monkeypatch.setattr(ForkServer, "_tell", lambda server, message, files=(): told.append(len(files)))
    told: list[int] = []

    def start(command: list[str], **options: Any) -> SimpleNamespace:
        return SimpleNamespace(process=SimpleNamespace(pid=1))

    for _ in range(2):
        ray_start._start_process(start, ForkServer(), ["raylet", f"--raylet_socket_name={tmp_path / 'raylet.1'}"])
    assert told == [1, 0, 1, 0], "each server listens, and is told of its raylet"


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


def test_nested_blocks_start_processes_from_any_thread() -> None:
    """The thread that starts Ray's processes waited for itself."""
    from ray._private import services

    statuses: list[int] = []
    with ray_start.without_helpers(), ray_start.without_helpers():
        search = threading.Thread(target=lambda: statuses.append(services.ConsolePopen(["true"]).wait()), daemon=True)
        search.start()
        search.join(60)
    assert statuses == [0]


@pytest.mark.ray
def test_a_search_hears_the_sigterm_that_rays_own_handler_would_take(local_ray: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert before.__module__.startswith("ray."), before
    with Interrupts(lambda name: None) as interrupts, interrupts.heard():
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.ends == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.ray
def test_a_ray_of_our_own_starts_no_helper(local_ray: None) -> None:
    import ray

    from tuner.hosts.ray.cluster import connect

    assert not connect(), "the connection is kept"
    ours = psutil.Process(os.getpid()).children(recursive=True)
    programs = [os.path.basename(part) for process in ours for part in process.cmdline()[:4]]
    raylet = next(process for process in ours if process.name() == "raylet")
    assert int(raylet.environ()["RAY_worker_register_timeout_seconds"]) > 60, (
        "or `ray.init` hangs if workers start slowly"
    )
    assert "no_dashboard_agent.py" in programs
    assert not set(programs) & set(HELPERS)
    groups = {os.getpgid(process.pid) for process in ours}
    assert os.getpgid(0) not in groups, "a signal to the group of a script, as from its terminal, spares Ray"
    titles = [" ".join(process.cmdline()) for process in ours]
    assert not any("RuntimeEnvAgent" in title for title in titles), "it is started when it is needed"

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"COLOUR": "red"}})
    def colour() -> str:
        return os.environ["COLOUR"]

    assert ray.get(colour.remote()) == "red", "the agent for runtime environments is there"

    @ray.remote(num_cpus=0)
    def parent() -> int:
        return os.getppid()

    if FORKS:  # otherwise each Ray of the tests would spend seconds on imports again
        seeded = "tests.seeds" in " ".join(psutil.Process(ray.get(parent.remote())).cmdline())
        assert seeded, "the server that forks the workers is itself a fork"
