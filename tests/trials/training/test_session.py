"""The session of one rank, whose ports are plain objects in this process."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.domain.segments import Report, Verdict
from tuner.errors import OutsideTrial
from tuner.trials.checkpoints.checkpoints import Source
from tuner.trials.checkpoints.saver import Saver
from tuner.trials.compat.ray_compat import TrainContext
from tuner.trials.messages.channel import ChannelClient, ChannelServer
from tuner.trials.messages.launch import Launch
from tuner.trials.training import session
from tuner.trials.training.session import Context, LeaveTrial, Session


class Memory:
    """Keeps the reports that rank 0 sends, and answers milestones with `verdicts`."""

    def __init__(self, verdicts: Callable[[int], Verdict]) -> None:
        self.sent: list[Report] = []
        self._verdicts = verdicts

    def put(self, message: Report) -> None:
        self.sent.append(message)

    def ask(self, message: Report) -> Verdict:
        self.sent.append(message)
        return self._verdicts(message.report_no)


class Shelf:
    """A saver that remembers what it was given."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool]] = []
        self.through: list[int] = []

    def take(self, source: Source, report_no: int, iteration: int, *, at_end: bool = False) -> None:
        if callable(source):
            source("somewhere")
        self.taken.append((report_no, at_end))

    def passed(self, report_no: int) -> None:
        self.through.append(report_no)


def make(verdicts: Callable[[int], Verdict] | None = None, **options: Any) -> tuple[Session, Memory, Shelf]:
    context = Context(
        experiment_id="exp",
        trial_id="trl",
        trial_number=3,
        segment_id="seg",
        world_size=1,
        world_rank=0,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        config={"lr": 0.1},
        start_iteration=10,
    )
    memory, shelf = Memory(verdicts or (lambda n: Verdict(next_milestone=n + 1))), Shelf()
    return Session(context, reports=memory, peers=None, saver=shelf, **options), memory, shelf


def test_every_report_is_numbered_and_only_milestones_wait() -> None:
    running, memory, _ = make(lambda n: Verdict(next_milestone=n + 3), first_milestone=2)
    for step in range(6):
        running.report({"loss": step}, step=step * 100)
    assert [(m.report_no, m.waits, m.step) for m in memory.sent] == [
        (1, False, 0),
        (2, True, 100),
        (3, False, 200),
        (4, False, 300),
        (5, True, 400),
        (6, False, 500),
    ]


def test_reports_of_several_threads_are_sent_in_order() -> None:
    session, memory, shelf = make(lambda n: Verdict(next_milestone=None), first_milestone=None)
    second = threading.Thread(target=session.report, args=({"loss": 2.0},))

    def save(source: Source, number: int, *_: Any, **__: Any) -> None:
        if number == 1:
            second.start()
            second.join(timeout=0.2)  # without the lock, it makes its report now

    shelf.take = save  # type: ignore[method-assign, assignment]  # the first report takes its time
    session.report({"loss": 1.0}, checkpoint="a directory")
    second.join()
    assert [(report.report_no, report.metrics["loss"]) for report in memory.sent] == [(1, 1.0), (2, 2.0)]


def test_a_stop_leaves_by_an_exception_that_user_code_does_not_swallow() -> None:
    running, memory, _ = make(lambda n: Verdict(action="stop", reason="rank 6 of 9"))
    with pytest.raises(LeaveTrial, match="stop: rank 6 of 9"):
        try:
            running.report({"loss": 1})
        except Exception:
            pytest.fail("an except Exception of the user's caught it")
    with pytest.raises(LeaveTrial):
        running.report({"loss": 2})
    assert len(memory.sent) == 1, "nothing more is reported"


def test_callables_are_asked_only_when_a_checkpoint_is_due() -> None:
    running, _, shelf = make(first_milestone=None, checkpoint_every=3)
    written: list[str] = []
    due = []
    for _ in range(7):
        due.append(running.should_checkpoint())
        running.report({"a": 1}, checkpoint=lambda folder: written.append(folder))
    assert due == [False, False, True, False, False, True, False]
    assert shelf.taken == [(3, False), (6, False)]
    assert len(written) == 2


def test_directories_are_always_taken(tmp_path: Path) -> None:
    running, _, shelf = make(first_milestone=None)
    running.report({"a": 1}, checkpoint=tmp_path)
    running.report({"a": 1})
    assert shelf.taken == [(1, False)]


