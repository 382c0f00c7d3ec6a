"""The progress display always shows something, and keeps warnings as lines."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

import tuner
from tests.driver.bench import Bench
from tests.driver.core.state.test_leaderboard import CONSTRAINED
from tests.driver.stored import stored
from tests.store.examples import T0, a_report, a_spec, a_trial, begin
from tuner.domain.batch import Batch
from tuner.domain.decisions import Note, Start
from tuner.domain.events import DriverStarted, Failure
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.experiment.specs.spec import parse_spec
from tuner.sdk.live.progress import Progress, Stored, _of_whom
from tuner.space import Space
from tuner.store import Store, StoreUnavailable
from tuner.store.records import ExperimentRecord


def shown(store: Store, experiment: str, terminal: bool, width: int = 200) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    return Progress(Stored(store, experiment), console=console), out


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_waited_for_is_shown_from_the_first_moment(sqlite_store: Store, terminal: bool) -> None:
    made = sqlite_store.experiments.create(a_spec(), now=T0)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:
        progress.update()
    assert "starting the driver" in out.getvalue()


@pytest.mark.parametrize(("samples", "counted"), [(None, "pending, 0 trials"), (8, "pending, 0/8 trials")])
def test_trials_are_counted_of_how_many_if_that_is_known(
    sqlite_store: Store, samples: int | None, counted: str
) -> None:
    made = sqlite_store.experiments.create(dataclasses.replace(a_spec(), num_samples=samples), now=T0)
    progress, out = shown(sqlite_store, made.public_id, False)
    with progress:
        progress.update()
    assert counted in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_brackets_in_messages_and_names_are_shown_as_they_are(sqlite_store: Store, terminal: bool) -> None:
    made, _, _ = begin(sqlite_store, spec=a_spec(objectives=(Objective("[/score]", "max"),)))
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:
        progress.say("callback CB failed in on_trial_result: ValueError: unknown column [/lr] in [bold] table")
        progress.update()
    assert "unknown column [/lr] in [bold] table" in out.getvalue()
    assert "[/score]" in out.getvalue() or not terminal


def test_the_clock_goes_on_while_nobody_updates(sqlite_store: Store) -> None:
    """Check this since the start of Ray blocks the calling thread for seconds."""
    made = sqlite_store.experiments.create(a_spec(), now=T0)
    progress, out = shown(sqlite_store, made.public_id, True)
    with progress:
        end = time.monotonic() + 30
        while not re.search(r", [1-9]\d* s  starting the driver", out.getvalue()):
            assert time.monotonic() < end, out.getvalue()[-300:]
            time.sleep(0.02)


def begin_pending(store: Store, **summary: Any) -> ExperimentRecord:
    """Create an experiment whose only trial has been started, but has no workers yet."""
    made = store.experiments.create(a_spec(), now=T0)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    trial = a_trial()
    trial.state, trial.reason = TrialState.PENDING, "the limit on concurrent trials allows one more"
    trial.waiting = summary.pop("waiting", None)
    start = Start(reason=trial.reason, params=dict(trial.params), number=0)
    store.drivers.commit(
        made.id,
        epoch,
        Batch(
            log=[(1, DriverStarted(time=T0, epoch=epoch)), (2, start)],
            trials=[trial],
            state=ExperimentState.RUNNING,
            summary={"counts": {"pending": 1, **summary}},
        ),
        T0,
    )
    return made


def headline_ends(text: str, made: ExperimentRecord) -> set[str]:
    """Return what the lines about an experiment say last, after two spaces: what its trials wait for."""
    return {line.rstrip().rpartition("  ")[2] for line in text.splitlines() if made.public_id in line}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("counts", [{}, {"completed": 3}])
def test_what_trials_wait_for_is_said_if_none_trains(
    sqlite_store: Store, terminal: bool, counts: dict[str, int]
) -> None:
    made = begin_pending(sqlite_store, waiting="waits for 2 workers with 1 GPU each", **counts)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:
        pass
    assert headline_ends(out.getvalue(), made) == {"trial 0 waits for 2 workers with 1 GPU each"}


def test_workers_that_start_are_said_with_their_trial(sqlite_store: Store) -> None:
    made = begin_pending(sqlite_store)
    progress, out = shown(sqlite_store, made.public_id, True)
    with progress:
        pass
    assert headline_ends(out.getvalue(), made) == {"starting workers"}
    assert "starting workers: the limit on concurrent trials allows one more" in out.getvalue()


def test_the_table_is_drawn_without_the_database(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that draws it looked for pending trials eight times a second, and ended if the database did not answer."""
    made = begin_pending(sqlite_store, waiting="waits for 2 workers with 1 GPU each")
    progress, out = shown(sqlite_store, made.public_id, True)

    def refuse(*_: object) -> None:
        raise StoreUnavailable("no connection")

    with progress, monkeypatch.context() as patch:
        for name in ("experiment", "trials", "newest"):
            patch.setattr(progress.source, name, refuse)
        progress.update()
        assert progress._live is not None
        progress._live.refresh()
    assert "the search waits for it: no connection" in out.getvalue()


