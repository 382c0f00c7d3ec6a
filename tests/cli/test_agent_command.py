"""Arguments that `tuner agent` refuses before it asks the service for a trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.cli.agent import work
from tuner.errors import SpecError
from tuner.settings import Settings


@pytest.mark.parametrize(
    ("storage", "message"),
    [("s4://bucket", "unknown kind of storage s4://"), ("s3://key:secret@bucket", "the URI contains a password")],
)
def test_a_storage_that_cannot_be_used_is_refused_at_once(tmp_path: Path, storage: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        work("http://127.0.0.1:1", None, "x", storage=storage, settings=Settings(home=tmp_path), say=print)
    ((pointer, said),) = caught.value.errors
    assert (pointer, said.startswith(message), "secret" in said) == ("/storage", True, False)
