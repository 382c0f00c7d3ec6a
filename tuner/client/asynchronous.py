"""The asynchronous client of a tuner service.

`tuner/client/synchronous.py` is generated from this file by ``python -m tuner.client.generate``.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
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


class AsyncClient:
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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address_of(address)
        self._token, self._patience_s, self._timeout_s = token, patience_s, timeout_s
        self._reached = False  # whether the service has answered
        self._http = httpx.AsyncClient(
            base_url=self.address,
            headers=headers_of(token),
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            transport=transport,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def with_patience(self, patience_s: float) -> AsyncClient:
        """Return another client of the same service that repeats requests for this many seconds."""
        return AsyncClient(self.address, token=self._token, timeout_s=self._timeout_s, patience_s=patience_s)

    async def request(
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
        answer = await self._send(method, f"{API}{path}", params, body, headers, safe, timeout_s)
        return answer.json() if answer.content else None

    async def create(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> AsyncExperimentHandle:
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
        data = await self.request(
            "POST", "/experiments", body=dict(spec), headers=key, safe=True, timeout_s=max(CREATE_S, self._timeout_s)
        )
        return AsyncExperimentHandle(self, read(schemas.Experiment, data).id)

    async def upload_code(self, code: str | os.PathLike[str] | Mapping[str, Path]) -> str:
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
            await self.request("GET", f"/bundles/{name}")
        except NotFound:
            await self._send(
                "PUT", f"{API}/bundles/{name}", None, None, {"Content-Type": "application/zip"}, True, content=content
            )
        return name

    async def dry_run(
        self, spec: Mapping[str, Any], *, configurations: int = 5, seconds_per_iteration: float | None = None
    ) -> schemas.DryRun:
        """Check a spec and return what `create` would do. Nothing is created. It raises the same errors as `create`."""
        data = await self.request(
            "POST",
            "/experiments/dry-run",
            params={"configurations": configurations, "seconds_per_iteration": seconds_per_iteration},
            body=dict(spec),
            safe=True,
            timeout_s=max(CREATE_S, self._timeout_s),
        )
        return read(schemas.DryRun, data)

    async def experiments(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        tags: str | Sequence[str] | None = None,
        project: str | None = None,
        archived: Literal["no", "yes", "all"] = "no",
        limit: int | None = None,
    ) -> AsyncIterator[schemas.Experiment]:
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
        async for item in self._items("/experiments", params, limit):
            yield read(schemas.Experiment, item)

    def experiment(self, called: str) -> AsyncExperimentHandle:
        """Return the handle of an experiment, given its id or a unique name. This sends no request."""
        return AsyncExperimentHandle(self, called)

    def trial(self, trial: str) -> AsyncTrialHandle:
        """Return the handle of a trial, ``trl_...``. This sends no request."""
        return AsyncTrialHandle(self, trial)

    async def session(self) -> dict[str, Any]:
        """Return whom the token belongs to, and its rights: ``{"name", "role", "required", "expires_at"}``."""
        found: dict[str, Any] = await self.request("GET", "/session")
        return found

    async def webhooks(self) -> list[schemas.Webhook]:
        """Return all webhooks, newest first, without their secrets."""
        return read(schemas.WebhookList, await self.request("GET", "/webhooks")).items

    async def create_webhook(
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
        return read(schemas.Webhook, await self.request("POST", "/webhooks", body=body))

    async def change_webhook(self, webhook_id: str, **changes: Any) -> schemas.Webhook:
        """Change the url, events, format or threshold of a webhook, and return it."""
        return read(schemas.Webhook, await self.request("PATCH", f"/webhooks/{webhook_id}", body=changes))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its deliveries."""
        await self.request("DELETE", f"/webhooks/{webhook_id}")

    async def webhook_deliveries(self, webhook_id: str, *, limit: int | None = 100) -> list[schemas.Delivery]:
        """Return the newest deliveries of a webhook, newest first. limit: at most this many; None: all."""
        found = self._items(f"/webhooks/{webhook_id}/deliveries", limit=limit)
        return [read(schemas.Delivery, item) async for item in found]

    async def test_webhook(self, webhook_id: str, *, timeout_s: float = 30.0) -> schemas.Delivery:
        """Send the event ``test``, and return the delivery after its first attempt. Its `state` says whether it arrived.

        timeout_s: return the delivery after this many seconds, even if no attempt was made.
        """
        made = read(schemas.Delivery, await self.request("POST", f"/webhooks/{webhook_id}/test"))
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = [one for one in await self.webhook_deliveries(webhook_id) if one.id == made.id]
            if found and (found[0].state != "pending" or found[0].last_error is not None):
                return found[0]
            await asyncio.sleep(WEBHOOK_S)
        return made

    async def _send(
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
                answer = await self._http.request(
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
            await asyncio.sleep(wait)

    async def _items(
        self, path: str, params: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> AsyncIterator[Any]:
        """Yield the items of all pages of a list, as JSON."""
        token: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = await self.request("GET", path, params={**(params or {}), "page_size": size, "page_token": token})
            for item in page["items"]:
                yield item
            left = None if left is None else left - len(page["items"])
            token = page["next_page_token"]
            if token is None:
                return

    async def _events(self, path: str, after: int) -> AsyncGenerator[Event]:
        """Yield server-sent events without end. After a lost connection, reconnect and continue after the last event."""
        attempts = Attempts(True, self._patience_s, self._reached)
        while True:
            error: httpx.TransportError | None = None
            answer: httpx.Response | None = None
            try:
                timeout = httpx.Timeout(self._timeout_s, connect=10.0)  # the service sends something every 15 s
                async with self._http.stream("GET", f"{API}{path}", params={"after": after}, timeout=timeout) as answer:
                    if answer.status_code >= 400:
                        await answer.aread()
                    else:
                        events = EventReader()
                        async for part in answer.aiter_bytes():
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
            await asyncio.sleep(wait)


class AsyncExperimentHandle:
    """One experiment of a service."""

    def __init__(self, client: AsyncClient, called: str) -> None:
        self.client = client
        self.id = called
        """``exp_...``. Before the first request, it is what `AsyncClient.experiment` was given, which may be a name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    async def get(self) -> schemas.Experiment:
        """Return the experiment as it is now."""
        return read(schemas.Experiment, await self._get(""))

    async def wait(self, timeout_s: float | None = None) -> schemas.Experiment:
        """Wait until the experiment has ended or is paused, and return it. Raise TimeoutError after `timeout_s`.

        If it has failed, warn with the reason (UserWarning).
        """
        begun, pause_s = time.monotonic(), 0.05
        while True:
            found = await self.get()
            if found.state is ExperimentState.FAILED:
                why = found.error or found.reason
                warnings.warn(f"{found.name} ({found.id}) has failed: {why}", UserWarning, stacklevel=2)
            if found.state.ended or found.state is ExperimentState.PAUSED:
                return found
            if timeout_s is not None and time.monotonic() - begun >= timeout_s:
                raise TimeoutError(f"{self.id} is still {found.state} after {timeout_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1.0)

    async def act(self, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call any verb of an experiment, such as "pause", and return the JSON of the response."""
        return await self.client.request("POST", f"{await self._path()}/{verb}", body=body, safe=body is None)

    async def pause(self) -> schemas.Experiment:
        """Pause every trial at its next report."""
        return read(schemas.Experiment, await self.act("pause"))

    async def resume(self) -> schemas.Experiment:
        """Continue an experiment that is paused, or whose script has ended."""
        return read(schemas.Experiment, await self.act("resume"))

    async def cancel(self) -> schemas.Experiment:
        """End the experiment and all its trials."""
        return read(schemas.Experiment, await self.act("cancel"))

    async def kill(self) -> schemas.Experiment:
        """End the experiment and all its processes at once, without waiting for reports or checkpoints."""
        return read(schemas.Experiment, await self.act("kill"))

    async def continue_(self, num_samples: int | None = None) -> schemas.Experiment:
        """Start more trials. An experiment that has ended runs again.

        Args:
            num_samples: trials to add; for a grid, how many more times to run it. None: add none, because raised limits
                allow more already.
        """
        return read(schemas.Experiment, await self.act("continue", {"num_samples": num_samples}))

    async def fork(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        learn: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncExperimentHandle:
        """Create an experiment from this one's spec, and return its handle. The service starts it.

        Args:
            changes: a JSON merge patch of the spec: ``{"space": {"lr": {"upper": 0.5}}, "num_samples": 32}``.
            learn: let the new search learn from the trials of this experiment, as ``warm_start`` does.
            idempotency_key: a key that identifies this request, as for `AsyncClient.create`.
        """
        data = await self.client.request(
            "POST",
            f"{await self._path()}/fork",
            body={"changes": dict(changes or {}), "learn": learn},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            safe=True,
            timeout_s=CREATE_S,
        )
        return AsyncExperimentHandle(self.client, read(schemas.Experiment, data).id)

    async def change(self, *, etag: str | None = None, **changes: Any) -> schemas.Experiment:
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
        data = await self.client.request("PATCH", await self._path(), body=changes, headers=headers, safe=etag is None)
        return read(schemas.Experiment, data)

    async def archive(self) -> schemas.Experiment:
        """Hide an experiment that has ended from lists. No data are deleted."""
        return read(schemas.Experiment, await self.act("archive"))

    async def unarchive(self) -> schemas.Experiment:
        """Show an archived experiment in lists again."""
        return read(schemas.Experiment, await self.act("unarchive"))

    async def delete(self, *, force: bool = False) -> None:
        """Delete the experiment with its trials, checkpoints and logs. With `force`, kill it first if it has not ended."""
        await self.client.request("DELETE", await self._path(), params={"force": force or None}, safe=False)

    async def trials(
        self,
        *,
        state: str | None = None,
        sort: str | None = None,
        where: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[schemas.Trial]:
        """Yield trials, by number unless `sort` says otherwise.

        Args:
            state: only trials in this state.
            sort: a column such as ``best_value`` or ``params.lr``; a minus before it sorts in descending order.
            where: conditions such as ``best_value>=0.9``, all of which must hold.
            limit: yield at most this many.
        """
        conditions = [where] if isinstance(where, str) else where
        params = {"state": state, "sort": sort, "where": conditions}
        async for item in self.client._items(f"{await self._path()}/trials", params, limit):
            yield read(schemas.Trial, item)

    async def trial(self, number: int) -> AsyncTrialHandle:
        """Return the handle of the trial with this number."""
        await self._path()
        return AsyncTrialHandle(self.client, trial_id(self.id, number))

    async def decisions(
        self,
        *,
        trial: int | None = None,
        kind: str | Sequence[str] | None = None,
        text: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[schemas.Decision]:
        """Yield decisions with their reasons, newest first. Select them by trial, kind, or a text in the reason."""
        params = {"trial": trial, "kind": [kind] if isinstance(kind, str) else kind, "text": text}
        async for item in self.client._items(f"{await self._path()}/decisions", params, limit):
            yield read(schemas.Decision, item)

    async def segments(self, *, cause: str | Sequence[str] | None = None) -> AsyncIterator[schemas.SegmentItem]:
        """Yield the segments of all trials, oldest first."""
        params = {"cause": [cause] if isinstance(cause, str) else cause}
        async for item in self.client._items(f"{await self._path()}/segments", params):
            yield read(schemas.SegmentItem, item)

    async def curves(
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
        return read(schemas.Curves, await self._get("/curves", params))

    async def best_so_far(self, metric: str | None = None) -> schemas.BestSoFarOf:
        """Return the best value over time, with a point for each improvement."""
        return read(schemas.BestSoFarOf, await self._get("/best-so-far", {"metric": metric}))

    async def importance(self, *, where: str | Sequence[str] | None = None) -> schemas.Importances:
        """Return how much each parameter mattered, computed from the trials that meet all of these conditions."""
        conditions = [where] if isinstance(where, str) else where
        return read(schemas.Importances, await self._get("/importance", {"where": conditions}))

    async def timeline(self, first: int = 0, limit: int = 200) -> schemas.Timeline:
        """Return when trials waited, started and ran, from trial `first` on, and how nodes and GPUs were used meanwhile."""
        return read(schemas.Timeline, await self._get("/timeline", {"first": first, "limit": limit}))

    async def forecast(self, hours: float = 1.0) -> schemas.Forecast:
        """Predict when the search ends, its best value then, and the gain from this many additional GPU hours."""
        return read(schemas.Forecast, await self._get("/forecast", {"hours": hours}))

    async def best(self) -> schemas.Best | None:
        """Return the best trial so far, with its value and its configuration, or None if there is none."""
        return (await self.get()).best

    async def checkpoints(self) -> list[schemas.Checkpoint]:
        """Return the newest usable checkpoint of each trial that has one, by the trial's number."""
        return [trial.checkpoint async for trial in self.trials() if trial.checkpoint is not None]

    async def follow(self, after: int | None = None) -> AsyncIterator[schemas.Changes]:
        """Yield changes until the experiment has ended: new rows, decisions and reports, as docs/api.md describes them.

        Args:
            after: yield only changes after this event_seq. None: yield the current row of the experiment first,
                and then changes from now on.
        """
        if after is None:
            after = (await self.get()).last_event_seq
        async with aclosing(self.client._events(f"{await self._path()}/changes", after)) as stream:
            async for event in stream:
                changes = read(schemas.Changes, event.data)
                yield changes
                if changes.reset or (changes.experiment is not None and changes.experiment.state.ended):
                    now = await self.get()
                    if now.state.ended and now.last_event_seq <= changes.seq:
                        return

    async def events(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the entries of the experiment's log, from the beginning or after the event_seq `after`, until it has ended."""
        async with aclosing(self.client._events(f"{await self._path()}/events", after)) as stream:
            async for event in stream:
                yield event.data
                if event.name == "experiment" and ExperimentState(event.data["state"]).ended:
                    return

    async def result(self, space: Space | None = None) -> Result:
        """Return what `tuner.run` returns: all trials with their history, the best ones, their checkpoints.

        Args:
            space: the search space. None: the space that the service returns, in which choices lack their Python objects.
        """
        experiment = await self.get()
        log = Log()
        if experiment.last_event_seq:
            async with aclosing(self.client._events(f"{await self._path()}/events", 0)) as stream:
                async for event in stream:
                    log.add(event)
                    if log.seq >= experiment.last_event_seq:
                        break
        trials = [trial async for trial in self.trials()]
        segments = [segment async for segment in self.segments()]
        return Result(found_of(experiment, trials, segments, log, space))

    async def dataframe(self, history: bool = False) -> pd.DataFrame:
        """Return a row for each trial, or with `history` for each report. Configurations are in columns such as ``config/lr``."""
        return (await self.result()).dataframe(history)

    async def _get(self, rest: str, params: Mapping[str, Any] | None = None) -> Any:
        return await self.client.request("GET", f"{await self._path()}{rest}", params=params)

    async def _path(self) -> str:
        """Return the URL path of the experiment. Look up its id first if only its name is known."""
        if not self.id.startswith("exp_"):
            self.id = await self._named(self.id)
        return f"/experiments/{self.id}"

    async def _named(self, name: str) -> str:
        near: list[str] = []
        found: list[str] = []
        async for one in self.client.experiments(name=name):
            near.append(one.name)
            if one.name == name:
                found.append(one.id)
        if len(found) > 1:
            raise Conflict(f"{len(found)} experiments have the name {name!r}; use an id: {', '.join(found[:10])}")
        if not found:
            near = near or [one.name async for one in self.client.experiments(limit=PAGE)]
            raise NotFound(f"no experiment {name!r}{did_you_mean(name, near, chr(39))}")
        return found[0]


class AsyncTrialHandle:
    """One trial of a service."""

    def __init__(self, client: AsyncClient, trial: str) -> None:
        self.client = client
        self.id = trial

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    async def get(self) -> schemas.TrialDetail:
        """Return the trial as it is now, with its segments."""
        return read(schemas.TrialDetail, await self._get(""))

    async def act(self, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call any verb of a trial, such as "stop", and return the JSON of the response."""
        return await self.client.request("POST", f"/trials/{self.id}/{verb}", body=body, safe=body is None)

    async def retry(self) -> schemas.TrialDetail:
        """Retry a failed trial. A new trial with its configuration starts from its newest checkpoint."""
        return read(schemas.TrialDetail, await self.act("retry"))

    async def fork(
        self, params: Mapping[str, Any] | None = None, *, checkpoint_id: str | None = None
    ) -> schemas.TrialDetail | None:
        """Start a new trial from a checkpoint of this one, and return it. Return None if it cannot start yet.

        Args:
            params: flat params to change; the others are copied from this trial.
            checkpoint_id: one of its checkpoints. None: the newest.
        """
        found = read(
            schemas.TrialDetail, await self.act("fork", {"params": dict(params or {}), "checkpoint_id": checkpoint_id})
        )
        return None if found.id == self.id else found

    async def stop(self) -> schemas.TrialDetail:
        """End the trial at its next report. The experiment continues."""
        return read(schemas.TrialDetail, await self.act("stop"))

    async def kill(self) -> schemas.TrialDetail:
        """End the trial's processes at once, without waiting for a report or a last checkpoint. The experiment continues."""
        return read(schemas.TrialDetail, await self.act("kill"))

    async def logs(
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
        return read(schemas.Logs, await self._get("/logs", params)).items

    async def follow_log(self, rank: int = 0, segment: int | None = None) -> AsyncIterator[str]:
        """Yield the output of one rank in pieces: first what it has printed so far, and then what it prints until it ends."""
        path = f"{API}/trials/{self.id}/logs/text"
        params = plain({"rank": rank, "segment": segment, "follow": True})
        try:
            async with self.client._http.stream(
                "GET", path, params=params, timeout=httpx.Timeout(None, connect=10.0)
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    check(answer)
                async for text in answer.aiter_text():
                    yield text
        except httpx.TransportError as lost:
            raise unreachable(self.client.address, lost) from lost

    async def curves(self, *, x: Literal["step", "time"] = "step", points: int | None = None) -> schemas.TrialCurves:
        """Return the curve of every metric that the trial has reported."""
        return read(schemas.TrialCurves, await self._get("/curves", {"x": x, "max_points": points}))

    async def usage(self, *, rank: int | None = None, segment: int | None = None) -> list[schemas.UsageSeries]:
        """Return the CPU, memory and GPU use of the trial's ranks over time."""
        return read(schemas.Usage, await self._get("/usage", {"rank": rank, "segment": segment})).items

    async def lineage(self) -> schemas.Lineage:
        """Return the segments that led to the trial's weights, and the schedule of configurations."""
        return read(schemas.Lineage, await self._get("/lineage"))

    async def neighbours(self, limit: int = 8) -> schemas.Neighbours:
        """Return the trials with the most similar configurations and their results, the nearest first."""
        return read(schemas.Neighbours, await self._get("/neighbours", {"limit": limit}))

    async def live(self) -> schemas.Live:
        """Return the Python stack and the current resource use of each rank. Raise Conflict if no rank is running."""
        return read(schemas.Live, await self._get("/live"))

    async def profile(
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
        data = await self.client.request("POST", f"/trials/{self.id}/profile", body=body, timeout_s=timeout_s)
        return read(schemas.Profile, data)

    async def _get(self, rest: str, params: Mapping[str, Any] | None = None) -> Any:
        return await self.client.request("GET", f"/trials/{self.id}{rest}", params=params)


async def connect_async(
    address: str | None = None,
    *,
    token: str | None = None,
    timeout_s: float = 60.0,
    patience_s: float = 30.0,
) -> AsyncClient:
    """Connect to a tuner service, and return its client. `AsyncClient` explains the arguments.

    Raises:
        ServiceUnreachable: no tuner service answers at the address.
        NotAllowed: the token is missing or not valid.
    """
    client = AsyncClient(address, token=token, timeout_s=timeout_s, patience_s=patience_s)
    try:
        who = await client.session()
        if not isinstance(who, dict) or "role" not in who:
            raise ServiceError(f"the server at {client.address} is not a tuner service")
        if who["role"] is None:
            # raises NotAllowed if the token is wrong
            await client.request("GET", "/experiments", params={"page_size": 1})
    except BaseException:
        await client.aclose()
        raise
    return client
