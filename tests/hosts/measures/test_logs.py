"""The logs of ranks on the driver host: what is written when, and how the logs of killed ranks are read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import T0, begin
from tuner.domain.keys import trial_id
from tuner.domain.logs import LogChunk, LogLimit, Range
from tuner.hosts.measures import logs as module
from tuner.hosts.measures.logs import LogKeeper, Owner
from tuner.store import LogQuery, Store
from tuner.store.sql.connect import StoreUnavailable
from tuner.telemetry import log_format
from tuner.trials.groups.segments.segment_run import LogFile

LIMIT = LogLimit.of(1 << 20)


class Table:
    """A store that counts transactions and can be made to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writes = self.compactions = self.failures = 0
        self.away: set[str] = set()  # the methods that find no database
        self.calls: Counter[str] = Counter()
        self.about: list[Mapping[str, str]] = []

    def add(
        self, experiment_id: int, chunks: Mapping[tuple[int, int], Sequence[LogChunk]], *, limit: LogLimit | None
    ) -> None:
        self.writes += 1
        self._call("add")
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.store.logs.add(experiment_id, chunks, limit=limit)

    def compact(self, experiment_id: int, segment: tuple[int, int], rank: int, limit: LogLimit) -> None:
        self.compactions += 1
        self.store.logs.compact(experiment_id, segment, rank, limit)

    def ranges(self, experiment_id: int, segment: tuple[int, int], rank: int) -> list[Range]:
        self._call("ranges")
        return self.store.logs.ranges(experiment_id, segment, rank)

    def _call(self, method: str) -> None:
        self.calls[method] += 1
        self.about.append(log_format.ids())
        if method in self.away:
            raise StoreUnavailable("the database does not answer")


class Search:
    """A `LogKeeper` over a real database, for an experiment with one running segment, `seg`."""

    def __init__(self, store: Store, folder: Path) -> None:
        made, _, _ = begin(store)
        self.folder, self.store = folder, store
        self.owner, self.trial = Owner(made.id, 0, 1), trial_id(made.public_id, 0)
        self.table = Table(store)
        self.lost_nodes: set[str] = set()
        self.keeper = LogKeeper(self.table, LIMIT, self.on_node)
        self.keeper.begin("seg", self.owner)

    async def on_node(self, node: str, function: Any, *args: Any) -> Any:
        if node in self.lost_nodes:
            raise RuntimeError("the node is gone")
        return function(*args)

    async def take(self, text: bytes, at: int = 0, rank: int = 0) -> None:
        await self.keeper.take("seg", [LogChunk.of(rank, at, text, T0)])

    def end(self, *ranks: int, gone: Awaitable[Any] | None = None, rest: Sequence[LogChunk] = ()) -> None:
        files = [LogFile(rank, f"node{rank}", str(self.folder / f"rank{rank}.log")) for rank in ranks]
        self.keeper.end("seg", files, gone, rest)

    def logs(self) -> dict[int, tuple[str, bool]]:
        return {log.rank: (log.text, log.complete) for log in self.store.logs.of_trial(self.trial, LogQuery())}


@pytest.fixture
def search(sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Search]:
    monkeypatch.setattr(module, "GATHER_S", 0.05)
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.2)
    return Search(sqlite_store, tmp_path)


async def test_what_comes_within_a_moment_is_one_transaction(search: Search) -> None:
    await asyncio.gather(*(search.take(b"hello\n", rank=rank) for rank in range(20)))
    assert search.table.writes == 1
    assert search.logs() == dict.fromkeys(range(20), ("hello\n", False))


async def test_what_is_logged_about_writing_for_all_is_not_taken_for_the_first_experiments(search: Search) -> None:
    with log_format.about(experiment="exp_first"):
        await search.take(b"hello\n")
    assert search.table.about == [{}]


async def test_chunks_are_acknowledged_once_they_are_stored_or_refused(search: Search) -> None:
    search.table.failures = 1
    with pytest.raises(OSError, match="full"):
        await search.take(b"lost?\n")
    assert search.logs() == {}
    await search.take(b"lost?\n")
    assert search.logs() == {0: ("lost?\n", False)}


async def test_a_segment_that_nobody_knows_is_ignored(search: Search) -> None:
    await search.keeper.take("seg_other", [LogChunk.of(0, 0, b"x", T0)])
    assert search.table.writes == 0


