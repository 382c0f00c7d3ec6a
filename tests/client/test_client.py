"""The client against a real service: over a socket, with a real database, and experiments that the real core decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pandas as pd
import pytest
from fastapi import FastAPI
from optuna.distributions import FloatDistribution, distribution_to_json

import tuner
from tests.api.conftest import serving
from tests.api.routes.test_checkpoints import saved
from tests.api.test_changes import pbt
from tests.driver.bench import Bench
from tests.services import until
from tests.store.examples import T0, begin
from tests.web.searches import Search, digits, steady
from tuner.api import create_app, schemas
from tuner.client import protocol, synchronous
from tuner.client.generate import TARGET, generated
from tuner.client.synchronous import Client, ExperimentHandle, TrialHandle
from tuner.domain.batch import Batch
from tuner.domain.events import Drawn, Failure, Noted
from tuner.domain.keys import trial_id
from tuner.domain.logs import LATE_S, LogChunk
from tuner.domain.states import ExperimentState
from tuner.domain.timestamps import rfc3339
from tuner.errors import Conflict, NotAllowed, NotFound, ServiceError, ServiceUnreachable, SpecError
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS
from tuner.sdk.result import Result
from tuner.settings import Settings
from tuner.store import ExperimentRecord, Store, StoreUnavailable
from tuner.store.experiments import Experiments
from tuner.store.service.access import Role


def test_the_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    assert TARGET.read_text() == generated(), "run python -m tuner.client.generate"


def test_every_verb_is_a_method() -> None:
    names = [f"{verb}_" if iskeyword(verb) else verb for verb in VERBS]
    assert [name for name in names if not hasattr(ExperimentHandle, name)] == []
    assert [verb for verb in TRIAL_VERBS if not hasattr(TrialHandle, verb)] == []


def test_the_page_about_the_client_names_every_method() -> None:
    page = (Path(tuner.__file__).parents[1] / "docs" / "client.md").read_text()
    code = re.findall(r"`([^`\n]+)`", page) + re.findall(r"^    .*", page, re.MULTILINE)
    named = {name for part in code for name in re.findall(r"(\w+)\(", part)} | set(code)
    methods = {
        f"{kind.__name__}.{name}": name
        for kind in (Client, ExperimentHandle, TrialHandle)
        for name in vars(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }
    missing = [method for method, name in methods.items() if name not in named]
    assert missing == [], f"docs/client.md lacks {', '.join(missing)}"


# -- creating


def test_a_project_is_shown_with_its_settings_which_can_be_changed(client: Client, spec: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match="no project 'vision'"):
        client.project("vision")
    assert client.change_project("vision", warm_start="auto").warm_start == "auto"
    made = client.create({**spec, "project": "vision"}).get()
    assert (made.warm_start, made.learned_from) == ("auto", [])
    found = client.project("vision")
    assert (found.experiments, found.warm_start) == (1, "auto")
    assert client.projects() == [found]
    assert client.change_project("vision", warm_start=None).warm_start is None
    assert client.experiment(made.id).get().warm_start == "auto"


def test_an_experiment_is_created_and_found(client: Client, spec: dict[str, Any]) -> None:
    made = client.create(spec)
    found = made.get()
    assert (found.id, found.name, found.state) == (made.id, "digits", "pending")
    assert [one.id for one in client.experiments()] == [made.id]
    assert list(client.experiments(state="running")) == []
    assert client.experiment("digits").get().id == made.id
    assert client.dry_run(spec, configurations=2).configurations[1].config["width"] in (16, 32, 64)


def test_the_mistakes_of_a_spec_are_a_spec_error_with_pointers(client: Client, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"space\.lr\.lower: .*; mode: expected") as caught:
        client.create({**spec, "space": {"lr": {"type": "loguniform", "lower": -1, "upper": 1}}, "mode": "up"})
    assert [pointer for pointer, _ in caught.value.errors] == ["/space/lr/lower", "/mode"]
    assert list(client.experiments()) == []


def test_a_key_creates_one_experiment(client: Client, spec: dict[str, Any]) -> None:
    first = client.create(spec, idempotency_key="mine")
    assert client.create(spec, idempotency_key="mine").id == first.id
    with pytest.raises(Conflict, match="'mine' was used before"):
        client.create({**spec, "seed": 2}, idempotency_key="mine")


def test_a_fork_has_a_handle_of_its_own(client: Client, spec: dict[str, Any]) -> None:
    source = client.create(spec)
    fork = source.fork({"seed": 7}, idempotency_key="mine")
    assert (fork.get().forked_from, fork.get().seed) == (source.id, 7)
    assert source.fork({"seed": 7}, idempotency_key="mine").id == fork.id
    assert source.fork().id not in (source.id, fork.id)


def test_a_verb_on_several_experiments_returns_each_outcome(client: Client, spec: dict[str, Any]) -> None:
    a, b = (client.create({**spec, "name": name}).id for name in ("a", "b"))
    paused = client.act_on("pause", ["a", b, "none"])
    assert list(paused) == ["a", b, "none"]
    assert [one.id for one in paused.values() if isinstance(one, schemas.Experiment)] == [a, b]
    assert isinstance(paused["none"], NotFound)
    refused = client.act_on("archive", (one.id for one in client.experiments(state="pending")))
    assert {name: type(one) for name, one in refused.items()} == {a: Conflict, b: Conflict}
    with pytest.raises(ServiceUnreachable):
        Client("http://127.0.0.1:9", patience_s=0.0).act_on("pause", [a, b])


def test_one_experiment_and_one_event_need_no_list(client: Client, spec: dict[str, Any]) -> None:
    """Each letter was taken for a name, so nothing was paused, and nothing was raised."""
    client.create({**spec, "name": "mine"})
    paused = client.act_on("pause", "mine")
    assert {name: type(one) for name, one in paused.items()} == {"mine": schemas.Experiment}
    hook = client.create_webhook("https://example.com/hook", "experiment.completed")
    assert client.webhooks()[0].events == ["experiment.completed"]
    assert hook.events == ["experiment.completed"]


def test_the_id_of_a_webhook_does_not_lead_to_other_routes(client: Client, spec: dict[str, Any]) -> None:
    """The experiment was deleted, as by DELETE /experiments/mine."""
    client.create({**spec, "name": "mine"}).kill()
    wrong = "../experiments/mine"
    for call in (client.delete_webhook, client.test_webhook, client.webhook_deliveries, client.change_webhook):
        with pytest.raises(NotFound, match="no webhook"):
            call(wrong)
    assert client.experiment("mine").get().name == "mine"


def test_an_archived_experiment_is_found_by_its_name(client: Client, sqlite_store: Store) -> None:
    Search(sqlite_store, digits("hidden", 6), start=T0).advance()
    assert client.experiment("hidden").archive().archived_at is not None
    assert client.experiment("hidden").unarchive().archived_at is None


def test_the_spec_of_an_experiment_can_be_created_again(client: Client, spec: dict[str, Any]) -> None:
    source = client.create({**spec, "checkpoint": {"interval_s": None}, "seed": 7})
    found = source.spec()
    assert (found.left_out, found.spec["checkpoint"]) == ([], {"interval_s": None})
    copy = client.create({**found.spec, "name": "copy"})
    assert copy.spec().spec == {**found.spec, "name": "copy"}


class Lossy(httpx.HTTPTransport):
    """Loses the answers to the first requests, after the service has carried them out.

    meanwhile: a function that is called before the client repeats such a request.
    """

    def __init__(self, lost: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.lost, self.requests, self.meanwhile = lost, 0, meanwhile

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        answer = super().handle_request(request)
        if self.requests <= self.lost:
            answer.read()
            self.meanwhile()
            raise httpx.ReadError("connection reset by peer", request=request)
        return answer


def test_a_lost_answer_creates_no_second_experiment(server: str, spec: dict[str, Any]) -> None:
    transport = Lossy(2)
    with Client(server, transport=transport) as client:
        made = client.create(spec)
        assert transport.requests == 3
        assert [one.id for one in client.experiments()] == [made.id]


def test_a_request_that_is_not_safe_is_not_repeated_after_a_lost_answer(server: str) -> None:
    transport = Lossy(1)
    with Client(server, transport=transport) as client, pytest.raises(ServiceUnreachable, match="reset by peer"):
        client.request("POST", "/tokens", body={"name": "ci", "role": "viewer"})
    assert transport.requests == 1


def test_a_lost_answer_to_a_verb_is_asked_for_again_and_nothing_is_done_twice(server: str, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance()
    trials = sqlite_store.trials.page(search.id).items
    [failed, *_] = [trial for trial in trials if trial.state == "failed"]
    [saved, *_] = [trial for trial in trials if trial.checkpoint and trial.checkpoint["step"] < 27]
    transport = Lossy(1, meanwhile=search.obey)
    with Client(server, transport=transport) as client:
        client.trial(failed.public_id).retry()
        assert transport.requests == 2
        search.obey()
        assert client.experiment("halved").get().trials == 7
        transport.lost, transport.requests = 1, 0
        forked = client.trial(saved.public_id).fork()
        assert (transport.requests, forked.number if forked else None) == (2, 7)
        search.obey()
        assert client.experiment("halved").get().trials == 8
        transport.lost, transport.requests = 1, 0
        client.experiment(search.public_id).pause()
        assert transport.requests == 2


def test_trials_whose_request_lost_its_answer_are_added_once(
    server: str, spec: dict[str, Any], sqlite_store: Store
) -> None:
    transport = Lossy(0)
    with Client(server, transport=transport) as client:
        handle = client.create({**spec, "num_samples": 4})
        for ask in (lambda: handle.continue_(10), lambda: handle.enqueue([{"lr": 0.01}])):
            transport.lost, transport.requests = 1, 0
            ask()
            assert transport.requests == 2
        assert handle.get().num_samples == 14
        with pytest.raises(SpecError, match=r"expected a list of configurations, got one: pass \[{'lr': 0.01}\]"):
            handle.enqueue({"lr": 0.01})  # type: ignore[arg-type]
        sent = [one.command for one in sqlite_store.commands.pending([sqlite_store.experiments.get(handle.id).id])]
        assert sent == ["amend", "continue", "enqueue", "continue"]


def test_a_deletion_whose_answer_was_lost_is_not_repeated(server: str, sqlite_store: Store) -> None:
    """Repeated, it would say that there is no such experiment."""
    Search(sqlite_store, digits("halved", 6), start=T0).advance()
    [made] = sqlite_store.experiments.page().items
    transport = Lossy(1)
    with Client(server, transport=transport) as client, pytest.raises(ServiceUnreachable, match="reset by peer"):
        client.experiment(made.public_id).delete()
    assert transport.requests == 1


class Noting(httpx.HTTPTransport):
    """Notes for how long each answer is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, float]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.waits.append((request.method, request.extensions["timeout"]["read"]))
        return super().handle_request(request)


