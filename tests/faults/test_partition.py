"""One network partition of the campaign. `python -m tests.faults` runs the others."""

from __future__ import annotations

import pytest

from tests.faults.campaign import Counts
from tests.faults.partition import LONG_S, part_nodes
from tests.nodes.network import why_not

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.long  # the short form is tests/nodes/test_lifeline.py
def test_a_search_loses_nothing_in_a_partition() -> None:
    if reason := why_not():
        pytest.skip(reason)
    counts = Counts()
    part_nodes(counts, "pair", LONG_S, seed=0)
    assert (counts.faults["network partitions"], counts.invariants) == (1, 1)
    assert counts.reports > 0