async def test_living_ranks_send_the_rest_themselves(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_S", 30.0)
    monkeypatch.setattr(module, "GATHER_S", 30.0)
    (search.folder / "rank0.log").write_bytes(b"from the file\n")
    search.end(0)
    flushing = asyncio.create_task(search.keeper.flush(search.owner.experiment))
    await asyncio.sleep(0)
    await search.take(b"sent\n")
    await search.take(b"", 5)
    await flushing
    assert search.logs() == {0: ("sent\n", True)}, "what is waited for is written at once, and no file is read"


async def test_what_came_with_the_results_of_ranks_is_written_and_not_waited_for(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_S", 30.0)
    await search.take(b"sent\n")
    rest = [LogChunk.of(0, 5, b"last\n", T0), LogChunk.of(0, 10, b"", T0), LogChunk.of(1, 0, b"", T0)]
    search.end(0, 1, rest=rest)
    await search.keeper.flush()
    assert search.logs() == {0: ("sent\nlast\n", True), 1: ("", True)}
    assert search.table.calls["ranges"] == 0, "no file is read"


async def test_a_rest_that_cannot_be_stored_is_read_from_the_file(search: Search) -> None:
    (search.folder / "rank0.log").write_bytes(b"all of it\n")
    search.table.failures = 1
    search.end(0, rest=[LogChunk.of(0, 0, b"all of it\n", T0), LogChunk.of(0, 10, b"", T0)])
    await search.keeper.flush()
    assert search.logs() == {0: ("all of it\n", True)}


async def test_the_rest_of_a_killed_rank_is_read_from_its_file(search: Search) -> None:
    (search.folder / "rank0.log").write_bytes(b"sent\nTraceback\nboom\n")
    (search.folder / "rank1.log").write_bytes(b"sent nothing\n")
    await search.take(b"sent\n")
    killed = asyncio.Event()
    search.end(0, 1, gone=killed.wait())
    flushing = asyncio.create_task(search.keeper.flush())
    await search.take(b"Tr", 5)
    assert not flushing.done(), "a process that is being killed may still write"
    killed.set()
    await flushing
    assert search.logs() == {0: ("sent\nTraceback\nboom\n", True), 1: ("sent nothing\n", True)}


async def test_ranks_that_live_and_send_nothing_are_not_waited_for_for_long(search: Search) -> None:
    (search.folder / "rank0.log").write_bytes(b"hangs in C\n")
    search.end(0)
    await search.keeper.flush()
    assert search.logs() == {0: ("hangs in C\n", True)}


async def test_a_node_that_is_gone_takes_the_last_second_with_it(search: Search) -> None:
    search.lost_nodes.add("node1")
    (search.folder / "rank0.log").write_bytes(b"here\n")
    await search.take(b"until a second ago\n", rank=1)
    search.end(0, 1, gone=asyncio.sleep(0))
    await search.keeper.flush()
    assert search.logs() == {0: ("here\n", True), 1: ("until a second ago\n", False)}


@pytest.mark.parametrize("method", ["ranges", "add"])
async def test_the_rest_is_stored_once_the_database_is_back(
    search: Search, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01, raising=False)
    (search.folder / "rank0.log").write_bytes(b"sent\nwritten in an outage\n")
    await search.take(b"sent\n")
    before = search.table.calls[method]
    search.table.away = {method}
    search.end(0, gone=asyncio.sleep(0))
    flushing = asyncio.create_task(search.keeper.flush())
    while search.table.calls[method] < before + 3 and not flushing.done():
        await asyncio.sleep(0)
    search.table.away = set()
    await flushing
    assert search.logs() == {0: ("sent\nwritten in an outage\n", True)}


async def test_a_host_that_ends_in_an_outage_leaves_no_task(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python had printed "Task was destroyed but it is pending!"."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    (search.folder / "rank0.log").write_bytes(b"sent\nwritten in an outage\n")
    await search.take(b"sent\n")
    before = asyncio.all_tasks()
    search.table.away = {"ranges"}
    search.end(0, gone=asyncio.sleep(0))
    while search.table.calls["ranges"] < 2:
        await asyncio.sleep(0)
    await search.keeper.close(timeout=0.01)
    assert asyncio.all_tasks() <= before
    search.table.away = set()
    search.keeper.begin("seg", search.owner)
    search.end(0, gone=asyncio.sleep(0))
    await search.keeper.flush()
    assert search.logs() == {0: ("sent\nwritten in an outage\n", True)}, "the next driver reads the file"


async def test_a_host_that_ends_while_ranks_still_run_leaves_no_task(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_S", 30.0)
    before = asyncio.all_tasks()
    gone = asyncio.get_running_loop().create_future()
    search.end(0, gone=gone)
    await search.keeper.close(timeout=0.01)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    assert not gone.done(), "others wait for it, too"


async def test_a_segment_that_begins_again_while_its_log_is_completed_keeps_its_log(search: Search) -> None:
    gone = asyncio.Event()
    search.end(0, gone=gone.wait())
    assert search.keeper.is_closing("seg")
    search.keeper.begin("seg", search.owner)
    [closing] = [task for task in asyncio.all_tasks() if "_close" in repr(task.get_coro())]
    gone.set()
    await closing
    assert not search.keeper.is_closing("seg")
    await search.take(b"still taken\n")
    assert search.logs() == {0: ("still taken\n", False)}


async def test_a_rank_that_never_began_a_log_has_none(search: Search) -> None:
    search.end(0, gone=asyncio.sleep(0))
    await search.keeper.flush()
    assert search.logs() == {}


async def test_of_a_long_file_only_head_and_tail_are_read(search: Search) -> None:
    content = b"".join(b"line %d\n" % number for number in range(300_000))
    (search.folder / "rank0.log").write_bytes(content)
    search.end(0, gone=asyncio.sleep(0))
    await search.keeper.flush()
    kept = search.store.logs.ranges(search.owner.experiment, (0, 1), 0)
    assert kept == [(0, LIMIT.head), (len(content) - LIMIT.tail, len(content))]


async def test_many_small_chunks_are_merged_while_the_segment_runs(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    for number in range(150):
        await search.take(b"a\n", at=2 * number)
    assert search.table.compactions == 2
    assert search.logs() == {0: ("a\n" * 150, False)}


async def test_flush_waits_for_its_own_experiment_alone(search: Search) -> None:
    search.end(0, gone=asyncio.Event().wait())
    await search.keeper.flush(search.owner.experiment + 1)
    await search.keeper.flush(search.owner.experiment, timeout=0.01)