def test_a_pause_saves_what_the_callable_has() -> None:
    running, _, shelf = make(lambda n: Verdict(action="pause", save_checkpoint=True))
    with pytest.raises(LeaveTrial):
        running.report({"a": 1}, checkpoint=lambda folder: None)
    assert shelf.taken == [(1, False)]


def test_a_pause_of_a_trial_that_has_just_saved_saves_once(tmp_path: Path) -> None:
    running, _, shelf = make(lambda n: Verdict(action="pause", save_checkpoint=True))
    with pytest.raises(LeaveTrial):
        running.report({"a": 1}, checkpoint=tmp_path)
    assert shelf.taken == [(1, False)]


def fails(folder: str) -> None:
    raise OSError("no space left")


def test_a_report_whose_checkpoint_cannot_be_saved_is_not_made() -> None:
    """The driver missed a report, so the trial failed although its code had caught the error. Each retry failed like that."""
    running, memory, shelf = make(checkpoint_every=1, first_milestone=None)
    running.report({"loss": 3}, checkpoint=lambda folder: None)
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            running.report({"loss": 2}, checkpoint=fails)
    assert running.count == 1
    running.report({"loss": 1}, checkpoint=lambda folder: None)
    assert [(message.report_no, message.metrics["loss"]) for message in memory.sent] == [(1, 3.0), (2, 1.0)]
    assert shelf.taken == [(1, False), (2, False)]


def test_one_of_several_ranks_makes_a_report_without_the_checkpoint_that_it_cannot_save() -> None:
    """The others would wait at a milestone for a rank that has made fewer reports, and it for them in the next step."""
    running, memory, shelf = make(lambda n: Verdict(next_milestone=n + 2), checkpoint_every=1, first_milestone=2)
    running.context = replace(running.context, world_size=2)
    for _ in range(3):
        with pytest.raises(OSError, match="no space left"):
            running.report({"loss": 1}, checkpoint=fails)
    running.report({"loss": 0}, checkpoint=lambda folder: None)
    assert [(message.report_no, message.waits) for message in memory.sent] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]
    assert shelf.taken == [(4, False)]


def test_the_error_of_a_checkpoint_comes_before_the_verdict_to_leave() -> None:
    """A trial of several ranks whose last checkpoint could not be saved ended or paused without it, and without an error."""
    running, memory, _ = make(lambda n: Verdict(action="stop", reason="max_t"), checkpoint_every=1)
    running.context = replace(running.context, world_size=2)
    with pytest.raises(OSError, match="no space left"):
        running.report({"loss": 1}, checkpoint=fails)
    assert running.left is None
    with pytest.raises(LeaveTrial, match="stop: max_t"):
        running.report({"loss": 0.5})
    assert len(memory.sent) == 1


def test_the_ranks_wait_at_the_same_reports_if_one_of_them_cannot_save_what_a_verdict_asks_for() -> None:
    """The rank waited at the next report for a verdict, and the others did not."""
    running, memory, _ = make(lambda n: Verdict(next_milestone=n + 2, save_checkpoint=True))
    with pytest.raises(OSError, match="no space left"):
        running.report({"loss": 1}, checkpoint=fails)
    running.report({"loss": 1})
    assert [(message.report_no, message.waits) for message in memory.sent] == [(1, True), (2, False)]


def test_a_trial_that_catches_the_error_of_its_last_checkpoint_leaves_at_its_next_report() -> None:
    """It trained on without end, and its results still counted."""
    running, memory, _ = make(lambda n: Verdict(action="stop", reason="max_t", save_checkpoint=True))
    with pytest.raises(OSError, match="no space left"):
        running.report({"loss": 1}, checkpoint=fails)
    assert running.left is None, "the error is the trial's, if its code does not catch it"
    with pytest.raises(LeaveTrial, match="stop: max_t"):
        running.report({"loss": 0.5}, checkpoint=fails)
    assert running.left is not None
    assert len(memory.sent) == 1


def test_checkpoints_at_milestones() -> None:
    running, _, shelf = make(lambda n: Verdict(next_milestone=n + 2), first_milestone=2, milestone_checkpoints=True)
    for _ in range(4):
        running.report({"a": 1}, checkpoint=lambda folder: None)
    assert shelf.taken == [(2, False), (4, False)]


@pytest.mark.parametrize(("wanted", "taken"), [(True, [(2, True)]), (False, [])])
def test_the_end_is_saved_where_that_is_wanted(wanted: bool, taken: list[tuple[int, bool]]) -> None:
    running, _, shelf = make(first_milestone=None, checkpoint_at_end=wanted)
    for _ in range(2):
        running.report({"a": 1}, checkpoint=lambda folder: None)
    running.finish()
    assert shelf.taken == taken


