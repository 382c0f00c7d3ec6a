"""The commands for verbs such as `tuner pause`, on the database of this home."""

from __future__ import annotations

from tuner.experiment.usecases import id_of
from tuner.experiment.verbs import VERBS, Verb, act, act_on_trial
from tuner.settings import Settings
from tuner.store import Store


def ask(settings: Settings, verb: Verb, name: str) -> str:
    """Send a verb such as "pause" to the experiment or trial with this id or name. Return a line for the terminal."""
    with Store.open(settings.database_url) as store:
        store.migrate()
        if verb.name not in VERBS or name.startswith("trl_"):
            trial = act_on_trial(store, verb.name, name)
            return f"asked to {verb.name} {trial.public_id}, which is {trial.state}"
        record = act(store, verb.name, id_of(store, name))
        return f"asked to {verb.name} {record.public_id}, which is {record.state}"
