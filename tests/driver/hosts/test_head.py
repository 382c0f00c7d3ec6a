"""Ray's head without Ray: its commands, and which processes are its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuner.driver.hosts import head
from tuner.errors import ClusterUnreachable


def test_a_command_of_ray_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(head, "COMMAND_S", 0.2)
    with pytest.raises(ClusterUnreachable, match=r"`ray start` did not end within 0.2 s and was killed"):
        head._ray_command(tmp_path, "start", "--head")
