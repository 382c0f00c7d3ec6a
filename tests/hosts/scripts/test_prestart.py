"""Test processes that are started before they are needed."""

from __future__ import annotations

import sys

import psutil
import pytest

from tuner.hosts.scripts import prestart


def test_what_was_started_early_is_taken_once_and_only_if_it_inherited_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prestart.drop()
    prestart.start(1)
    prestart.start(1)
    first = prestart.take()
    assert prestart._early is None
    prestart.start(1)
    monkeypatch.setattr(sys, "path", [*sys.path, "/another"])
    assert prestart._early is not None
    stale = prestart._early[0]
    second = prestart.take()
    assert second is not stale
    assert not psutil.pid_exists(stale.pid)
    for server in (first, second):
        server.kill()
        assert not psutil.pid_exists(server.pid)
