"""`tuner.observe`: call callbacks with the log of any search, while it runs or afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tuner.client.synchronous import Client
from tuner.domain.states import ExperimentState
from tuner.errors import SpecError
from tuner.experiment.operations.usecases import id_of
from tuner.names import keywords_explained
from tuner.sdk.callbacks.observers import LogSource, Observers, StoredLog
from tuner.sdk.cautions import checked_callbacks
from tuner.sdk.remote import ServedLog
from tuner.sdk.saved import database
from tuner.settings import Settings

__all__ = ["observe"]

LOOK_S = 0.5


@keywords_explained
def observe(
    experiment: str, callbacks: Sequence[Any], *, address: str | Client | None = None, follow: bool = True
) -> None:
    """Call callbacks with the entries of an experiment's log, until the experiment has ended or is paused.

    Each callback continues where it stopped in an earlier call. Experiments that have ended can be observed too, so an old
    search can be sent to MLflow or written to CSV files.

        tuner.observe("digits", [tuner.callbacks.MLflowLoggerCallback("sqlite:///mlflow.db")])

    Args:
        experiment: ``exp_...``, or the experiment's name if no other experiment has it.
        callbacks: as for `tuner.run`. Each callback's position in the log is kept in the home, under the name of the
            callback's class.
        address: URL of a service that has the experiment, or a client returned by `tuner.connect`. None: this home's database.
        follow: True to follow a running experiment. False: return once the callbacks have received all entries that are now in
            the log.

    Raises:
        NotFound: there is no such experiment.
        SpecError: an item of `callbacks` is not a callback.
    """
    several = checked_callbacks(callbacks)
    if not several:
        raise SpecError("expected at least one callback, got none", "/callbacks")
    with ExitStack() as stack:
        source: LogSource
        if address is None:
            store = stack.enter_context(database())
            source = StoredLog(store, id_of(store, experiment))
        else:
            client = address if isinstance(address, Client) else stack.enter_context(Client(address))
            source = ServedLog(client.experiment(experiment))
        found = source.experiment()
        observers = Observers(several, source, found.public_id, Settings.from_env().home, _say)
        with observers:
            while follow and not (found.state.ended or found.state is ExperimentState.PAUSED):
                time.sleep(LOOK_S)
                found = source.experiment()
            observers.finish(None)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
