from __future__ import annotations

import time
import typing
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.store.examples import a_spec
from tuner.api import schemas
from tuner.api.schemas.forms import WORDS, Model
from tuner.domain import decisions, events
from tuner.domain.batch import Batch
from tuner.domain.states import ExperimentState, TrialState
from tuner.store import Store


@pytest.mark.parametrize(
    ("shown", "known"),
    [
        (schemas.DecisionKind, decisions._KINDS),
        (schemas.Failure.model_fields["kind"].annotation, typing.get_args(events.FailureKind)),
        (schemas.Counts.model_fields, TrialState),
    ],
)
def test_the_api_knows_every_word_of_the_domain(shown: Any, known: Iterable[str]) -> None:
    words = typing.get_args(shown) or shown
    assert {str(word) for word in words} == {str(word) for word in known}


def test_a_field_that_means_the_same_in_every_model_is_described_once() -> None:
    models = [kind for kind in vars(schemas).values() if isinstance(kind, type) and issubclass(kind, Model)]
    assert len(models) > 40
    again = [
        f"{model.__name__}.{name}"
        for model in models
        for name in vars(model).get("__annotations__", {})
        if name in WORDS and model.model_fields[name].description == WORDS[name]
    ]
    assert again == [], "leave these descriptions out, since WORDS of tuner/api/schemas/forms.py has them"


def test_an_experiment_is_shown_anew_after_each_change_and_when_its_script_has_ended(sqlite_store: Store) -> None:
    now = time.time()
    made = sqlite_store.experiments.create(a_spec(), source="python")
    epoch = sqlite_store.drivers.claim(made.id, "driver", 60.0, now)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), now)
    running = sqlite_store.experiments.get(made.public_id)
    first = schemas.Experiment.of(running, [])
    assert schemas.Experiment.of(sqlite_store.experiments.get(made.public_id), []) is first
    assert schemas.Experiment.of(running, ["loss"]).metrics == ["loss"]
    with_trials = replace(running, counts={"running": 2})
    assert schemas.Experiment.of(with_trials, []).trials == 2
    assert "pause" in first.actions
    ended = schemas.Experiment.of(replace(running, lease_until=now - 1.0), [])
    assert ended.abandoned
    assert "pause" not in ended.actions
    assert "resume" in ended.actions


def test_a_model_with_a_text_that_is_not_utf8_is_shown() -> None:
    """One trial whose error named such a file had made the list of all trials fail, and the stream that the page reads."""
    failure = events.Failure(kind="user", message="no é\udce9.txt", stacks={"0\udce9": "é"})
    shown = schemas.Failure.model_validate(asdict(failure)).model_dump_json()
    assert '"message":"no é?.txt"' in shown
    assert '"0?":"é"' in shown
