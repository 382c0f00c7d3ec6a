"""The demo prints its outcome, whatever it says."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tuner.cli.commands import app
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
        error="KeyError: '[/lr]'", reason="", state="failed",
    )  # fmt: skip
    out = io.StringIO()
    say_outcome(Console(file=out, width=200), result, max_t=3)
    assert said in out.getvalue()


def test_a_search_that_was_paused_before_its_first_report_has_not_failed() -> None:
    result: Any = SimpleNamespace(
        trials=[SimpleNamespace(history=[])], best_trial=None, best_value=None, state="paused"
    )
    out = io.StringIO()
    say_outcome(Console(file=out), result, max_t=3)
    assert not out.getvalue().strip()


@pytest.mark.parametrize(
    ("state", "best", "status"),
    [("completed", object(), 0), ("failed", None, 1), ("completed", None, 1), ("paused", None, 130)],
)
def test_the_exit_status_says_how_the_search_ended(
    monkeypatch: pytest.MonkeyPatch, state: str, best: Any, status: int
) -> None:
    monkeypatch.setattr("tuner.cli.demo.run_demo", lambda **_: SimpleNamespace(state=state, best_trial=best))
    assert CliRunner().invoke(app, ["demo"]).exit_code == status
