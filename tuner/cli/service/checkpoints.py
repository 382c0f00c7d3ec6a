"""`tuner checkpoints`, `pin` and `unpin`, on a service or on the database of this home."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal

from tuner.api.schemas import CheckpointItem
from tuner.cli.json_text import dumps
from tuner.cli.service.experiments import connected
from tuner.domain.keys import trial_id
from tuner.experiment.operations import trials
from tuner.experiment.operations.usecases import id_of
from tuner.settings import Settings
from tuner.store import Store

State = Literal["uploading", "ready", "deleted"]


def lines(
    settings: Settings,
    experiment: str,
    trial: int | None,
    state: State | Literal["all"],
    limit: int,
    as_json: bool = False,
) -> Iterator[str]:
    """Yield a line for the terminal, or a JSON object, for each checkpoint, newest first.

    Args:
        settings: the settings. With an address, the service there is asked, else the database of this home.
        experiment: the id or name of the experiment.
        trial: only checkpoints of the trial with this number. None: of all trials.
        state: only checkpoints in this state, or "all".
        limit: yield at most this many.
        as_json: yield JSON objects.
    """
    wanted = None if state == "all" else state
    found = (
        _listed(settings, experiment, trial, wanted)
        if settings.address is None
        else _asked(settings, settings.address, experiment, trial, wanted)
    )
    for one in islice(found, limit):
        if as_json:
            yield dumps(one.model_dump(mode="json"))
        else:
            kept = f"{one.state}, pinned" if one.pinned else one.state
            yield f"{one.id}  trial {one.trial_number:<5}  iteration {one.step:<6}  {one.bytes:>13,} bytes  {kept:<13}  {one.uri}"


def _listed(settings: Settings, experiment: str, trial: int | None, state: State | None) -> Iterator[CheckpointItem]:
    """Yield the checkpoints of an experiment of this home."""
    with Store.open(settings.database_url) as store:
        store.migrate()
        record = store.experiments.get(id_of(store, experiment))
        if trial is not None:
            store.trials.get(trial_id(record.public_id, trial))  # raises NotFound if there is no such trial
        token = None
        while True:
            page = store.trials.checkpoint_page(record.id, trial_number=trial, state=state, page_token=token)
            yield from (CheckpointItem.of(found, record) for found in page.items)
            token = page.next_token
            if token is None:
                return


def _asked(
    settings: Settings, address: str, experiment: str, trial: int | None, state: State | None
) -> Iterator[CheckpointItem]:
    """Yield the checkpoints of an experiment of the service."""
    with connected(settings, address) as client:
        handle = client.experiment(experiment)
        if trial is not None:
            handle.trial(trial).get()  # raises NotFound if there is no such trial
        yield from handle.checkpoints(trial=trial, state=state)


def pin(settings: Settings, checkpoint: str, pinned: bool) -> str:
    """Pin or unpin a checkpoint of a service or of this home. Return a line for the terminal."""
    if settings.address is None:
        with Store.open(settings.database_url) as store:
            store.migrate()
            record = trials.pin(store, checkpoint, pinned)
            found, trial, experiment = record.public_id, record.trial, record.experiment
    else:
        with connected(settings, settings.address) as client:
            shown = client.pin_checkpoint(checkpoint) if pinned else client.unpin_checkpoint(checkpoint)
            found, trial, experiment = shown.id, shown.trial_number, shown.experiment_id
    return f"{'pinned' if pinned else 'unpinned'} {found} of trial {trial} of {experiment}"
