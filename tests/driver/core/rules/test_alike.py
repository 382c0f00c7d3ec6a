"""A search ends if its first three trials fail because of the same mistake, and not if others may succeed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.events import Failure
from tuner.domain.segments import IN_SAVE
from tuner.domain.states import ExperimentState
from tuner.driver.core.rules.alike import Alike, place_of

LIMITS = {"max_concurrent_trials": 1}


def raised(line: int = 12, message: str = "KeyError: 'lr'", **more: Any) -> Failure:
    trace = f'Traceback (most recent call last):\n  File "/home/me/train.py", line {line}, in train\n    x\n{message}\n'
    return Failure(**{"kind": "user", "cause": "exception", "message": message, "rank": 0, "traceback": trace, **more})


def fails(bench: Bench, *failures: Failure) -> Bench:
    for failure in failures:
        number = next(t.number for t in bench.core.trials if t.holds_resources)
        bench.started(number)
        bench.ended(number, "failed", failure)
    return bench


def test_three_that_fail_alike_end_the_search_with_that_error() -> None:
    bench = fails(Bench(num_samples=20, limits=LIMITS), raised(), raised(), raised(message="KeyError: 'width'"))
    assert bench.core.state is ExperimentState.FAILED
    assert len(bench.core.trials) == 3
    assert bench.core.experiment.error == (
        "the first 3 trials all failed with KeyError at line 12 of /home/me/train.py, before any of them had reported; "
        "trial 2, rank 0: KeyError: 'width'"
    )
    assert bench.successor().core.experiment.error == bench.core.experiment.error


def in_library(caller: int) -> Failure:
    """A failure in the standard library, which pandas calls for line `caller` of the user's file."""
    frames = (
        ("/home/me/train.py", caller),
        ("/home/me/.venv/lib/python3.11/site-packages/pandas/io/common.py", 954),
        ("/usr/lib/python3.11/codecs.py", 906),
    )
    lines = "".join(f'  File "{file}", line {line}, in f\n    x\n' for file, line in frames)
    message = "FileNotFoundError: no data.csv"
    return raised(message=message, traceback=f"Traceback (most recent call last):\n{lines}{message}\n")


def test_the_line_of_the_user_is_named_if_a_library_raises() -> None:
    bench = fails(Bench(num_samples=20, limits=LIMITS), *[in_library(3)] * 3)
    assert bench.core.experiment.error == (
        "the first 3 trials all failed with FileNotFoundError at line 3 of /home/me/train.py (raised at line 906 of "
        "/usr/lib/python3.11/codecs.py), before any of them had reported; trial 2, rank 0: FileNotFoundError: no data.csv"
    )


def test_the_same_line_of_a_library_is_not_alike_if_other_lines_call_it() -> None:
    assert place_of(in_library(3)) == place_of(in_library(3)) != place_of(in_library(4))


def unsaved(line: int = 12) -> Failure:
    failure = raised(line, "OSError: no")
    return replace(failure, traceback=failure.traceback + IN_SAVE)


def test_three_saves_that_fail_alike_end_the_search_although_trials_report() -> None:
    """The function is called for the best trials, so the others would go on, and one of them would seem to be the best."""
    bench = Bench(num_samples=20, limits=LIMITS)
    bench.started(0)
    bench.reported(0, 0.5)
    bench.ended(0, "returned")
    for number in (1, 2, 3):
        bench.started(number)
        bench.reported(number, 0.1)
        bench.ended(number, "failed", unsaved())
    assert bench.core.experiment.error == (
        "the first 3 trials that had to save a checkpoint all failed with OSError at line 12 of /home/me/train.py, and no "
        "trial has saved one; trial 3, rank 0: OSError: no"
    )


@pytest.mark.parametrize("failures", [(unsaved(), unsaved(13), unsaved()), (unsaved(), raised(), unsaved())])
def test_saves_that_fail_in_other_ways_end_no_search(failures: tuple[Failure, ...]) -> None:
    assert fails(Bench(num_samples=20, limits=LIMITS), *failures).core.state is ExperimentState.RUNNING


def test_a_search_in_which_a_save_succeeded_goes_on() -> None:
    bench = Bench(num_samples=20, limits=LIMITS)
    bench.started(0)
    bench.reported(0, 0.5, checkpoint=True)
    bench.ended(0, "returned")
    assert fails(bench, unsaved(), unsaved(), unsaved()).core.state is ExperimentState.RUNNING


def test_an_error_of_report_counts_where_the_users_code_calls_it() -> None:
    own = '  File "/env/site-packages/tuner/trials/training/metrics.py", line 105, in flatten\n    raise TypeError\n'
    failure = raised(message="TypeError: metric 'loss' must be a number")
    head, tail = failure.traceback.rsplit("\n", 2)[0], failure.message
    assert place_of(raised(message=tail, traceback=f"{head}\n{own}{tail}\n")) == place_of(failure)


