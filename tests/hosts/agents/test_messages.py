"""The requests of agents: the checkpoints that they may name."""

from __future__ import annotations

import pytest

from tuner.hosts.agents.messages import is_within
from tuner.trials.checkpoints.storage import join

STORAGES = ["/shared/exp", "/shared/which?/exp", "/shared/100%25/exp", "file:///shared/exp", "s3://b/exp?region=eu-1"]


@pytest.mark.parametrize("storage", STORAGES)
def test_an_agents_checkpoint_is_below_the_storage_of_its_experiment(storage: str) -> None:
    assert is_within(storage, join(storage, "trial_00000", "one"))
    assert not is_within(storage, join(storage, "..", "other"))
    assert not is_within(storage, join(storage, "%2e%2e", "other"))
    assert not is_within(storage, join(storage, "..%2Fother"))
    assert not is_within(storage, join(storage, "trial_00000", ""))
    assert not is_within(storage, storage)
    assert not is_within(storage, join(storage.replace("shared", "other").replace("s3://b", "s3://c"), "one"))
