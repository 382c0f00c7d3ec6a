"""Test the messages of the process that talks to Ray for a service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from tuner.hosts.on_ray import link
from tuner.hosts.on_ray.link import Link
from tuner.settings import Settings


class Unlike(RayActorError):
    """The death of a host in a Ray that has loaded another version of tuner."""

    def __str__(self) -> str:
        return (
            "ray::HostActor.__init__()\nTypeError: HostActor.__init__() takes 3 positional arguments but 4 were given"
        )


@pytest.mark.parametrize(
    ("address", "advice"),
    [(None, "`tuner serve --stop`"), ("10.0.0.1:6379", "start the service without --ray-address and RAY_ADDRESS")],
)
def test_the_log_of_a_service_says_what_to_do_about_a_ray_with_another_version(
    monkeypatch: pytest.MonkeyPatch, address: str | None, advice: str
) -> None:
    """It said to leave ray_address out, which is an argument of `tuner.run`."""

    def start(self: Link) -> None:
        raise Unlike

    told: list[dict[str, str]] = []
    monkeypatch.setattr(Link, "_start_host", start)
    monkeypatch.setattr(link, "CHECK_S", 0.0)
    Link(Settings(ray_address=address), False, lambda **news: told.append(news)).look_after()
    [news] = told
    assert "have another version of tuner" in news["log"]
    assert advice in news["log"]
    assert "ray_address" not in news["log"]


def test_a_host_is_not_asked_for_news_while_the_service_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host took its agents, which could not reach it through the stopped service, for lost."""
    service = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    waits: list[str] = []
    asked: list[str] = []

    def wait(refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        """Stop the service before the second look, and let it go on before the fourth."""
        waits.append("look")
        if len(waits) in (2, 4):
            os.kill(service.pid, signal.SIGSTOP if len(waits) == 2 else signal.SIGCONT)
            while (psutil.Process(service.pid).status() == psutil.STATUS_STOPPED) is not (len(waits) == 2):
                pass
        return (refs, []) if len(waits) == 5 else ([], refs)

    def method(name: str) -> SimpleNamespace:
        def remote(**options: object) -> str:
            asked.append(f"{name} at look {len(waits)}")
            return name

        return SimpleNamespace(remote=remote)

    host = SimpleNamespace(**{name: method(name) for name in ("start", "live", "news", "metrics")})
    monkeypatch.setattr(Link, "_start_host", lambda self: host)
    monkeypatch.setattr(link, "load_host", lambda: None)
    monkeypatch.setattr(os, "getppid", lambda: service.pid)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda refs, timeout=None: refs)
    try:
        Link(Settings(), False, lambda **news: None).look_after()
    finally:
        service.kill()
        service.communicate()
    assert [what for what in asked if what.startswith("news")] == ["news at look 1", "news at look 4"]
