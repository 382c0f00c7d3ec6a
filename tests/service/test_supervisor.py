"""The driver host, the process that talks to Ray, and Ray itself are started again when they are gone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from tests.store.examples import a_spec
from tuner import __version__
from tuner.errors import ClusterUnreachable, DriverSilent
from tuner.hosts.on_ray import link, shared
from tuner.hosts.on_ray import start as driver_host
from tuner.hosts.ray.cluster import NAMESPACE
from tuner.hosts.ray.head import HeadStopped, OtherRuntime, sources, stop_head
from tuner.hosts.scripts import kept
from tuner.sdk import driving
from tuner.sdk import run as runner
from tuner.sdk.executors import Choice
from tuner.sdk.live.progress import Progress
from tuner.service import child as children
from tuner.service import serve
from tuner.service import supervisor as supervisor_module
from tuner.service.supervisor import Supervisor
from tuner.settings import Settings
from tuner.store import Store

NEWS: Any = ["exp_1 (digits) is driven here: the experiment was created through the API"]
DEATHS = [
    ray.exceptions.ActorDiedError(),
    ray.exceptions.OutOfMemoryError("2 worker(s) were killed due to the node running low on memory."),
]


class Told:
    """Records what a link has told its service."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, **what: Any) -> None:
        self.lines.append(what)


def method(answer: Callable[..., Any]) -> SimpleNamespace:
    """Imitate a method of an actor."""
    return SimpleNamespace(remote=answer)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the hosts that a link has started, with what it asked of them. The first is dead when it is looked at again."""
    found: list[dict[str, Any]] = []

    def start_host(settings: Settings, *, shared: bool) -> Any:
        number, host = len(found), {"looks": 0}
        found.append(host)

        def start(**options: Any) -> Any:
            host.update(options)
            return f"owner {number}"

        return SimpleNamespace(
            start=method(start), news=method(lambda: NEWS), metrics=method(dict), live=method(lambda: number)
        )

    def wait(refs: list[int], timeout: float) -> Any:
        found[refs[0]]["looks"] += 1
        return (refs, []) if refs[0] or found[0]["looks"] > 1 else ([], refs)

    monkeypatch.setattr(driver_host, "start_host", start_host)
    monkeypatch.setattr(shared, "find_host", lambda settings: None)
    monkeypatch.setattr(shared, "end_other_versions", lambda settings: [])
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(link, "CHECK_S", 0.0)
    return found


@pytest.mark.parametrize("death", DEATHS, ids=["killed", "for memory"])
def test_by_the_service(
    death: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[dict[str, Any]]
) -> None:
    def get(ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, int):
            raise death
        return ref

    monkeypatch.setattr(ray, "get", get)
    told = Told()
    one = link.Link(Settings(home=tmp_path), True, told)
    one.look_after()
    one.look_after()
    assert [host["adopt"] for host in hosts] == [True, True]
    assert hosts[1]["gone"] == ["owner 0", "owner 1"], "the next host need not wait for the lease of the dead one"
    assert [line.get("up") for line in told.lines] == ["owner 0", "owner 0", None, "owner 1", None]
    assert told.lines[1]["news"] == NEWS
    assert told.lines[2]["trouble"] == "the driver is being started again"


def test_a_driver_that_cannot_be_reached_for_a_moment_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[dict[str, Any]]
) -> None:
    """The service said that the driver was gone and was being started again, and refused requests meanwhile."""
    lost = [ray.exceptions.ActorUnavailableError("a connection broke", None)]

    def get(ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, int):
            raise lost.pop() if lost else DEATHS[0]
        return ref

    monkeypatch.setattr(ray, "get", get)
    told = Told()
    one = link.Link(Settings(home=tmp_path), True, told)
    one.look_after()
    assert told.lines[2]["trouble"].startswith("the driver does not answer: ")
    assert one._host is not None, "requests are still passed on to it"
    one.look_after()
    assert [line.get("up") for line in told.lines] == ["owner 0", "owner 0", None, "owner 0", None]
    assert (len(hosts), hosts[0]["gone"]) == (1, ["owner 0"]), "it has died in the second look"


def test_a_service_ends_the_host_of_another_version_and_takes_up_what_it_drove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(shared, "end_other_versions", lambda settings: [("0.0.9", "old owner"), ("0.0.8", None)])

    def get(ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, int):
            raise DEATHS[0]
        return ref

    monkeypatch.setattr(ray, "get", get)
    told = Told()
    link.Link(Settings(home=tmp_path), False, told).look_after()
    assert "old owner" in hosts[0]["gone"]
    assert "stopped the driver host of 0.0.9" in told.lines[0]["log"]
    assert "stopped the driver host of 0.0.8" in told.lines[1]["log"]


class Actors:
    """The named actors of a cluster. Each says who owns it, or nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: dict[str, str | None], namespace: str) -> None:
        self.names, self.namespace, self.killed = names, namespace, list[str]()
        monkeypatch.setattr(ray.util, "list_named_actors", self.listed)
        monkeypatch.setattr(ray, "get_actor", self.found)
        monkeypatch.setattr(ray, "get", self.answer)
        monkeypatch.setattr(ray, "kill", self.kill)

    def listed(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"name": name, "namespace": self.namespace} for name in self.names if name not in self.killed]

    def found(self, name: str, namespace: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, status=method(lambda: name))

    def answer(self, name: str, timeout: float) -> dict[str, str]:
        if (owner := self.names[name]) is None:
            raise ray.exceptions.GetTimeoutError
        return {"owner": owner}

    def kill(self, actor: SimpleNamespace) -> None:
        self.killed.append(actor.name)


