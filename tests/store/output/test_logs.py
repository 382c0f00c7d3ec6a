"""Logs of ranks in both databases."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import text

from tests.store.examples import T0, begin
from tuner.domain.batch import Batch
from tuner.domain.keys import segment_id, trial_id
from tuner.domain.logs import LogChunk, LogLimit, cut
from tuner.domain.states import ExperimentState
from tuner.errors import NotFound
from tuner.store import LogQuery, Store
from tuner.store.sql.database import Database


def chunks(content: bytes, step: int, rank: int = 0, head: int = 0) -> list[LogChunk]:
    """Cut a log into the chunks in which it arrives while it is written, a few bytes each."""
    found = []
    for start in range(0, len(content), step):
        read = lambda at, size: content[at : at + size]  # noqa: E731
        found += cut(read, [(start, min(start + step, len(content)))], head, rank, T0 + start)
    return found


def rows(store: Store) -> int:
    with store._database.read() as connection:
        return int(connection.execute(text("SELECT COUNT(*) FROM log_chunk")).scalar_one())


def test_logs_by_segment_and_rank(store: Store) -> None:
    made, _, _ = begin(store, segments=2)
    name = trial_id(made.public_id, 0)
    for rank in (0, 1, 10):
        store.logs.add(made.id, {(0, 1): chunks(f"one {rank}\ntwo {rank}\n".encode(), 6, rank)})
    store.logs.add(made.id, {(0, 2): chunks(b"later\n", 9), (9, 1): chunks(b"nobody's", 9)})
    assert [(log.segment, log.rank, log.text) for log in store.logs.of_trial(name)] == [
        (1, 0, "one 0\ntwo 0\n"),
        (1, 1, "one 1\ntwo 1\n"),
        (1, 10, "one 10\ntwo 10\n"),
        (2, 0, "later\n"),
    ]
    [log] = store.logs.of_trial(name, LogQuery(segment=1, rank=10, tail=1))
    assert (log.text, log.start, log.end, log.time) == ("two 10\n", 7, 14, T0 + 12)
    [log] = store.logs.of_trial(name, LogQuery(segment=1, rank=1, offset=6))
    assert log.text == "two 1\n"
    assert [log.text for log in store.logs.of_trial(name, LogQuery(segment=1, search="TWO"))] == [
        "two 0\n",
        "two 1\n",
        "two 10\n",
    ]
    assert store.logs.of_trial(name, LogQuery(segment=3)) == []
    with pytest.raises(NotFound):
        store.logs.of_trial("trl_nothing")


def test_a_log_is_complete_when_its_end_has_come(store: Store) -> None:
    made, _, _ = begin(store)
    name = trial_id(made.public_id, 0)
    store.logs.add(made.id, {(0, 1): chunks(b"working\n", 9)})
    [log] = store.logs.of_trial(name)
    assert not log.complete
    store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 8, b"", T0), LogChunk.of(1, 0, b"", T0)]})
    assert [(log.rank, log.text, log.complete) for log in store.logs.of_trial(name)] == [
        (0, "working\n", True),
        (1, "", True),
    ]
    [part] = store.logs.of_trial(name, LogQuery(rank=0, offset=0, limit=3))
    assert not part.complete, "there is more to read"


def test_chunks_may_come_twice_overlap_and_come_in_any_order(store: Store) -> None:
    made, _, _ = begin(store)
    content = bytes(random.Random(1).choices(b"abcdefgh\n", k=5000))
    found = [*chunks(content, 70), *chunks(content, 333), *chunks(content, 70)]
    random.Random(2).shuffle(found)
    for chunk in found:
        store.logs.add(made.id, {(0, 1): [chunk]})
    [log] = store.logs.of_trial(trial_id(made.public_id, 0))
    assert (log.text, log.left_out) == (content.decode(), 0)
    assert store.logs.ranges(made.id, (0, 1), 0) == [(0, 5000)]


def test_only_the_head_and_the_tail_of_a_long_log_are_kept(store: Store) -> None:
    made, _, _ = begin(store)
    limit = LogLimit.of(4000)
    content = "".join(f"line {number}\n" for number in range(10_000)).encode()
    for chunk in chunks(content, 500, head=limit.head):
        store.logs.add(made.id, {(0, 1): [chunk]}, limit=limit)
    store.logs.add(made.id, {(0, 1): [LogChunk.of(0, len(content), b"", T0)]}, limit=limit)
    assert rows(store) <= 4000 / 500 + 2
    [log] = store.logs.of_trial(trial_id(made.public_id, 0))
    assert log.text.startswith(content[:1000].decode())
    assert log.text.endswith(content[-3000:].decode())
    assert f"[... {log.left_out:,} bytes of the log were not kept ...]" in log.text
    assert len(content) - 4500 <= log.left_out <= len(content) - 4000
    assert (log.end, log.complete) == (len(content), True)


def test_small_chunks_are_merged_and_read_the_same(store: Store) -> None:
    made, _, _ = begin(store)
    name, limit = trial_id(made.public_id, 0), LogLimit(head=70_000, tail=10**6)
    content = "".join(f"epoch {number} loss {1 / (number + 1):.5f}\n" for number in range(8000)).encode()
    gap = (100_000, 120_000)
    found = [c for c in chunks(content, 300, head=limit.head) if c.end <= gap[0] or c.start >= gap[1]]
    store.logs.add(made.id, {(0, 1): [*found, LogChunk.of(0, len(content), b"", T0), *chunks(b"other", 2, rank=1)]})
    before, many = store.logs.of_trial(name), rows(store)
    store.logs.compact(made.id, (0, 1), 0, limit)
    assert store.logs.of_trial(name) == before
    assert rows(store) < many / 50
    assert limit.head in {start for start, _ in _starts(store)}
    again = rows(store)
    store.logs.compact(made.id, (0, 1), 0, limit)
    assert rows(store) == again


def _starts(store: Store) -> list[tuple[int, int]]:
    with store._database.read() as connection:
        return [(row.start, row.size) for row in connection.execute(text("SELECT start, size FROM log_chunk"))]


def test_logs_without_an_end_are_found(store: Store) -> None:
    made, epoch, [trial, other] = begin(store, 2)
    placement = {"ranks": [{"rank": rank, "node": f"n{rank}"} for rank in (0, 1)]}
    for number, each in enumerate((trial, other)):
        each.segments[0].placement = placement
        each.segments[0].ended_at = T0 + 100 - 70 * number
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial, other]), T0 + 60)
    store.logs.add(made.id, {(0, 1): [LogChunk.of(1, 0, b"", T0)]})
    name = segment_id(made.public_id, 0, 1)
    assert store.logs.unfinished(made.id) == [(0, 1, name, 0, "n0")], "the other one has ended long before"
    store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"", T0)]})
    assert store.logs.unfinished(made.id) == []


def test_recent_logs_are_those_of_running_segments(store: Store) -> None:
    made, epoch, [_, other] = begin(store, 2)
    other.segments[0].ended_at = T0 + 5
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=[other]), T0 + 6)
    store.logs.add(made.id, {(0, 1): chunks(b"runs\n", 9), (1, 1): chunks(b"ended\n", 9)})
    assert [(log.trial, log.text) for log in store.logs.recent(made.id, T0 + 6, {})] == [(0, "runs\n")]
    assert [log.trial for log in store.logs.recent(made.id, T0 + 5, {})] == [0, 1]
    ends = store.logs.ends(made.id)
    assert ends == {(0, 1, 0): 5, (1, 1, 0): 6}
    assert store.logs.recent(made.id, T0 + 5, ends) == []
    assert [log.text for log in store.logs.recent(made.id, T0 + 5, {**ends, (0, 1, 0): 2})] == ["ns\n"]


def test_the_logs_of_an_experiment_that_runs_again_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for _ in range(2):
        record, epoch, trials = begin(store)
        store.logs.add(record.id, {(0, 1): chunks(b"one\n", 4)})
        store.drivers.commit(record.id, epoch, Batch(log=[], trials=trials, state=ExperimentState.FAILED), T0 + 5)
        made.append((record, epoch))
    (again, epoch), (old, _) = made
    write, continued = Database.write, []

    def writing(database: Database) -> Any:
        """Let a user continue the experiment after the clean-up has found it, and before it deletes anything."""
        if not continued:
            continued.append(again.id)
            store.drivers.commit(again.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), T0 + 9)
        return write(database)

    monkeypatch.setattr(Database, "write", writing)
    assert store.logs.prune(T0 + 10) == {old.public_id}
    assert continued
    assert [log.text for log in store.logs.of_trial(trial_id(again.public_id, 0))] == ["one\n"]
    assert store.logs.of_trial(trial_id(old.public_id, 0)) == []


def test_the_logs_of_an_experiment_that_is_about_to_run_again_are_kept(store: Store) -> None:
    """The driver may take a while to carry out the command."""
    record, epoch, trials = begin(store)
    store.logs.add(record.id, {(0, 1): chunks(b"one\n", 4)})
    store.drivers.commit(record.id, epoch, Batch(log=[], trials=trials, state=ExperimentState.FAILED), T0 + 5)
    store.commands.add(record.id, "continue")
    assert (store.logs.prune(T0 + 10), store.logs.prunable(T0 + 10)) == (set(), set())
    assert [log.text for log in store.logs.of_trial(trial_id(record.public_id, 0))] == ["one\n"]
