"""Test the driver host as an actor of Ray."""

from __future__ import annotations

import inspect
import subprocess
import sys

from tuner.hosts.actor import METHODS, HostActor
from tuner.hosts.host import Host


def test_each_method_is_one_of_the_host() -> None:
    for name in METHODS:
        assert inspect.iscoroutinefunction(getattr(Host, name)), name
        assert inspect.iscoroutinefunction(getattr(HostActor, name)), name
    assert [name for name in vars(HostActor) if not name.startswith("_")] == list(METHODS)


def test_who_has_a_handle_does_not_load_the_host() -> None:
    code = "import sys, tuner.hosts.actor; print([n for n in ('sqlalchemy', 'numpy', 'pydantic') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