def test_only_shared_hosts_of_this_database_and_of_other_versions_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path)
    other = Settings(home=tmp_path, database_url="postgresql://me@host/db")
    base, now = shared.base_name(settings), shared.shared_name(settings)
    names = {
        base: "unversioned",  # as the first versions called them
        f"{base}-v0.0.9": "older",
        f"{base}-v0.0.8": None,
        now: "this version",
        f"{base}-0123456789ab": "a script's own",
        f"{shared.base_name(other)}-v0.0.9": "another database's",
    }
    actors = Actors(monkeypatch, names, NAMESPACE)
    assert shared.end_other_versions(settings) == [
        ("an earlier version", "unversioned"),
        ("0.0.8", None),
        ("0.0.9", "older"),
    ]
    assert actors.killed == [base, f"{base}-v0.0.8", f"{base}-v0.0.9"]


@pytest.mark.parametrize(
    ("code", "attended", "address", "ends"),
    [
        ("other", [True, False], "10.0.0.1:6379", True),
        ("other", [True] * 9, "10.0.0.1:6379", False),
        ("", [False], "10.0.0.1:6379", False),
        ("same", [False], "10.0.0.1:6379", False),
        ("other", [False], None, False),
    ],
    ids=["changed", "used by another service", "unknown", "the same code", "a Ray of our own, which is started again"],
)
def test_a_host_of_changed_code_is_ended_on_a_cluster_that_the_user_has_named(
    code: str, attended: list[bool], address: str | None, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade that kept the version, the driver went on with the code of before."""
    settings = Settings(home=tmp_path, ray_address=address)
    now, states = shared.shared_name(settings), [attended[0], *attended]
    actors = Actors(monkeypatch, {now: "owner"}, NAMESPACE)

    def answer(name: str, timeout: float) -> dict[str, Any]:
        found = states.pop(0) if len(states) > 1 else states[0]
        return {"owner": "owner", "sources": sources() if code == "same" else code, "attended": found}

    monkeypatch.setattr(ray, "get", answer)
    seconds = itertools.count()
    monkeypatch.setattr(shared, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    assert shared.end_other_versions(settings) == ([(f"an earlier state of {__version__}", "owner")] if ends else [])
    assert actors.killed == ([now] if ends else [])


def test_the_link_ends_when_its_node_has_died_or_another_cluster_has_taken_the_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    one = link.Link(Settings(home=tmp_path), False, told)
    errors = [
        "RPC error: the deadline has passed",
        "RPC error: WrongClusterID: Perhaps the client is accessing GCS after ...",
    ]
    died = ClusterUnreachable("Ray's node on this machine has died")

    def fails() -> None:
        raise ray.exceptions.RpcError(errors.pop(0), 0) if errors else died

    monkeypatch.setattr(one, "_start_host", fails)
    monkeypatch.setattr(link, "CHECK_S", 0.0)
    one.look_after()
    assert [line["trouble"] for line in told.lines] == [
        "the driver does not answer: RPC error: the deadline has passed"
    ]
    with pytest.raises(ClusterUnreachable, match="has been restarted"):
        one.look_after()
    with pytest.raises(ClusterUnreachable, match="has died"):
        one.look_after()


def test_the_link_ends_if_its_driver_was_lost_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[dict[str, Any]]
) -> None:
    """The link called that driver forever, since Ray says that such a driver cannot be reached. No new one was started."""

    def get(ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, int) or not replaced:
            return ref
        raise ray.exceptions.ActorUnavailableError("Connection refused", None)

    def find_host(settings: Settings) -> None:
        if replaced:
            raise ray.exceptions.RpcError("RPC error: WrongClusterID: Perhaps the client is accessing GCS after ...", 0)

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(shared, "find_host", find_host)
    replaced: list[bool] = []
    told = Told()
    one = link.Link(Settings(home=tmp_path), True, told)
    one.look_after()
    assert one._host is not None
    replaced.append(True)
    one.look_after()
    with pytest.raises(ClusterUnreachable, match="has been restarted"):
        one.look_after()


def test_the_link_asks_the_driver_for_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    one = link.Link(Settings(home=tmp_path), False, told)
    one._ask(1, "look", ["seg"])
    one._host = SimpleNamespace(look=method(lambda segment: segment))
    monkeypatch.setattr(ray, "get", lambda segment, timeout: {"0": {"stack": segment}})
    one._ask(2, "look", ["seg"])

    def late(segment: str, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", late)
    one._ask(3, "look", ["seg"])
    assert told.lines == [
        {"answer": 1, "error": "the driver is starting"},
        {"answer": 2, "found": {"0": {"stack": "seg"}}},
        {"answer": 3, "error": "the driver does not answer: GetTimeoutError"},
    ]


def test_a_driver_that_hangs_leaves_threads_for_requests_that_do_not_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request for the cluster held one of the service's threads for twelve seconds."""
    monkeypatch.setattr(supervisor_module, "TURN_S", 0.0)
    asked, answers = threading.Semaphore(0), threading.Event()

    class Hanging:
        def ask(self, method: str, *args: Any) -> dict[str, Any]:
            asked.release()
            assert answers.wait(60)
            return {"asked": method}

    supervisor = Supervisor(Settings(home=tmp_path))
    supervisor._child = Hanging()  # type: ignore[assignment]
    with ThreadPoolExecutor(supervisor_module.ASKED_AT_ONCE) as pool:
        waiting = [pool.submit(supervisor.cluster) for _ in range(supervisor_module.ASKED_AT_ONCE)]
        try:
            assert all(asked.acquire(timeout=60) for _ in waiting)
            with pytest.raises(DriverSilent, match="has not answered earlier requests"):
                supervisor.look("seg_1")
        finally:
            answers.set()
        assert [one.result(60) for one in waiting] == [{"asked": "cluster"}] * len(waiting)
    assert supervisor.look("seg_1") == {"asked": "look"}


def test_without_a_driver_there_are_neither_answers_nor_figures(tmp_path: Path) -> None:
    supervisor = Supervisor(Settings(home=tmp_path))
    for ask in (supervisor.cluster, lambda: supervisor.agents("ask", "exp_1", {}), lambda: supervisor.profile("a", {})):
        with pytest.raises(DriverSilent, match="the driver is starting"):
            ask()
    supervisor._hear({"up": "a host", "metrics": {"groups": 1}})
    assert supervisor.metrics() == {"groups": 1}
    supervisor._hear({"trouble": "the driver does not answer"})
    assert supervisor.metrics() is None, "they are out of date"


def test_the_link_passes_requests_on_that_take_long(tmp_path: Path) -> None:
    told = Told()
    one = link.Link(Settings(home=tmp_path), False, told)
    answer: Future[dict[str, Any]] = Future()
    asked: list[Any] = []

    def remote(*args: Any) -> Any:
        asked.append(args)
        return SimpleNamespace(future=lambda: answer)

    one._pass_on(1, "profile", ["seg", {"rank": 0}])
    one._host = SimpleNamespace(profile=SimpleNamespace(remote=remote))
    one._pass_on(2, "profile", ["seg", {"rank": 0}])
    assert asked == [("seg", {"rank": 0})]
    assert told.lines == [{"answer": 1, "error": "the driver is starting"}], "nothing waits for the answer"
    answer.set_result({"found": None})
    assert told.lines[1:] == [{"answer": 2, "found": {"found": None}}]


class FakeHead:
    """Ray's head as the supervisor sees it."""

    def __init__(self, number: int) -> None:
        self.address, self.gone = f"head {number}", None
        self.pids = ()

    def dead(self) -> str | None:
        return self.gone


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[FakeHead]:
    """Return the heads that a supervisor has started, one after the other."""
    found: list[FakeHead] = []

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        if not found or found[-1].gone:
            found.append(FakeHead(len(found)))
        return found[-1]

    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    monkeypatch.setattr(supervisor_module, "was_stopped", lambda home: False)
    monkeypatch.setattr(children, "LINK", "tests.fake_link")
    monkeypatch.setattr(supervisor_module, "CHECK_S", 0.01)
    monkeypatch.setattr(supervisor_module, "AGAIN_S", 0.01)
    return found


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def looks(supervisor: Supervisor, segment: str) -> str:
    try:
        return str(supervisor.look(segment)["0"]["stack"])
    except DriverSilent as error:
        return str(error)


def test_a_head_or_a_link_that_dies_is_started_again(
    tmp_path: Path, heads: list[FakeHead], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), Supervisor(Settings(home=tmp_path)) as supervisor:
        until(lambda: supervisor.problem() is None)
        assert looks(supervisor, "a") == "a at head 0"
        supervisor.poke()
        until(lambda: "poked" in [record.getMessage() for record in caplog.records])
        assert looks(supervisor, "silent") == "the driver does not answer: GetTimeoutError"
        heads[0].gone = "raylet"
        until(lambda: looks(supervisor, "a") == "a at head 1")
        assert "Ray's raylet is gone; Ray and the driver are being started again" in caplog.text
        with pytest.raises(DriverSilent):
            supervisor.look("crash")
        until(lambda: looks(supervisor, "a") == "a at head 1")
        assert supervisor.problem() is None
    assert len(heads) == 2, "the head outlives its link"


def test_a_link_in_reserve_takes_the_place_of_one_that_dies(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SPARE_AFTER_S", 0.0)
    with Supervisor(Settings(home=tmp_path)) as supervisor:
        until(lambda: supervisor._spare is not None)
        reserve = supervisor._spare
        with pytest.raises(DriverSilent):
            supervisor.look("crash")
        until(lambda: looks(supervisor, "a") == "a at head 0")
        assert supervisor._child is reserve
        until(lambda: supervisor._spare is not None)
        killed = supervisor._spare
        assert killed is not None
        psutil.Process(killed.pid).kill()
        until(lambda: killed.dead() is not None)
        heads[0].gone = "raylet"
        until(lambda: looks(supervisor, "a") == "a at head 1")
        assert supervisor._child is not killed
        until(lambda: supervisor._spare is not None)
        left = supervisor._spare
        assert left is not None
    assert left.dead() is not None, "it ends with the service"


def test_a_link_runs_the_commands_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LINK", "tests.fake_link")
    (tmp_path / "tests.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    child = children.Child(Settings(home=tmp_path), False, lambda said: None)
    try:
        done = child.ray(["start", "--head"], {"A": "b"})
        assert (done.returncode, done.stdout) == (0, "ray start --head with A=b")
        with pytest.raises(ClusterUnreachable, match="`ray hangs` did not finish within"):
            child.ray(["hangs"], {})
        with pytest.raises(ClusterUnreachable, match="the process that was to run `ray crash` has exited"):
            child.ray(["crash"], {})
    finally:
        child.end()


def test_a_command_of_ray_in_a_fork_gives_its_code_and_its_output() -> None:
    code = (
        "import json, sys; from tuner.hosts.on_ray.link import run_ray; "
        "print(json.dumps([run_ray(command.split(), {}) for command in sys.argv[1:]]))"
    )
    commands = ["--version", "start --nonsense"]
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    version, nonsense = json.loads(done.stdout)
    assert version["code"] == 0
    assert "ray, version" in version["output"]
    assert nonsense["code"] == 2
    assert "--nonsense" in nonsense["output"]


def test_a_service_from_before_an_update_still_starts_its_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LINK", "tuner.hosts.ray.link")  # the module's name until it moved
    child = children.Child(Settings(home=tmp_path), False, print)
    try:
        done = child.ray(["--version"], {})
    finally:
        child.end()
    assert "ray, version" in done.stdout


def test_a_given_cluster_is_waited_for_and_never_started(tmp_path: Path, heads: list[FakeHead]) -> None:
    with Supervisor(Settings(home=tmp_path, ray_address="nowhere")) as supervisor:
        until(lambda: supervisor.problem() == "Ray at nowhere could not be reached")
    assert heads == []


def test_a_cluster_that_stays_away_is_logged_once(
    tmp_path: Path, heads: list[FakeHead], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "AGAIN_S", 0.0)
    spawned: list[int] = []

    class Counted(children.Child):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            spawned.append(self.pid)

    monkeypatch.setattr(supervisor_module, "Child", Counted)
    with Supervisor(Settings(home=tmp_path, ray_address="nowhere")):
        until(lambda: len(spawned) > 3)
    assert [one.message for one in caplog.records].count("it could not be reached") == 1


def test_a_head_that_was_ended_on_purpose_is_not_started_again(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Supervisor(Settings(home=tmp_path)) as supervisor:
        until(lambda: supervisor.problem() is None)
        monkeypatch.setattr(supervisor_module, "was_stopped", lambda home: True)
        heads[0].gone = "gcs_server"
        until(lambda: "shut down by `tuner serve --stop`" in str(supervisor.problem()))
    assert len(heads) == 1


def test_a_head_that_was_ended_while_it_started_is_not_started_again(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[Path] = []

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        starts.append(home)
        raise HeadStopped("it was stopped")

    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    monkeypatch.setattr(supervisor_module, "was_stopped", lambda home: bool(starts))
    with Supervisor(Settings(home=tmp_path)) as supervisor:
        until(lambda: "shut down by `tuner serve --stop`" in str(supervisor.problem()))
    assert [record.getMessage() for record in caplog.records] == [supervisor.problem()]
    assert len(starts) == 1


@pytest.mark.parametrize("when", ["before the first attempt", "after an attempt that failed"])
def test_a_service_that_is_stopped_before_ray_was_ever_up_starts_none(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    starts: list[Path] = []

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        starts.append(home)
        if len(starts) == 1:
            stop_head(home)
        raise ClusterUnreachable("Ray cannot be started now")

    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    supervisor = Supervisor(Settings(home=tmp_path))
    if when == "before the first attempt":
        stop_head(tmp_path)
    with supervisor:
        until(lambda: "shut down by `tuner serve --stop`" in str(supervisor.problem()))
    assert len(starts) == (when != "before the first attempt")


def test_a_head_that_the_supervisor_itself_has_replaced_does_not_count_as_stopped(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No child reaches the first head, so it is ended. The first attempt to start another one fails."""
    stopped: list[Path] = []
    marked = True
    starts = 0

    def stop_head(home: Path, *, keep_logs: bool) -> bool:
        nonlocal marked
        marked = False
        stopped.append(home)
        return True

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        nonlocal marked, starts
        if stopped:
            starts += 1
            if starts == 1:
                raise ClusterUnreachable("Ray cannot be started now")
        marked = True
        head = FakeHead(0)
        head.address = "good" if stopped else "nowhere"
        return head

    monkeypatch.setattr(supervisor_module, "stop_head", stop_head)
    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    monkeypatch.setattr(supervisor_module, "was_stopped", lambda home: not marked)
    with Supervisor(Settings(home=tmp_path)) as supervisor:
        until(lambda: looks(supervisor, "a") == "a at good")
    assert stopped == [tmp_path]


def test_a_service_ends_at_once_while_ray_is_being_started(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        """Wait for the child process, which runs Ray's command."""
        child = supervisor._child
        begun.set()
        until(lambda: child is not None and child.dead() is not None)
        raise ClusterUnreachable("the process that was to run `ray start` has exited")

    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    with Supervisor(Settings(home=tmp_path)) as supervisor:
        assert begun.wait(30)
    assert not supervisor._thread.is_alive()


def test_a_head_that_another_service_uses_with_another_python_is_left_alone(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Path] = []

    def start_head(home: Path, run: Any, stops: str) -> FakeHead:
        starts.append(home)
        raise OtherRuntime("it has another Python")

    def stop_head(home: Path, *, keep_logs: bool) -> bool:
        raise AssertionError("the head is stopped")

    monkeypatch.setattr(supervisor_module, "start_head", start_head)
    monkeypatch.setattr(supervisor_module, "stop_head", stop_head)
    monkeypatch.setattr(supervisor_module, "OTHER_S", 0.001)
    supervisor, waits = Supervisor(Settings(home=tmp_path)), list[float]()
    wait = supervisor._ended.wait
    monkeypatch.setattr(supervisor._ended, "wait", lambda seconds: waits.append(seconds) or wait(seconds))
    with supervisor:
        until(lambda: len(starts) > supervisor_module.FUTILE + 2)
        assert supervisor.problem() == "it has another Python"
    assert waits.count(supervisor_module.OTHER_S) == len(starts), "each attempt costs a process"


def test_the_supervisor_waits_before_it_tries_again_to_start_a_process(
    tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def cannot(*_: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(supervisor_module, "Child", cannot)
    supervisor = Supervisor(Settings(home=tmp_path))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            supervisor._ended.set()

    monkeypatch.setattr(supervisor._ended, "wait", wait)
    supervisor._watch()
    assert waits == [supervisor_module.AGAIN_S] * 5
    assert supervisor.problem() == "the supervisor failed: no more processes"


def test_nothing_is_written_to_a_child_that_was_ended(tmp_path: Path, heads: list[FakeHead]) -> None:
    """The number of its closed pipe may already be that of another file."""
    child = children.Child(Settings(home=tmp_path), False, lambda said: None)
    child.end()
    child.poke()
    with pytest.raises(DriverSilent, match="being started again"):
        child.asked("look", "a").result(0)
    assert not child._writing.is_alive()
    assert child._process.stdin is not None
    assert child._process.stdin.closed


def test_a_child_that_hangs_is_noticed(tmp_path: Path, heads: list[FakeHead], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LOOK_S", -2.0)
    child = children.Child(Settings(home=tmp_path), False, lambda said: None)
    try:
        with monkeypatch.context() as silent:
            silent.setattr(children, "SILENT_S", -1.0)
            silent.setattr(child, "_send", lambda line: None)
            assert child.dead() is None, "it has nothing to say before it has an address"
            child.connect("here")
            assert "it has sent nothing for" in str(child.dead())
        child.connect("here")
        child._heard_at = float("-inf")
        until(lambda: child.dead() is None)  # it has said that the driver is up
        monkeypatch.setattr(child, "_send", lambda line: None)
        with pytest.raises(DriverSilent, match="does not answer"):
            child.ask("cluster")
        assert child._asked == {}, "the question is forgotten"
    finally:
        child.end()


@pytest.mark.parametrize("death", DEATHS, ids=["killed", "for memory"])
def test_by_tuner_run(death: Exception, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sqlite_store.experiments.create(a_spec())
    hosts: list[int] = []

    @contextmanager
    def borrow(*_: Any, **__: Any) -> Iterator[int]:
        hosts.append(len(hosts))
        yield hosts[-1]

    def wait(host: int, *_: Any) -> None:
        if host == 0:
            raise death

    said: list[str] = []
    monkeypatch.setattr(kept, "borrow", borrow)
    monkeypatch.setattr(driving, "_wait", wait)
    monkeypatch.setattr(Progress, "say", lambda self, text, *_: said.append(text))
    chosen = Choice(local=False, why="trials run on Ray")
    runner._drive(sqlite_store, Settings(home=tmp_path), made.public_id, chosen, None, 0, keep=False, callbacks=())
    assert hosts == [0, 1]
    assert "the driver was killed; a new one continues from the last commit" in said


def test_slow_modules_are_loaded_once_the_driver_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_load.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(serve, "SLOW_MODULES", ("slow_to_load",))
    troubles = iter(["the driver is starting", None])
    starting: Any = SimpleNamespace(problem=lambda: next(troubles))
    serve._load_ahead(starting)
    assert sys.modules.pop("slow_to_load") is not None
    assert next(troubles, "asked") == "asked", "it waited for the driver"
