"""Callbacks observe a search through its log: they see everything once, and cannot disturb it."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray.tune

import tuner
from tests.api.conftest import app, poked, server
from tests.driver.stored import stored_simulation
from tests.experiment.analysis.test_lineage import population
from tests.sdk.test_remote import SPACE as SERVED
from tests.sdk.test_remote import WAYS, driver
from tuner.domain.experiment import Objective, Spec
from tuner.driver.virtual import simulate
from tuner.errors import SpecError, StoreError
from tuner.sdk import cautions
from tuner.sdk.callbacks import observers
from tuner.sdk.callbacks.observers import Observers, Reader, StoredLog, named
from tuner.sdk.result import Result
from tuner.space import Space
from tuner.store import CodeRecord, Store
from tuner.store.records import ExperimentRecord, StreamItem

__all__ = ["app", "driver", "poked", "server"]

SPACE = {"x": tuner.uniform(0, 1), "net": {"width": tuner.choice([16, 32])}}


def train(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(1, 5):
        yield tuner.Step({"loss": config["x"] + 1 / epoch})


def committed(store: Store, trials: int) -> str:
    """Store a search, some of whose trials were stopped early, as a driver would have committed it. Return its id."""
    found = simulate(
        train, SPACE, metric="loss", mode="min", num_samples=trials, max_t=4, scheduler="asha", search_alg="random"
    )
    space = Space.from_python(SPACE).to_json()
    spec = Spec(name="s", space=space, objectives=(Objective("loss", "min"),), entrypoint="module:train")
    return stored_simulation(found, spec, store).public_id


@pytest.fixture
def search(sqlite_store: Store) -> str:
    return committed(sqlite_store, 8)


class Recorder(tuner.callbacks.Callback):
    """Notes what it is told."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._pause = pause

    def on_trial_start(self, *, trial: Any, **info: Any) -> None:
        self.seen.append(("start", trial.number, dict(trial.config)))

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], event_seq: int, **info: Any) -> None:
        self._pause()
        self.seen.append(("result", trial.number, result["training_iteration"], result["loss"], event_seq))

    def on_trial_complete(self, *, trial: Any, **info: Any) -> None:
        self.seen.append(("complete", trial.number, trial.status))

    def on_experiment_end(self, *, trials: Any, **info: Any) -> None:
        self.seen.append(("end", len(trials)))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [one for one in self.seen if one[0] == kind]


def observed(store: Store, experiment: str, home: Path, *callbacks: Any) -> list[str]:
    said: list[str] = []
    with Observers(callbacks, StoredLog(store, experiment), experiment, home, said.append):
        pass
    return said


