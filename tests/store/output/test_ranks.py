"""Test the resource usage of ranks, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.examples import T0, begin
from tuner.domain.keys import trial_id
from tuner.errors import NotFound
from tuner.store import Store, UsageSample
from tuner.store.sql.cursor import Cursor


class TestUsage:
    @staticmethod
    def sample(number: int, rank: int = 0, segment: int = 1, **more: Any) -> UsageSample:
        """Return one of a rank's samples, which come every ten seconds; half a core is in use. The segment began at T0 + 1."""
        values = {"time": T0 + 1 + 10 * number, "cpu_s": 5.0 * number, "rss_bytes": 2**33 + number, **more}
        return UsageSample(trial=0, segment=segment, rank=rank, sample_no=number, **values)

    def test_comes_back_by_segment_and_rank(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        gpu = {"gpu_bytes": 2**40, "gpu_reserved_bytes": 2**41, "gpu_percent": 12.5}
        store.ranks.add_usage(made.id, [self.sample(1, rank=1), self.sample(1), self.sample(1, segment=2)])
        store.ranks.add_usage(made.id, [self.sample(2, rank=1, **gpu), self.sample(2), self.sample(2)])
        found = store.ranks.usage(trial_id(made.public_id, 0))
        assert [(s.segment, s.rank, len(s.x)) for s in found] == [(1, 0, 2), (1, 1, 2), (2, 0, 1)]
        second = found[1]
        start = store.experiments.get(made.public_id).started_at or 0.0
        assert second.x == [T0 + 11 - start, T0 + 21 - start]
        assert (second.rss_bytes, second.gpu_bytes) == ([2**33 + 1, 2**33 + 2], [None, 2**40])
        assert (second.gpu_reserved_bytes, second.gpu_percent) == ([None, 2**41], [None, 12.5])

    def test_cpu_is_told_as_percent_since_the_sample_before(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        busy = self.sample(2, cpu_s=25.0)
        store.ranks.add_usage(made.id, [self.sample(1), busy, self.sample(1, segment=2), self.sample(2, segment=2)])
        first, second = store.ranks.usage(trial_id(made.public_id, 0))
        assert first.cpu_percent == pytest.approx([50.0, 200.0])
        assert second.cpu_percent == [None, pytest.approx(50.0)]  # this segment's start is not known yet

    def test_a_choice_of_rank_and_segment(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        store.ranks.add_usage(made.id, [self.sample(1, rank, segment) for rank in (0, 1) for segment in (1, 2)])
        trial = trial_id(made.public_id, 0)
        assert [(s.segment, s.rank) for s in store.ranks.usage(trial, rank=1)] == [(1, 1), (2, 1)]
        assert [(s.segment, s.rank) for s in store.ranks.usage(trial, rank=0, segment=2)] == [(2, 0)]
        with pytest.raises(NotFound, match="trl_nothing"):
            store.ranks.usage("trl_nothing")

    def test_thinning_leaves_evenly_spaced_samples_of_that_segment(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        trial = trial_id(made.public_id, 0)
        store.ranks.add_usage(made.id, [self.sample(n, segment=s) for n in range(1, 9) for s in (1, 2)])
        store.ranks.add_usage(made.id, [self.sample(9, segment=2)], keep={(0, 1): 4})
        start = store.experiments.get(made.public_id).started_at or 0.0
        thinned, whole = store.ranks.usage(trial)
        assert thinned.x == [T0 + 41 - start, T0 + 81 - start]
        assert thinned.cpu_percent == pytest.approx([50.0, 50.0])
        assert len(whole.x) == 9

    def test_a_sample_of_a_segment_that_is_not_there_is_left_out(self, store: Store) -> None:
        made, *_ = begin(store)
        store.ranks.add_usage(made.id, [self.sample(1, segment=7), self.sample(1)], keep={(3, 1): 2})
        assert [s.segment for s in store.ranks.usage(trial_id(made.public_id, 0))] == [1]

    def test_all_segments_are_looked_up_with_one_query(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The driver cannot commit meanwhile, and on PostgreSQL each query waits for the network."""
        made, *_ = begin(store, segments=2)
        asked: list[str] = []
        rows = Cursor.rows

        def noted(cursor: Cursor, sql: str, parameters: Any = ()) -> list[Any]:
            asked.append(sql)
            return rows(cursor, sql, parameters)

        monkeypatch.setattr(Cursor, "rows", noted)
        monkeypatch.setattr(Cursor, "value", lambda *arguments: pytest.fail("a query for a single segment"))
        store.ranks.add_usage(made.id, [self.sample(1), self.sample(1, segment=2), self.sample(1, segment=7)])
        assert len(asked) == 1
        assert [one.segment for one in store.ranks.usage(trial_id(made.public_id, 0))] == [1, 2]
