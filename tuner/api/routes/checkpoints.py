"""/checkpoints: get, download and pin checkpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response, StreamingResponse

from tuner.api import schemas
from tuner.api.answers import CONFLICT, NOT_FOUND, Route, plain_text, shown_checkpoint
from tuner.api.context import Here
from tuner.experiment import files
from tuner.experiment.operations import trials
from tuner.trials.checkpoints.storage import join

router = APIRouter(route_class=Route, tags=["checkpoints"])

CheckpointId = Annotated[str, Path(description="ckp_...", examples=["ckp_0123456789abcdef0123"])]


@router.get(
    "/checkpoints/{checkpoint_id}",
    response_model=schemas.CheckpointItem,
    responses=NOT_FOUND,
    summary="Get a checkpoint.",
)
def get(here: Here, checkpoint_id: CheckpointId) -> Response:
    return shown_checkpoint(here.store, here.store.trials.checkpoint(plain_text(checkpoint_id)))


@router.get(
    "/checkpoints/{checkpoint_id}/download",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
            "description": "a tar archive",
        },
        **NOT_FOUND,
        **CONFLICT,
    },
    summary="Download the files of a checkpoint as a tar archive.",
)
def download(here: Here, checkpoint_id: CheckpointId) -> Response:
    record = here.store.trials.checkpoint(plain_text(checkpoint_id))
    headers = {
        "Content-Disposition": f'attachment; filename="{record.public_id}.tar"',
        "Cache-Control": "no-store",
        "Content-Encoding": "identity",  # weights hardly become smaller, and compressing them takes longer than sending them
    }
    spec = here.store.experiments.get(record.experiment).spec
    folder = join(spec.checkpoint.storage or here.settings.storage, record.experiment)
    pieces = files.archive(record, folder, by_agent=spec.executor == "agents")
    return StreamingResponse(pieces, media_type="application/x-tar", headers=headers)


@router.post(
    "/checkpoints/{checkpoint_id}/pin",
    response_model=schemas.CheckpointItem,
    responses={**NOT_FOUND, **CONFLICT},
    summary="Pin a checkpoint, so that the experiment's checkpoint policy does not delete it.",
)
def pin(here: Here, checkpoint_id: CheckpointId) -> Response:
    return _pinned(here, checkpoint_id, True)


@router.post(
    "/checkpoints/{checkpoint_id}/unpin",
    response_model=schemas.CheckpointItem,
    responses=NOT_FOUND,
    summary="Unpin a checkpoint, so that the experiment's checkpoint policy may delete it again.",
)
def unpin(here: Here, checkpoint_id: CheckpointId) -> Response:
    return _pinned(here, checkpoint_id, False)


def _pinned(here: Here, checkpoint_id: str, pinned: bool) -> Response:
    record = trials.pin(here.store, plain_text(checkpoint_id), pinned)
    here.driver.poke()
    return shown_checkpoint(here.store, record)
