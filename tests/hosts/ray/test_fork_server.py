"""Workers of Ray are forked by a server, or started as Ray does it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.services import until
from tuner.hosts.ray import fork_client, ray_start
from tuner.hosts.ray.fork_server import FORKS, USED, ForkServer, preload
from tuner.trials.messages import forks
from tuner.trials.messages.forks import PATH, ask_for_torch, receive, send
from tuner.trials.runtime.ray_rank import RayRank
from tuner.trials.runtime.worker import Rank
from tuner.usercode import import_check

pytestmark = pytest.mark.skipif(not FORKS, reason="this system has no pidfd")

ROOT = str(Path(fork_client.__file__).resolve().parents[3])
WORKER = """
import json, os, sys
facts = {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "argv": sys.argv,
         "ray": "ray" in sys.modules, "torch": "torch" in sys.modules, "dynamo": "torch._dynamo" in sys.modules,
         "wave": "wave" in sys.modules,
         "given": len(getattr(sys.modules.get("tuner.trials.runtime.function.modules"), "_given", ())),
         "environment": dict(os.environ), "directory": os.getcwd(), "nice": os.nice(0), "name": __name__, "path": sys.path}
print(json.dumps(facts))
"""
"""Takes the place of Ray's script for workers."""


@contextlib.contextmanager
def in_place_of_a_raylet() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of a raylet."""
    with in_place_of_a_raylet() as process:
        yield process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """Start a server that knows no raylet yet."""
    found = ForkServer(ignored=["CHANGES", "PYTEST_CURRENT_TEST"])
    found.listen(str(tmp_path / "forks"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def _serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForkServer, Path]]:
    path = tmp_path_factory.mktemp("serving") / "forks"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]  # the server of such a starter exited at once
    found = ForkServer(ignored=["CHANGES", "PYTEST_CURRENT_TEST"], used=["wave"])
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with in_place_of_a_raylet() as process:
        found.listen(str(path))
        found.attend(process.pid, {**os.environ, "CHANGES": "now"})
        yield found, path
        found.end()


@pytest.fixture
def serving(_serving: tuple[ForkServer, Path], tmp_path: Path) -> ForkServer:
    """Return a server that all tests of this module share, and that clients reach as they reach `server`."""
    found, path = _serving
    (tmp_path / "forks").symlink_to(path)
    return found


def ask(tmp_path: Path, *options: str, **variables: str) -> dict[str, Any]:
    """Run the client as a raylet does, and return what the worker says of itself."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    out = tmp_path / "out"
    with out.open("w") as file:
        command = [sys.executable, "-S", "-E", fork_client.__file__, str(tmp_path / "forks"), str(script), *options]
        client = subprocess.Popen(
            command, env={**os.environ, "RAY_JOB_ID": "01000000", **variables}, cwd=tmp_path, stdout=file
        )
        assert client.wait() == 0
    until("the worker's answer", lambda: out.read_text().endswith("\n"))
    found: dict[str, Any] = json.loads(out.read_text())
    return found | {"client": client.pid}


def test_a_worker_is_forked_with_the_libraries_of_the_server(serving: ForkServer, tmp_path: Path) -> None:
    found = ask(tmp_path, "--runtime-env-hash=0", "--worker-id=1", CHANGES="then")
    assert found["parent"] == serving.pid
    assert found["ray"]
    assert found["wave"], "the server was told to import it"
    assert found["given"] > 500, "a rank does not watch what the server has imported"
    assert found["group"] == found["pid"], "it can be killed together with the processes that it starts"
    assert found["name"] == "__main__"
    assert found["argv"] == [str(tmp_path / "worker.py"), "--runtime-env-hash=0", "--worker-id=1"]
    assert found["path"][0] == found["directory"] == str(tmp_path)
    assert found["environment"]["CHANGES"] == "then"
    assert found["environment"]["RAY_JOB_ID"] == "ffffffff", "Ray gives it a job with its first task"
    assert found["environment"].get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    until("the end of the worker, which leaves no zombie", lambda: not psutil.pid_exists(found["pid"]))


FIRST_TASK = """
import json, os, sys
from types import SimpleNamespace
from ray.util import serialization_addons
before = set(sys.modules)
register = lambda *given, **named: None
serialization_addons.apply(SimpleNamespace(_register_cloudpickle_serializer=register, _register_cloudpickle_reducer=register))
print(json.dumps({"parent": os.getppid(), "imported": sorted({name.partition(".")[0] for name in sys.modules.keys() - before})}))
"""
"""Does what Ray does in a worker before its first task."""


