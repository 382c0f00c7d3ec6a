"""Segments whose function or script fails, or forks."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.trials.conftest import LocalBench
from tests.trials.functions import report


def raises(config: dict[str, Any]) -> None:
    raise ValueError("the GPU is on fire")


def has_a_script_that_fails(config: dict[str, Any]) -> None:
    from tuner.trials.training.script import Script

    Script("/nowhere/train.py", b"raise ValueError('the GPU is on fire')", (), "loss")({})


def test_the_traceback_of_a_function_or_a_script_is_in_the_log_once(local_bench: LocalBench) -> None:
    for function in (raises, has_a_script_that_fails):
        launch = local_bench.launch(function)
        failure = local_bench.run(launch).failure
        assert failure is not None
        assert "ValueError: the GPU is on fire" in failure.traceback
        assert local_bench.log(launch).count("\nValueError: the GPU is on fire") == 1


def raises_what_has_no_text(config: dict[str, Any]) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return str(self.nowhere)  # type: ignore[attr-defined]

    for loss in range(5):
        report(loss=loss)
    raise Odd


def test_an_error_without_a_text_loses_no_report(local_bench: LocalBench) -> None:
    launch = local_bench.launch(raises_what_has_no_text, first_milestone=None)
    failure = local_bench.run(launch).failure
    assert failure is not None
    assert "Odd.__str__ raised AttributeError" in failure.message
    assert "raises_what_has_no_text" in failure.traceback
    assert [report.metrics["loss"] for report in local_bench.reports(launch)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def closes_its_stderr(config: dict[str, Any]) -> None:
    for loss in range(5):
        report(loss=loss)
    sys.stderr.close()
    raise ValueError("the GPU is on fire")


def test_an_error_after_the_log_was_closed_loses_no_report(local_bench: LocalBench) -> None:
    """It was replaced by that of the closed stream, and the reports since the last milestone were lost."""
    launch = local_bench.launch(closes_its_stderr, first_milestone=None)
    failure = local_bench.run(launch).failure
    assert failure is not None
    assert failure.message == "ValueError: the GPU is on fire"
    assert [report.metrics["loss"] for report in local_bench.reports(launch)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def calls_tuner_in_forks(config: dict[str, Any]) -> None:
    from tuner.trials.training import driver_calls, session

    running = session.current()
    assert running is not None

    def status(call: Callable[[], Any]) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=call)
        child.start()
        child.join()
        return child.exitcode

    report(loss=3.0)
    statuses = {
        "function": status(lambda: report(loss=-100.0)),
        "context": status(session.get_context),  # workers of a data loader ask for their rank
        "session": status(lambda: running.report({"loss": -100.0})),
        "driver": status(driver_calls.here),
        "no call": status(lambda: None),
    }
    report(loss=2.0, **{name: float(code or 0) for name, code in statuses.items()})
    report(loss=1.0)


def test_only_the_training_process_reports(local_bench: LocalBench) -> None:
    launch = local_bench.launch(calls_tuner_in_forks, first_milestone=None)
    outcome = local_bench.run(launch)
    assert outcome.failure is None
    assert [(report.report_no, report.metrics["loss"]) for report in local_bench.reports(launch)] == [
        (1, 3.0),
        (2, 2.0),
        (3, 1.0),
    ]
    statuses = {**local_bench.reports(launch)[1].metrics}
    assert statuses == {"loss": 2.0, "function": 1, "context": 0, "session": 1, "driver": 1, "no call": 0}
    assert "was called in a child process of a trial" in local_bench.log(launch)


def leaves_in_forks(config: dict[str, Any]) -> None:
    def status(way: str) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(children[way], 0)[1])

    report(loss=2.0)
    children = {}
    for way in ("returns", "exits", "raises"):
        children[way] = os.fork()
        if children[way] == 0:
            if way == "exits":
                sys.exit(7)
            if way == "raises":
                raise ValueError("in the child")
            return
    report(loss=1.0, **{way: float(status(way)) for way in children})


def test_a_fork_that_leaves_the_function_does_not_end_the_segment(local_bench: LocalBench) -> None:
    launch = local_bench.launch(leaves_in_forks, first_milestone=None)
    outcome = local_bench.run(launch)
    assert outcome.failure is None
    assert [report.metrics for report in local_bench.reports(launch)] == [
        {"loss": 2.0},
        {"loss": 1.0, "returns": 0.0, "exits": 7.0, "raises": 1.0},
    ]
    assert "ValueError: in the child" in local_bench.log(launch)
