"""Ray's authentication tokens, with and without a real Ray."""

from __future__ import annotations

import importlib
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tuner.errors import ClusterUnreachable
from tuner.hosts.ray import cluster, head, tokens

VARIABLES = (tokens.MODE, tokens.TOKEN, tokens.TOKEN_PATH)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home directory of a user without a token."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tokens, "_read_again", lambda: None)  # a Ray of this process goes on with its token
    monkeypatch.setattr(tokens, "_is_open", lambda address: False)  # nothing listens at the addresses
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def variables() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def users(home: Path) -> Path:
    """Write a token of the user."""
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("t" * 32)
    return path


def test_the_installed_ray_has_the_names_that_are_used() -> None:
    """Without them, a process that has ended its own Ray cannot connect to a cluster with a token."""
    assert [name for name in tokens.NAMES if not hasattr(importlib.import_module(tokens.RAYLET), name)] == []


def test_a_private_ray_has_a_token_of_its_own_only_if_the_user_has_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.begin_private()
    first = variables()
    assert (first[tokens.MODE], len(first[tokens.TOKEN])) == ("token", 64)
    tokens.begin_private()
    assert variables()[tokens.TOKEN] != first[tokens.TOKEN]
    tokens.end_private()
    assert variables() == {}
    users(home)
    tokens.begin_private()
    assert variables() == {tokens.MODE: "token"}
    tokens.end_private()
    monkeypatch.setenv(tokens.MODE, "disabled")
    tokens.begin_private()
    tokens.end_private()
    assert variables() == {tokens.MODE: "disabled"}


@pytest.mark.parametrize("trouble", ["no home", "the home of somebody else"])
def test_a_user_whose_home_cannot_be_searched_has_no_token(
    home: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A user of a container often has no entry in /etc/passwd, and HOME is unset or /root."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    def refused(path: object, **options: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        if trouble == "no home":
            patched.delenv("HOME")
            patched.setattr(pwd, "getpwuid", unknown)
        else:
            patched.setattr(os, "stat", refused)
        assert tokens.users_token() is None
        tokens.begin_private()
        assert set(variables()) == {tokens.MODE, tokens.TOKEN}
        tokens.end_private()
    assert variables() == {}


def test_the_head_of_a_service_has_a_token_that_only_its_user_can_read(home: Path) -> None:
    service = home / "service"
    found = tokens.of_home(service)
    own = tokens.token_file(service)
    assert found == {tokens.MODE: "token", tokens.TOKEN_PATH: str(own)}
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    token = own.read_text()
    assert len(token) == 64
    users(home)
    assert tokens.of_home(service) == found, "that of the head that may run already"
    assert own.read_text() == token
    assert os.listdir(service) == ["ray_token"]
    another = tokens.token_file(home / "another")
    assert tokens.of_home(home / "another") == {tokens.MODE: "token", tokens.TOKEN_PATH: str(another)}
    assert another.read_text() == "t" * 32, "the user's own, which the user may change while the head runs"


def test_the_token_of_the_head_comes_before_one_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_AUTH_TOKEN may be that of another cluster. Ray prefers it to a file."""
    own = tokens.token_file(home)
    own.write_text("s" * 32)
    (home / "ray_address").write_text("10.0.0.1:6379")
    monkeypatch.setenv(tokens.TOKEN, "t" * 32)
    expected = {tokens.MODE: "token", tokens.TOKEN_PATH: str(own), tokens.TOKEN: "s" * 32}
    assert tokens.of_home(home) == expected
    with tokens.of_cluster("10.0.0.1:6379", home) as where:
        assert (where, variables()) == (str(own), expected)
    assert variables() == {tokens.TOKEN: "t" * 32}


def test_a_token_that_cannot_be_written_or_read_is_an_error_that_names_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "service").write_text("not a directory")
    with pytest.raises(ClusterUnreachable, match=r"token of Ray cannot be written to .*service/ray_token: "):
        tokens.of_home(home / "service")

    def refused(path: Path, **options: object) -> str:  # as if root had started the service
        raise PermissionError(13, "Permission denied", str(path))

    (home / "ray_token").write_text("of root")
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(ClusterUnreachable, match="token of Ray cannot be read from .*ray_token: Permission denied; "):
        tokens.of_home(home)


def test_a_token_is_used_for_a_cluster_and_the_environment_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tokens.of_cluster("10.0.0.1:6379", home) as where:
        assert (where, variables()) == (None, {})
    own = users(home)
    with tokens.of_cluster("10.0.0.1:6379", home) as where:
        assert (where, variables()) == (str(own), {tokens.MODE: "token"})
    tokens.token_file(home).write_text("s" * 32)
    (home / "ray_address").write_text("10.0.0.1:6379")
    with tokens.of_cluster("10.0.0.1:6379", home) as where:
        assert variables() == {tokens.MODE: "token", tokens.TOKEN_PATH: str(home / "ray_token")}
    with tokens.of_cluster("10.0.0.2:6379", home) as where:
        assert where == str(own), "another cluster than that of the service"
    assert variables() == {}
    monkeypatch.setenv(tokens.MODE, "disabled")
    with tokens.of_cluster("10.0.0.1:6379", home) as where:
        assert where is None


OPEN = """
import ray
from tuner.hosts.ray.ray_start import without_helpers
with without_helpers():
    context = ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
address = context.address_info["gcs_address"]

import os, subprocess, sys
done = subprocess.run([sys.executable, "-c", sys.argv[1].replace("ADDRESS", repr(address))], env={
    name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"
})
sys.exit(done.returncode)
"""
CALLS = """
from tuner.hosts.ray.cluster import connect, disconnect
connect(ADDRESS)
import ray

class Host:
    def start(self):
        return "started"

print(ray.get(ray.remote(num_cpus=0)(Host).remote().start.remote()))
disconnect()
"""


@pytest.mark.ray
def test_the_token_of_the_user_does_not_stand_in_the_way_of_a_cluster_without_authentication(tmp_path: Path) -> None:
    """No driver could be started there: "all references to the actor were removed"."""
    users(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    mine = {"HOME": str(tmp_path), "TUNER_HOME": str(tmp_path / "tuner"), tokens.MODE: "disabled"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN, CALLS], env=environment | mine, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["started"], done.stderr


def test_a_silent_cluster_is_asked_for_a_few_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for 40 s, in which no thread could write to the standard error."""
    read: list[dict[str, str]] = []
    told = ("RAY_py_gcs_connect_timeout_s", "RAY_gcs_rpc_server_connect_timeout_s")
    monkeypatch.setenv(told[0], "77")
    monkeypatch.delenv(told[1], raising=False)

    def note(config: str) -> None:
        read.append({name: os.environ[name] for name in told if name in os.environ})

    def client(address: str) -> None:
        assert sum(map(float, read[-1].values())) < 10
        assert len(read[-1]) == 2
        raise RuntimeError("Timed out while waiting for GCS to become available.")

    loader = SimpleNamespace(instance=lambda: SimpleNamespace(reset_cache=lambda: None))
    fake = SimpleNamespace(AuthenticationTokenLoader=loader, Config=SimpleNamespace(initialize=note), GcsClient=client)
    monkeypatch.setitem(sys.modules, tokens.RAYLET, fake)
    assert not tokens._is_open("127.0.0.1:1")
    assert len(read) == 2
    assert read[-1] == {told[0]: "77"}


def test_the_standard_error_is_put_back_if_two_threads_drop_it_at_once() -> None:
    """The second thread put back the /dev/null of the first one, and the process never wrote an error again."""
    before = os.fstat(2)
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with tokens._silent():
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=other)
    with tokens._silent():
        thread.start()
        entered.wait(0.2)  # it has to wait
    left.set()
    thread.join()
    after = os.fstat(2)
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)


