from __future__ import annotations

import bisect
import json
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.schedulers import ranking as module
from tuner.schedulers.ranking import Ranking
from tuner.schedulers.state import restore


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-30, 30), st.booleans()), max_size=300), st.integers(2, 8))
def test_is_a_sorted_list(steps: list[tuple[int, bool]], block: int) -> None:
    ranking: Ranking[float] = Ranking()
    plain: list[float] = []
    before, module.BLOCK = module.BLOCK, block
    try:
        for number, remove in steps:
            value = number / 4
            if remove:
                assert ranking.remove(value) == (value in plain)
                if value in plain:
                    plain.remove(value)
            else:
                ranking.add(value)
                bisect.insort(plain, value)
            assert len(ranking) == len(plain)
            assert ranking.above(value) == len(plain) - bisect.bisect_right(plain, value)
    finally:
        module.BLOCK = before
    assert list(ranking) == plain
    assert list(reversed(ranking)) == plain[::-1]
    assert [ranking.from_top(place) for place in range(1, len(plain) + 1)] == plain[::-1]
    assert all(ranking.blocks)


def test_comes_back_from_json() -> None:
    ranking: Ranking[tuple[float, int]] = Ranking()
    for place in range(5000):
        ranking.add(((place * 7919) % 1000 / 8, -place))
    assert len(ranking.blocks) > 1
    assert restore(Ranking[tuple[float, int]], json.loads(json.dumps(asdict(ranking)))) == ranking