def test_a_callback_is_told_all_that_the_result_has(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    reasons: dict[int, str] = {}

    class Reasons:
        """Has only the parameter that it needs."""

        def on_trial_complete(self, trial: Any) -> None:
            reasons[trial.number] = trial.reason

    recorder = Recorder()
    assert observed(sqlite_store, search, tmp_path, recorder, Reasons()) == []
    result = tuner.Result.load(sqlite_store, search)
    assert reasons == {trial.number: trial.reason for trial in result.trials}
    assert {number: config for _, number, config in recorder.of("start")} == {t.number: t.config for t in result.trials}
    reports = [(t.number, r["training_iteration"], r["loss"]) for t in result.trials for r in t.history]
    assert sorted(r[1:4] for r in recorder.of("result")) == sorted(reports)
    assert {r[1:] for r in recorder.of("complete")} == {(t.number, str(t.state)) for t in result.trials}
    assert {status for *_, status in recorder.of("complete")} == {"completed", "stopped"}
    assert recorder.seen[-1] == ("end", 8)


def test_a_resumed_callback_goes_on_where_it_stopped(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    class Half(StoredLog):
        """The log as it was in the middle of the search."""

        end = 30

        def entries(self, after: int, limit: int) -> list[StreamItem]:
            return [entry for entry in super().entries(after, limit) if entry.seq <= self.end]

        def experiment(self) -> Any:
            import dataclasses

            from tuner.domain.states import ExperimentState

            found = super().experiment()
            return dataclasses.replace(found, last_event_seq=self.end, state=ExperimentState.PAUSED)

    first, second, third, whole = Recorder(), Recorder(), Recorder(), Recorder()
    with Observers([first], Half(sqlite_store, search), search, tmp_path, print):
        pass
    observed(sqlite_store, search, tmp_path, second)
    observed(sqlite_store, search, tmp_path, third)
    observed(sqlite_store, search, tmp_path / "other", whole)
    assert first.seen
    assert second.seen
    assert first.seen + second.seen == whole.seen
    assert third.seen == []
    (position,) = (tmp_path / "callbacks" / search).iterdir()
    position.write_text("")  # as after a loss of power
    observed(sqlite_store, search, tmp_path, third)
    assert third.seen == whole.seen


def test_errors_of_a_callback_are_logged_and_reach_nobody(
    sqlite_store: Store, search: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Untold(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    class Broken:
        ended = False

        def on_trial_result(self) -> None:
            raise SystemExit("no disk")

        def on_trial_complete(self) -> None:
            raise Untold

        def on_experiment_end(self) -> None:
            self.ended = True

    recorder, broken = Recorder(), Broken()
    (said,) = observed(sqlite_store, search, tmp_path, broken, recorder)
    failed = len(recorder.of("result")) + len(recorder.of("complete"))
    assert said == f"callback Broken failed in on_trial_result: SystemExit: no disk, and {failed - 1} more"
    assert recorder.of("end")
    assert broken.ended
    assert len(caplog.records) == observers.TOLD
    assert "Broken: on_trial_result failed; the search continues" in caplog.text


def test_a_callback_that_cannot_be_set_up_is_told_nothing_until_it_can(
    sqlite_store: Store, search: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Needy(Recorder):
        missing = True

        def setup(self, **info: Any) -> None:
            if self.missing:
                raise ImportError("no such package")

        def close(self) -> None:
            self.seen.append(("close",))

    needy = Needy()
    said = observed(sqlite_store, search, tmp_path, needy)
    assert said == ["callback Needy failed in setup: ImportError: no such package"]
    assert needy.seen == []
    assert len(caplog.records) == 1
    needy.missing = False
    assert observed(sqlite_store, search, tmp_path, needy) == []
    assert len(needy.of("start")) == 8
    assert needy.seen[-2:] == [("end", 8), ("close",)]


def test_a_callback_is_told_all_if_its_position_cannot_be_stored(
    sqlite_store: Store, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closing(Recorder):
        closed = False

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(observers, "SAVE_EVERY_S", 0.0)
    (tmp_path / "callbacks" / search / "Closing.new").mkdir(parents=True)  # no file can be written there
    recorder, said = Closing(), list[str]()
    with Observers([recorder], StoredLog(sqlite_store, search), search, tmp_path, said.append) as observed:
        observed.finish(30.0)
    result = Result.load(sqlite_store, search)
    assert len(recorder.of("result")) == sum(len(trial.history) for trial in result.trials)
    assert recorder.closed
    assert said[0].startswith("callback Closing failed in storing its position in the log: IsADirectoryError: ")


def test_a_slow_callback_holds_nobody_up(
    sqlite_store: Store, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "PATIENCE_S", 0.5)
    free = threading.Event()
    slow, quick = Recorder(lambda: bool(free.wait(60)) and None), Recorder()
    told: list[str] = []
    with Observers([slow, quick], StoredLog(sqlite_store, search), search, tmp_path, told.append):
        deadline = time.monotonic() + 60
        while len(quick.of("complete")) < 8 and time.monotonic() < deadline:  # on a busy machine, this takes a while
            time.sleep(0.01)
        begun = time.monotonic()
    assert time.monotonic() - begun < 30
    (said,) = told
    assert "Recorder has fallen behind" in said
    assert quick.of("end")
    assert slow.of("result") == []
    free.set()


def test_a_callback_with_a_slow_setup_gets_the_whole_log(
    sqlite_store: Store, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine, loading MLflow can take longer than a short search and the patience at its end."""
    monkeypatch.setattr(observers, "PATIENCE_S", 0.0)
    told: list[str] = []
    waited = threading.Event()

    class Slow(Recorder):
        def setup(self, **info: Any) -> None:
            waited.wait(60)

    def say(text: str) -> None:
        told.append(text)
        waited.set()

    recorder = Slow()
    with Observers([recorder], StoredLog(sqlite_store, search), search, tmp_path, say):
        pass
    assert recorder.of("end")
    assert told == ["waiting for callback Slow, whose setup has not ended (at most 120 s)"]


def test_the_thread_holds_few_entries(
    sqlite_store: Store, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "LIMIT", 3)
    sizes = []

    class Counted(StoredLog):
        def entries(self, after: int, limit: int) -> Any:
            found = super().entries(after, limit)
            sizes.append(len(found))
            return found

    recorder = Recorder()
    with Observers([recorder], Counted(sqlite_store, search), search, tmp_path, print):
        pass
    assert max(sizes) == 3
    assert recorder.of("end")


def test_an_exploit_changes_the_config_and_restores(sqlite_store: Store, tmp_path: Path) -> None:
    made, run, _ = population(sqlite_store)
    configs: dict[int, list[Any]] = {}

    class Configs(tuner.callbacks.Callback):
        def on_trial_start(self, *, trial: Any, **info: Any) -> None:
            configs[trial.number] = [dict(trial.config)]

        def on_trial_restore(self, *, trial: Any, **info: Any) -> None:
            if trial.config != configs[trial.number][-1]:
                configs[trial.number].append(dict(trial.config))

    assert observed(sqlite_store, made.public_id, tmp_path, Configs()) == []
    space = Space.from_json(made.spec.space)
    segments = sqlite_store.trials.segments(made.id)
    for trial in run.trials:
        expected: list[Any] = []
        for segment in segments[trial.number]:
            config = space.config(segment.params, made.spec.seed, trial.number)
            if segment.started_at is not None and config not in expected[-1:]:
                expected.append(config)
        assert configs[trial.number] == expected
    assert max(len(several) for several in configs.values()) > 1


def test_tuner_run_calls_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a real search with a callback of Ray's form and one of ours, then more trials of it."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))

    def real(config: dict[str, Any]) -> None:
        for epoch in range(3):
            tuner.report({"loss": config["x"] + epoch})

    class OfRay(ray.tune.Callback):  # type: ignore[misc]
        results: ClassVar[list[tuple[str, int]]] = []

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.results.append((trial.trial_id, result["training_iteration"]))

    ours, theirs = Recorder(), OfRay()
    result = tuner.run(
        real, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=3, max_t=3, scheduler="fifo",
        search_alg="random", executor="local", verbose=0, callbacks=[ours, theirs],
    )  # fmt: skip
    assert sorted(theirs.results) == sorted((trial.id, i) for trial in result.trials for i in (1, 2, 3))
    assert len(ours.of("complete")) == 3
    assert ours.seen[-1] == ("end", 3)
    more = result.add(1, verbose=0)
    assert len(more.trials) == 4
    assert ours.seen[-1] == ("end", 4)
    assert len(ours.of("result")) == 12
    late = Recorder()
    tuner.observe(result.experiment_id, [tuner.callbacks.Callback(), late])
    assert late.seen == []  # the callback of this class has seen everything
    tuner.shutdown()


def test_a_callback_gets_the_configuration_of_the_training_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `sample_from`, it had been flat, and had lacked the constants and the values of the functions."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))

    def real(config: dict[str, Any]) -> float:
        return config["twice"] + config["net"]["width"]  # type: ignore[no-any-return]

    space = {**SPACE, "epochs": 3, "twice": tuner.sample_from(lambda spec: 2 * spec.config.x)}
    ours = Recorder()
    result = tuner.run(
        real, space, metric="loss", mode="min", num_samples=3, search_alg="random", executor="local", verbose=0,
        callbacks=[ours],
    )  # fmt: skip
    assert sorted(ours.of("start"), key=lambda seen: seen[1]) == [("start", t.number, t.config) for t in result.trials]
    assert set(result.best_config or {}) == {"x", "net", "epochs", "twice"}
    tuner.shutdown()


def test_a_callback_of_a_process_without_the_functions_gets_everything_else(sqlite_store: Store) -> None:
    record = sqlite_store.experiments.get(committed(sqlite_store, 2))
    space = Space.from_python({**SPACE, "epochs": 3, "twice": tuner.sample_from(lambda spec: 2 * spec.config.x)})
    reader = Reader(dataclasses.replace(record, spec=dataclasses.replace(record.spec, space=space.to_json())), b"no")
    start = {"kind": "start", "reason": "", "payload": {"number": 0, "params": {"x": 0.5, "net/width": 16}}}
    assert not list(reader.read(StreamItem(seq=1, event="decision", time=0.0, trial=0, data=start)))
    assert reader.trials[0].config == {"x": 0.5, "net": {"width": 16}, "epochs": 3, "twice": None}


@pytest.mark.parametrize("uploads", [True, False], ids=["later", "at once"])
def test_a_callback_is_told_of_a_checkpoint_once_and_when_its_files_are_there(
    sqlite_store: Store, uploads: bool
) -> None:
    reader = Reader(sqlite_store.experiments.get(committed(sqlite_store, 2)))
    start = {"kind": "start", "reason": "", "payload": {"number": 0, "params": {"x": 0.5, "net/width": 16}}}
    saved = {"id": "ckp_1", "uri": "/there", "step": 1, "bytes": 9}
    report = {"segment": 1, "iteration": 1, "metrics": {"loss": 1.0}, "checkpoint": {**saved, "ready": not uploads}}
    log = [("decision", start), ("segment_started", {"segment": 1}), ("reported", report)]
    if uploads:
        log.append(("checkpoint_saved", {"checkpoint": {**saved, "ready": True}}))
    calls = [
        list(reader.read(StreamItem(seq=seq, event=event, time=0.0, trial=0, data=data)))
        for seq, (event, data) in enumerate(log, start=1)
    ]
    told = [(seq, call.keywords["checkpoint"]) for seq, at in enumerate(calls, start=1) for call in at
            if call.method == "on_checkpoint"]  # fmt: skip
    assert told == [(len(log), {**saved, "ready": True})]


def test_a_segment_begins_once_even_if_its_first_report_comes_before_its_start(sqlite_store: Store) -> None:
    """The callback was told that a new trial was restored, and of the restore of another only after its report."""
    reader = Reader(sqlite_store.experiments.get(committed(sqlite_store, 2)))
    log: list[tuple[str, dict[str, Any]]] = [
        ("decision", {"kind": "start", "reason": "", "payload": {"number": 0, "params": {"x": 0.5, "net/width": 16}}})
    ]
    for segment in (1, 2):
        report = {"segment": segment, "iteration": segment, "metrics": {"loss": 1.0}, "checkpoint": None}
        failure = {"message": "KeyError: 'lr'"} if segment == 1 else None
        log += [
            ("reported", report),
            ("segment_started", {"segment": segment}),
            ("segment_ended", {"failure": failure}),
        ]
        log.append(("decision", {"kind": "retry" if failure else "complete", "reason": "", "payload": {}}))
    calls = [
        (call.method, call.keywords["trial"].error)
        for seq, (event, data) in enumerate(log, start=1)
        for call in reader.read(StreamItem(seq=seq, event=event, time=0.0, trial=0, data=data))
    ]
    assert calls == [
        ("on_trial_start", None), ("on_trial_result", None), ("on_trial_recover", "KeyError: 'lr'"),
        ("on_trial_restore", None), ("on_trial_result", None), ("on_trial_complete", None),
    ]  # fmt: skip


def test_a_trial_is_shown_as_it_was_at_each_entry(sqlite_store: Store) -> None:
    reader = Reader(sqlite_store.experiments.get(committed(sqlite_store, 2)))

    def read(event: str, **data: Any) -> tuple[str, str, str | None]:
        calls.extend(reader.read(StreamItem(seq=1, event=event, time=0.0, trial=0, data=data)))
        trial = reader.trials[0]
        return trial.status, trial.reason, trial.error

    def decide(kind: str, reason: str, **payload: Any) -> tuple[str, str, str | None]:
        return read("decision", kind=kind, reason=reason, payload=payload)

    calls: list[Any] = []
    first = {"x": 0.5, "net/width": 16}
    assert decide("start", "first", number=0, params=first) == ("pending", "first", None)
    read("segment_started", segment=1)
    report = {"segment": 1, "checkpoint": None, "metrics": {"loss": 1.0}}
    for iteration in (1, 2):
        read("reported", iteration=iteration, **report)
    told = [call.keywords["result"]["training_iteration"] for call in calls if call.method == "on_trial_result"]
    assert told == [1, 2], "a result that a callback keeps does not change"
    assert decide("note", "by the way") == ("running", "first", None)
    assert decide("pause", "wait") == ("paused", "wait", None)
    decide("exploit", "copy", params={"x": 0.25, "net/width": 32})
    assert reader.trials[0].config == {"x": 0.25, "net": {"width": 32}}
    read("drawn", name="late", value=3)
    assert reader.trials[0].params == {"x": 0.25, "net/width": 32, "late": 3}
    assert read("segment_ended", failure={"message": "out of memory"}) == ("paused", "copy", "out of memory")
    assert read("segment_ended", failure=None) == ("paused", "copy", "out of memory")
    assert decide("fail", "no more retries") == ("failed", "no more retries", "out of memory")


@pytest.mark.parametrize("thinned", [False, True])
def test_a_report_whose_points_were_deleted_is_left_out(sqlite_store: Store, thinned: bool) -> None:
    record = sqlite_store.experiments.get(committed(sqlite_store, 2))
    reader = Reader(dataclasses.replace(record, thinned_at=1.0 if thinned else None))
    start = {"kind": "start", "reason": "", "payload": {"number": 0, "params": {"x": 0.5, "net/width": 16}}}
    report = {"segment": 1, "iteration": 1, "metrics": {}, "checkpoint": None}
    methods = [
        call.method
        for event, data in (("decision", start), ("segment_started", {"segment": 1}), ("reported", report))
        for call in reader.read(StreamItem(seq=1, event=event, time=0.0, trial=0, data=data))
    ]
    assert methods == ["on_trial_start"] + ["on_trial_result"] * (not thinned)


def test_all_calls_share_one_list_of_the_trials(sqlite_store: Store) -> None:
    """With 50,000 trials, a new list for each entry of the log had taken five milliseconds."""
    reader = Reader(sqlite_store.experiments.get(committed(sqlite_store, 2)))
    lists = []
    for number in (0, 1):
        start = {"kind": "start", "reason": "", "payload": {"number": number, "params": {"x": 0.5, "net/width": 16}}}
        for event, data in (("decision", start), ("segment_started", {"segment": 1})):
            entry = StreamItem(seq=number + 1, event=event, time=0.0, trial=number, data=data)
            lists += [call.keywords["trials"] for call in reader.read(entry)]
    first, second = lists
    assert first is second
    assert [trial.number for trial in second] == [0, 1]


def test_a_callback_gets_the_values_that_a_retry_has_taken_over(sqlite_store: Store) -> None:
    record = sqlite_store.experiments.get(committed(sqlite_store, 2))
    space = Space.from_python({**SPACE, "noise": tuner.sample_from(lambda: random.random())})
    spec = dataclasses.replace(record.spec, space=space.to_json())
    reader = Reader(dataclasses.replace(record, spec=spec), space.blob())
    for number, tags in ((0, {}), (1, {"drawn_as": 0}), (2, {})):
        payload = {"number": number, "params": {"x": 0.5, "net/width": 16}, "tags": tags}
        data = {"kind": "start", "reason": "", "payload": payload}
        assert not list(reader.read(StreamItem(seq=number + 1, event="decision", time=0.0, trial=number, data=data)))
    first, again, other = (reader.trials[number].config for number in range(3))
    assert first == again != other


def test_a_callback_in_another_python_gets_everything_but_the_values_of_functions(sqlite_store: Store) -> None:
    """To call the functions would fail with "unknown opcode", or crash."""

    def fails(config: Any) -> float:
        raise AssertionError("this function was called")

    space = Space.from_python({**SPACE, "twice": tuner.sample_from(fails)})
    spec = Spec(
        name="s", space=space.to_json(), objectives=(Objective("loss", "min"),), entrypoint="module:train", code="old"
    )
    code = CodeRecord(hash="old", space_blob=space.blob(), python="3.1.4")
    record = sqlite_store.experiments.create(spec, code=code)
    assert StoredLog(sqlite_store, record.public_id).space_blob(record) is None


def test_a_search_on_a_service_is_observed(
    server: str, driver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    seen: list[tuple[int, int]] = []

    class Own(tuner.callbacks.Callback):
        def on_trial_result(self, *, trial: Any, result: dict[str, Any], **info: Any) -> None:
            assert set(trial.config) == set(SERVED)
            seen.append((trial.number, result["training_iteration"]))

    result = tuner.run("json:dumps", SERVED, **WAYS, address=server, callbacks=[Own()], verbose=0)
    assert sorted(seen) == [(t.number, int(r["training_iteration"])) for t in result.trials for r in t.history]

    class Later(Own):
        pass

    seen.clear()
    tuner.observe(result.experiment_id, [Later()], address=server)
    assert len(seen) == sum(len(t.history) for t in result.trials)


def test_several_callbacks_of_a_class_have_names_of_their_own() -> None:
    assert list(named([Recorder(), tuner.callbacks.Callback(), Recorder()])) == ["Recorder", "Callback", "Recorder-2"]


@pytest.mark.parametrize("wrong", [[Recorder], [print], "csv"])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(
        SpecError, match="callbacks.0: expected an object with a method such as on_trial_result"
    ) as caught:
        tuner.run(train, {}, metric="loss", mode="min", callbacks=wrong)
    assert caught.value is not None


def test_a_method_that_is_never_called_is_wondered_at(recwarn: pytest.WarningsRecorder) -> None:
    class Message(tuner.callbacks.Callback):
        def on_experiment_ended(self, **info: Any) -> None: ...

        def on_train_start(self) -> None: ...  # Lightning's

    with pytest.warns(
        UserWarning, match=r"Message\.on_experiment_ended is never called; did you mean on_experiment_end\?"
    ):
        cautions.checked_callbacks([Message()])
    recwarn.clear()
    cautions.checked_callbacks([Recorder(), ray.tune.Callback(), tuner.callbacks.CSVLoggerCallback("logs")])
    assert not recwarn.list


def test_a_callback_goes_on_after_an_outage(
    sqlite_store: Store, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "POLL_S", 0.01)

    class Away(StoredLog):
        asked = 0

        def experiment(self) -> ExperimentRecord:
            self.asked += 1
            if self.asked in (2, 3):
                raise StoreError("the database is away")
            return super().experiment()

    recorder = Recorder()
    with Observers([recorder], Away(sqlite_store, search), search, tmp_path, print) as them:
        [observer] = them._observers
        end = time.monotonic() + 30
        while not recorder.of("end") and time.monotonic() < end:
            time.sleep(0.01)
        assert observer.thread.is_alive()
    assert recorder.of("end") == [("end", 8)]
    assert "the database is away" in observer.error
    assert observer.errors == 2


def test_configurations_are_read_in_the_space_that_they_are_from(sqlite_store: Store, search: str) -> None:
    record = sqlite_store.experiments.get(search)
    second = Space.from_python({"x": tuner.uniform(0, 1), "kind": tuner.choice([[1], [2]])}).to_json()
    third = Space.from_python({"kind": tuner.choice([[2], [1]])}).to_json()
    changed = {"space": second, "former_spaces": [record.spec.space], "assumed": {}}
    reader = Reader(dataclasses.replace(record, spec=record.spec.amended(changed)))

    def read(event: str, trial: int | None = None, **data: Any) -> None:
        list(reader.read(StreamItem(seq=1, event=event, time=0.0, trial=trial, data=data)))

    def start(number: int, params: dict[str, Any], **more: Any) -> dict[str, Any]:
        payload = {"number": number, "params": params, **more}
        read("decision", number, kind="start", reason="", payload=payload)
        return reader.trials[number].config

    assert start(0, {"x": 0.5, "net/width": 16}) == {"x": 0.5, "net": {"width": 16}}
    read("amended", changes=changed)
    assert start(1, {"x": 0.5, "kind": 0}) == {"x": 0.5, "kind": [1]}
    read("amended", changes={"space": third, "former_spaces": [record.spec.space, second]})
    assert start(2, {"kind": 0}) == {"kind": [2]}
    assert start(3, {"x": 0.5, "net/width": 32}, space_revision=0) == {"x": 0.5, "net": {"width": 32}}
    copied = {"params": {"x": 0.25, "kind": 0}, "space_revision": 1}
    read("decision", 3, kind="exploit", reason="", payload=copied)
    assert reader.trials[3].config == {"x": 0.25, "kind": [1]}