def test_a_narrow_terminal_cuts_only_parameters_and_reasons(sqlite_store: Store) -> None:
    bench = Bench(space={"rate": tuner.uniform(0, 1), "width": tuner.uniform(0, 1)}, num_samples=2)
    bench.started(0)
    bench.reported(0, 0.123456789)
    progress, out = shown(sqlite_store, stored(bench, sqlite_store).public_id, True, width=60)
    with progress:
        pass
    [row] = {line.rstrip() for line in out.getvalue().splitlines() if line.startswith("    0")}
    assert re.fullmatch(r"    0  running     1  0\.12346  rate=.+…  .+…", row)


def test_nothing_is_said_to_start_where_something_trains(sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    progress, out = shown(sqlite_store, made.public_id, True)
    with progress:
        pass
    assert made.public_id in out.getvalue()
    assert "starting" not in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_warning_is_a_line_that_comes_once(sqlite_store: Store, terminal: bool) -> None:
    """The notes since the last warning were all read again at each update."""
    made, epoch, [trial] = begin(sqlite_store)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    read: list[int] = []
    warnings = progress.source.warnings
    progress.source.warnings = lambda after: read.append(after) or warnings(after)  # type: ignore[method-assign, func-returns-value]
    with progress:
        log = [
            (4, a_report(0, 1)),
            (5, Note(reason="stop uses [acuracy]", warning=True)),
            (6, Note(reason="for the log only")),
        ]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trial]), T0 + 2)
        progress.update()
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(7, a_report(0, 2))], trials=[trial]), T0 + 3)
        progress.update()
    assert out.getvalue().count("warning: stop uses [acuracy]") == 1
    assert read == [0, 3, 6]
    assert "for the log only" not in out.getvalue()
    assert [note.seq for note in sqlite_store.log.warnings(made.id)] == [5]
    assert sqlite_store.log.warnings(made.id, after=5) == []

    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.PAUSED), T0 + 4)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:  # as `tuner resume` does
        log = [(8, Note(reason="a new one", warning=True))]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, state=ExperimentState.RUNNING), T0 + 5)
    assert ("acuracy" in out.getvalue(), out.getvalue().count("warning: a new one")) == (False, 1)


def test_without_progress_only_warnings_are_printed_on_stderr(
    sqlite_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    with Progress(Stored(sqlite_store, made.public_id), show=False) as progress:
        log = [(4, a_report(0, 1)), (5, Note(reason="stop uses [acuracy]", warning=True)), (6, Note(reason="more"))]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trial]), T0 + 2)
        progress.update()
        progress.update()
    assert capsys.readouterr() == ("", "warning: stop uses [acuracy]\n")


