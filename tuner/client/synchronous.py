"""The client of a tuner service.

Generated from `tuner/client/asynchronous.py`; do not edit it.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import httpx

from tuner.api import schemas
from tuner.client.protocol import (
    API,
    IDEMPOTENT,
    LONG_S,
    PAGE,
    Attempts,
    Event,
    EventReader,
    LogEnd,
    address_of,
    body_of,
    check,
    check_body,
    check_configurations,
    check_headers,
    check_seconds,
    empty_folder,
    folder_of,
    headers_of,
    is_here,
    plain,
    proxies_named,
    read,
    space_patch,
    timeout_of,
    tls_of,
    unreachable,
)
from tuner.client.records import Log, found_of
from tuner.domain.keys import may_be_experiment_id, trial_id
from tuner.domain.states import ExperimentState, read_state
from tuner.errors import REFUSED, Conflict, NotFound, ServiceError, TunerError
from tuner.experiment.files import unpack
from tuner.names import did_you_mean
from tuner.sdk.result import Result
from tuner.space import Space
from tuner.usercode import archives
from tuner.usercode.importing import refuse_while_importing

if TYPE_CHECKING:
    import pandas as pd


WEBHOOK_S = 0.25
"""Seconds between two checks of whether a test delivery to a webhook has been attempted."""

LOG_S = 0.5
LOG_LOOKS = 10
"""`follow_log` asks every `LOG_S` seconds for more. After `LOG_LOOKS` answers without any, it looks if the segment has ended."""

ACTS_S = 60.0
"""Seconds within which `wait` expects the driver to act on a verb. A verb whose key was used before has no effect."""

_PAUSED = frozenset({ExperimentState.PAUSED})
_ENDED = frozenset(state for state in ExperimentState if state.ended)
_LEAVES = {"resume": _PAUSED, "cancel": _PAUSED, "kill": _PAUSED, "continue": _ENDED, "enqueue": _ENDED}
"""The verbs that take an experiment out of a state in which `wait` returns, with these states."""
_REOPEN = ("retry", "fork")
"""The verbs of a trial that run its experiment again if it has ended."""


class Client:
    """A connection to a tuner service.

    If the service cannot be reached, is restarting or asks to wait (`Retry-After`), the client retries a request for up to
    `patience_s` seconds, provided that this is safe. If the service returns an error, the client raises one of the classes
    of `tuner.errors`, with the service's message: `SpecError`, `NotFound`, `Conflict`, `NotAllowed` or `ServiceError`.

    Args:
        address: the URL of the service. None: the value of TUNER_ADDRESS.
        token: a token that `tuner token create` has printed. None: the value of TUNER_TOKEN, if it is set.
        timeout_s: seconds to wait for the answer to a request; at least 600 for one with a spec or with code, for a deletion
            and for a replay.
        patience_s: seconds after which a failed request is no longer retried.
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
        timeout = timeout_of(timeout_s)
        check_seconds("patience_s", patience_s)
        self._token, self._patience_s, self._timeout_s, self._transport = token, patience_s, timeout_s, transport
        self._reached = False  # True once the service has answered a request
        self._borrows = False  # True if the transport is another client's, which closes it
        headers, verify = headers_of(token), tls_of(self.address)
        with proxies_named():
            self._http = httpx.Client(
                base_url=self.address,
                headers=headers,
                timeout=timeout,
                verify=verify,
                trust_env=not is_here(self.address),
                transport=transport,
            )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections to the service."""
        if not self._borrows:
            self._http.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @property
    def _long_s(self) -> float:
        return max(LONG_S, self._timeout_s)

    def with_patience(self, patience_s: float) -> Client:
        """Return a new client of the same service with another `patience_s`. It shares the `transport`, if one was given."""
        found = Client(
            self.address,
            token=self._token,
            timeout_s=self._timeout_s,
            patience_s=patience_s,
            transport=self._transport,
        )
        found._borrows = self._transport is not None
        return found

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
        """Send any request, and return the JSON of the response, or None if the response has no body.

        Args:
            method: GET, POST, ...
            path: the path below ``/api/v1``, such as ``/experiments``.
            params: query parameters. Parameters that are None are left out.
            body: the body, which is sent as JSON. None: no body.
            headers: headers to send besides the usual ones.
            safe: True if the request may be retried even if it may have been carried out already. None: True for GET, HEAD,
                PUT and DELETE.
            timeout_s: seconds to wait for the answer. None: the `timeout_s` of the client.
        """
        answer = self._send(method, f"{API}{path}", params, body, headers, safe, timeout_s)
        return body_of(answer)

    def create(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> ExperimentHandle:
        """Create an experiment from its spec, and return its handle. The service starts it.

        If the connection is lost, the request is retried with the same key, so that no second experiment is created.

        Args:
            spec: the spec of the experiment, as docs/api.md describes it.
            idempotency_key: a key that identifies this request. A later request with the same key, even from another
                process, returns the experiment that the first request created. None: a new key.

        Raises:
            SpecError: the spec has mistakes. The error lists all of them.
            Conflict: the key was used before, with another spec.
        """
        refuse_while_importing("Client.create")
        key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        data = self.request("POST", "/experiments", body=dict(spec), headers=key, safe=True, timeout_s=self._long_s)
        return ExperimentHandle(self, read(schemas.Experiment, data).id)

    def upload_code(self, code: str | os.PathLike[str] | Mapping[str, Path]) -> str:
        """Upload Python code, unless the service already has it, and return the SHA-256 for the field ``bundle`` of a spec.

        Args:
            code: a folder with modules that the ranks should be able to import, or a mapping from paths in such a folder to
                files.

        Raises:
            SpecError: there is no such folder, or the code is too large.
        """
        files = code if isinstance(code, Mapping) else archives.files_of(folder_of(code))
        content = archives.pack(files)
        name = archives.sha256(content)
        try:
            self.request("GET", f"/bundles/{name}")
        except NotFound:
            kind = {"Content-Type": "application/zip"}
            self._send("PUT", f"{API}/bundles/{name}", None, None, kind, True, self._long_s, content)
        return name

    def dry_run(
        self, spec: Mapping[str, Any], *, configurations: int = 5, seconds_per_iteration: float | None = None
    ) -> schemas.DryRun:
        """Check a spec, and return what its experiment would do. Nothing is created. The errors are those of `create`."""
        data = self.request(
            "POST",
            "/experiments/dry-run",
            params={"configurations": configurations, "seconds_per_iteration": seconds_per_iteration},
            body=dict(spec),
            safe=True,
            timeout_s=self._long_s,
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
        sort: str | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.Experiment]:
        """Yield experiments, newest first or in the order of a column.

        Args:
            state: only experiments in this state.
            name: only experiments with this text in their name.
            tags: only experiments with this tag, written as ``key`` or ``key=value``. A list: only those with all of these tags.
            project: only experiments of this project.
            archived: "no": only experiments that are not archived; "yes": only archived ones; "all": both.
            sort: "name", "state", "trials", "best", "method", "started" or "duration", with "-" before it for descending order.
            limit: yield at most this many.
        """
        tag = [tags] if isinstance(tags, str) else tags
        params = {"state": state, "name": name, "tag": tag, "project": project, "archived": archived, "sort": sort}
        for item in self._items("/experiments", params, limit):
            yield read(schemas.Experiment, item)

    def experiment(self, called: str) -> ExperimentHandle:
        """Return a handle for the experiment with this id or unique name, without sending a request."""
        return ExperimentHandle(self, called)

    def act_on(self, verb: str, experiments: str | Iterable[str]) -> dict[str, schemas.Experiment | TunerError]:
        """Send a verb such as "cancel" to each of several experiments, one after the other.

        Return, for each experiment, what it is afterwards, or the error if the service has refused the verb: `NotFound`,
        `Conflict` or `SpecError`. Other errors are raised, such as that the service cannot be reached.

        Args:
            verb: "pause", "resume", "cancel", "kill", "continue", "archive" or "unarchive".
            experiments: ids or unique names, or one of them.
        """
        found: dict[str, schemas.Experiment | TunerError] = {}
        for called in [experiments] if isinstance(experiments, str) else experiments:
            try:
                found[called] = read(schemas.Experiment, self.experiment(called).act(verb))
            except REFUSED as refused:
                found[called] = refused
        return found

    def trial(self, trial: str) -> TrialHandle:
        """Return a handle for the trial with this id, ``trl_...``, without sending a request."""
        return TrialHandle(self, trial)

    def checkpoint(self, checkpoint_id: str) -> schemas.CheckpointItem:
        """Return a checkpoint: the trial and the segment that saved it, whether its files can be used, and whether it is pinned.

        checkpoint_id: the id, ``ckp_...``, such as ``handle.best().checkpoint_id``.
        """
        return read(schemas.CheckpointItem, self.request("GET", f"/checkpoints/{quote(checkpoint_id, safe='')}"))

    def pin_checkpoint(self, checkpoint_id: str) -> schemas.CheckpointItem:
        """Pin a checkpoint, so that the experiment's checkpoint policy does not delete it, and return it.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the checkpoint has been deleted.
        """
        path = f"/checkpoints/{quote(checkpoint_id, safe='')}/pin"
        return read(schemas.CheckpointItem, self.request("POST", path, safe=True))

    def unpin_checkpoint(self, checkpoint_id: str) -> schemas.CheckpointItem:
        """Unpin a checkpoint, so that the experiment's checkpoint policy may delete it again, and return it."""
        path = f"/checkpoints/{quote(checkpoint_id, safe='')}/unpin"
        return read(schemas.CheckpointItem, self.request("POST", path, safe=True))

    def download_checkpoint(self, checkpoint_id: str, path: str | os.PathLike[str] | None = None) -> str:
        """Download the files of a checkpoint into a folder, and return its path.

        The service sends the files itself, so they need not be readable on this machine. If the download fails, its files
        are deleted. Until all files have arrived, the disk needs room for twice their size.

        Args:
            checkpoint_id: the id, ``ckp_...``, such as ``handle.best().checkpoint_id``.
            path: a folder that does not exist yet, or that is empty. None: a new temporary folder.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the service cannot read the files, because the checkpoint was deleted or is on another node's disk.
            SpecError: `path` is a file, or a folder that is not empty.
        """
        with empty_folder(path) as folder, tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as aside:
            packed, files = Path(aside, "checkpoint.tar"), Path(aside, "files")
            self._download(f"/checkpoints/{quote(checkpoint_id, safe='')}/download", packed)
            files.mkdir()
            for _ in unpack(packed, files):
                time.sleep(0)  # the event loop of the caller goes on
            for entry in files.iterdir():
                entry.rename(folder / entry.name)
        return str(folder)

    def session(self) -> dict[str, Any]:
        """Return the name and the role of the client's token, when it expires, and whether the service requires a token.

        The keys are "name", "role", "expires_at", "required" and others, as in `Session` in docs/api_reference.md.
        """
        found: dict[str, Any] = self.request("GET", "/session")
        return found

    def projects(self) -> list[schemas.Project]:
        """Return the projects that have experiments, settings or a quota, ordered by name."""
        return read(schemas.ProjectList, self.request("GET", "/projects")).items

    def project(self, name: str) -> schemas.Project:
        """Return a project with its settings and what its experiments have used."""
        return read(schemas.Project, self.request("GET", f"/projects/{quote(name, safe='')}"))

    def change_project(self, name: str, *, warm_start: Literal["auto"] | None) -> schemas.Project:
        """Change the settings of a project, and return the changed project. Existing experiments do not change.

        Args:
            name: the name of the project. It need not have any experiments yet.
            warm_start: the ``warm_start`` of new experiments whose spec has none. "auto": they learn from earlier experiments
                of the project with the same metric and a similar space. None: they do not.
        """
        body = {"warm_start": warm_start}
        return read(schemas.Project, self.request("PATCH", f"/projects/{quote(name, safe='')}", body=body))

    def cluster(self) -> schemas.Cluster:
        """Return the nodes of the cluster, the worker groups on them, the agents, and what waits for resources.

        Raises:
            ServiceError: no driver of the service answers (`status` is 503).
        """
        return read(schemas.Cluster, self.request("GET", "/cluster"))

    def tokens(self) -> list[schemas.Token]:
        """Return all tokens, newest first, without their secrets. This needs the role admin."""
        return read(schemas.TokenList, self.request("GET", "/tokens")).items

    def create_token(
        self,
        name: str,
        *,
        role: schemas.RoleName = "editor",
        project: str | None = None,
        expires_days: float | None = None,
    ) -> schemas.Token:
        """Create a token, and return it with its secret, which cannot be read again later. This needs the role admin.

        Args:
            name: the person or program that will use the token.
            role: "viewer", "editor", "admin", or "agent", which may only run trials.
            project: the only project that the token gives access to. None: your own limit applies, if there is one.
            expires_days: days until the token expires. None: it never expires.

        Raises:
            SpecError: an argument is wrong.
        """
        body = {"name": name, "role": role, "project": project, "expires_days": expires_days}
        return read(schemas.Token, self.request("POST", "/tokens", body=body))

    def revoke_token(self, token_id: str) -> schemas.Token:
        """Revoke a token, and return it. Every service notices within 5 s. This needs the role admin.

        token_id: the id, ``tok_...``, not the secret.

        Raises:
            NotFound: there is no such token.
        """
        path = f"/tokens/{quote(token_id, safe='')}/revoke"
        return read(schemas.Token, self.request("POST", path, safe=True))

    def audit(self, *, limit: int | None = None) -> Iterator[schemas.AuditEntry]:
        """Yield the entries of the audit trail, which say who changed what, newest first. This needs the role admin.

        limit: yield at most this many.
        """
        for item in self._items("/audit", limit=limit):
            yield read(schemas.AuditEntry, item)

    def webhooks(self) -> list[schemas.Webhook]:
        """Return all webhooks, newest first, without their secrets."""
        return read(schemas.WebhookList, self.request("GET", "/webhooks")).items

    def create_webhook(
        self,
        url: str,
        events: str | Sequence[str],
        *,
        project: str | None = None,
        experiment_id: str | None = None,
        format: Literal["json", "slack"] = "json",
        threshold: float | None = None,
    ) -> schemas.Webhook:
        """Create a webhook, and return it with the secret that signs its deliveries. The secret cannot be read again later.

        Args:
            url: the URL to which deliveries are sent.
            events: the events to send, such as ``["experiment.completed", "trial.failed"]``, or one of them;
                docs/operations.md lists all events.
            project: send only events of this project. None: send the events of all projects that this
                client may see.
            experiment_id: send only events of this experiment. None: send the events of all experiments in the
                project.
            format: "json", or "slack" for an incoming webhook of Slack.
            threshold: the value of the first objective at which ``objective.reached`` is sent. None: never.
        """
        body = {
            "url": url,
            "events": [events] if isinstance(events, str) else list(events),
            "project": project,
            "experiment_id": experiment_id,
            "format": format,
            "threshold": threshold,
        }
        return read(schemas.Webhook, self.request("POST", "/webhooks", body=body))

    def change_webhook(self, webhook_id: str, **changes: Any) -> schemas.Webhook:
        """Change the url, events, format or threshold of a webhook, and return the changed webhook."""
        return read(schemas.Webhook, self.request("PATCH", f"/webhooks/{quote(webhook_id, safe='')}", body=changes))

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its deliveries."""
        self.request("DELETE", f"/webhooks/{quote(webhook_id, safe='')}")

    def webhook_deliveries(self, webhook_id: str, *, limit: int | None = 100) -> list[schemas.Delivery]:
        """Return the deliveries of a webhook, newest first.

        limit: return at most this many. None: return all.
        """
        found = self._items(f"/webhooks/{quote(webhook_id, safe='')}/deliveries", limit=limit)
        return [read(schemas.Delivery, item) for item in found]

    def test_webhook(self, webhook_id: str, *, timeout_s: float = 30.0) -> schemas.Delivery:
        """Send the event ``test`` to a webhook, and return the delivery after the first attempt to send it.

        The delivery's `state` says whether it arrived.

        timeout_s: return the delivery after this many seconds even if no attempt has been made.
        """
        made = read(schemas.Delivery, self.request("POST", f"/webhooks/{quote(webhook_id, safe='')}/test"))
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
        check_body(body)
        check_headers(headers)
        attempts = Attempts(method in IDEMPOTENT if safe is None else safe, self._patience_s, self._reached)
        timeout = timeout_of(self._timeout_s if timeout_s is None else timeout_s)
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

    def _download(self, path: str, file: Path) -> None:
        """Write the body of the response to a GET request to a file. If the connection is lost, begin again.

        A download may take longer than the `patience_s`, which counts from the first failure.
        """
        attempts = Attempts(True, self._patience_s, self._reached)
        while True:
            answer: httpx.Response | None = None
            error: httpx.TransportError | None = None
            try:
                with self._http.stream("GET", f"{API}{path}") as answer:
                    self._reached = attempts.reached = True
                    if answer.status_code != 200:
                        answer.read()
                    else:
                        with file.open("wb") as out:
                            for part in answer.iter_bytes():
                                out.write(part)
                        return
            except httpx.TransportError as lost:
                error = lost
            if attempts.made == 0:
                attempts.begun = time.monotonic()
            wait = attempts.wait_s(None if error is not None else answer, error)
            if wait is None and error is not None:
                raise unreachable(self.address, error) from error
            if wait is None:
                assert answer is not None
                check(answer)
                raise ServiceError(f"expected the files of a checkpoint, got the status {answer.status_code}")
            time.sleep(wait)

    def _items(self, path: str, params: Mapping[str, Any] | None = None, limit: int | None = None) -> Iterator[Any]:
        """Yield the items of a list from all its pages, as JSON.

        limit: yield at most this many. None: yield all.
        """
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
        """Yield server-sent events, beginning after the event_seq `after`, indefinitely.

        If the connection is lost, reconnect and continue after the last event that was received. If a backup without that event
        has been restored in the meantime, the events begin again.
        """
        attempts = Attempts(True, self._patience_s, self._reached)
        last: dict[str, str] = {}
        while True:
            error: httpx.TransportError | None = None
            answer: httpx.Response | None = None
            try:
                # The service sends at least a comment every 15 s.
                timeout = timeout_of(self._timeout_s)
                asked: dict[str, Any] = {"params": {"after": after}, "headers": last, "timeout": timeout}
                with self._http.stream("GET", f"{API}{path}", **asked) as answer:
                    self._reached = attempts.reached = True
                    if answer.status_code >= 400:
                        answer.read()
                    else:
                        events = EventReader()
                        for part in answer.iter_bytes():
                            attempts.begun = time.monotonic()  # a stream may be quiet for hours, but for its comments
                            for event in events.feed(part):
                                attempts = Attempts(True, self._patience_s)
                                if event.id:
                                    after, last = int(event.id), {"Last-Event-ID": event.id}
                                yield event
            except httpx.TransportError as lost:
                error = lost
            if answer is not None and answer.status_code >= 400:
                wait = attempts.wait_s(answer, None)
                if wait is None:
                    check(answer)
            else:  # the service has ended the stream, or the connection has been lost
                error = error or httpx.RemoteProtocolError("the stream ended")
                wait = attempts.wait_s(None, error)
            if wait is None:
                assert error is not None
                raise unreachable(self.address, error) from error
            time.sleep(wait)


class ExperimentHandle:
    """A handle for one experiment of a service. Each call asks the service.

    Besides the id, the handle keeps what `wait` must not take for the outcome of the latest verb.
    """

    def __init__(self, client: Client, called: str) -> None:
        self.client = client
        # last_event_seq and state of the experiment when it was sent a verb that takes it out of this state
        self._before: tuple[int, str] | None = None
        self._acts_until = 0.0  # when the driver should have acted on that verb, by the monotonic clock
        self.id = called
        """The id, ``exp_...``. If the handle was made from a name, this is the name until the first request."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    def get(self) -> schemas.Experiment:
        """Return the experiment as it is now."""
        return read(schemas.Experiment, self._get(""))

    def wait(self, timeout_s: float | None = None) -> schemas.Experiment:
        """Wait until the experiment has ended or is paused, and return it. If it has failed, warn with the reason.

        If this handle has just sent `resume`, `continue_`, `enqueue`, `cancel` or `kill`, or a trial from `trial` has just sent
        `retry` or `fork`, the state from before does not count, unless the driver has not acted on the verb for a minute.

        Raises:
            TimeoutError: the experiment is still running after `timeout_s` seconds.
        """
        begun, pause_s = time.monotonic(), 0.05
        while True:
            found = self.get()
            over = found.state.ended or found.state is ExperimentState.PAUSED
            if (found.last_event_seq, found.state) == self._before and time.monotonic() < self._acts_until:
                over = False
            if over and found.state is ExperimentState.FAILED:
                why = found.error or found.reason
                warnings.warn(f"{found.name} ({found.id}) has failed: {why}", UserWarning, stacklevel=2)
            if over:
                return found
            if timeout_s is not None and time.monotonic() - begun >= timeout_s:
                raise TimeoutError(f"{self.id} is still {found.state} after {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1.0)

    def act(self, verb: str, body: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None) -> Any:
        """Send a verb such as "pause" to the experiment, and return the JSON of the response.

        idempotency_key: a key that identifies this request, for the verbs "continue", "enqueue" and "fork". If such a request
            is repeated with the same key, it is not carried out again.
        """
        headers = None if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        safe = body is None or idempotency_key is not None
        data = self.client.request("POST", f"{self._path()}/{verb}", body=body, headers=headers, safe=safe)
        if data.get("state") in _LEAVES.get(verb, ()):
            self._leaves(data["last_event_seq"], data["state"])
        return data

    def _leaves(self, seq: int, state: str) -> None:
        """Note that the experiment, which has this last_event_seq and state, was sent a verb that takes it out of this state."""
        self._before = (seq, state)
        self._acts_until = time.monotonic() + ACTS_S

    def pause(self) -> schemas.Experiment:
        """Pause every trial at its next report."""
        return read(schemas.Experiment, self.act("pause"))

    def resume(self) -> schemas.Experiment:
        """Continue the experiment if it is paused, or if its script has ended."""
        return read(schemas.Experiment, self.act("resume"))

    def cancel(self) -> schemas.Experiment:
        """End the experiment and all its trials."""
        return read(schemas.Experiment, self.act("cancel"))

    def kill(self) -> schemas.Experiment:
        """End the experiment and all its processes at once, without waiting for reports or checkpoints."""
        return read(schemas.Experiment, self.act("kill"))

    def continue_(self, num_samples: int | None = None, *, idempotency_key: str | None = None) -> schemas.Experiment:
        """Start more trials. If the experiment has ended, it runs again.

        Args:
            num_samples: the number of trials to add; for a grid, how many more times to run it. None: add no trials; use this
                after you have raised a limit.
            idempotency_key: a key that identifies this request. A later request with the same key, even from another
                process, adds no more trials. None: a new key, so that repeating the request after a lost response is safe.
        """
        key = idempotency_key or uuid.uuid4().hex
        data = self.act("continue", {"num_samples": num_samples}, idempotency_key=key)
        return read(schemas.Experiment, data)

    def enqueue(
        self, configurations: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> schemas.Experiment:
        """Start trials with these configurations next, in addition to `num_samples`. If the experiment has ended, it runs again.

        Args:
            configurations: the parameters of each trial, such as ``[{"lr": 0.01}]``. Missing ones are drawn at random.
            idempotency_key: a key that identifies this request, as for `continue_`.

        Raises:
            SpecError: a configuration is not in the search space, or `configurations` is not a list.
        """
        check_configurations(configurations)
        key = idempotency_key or uuid.uuid4().hex
        body = {"configurations": [dict(one) for one in configurations]}
        return read(schemas.Experiment, self.act("enqueue", body, idempotency_key=key))

    def fork(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        learn: bool = False,
        idempotency_key: str | None = None,
    ) -> ExperimentHandle:
        """Create an experiment from this one's spec, and return the handle of the new one. The service starts it.

        Args:
            changes: a JSON merge patch of the spec, such as ``{"space": {"lr": {"upper": 0.5}}, "num_samples": 32}``.
            learn: True to let the new search learn from the trials of this experiment, as ``warm_start`` does.
            idempotency_key: a key that identifies this request, as for `Client.create`.
        """
        data = self.client.request(
            "POST",
            f"{self._path()}/fork",
            body={"changes": dict(changes or {}), "learn": learn},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            safe=True,
            timeout_s=self.client._long_s,
        )
        return ExperimentHandle(self.client, read(schemas.Experiment, data).id)

    def spec(self) -> schemas.SpecCopy:
        """Return the spec of the experiment as `Client.create` takes it, and what it cannot contain.

        The spec leaves out options that have their defaults. Its ``runtime_env`` may contain secrets, so your token needs the
        role editor.
        """
        return read(schemas.SpecCopy, self._get("/spec"))

    def change(self, *, etag: str | None = None, **changes: Any) -> schemas.Experiment:
        """Change the name, notes, tags, num_samples, limits or search space of the experiment, even while it runs.

        Args:
            etag: the ETag with which the experiment was read. If it has been changed since then, raise Conflict and change
                nothing. None: do not check this.
            changes: new values, such as ``notes="..."`` or ``limits={"time_budget_s": 600}``. A `space` maps each
                parameter that changes to its new domain, such as `tuner.uniform(0, 1)` or its JSON form, and each parameter to
                remove to None. `assume` maps each new parameter to the value that it had in the trials so far, or to None to
                ignore the results of those trials.
        """
        if isinstance(changes.get("space"), Mapping):
            changes["space"] = space_patch(changes["space"])
        headers = {"If-Match": etag} if etag else None
        data = self.client.request("PATCH", self._path(), body=changes, headers=headers, safe=etag is None)
        return read(schemas.Experiment, data)

    def archive(self) -> schemas.Experiment:
        """Archive the experiment, which must have ended: lists leave it out, but no data are deleted."""
        return read(schemas.Experiment, self.act("archive"))

    def unarchive(self) -> schemas.Experiment:
        """Unarchive the experiment, so that lists show it again."""
        return read(schemas.Experiment, self.act("unarchive"))

    def delete(self, *, force: bool = False) -> None:
        """Delete the experiment with its trials, checkpoints and logs. With `force`, kill it first if it has not ended."""
        path, params = self._path(), {"force": force or None}
        self.client.request("DELETE", path, params=params, safe=False, timeout_s=self.client._long_s)

    def trials(
        self,
        *,
        state: str | None = None,
        sort: str | None = None,
        where: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.Trial]:
        """Yield the trials of the experiment, sorted by number by default.

        Args:
            state: only trials in this state.
            sort: the column to sort by, such as ``best_value`` or ``params.lr``; with a minus before it, in descending order.
            where: only trials that meet all of these conditions, such as ``best_value>=0.9``.
            limit: yield at most this many.
        """
        conditions = [where] if isinstance(where, str) else where
        params = {"state": state, "sort": sort, "where": conditions}
        for item in self.client._items(f"{self._path()}/trials", params, limit):
            yield read(schemas.Trial, item)

    def trial(self, number: int) -> TrialHandle:
        """Return a handle for the trial with this number."""
        self._path()
        return TrialHandle(self.client, trial_id(self.id, number), self)

    def decisions(
        self,
        *,
        trial: int | None = None,
        kind: str | Sequence[str] | None = None,
        text: str | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.Decision]:
        """Yield decisions with their reasons, newest first.

        Args:
            trial: only decisions about the trial with this number.
            kind: only decisions of this kind, or of one of these kinds.
            text: only decisions with this text in their reason.
            limit: yield at most this many.
        """
        params = {"trial": trial, "kind": [kind] if isinstance(kind, str) else kind, "text": text}
        for item in self.client._items(f"{self._path()}/decisions", params, limit):
            yield read(schemas.Decision, item)

    def log(
        self, *, trial: int | None = None, kind: str | Sequence[str] | None = None, limit: int | None = None
    ) -> Iterator[schemas.LogEntry]:
        """Yield the entries of the experiment's log, newest first. `events` yields them in order, and follows new ones.

        Args:
            trial: only entries about the trial with this number.
            kind: only entries of this kind, such as ``segment_ended``, or of one of these kinds.
            limit: yield at most this many.
        """
        params = {"trial": trial, "kind": [kind] if isinstance(kind, str) else kind}
        for item in self.client._items(f"{self._path()}/log", params, limit):
            yield read(schemas.LogEntry, item)

    def driver_log(self, *, tail: int = 1000, search: str | None = None) -> schemas.DriverLog:
        """Return the newest lines of the driver host's own log of this experiment.

        Args:
            tail: at most this many lines.
            search: only lines that contain this text, ignoring case.

        Raises:
            NotFound: neither the service nor its driver host has such a log, because a script on another machine drives the
                experiment, or because logs are turned off (`TUNER_LOG_BYTES=0`).
        """
        return read(
            schemas.DriverLog,
            self._get("/driver-log", {"tail": tail, "search": search}),
        )

    def segments(self, *, cause: str | Sequence[str] | None = None) -> Iterator[schemas.SegmentItem]:
        """Yield the segments of all trials, oldest first.

        cause: only segments that were started for this cause, or for one of these causes.
        """
        params = {"cause": [cause] if isinstance(cause, str) else cause}
        for item in self.client._items(f"{self._path()}/segments", params):
            yield read(schemas.SegmentItem, item)

    def curves(
        self,
        metric: str | None = None,
        *,
        x: schemas.Across = "step",
        x_metric: str | None = None,
        trials: Sequence[int] | None = None,
        points: int | None = None,
        limit: int | None = None,
    ) -> schemas.Curves:
        """Return the curve of a metric, by default the first objective, for each trial.

        Args:
            metric: the name of the metric.
            x: the horizontal axis: the training_iteration ("step"), the step that the training code passed ("user_step"),
                seconds for which the experiment had run ("time"), seconds for which the trial has trained ("trial_time"), or
                another metric of the same reports ("metric").
            x_metric: the name of that metric.
            trials: the numbers of the trials. None: all trials, or a sample if there are more than `limit`.
            points: the approximate number of points of the longest curve. None: 1,000.
            limit: the maximum number of trials to return if `trials` is None. None: 2,000.
        """
        params = {"metric": metric, "x": x, "x_metric": x_metric, "trial": trials, "points": points, "limit": limit}
        return read(schemas.Curves, self._get("/curves", params))

    def best_so_far(
        self, metric: str | None = None, x: Literal["time", "trial_time"] | None = None
    ) -> schemas.BestSoFarOf:
        """Return the best value so far, with a point for each improvement.

        Args:
            metric: the name of a metric; None for the first objective.
            x: "time" (the default), the seconds for which the experiment had run; or "trial_time", the seconds for which all
                trials together had trained.
        """
        return read(schemas.BestSoFarOf, self._get("/best-so-far", {"metric": metric, "x": x}))

    def pareto(self) -> schemas.Pareto:
        """Return the Pareto front of several objectives, computed from the newest values of the trials."""
        return read(schemas.Pareto, self._get("/pareto"))

    def hypervolume(self) -> schemas.Hypervolume:
        """Return how the Pareto front of several objectives grew, and how many trials are on it.

        The hypervolume is a share of the box between the worst and the best value of each objective, from 0 to 1.
        """
        return read(schemas.Hypervolume, self._get("/hypervolume"))

    def importance(self, metric: str | None = None, *, where: str | Sequence[str] | None = None) -> schemas.Importances:
        """Return how important each parameter is for an objective.

        Args:
            metric: the objective; None for the first one. For another objective, each trial's newest value is used.
            where: use only trials that meet all of these conditions, written as for `trials`.
        """
        conditions = [where] if isinstance(where, str) else where
        return read(schemas.Importances, self._get("/importance", {"metric": metric, "where": conditions}))

    def timeline(self, first: int = 0, limit: int = 200) -> schemas.Timeline:
        """Return when trials waited, started and ran, and when nodes and GPUs were in use.

        Only `limit` trials are included, beginning with trial number `first`.
        """
        return read(schemas.Timeline, self._get("/timeline", {"first": first, "limit": limit}))

    def forecast(self, hours: float = 1.0) -> schemas.Forecast:
        """Return a forecast of when the experiment will end, of its best value then, and of the gain from more training.

        hours: the additional training, in GPU hours, or in hours of running time if trials use no GPUs.
        """
        return read(schemas.Forecast, self._get("/forecast", {"hours": hours}))

    def replay(
        self,
        scheduler: str | Mapping[str, Any] | None = None,
        *,
        search: str | Mapping[str, Any] | None = None,
        max_concurrent_trials: int | None = None,
    ) -> schemas.Replay:
        """Return what another scheduler or searcher would have done with the recorded trials. Nothing is trained.

        Args:
            scheduler: the scheduler as in a spec, such as "asha" or ``{"type": "asha", "reduction_factor": 3}``. None: that of
                the experiment.
            search: the searcher as in a spec. None: the trials start in the recorded order.
            max_concurrent_trials: how many trials train at the same time. None: as many as in the experiment.

        Raises:
            SpecError: an argument is wrong, the experiment has too many reports, or the replay takes too long.
        """
        body = {"scheduler": scheduler, "search": search, "max_concurrent_trials": max_concurrent_trials}
        path = f"{self._path()}/replay"
        # Others may be replayed before, each for as long as the service allows.
        data = self.client.request("POST", path, body=body, safe=True, timeout_s=self.client._long_s)
        return read(schemas.Replay, data)

    def best(self) -> schemas.Best | None:
        """Return the best result so far, with its trial, value and configuration, or None if there is no result."""
        return (self.get()).best

    def checkpoints(
        self,
        *,
        trial: int | None = None,
        state: Literal["uploading", "ready", "deleted"] | None = None,
        limit: int | None = None,
    ) -> Iterator[schemas.CheckpointItem]:
        """Yield checkpoints, newest first.

        Args:
            trial: only checkpoints of the trial with this number.
            state: only checkpoints in this state. The files of a "ready" one can be used.
            limit: yield at most this many.
        """
        params = {"trial": trial, "state": state}
        for item in self.client._items(f"{self._path()}/checkpoints", params, limit):
            yield read(schemas.CheckpointItem, item)

    def follow(self, after: int | None = None) -> Iterator[schemas.Changes]:
        """Yield changes of the experiment, its trials, decisions and reports until it has ended; see docs/api.md.

        Args:
            after: yield only changes after this event_seq. None: first yield the experiment as it is now, and then changes
                from now on.
        """
        if after is None:
            after = (self.get()).last_event_seq
        ended = False  # a message without the experiment says that its row has not changed
        with closing(self.client._events(f"{self._path()}/changes", after)) as stream:
            for event in stream:
                changes = read(schemas.Changes, event.data)
                yield changes
                if changes.experiment is not None:
                    ended = changes.experiment.state.ended
                if changes.reset or ended:
                    now = self.get()
                    if now.state.ended and now.last_event_seq <= changes.seq:
                        return

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the entries of the experiment's log, by default all, until it has ended.

        If a backup that lacks the last of them has been restored in the meantime, the entries begin again.

        after: yield only entries after this event_seq.
        """
        with closing(self.client._events(f"{self._path()}/events", after)) as stream:
            for event in stream:
                yield event.data
                if event.name == "experiment" and read_state(ExperimentState, event.data["state"]).ended:
                    return

    def result(self, space: Space | None = None, *, log: bool = True) -> Result:
        """Return the same as `tuner.run`: all trials with their histories, the best trials, and their checkpoints.

        Args:
            space: the experiment's first search space, with the Python objects of its choices. None: the space that the
                service returns, which has only labels for these objects.
            log: False to leave out the decisions, and the histories and notes of the trials, which take most of the time.
                With `space`, nothing is left out, since its functions need the log.
        """
        experiment = self.get()
        read_log = Log()
        if experiment.last_event_seq and (log or space is not None):
            with closing(self.client._events(f"{self._path()}/events", 0)) as stream:
                for event in stream:
                    read_log.add(event)
                    if read_log.seq >= experiment.last_event_seq:
                        break
        elif experiment.best is not None and experiment.best.checkpoint_id is not None:
            read_log.add_checkpoint(self.client.checkpoint(experiment.best.checkpoint_id))
        trials = [trial for trial in self.trials()]
        segments = [segment for segment in self.segments()]
        return Result(found_of(experiment, trials, segments, read_log, space))

    def dataframe(self, history: bool = False) -> pd.DataFrame:
        """Return a DataFrame with a row for each trial, or with a row for each report if `history` is True.

        Configurations are in columns such as ``config/lr``.
        """
        return (self.result(log=history)).dataframe(history)

    def _get(self, rest: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.client.request("GET", f"{self._path()}{rest}", params=params)

    def _path(self) -> str:
        """Return the URL path of the experiment. If only its name is known so far, look up its id."""
        if not may_be_experiment_id(self.id):
            self.id = self._named(self.id)
        return f"/experiments/{self.id}"

    def _named(self, name: str) -> str:
        near: list[str] = []
        found: list[schemas.Experiment] = []
        for one in self.client.experiments(name=name, archived="all"):
            near.append(one.name)
            if one.name == name:
                found.append(one)
        if len(found) > 1:
            raise Conflict(
                f"{len(found)} experiments have the name {name!r}; use an id (newest first): "
                + ", ".join(f"{one.id} ({one.state}, of the project {one.project})" for one in found[:10])
            )
        if not found and name.startswith("exp_"):  # probably a wrong id, for which no similar name is of use
            raise NotFound(f"no experiment {name}")
        if not found:
            near = near or [one.name for one in self.client.experiments(limit=PAGE)]
            raise NotFound(f"no experiment {name!r}{did_you_mean(name, near, chr(39))}")
        return str(found[0].id)


class TrialHandle:
    """A handle for one trial of a service. Each call asks the service.

    Besides the id, it keeps the handle of the experiment from which it was made, if any, whose `wait` it tells of its verbs.
    """

    def __init__(self, client: Client, trial: str, experiment: ExperimentHandle | None = None) -> None:
        self.client = client
        self._experiment = experiment
        self.id = trial

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} at {self.client.address})"

    def get(self) -> schemas.TrialDetail:
        """Return the trial as it is now, with its segments."""
        return read(schemas.TrialDetail, self._get(""))

    def act(self, verb: str, body: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None) -> Any:
        """Send a verb such as "stop" to the trial, and return the JSON of the response.

        idempotency_key: a key that identifies this request. If the request is repeated with the same key, it is not carried out
            again. None: a new key, so that repeating it after a lost response is safe.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        before = self._experiment.get() if self._experiment is not None and verb in _REOPEN else None
        data = self.client.request("POST", f"/trials/{self.id}/{verb}", body=body, headers=headers, safe=True)
        if self._experiment is not None and before is not None and before.state.ended:
            self._experiment._leaves(before.last_event_seq, before.state)
        return data

    def retry(self, *, idempotency_key: str | None = None) -> schemas.TrialDetail:
        """Retry the trial, which must have failed: start a new trial with the same configuration from its newest checkpoint.

        idempotency_key: a key that identifies this request, as for `ExperimentHandle.continue_`.
        """
        return read(schemas.TrialDetail, self.act("retry", idempotency_key=idempotency_key))

    def fork(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        checkpoint_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.TrialDetail | None:
        """Start a new trial from a checkpoint of this one.

        Return the new trial, or None if the driver has not started it yet.

        Args:
            params: params to change, as a flat mapping. All other params are copied from this trial.
            checkpoint_id: a checkpoint of this trial. None: its newest usable checkpoint.
            idempotency_key: a key that identifies this request, as for `retry`.
        """
        body = {"params": dict(params or {}), "checkpoint_id": checkpoint_id}
        found = read(schemas.TrialDetail, self.act("fork", body, idempotency_key=idempotency_key))
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
        """Return what the ranks have printed, with an item for each segment and rank.

        Args:
            rank: only this rank.
            segment: only the segment with this ordinal.
            tail: only this many lines at the end of each log.
            search: only lines that contain this text, ignoring case.
            offset: only the part of each log from this byte on, such as the `end` of an item from an earlier call.
            limit: at most this many bytes of each log.
        """
        params = {"rank": rank, "segment": segment, "tail": tail, "search": search, "offset": offset, "limit": limit}
        return read(schemas.Logs, self._get("/logs", params)).items

    def follow_log(self, rank: int = 0, segment: int | None = None) -> Iterator[str]:
        """Yield what one rank has printed so far, and then what it prints until it ends, in pieces of text.

        A service that is started again is waited for, and nothing is left out or repeated.

        segment: the ordinal of the segment. None: the newest.
        """
        if segment is None:
            segment = max((part.ordinal for part in (self.get()).segments), default=1)
        offset, quiet, end = 0, 0, LogEnd()
        while True:
            text = ""
            for log in self.logs(rank=rank, segment=segment, offset=offset):
                offset, text = log.end, log.text
                if text:
                    yield text
                if log.complete:
                    return
            quiet = 0 if text else quiet + 1
            if quiet % LOG_LOOKS == 1:
                part = next((one for one in (self.get()).segments if one.ordinal == segment), None)
                if part is None or end.is_reached(part.ended_at):
                    return
            if not text:
                time.sleep(LOG_S)

    def curves(
        self, *, x: schemas.Across = "step", x_metric: str | None = None, points: int | None = None
    ) -> schemas.TrialCurves:
        """Return the curve of every metric that the trial has reported, on the same axis as the experiment's `curves`."""
        params = {"x": x, "x_metric": x_metric, "points": points}
        return read(schemas.TrialCurves, self._get("/curves", params))

    def usage(self, *, rank: int | None = None, segment: int | None = None) -> list[schemas.UsageSeries]:
        """Return the CPU, memory and GPU usage of the trial's ranks over time."""
        return read(schemas.Usage, self._get("/usage", {"rank": rank, "segment": segment})).items

    def lineage(self, at: Literal["newest", "best"] = "newest") -> schemas.Lineage:
        """Return the segments that led to the trial's weights, and the schedule of their configurations.

        Args:
            at: "newest" for the trial's newest weights, "best" for those with which it reported its best value.
        """
        return read(schemas.Lineage, self._get("/lineage", {"at": at}))

    def neighbors(self, limit: int = 8) -> schemas.Neighbors:
        """Return the `limit` trials whose configurations are most similar to this trial's, nearest first."""
        return read(schemas.Neighbors, self._get("/neighbors", {"limit": limit}))

    def live(self) -> schemas.Live:
        """Return the current Python stack and resource usage of each rank, and the state of the trial's Ray Data data sets.

        Raises:
            Conflict: the trial is not running, or another driver runs it.
        """
        return read(schemas.Live, self._get("/live"))

    def profile(
        self,
        rank: int = 0,
        *,
        kind: Literal["cpu", "memory"] = "cpu",
        duration_s: float = 5.0,
        rate_hz: float = 100.0,
    ) -> schemas.Profile:
        """Profile a running rank for a few seconds, and return the profile.

        The profile's `speedscope_json()` returns a file for https://www.speedscope.app, and `collapsed()` one for flame graphs.

        Args:
            rank: which rank.
            kind: "cpu": sample its Python stacks. "memory": trace what it allocates, which slows the training down.
            duration_s: seconds to observe it, at most 60.
            rate_hz: samples per second, at most 250.

        Raises:
            Conflict: the rank is not running, is already being profiled, or belongs to an agent or to another driver.
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
    """Connect to a tuner service, and return a client of it. The arguments are those of `Client`.

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
            # the session's route allows everybody, but this one raises NotAllowed if the token is wrong
            client.request("GET", "/experiments", params={"page_size": 1})
    except BaseException:
        client.close()
        raise
    return client
