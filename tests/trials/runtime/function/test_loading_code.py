"""A training function is loaded in a worker without starting the search of its module again."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tuner.errors import EntrypointError
from tuner.trials.messages.launch import CodeRef
from tuner.trials.runtime.function.code import load

SEARCHES = """
import tuner

def train(config):
    tuner.report({"loss": 1.0})

tuner.run(train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min")
"""


@pytest.mark.parametrize("blob", [None, b"csearches_when_loaded\ntrain\n."])
def test_a_module_that_starts_a_search_when_a_trial_imports_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blob: bytes | None
) -> None:
    (tmp_path / "searches_when_loaded.py").write_text(textwrap.dedent(SEARCHES))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    name = "searches_when_loaded:train" if blob is None else None
    with pytest.raises(EntrypointError, match='put the call of tuner.run below `if __name__ == "__main__":`'):
        load(CodeRef(hash="h", entrypoint=name), blob)
    assert not (tmp_path / "home").exists()


CALLS = {
    "tuner.resume": "tuner.resume('exp_1')",
    "Client.create": "Client('http://127.0.0.1:1').create({})",
    "AsyncClient.create": "asyncio.run(AsyncClient('http://127.0.0.1:1').create({}))",
    "Result.add": "Result.add(None, 5)",
}


@pytest.mark.parametrize("call", CALLS)
def test_nor_does_it_start_or_continue_one_in_another_way(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that resumed its own search waited for its own end, and each trial of a service created another search."""
    imports = (
        "import asyncio, tuner\nfrom tuner.client.asynchronous import AsyncClient\n"
        "from tuner.client.synchronous import Client\nfrom tuner.sdk.result import Result\n"
    )
    (tmp_path / "continues_when_loaded.py").write_text(imports + CALLS[call])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    with pytest.raises(EntrypointError, match=f"put the call of {call} below"):
        load(CodeRef(hash="h", entrypoint="continues_when_loaded:train"), None)
    assert not (tmp_path / "home").exists()