def test_a_hold_keeps_the_next_report_back_until_its_milestone_is_known() -> None:
    running, memory, _ = make(lambda n: Verdict(action="pause"), first_milestone=None)
    running.report({"a": 1})
    assert running.hold("a") == 1
    left = threading.Event()

    def train() -> None:
        with pytest.raises(LeaveTrial):
            while True:
                running.report({"a": 2})
        left.set()

    thread = threading.Thread(target=train)
    thread.start()
    assert not left.wait(0.2)
    assert len(memory.sent) == 1, "held"
    running.release("a", 4)  # another rank was at 3 already
    assert left.wait(10)
    thread.join()
    assert [(m.report_no, m.waits) for m in memory.sent] == [(1, False), (2, False), (3, False), (4, True)]


def test_an_interrupt_survives_a_verdict_that_was_under_way() -> None:
    running, memory, _ = make(lambda n: Verdict(next_milestone=None))
    running.hold("a")
    running.release("a", 2)
    running.report({"a": 1})  # the scheduler's milestone 1: its verdict knows nothing of the interrupt
    running.report({"a": 2})
    running.report({"a": 3})
    assert [m.waits for m in memory.sent] == [True, True, False]


def test_should_checkpoint_knows_of_an_interrupt() -> None:
    running, _, _ = make(first_milestone=None)
    assert not running.should_checkpoint()
    running.report({"a": 1})
    interrupt(running)
    assert running.should_checkpoint()


def test_an_interrupt_asks_for_a_checkpoint_at_its_own_report_only() -> None:
    """Otherwise ranks that learn of it before and after a scheduler's milestone would differ."""
    early, _, of_early = make(lambda n: Verdict(next_milestone=None), first_milestone=2)
    late, _, of_late = make(lambda n: Verdict(next_milestone=None), first_milestone=2)
    early.release("a", 3)
    due = []
    for running in (early, late):
        for _ in range(2):
            due.append(running.should_checkpoint())
            running.report({"a": 1}, checkpoint=lambda folder: None)
    assert not any(due)
    late.release("a", 3)
    for running in (early, late):
        assert running.should_checkpoint()
        running.report({"a": 1}, checkpoint=lambda folder: None)
    assert of_early.taken == of_late.taken == [(3, False)]


def interrupt(*ranks: Session) -> None:
    """Interrupt the ranks as the group manager does."""
    name = f"interrupt {next(_names)}"
    number = max([rank.hold(name) for rank in ranks]) + 1
    for rank in ranks:
        rank.release(name, number)


_names = itertools.count()


def test_an_answer_of_should_checkpoint_stands() -> None:
    zero, of_zero, _ = make(lambda n: Verdict(next_milestone=None), first_milestone=None)
    one, of_one, _ = make(lambda n: Verdict(next_milestone=None), first_milestone=None)
    assert not zero.should_checkpoint()
    interrupt(zero, one)  # after rank 0 has asked about report 1, and before rank 1 has
    for rank in (zero, one):
        answers = []
        for _ in range(3):
            answers.append(rank.should_checkpoint())
            rank.report({"a": 1})
        assert answers == [False, True, False]
    assert [m.waits for m in of_zero.sent] == [m.waits for m in of_one.sent] == [False, True, False]


def test_should_checkpoint_waits_for_an_interrupt_under_way() -> None:
    running, _, _ = make(first_milestone=None)
    running.hold("a")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(running.should_checkpoint()))
    thread.start()
    thread.join(0.2)
    assert not answers
    running.release("a", 1)
    thread.join(10)
    assert answers == [True]


def test_two_interrupts_close_together_are_two_milestones_on_every_rank() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slowly(number: int) -> Verdict:
        asked.set()
        assert answer.wait(10)
        return Verdict(next_milestone=None)

    zero, of_zero, _ = make(slowly, first_milestone=None)
    one, of_one, _ = make(lambda n: Verdict(next_milestone=None), first_milestone=None)
    interrupt(zero, one)

    def train() -> None:
        for _ in range(3):
            zero.report({"a": 1})

    thread = threading.Thread(target=train)
    thread.start()
    assert asked.wait(10), "rank 0 has begun report 1, and rank 1 has not"
    interrupt(zero, one)
    answer.set()
    thread.join(10)
    for _ in range(3):
        one.report({"a": 1})
    assert [m.waits for m in of_zero.sent] == [m.waits for m in of_one.sent] == [True, True, False]


