"""The stream of changed rows: a client that replaces rows by id and appends points has what GET answers, at any moment."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
import pytest

from tests.store.examples import T0, a_report, begin
from tests.web.searches import Search, digits, steady
from tuner.api import stream
from tuner.domain.batch import Batch
from tuner.domain.decisions import Finish
from tuner.domain.events import DriverStarted
from tuner.domain.experiment import Limits, Spec
from tuner.domain.states import ExperimentState
from tuner.store import Store
from tuner.store.records import Progress
from tuner.store.sql.connect import StoreUnavailable

Row = dict[str, Any]
METRICS = ("accuracy", "loss")
CLIENT = httpx.Client(timeout=20)  # one for all: making one takes longer than most requests


@dataclass
class Follower:
    """A client that holds an experiment as the page does: read once, then kept up to date by the stream alone."""

    server: str
    id: str
    seq: int = 0
    experiment: Row = field(default_factory=dict)
    trials: dict[str, Row] = field(default_factory=dict)
    segments: dict[tuple[int, int], Row] = field(default_factory=dict)
    decisions: dict[int, Row] = field(default_factory=dict)
    points: dict[int, Row] = field(default_factory=dict)
    resets: int = 0
    sizes: list[int] = field(default_factory=list)

    def get(self, path: str, **query: Any) -> Row:
        response = CLIENT.get(f"{self.server}/api/v1/experiments/{self.id}{path}", params=query)
        response.raise_for_status()
        found: Row = response.json()
        return found

    def read(self) -> None:
        self.experiment = self.get("")
        self.seq = self.experiment["last_event_seq"]
        self.trials = {row["id"]: row for row in self.get("/trials", page_size=1000)["items"]}
        self.segments = {_place(row): row for row in self.get("/segments", page_size=1000)["items"]}
        self.decisions = {row["seq"]: row for row in self.get("/decisions", page_size=1000)["items"]}

    def messages(self, lines: Iterator[str]) -> Iterator[Row]:
        for line in lines:
            if line.startswith("data: "):
                self.sizes.append(len(line))
                yield json.loads(line.removeprefix("data: "), parse_constant=pytest.fail)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Iterator[Row]]:
        url = f"{self.server}/api/v1/experiments/{self.id}/changes"
        with CLIENT.stream("GET", url, headers={"Last-Event-ID": str(self.seq)}) as response:
            assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            yield self.messages(response.iter_lines())

    def take(self, messages: Iterator[Row], upto: int) -> None:
        """Apply messages until everything up to this entry is there."""
        self.apply(next(messages))
        while self.seq < upto:
            self.apply(next(messages))

    def apply(self, changes: Row) -> None:
        assert changes["seq"] >= self.seq
        self.seq = changes["seq"]
        if changes["reset"]:
            self.resets += 1
            return self.read()
        self.experiment = changes["experiment"] or {**self.experiment, "last_event_seq": self.seq}
        self.trials |= {row["id"]: row for row in changes["trials"]}
        self.segments |= {_place(row): row for row in changes["segments"]}
        self.decisions |= {row["seq"]: row for row in changes["decisions"]}
        new = {row["seq"]: row for row in changes["points"]}
        assert not new.keys() & self.points.keys(), "no report comes twice"
        self.points |= new
        return None

    def compare(self) -> None:
        """Check that every row is what GET answers now."""
        now = Follower(self.server, self.id)
        now.read()
        assert self.experiment == now.experiment
        assert self.trials == now.trials
        assert self.segments == now.segments
        assert self.decisions == now.decisions

    def curve(self, metric: str, x: str) -> dict[tuple[int, int, str], list[tuple[float, float | None]]]:
        found: dict[tuple[int, int, str], list[tuple[float, float | None]]] = {}
        for point in self.points.values():
            if metric in point["metrics"]:
                key = (point["trial_number"], point["segment"], point["cause"])
                place = {
                    "step": point["iteration"],
                    "time": pytest.approx(point["seconds"]),
                    "trial_time": pytest.approx(point["trial_seconds"]),
                    "metric": point["metrics"].get("loss"),
                }[x]
                if place is not None:
                    found.setdefault(key, []).append((place, point["metrics"][metric]))
        return found


def test_a_client_that_is_ahead_of_a_restored_log_is_told_to_read_everything_again(
    server: str, sqlite_store: Store
) -> None:
    made, _, _ = begin(sqlite_store, 3)
    client = Follower(server, made.public_id, seq=1_000)
    with client.connected() as messages:
        first = next(messages)
    assert (first["reset"], first["seq"]) == (True, sqlite_store.experiments.get(made.public_id).last_event_seq)


def _place(segment: Row) -> tuple[int, int]:
    return segment["trial_number"], segment["ordinal"]


def pbt() -> Spec:
    scheduler = {
        "type": "pbt",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}},
    }
    return digits("bred", 8, scheduler=scheduler, max_t=12, limits=Limits(max_concurrent_trials=4, max_failures=1))


@pytest.mark.parametrize("spec", [digits("halved", 12), pbt()], ids=["asha with failures", "pbt in turns"])
def test_who_applies_the_changes_has_every_row_as_it_is(
    server: str, sqlite_store: Store, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_S", 0.002)
    search = Search(sqlite_store, spec, start=T0, **({"curve": steady} if spec.name == "bred" else {}))
    client = Follower(server, search.public_id)
    client.read()

    def last() -> int:
        return sqlite_store.experiments.progress(search.id).last_event_seq

    for round_ in range(400):
        with client.connected() as messages:
            client.take(messages, last())
            client.compare()
            for _ in range(2):  # live, then away for a while
                search.advance(1 + round_ % 9, at_once=1 + round_ % 3)
                if last() > client.seq:
                    client.take(messages, last())
                client.compare()
        if round_ == 3:
            httpx.post(f"{server}/api/v1/experiments/{search.public_id}/pause").raise_for_status()
            search.obey()
        if round_ == 6:
            assert any(trial["state"] == "paused" for trial in client.trials.values())
            httpx.post(f"{server}/api/v1/experiments/{search.public_id}/resume").raise_for_status()
            search.obey()
        if search.core.ended:
            break
        search.advance(1 + round_ % 7)
    assert client.experiment["state"] == "completed"
    causes = {segment["cause"] for segment in client.segments.values()}
    assert causes >= ({"exploit", "resume"} if spec.name == "bred" else {"retry", "resume"})
    assert client.resets <= 1, "only one that comes back after the end reads everything again"
    for metric in METRICS:
        for x, x_metric in (("step", ""), ("time", ""), ("trial_time", ""), ("metric", "loss")):
            asked = {"x": x} | ({"x_metric": x_metric} if x_metric else {})
            curves = client.get("/curves", metric=metric, points=100_000, **asked)
            assert (curves["x"], curves["x_metric"]) == (x, x_metric or None)
            shown = {
                (series["number"], one["ordinal"], one["cause"]): list(zip(one["x"], one["y"], strict=True))
                for series in curves["series"]
                for one in series["segments"]
            }
            mine = client.curve(metric, x)
            assert all(points == shown[key][-len(points) :] for key, points in mine.items())
            assert client.resets or mine == shown
    # The clock of a trial's curve is the one that the core counts and that limits compare.
    newest = {point["trial_number"]: point["trial_seconds"] for point in client.points.values()}
    ran = {trial.number: trial.running_s for trial in search.core.trials if trial.number in newest}
    assert len({segment["trial_number"] for segment in client.segments.values() if segment["ordinal"] > 1} & ran.keys())
    assert newest == pytest.approx(ran)


def test_points_and_improvements_come_with_seconds_since_the_start(server: str, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store)
    client = Follower(server, made.public_id)
    client.read()
    with client.connected() as messages:
        first = next(messages)
        assert first["experiment"] == client.experiment
        assert (first["seq"], first["reset"], first["trials"], first["points"]) == (3, False, [], [])
        log = [(4, a_report(0, 1)), (5, a_report(0, 2, accuracy=float("nan"))), (6, a_report(0, 3, accuracy=0.5))]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        found = next(messages)
    started = sqlite_store.experiments.get(made.public_id).started_at
    assert started is not None
    assert [point["seq"] for point in found["points"]] == [4, 5, 6]
    assert found["points"][1]["metrics"] == {"accuracy": None}
    assert {name: found["points"][0][name] for name in ("trial_number", "segment", "cause", "iteration", "step")} == {
        "trial_number": 0, "segment": 1, "cause": "start", "iteration": 1, "step": None,
    }  # fmt: skip
    assert [point["seconds"] for point in found["points"]] == [T0 + 1 + n - started for n in (1, 2, 3)]
    assert [(one["seq"], one["metric"], one["value"]) for one in found["best"]] == [
        (4, "accuracy", 0.01),
        (6, "accuracy", 0.5),
    ]
    assert (found["since"], found["seq"]) == (3, 6)
    best = client.get("/best-so-far")
    assert [(one["seconds"], one["value"]) for one in found["best"]] == list(zip(best["x"], best["y"], strict=True))


def test_a_message_has_only_what_changed(server: str, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 3)
    client = Follower(server, made.public_id)
    client.read()
    with client.connected() as messages:
        next(messages)
        for number in (1, 2, 3):
            sqlite_store.drivers.commit(
                made.id, epoch, Batch(log=[(7 + number, a_report(1, number))], trials=trials[1:2]), T0
            )
            found = next(messages)
            assert [row["number"] for row in found["trials"]] == [1]
            assert (len(found["points"]), found["decisions"]) == (1, [])
            # The first report brings names of metrics; the first report of a segment tells that it has started.
            assert (found["experiment"] is None) == (number > 1) == (found["segments"] == [])


def test_a_change_of_state_without_a_log_entry_comes_too(server: str, sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    client = Follower(server, made.public_id)
    client.read()
    with client.connected() as messages:
        client.apply(next(messages))
        batch = Batch(
            log=[],
            state=ExperimentState.FAILED,
            summary={"error": "broken", "reason": "the experiment cannot be driven"},
        )
        sqlite_store.drivers.commit(made.id, epoch, batch, T0 + 9)
        client.apply(next(messages))
    assert (client.experiment["state"], client.experiment["error"], client.seq) == (
        "failed",
        "broken",
        made.last_event_seq,
    )
    client.compare()


def test_a_new_driver_makes_clients_read_again(server: str, sqlite_store: Store) -> None:
    """Trials that the previous driver left running change without a log entry that names them."""
    search = Search(sqlite_store, digits("taken over", 12), start=T0)
    search.advance(20)
    client = Follower(server, search.public_id)
    client.read()
    with client.connected() as messages:
        client.take(messages, client.seq)
        search._feed(DriverStarted(time=search.now, epoch=search.epoch))
        search.commit()
        client.take(messages, sqlite_store.experiments.progress(search.id).last_event_seq)
        assert client.resets == 1
        client.compare()


def test_the_actions_of_all_trials_change_with_the_experiment(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cancellation, trials that had ended before the last one offered no fork until the page was loaded again."""
    monkeypatch.setattr(stream, "POLL_ENDED_S", 0.01)
    search = Search(sqlite_store, digits("cancelled", 6), start=T0)
    search.advance(40)
    path = f"{server}/api/v1/experiments/{search.public_id}"
    client, away = Follower(server, search.public_id), Follower(server, search.public_id)
    client.read()
    with client.connected() as messages:

        def last() -> int:
            return sqlite_store.experiments.progress(search.id).last_event_seq

        def forks() -> set[bool]:
            return {"fork" in trial["actions"] for trial in client.trials.values() if trial["checkpoint"] is not None}

        client.take(messages, last())
        away.read()
        CLIENT.post(f"{path}/cancel").raise_for_status()
        search.obey()
        client.take(messages, last())
        client.compare()
        assert (client.experiment["state"], forks()) == ("cancelling", {False})
        with away.connected() as missed:
            away.take(missed, last())
        away.compare()
        search.advance()
        client.take(messages, last())
        client.compare()
        assert (client.experiment["state"], forks()) == ("cancelled", {True})