def test_a_worker_has_imported_what_ray_needs_for_its_first_task(
    serving: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself imports only two small modules of its own and pyarrow, which starts a thread.

    Each worker imported the rest by itself, which took half of its start.
    """
    monkeypatch.setattr(sys.modules[__name__], "WORKER", FIRST_TASK)
    found = ask(tmp_path, "--runtime-env-hash=0")
    assert found["parent"] == serving.pid
    assert found["imported"] == ["pyarrow", "ray"]
    assert len(psutil.Process(serving.pid).threads()) == 1


def test_a_worker_finds_the_packages_beside_an_installed_tuner(
    raylet: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the folder of the package in `sys.path` if Python has it there, as it has `site-packages`."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif {ROOT!r} not in sys.path:\n    sys.path.append({ROOT!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(ignored=["PYTEST_CURRENT_TEST"])
    try:
        server.listen(str(tmp_path / "forks"))
        server.attend(raylet.pid, os.environ)
        found = ask(tmp_path, "--runtime-env-hash=0")
        assert found["parent"] == server.pid
        plain = subprocess.check_output([sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"])
        assert ROOT in json.loads(plain)
        assert set(json.loads(plain)) <= set(found["path"])
    finally:
        server.end()


def test_a_worker_outlives_the_warning_that_ray_causes_if_warnings_are_errors(
    raylet: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray calls `uvloop.install`, which is deprecated with Python 3.12. Without a worker, `ray.init` waited forever."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    text = "uvloop.install() is deprecated in favor of uvloop.run() starting with Python 3.12."
    monkeypatch.setattr(
        sys.modules[__name__], "WORKER", f"import warnings\nwarnings.warn({text!r}, DeprecationWarning)\n{WORKER}"
    )
    server = ForkServer(ignored=["PYTEST_CURRENT_TEST"])
    try:
        server.listen(str(tmp_path / "forks"))
        server.attend(raylet.pid, os.environ)
        assert ask(tmp_path, "--runtime-env-hash=0")["parent"] == server.pid
    finally:
        server.end()


@pytest.mark.parametrize(("options", "variables"), [([], {"COLOUR": "red"}), (["--runtime-env-hash=7"], {})])
@pytest.mark.usefixtures("serving")
def test_a_worker_with_an_environment_of_its_own_is_started_as_ray_does_it(
    tmp_path: Path, options: list[str], variables: dict[str, str]
) -> None:
    found = ask(tmp_path, *(options or ["--runtime-env-hash=0"]), **variables)
    assert found["pid"] == found["client"]
    assert not found["ray"]
    assert found["environment"]["RAY_JOB_ID"] == "01000000"
    assert found["argv"][0] == str(tmp_path / "worker.py")


def test_without_a_server_workers_are_started_as_ray_does_it(tmp_path: Path) -> None:
    found = ask(tmp_path, "--runtime-env-hash=0")
    assert found["pid"] == found["client"]


def test_a_server_that_has_imported_with_another_environment_serves_nobody(
    server: ForkServer, raylet: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    server.attend(raylet.pid, {**os.environ, "OMP_PROC_BIND": "true"})
    found = ask(tmp_path, "--runtime-env-hash=0", OMP_PROC_BIND="true")
    assert found["pid"] == found["client"]


def test_the_server_ends_with_the_raylet(server: ForkServer, raylet: subprocess.Popen[bytes], tmp_path: Path) -> None:
    server.attend(raylet.pid, os.environ)
    process = psutil.Process(server.pid)
    ask(tmp_path, "--runtime-env-hash=0")
    assert process.is_running()
    raylet.kill()
    until("the end", lambda: process.status() == psutil.STATUS_ZOMBIE)


def test_the_server_ends_with_a_starter_that_has_started_no_raylet() -> None:
    script = "from tuner.hosts.ray.fork_server import ForkServer; print(ForkServer().pid, flush=True)"
    started = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    until("the end", lambda: not psutil.pid_exists(int(started.stdout)))


def test_a_starter_may_end_while_the_server_still_imports(raylet: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """`ray start` ends soon after it has started the raylet."""
    script = f"""
import os
from tuner.hosts.ray.fork_server import ForkServer
server = ForkServer(ignored=["PYTEST_CURRENT_TEST", "LC_CTYPE"])
server.listen({str(tmp_path / "forks")!r})
server.attend({raylet.pid}, os.environ)
print(server.pid, flush=True)
"""
    started = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert ask(tmp_path, "--runtime-env-hash=0")["parent"] == int(started.stdout)


def test_a_child_that_cannot_become_the_worker_ends(serving: ForkServer, tmp_path: Path) -> None:
    """Otherwise it would be a second server."""
    wanted = {
        "command": ["worker.py", "--runtime-env-hash=0"],
        "environment": dict(os.environ),
        "directory": str(tmp_path / "gone"),
        "niceness": os.nice(0),
        "files": [1024, 1024],
    }
    with socket.socket(socket.AF_UNIX) as client, open(os.devnull) as file:
        client.connect(str(tmp_path / "forks"))
        send(client, wanted, [file.fileno()] * 3)
        assert client.recv(1) == b"y"
    until("the end of the child", lambda: not psutil.Process(serving.pid).children())


@pytest.mark.usefixtures("serving")
def test_in_a_deleted_directory_workers_are_started_as_ray_does_it(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("print('started')")
    (tmp_path / "gone").mkdir()
    folder = shlex.quote(str(tmp_path))
    script = f"cd {folder}/gone && rmdir ../gone && exec {sys.executable} -S -E {fork_client.__file__} ../forks "
    script = script.replace("../forks", f"{folder}/forks")
    command = ["sh", "-c", f"{script} {folder}/worker.py --runtime-env-hash=0"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "started\n"


def test_after_the_loss_of_a_head_the_next_server_has_what_the_ranks_used(
    raylet: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank needs PyTorch, and its raylet dies. The server of the next raylet has imported it before a rank asks."""
    monkeypatch.setenv(USED, str(tmp_path / "torch_is_used"))
    started: list[bool] = []
    monkeypatch.setattr(ray_start, "ForkServer", lambda later: started.append(later))
    monkeypatch.setattr(ray_start, "without_helpers", contextlib.nullcontext)
    monkeypatch.setattr("ray.scripts.scripts.main", lambda: None)
    monkeypatch.setattr(sys, "argv", ["ray", "start", "--head"])
    ray_start.main()
    server = ForkServer(ignored=["PYTEST_CURRENT_TEST"])
    server.listen(str(tmp_path / "forks"))
    server.attend(raylet.pid, os.environ)
    monkeypatch.setenv(PATH, str(tmp_path / "forks"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        ask_for_torch()
        until("the mark", (tmp_path / "torch_is_used").exists)
    finally:
        server.end()
    ray_start.main()
    assert started == [False, True]


def test_a_server_imports_after_the_first_worker_what_ranks_will_use(
    raylet: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver host, which needs no PyTorch, does not wait for it; the ranks find it imported.

    Once a rank has used an optimizer, later ones find what PyTorch imports for it, too.
    """
    server = ForkServer(ignored=["PYTEST_CURRENT_TEST"], later=True)
    try:
        server.listen(str(tmp_path / "forks"))
        server.attend(raylet.pid, os.environ)
        first = ask(tmp_path, "--runtime-env-hash=0")
        assert (first["parent"], first["torch"]) == (server.pid, False)
        until("the import", lambda: ask(tmp_path, "--runtime-env-hash=0")["torch"])
        assert not ask(tmp_path, "--runtime-env-hash=0")["dynamo"]
        monkeypatch.setenv(PATH, str(tmp_path / "forks"))
        monkeypatch.setattr(Rank, "reset", lambda rank: None)
        monkeypatch.setattr(forks, "_told", set())
        monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
        RayRank.reset(object.__new__(RayRank))
        monkeypatch.delenv(PATH)
        until("the second import", lambda: ask(tmp_path, "--runtime-env-hash=0")["dynamo"])
    finally:
        server.end()


def test_no_garbage_is_collected_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    collecting: list[bool] = []

    def importing(name: str) -> None:
        collecting.append(gc.isenabled())
        raise ImportError(f"{name} is broken")

    monkeypatch.setattr("importlib.import_module", importing)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # otherwise no cycle of the tests so far would ever be freed
    preload(["a_library"])
    import_check.load(["a_library"], [])
    assert collecting == [False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        preload(["a_library"])
        import_check.load(["a_library"], [])
        assert not gc.isenabled(), "the environment's own code has turned it off"
    finally:
        gc.enable()


def test_a_message_arrives_with_its_files_and_half_a_message_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        send(ours, {"name": "x" * 100_000}, [file.fileno()])
        message, files = receive(theirs)
        assert message == {"name": "x" * 100_000}
        assert len(files) == 1
        os.close(files[0])
        ours.sendall((100).to_bytes(4, "big") + b"{")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            receive(theirs)


THREADS = """
import json, os
import tuner

def train(config):
    import torch
    from threadpoolctl import threadpool_info

    blas = max(found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas")
    forked = "_TUNER_FORK_SERVER" in os.environ
    tuner.report({"loss": 1.0, "torch": torch.get_num_threads(), "blas": blas, "forked": forked})

result = tuner.run(
    train, metric="loss", mode="min", num_samples=1, resources_per_worker={"CPU": 2}, executor="ray",
    scheduler="fifo", search_alg="random", verbose=0,
)
print(json.dumps([result.trials[0].metrics[name] for name in ("torch", "blas", "forked")]))
"""


@pytest.mark.ray
def test_a_forked_rank_has_the_threads_of_its_cpus(tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}', "TUNER_HOME": str(tmp_path)}
    # Benchmarks set these variables when they are imported.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [2, 2, 1]