def test_of_two_interrupts_under_way_the_first_to_end_does_not_let_go() -> None:
    running, memory, _ = make(first_milestone=None)
    running.hold("a")
    running.hold("b")
    running.release("a", 5)
    thread = threading.Thread(target=lambda: running.report({"a": 1}))
    thread.start()
    thread.join(0.2)
    assert not memory.sent
    running.release("b", 5)
    thread.join(10)
    assert len(memory.sent) == 1


def test_a_hold_lasts_until_it_is_released_and_may_end_without_a_milestone() -> None:
    running, memory, _ = make(first_milestone=None)
    assert running.hold("a") == 0
    thread = threading.Thread(target=lambda: running.report({"a": 1}))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "a rank gives up no hold by itself"
    running.release("a", None)
    thread.join(10)
    assert [m.waits for m in memory.sent] == [False]


def test_a_release_that_overtakes_its_hold_and_one_that_is_repeated() -> None:
    running, memory, _ = make(first_milestone=None)
    running.release("a", None)
    assert running.hold("a") == 0
    running.report({"a": 1})  # does not wait
    running.hold("b")
    running.release("b", 3)
    running.release("b", 2)
    running.report({"a": 1})
    running.report({"a": 1})
    assert [m.waits for m in memory.sent] == [False, False, True]


def test_outside_a_trial_a_function_runs_and_prints_its_reports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "_outside", session._Outside())
    called: list[str] = []

    def train(config: dict[str, Any]) -> None:
        assert session.get_checkpoint() is None
        for epoch in range(2):
            assert not session.should_checkpoint()
            session.report({"accuracy": 0.5 + config["lr"] * epoch, "val": {"loss": 1 / 3}}, checkpoint=called.append)
        session.report({"accuracy": 0.7, "auc": None}, step=300, checkpoint=tmp_path)

    (tmp_path / "mine").touch()
    train({"lr": 0.1})
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "report 1: accuracy=0.5 val/loss=0.333333",
        "report 2: accuracy=0.6 val/loss=0.333333",
        "report 3 (step 300): accuracy=0.7",
    ]
    assert err == "left out of the report: metric 'auc', which is None\n"
    assert called == []
    assert (tmp_path / "mine").exists(), "a directory is left alone"
    with pytest.raises(TypeError, match="metric 'accuracy' must be a number"):
        session.report({"accuracy": "high"})
    context = session.get_context()
    assert (context.get_world_size(), context.get_world_rank(), context.get_trial_number()) == (1, 0, 0)
    assert (context.get_trial_dir(), context.get_trial_resources(), context.get_config()) == (os.getcwd(), [{}], {})


def test_a_child_process_of_a_trial_is_told_that_its_reports_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.RANK_PROCESS, "1")
    for call in (session.get_context, session.get_checkpoint, session.should_checkpoint, lambda: session.report({})):
        with pytest.raises(
            OutsideTrial, match="was called in a child process of a trial, or after the trial had ended"
        ):
            call()