def test_three_saves_of_a_script_that_fail_alike_end_the_search() -> None:
    bench = Bench(num_samples=20, limits=LIMITS)
    failure = Failure(kind="user", cause="script", message="train.py ended with exit status 1: OSError: no", rank=0)
    for number in (0, 1, 2):
        bench.started(number)
        bench.reported(number, 0.1)
        bench.ended(number, "failed", replace(failure, traceback=unsaved().traceback))
    assert bench.core.experiment.error == (
        "the first 3 trials that had to save a checkpoint all failed at line 12 of /home/me/train.py, and no trial has saved "
        "one; trial 2, rank 0: train.py ended with exit status 1: OSError: no"
    )


def of_script(said: str, trace: str = "") -> Failure:
    return Failure(kind="user", cause="script", message=f"train.py ended with exit status 2: {said}", traceback=trace)


def test_three_scripts_that_end_alike_end_the_search() -> None:
    wrong = [of_script(f"error: unrecognized arguments: --lrx {lr}") for lr in (0.1, 0.2, 0.3)]
    bench = fails(Bench(num_samples=20, limits=LIMITS), *wrong)
    assert bench.core.experiment.error == (
        "the first 3 trials all failed because train.py ended with exit status 2, before any of them had reported; "
        "trial 2: train.py ended with exit status 2: error: unrecognized arguments: --lrx 0.3"
    )
    assert place_of(of_script("KeyError: 'lr'", raised().traceback)) == Alike(
        "train.py ended with exit status 2",
        "line 12 of /home/me/train.py",
    )
    of_rank = "".join(f"[rank1]: {line}" for line in raised().traceback.splitlines(keepends=True))
    assert place_of(of_script("KeyError: 'lr'", of_rank)) == place_of(of_script("KeyError: 'lr'", raised().traceback))
    assert place_of(of_script("torch.OutOfMemoryError: CUDA out of memory")) is None


def test_three_scripts_that_end_for_different_reasons_let_the_search_go_on() -> None:
    reasons = ["sh: gcc: not found", "Error: learning rate out of range", "cannot open data.bin"]
    bench = fails(Bench(num_samples=20, limits=LIMITS), *map(of_script, reasons))
    assert bench.core.state is ExperimentState.RUNNING


def test_three_scripts_that_say_nothing_end_the_search() -> None:
    silent = [
        Failure(kind="user", cause="script", message=f"train.sh ended with exit status 1 (sh train.sh --layers={what})")
        for what in ("many", "few", "none")
    ]
    assert fails(Bench(num_samples=20, limits=LIMITS), *silent).core.state is ExperimentState.FAILED


def test_three_that_return_without_a_report_end_the_search() -> None:
    silent = Failure(kind="user", cause="no_report", message="the training function returned without a report", rank=0)
    bench = fails(Bench(num_samples=20, limits=LIMITS), silent, silent, silent)
    assert bench.core.state is ExperimentState.FAILED
    assert len(bench.core.trials) == 3
    assert (bench.core.experiment.error or "").startswith("the first 3 trials all returned without a report")


@pytest.mark.parametrize(
    "odd",
    [
        raised(line=13),
        raised(message="ValueError: 'lr'"),
        raised(kind="system", cause="node_lost"),
        raised(cause="oom"),
        raised(traceback=""),
    ],
    ids=["another line", "another exception", "a lost node", "killed for memory", "no traceback"],
)
def test_one_that_fails_otherwise_lets_the_search_go_on(odd: Failure) -> None:
    limits = {**LIMITS, "max_system_failures": 0}
    bench = fails(Bench(num_samples=20, limits=limits), raised(), odd, raised(), raised())
    assert bench.core.state is ExperimentState.RUNNING
    assert len(bench.core.trials) == 5


@pytest.mark.parametrize(
    "message", ["OutOfMemoryError: CUDA out of memory", "MemoryError: ", "RuntimeError: out of memory"]
)
def test_a_lack_of_memory_is_of_one_configuration(message: str) -> None:
    assert place_of(raised()) is not None
    assert place_of(raised(message=message)) is None


def test_a_trial_that_has_reported_lets_the_search_go_on() -> None:
    bench = Bench(num_samples=20, limits=LIMITS)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "failed", raised())
    fails(bench, raised(), raised(), raised())
    assert bench.core.state is ExperimentState.RUNNING


def test_retries_come_first_and_trials_are_counted_and_not_attempts() -> None:
    bench = Bench(num_samples=20, limits={**LIMITS, "max_failures": 1})
    fails(bench, *[raised()] * 5)
    assert bench.core.state is ExperimentState.RUNNING
    fails(bench, raised())
    assert bench.core.state is ExperimentState.FAILED
    assert len(bench.core.trials) == 3
