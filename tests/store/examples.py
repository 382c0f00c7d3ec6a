"""Experiments, trials and batches to store."""

from __future__ import annotations

import threading

from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Start
from tuner.domain.events import DriverStarted, Reported, SegmentStarted
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Segment, Trial
from tuner.store import ExperimentRecord, Store

T0 = 1_700_000_000.0


def a_spec(name: str = "digits", **fields: object) -> Spec:
    parts = {
        "space": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}},
        "entrypoint": "module:train",
        "objectives": (Objective("accuracy", "max"),),
        **fields,
    }
    return Spec(name=name, **parts)  # type: ignore[arg-type]


def a_trial(number: int = 0, segments: int = 1) -> Trial:
    trial = Trial(number, {"lr": 0.01 * (number + 1)}, TrialState.RUNNING, created_at=T0)
    for ordinal in range(1, segments + 1):
        cause = "start" if ordinal == 1 else "resume"
        trial.segments.append(Segment(ordinal, cause, dict(trial.params), 0, None, opened_at=T0))
    return trial


def begin(
    store: Store, trials: int = 1, *, spec: Spec | None = None, segments: int = 1
) -> tuple[ExperimentRecord, int, list[Trial]]:
    """Create an experiment with running trials. The next seq is 2 + 2 * trials.

    Returns:
        The experiment, the epoch to write under, and the trials.
    """
    made = store.experiments.create(spec or a_spec(), now=T0)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    population = [a_trial(number, segments) for number in range(trials)]
    log: list[Entry] = [(1, DriverStarted(time=T0, epoch=epoch))]
    for trial in population:
        log.append(
            (
                len(log) + 1,
                Start(
                    reason="the limit on concurrent trials allows one more",
                    params=dict(trial.params),
                    number=trial.number,
                ),
            )
        )
        log.append((len(log) + 1, SegmentStarted(time=T0 + 1, trial=trial.number, segment=1, startup_s=0.5)))
        trial.segments[0].started_at = trial.started_at = T0 + 1
    counts = {"running": trials}
    batch = Batch(
        log=log, trials=population, state=ExperimentState.RUNNING, summary={"counts": counts, "reason": "started"}
    )
    store.drivers.commit(made.id, epoch, batch, T0 + 1)
    return store.experiments.get(made.public_id), epoch, population


def a_report(trial: int, number: int, segment: int = 1, **metrics: float) -> Reported:
    metrics = metrics or {"accuracy": number / 100, "loss": 1 / number}
    return Reported(
        time=T0 + 1 + number, trial=trial, segment=segment, report_no=number, iteration=number, metrics=metrics
    )


def run_all(threads: list[threading.Thread]) -> None:
    """Start the threads, and wait until they have ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until_blocked(url: str, thread: threading.Thread) -> None:
    """Wait until a connection to this PostgreSQL database waits for a lock, or the thread has ended."""
    import psycopg

    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url, autocommit=True) as admin:
        while thread.is_alive() and admin.execute(waiting).fetchone() is None:
            thread.join(0.01)
