"""The table of verbs: what each does in each state, and that routes and commands follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from tests.store.examples import T0, a_spec, begin
from tuner.api import create_app
from tuner.cli.commands import app as cli
from tuner.domain.batch import Batch
from tuner.domain.events import Command
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import Conflict
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS, Verb, act, act_on_trial, actions
from tuner.settings import Settings
from tuner.store import Store


def in_state(store: Store, state: ExperimentState) -> str:
    made = store.experiments.create(a_spec(), source="api")
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    store.drivers.commit(made.id, epoch, Batch(log=[], state=state), T0)
    return made.public_id


def pending(store: Store, experiment: str) -> list[str]:
    return [command.command for command in store.commands.pending([store.experiments.get(experiment).id])]


@pytest.mark.parametrize("state", ExperimentState)
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_in_every_state(sqlite_store: Store, name: Command, state: ExperimentState) -> None:
    experiment = in_state(sqlite_store, state)
    offered = actions(sqlite_store.experiments.get(experiment), abandoned=False)
    if state in VERBS[name].refused and state not in VERBS[name].done:
        with pytest.raises(Conflict, match=f"{experiment} is {state} and cannot be {VERBS[name].past}"):
            act(sqlite_store, name, experiment)
        assert pending(sqlite_store, experiment) == []
    else:
        act(sqlite_store, name, experiment)
        assert pending(sqlite_store, experiment) == ([] if state in VERBS[name].done else [name])
    assert (name in offered) == (state not in {*VERBS[name].done, *VERBS[name].refused})


def test_a_verb_takes_back_the_one_that_it_undoes(sqlite_store: Store) -> None:
    experiment = in_state(sqlite_store, ExperimentState.RUNNING)
    for name in ("pause", "pause", "resume", "resume", "pause"):
        act(sqlite_store, name, experiment)  # type: ignore[arg-type]
    assert pending(sqlite_store, experiment) == ["pause", "resume", "pause"]


def test_stopping_a_trial_that_has_ended_does_nothing(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 2)
    trials[1].state = TrialState.COMPLETED
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    for trial in sqlite_store.trials.page(made.id).items:
        act_on_trial(sqlite_store, "stop", trial.public_id)
    (command,) = sqlite_store.commands.pending([made.id])
    assert (command.command, command.trial) == ("stop", 0)


def test_every_verb_is_a_route_and_a_command(sqlite_store: Store, tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path), sqlite_store)
    paths = app.openapi()["paths"]
    for verb in VERBS.values():
        assert paths[f"/api/v1/experiments/{{experiment_id}}/{verb.name}"]["post"]["summary"] == verb.summary
    for verb in TRIAL_VERBS.values():
        assert paths[f"/api/v1/trials/{{trial_id}}/{verb.name}"]["post"]["summary"] == verb.summary
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert all(f" {name} " in shown for name in get_args(Command))


def test_a_command_of_the_terminal(sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    experiment = in_state(sqlite_store, ExperimentState.RUNNING)
    done = CliRunner().invoke(cli, ["pause", "digits"])
    assert done.output == f"asked to pause digits ({experiment}), which is running\n"
    assert pending(sqlite_store, experiment) == ["pause"]
    assert "Usage: " in CliRunner().invoke(cli, ["stop", "--help"]).output


@pytest.mark.parametrize("verb", [VERBS["pause"], VERBS["resume"], TRIAL_VERBS["retry"]], ids=lambda verb: verb.name)
def test_a_button_after_which_trials_continue_says_what_happens_without_a_checkpoint(verb: Verb) -> None:
    assert verb.button is not None
    assert "from the beginning" in verb.button.effect
