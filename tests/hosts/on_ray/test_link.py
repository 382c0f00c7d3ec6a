"""Test the messages of the process that talks to Ray for a service."""

from __future__ import annotations

import pytest
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
