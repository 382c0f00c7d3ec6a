"""Slow searchers are asked in a helper process, which answers as they would in this one."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest
from optuna.distributions import FloatDistribution, distribution_to_json

from tests.search.driving import FLAT, Drive, make, task
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.hosts.helpers import proposals as module
from tuner.hosts.helpers.proposals import ProposalError, Proposals
from tuner.search.optuna_samplers import model_based


@pytest.fixture
async def proposals() -> AsyncIterator[Proposals]:
    made = Proposals()
    yield made
    await made.close()


async def test_the_helper_answers_as_the_searcher_would_here(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials run, pause, stop and fail between the questions, and more have changed than are sent at once."""
    monkeypatch.setattr(module, "AT_ONCE", 3)
    for kind in ("tpe", "cmaes", "nsgaii"):
        here, there = make({"type": kind}, task(FLAT)), make({"type": kind}, task(FLAT))
        drive = Drive(task(FLAT))
        drive.run(here, 20)
        for _ in range(10):
            number = len(drive.trials)
            found = await proposals.suggest(f"exp_{kind}", there, number, drive.trials)
            drive.step(here)
            assert found == drive.suggestions[-1]
        assert len(proposals._shared._copies[f"exp_{kind}"].live) < number, "ended trials are sent once"


async def test_a_parameter_is_drawn_as_it_would_be_here(proposals: Proposals) -> None:
    x = distribution_to_json(FloatDistribution(0.0, 1.0))
    trials = Population()
    here, there = (make({"type": "define_by_run"}, task(FLAT)) for _ in range(2))
    for number in range(15):
        trials.add(Trial(number, {}))
        trials.move(number, TrialState.RUNNING)
        value, state = await proposals.draw("exp_a", there, number, "z", x, trials)
        assert (value, state) == here.draw(number, "z", x, trials)  # type: ignore[attr-defined]
        trials[number].params["z"] = value
        trials[number].searcher_state |= state
        trials[number].best_value = trials[number].last_value = value
        trials.move(number, TrialState.COMPLETED)
    with pytest.raises(Exception, match="was .* in an earlier trial"):
        trials.add(Trial(15, {}))
        await proposals.draw(
            "exp_a", there, 15, "z", '{"name": "CategoricalDistribution", "attributes": {"choices": ["a"]}}', trials
        )


async def test_a_helper_that_has_died_is_started_again_and_knows_everything(proposals: Proposals) -> None:
    searcher, drive = make({"type": "tpe"}, task(FLAT)), Drive(task(FLAT))
    drive.run(searcher, 15)
    before = await proposals.suggest("exp_a", searcher, 15, drive.trials)
    process = proposals._shared._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ProposalError, match="has exited"):
        await proposals.suggest("exp_a", searcher, 15, drive.trials)
    assert await proposals.suggest("exp_a", searcher, 15, drive.trials) == before


async def test_a_searcher_that_cannot_be_pickled_ends_no_helper(proposals: Proposals) -> None:
    """The second call ended the helper that all experiments share, and its error did not say why."""
    searcher, trials = make({"type": "random"}, task(FLAT)), Population()
    searcher.lock = threading.Lock()  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(TypeError, match="cannot pickle"):
            await proposals.suggest("exp_b", searcher, 0, trials)


async def test_a_caller_that_is_cancelled_leaves_the_answers_in_order(proposals: Proposals) -> None:
    searcher, drive = make({"type": "tpe"}, task(FLAT)), Drive(task(FLAT))
    drive.run(searcher, 15)
    first = asyncio.create_task(proposals.suggest("exp_a", searcher, 15, drive.trials))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await proposals.suggest("exp_a", searcher, 15, drive.trials) == searcher.suggest(15, drive.trials)


async def test_searchers_that_take_seconds_have_a_helper_of_their_own_which_ends_with_the_experiment(
    proposals: Proposals,
) -> None:
    searcher, drive = make({"type": "gp"}, task(FLAT)), Drive(task(FLAT))
    assert await proposals.suggest("exp_g", searcher, 0, drive.trials) == searcher.suggest(0, drive.trials)
    process = proposals._own["exp_g"]._process
    assert proposals._shared._process is None
    assert process is not None
    await proposals.forget("exp_g")
    assert process.returncode is not None
    assert proposals._own == {}


def test_searchers_are_asked_elsewhere_from_a_number_of_trials_on() -> None:
    of, trials = task(FLAT), Population()
    light, heavy, chance = make({"type": "tpe"}, of), make({"type": "gp"}, of), make({"type": "random"}, of)
    assert [one.is_heavy(trials) for one in (light, heavy, chance)] == [False, True, False]
    for number in range(model_based.LIGHT_UNTIL):
        trials.add(Trial(number, {}))
    assert [one.is_heavy(trials) for one in (light, heavy, chance)] == [True, True, False]
    learns = make({"type": "define_by_run", "search": {"type": "tpe"}}, of)
    assert learns.is_heavy(trials)
    slow = make({"type": "define_by_run", "search": {"type": "gp"}}, of)
    assert [one.HEAVY for one in (learns, slow)] == [False, True], "which has a helper of its own"


async def test_a_helper_that_cannot_be_started_says_what_to_raise(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:  # as under `ulimit -u`, which does not hold for root
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    with pytest.raises(ProposalError, match="cannot be started: .* unavailable; .* raise `ulimit -u`"):
        await proposals.suggest("exp_a", make({"type": "tpe"}, task(FLAT)), 0, Population())