def test_nothing_at_an_address_is_noticed_at_once() -> None:
    with pytest.raises(ClusterUnreachable, match=r"Ray at 127.0.0.1:1 could not be reached: Connection refused"):
        cluster._check_listens("127.0.0.1:1")
    cluster._check_listens("auto")


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a head with token authentication, whose token is tttt..., and yield its address."""
    folder = Path(tempfile.mkdtemp(prefix="tt"))
    environment = {tokens.MODE: "token", tokens.TOKEN: "t" * 32, "HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head, "_scratch", lambda home: folder)
            done = head.run_ray(
                ["start", "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false", f"--temp-dir={folder}"],
                environment,
            )
            assert done.returncode == 0, done.stdout
            yield done.stdout.partition("--address='")[2].partition("'")[0]
    finally:
        for process in psutil.process_iter():
            try:
                if str(folder) in " ".join(process.cmdline()):
                    process.kill()
            except psutil.Error:
                pass


def script(code: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    mine = {"HOME": str(home), "TUNER_HOME": str(home / "tuner"), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env={**kept, **mine}, capture_output=True, text=True, timeout=120
    )


CONNECT = """
import sys
from tuner.hosts.ray.cluster import connect, disconnect
connect({address!r})
import ray
print(len(ray.nodes()), "node")
disconnect()
"""


@pytest.mark.ray
@pytest.mark.long  # the tests above have the tokens that Ray gets
@pytest.mark.parametrize("where", ["file", "variable", "nowhere", "wrong"])
def test_a_cluster_with_token_authentication(with_token: str, tmp_path: Path, where: str) -> None:
    environment = {"variable": {tokens.TOKEN: "t" * 32}, "wrong": {tokens.TOKEN: "w" * 32}}.get(where, {})
    if where == "file":
        users(tmp_path)
    done = script(CONNECT.format(address=with_token), tmp_path, **environment)
    if where in ("file", "variable"):
        assert done.stdout.strip().endswith("1 node"), done.stderr
        assert "Unauthenticated" not in done.stderr
    elif where == "nowhere":
        assert "set RAY_AUTH_TOKEN to its token, or RAY_AUTH_TOKEN_PATH" in done.stderr
        assert not (tmp_path / ".ray").exists()
    else:
        assert "the token in RAY_AUTH_TOKEN may be that of another cluster" in done.stderr


PRIVATE = """
from tuner.hosts.ray.cluster import connect, disconnect
import os, ray
connect(cpus=1)
assert ray.get(ray.remote(lambda: 1).remote()) == 1
disconnect()
assert not [name for name in os.environ if name.startswith("RAY_AUTH")]
connect({address!r})
print(len(ray.nodes()), "node")
disconnect()
connect(cpus=1)
assert ray.get(ray.remote(lambda: 2).remote()) == 2
"""


@pytest.mark.ray
@pytest.mark.long  # the tests above have the variables that are set and removed
def test_private_instances_leave_nothing_and_do_not_stand_in_the_way_of_a_cluster(
    with_token: str, tmp_path: Path
) -> None:
    done = script(PRIVATE.format(address=with_token), tmp_path)
    assert "set RAY_AUTH_TOKEN" in done.stderr, "no token of the private instance is used for the cluster"
    assert not (tmp_path / ".ray").exists(), "the user's own `ray start --head` starts as before"
    users(tmp_path)
    done = script(PRIVATE.format(address=with_token), tmp_path)
    assert done.stdout.strip().endswith("1 node"), done.stderr
