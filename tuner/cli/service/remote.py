"""`tuner explain`, `logs`, `schedule`, `replay`, `token`, `audit` and `project` on a service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from tuner.api.schemas import AuditEntry, Project
from tuner.cli.home import access, explain, logs, replay
from tuner.cli.json_text import dumps
from tuner.cli.service.experiments import connected, numbered_of
from tuner.errors import SpecError
from tuner.settings import Settings
from tuner.store import LogQuery
from tuner.store.service.access import Role

RESTART_S = 30.0
"""`tuner logs -f` waits this many seconds for a service that is started again."""


def decisions_about(settings: Settings, called: str, as_json: bool = False, number: int | None = None) -> Iterator[str]:
    """Yield the same lines as `explain.decisions_about`, for an experiment or trial of a service."""
    with _service(settings) as client:
        failure = None
        experiment = called
        if called.startswith("trl_"):
            trial = client.trial(called).get()
            experiment, number, failure = trial.experiment_id, trial.number, trial.error
        elif number is not None:
            failure = numbered_of(client, called, number).get().error
        found = list(client.experiment(experiment).decisions(trial=number))
    for decision in reversed(found):
        when = datetime.fromisoformat(decision.time)
        who = decision.trial_number
        if as_json:
            row = {"seq": decision.seq, "time": when.timestamp(), "kind": decision.kind, "trial": who}
            yield dumps({**row, "reason": decision.reason, "state": decision.state, "payload": decision.payload})
        else:
            yield explain.line(when, who, decision.kind, decision.reason)
    if failure is not None and not as_json:
        yield from explain.failed(failure.model_dump())


def logs_of(settings: Settings, called: str, number: int | None, query: LogQuery, *, follow: bool) -> Iterator[str]:
    """Yield the same text as `logs.logs_of`, for a trial of a service."""
    with _service(settings) as client:
        if called.startswith("trl_"):
            trial = client.trial(called)
        elif number is None:
            raise SpecError(f"{called} is an experiment: also give the number of one of its trials")
        else:
            trial = numbered_of(client, called, number)
        segments = trial.get().segments
        ordinal = logs.segment_of(query, segments)
        if follow:
            with client.with_patience(RESTART_S) as patient:
                yield from logs.with_line_feeds(patient.trial(trial.id).follow_log(query.rank or 0, ordinal))
            return
        found = trial.logs(rank=query.rank, segment=ordinal, tail=query.tail, search=query.search)
        yield from logs.not_stored(found, segments, LogQuery(rank=query.rank, segment=ordinal))
        yield from logs.rank_by_rank(found, query)


def schedule_of(settings: Settings, called: str, number: int | None = None) -> str:
    """Return the same text as `explain.schedule_of`, for an experiment or trial of a service."""
    with _service(settings) as client:
        if called.startswith("trl_"):
            trial = client.trial(called).get()
            called, number = trial.experiment_id, trial.number
        elif number is not None:
            numbered_of(client, called, number)
        found = client.experiment(called).result(log=False).schedule(number)
    return explain.one_a_line([{name: value for name, value in row.items() if name != "config"} for row in found])


def replayed(
    settings: Settings,
    called: str,
    scheduler: str | None,
    options: Sequence[str],
    search: str | None,
    concurrent: int | None,
    as_json: bool,
) -> Iterator[str]:
    """Yield the same lines as `replay.replayed`, for an experiment of a service."""
    asked = replay.wanted(scheduler, options)
    with _service(settings) as client:
        found = client.experiment(called).replay(asked, search=search, max_concurrent_trials=concurrent)
    if as_json:
        yield dumps(found.model_dump(mode="json"))
    else:
        yield from replay.lines(found)


def create_token(
    settings: Settings, name: str, role: str, expires_days: float | None, project: str | None = None
) -> str:
    """Create a token on a service, and return its secret."""
    wanted = str(Role.named(role))
    with _service(settings) as client:
        return str(client.create_token(name, role=wanted, project=project, expires_days=expires_days).secret)


def tokens(settings: Settings) -> list[access.Row]:
    """Return the tokens of a service, newest first, as the same dicts as `access.rows`."""
    with _service(settings) as client:
        return [{name: getattr(one, name) for name in access.FIELDS} for one in client.tokens()]


def revoke_token(settings: Settings, token: str) -> str:
    """Revoke a token of a service, and return a line for the terminal with its id and name."""
    with _service(settings) as client:
        found = client.revoke_token(token)
    return f"revoked {found.id} ({found.name})"


def trail(settings: Settings, limit: int) -> list[AuditEntry]:
    """Return the newest entries of the audit trail of a service, newest first, at most `limit`."""
    with _service(settings) as client:
        return list(client.audit(limit=limit))


def projects(settings: Settings) -> list[Project]:
    """Return the projects of a service, ordered by name."""
    with _service(settings) as client:
        return list(client.projects())


def change_project(settings: Settings, name: str, warm_start: Literal["auto"] | None) -> Project:
    """Change the settings of a project of a service, which need not have experiments yet, and return the project."""
    with _service(settings) as client:
        changed: Project = client.change_project(name, warm_start=warm_start)
    return changed


def _service(settings: Settings) -> Any:
    assert settings.address is not None
    return connected(settings, settings.address)
