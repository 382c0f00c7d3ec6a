"""The demo prints its outcome, whatever it says."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tuner.cli.demo import say_outcome


@pytest.mark.parametrize(
    ("best", "config", "said"),
    [
        (None, None, "No trial succeeded: KeyError: '[/lr]'"),
        (SimpleNamespace(number=3), {"act": "[/relu]"}, "best accuracy 0.5000 by trial 3: act=[/relu]"),
        (SimpleNamespace(number=3), {}, "1 of 3 epochs trained: 67 % less than"),
    ],
)
def test_brackets_in_the_outcome_are_shown_as_they_are(best: Any, config: Any, said: str) -> None:
    result: Any = SimpleNamespace(
        trials=[SimpleNamespace(history=[{}])], best_trial=best, best_value=0.5, best_config=config, best_checkpoint=None,
        error="KeyError: '[/lr]'", reason="",
    )  # fmt: skip
    out = io.StringIO()
    say_outcome(Console(file=out, width=200), result, max_t=3)
    assert said in out.getvalue()