@pytest.mark.parametrize(
    ("timeout_s", "short", "long"), [(7.0, 7.0, 600.0), (900.0, 900.0, 900.0), (math.inf, 1e6, 1e6)]
)
def test_answers_that_take_long_are_waited_for(
    server: str, spec: dict[str, Any], tmp_path: Path, timeout_s: float, short: float, long: float
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("x = 1\n")
    transport = Noting()
    with Client(server, transport=transport, timeout_s=timeout_s) as client:
        made = client.create(spec)
        made.fork()
        client.upload_code(tmp_path / "code")
        with pytest.raises(SpecError, match="nothing to replay"):
            made.replay()
        made.delete(force=True)
    sent = [("POST", long), ("POST", long), ("GET", short), ("PUT", long), ("POST", long), ("DELETE", long)]
    assert transport.waits == sent


class Busy(httpx.HTTPTransport):
    """Answers 503 or 502 first, as a service or a proxy in front of it does."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.statuses:
            return httpx.Response(self.statuses.pop(0), headers={"Retry-After": "0"}, json={"detail": "busy"})
        return super().handle_request(request)


def test_a_service_that_is_busy_is_asked_again(server: str, spec: dict[str, Any]) -> None:
    busy = Busy(503, 502, 429)
    with Client(server, transport=busy) as client:
        handle = client.create(spec)
        assert handle.get().state == "pending"
        busy.statuses.append(502)
        handle.enqueue([{"lr": 0.01}])  # has a key, so it is safe to repeat although it may have been carried out
        assert busy.statuses == []


def test_a_continue_that_was_written_is_not_repeated_after_a_503(
    client: Client, spec: dict[str, Any], sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away between the write of a request and the read for its answer, and comes back at once."""
    handle = client.create({**spec, "num_samples": 4})
    lost = iter([StoreUnavailable("connection reset")])
    change, get = Experiments.change, Experiments.get
    written: list[int] = []

    def changing(self: Experiments, *args: Any, **options: Any) -> None:
        change(self, *args, **options)
        written.append(1)

    def getting(self: Experiments, name: str) -> ExperimentRecord:
        if written and (error := next(lost, None)):
            raise error
        return get(self, name)

    monkeypatch.setattr(Experiments, "change", changing)
    monkeypatch.setattr(Experiments, "get", getting)
    with pytest.raises(ServiceError, match="may still have been carried out") as caught:
        handle.act("continue", {"num_samples": 3})  # without an idempotency key
    assert caught.value.status == 503
    assert handle.get().num_samples == 7
    written.clear()
    lost = iter([StoreUnavailable("connection reset")])
    assert handle.continue_(2).num_samples == 7 + 2, "repeated with its key, it adds nothing"


def test_patience_ends(server: str) -> None:
    with Client(server, transport=Busy(*[503] * 50), patience_s=0.3) as client, pytest.raises(ServiceError) as caught:
        list(client.experiments())
    assert caught.value.status == 503


def test_a_retry_after_that_is_longer_than_the_patience_is_not_waited_for(server: str) -> None:
    asked = httpx.MockTransport(
        lambda _: httpx.Response(503, headers={"Retry-After": "3600"}, json={"detail": "later"})
    )
    with Client(server, transport=asked) as client, pytest.raises(ServiceError, match="later"):
        client.session()


def test_a_service_that_starts_late_is_waited_for(app: FastAPI) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    late = threading.Event()
    stop = threading.Event()

    def serve() -> None:
        import asyncio

        from tuner.api.server import Server

        late.wait()
        listening = socket.create_server(("127.0.0.1", port))
        server = Server(app, log_level="warning", grace_s=60)

        async def main() -> None:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving

        asyncio.run(main())
        listening.close()

    class Starts(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            try:
                return super().handle_request(request)
            except httpx.ConnectError:
                late.set()
                raise

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with Client(f"127.0.0.1:{port}", transport=Starts()) as client:
            assert client.session()["name"] == "local"
    finally:
        stop.set()
        late.set()
        thread.join(timeout=20)


# -- looking


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one, other, check_dtype=False, check_like=True)


@pytest.mark.parametrize("spec", [digits("halved", 9), pbt()], ids=["asha with failures", "pbt"])
def test_a_remote_result_is_what_the_database_gives(client: Client, sqlite_store: Store, spec: Any) -> None:
    search = Search(sqlite_store, spec, start=T0, **({"curve": steady} if spec.name == "bred" else {}))
    search.advance()
    here, there = Result.load(sqlite_store, search.public_id), client.experiment(search.public_id).result()
    assert repr(there) == repr(here)
    same(there.dataframe(), here.dataframe())
    same(there.dataframe(history=True), here.dataframe(history=True))
    same(client.experiment(search.public_id).dataframe(), here.dataframe())
    assert there.schedule() == here.schedule()
    assert there.best_checkpoint is not None
    assert here.best_checkpoint is not None
    assert there.best_checkpoint.info == here.best_checkpoint.info
    brief = client.experiment(search.public_id).result(log=False)
    same(brief.dataframe(), here.dataframe())
    assert brief.schedule() == here.schedule()
    assert brief.best_checkpoint is not None
    assert brief.best_checkpoint.info == here.best_checkpoint.info
    assert [trial.traceback for trial in there.trials] == [trial.traceback for trial in here.trials]
    assert len(here.decisions) > len(here.trials)
    when = [round(decision.time, 3) for decision in here.decisions]
    assert [round(decision.time, 3) for decision in there.decisions] == when
    assert [replace(one, time=0.0) for one in there.decisions] == [replace(one, time=0.0) for one in here.decisions]


def test_parameters_that_an_objective_asks_for_have_an_importance(client: Client, sqlite_store: Store) -> None:
    """They had none: neither in the API nor in the plots of a result. A remote result also lacked the notes of its trials."""
    bench = Bench(
        space={}, search={"type": "define_by_run", "search": {"type": "random"}}, num_samples=12, limits={}
    )  # fmt: skip
    searcher: Any = bench.core.searcher
    for number in range(12):
        bench.started(number)
        for name in ("x", "y"):
            asked = distribution_to_json(FloatDistribution(0.0, 1.0))
            value, state = searcher.draw(number, name, asked, bench.core.trials)
            bench.feed(Drawn(time=bench.tick(), trial=number, segment=1, name=name, value=value, state=state))
        bench.reported(number, bench.core.trials[number].params["x"])
        for notes in ({"seed": number}, {"epochs": 3}):
            bench.feed(Noted(time=bench.tick(), trial=number, segment=1, notes=notes))
        bench.ended(number, "returned")
    made = sqlite_store.experiments.create(bench.spec)
    epoch = sqlite_store.drivers.claim(made.id, "test", 60.0, T0)
    trials, state = list(bench.core.trials), bench.core.state
    batch = Batch(log=bench.log, trials=trials, state=state, summary=bench.core.summary())
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    states = sqlite_store.trials.draws(made.id)
    assert [list(state["distributions"]) for state in states] == [["x", "y"]] * 12, "one for each trial"
    assert sqlite_store.trials.draws(made.id, most=2) == states[-2:]
    found = {item.parameter: item.share for item in client.experiment(made.public_id).importance().items}
    assert list(found) == ["x", "y"]
    assert sum(found.values()) == pytest.approx(1)
    for result in (Result.load(sqlite_store, made.public_id), client.experiment(made.public_id).result()):
        (bars,) = result.plot("importance").data
        assert dict(zip(bars.y, bars.x, strict=True)) == pytest.approx(found)
        assert [trial.notes for trial in result.trials] == [{"seed": number, "epochs": 3} for number in range(12)]


def test_a_remote_result_has_the_values_that_a_retry_has_taken_over(client: Client, sqlite_store: Store) -> None:
    space = {"x": tuner.uniform(0, 1), "noise": tuner.sample_from(lambda: random.random())}
    bench = Bench(space=space, num_samples=1)
    bench.started(0)
    bench.ended(0, "failed", Failure(kind="user", message="ValueError: no", cause="exception"))
    bench.command("retry", trial=0)
    bench.command("continue")
    bench.started(1)
    bench.reported(1)
    bench.ended(1, "returned")
    made = sqlite_store.experiments.create(bench.spec)
    epoch = sqlite_store.drivers.claim(made.id, "test", 60.0, T0)
    trials, state = list(bench.core.trials), bench.core.state
    batch = Batch(log=bench.log, trials=trials, state=state, summary=bench.core.summary())
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    result = client.experiment(made.public_id).result(bench.space)
    assert result.trials[1].config == result.best_config == result.trials[0].config


def test_values_that_are_not_finite_stay_so(client: Client, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("wild", 9, seed=5), start=T0, curve=lambda *_: {"accuracy": math.nan})
    search.advance()
    result = client.experiment("wild").result()
    assert all(math.isnan(trial.metrics["accuracy"]) for trial in result.trials if trial.metrics)
    assert result.best_value is None


def test_lists_are_read_page_by_page(client: Client, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.synchronous.PAGE", 4)
    search = Search(sqlite_store, digits("halved", 9), start=T0)
    search.advance()
    handle = client.experiment(search.public_id)
    assert [trial.number for trial in handle.trials()] == list(range(9))
    assert [trial.number for trial in handle.trials(limit=5)] == list(range(5))
    values = [trial.best_value for trial in handle.trials(sort="-best_value", where="best_value>0.2")]
    assert values == sorted(values, reverse=True)
    assert {decision.kind for decision in handle.decisions(kind=["stop", "complete"])} <= {"stop", "complete"}
    assert all(decision.trial_number == 3 for decision in handle.decisions(trial=3))
    assert len(list(handle.segments())) >= 9
    entries = list(handle.log())
    assert [one.seq for one in entries] == list(range(len(entries), 0, -1))
    assert {one.kind for one in handle.log(kind="reported", trial=3, limit=2)} == {"reported"}
    saved = list(handle.checkpoints())
    assert len(saved) > 4
    assert list(handle.checkpoints(trial=saved[-1].trial_number, state=saved[-1].state, limit=1)) != []
    assert {one.trial_number for one in handle.checkpoints(trial=3)} == {3}


def test_one_trial(client: Client, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance()
    handle = client.experiment("halved")
    best = handle.best()
    assert best is not None
    trial = handle.trial(best.trial_number)
    assert trial.id == best.trial_id
    assert trial.get().segments[0].cause == "start"
    assert [curve.metric for curve in trial.curves().items] == ["accuracy", "loss"]
    assert trial.lineage().schedule[0].params == best.params
    assert (trial.logs(), trial.usage()) == ([], [])
    assert "".join(trial.follow_log()) == ""
    with pytest.raises(Conflict, match="has no running ranks"):
        trial.live()
    assert handle.curves(trials=[best.trial_number]).series[0].number == best.trial_number
    assert handle.best_so_far().y[-1] == best.value
    assert handle.importance().needed > 0
    front = handle.pareto()
    assert (front.metrics, front.of) == (["accuracy"], 6)
    assert len(front.items) == front.total > 0
    replayed = handle.replay({"type": "asha", "reduction_factor": 3}, search="random", max_concurrent_trials=2)
    assert (replayed.scheduler["type"], replayed.recorded.trials) == ("asha", 6)
    with pytest.raises(SpecError, match="did you mean asha"):
        handle.replay("ashaa")


# -- checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


async def test_a_checkpoint_is_downloaded_into_an_empty_folder(
    server: str, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(sqlite_store, tmp_path)
    target = tmp_path / "kept" / "best"
    with Client(server) as client:
        for _ in range(2):  # at first the folder does not exist, and then it is empty
            assert client.download_checkpoint("ckpt_0", target) == str(target)
            assert names(target) == ["inner", "inner/state.json", "model.bin"]
            assert (target / "model.bin").read_bytes() == b"x" * 3000
            with pytest.raises(SpecError, match=r"path: expected an empty folder .*best', which has files"):
                client.download_checkpoint("ckpt_0", target)
            shutil.rmtree(target)
            target.mkdir()
        with pytest.raises(SpecError, match=r"model\.bin', which is a file"):
            client.download_checkpoint("ckpt_0", tmp_path / "ckpt" / "model.bin")
        with pytest.raises(NotFound, match="no checkpoint"):
            client.download_checkpoint("ckpt_1/../ckpt_0", target)
        with pytest.raises(NotFound, match="no checkpoint"):
            client.download_checkpoint("ckpt_1", tmp_path / "none")
        assert (names(target), (tmp_path / "none").exists()) == ([], False)
        assert client.pin_checkpoint("ckpt_0").pinned
        assert client.checkpoint("ckpt_0") == client.pin_checkpoint("ckpt_0")
        assert not client.unpin_checkpoint("ckpt_0").pinned
    async with await tuner.connect_async(server) as other:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        download = asyncio.create_task(other.download_checkpoint("ckpt_0"))
        while not list(tmp_path.glob("tuner-checkpoint-*/.download-*/files/*")):
            assert not download.done(), "no other task ran while the files were unpacked"
            await asyncio.sleep(0)
        found = await download
    assert names(Path(found)) == ["inner", "inner/state.json", "model.bin"]
    shutil.rmtree(found)


def test_a_download_that_is_cut_begins_again_and_leaves_nothing_if_it_is_cut_always(
    server: str, sqlite_store: Store, tmp_path: Path
) -> None:
    saved(sqlite_store, tmp_path)
    target = tmp_path / "best"
    transport = Cut(2, "/download")
    with Client(server, transport=transport) as client:
        client.download_checkpoint("ckpt_0", target)
    assert (names(target), len(transport.asked)) == (["inner", "inner/state.json", "model.bin"], 3)
    cut_always = Cut(1000, "/download")
    with (
        Client(server, transport=cut_always, patience_s=0.3) as client,
        pytest.raises(ServiceUnreachable, match="no tuner service answers at .*: cut"),
    ):
        client.download_checkpoint("ckpt_0", tmp_path / "none")
    assert len(cut_always.asked) > 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["best", "ckpt"]


# -- verbs, following


def test_verbs(client: Client, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance(5)
    handle = client.experiment(search.public_id)
    handle.pause()
    search.obey()
    search.advance()
    assert handle.wait(timeout_s=10).state == "paused"
    handle.resume()
    with pytest.raises(TimeoutError, match="is still paused"):
        handle.wait(timeout_s=0)
    search.obey()
    with pytest.raises(TimeoutError, match="is still running"):
        handle.wait(timeout_s=0)
    handle.trial(0).stop()
    search.obey()
    search.advance()
    assert handle.wait(timeout_s=10).state == "completed"
    with pytest.raises(Conflict, match="is completed and cannot be cancelled"):
        handle.cancel()
    handle.continue_(2)
    with pytest.raises(TimeoutError, match="is still completed"):
        handle.wait(timeout_s=0)
    search.obey()
    search.advance()
    assert (handle.wait(timeout_s=10).state, len(list(handle.trials()))) == ("completed", 8)
    handle.trial(4).retry()
    with pytest.raises(TimeoutError, match="is still completed"):
        handle.wait(timeout_s=0)
    search.obey()
    search.advance()
    assert (handle.wait(timeout_s=10).state, len(list(handle.trials()))) == ("completed", 9)
    monkeypatch.setattr(synchronous, "ACTS_S", 0.2)
    handle.continue_(2)  # no driver acts on it

    def over() -> bool:
        with contextlib.suppress(TimeoutError):
            return handle.wait(timeout_s=0).state == "completed"
        return False

    until("several short calls of wait together wait no longer than one", over)


def test_what_is_done_to_an_experiment_that_has_ended(client: Client, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance()
    handle = client.experiment(search.public_id)
    assert handle.change(notes="good", tags={"team": "vision"}).notes == "good"
    assert [one.id for one in client.experiments(tags="team=vision")] == [search.public_id]
    with pytest.raises(Conflict):
        handle.change(etag='"another"', notes="lost")
    with pytest.raises(SpecError, match="num_sample: unknown field; did you mean num_samples"):
        handle.change(num_sample=3)
    handle.archive()
    assert [list(client.experiments()), len(list(client.experiments(archived="yes")))] == [[], 1]
    handle.unarchive()
    assert handle.continue_(num_samples=2).num_samples == 8
    handle.delete(force=True)
    with pytest.raises(NotFound):
        handle.get()


def test_changes_and_events_are_followed_to_the_end(client: Client, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    seen: dict[str, str] = {}
    for changes in client.experiment("halved").follow():
        seen |= {trial.id: trial.state for trial in changes.trials}
        search.advance(10)
    assert {row.id: row.state for row in client.experiment("halved").trials()} == seen
    log = list(client.experiment("halved").events())
    assert log[-1]["state"] == "completed"
    assert [entry["seq"] for entry in log[:-1]] == list(range(1, len(log)))


def test_the_end_is_noticed_if_a_later_message_repeats_no_experiment(
    client: Client, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is read while the search ends, so its row is newer than its event_seq. The next message then has no row."""
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance()
    handle = client.experiment(search.public_id)
    row = handle.get()
    last = row.last_event_seq
    messages = [schemas.Changes.bare(last - 1, row), schemas.Changes.bare(last)]

    def events(path: str, after: int) -> Iterator[Any]:
        for message in messages:
            yield SimpleNamespace(data=json.loads(message.model_dump_json()))
        raise AssertionError("it waits for more")

    monkeypatch.setattr(client, "_events", events)
    assert [changes.seq for changes in handle.follow()] == [last - 1, last]


class Cut(httpx.HTTPTransport):
    """Cuts a stream after its first message. `route` is the end of its path."""

    def __init__(self, cuts: int, route: str = "/events") -> None:
        super().__init__()
        self.cuts, self.route, self.asked = cuts, route, []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.url.path.endswith(self.route):
            self.asked.append(int(request.url.params.get("after", 0)))
            if len(self.asked) <= self.cuts:
                whole = answer.stream

                def cut() -> Any:
                    yield next(iter(whole))  # type: ignore[call-overload]
                    raise httpx.ReadError("cut", request=request)

                return httpx.Response(answer.status_code, headers=answer.headers, stream=Pieces(cut))
        return answer


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: Any) -> None:
        self.pieces = pieces

    def __iter__(self) -> Any:
        return self.pieces()


def test_a_stream_that_is_cut_goes_on_behind_the_last_message(server: str, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    transport = Cut(2)
    with Client(server, transport=transport) as client:
        entries = client.experiment("halved").events()
        first = next(entries)
        search.advance()
        rest = list(entries)
    seqs = [entry["seq"] for entry in (first, *rest) if entry["kind"] != "experiment"]
    assert seqs == list(range(1, max(seqs) + 1))
    assert len(transport.asked) == 3
    assert transport.asked == sorted(transport.asked)


# -- errors


def test_a_stream_that_is_cut_after_hours_without_an_event_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = [0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours[0], sleep=time.sleep)
    monkeypatch.setattr(protocol, "time", clock)
    monkeypatch.setattr(synchronous, "time", clock)
    asked: list[httpx.Request] = []

    def quiet() -> Iterator[bytes]:
        yield b'id: 7\nevent: reported\ndata: {"seq": 7}\n\n'
        hours[0] = 3
        yield b": still here\n\n"
        raise httpx.ReadError("the service restarts", request=asked[0])

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) == 2:
            hours[0] = 3 + 10 / 3600  # longer than for the first contact
            raise httpx.ConnectError("it does not listen yet", request=request)
        end = b'event: experiment\ndata: {"state": "completed"}\n\n'
        return httpx.Response(200, stream=Pieces(quiet)) if len(asked) == 1 else httpx.Response(200, content=end)

    with Client("http://localhost:1", transport=httpx.MockTransport(handle)) as client:
        entries = list(client.experiment("exp_0123456789abcdef0123").events())
    assert entries == [{"seq": 7}, {"state": "completed"}]
    assert [request.url.params["after"] for request in asked] == ["0", "7", "7"]


def test_a_log_is_followed_through_restarts_of_the_service(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seemed to end when the service was shut down."""
    monkeypatch.setattr(synchronous, "LOG_S", 0.01)
    made, _, _ = begin(sqlite_store)
    text = ["first ä\n", "second\n", "third\n", ""]
    starts = [sum(len(one.encode()) for one in text[:n]) for n in range(len(text))]
    chunks = [LogChunk.of(0, start, one.encode(), T0) for start, one in zip(starts, text, strict=True)]

    class Restarts(httpx.HTTPTransport):
        asked = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/logs"):
                self.asked += 1
                if self.asked % 3 == 0:
                    raise httpx.ConnectError("the service restarts", request=request)
                if self.asked % 3 == 1 and chunks:
                    sqlite_store.logs.add(made.id, {(0, 1): [chunks.pop(0)]})
            return super().handle_request(request)

    with Client(server, transport=Restarts()) as client:
        pieces = list(client.trial(trial_id(made.public_id, 0)).follow_log())
    assert pieces == text[:3]


def test_the_end_of_a_log_does_not_depend_on_the_clock_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: T0))
    end = protocol.LogEnd()
    hour_ago, in_an_hour = (rfc3339(T0 + seconds) for seconds in (-3600, 3600))
    assert protocol.LogEnd().is_reached(hour_ago)
    assert [end.is_reached(None), end.is_reached(hour_ago)] == [False, False]
    now[0] += LATE_S + 1
    assert end.is_reached(hour_ago)
    late = protocol.LogEnd()
    assert not late.is_reached(in_an_hour)
    now[0] += LATE_S + 1
    assert late.is_reached(in_an_hour)


def test_a_wrong_name_is_answered_with_the_nearest(client: Client, sqlite_store: Store) -> None:
    begin(sqlite_store)
    with pytest.raises(NotFound, match="no experiment 'digit'; did you mean 'digits'"):
        client.experiment("digit").get()
    begin(sqlite_store)
    several = r"2 experiments have the name 'digits'; use an id .*: exp_\w+ \(\w+, of the project default\), exp_"
    with pytest.raises(Conflict, match=several):
        client.experiment("digits").get()
    with pytest.raises(NotFound, match="no experiment exp_1"):
        client.experiment("exp_1").get()


def test_tokens(sqlite_store: Store, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    made, _, _ = begin(sqlite_store)
    viewer, _ = sqlite_store.access.create_token("someone", Role.VIEWER)
    for server in serving(guarded):
        with pytest.raises(NotAllowed, match="a token is needed"):
            tuner.connect(server)
        with pytest.raises(NotAllowed, match="this token is not valid: it is wrong, expired or revoked"):
            tuner.connect(server, token="tnr_wrong")
        with tuner.connect(server, token=viewer) as client:
            assert client.session()["role"] == "viewer"
            assert viewer not in repr(client)
            with pytest.raises(NotAllowed, match="needs the role editor") as caught:
                client.experiment(made.public_id).cancel()
            assert caught.value.status == 403
        admin, _ = sqlite_store.access.create_token("boss", Role.ADMIN)
        with tuner.connect(server, token=admin) as client:
            made_token = client.create_token("ci", role="viewer", project="vision", expires_days=1)
            assert (made_token.role, made_token.project, made_token.revoked_at) == ("viewer", "vision", None)
            with tuner.connect(server, token=made_token.secret) as limited:
                assert limited.session()["name"] == "ci"
                with pytest.raises(NotAllowed, match="needs the role admin"):
                    limited.tokens()
            assert client.revoke_token(made_token.id).revoked_at is not None
            assert [(one.name, one.secret) for one in client.tokens()] == [
                ("ci", None),
                ("boss", None),
                ("someone", None),
            ]
            with pytest.raises(NotFound, match="no token"):
                client.revoke_token("tok_x")
            entries = list(client.audit())
            assert [one.actor for one in entries] == ["boss", "boss", "boss", "someone"]
            assert list(client.audit(limit=2)) == entries[:2]
        monkeypatch.setenv("TUNER_ADDRESS", server)
        monkeypatch.setenv("TUNER_TOKEN", viewer)
        with tuner.connect() as client:
            assert client.experiment("digits").get().id == made.public_id


def test_an_address_without_a_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServiceUnreachable, match=f"no tuner service answers at {address}"):
        tuner.connect(address, patience_s=0)
    with pytest.raises(SpecError, match="TUNER_ADDRESS"):
        tuner.connect()
    with pytest.raises(SpecError, match="expected a URL"):
        tuner.connect("ftp://box")


def test_something_else_at_the_address_is_said(server: str) -> None:
    other = httpx.MockTransport(lambda _: httpx.Response(404, text="<html>nginx</html>"))
    with Client(server, transport=other) as client, pytest.raises(NotFound, match="may not be a tuner service"):
        client.session()


def test_an_answer_of_another_version_is_said(server: str, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    older = httpx.MockTransport(lambda _: httpx.Response(200, json={"id": made.public_id}))
    with (
        Client(server, transport=older) as client,
        pytest.raises(ServiceError, match=r"probably because their versions differ: \w+"),
    ):
        client.experiment(made.public_id).get()


# -- asynchronous


async def test_the_asynchronous_client(server: str, sqlite_store: Store, spec: dict[str, Any]) -> None:
    async with await tuner.connect_async(server) as client:
        made = await client.create(spec)
        assert (await made.cancel()).id == made.id
        assert [one.id async for one in client.experiments()] == [made.id]
        search = Search(sqlite_store, digits("halved", 6), start=T0)
        handle = client.experiment("halved")
        seen: set[int] = set()
        async for changes in handle.follow():
            seen |= {trial.number for trial in changes.trials}
            search.advance(10)
        assert seen == set(range(6))
        same(await handle.dataframe(history=True), Result.load(sqlite_store, search.public_id).dataframe(history=True))
        best = await handle.best()
        assert best is not None
        assert best.trial_id == trial_id(search.public_id, best.trial_number)
        with pytest.raises(NotFound):
            await client.experiment("nothing").get()


def test_a_token_for_a_service_that_asks_for_none_is_refused_with_advice(server: str) -> None:
    with pytest.raises(NotAllowed, match="requires no token, so send none"):
        tuner.connect(server, token="tnr_wrong")


def test_waiting_for_an_experiment_that_fails_warns(client: Client, sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    failed = Batch(log=[], state=ExperimentState.FAILED, summary={"error": "KeyError: 'width'"})
    sqlite_store.drivers.commit(made.id, epoch, failed, T0)
    with pytest.warns(UserWarning, match="digits .* has failed: KeyError: 'width'"):
        assert client.experiment(made.public_id).wait(timeout_s=10).state == "failed"


def test_only_the_first_contact_gives_up_soon_if_the_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "FIRST_CONTACT_S", 0.0)
    answers = [True, False, True]  # whether the connection is accepted

    def handle(request: httpx.Request) -> httpx.Response:
        if not answers.pop(0):
            raise httpx.ConnectError("connection refused")
        return httpx.Response(200, json={})

    with Client("http://localhost:1", transport=httpx.MockTransport(handle)) as client:
        client.session()
        client.session()
    answers[:] = [False, True]
    fresh = Client("http://localhost:1", transport=httpx.MockTransport(handle))
    with fresh, pytest.raises(ServiceUnreachable, match="no tuner service answers at http://localhost:1"):
        fresh.session()


def test_a_log_that_a_restored_backup_lacks_begins_again() -> None:
    asked: list[str | None] = []
    ids = [[4, 5], [1], [2]]

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Last-Event-ID"))
        state = "completed" if len(ids) == 1 else "running"
        sent = [f'id: {seq}\nevent: experiment\ndata: {{"seq": {seq}, "state": "{state}"}}\n\n' for seq in ids.pop(0)]
        return httpx.Response(200, text="".join(sent))

    with Client("http://localhost:1", transport=httpx.MockTransport(handle)) as client:
        assert [entry["seq"] for entry in client.experiment("exp_0123456789abcdef0123").events()] == [4, 5, 1, 2]
    assert asked == [None, "5", "1"]


@pytest.mark.parametrize("name", ["exp_sweep", "a/b"])
def test_every_name_finds_its_experiment(client: Client, spec: dict[str, Any], name: str) -> None:
    made = client.create({**spec, "name": name}).id
    assert client.experiment(name).get().id == made


def elsewhere(answer: httpx.Response) -> Client:
    """Return a client of a server that is not a tuner service and always gives this answer."""
    transport = httpx.MockTransport(lambda request: answer)
    return Client("http://proxy.invalid", transport=transport, patience_s=0.0)


@pytest.mark.parametrize("status", [200, 202])
def test_a_page_in_place_of_json_is_explained(status: int) -> None:
    with elsewhere(httpx.Response(status, html="<html>Please log in</html>")) as client:
        for ask in (client.experiment("x").get, lambda: list(client.experiments()), client.experiment("x").pause):
            with pytest.raises(
                ServiceError, match=rf"{status} .* from http://proxy.invalid/.*may not be a tuner service"
            ):
                ask()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_explained_with_its_target(status: int) -> None:
    moved = httpx.Response(status, html="<html>moved</html>", headers={"location": "https://tuner.example.com/here"})
    with elsewhere(moved) as client:
        for ask in (client.experiment("x").get, lambda: list(client.experiments()), client.experiment("x").pause):
            with pytest.raises(ServiceError, match="redirects to https://tuner.example.com/here"):
                ask()


def test_another_patience_keeps_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = httpx.Response(404, json={"detail": "from the transport", "errors": []})
    first = elsewhere(missing)
    assert first._transport is not None
    closed = []
    monkeypatch.setattr(first._transport, "close", lambda: closed.append(True))
    with first:
        with first.with_patience(0.1) as client, pytest.raises(NotFound, match="from the transport"):
            client.experiment("x").get()
        assert not closed, "it is the first client's"
    assert closed