def test_without_progress_the_end_warns_where_no_trial_was_trained_to_its_end(
    sqlite_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    record = stored(ended(), sqlite_store)
    with Progress(Stored(sqlite_store, record.public_id), show=False):
        pass
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("warning: no trial was trained to its end")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_failure_is_told_in_full_at_once_and_only_once(sqlite_store: Store, terminal: bool) -> None:
    made, epoch, trials = begin(sqlite_store, trials=3)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:
        for number, (trial, key) in enumerate(zip(trials, ("lrr", "lrr", "width"), strict=True)):
            message = f"KeyError: '{key}'"
            trial.state, trial.reason = TrialState.FAILED, f"trial {number}, rank 0 on here: {message}"
            trial.failure = Failure(kind="user", message=message, traceback=f'  File "f.py"\n    config["{key}"]\n')
            summary = {"counts": {"failed": number + 1}}
            batch = Batch(log=[(8 + number, a_report(0, number + 1))], trials=[trial], summary=summary)
            sqlite_store.drivers.commit(made.id, epoch, batch, T0 + number)
            progress.update()
            assert out.getvalue().count(message) >= 1
    told = out.getvalue()
    assert told.count("failed: trial 0, rank 0 on here: KeyError: 'lrr'") == 1
    assert told.count('config["lrr"]') == 1
    assert told.count("failed: trial 1") == 0
    assert told.count("failed: trial 2, rank 0 on here: KeyError: 'width'") == 1


def ended(**options: Any) -> Bench:
    """Return a search of one trial that reports once and then is stopped, or reaches its end."""
    bench = Bench(**{"num_samples": 1, **options})
    bench.started(0)
    bench.reported(0, 0.25, size=0.5)
    if not bench.core.trials[0].state.ended:
        bench.command("stop", 0)
    bench.ended(0)
    assert bench.core.ended
    return bench


def last_words(store: Store, bench: Bench) -> str:
    progress, out = shown(store, stored(bench, store).public_id, False)
    with progress:
        pass
    return out.getvalue()


def test_the_end_says_the_best_ever_and_the_best_that_was_trained_to_its_end(sqlite_store: Store) -> None:
    text = last_words(sqlite_store, ended(max_t=1))
    assert "best loss 0.25 by trial 0 at iteration 1" in text
    assert "best finished loss 0.25 by trial 0, trained to iteration 1" in text
    assert "warning" not in text


def test_the_end_warns_where_no_trial_was_trained_to_its_end(sqlite_store: Store) -> None:
    text = last_words(sqlite_store, ended())
    assert "best loss 0.25" in text
    assert "warning: no trial was trained to its end, so the best value may not hold" in text


def test_the_end_says_how_many_trials_were_not_started(sqlite_store: Store) -> None:
    one = {"max_concurrent_trials": 1}
    bench = Bench(num_samples=8, max_t=1, scheduler={"type": "freeze_thaw", "budget": 1}, limits=one)
    bench.started(0)
    bench.reported(0, 0.25)
    bench.ended(0)
    text = last_words(sqlite_store, bench)
    assert "ended: the budget of 1 full training is spent; 7 of 8 trials were not started" in text
    assert "not started" not in last_words(sqlite_store, ended())


def test_the_end_says_why_there_is_no_best_trial(sqlite_store: Store) -> None:
    text = last_words(sqlite_store, ended(**CONSTRAINED))
    assert "no trial satisfies the constraints (size at most 0.25): the nearest one, trial 0, has size = 0.5" in text
    assert "warning" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_budget_is_said_once_at_the_start_with_what_raises_it(sqlite_store: Store, terminal: bool) -> None:
    data = {
        "entrypoint": "module:train",
        "space": {"x": {"type": "uniform", "lower": 0, "upper": 1}},
        "metric": "loss",
        "mode": "min",
        "num_samples": 8,
        "max_t": 15,
    }
    made = sqlite_store.experiments.create(parse_spec(data), now=T0)
    progress, out = shown(sqlite_store, made.public_id, terminal)
    with progress:
        progress.update()
        progress.update()
    assert out.getvalue().count("Budget: ") == 1
    assert "Budget: 3 full trainings (45 iterations), shared by all trials" in out.getvalue()
    assert "num_samples=8; to raise it, set budget=... or num_samples above 15" in out.getvalue()


def relu() -> None: ...


@pytest.mark.parametrize("terminal", [True, False])
def test_choices_are_shown_as_what_they_stand_for(sqlite_store: Store, terminal: bool) -> None:
    bench = Bench(space={"act": tuner.choice([relu, str]), "layers": tuner.choice([[8, 8]])}, num_samples=2)
    bench.started(0)
    bench.reported(0, 0.25)
    progress, out = shown(sqlite_store, stored(bench, sqlite_store).public_id, terminal)
    with progress:
        pass
    text = out.getvalue()
    named = [name for name in ("act=relu", "act=str") if name in text]
    assert named
    assert not re.search(r"act=\d", text)
    assert "layers=[8, 8]" in text


def test_choices_of_a_space_that_is_changed_meanwhile_are_those_of_each_trials_space(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The display kept the space with which it had begun, so it showed other choices than the trials had."""
    bench = Bench(space={"layers": tuner.choice([[8, 8]])}, num_samples=2)
    bench.started(0)
    record = stored(bench, sqlite_store)
    progress, _ = shown(sqlite_store, record.public_id, True)
    changed = Space.from_python({"layers": tuner.choice([[16], [8, 8]])}).to_json()
    [trial, *_] = progress.source.newest(2)
    with progress:
        spec = dataclasses.replace(record.spec, space=changed, former_spaces=[record.spec.space])
        monkeypatch.setattr(progress.source, "experiment", lambda: dataclasses.replace(record, spec=spec))
        progress.update()
        rows = [progress._row(dataclasses.replace(trial, space_revision=revision)) for revision in (0, 1)]
        assert [row[4] for row in rows] == ["layers=[8, 8]", "layers=[16]"]


def test_the_first_line_does_not_wait_for_ray_to_be_imported() -> None:
    """Everything that `tuner.run` does before it says what it starts, without Ray."""
    modules = "tuner.sdk.run, tuner.sdk.driving, tuner.sdk.live.progress, tuner.sdk.live.echo"
    code = f"import sys, {modules}; print('ray' in sys.modules, tuner.sdk.driving.connected())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_name_cannot_command_the_terminal(sqlite_store: Store) -> None:
    made = sqlite_store.experiments.create(a_spec("red\x1b[31m\x07"), now=T0)
    progress, out = shown(sqlite_store, made.public_id, False)
    with progress:
        progress.update()
    assert "red\ufffd[31m\ufffd" in out.getvalue()
    assert not {"\x1b", "\x07"} & set(out.getvalue())


def test_the_old_end_of_an_experiment_that_is_about_to_go_on_is_not_shown(sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    ended = Batch(log=[], state=ExperimentState.COMPLETED, summary={"reason": "all 8 trials ended"})
    sqlite_store.drivers.commit(made.id, epoch, ended, T0)
    out = io.StringIO()
    console = Console(file=out, width=200)
    with Progress(Stored(sqlite_store, made.public_id), console=console, reopens=True):
        assert "digits" in out.getvalue()
        assert "ended:" not in out.getvalue()
    assert "ended: all 8 trials ended" in out.getvalue()


def test_the_section_of_the_docs_is_named_once_for_several_failures(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, trials=2)
    for number, trial in enumerate(trials):
        trial.state, trial.reason = TrialState.FAILED, f"trial {number}: no such option {number}"
        trial.failure = Failure(kind="user", cause="script", message=f"no such option {number}")
    batch = Batch(log=[(6, a_report(0, 1))], trials=trials, summary={"counts": {"failed": 2}})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    progress, out = shown(sqlite_store, made.public_id, False)
    progress.update()
    assert out.getvalue().count("failed: ") == 2
    assert out.getvalue().count("What to do: tuner docs script") == 1


def test_an_error_that_the_reason_has_is_not_repeated(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 2)
    error = "trial 1, rank 0: the objective 'acc' is not among the reported metrics: 'accuracy'"
    trials[1].state, trials[1].reason = TrialState.FAILED, error
    trials[1].failure = Failure(kind="spec", cause="metric", message="the objective 'acc' is not among them", rank=0)
    summary = {"error": error, "reason": f"every trial runs the same function, and {error}", "counts": {"failed": 1}}
    end = Batch(log=[(6, a_report(0, 1))], trials=trials, state=ExperimentState.FAILED, summary=summary)
    sqlite_store.drivers.commit(made.id, epoch, end, T0)
    progress, out = shown(sqlite_store, made.public_id, False)
    progress.update(last=True)
    *_, ended = out.getvalue().partition("\nended: ")
    assert ended.count(error) == 1
    assert "result.errors" in ended


def test_after_repeats_the_best_value_is_a_mean_with_the_uncertainty_of_what_is_expected() -> None:
    best = {"trial_number": 2, "iteration": 9, "runs": {"trials": [2, 41], "error": 6.12}}
    assert _of_whom(best) == (
        ", the mean of 2 runs of the configuration of trial 2, whose expected value has the standard deviation 6.1"
    )
    assert _of_whom({**best, "runs": None}) == " by trial 2 at iteration 9"