def test_a_client_that_is_far_behind_is_told_to_read_again(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEPT", 5)
    made, epoch, trials = begin(sqlite_store)
    log = [(3 + n, a_report(0, n)) for n in range(1, 30)]
    client = Follower(server, made.public_id, seq=3)
    with client.connected() as messages:
        client.take(messages, 3)
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        client.take(messages, 32)
        assert client.resets == 1
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(33, a_report(0, 30))], trials=trials), T0)
        client.take(messages, 33)
        assert [point["iteration"] for point in client.points.values()] == [30]
        client.compare()
    late = Follower(server, made.public_id, seq=4)
    with late.connected() as messages:
        late.take(messages, 33)
    assert late.resets == 1
    assert max(late.sizes) < 10_000


def test_changes_are_read_once_for_all_clients(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, trials = begin(sqlite_store)
    followers = [Follower(server, made.public_id, seq=3) for _ in range(12)]
    with contextlib.ExitStack() as stack:
        clients = [(one, stack.enter_context(one.connected())) for one in followers]
        for one, messages in clients:
            one.take(messages, 3)
        reads: list[int] = []
        read = sqlite_store.changes.since
        monkeypatch.setattr(sqlite_store.changes, "since", lambda *args: reads.append(args[1].seq) or read(*args))
        for seq in (4, 5):
            sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(seq, a_report(0, seq - 3))], trials=trials), T0)
            for one, messages in clients:
                one.take(messages, seq)
        assert reads == [3, 4]


