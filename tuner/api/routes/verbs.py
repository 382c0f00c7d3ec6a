"""A route for each verb of an experiment and of a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    CONFLICT,
    NOT_FOUND,
    ExperimentId,
    OnceKey,
    Route,
    TrialId,
    checked,
    optional_json_body,
    plain_text,
    shown_experiment,
    shown_trial,
)
from tuner.api.context import Here
from tuner.experiment.operations import trials, usecases
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS, Verb, act

router = APIRouter(route_class=Route)


def _of_experiment(verb: Verb) -> Callable[..., Response]:
    def route(here: Here, experiment_id: ExperimentId) -> Response:
        record = act(here.store, verb.name, plain_text(experiment_id))
        here.driver.poke()
        return shown_experiment(here.store, record, 202)

    return route


def _of_trial(verb: Verb) -> Callable[..., Response]:
    def route(here: Here, trial_id: TrialId, idempotency_key: OnceKey = None) -> Response:
        record = trials.act_once(here.store, verb.name, plain_text(trial_id), idempotency_key=idempotency_key)
        here.driver.poke()
        return shown_trial(here.store, record, 202)

    return route


def continue_(
    here: Here,
    experiment_id: ExperimentId,
    data: Annotated[Any, Depends(optional_json_body)],
    idempotency_key: OnceKey = None,
) -> Response:
    given = checked(schemas.Continuation, {} if data is None else data)
    name = plain_text(experiment_id)
    record = usecases.continue_experiment(
        here.store, name, given.num_samples, adopt=True, idempotency_key=idempotency_key
    )
    here.driver.poke()
    return shown_experiment(here.store, record, 202)


for _verb in VERBS.values():
    router.post(
        f"/experiments/{{experiment_id}}/{_verb.name}",
        name=_verb.name,
        status_code=202,
        response_model=schemas.Experiment,
        responses={**NOT_FOUND, **CONFLICT, **(BAD if _verb.name == "continue" else {})},
        summary=_verb.summary,
        tags=["experiments"],
    )(continue_ if _verb.name == "continue" else _of_experiment(_verb))

for _verb in TRIAL_VERBS.values():
    router.post(
        f"/trials/{{trial_id}}/{_verb.name}",
        name=_verb.name,
        status_code=202,
        response_model=schemas.TrialDetail,
        responses={**NOT_FOUND, **CONFLICT},
        summary=_verb.summary,
        tags=["trials"],
    )(_of_trial(_verb))
