"""Logs of ranks whose function or script fails."""

from __future__ import annotations

from typing import Any

from tests.trials.conftest import LocalBench


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
