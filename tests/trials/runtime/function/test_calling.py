"""Functions that return or yield what they found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tuner.domain.segments import Report, Verdict
from tuner.trials.compat.ray_compat import Finished
from tuner.trials.messages.launch import CodeRef, Launch
from tuner.trials.runtime.function.calling import call
from tuner.trials.training.session import Context, LeaveTrial, Session

LAUNCH = Launch(
    experiment_id="e",
    trial_id="t",
    segment_id="s",
    trial_number=0,
    code=CodeRef(hash="1"),
    storage="",
    log_dir="",
    metric="loss",
)


class Driver:
    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []
        self.last: list[bool] = []

    def put(self, message: Report) -> None:
        self.seen.append(dict(message.metrics))
        self.last.append(message.last)

    def ask(self, message: Report) -> Verdict:
        self.put(message)
        return Verdict(action="stop", reason="it is worse than the others")


class NoSaver:
    def take(self, *args: Any, **kwargs: Any) -> None: ...

    def passed(self, report_no: int) -> None: ...


def reports_of(function: Any, start_iteration: int = 0, **options: Any) -> list[dict[str, float]]:
    return driver_of(function, start_iteration, **options).seen


def driver_of(function: Any, start_iteration: int = 0, **options: Any) -> Driver:
    """Call the function in a session, and return the driver that has got its reports."""
    driver = Driver()
    context = Context(
        experiment_id="e",
        trial_id="t",
        trial_number=0,
        segment_id="s",
        world_size=1,
        world_rank=0,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        start_iteration=start_iteration,
    )
    session = Session(context, reports=driver, peers=None, saver=NoSaver(), **{"first_milestone": None, **options})
    call(lambda config: function(config, session), {"x": 2}, session, LAUNCH)
    return driver


def generator(config: dict[str, Any], session: Session) -> Iterator[Any]:
    yield {"loss": 1.0, "more": 2}
    yield 0.5


def both(config: dict[str, Any], session: Session) -> float:
    session.report({"loss": 3.0})
    return 7.0


def finished(config: dict[str, Any], session: Session) -> None:
    session.report({"loss": 3.0})
    raise Finished


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda config, session: {"loss": config["x"]}, [{"loss": 2.0}]),
        (lambda config, session: {"loss": 1.0, "model": object(), "note": "words"}, [{"loss": 1.0}]),
        (lambda config, session: 0.25, [{"loss": 0.25}]),
        (lambda config, session: torch.tensor(0.5), [{"loss": 0.5}]),
        (lambda config, session: {"loss": 1.0, "seen": 10**400}, [{"loss": 1.0}]),
        (generator, [{"loss": 1.0, "more": 2.0}, {"loss": 0.5}]),
        (both, [{"loss": 3.0}]),
        (finished, [{"loss": 3.0}]),
        (lambda config, session: None, []),
    ],
    ids=[
        "dict",
        "more than numbers",
        "number",
        "tensor",
        "too large",
        "generator",
        "reported",
        "finished",
        "none",
    ],
)
def test_what_comes_back(function: Any, expected: list[dict[str, float]]) -> None:
    assert reports_of(function) == expected


def test_a_value_that_is_returned_is_told_from_a_report() -> None:
    seen: list[Session] = []
    reports_of(lambda config, session: seen.append(session) or 0.5)
    reports_of(lambda config, session: seen.append(session) or both(config, session))
    assert [session.as_value for session in seen] == [True, False]


def test_metrics_that_are_returned_after_reports_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    def returning(**result: Any) -> str:
        seen: list[Session] = []

        def train(config: dict[str, Any], session: Session) -> dict[str, Any]:
            seen.append(session)
            session.report({"loss": 3.0})
            return result

        assert reports_of(train) == [{"loss": 3.0}]
        return seen[0].warning

    said = returning(loss=3.0, accuracy=0.5, auc=np.float32(0.9), model="net")
    assert said.startswith("the training function has returned metrics that it has not reported")
    assert "not stored: 'accuracy', 'auc'." in said
    assert said in capsys.readouterr().err
    assert not returning(loss=3.0, model="net", history=[1, 2], done=True)


def test_the_driver_is_told_that_a_returned_value_is_the_last_report() -> None:
    assert driver_of(lambda config, session: 0.5).last == [True]
    assert driver_of(both).last == [False]
    assert driver_of(generator).last == [False, False]


@pytest.mark.parametrize(("value", "error"), [(1.0, LeaveTrial), ("small", TypeError)], ids=["stopped", "wrong value"])
def test_the_finally_block_of_a_generator_runs_when_it_must_end(value: Any, error: type[BaseException]) -> None:
    ended: list[str] = []

    def forever(config: dict[str, Any], session: Session) -> Iterator[Any]:
        try:
            while True:
                yield value
        finally:
            ended.append("finally")

    with pytest.raises(error) as caught:
        reports_of(forever, first_milestone=3)
    assert ended == ["finally"], f"it is kept by the traceback of {caught.value!r}"


def test_an_objective_that_is_not_known_for_one_is_told_how() -> None:
    with pytest.raises(AttributeError) as caught:
        reports_of(lambda config, session: config.suggest_float("x", 0, 1))
    [note] = caught.value.__notes__
    assert note == "an Optuna objective is recognized by the name of its first argument, which must be trial"


@pytest.mark.parametrize("form", [lambda value: value, lambda value: iter_of(value)], ids=["returned", "yielded"])
def test_an_objective_that_is_no_number_is_an_error(form: Any) -> None:
    with pytest.raises(
        TypeError, match=r"metric 'loss' must be a number, or an array or tensor of one element, not str 'small'"
    ):
        reports_of(lambda config, session: form({"loss": "small", "more": 1}))


def iter_of(value: Any) -> Iterator[Any]:
    yield value


def test_an_objective_that_is_too_large_is_an_error() -> None:
    with pytest.raises(TypeError, match="metric 'loss' is too large"):
        reports_of(lambda config, session: 10**400)


def test_a_result_that_is_no_metric_is_refused_if_it_is_all_there_is() -> None:
    for value, words in ((torch.ones(3), r"torch.Tensor of shape \(3,\)"), (True, "bool True"), ("done", "str 'done'")):
        with pytest.raises(TypeError, match=f"made no report and returned {words}; expected a number"):
            reports_of(lambda config, session, value=value: value)
    assert reports_of(lambda config, session: None) == []


def test_what_somebody_must_await_is_no_result() -> None:
    """After a report, a coroutine was dropped without a word, and the trial had completed."""

    async def later() -> float:
        return 0.5

    def train(config: dict[str, Any], session: Session) -> Any:
        session.report({"loss": 3.0})
        return waiting

    waiting = later()
    with pytest.raises(TypeError, match="returned coroutine .*, which nobody awaits: call asyncio.run"):
        reports_of(train)
    waiting.close()


def test_a_trial_that_continued_at_its_end_may_return_anything() -> None:
    """A number was reported, as one more iteration, although it is ignored if the trial is not interrupted."""
    for value in (torch.ones(3), 0.5, {"loss": 0.5}):
        assert reports_of(lambda config, session, value=value: value, start_iteration=9) == []