def test_a_step_is_a_whole_number_that_a_database_holds() -> None:
    running, memory, _ = make()
    for step in (np.int64(7), 1e6, -3, None):
        running.report({"a": 1}, step=step)  # type: ignore[arg-type]
    assert [message.step for message in memory.sent] == [7, 1_000_000, -3, None]
    assert all(type(message.step) is int for message in memory.sent[:3])
    for wrong in ("5", 0.5):
        with pytest.raises(TypeError, match="step must be a whole number, not"):
            running.report({"a": 1}, step=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step must be below"):
        running.report({"a": 1}, step=2**63)
    assert running.count == 4, "what was refused does not count"


def test_odd_metrics_do_not_end_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    running, memory, _ = make(objective="auc")
    for _ in range(2):
        running.report({"auc": None, "f1": None, "loss": 0.5})
    assert [set(message.metrics) for message in memory.sent] == [{"auc", "loss"}] * 2
    assert all(math.isnan(message.metrics["auc"]) for message in memory.sent)
    assert capsys.readouterr().err.splitlines() == [
        "the objective 'auc' is None in a report, which counts as NaN",
        "left out of the report: metric 'f1', which is None",
    ]


def test_inside_a_trial() -> None:
    running, memory, _ = make()
    session.activate(running)
    try:
        session.report({"a": 1})
        context = session.get_context()
        assert session.get_checkpoint() is None
    finally:
        session.activate(None)
    assert memory.sent[0].metrics == {"a": 1.0}
    assert (context.get_trial_number(), context.get_world_size(), context.config["lr"]) == (3, 1, 0.1)


def test_a_rank_that_reports_out_of_step_is_told(tmp_path: Path) -> None:
    from tuner.trials.messages.launch import CodeRef
    from tuner.trials.runtime.peers import ChannelPeers

    launch = Launch(
        experiment_id="e",
        trial_id="t",
        segment_id="now",
        trial_number=0,
        code=CodeRef(hash="h"),
        storage=str(tmp_path),
        log_dir=str(tmp_path),
    )
    token = b"x" * 16
    server = ChannelServer("127.0.0.1", token)
    client: list[ChannelClient] = []
    thread = threading.Thread(target=lambda: client.append(ChannelClient(server.address, token, 1, 5)))
    thread.start()
    server.accept(2, 5)
    thread.join()
    zero, one = ChannelPeers(server, None, launch), ChannelPeers(None, client[0], launch)
    server.broadcast(("verdict", "a segment before", 9, Verdict(action="stop")))
    zero.hand_out(1, Verdict(action="pause"))
    assert one.take(1) == Verdict(action="pause"), "messages of earlier segments are passed over"
    zero.hand_out(5, Verdict())
    with pytest.raises(RuntimeError, match="rank 0 is at report 5 and this rank at report 4: every rank must"):
        one.take(4)
    zero.hand_out(6, Verdict(next_milestone=8))
    zero.ended()
    assert one.take(6) == Verdict(next_milestone=8)
    for number in (8, 9):
        assert one.take(number) == Verdict(action="continue", next_milestone=None), "rank 0 makes no report 8"
    for _ in range(3):
        zero.ended()
    after = replace(launch, segment_id="after")
    ChannelPeers(server, None, after).hand_out(1, Verdict(action="stop"))
    one = ChannelPeers(None, client[0], after)
    with pytest.raises(TimeoutError):
        # Verdicts that nobody waits for are not kept. Thousands of them would fill the queue, and rank 0 would have to wait.
        client[0].verdicts.receive(0)
    assert one.take(1) == Verdict(action="stop")
    server.close()
    client[0].close()


def test_only_rank_0_says_that_it_has_ended() -> None:
    said: list[str] = []
    for rank in ("0", "1"):
        running, memory, _ = make()
        running._reports = memory if rank == "0" else None
        running._peers = SimpleNamespace(ended=lambda rank=rank: said.append(rank))  # type: ignore[assignment]
        running.finish()
    assert said == ["0"]


def test_a_milestone_says_where_the_next_function_that_saves_is_to_be_expected() -> None:
    running, memory, _ = make()
    for number in range(1, 13):
        running.report({"loss": 1}, checkpoint=(lambda folder: None) if number in (3, 6, 9) else None)
    assert [m.offer for m in memory.sent] == [None, None, 6, 6, 6, 9, 9, 9, 12, 12, 12, 15]


def test_the_context_answers_what_rays_does() -> None:
    rays = {name for name in vars(TrainContext) if name.startswith("get_")} - {"get_metadata", "get_storage"}
    assert {name for name in rays if not hasattr(Context, name)} == set()


def test_a_function_that_does_not_ask_for_its_checkpoint_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    kept: Any = object()
    running, _, _ = make(first_milestone=None, checkpoint=kept)
    running.report({"loss": 1})
    running.report({"loss": 2})
    assert "starts from the checkpoint of iteration 10, but its function has not loaded it" in running.warning
    assert capsys.readouterr().err.count("tuner.get_checkpoint()") == 1


def test_an_empty_checkpoint_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running, _, _ = make(first_milestone=1, checkpoint_every=1)
    saver = Saver(
        storage=str(tmp_path), segment_id="seg", trial_number=3, rank=0, world_size=1, committed=lambda info: None
    )
    running._saver = saver
    running.report({"loss": 1}, checkpoint=lambda folder: (Path(folder) / "state").write_text("1"))
    assert running.warning == ""
    for _ in range(2):
        running.report({"loss": 1}, checkpoint=lambda folder: None)
    saver.drain(30)
    assert "the checkpoint of iteration 12 is empty" in running.warning
    assert capsys.readouterr().err.count("is empty") == 1


def test_a_function_that_asks_for_its_checkpoint_or_has_none_is_not_warned_of() -> None:
    kept: Any = object()
    asking, _, _ = make(first_milestone=None, checkpoint=kept)
    assert asking.checkpoint is kept
    fresh, _, _ = make(first_milestone=None)
    for running in (asking, fresh):
        running.report({"loss": 1})
        assert running.warning == ""
