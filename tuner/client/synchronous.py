"""The client of a tuner service.

Generated from `tuner/client/asynchronous.py`; do not edit it."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx

from tuner.api import schemas
from tuner.client.protocol import (
    API,
    CREATE_S,
    IDEMPOTENT,
    PAGE,
    Attempts,
    Event,
    EventReader,
    address_of,
    check,
    folder_of,
    headers_of,
    plain,
    read,
    space_patch,
    unreachable,
)
from tuner.client.records import Log, found_of
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, NotFound, ServiceError
from tuner.names import did_you_mean
from tuner.sdk.result import Result
from tuner.space import Space
from tuner.usercode import archives

if TYPE_CHECKING:
    import pandas as pd


WEBHOOK_S = 0.25
"""Seconds between two checks for the outcome of a webhook's test."""


class Client:
    """A connection to a tuner service.

    Requests that fail because the service cannot be reached, is restarting or asks to wait (`Retry-After`) are repeated for up to
    `patience_s` seconds, if repeating them is safe. Errors of the service are raised as the classes of `tuner.errors`:
    `SpecError`, `NotFound`, `Conflict`, `NotAllowed` or `ServiceError`, with the service's message.

    Args:
        address: URL of the service. None: the value of TUNER_ADDRESS.
        token: a token that `tuner token create` printed. None: the value of TUNER_TOKEN, if it is set.
        timeout_s: how long to wait for an answer, in seconds.
        patience_s: how long to repeat a request, in seconds.
        transport: an httpx transport to use instead of the network.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address_of(address)
        self._token, self._patience_s, self._timeout_s = token, patience_s, timeout_s
        self._reached = False  # whether the service has answered
        self._http = httpx.Client(
            base_url=self.address,
            headers=headers_of(token),
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            transport=transport,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def with_patience(self, patience_s: float) -> Client:
        """Return another client of the same service that repeats requests for this many seconds."""
        return Client(self.address, token=self._token, timeout_s=self._timeout_s, patience_s=patience_s)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        safe: bool | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send any request and return the JSON of the response; None if the response has no body.

        Args:
            method: GET, POST, ...
            path: the path below ``/api/v1``, such as ``/experiments``.
            params: query parameters. Parameters that are None are left out.
            body: sent as JSON, unless it is None.
            headers: further headers.
            safe: True if repeating the request is harmless even if the first request was carried out. None: the method
                decides.
            timeout_s: how long to wait for the answer. None: the timeout of the other requests.
        """
        answer = self._send(method, f"{API}{path}", params, body, headers, safe, timeout_s)
        return answer.json() if answer.content else None

    def create(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> ExperimentHandle:
        """Create an experiment from its spec, and return its handle. The service starts it.

        If the connection is lost, the request is repeated with the same key, so that no second experiment is created.

        Args:
            spec: the experiment, as docs/api.md describes it.
            idempotency_key: a key that identifies this request. Another request with the same key, even from another
                process, returns the experiment that the first one created. None: a new key.

        Raises:
            SpecError: the spec has mistakes. The error lists all of them.
            Conflict: the key was used before, with another spec.
        """
        key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        data = self.request(
            "POST", "/experiments", body=dict(spec), headers=key, safe=True, timeout_s=max(CREATE_S, self._timeout_s)
        )
        return ExperimentHandle(self, read(schemas.Experiment, data).id)

    def upload_code(self, code: str | os.PathLike[str] | Mapping[str, Path]) -> str:
        """Upload Python code, unless the service has it already, and return its SHA-256, which a spec names as its ``bundle``.

        Args:
            code: a folder whose files the ranks can import, or files by their path in such a folder.

        Raises:
            SpecError: there is no such folder, or the code is too large.
        """
        files = code if isinstance(code, Mapping) else archives.files_of(folder_of(code))
        content = archives.pack(files)
        name = archives.sha256(content)
        try:
            self.request("GET", f"/bundles/{name}")
        except NotFound:
            self._send(
                "PUT", f"{API}/bundles/{name}", None, None, {"Content-Type": "application/zip"}, True, content=content
            )
        return name

    def dry_run(
        self, spec: Mapping[str, Any], *, configurations: int = 5, seconds_per_iteration: float | None = None
    ) -> schemas.DryRun:
        """Check a spec and return what `create` would do. Nothing is created. It raises the same errors as `create`."""
        data = self.request(
            "POST",
            "/experiments/dry-run",
            params={"configurations": configurations, "seconds_per_iteration": seconds_per_iteration},
            body=dict(spec),
            safe=True,
            timeout_s=max(CREATE_S, self._timeout_s),
        )
        return read(schemas.DryRun, data)

    def experiments(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        tags: str | Sequence[str] | None = None,
        project: str | None = None,
        archived: Literal["no", "yes", "all"] = "no",
        limit: int | None = None,
    ) -> Iterator[schemas.Experiment]:
        """Yield experiments, newest first.

        Args:
            state: only experiments in this state.
            name: only experiments with this text in their name.
            tags: only experiments with this tag, written as ``key`` or ``key=value``, or with all tags of a list.
            project: only experiments of this project.
            archived: "no" leaves archived experiments out, "yes" yields only archived ones, "all" yields both.
            limit: yield at most this many.
        """
        tag = [tags] if isinstance(tags, str) else tags
        params = {"state": state, "name": name, "tag": tag, "project": project, "archived": archived}
        for item in self._items("/experiments", params, limit):
            yield read(schemas.Experiment, item)

    def experiment(self, called: str) -> ExperimentHandle:
        """Return the handle of an experiment, given its id or a unique name. This sends no request."""
        return ExperimentHandle(self, called)

    def trial(self, trial: str) -> TrialHandle:
        """Return the handle of a trial, ``trl_...``. This sends no request."""
        return TrialHandle(self, trial)

    def session(self) -> dict[str, Any]:
        """Return whom the token belongs to, and its rights: ``{"name", "role", "required", "expires_at"}``."""
        found: dict[str, Any] = self.request("GET", "/session")
        return found

    def webhooks(self) -> list[schemas.Webhook]:
        """Return all webhooks, newest first, without their secrets."""
        return read(schemas.WebhookList, self.request("GET", "/webhooks")).items

    def create_webhook(
        self,
        url: str,
        events: Sequence[str],
        *,
        project: str | None = None,
        experiment_id: str | None = None,
        format: Literal["json", "slack"] = "json",
        threshold: float | None = None,
    ) -> schemas.Webhook:
        """Create a webhook and return it with the secret that signs its deliveries. The secret cannot be read again.

        Args:
            url: where deliveries are sent.
            events: the events to send, such as ``["experiment.completed", "trial.failed"]``; docs/operations.md lists
                them.
            project: only experiments of this project. None: all projects that this client may see.
            experiment_id: only this experiment.
            format: "slack" for an incoming webhook of Slack.
            threshold: the value of the objective for the event ``objective.reached``.
        """
        body = {
            "url": url,
            "events": list(events),
            "project": project,
            "experiment_id": experiment_id,
            "format": format,
            "threshold": threshold,
        }
        return read(schemas.Webhook, self.request("POST", "/webhooks", body=body))

    def change_webhook(self, webhook_id: str, **changes: Any) -> schemas.Webhook:
        """Change the url, events, format or threshold of a webhook, and return it."""
        return read(schemas.Webhook, self.request("PATCH", f"/webhooks/{webhook_id}", body=changes))

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its deliveries."""
        self.request("DELETE", f"/webhooks/{webhook_id}")

    def webhook_deliveries(self, webhook_id: str, *, limit: int | None = 100) -> list[schemas.Delivery]:
        """Return the newest deliveries of a webhook, newest first. limit: at most this many; None: all."""
        found = self._items(f"/webhooks/{webhook_id}/deliveries", limit=limit)
        return [read(schemas.Delivery, item) for item in found]

    def test_webhook(self, webhook_id: str, *, timeout_s: float = 30.0) -> schemas.Delivery:
        """Send the event ``test``, and return the delivery after its first attempt. Its `state` says whether it arrived.

        timeout_s: return the delivery after this many seconds, even if no attempt was made.
        """
        made = read(schemas.Delivery, self.request("POST", f"/webhooks/{webhook_id}/test"))
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = [one for one in self.webhook_deliveries(webhook_id) if one.id == made.id]
            if found and (found[0].state != "pending" or found[0].last_error is not None):
                return found[0]
            time.sleep(WEBHOOK_S)
        return made

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
        safe: bool | None,
        timeout_s: float | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        attempts = Attempts(method in IDEMPOTENT if safe is None else safe, self._patience_s, self._reached)
        timeout = self._http.timeout if timeout_s is None else httpx.Timeout(timeout_s, connect=10.0)
        while True:
            answer, error = None, None
            try:
                answer = self._http.request(
                    method, path, params=plain(params), json=body, content=content, headers=headers, timeout=timeout
                )
            except httpx.TransportError as lost:
                error = lost
                if (wait := attempts.wait_s(None, lost)) is None:
                    raise unreachable(self.address, lost) from lost
            else:
                self._reached = attempts.reached = True
                wait = attempts.wait_s(answer, error)
                if wait is None:
                    check(answer)
                    return answer
            time.sleep(wait)

    def _items(self, path: str, params: Mapping[str, Any] | None = None, limit: int | None = None) -> Iterator[Any]:
        """Yield the items of all pages of a list, as JSON."""
        token: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self.request("GET", path, params={**(params or {}), "page_size": size, "page_token": token})
            for item in page["items"]:
                yield item
            left = None if left is None else left - len(page["items"])
            token = page["next_page_token"]
            if token is None:
                return

    def _events(self, path: str, after: int) -> Generator[Event]:
        """Yield server-sent events without end. After a lost connection, reconnect and continue after the last event."""
        attempts = Attempts(True, self._patience_s, self._reached)
        while True:
            error: httpx.TransportError | None = None
            answer: httpx.Response | None = None
            try:
                timeout = httpx.Timeout(self._timeout_s, connect=10.0)  # the service sends something every 15 s
                with self._http.stream("GET", f"{API}{path}", params={"after": after}, timeout=timeout) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                    else:
                        events = EventReader()
                        for part in answer.iter_bytes():
                            for event in events.feed(part):
                                attempts = Attempts(True, self._patience_s)
                                after = max(after, int(event.id or 0))
                                yield event
            except httpx.TransportError as lost:
                error = lost
            if answer is not None and answer.status_code >= 400:
                wait = attempts.wait_s(answer, None)
                if wait is None:
                    check(answer)
            else:  # the service has ended the stream, or the connection is lost
                error = error or httpx.RemoteProtocolError("the stream ended")
                wait = attempts.wait_s(None, error)
            if wait is None:
                assert error is not None
                raise unreachable(self.address, error) from error
            time.sleep(wait)


class ExperimentHandle:
    """One experiment of a service."""

    def __init__(self, client: Client, called: str) -> None:
        self.client = client
        self.id = called
        """``exp_...``. Before the first request, it is what `Client.experiment` was given, which may be a name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    def get(self) -> schemas.Experiment:
        """Return the experiment as it is now."""
        return read(schemas.Experiment, self._get(""))

    def wait(self, timeout_s: float | None = None) -> schemas.Experiment:
        """Wait until the experiment has ended or is paused, and return it. Raise TimeoutError after `timeout_s`.

        If it has failed, warn with the reason (UserWarning).
        """
        begun, pause_s = time.monotonic(), 0.05
        while True:
            found = self.get()
            if found.state is ExperimentState.FAILED:
                why = found.error or found.reason
                warnings.warn(f"{found.name} ({found.id}) has failed: {why}", UserWarning, stacklevel=2)
            if found.state.ended or found.state is ExperimentState.PAUSED:
                return found
            if timeout_s is not None and time.monotonic() - begun >= timeout_s:
                raise TimeoutError(f"{self.id} is still {found.state} after {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1.0)

    def act(self, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call any verb of an experiment, such as "pause", and return the JSON of the response."""
        return self.client.request("POST", f"{self._path()}/{verb}", body=body, safe=body is None)

    def pause(self) -> schemas.Experiment:
        """Pause every trial at its next report."""
        return read(schemas.Experiment, self.act("pause"))

    def resume(self) -> schemas.Experiment:
        """Continue an experiment that is paused, or whose script has ended."""
        return read(schemas.Experiment, self.act("resume"))

    def cancel(self) -> schemas.Experiment:
        """End the experiment and all its trials."""
        return read(schemas.Experiment, self.act("cancel"))

    def kill(self) -> schemas.Experiment:
        """End the experiment and all its processes at once, without waiting for reports or checkpoints."""
        return read(schemas.Experiment, self.act("kill"))

    def continue_(self, num_samples: int | None = None) -> schemas.Experiment:
        """Start more trials. An experiment that has ended runs again.

        Args:
            num_samples: trials to add; for a grid, how many more times to run it. None: add none, because raised limits
                allow more already.
        """
        return read(schemas.Experiment, self.act("continue", {"num_samples": num_samples}))

    def fork(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        learn: bool = False,
        idempotency_key: str | None = None,
    ) -> ExperimentHandle:
        """Create an experiment from this one's spec, and return its handle. The service starts it.

        Args:
            changes: a JSON merge patch of the spec: ``{"space": {"lr": {"upper": 0.5}}, "num_samples": 32}``.
            learn: let the new search learn from the trials of this experiment, as ``warm_start`` does.
            idempotency_key: a key that identifies this request, as for `Client.create`.
        """
        data = self.client.request(
            "POST",
            f"{self._path()}/fork",
            body={"changes": dict(changes or {}), "learn": learn},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            safe=True,
            timeout_s=CREATE_S,
        )
        return ExperimentHandle(self.client, read(schemas.Experiment, data).id)

    def change(self, *, etag: str | None = None, **changes: Any) -> schemas.Experiment:
        """Change the name, notes, tags, num_samples, limits or search space. This works while the experiment runs, too.

        Args:
            etag: the ETag of an earlier answer. If the experiment has changed since, raise Conflict and change nothing.
            changes: new values, such as ``notes="..."`` or ``limits={"time_budget_s": 600}``. A `space` maps each
                parameter that changes to its new domain, such as `tuner.uniform(0, 1)` or its JSON form, and each parameter to
                remove to None. `assume` maps each new parameter to the value that it had in the trials so far, or to None to
                leave the results of those trials out.
        """
        if isinstance(changes.get("space"), Mapping):
            changes["space"] = space_patch(changes["space"])
        headers = {"If-Match": etag} if etag else None
        data = self.client.request("PATCH", self._path(), body=changes, headers=headers, safe=etag is None)
        return read(schemas.Experiment, data)

    def archive(self) -> schemas.Experiment:
        """Hide an experiment that has ended from lists. No data are deleted."""
        return read(schemas.Experiment, self.act("archive"))

    def unarchive(self) -> schemas.Experiment:
        """Show an archived experiment in lists again."""
        return read(schemas.Experiment, self.act("unarchive"))

    def delete(self, *, force: bool = False) -> None:
        """Delete the experiment with its trials, checkpoints and logs. With `force`, kill it first if it has not ended."""
        self.client.request("DELETE", self._path(), params={"force": force or None}, safe=False)

    def trials(
        self,
        *,
        state: str | None = None,
        sort: str | None = None,
        where: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.Trial]:
        """Yield trials, by number unless `sort` says otherwise.

        Args:
            state: only trials in this state.
            sort: a column such as ``best_value`` or ``params.lr``; a minus before it sorts in descending order.
            where: conditions such as ``best_value>=0.9``, all of which must hold.
            limit: yield at most this many.
        """
        conditions = [where] if isinstance(where, str) else where
        params = {"state": state, "sort": sort, "where": conditions}
        for item in self.client._items(f"{self._path()}/trials", params, limit):
            yield read(schemas.Trial, item)

    def trial(self, number: int) -> TrialHandle:
        """Return the handle of the trial with this number."""
        self._path()
        return TrialHandle(self.client, trial_id(self.id, number))

    def decisions(
        self,
        *,
        trial: int | None = None,
        kind: str | Sequence[str] | None = None,
        text: str | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.Decision]:
        """Yield decisions with their reasons, newest first. Select them by trial, kind, or a text in the reason."""
        params = {"trial": trial, "kind": [kind] if isinstance(kind, str) else kind, "text": text}
        for item in self.client._items(f"{self._path()}/decisions", params, limit):
            yield read(schemas.Decision, item)

    def segments(self, *, cause: str | Sequence[str] | None = None) -> Iterator[schemas.SegmentItem]:
        """Yield the segments of all trials, oldest first."""
        params = {"cause": [cause] if isinstance(cause, str) else cause}
        for item in self.client._items(f"{self._path()}/segments", params):
            yield read(schemas.SegmentItem, item)

    def curves(
        self,
        metric: str | None = None,
        *,
        x: Literal["step", "user_step", "time"] = "step",
        trials: Sequence[int] | None = None,
        points: int | None = None,
        limit: int | None = None,
    ) -> schemas.Curves:
        """Return the curves of a metric, by default the objective, with about `points` points each."""
        params = {"metric": metric, "x": x, "trial": trials, "points": points, "limit": limit}
        return read(schemas.Curves, self._get("/curves", params))

    def best_so_far(self, metric: str | None = None) -> schemas.BestSoFarOf:
        """Return the best value over time, with a point for each improvement."""
        return read(schemas.BestSoFarOf, self._get("/best-so-far", {"metric": metric}))

    def importance(self, *, where: str | Sequence[str] | None = None) -> schemas.Importances:
        """Return how much each parameter mattered, computed from the trials that meet all of these conditions."""
        conditions = [where] if isinstance(where, str) else where
        return read(schemas.Importances, self._get("/importance", {"where": conditions}))

    def timeline(self, first: int = 0, limit: int = 200) -> schemas.Timeline:
        """Return when trials waited, started and ran, from trial `first` on, and how nodes and GPUs were used meanwhile."""
        return read(schemas.Timeline, self._get("/timeline", {"first": first, "limit": limit}))

    def forecast(self, hours: float = 1.0) -> schemas.Forecast:
        """Predict when the search ends, its best value then, and the gain from this many additional GPU hours."""
        return read(schemas.Forecast, self._get("/forecast", {"hours": hours}))

    def best(self) -> schemas.Best | None:
        """Return the best trial so far, with its value and its configuration, or None if there is none."""
        return (self.get()).best

    def checkpoints(self) -> list[schemas.Checkpoint]:
        """Return the newest usable checkpoint of each trial that has one, by the trial's number."""
        return [trial.checkpoint for trial in self.trials() if trial.checkpoint is not None]

    def follow(self, after: int | None = None) -> Iterator[schemas.Changes]:
        """Yield changes until the experiment has ended: new rows, decisions and reports, as docs/api.md describes them.

        Args:
            after: yield only changes after this event_seq. None: yield the current row of the experiment first,
                and then changes from now on.
        """
        if after is None:
            after = (self.get()).last_event_seq
        with closing(self.client._events(f"{self._path()}/changes", after)) as stream:
            for event in stream:
                changes = read(schemas.Changes, event.data)
                yield changes
                if changes.reset or (changes.experiment is not None and changes.experiment.state.ended):
                    now = self.get()
                    if now.state.ended and now.last_event_seq <= changes.seq:
                        return

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the entries of the experiment's log, from the beginning or after the event_seq `after`, until it has ended."""
        with closing(self.client._events(f"{self._path()}/events", after)) as stream:
            for event in stream:
                yield event.data
                if event.name == "experiment" and ExperimentState(event.data["state"]).ended:
                    return

    def result(self, space: Space | None = None) -> Result:
        """Return what `tuner.run` returns: all trials with their history, the best ones, their checkpoints.

        Args:
            space: the search space. None: the space that the service returns, in which choices lack their Python objects.
        """
        experiment = self.get()
        log = Log()
        if experiment.last_event_seq:
            with closing(self.client._events(f"{self._path()}/events", 0)) as stream:
                for event in stream:
                    log.add(event)
                    if log.seq >= experiment.last_event_seq:
                        break
        trials = [trial for trial in self.trials()]
        segments = [segment for segment in self.segments()]
        return Result(found_of(experiment, trials, segments, log, space))

    def dataframe(self, history: bool = False) -> pd.DataFrame:
        """Return a row for each trial, or with `history` for each report. Configurations are in columns such as ``config/lr``."""
        return (self.result()).dataframe(history)

    def _get(self, rest: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.client.request("GET", f"{self._path()}{rest}", params=params)

    def _path(self) -> str:
        """Return the URL path of the experiment. Look up its id first if only its name is known."""
        if not self.id.startswith("exp_"):
            self.id = self._named(self.id)
        return f"/experiments/{self.id}"

    def _named(self, name: str) -> str:
        near: list[str] = []
        found: list[str] = []
        for one in self.client.experiments(name=name):
            near.append(one.name)
            if one.name == name:
                found.append(one.id)
        if len(found) > 1:
            raise Conflict(f"{len(found)} experiments have the name {name!r}; use an id: {', '.join(found[:10])}")
        if not found:
            near = near or [one.name for one in self.client.experiments(limit=PAGE)]
            raise NotFound(f"no experiment {name!r}{did_you_mean(name, near, chr(39))}")
        return found[0]


class TrialHandle:
    """One trial of a service."""

    def __init__(self, client: Client, trial: str) -> None:
        self.client = client
        self.id = trial

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    def get(self) -> schemas.TrialDetail:
        """Return the trial as it is now, with its segments."""
        return read(schemas.TrialDetail, self._get(""))

    def act(self, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call any verb of a trial, such as "stop", and return the JSON of the response."""
        return self.client.request("POST", f"/trials/{self.id}/{verb}", body=body, safe=body is None)

    def retry(self) -> schemas.TrialDetail:
        """Retry a failed trial. A new trial with its configuration starts from its newest checkpoint."""
        return read(schemas.TrialDetail, self.act("retry"))

    def fork(
        self, params: Mapping[str, Any] | None = None, *, checkpoint_id: str | None = None
    ) -> schemas.TrialDetail | None:
        """Start a new trial from a checkpoint of this one, and return it. Return None if it cannot start yet.

        Args:
            params: flat params to change; the others are copied from this trial.
            checkpoint_id: one of its checkpoints. None: the newest.
        """
        found = read(
            schemas.TrialDetail, self.act("fork", {"params": dict(params or {}), "checkpoint_id": checkpoint_id})
        )
        return None if found.id == self.id else found

    def stop(self) -> schemas.TrialDetail:
        """End the trial at its next report. The experiment continues."""
        return read(schemas.TrialDetail, self.act("stop"))

    def kill(self) -> schemas.TrialDetail:
        """End the trial's processes at once, without waiting for a report or a last checkpoint. The experiment continues."""
        return read(schemas.TrialDetail, self.act("kill"))

    def logs(
        self,
        *,
        rank: int | None = None,
        segment: int | None = None,
        tail: int | None = None,
        search: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[schemas.LogItem]:
        """Return what the ranks printed, by segment and rank: the last lines, or everything after `offset`."""
        params = {"rank": rank, "segment": segment, "tail": tail, "search": search, "offset": offset, "limit": limit}
        return read(schemas.Logs, self._get("/logs", params)).items

    def follow_log(self, rank: int = 0, segment: int | None = None) -> Iterator[str]:
        """Yield the output of one rank in pieces: first what it has printed so far, and then what it prints until it ends."""
        path = f"{API}/trials/{self.id}/logs/text"
        params = plain({"rank": rank, "segment": segment, "follow": True})
        try:
            with self.client._http.stream(
                "GET", path, params=params, timeout=httpx.Timeout(None, connect=10.0)
            ) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    check(answer)
                for text in answer.iter_text():
                    yield text
        except httpx.TransportError as lost:
            raise unreachable(self.client.address, lost) from lost

    def curves(self, *, x: Literal["step", "time"] = "step", points: int | None = None) -> schemas.TrialCurves:
        """Return the curve of every metric that the trial has reported."""
        return read(schemas.TrialCurves, self._get("/curves", {"x": x, "max_points": points}))

    def usage(self, *, rank: int | None = None, segment: int | None = None) -> list[schemas.UsageSeries]:
        """Return the CPU, memory and GPU use of the trial's ranks over time."""
        return read(schemas.Usage, self._get("/usage", {"rank": rank, "segment": segment})).items

    def lineage(self) -> schemas.Lineage:
        """Return the segments that led to the trial's weights, and the schedule of configurations."""
        return read(schemas.Lineage, self._get("/lineage"))

    def neighbours(self, limit: int = 8) -> schemas.Neighbours:
        """Return the trials with the most similar configurations and their results, the nearest first."""
        return read(schemas.Neighbours, self._get("/neighbours", {"limit": limit}))

    def live(self) -> schemas.Live:
        """Return the Python stack and the current resource use of each rank. Raise Conflict if no rank is running."""
        return read(schemas.Live, self._get("/live"))

    def profile(
        self,
        rank: int = 0,
        *,
        kind: Literal["cpu", "memory"] = "cpu",
        duration_s: float = 5.0,
        rate_hz: float = 100.0,
    ) -> schemas.Profile:
        """Observe a running rank for some seconds, and return what it did.

        `speedscope_json()` of the profile is a file for https://www.speedscope.app, and `collapsed()` one for flame graphs.

        Args:
            rank: which rank.
            kind: "cpu": sample its Python stacks. "memory": trace what Python allocates, which slows the training down.
            duration_s: seconds to observe it, at most 60.
            rate_hz: samples per second, at most 250.

        Raises:
            Conflict: the rank does not run, is being profiled already, or belongs to an agent or to another driver.
        """
        body = {"rank": rank, "kind": kind, "duration_s": duration_s, "rate_hz": rate_hz}
        timeout_s = self.client._timeout_s + duration_s
        data = self.client.request("POST", f"/trials/{self.id}/profile", body=body, timeout_s=timeout_s)
        return read(schemas.Profile, data)

    def _get(self, rest: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.client.request("GET", f"/trials/{self.id}{rest}", params=params)


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    timeout_s: float = 60.0,
    patience_s: float = 30.0,
) -> Client:
    """Connect to a tuner service, and return its client. `Client` explains the arguments.

    Raises:
        ServiceUnreachable: no tuner service answers at the address.
        NotAllowed: the token is missing or not valid.
    """
    client = Client(address, token=token, timeout_s=timeout_s, patience_s=patience_s)
    try:
        who = client.session()
        if not isinstance(who, dict) or "role" not in who:
            raise ServiceError(f"the server at {client.address} is not a tuner service")
        if who["role"] is None:
            # raises NotAllowed if the token is wrong
            client.request("GET", "/experiments", params={"page_size": 1})
    except BaseException:
        client.close()
        raise
    return client