@pytest.mark.parametrize("form", ["changes", "events"])
def test_an_experiment_that_cannot_be_read_holds_nothing_back_from_others(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(stream, "RETRY_S", 0.05)
    (one, epoch, trials), (other, other_epoch, other_trials) = begin(sqlite_store), begin(sqlite_store)
    read, read_log = sqlite_store.changes.since, sqlite_store.log.events_after
    away, failed = threading.Event(), threading.Event()

    def fails(experiment: int) -> None:
        if experiment == other.id and away.is_set():
            failed.set()
            raise StoreUnavailable("the database is locked")

    def since(experiment: int, *args: Any) -> Any:
        fails(experiment)
        return read(experiment, *args)

    def events_after(experiment: int, *args: Any) -> Any:
        fails(experiment)
        return read_log(experiment, *args)

    monkeypatch.setattr(sqlite_store.changes, "since", since)
    monkeypatch.setattr(sqlite_store.log, "events_after", events_after)

    def url(made: Any) -> str:
        return f"{server}/api/v1/experiments/{made.public_id}/{form}?after=3"

    with (
        httpx.Client(timeout=5) as client,
        client.stream("GET", url(one)) as first,
        client.stream("GET", url(other)) as second,
    ):
        found, found_other = (
            (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
            for response in (first, second)
        )
        next(found), next(found_other)
        away.set()
        sqlite_store.drivers.commit(other.id, other_epoch, Batch(log=[(4, a_report(0, 1))], trials=other_trials), T0)
        assert failed.wait(5)
        for number in (1, 2):
            batch = Batch(log=[(3 + number, a_report(0, number))], trials=trials)
            sqlite_store.drivers.commit(one.id, epoch, batch, T0)
            assert next(found)["seq"] == 3 + number
        away.clear()
        assert next(found_other)["seq"] == 4
        progress_of, outages = (
            sqlite_store.experiments.progress_of,
            [StoreUnavailable("away"), StoreUnavailable("away")],
        )

        def progress(*args: Any) -> Any:
            for _ in range(len(outages)):
                raise outages.pop()
            return progress_of(*args)

        monkeypatch.setattr(sqlite_store.experiments, "progress_of", progress)
        sqlite_store.drivers.commit(one.id, epoch, Batch(log=[(6, a_report(0, 3))], trials=trials), T0)
        assert next(found)["seq"] == 6, "an outage of the whole database ends no stream"


@pytest.mark.parametrize("form", [stream.ChangedRows, stream.Events])
def test_what_was_read_but_not_delivered_comes_again(sqlite_store: Store, form: type[stream.Form]) -> None:
    made, epoch, trials = begin(sqlite_store)
    followed = form(sqlite_store, made)
    after = followed.begin(sqlite_store.experiments.progress(made.id))
    batch = Batch(log=[(4, a_report(0, 1))], trials=trials, state=ExperimentState.PAUSING)
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    progress = sqlite_store.experiments.progress(made.id)
    first, again = followed.added(after, progress), followed.added(after, progress)
    assert (
        [_of(message) for message in first.messages or ()] == [_of(message) for message in again.messages or ()] != []
    )
    again.delivered()
    assert [_of(message) for message in followed.added(4, progress).messages or ()] != [
        _of(message) for message in again.messages or ()
    ]


def _of(message: stream.Message) -> Row:
    """Return the data of a message without the time at which it was written."""
    data: Row = json.loads(message[1].split(b"data: ", 1)[1])
    return data | {"time": ""}


def test_open_decisions_end_with_the_experiment(server: str, sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    client = Follower(server, made.public_id)
    client.read()
    assert client.decisions[2]["state"] == "pending"
    with client.connected() as messages:
        client.take(messages, 3)
        batch = Batch(log=[(4, Finish(reason="done"))], state=ExperimentState.COMPLETED, carried_out=[4])
        sqlite_store.drivers.commit(made.id, epoch, batch, T0)
        client.take(messages, 4)
    assert client.decisions[2]["state"] == "superseded"
    client.compare()
    late = stream.ChangedRows(sqlite_store, made).missed(3, 4)
    assert _of(late)["reset"], "the actions of trials have changed, although their rows have not"


def test_changes_by_users_are_sent_although_no_driver_is_there(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that followed a paused or ended experiment kept its old limits, notes, tags and name."""
    monkeypatch.setattr(stream, "POLL_ENDED_S", 0.01)
    made, epoch, _ = begin(sqlite_store)
    batch = Batch(log=[(made.last_event_seq + 1, Finish(reason="enough"))], state=ExperimentState.COMPLETED)
    sqlite_store.drivers.commit(made.id, epoch, batch, T0 + 9)
    sqlite_store.drivers.release(made.id, epoch)
    client = Follower(server, made.public_id)
    client.read()
    path = f"{server}/api/v1/experiments/{made.public_id}"
    with client.connected() as messages:
        client.apply(next(messages))
        for request in (
            httpx.Request("PATCH", path, json={"notes": "good", "limits": {"max_failures": 7}}),
            httpx.Request("POST", f"{path}/archive"),
            httpx.Request("POST", f"{path}/unarchive"),
        ):
            CLIENT.send(request).raise_for_status()
            client.apply(next(messages))
            client.compare()
        with sqlite_store._database.write() as cursor:
            cursor.execute("UPDATE experiment SET thinned_at = ? WHERE id = ?", (T0 + 99, made.id))
        client.apply(next(messages))
        client.compare()
    assert client.experiment["limits"]["max_failures"] == 7
    assert client.experiment["thinned_at"] is not None


def test_messages_about_changes_by_users_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the number of the newest log entry, which does not grow."""
    monkeypatch.setattr(stream, "KEPT", 10)
    now = Progress(
        last_event_seq=5,
        state=ExperimentState.PAUSED,
        reason="",
        error=None,
        revision=0,
        archived_at=None,
        thinned_at=None,
    )
    channel = stream.Channel(cast("stream.Form", None))
    channel.begin(now, 5)
    for revision in range(30):
        channel.take(replace(now, revision=revision), [(5, b"the row")])
    assert len(channel._messages) == 10
    assert channel.position(5) == channel.end == 30
    assert channel.behind(29) == (30, 5, b"the row")
    long = b"x" * stream.SENT_BYTES
    channel.take(replace(now, last_event_seq=7), [(6, long), (7, b"the next row")])
    assert channel.behind(30) == (31, 6, long), "a client that reads slowly does not make the server keep all of them"
    assert channel.behind(31) == (32, 7, b"the next row")
