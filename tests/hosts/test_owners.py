"""Tell whether the owner of an experiment still lives, whatever the clock says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.hosts import owners
from tuner.hosts.owners import owner_is_dead, owner_name


def test_this_process_lives_and_one_that_has_ended_does_not() -> None:
    assert not owner_is_dead(owner_name())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = owner_name(child.pid)
    assert not owner_is_dead(name)
    child.communicate(b"\n")
    assert owner_is_dead(name)


def test_a_step_of_the_clock_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    name = owner_name()
    began = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: began + 3600)
    assert not owner_is_dead(name)


def test_another_process_under_the_same_number_is_not_the_owner() -> None:
    host, pid, started = owner_name().rsplit(":", 2)
    ticks, boot = started.split("@")
    assert owner_is_dead(f"{host}:{pid}:{int(ticks) - 1}@{boot}")


def test_what_cannot_be_told_counts_as_alive() -> None:
    _, pid, started = owner_name().rsplit(":", 2)
    ticks = started.split("@")[0]
    here = socket.gethostname()
    for name in (None, "", "nonsense", f"elsewhere:{pid}:{started}", f"{here}:{pid}:{ticks}@another-boot", "a:b:c@d"):
        assert not owner_is_dead(name), name


def test_names_of_the_version_before_are_understood() -> None:
    here, began = socket.gethostname(), psutil.Process().create_time()
    assert not owner_is_dead(f"{here}:{os.getpid()}:{began:.2f}")
    assert owner_is_dead(f"{here}:{os.getpid()}:{began - 50:.2f}")
    assert owner_is_dead(f"{here}:{2**22 + 1}:{began:.2f}")


def test_without_proc_the_time_of_the_start_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PROC", tmp_path)
    name = owner_name()
    assert name == f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.2f}"
    assert not owner_is_dead(name)
