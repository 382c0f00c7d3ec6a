"""Start a Ray head node for the service (`ray start --head`), find it again, watch its processes, and stop all of them.

This module does not import Ray. The service must not connect to the head that it watches, because Ray may terminate processes
that are connected to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from packaging.version import Version

from tuner import __version__
from tuner.domain.keys import keyed_seed
from tuner.errors import ClusterUnreachable
from tuner.hosts.ray import tokens
from tuner.hosts.ray.fork_server import USED
from tuner.hosts.ray.ray_start import temporary
from tuner.usercode.folder import python_without_folder

log = logging.getLogger(__name__)

MARK = "_TUNER_RAY_HEAD"
"""The environment variable by which every process of a head is recognized. Ray's workers change their process names."""

VERSION = "_TUNER_RAY_VERSION"
"""The environment variable with the version of tuner that started a head. Earlier versions do not set it."""

SOURCES = "_TUNER_RAY_SOURCES"
"""The environment variable with the fingerprint of the code of tuner that started a head. Earlier versions do not set it."""

RUNTIME = "_TUNER_RAY_RUNTIME"
"""The environment variable with the versions of Python and Ray of a head; see `_runtime`. Earlier versions do not set it."""

COMMAND_S = 120.0
"""Timeout in seconds of a `ray` command. `ray start` takes a few seconds, and longer on a busy machine."""

PROC = Path("/proc")

KILLED_S = 5.0
"""Seconds to wait, after killing the remaining processes of a dead head, until they have exited."""

_OF_RAY = re.compile(r"/ray/(_private|autoscaler|core|dashboard)/")
"""Matches the paths of Ray's own programs."""

_PARTS = ("gcs_server", "raylet")
"""The names of the processes without which a head counts as dead."""

RunRay = Callable[[Sequence[str], Mapping[str, str]], subprocess.CompletedProcess[str]]
"""Runs a `ray` command with these arguments and these additional environment variables; see `run_ray`."""


class HeadStopped(ClusterUnreachable):
    """`stop_head` was called while the head was being started."""


class OtherRuntime(ClusterUnreachable):
    """Another service runs the head of this home, with a version of Python or Ray that this process cannot connect to."""


@dataclass(frozen=True, slots=True)
class Head:
    """A Ray head on this machine. It was alive when this object was made, but may have died since."""

    address: str
    parts: tuple[psutil.Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of the head's main processes, those named in `_PARTS`."""
        return tuple(process.pid for process in self.parts)

    def dead(self) -> str | None:
        """Return the name of a main process that has exited, which means that the head is dead; None if the head is alive."""
        for name, process in zip(_PARTS, self.parts, strict=True):
            if not _runs(process):
                return name
        return None


def find_head(home: Path) -> Head | None:
    """Return the head that was started for this home; None if there is none, or if one of its main processes has exited."""
    try:
        address = _marker(home).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if not address:  # `ray start` is running, or has failed
        return None
    scratch, found = str(_scratch(home)), {}
    for process in _that_name(scratch):
        with contextlib.suppress(psutil.Error):
            name = process.name()
            if name in _PARTS and scratch in " ".join(process.cmdline()) and _runs(process):
                found[name] = process
    if len(found) < len(_PARTS) or not _listens(found["gcs_server"], address):
        return None
    return Head(address, tuple(found[name] for name in _PARTS))


def start_head(home: Path, run: RunRay | None = None, stops: str | None = None) -> Head:
    """Return the head of this home. If none is alive, kill what remains of a dead head, and start a new head.

    A head that an earlier version of tuner has started is replaced, too, because its workers run the code of that version. So is
    one of this version that was started before this process, if the code, Python or Ray has changed since.

    run: the function that runs `ray` commands; by default `run_ray`.
    stops: what `stops_of` has returned when the service began; None to start a head whether or not it was stopped since.

    Raises:
        HeadStopped: `stop_head` was called while Ray was starting, or since the service began. It also ends what has been
            started of Ray.
        OtherRuntime: another service, which began later, runs the head with another version of Python or Ray.
        ClusterUnreachable: Ray cannot be started.
    """
    run = run or run_ray
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        if (head := find_head(home)) is not None:
            if (why := _outdated(head)) is None:
                return head
            log.warning("%s, and its experiments continue from their checkpoints", why)
        left = _kill(home)
        _place(home).write_text(temporary(_scratch_name(home)), encoding="utf-8")
        # `stop_head` deletes this file, after it has changed what `stops_of` returns.
        _marker(home).write_text("", encoding="utf-8")
        if stops is not None and stops_of(home) != stops:
            _marker(home).unlink(missing_ok=True)
            raise HeadStopped("Ray was shut down by `tuner serve --stop` before it was started")
        try:
            head = _start(home, run)
        except (ClusterUnreachable, FileNotFoundError):
            if was_stopped(home):
                raise HeadStopped("Ray was shut down by `tuner serve --stop` while it was starting") from None
            raise
        log.debug("Ray's head is up at %s", head.address)
        if left and not psutil.wait_procs(left, timeout=KILLED_S)[1]:
            log.debug("the previous Ray head had died; the remaining Ray processes have been stopped")
        return head


def _outdated(head: Head) -> str | None:
    """Return why the workers of a head would run earlier code than this process does, or None if they would not.

    Raise OtherRuntime if this process cannot use a head that was started after it.
    """
    raylet = head.parts[-1]
    try:
        environment, began = raylet.environ(), raylet.create_time()
    except psutil.Error:  # it has just exited, and the caller will notice
        return None
    version = environment.get(VERSION)
    if version is None or Version(version) < Version(__version__):
        earlier = version or "an earlier version"
        return (
            f"Ray runs the code of {earlier}, because that version has started it; it is started again by this version, "
            f"{__version__}"
        )
    # Otherwise two services of one home, with different code or Pythons, would replace each other's head forever.
    is_earlier = began < psutil.Process().create_time()
    ours, theirs = _runtime(), environment.get(RUNTIME)
    if theirs not in (None, ours):
        if is_earlier:
            return f"Ray was started with {theirs}, and this service has {ours}: Ray is started again"
        raise OtherRuntime(
            f"another service has started the Ray of this home again, with {theirs}, and this service has {ours}: give each "
            "service a home of its own (TUNER_HOME), or stop one of them"
        )
    if version == __version__ and environment.get(SOURCES, sources()) != sources() and is_earlier:
        return f"Ray runs other code of version {version}, because tuner has changed since Ray was started; it is started again"
    return None


def _runtime() -> str:
    """Return the versions of Python and Ray of this environment, which Ray compares when a process connects to it."""
    digits = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    return f"Python {'.'.join(map(str, sys.version_info[:digits]))} and Ray {metadata.version('ray')}"


@functools.cache
def sources() -> str:
    """Return a fingerprint of the code of tuner, as it is when this is first called. It is the same on every machine."""
    root = Path(__file__).parents[2]
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(root.rglob("*.py")):
        try:
            content = file.read_bytes()
        except OSError:
            continue  # it has just been deleted, or is an editor's lock: Emacs makes a link `.#host.py` that leads nowhere
        found.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _start(home: Path, run: RunRay) -> Head:
    """Start a head. Raise FileNotFoundError if `stop_head` has deleted the file for its address."""
    done = _ray_command(
        home,
        run,
        "start",
        "--head",
        "--port=0",
        "--disable-usage-stats",
        "--include-dashboard=false",
        f"--temp-dir={_scratch(home)}",
    )
    found = re.search(r"--address='?([\w.:-]+:\d+)", done.stdout)
    if done.returncode or not found:
        raise ClusterUnreachable(f"`ray start --head` failed: {(done.stdout + done.stderr).strip()[-1000:]}")
    with open(_marker(home), "r+", encoding="utf-8") as marker:  # does not create the file
        marker.write(found[1])
    if (head := find_head(home)) is None:
        raise ClusterUnreachable(f"Ray exited right after it had started; Ray's logs are in {_scratch(home)}")
    return head


def stop_head(home: Path, *, keep_logs: bool = False) -> bool:
    """Stop the head that `start_head` started for this home, and everything that runs on it. Return whether a head was running.

    A head that is being started is stopped, too.

    keep_logs: False to delete the head's files, which are sockets and Ray's own logs; the logs of trials are not among them. A
        service that runs then starts no head again. True if the service itself replaces the head.
    """
    if not keep_logs and home.is_dir():
        _stops(home).write_text(uuid.uuid4().hex, encoding="utf-8")
    if keep_logs and home.is_dir():
        _marker(home).write_text("", encoding="utf-8")  # to other services of this home, it does not look stopped
    else:
        _marker(home).unlink(missing_ok=True)
    _used_torch(home).unlink(missing_ok=True)
    running = _end(home, patience_s=10.0)
    if not keep_logs and home.is_dir():
        with _locked(home):  # wait for a `ray start` that is running
            if was_stopped(home):  # otherwise a service has just started a new head
                running = _end(home, patience_s=10.0) or running
                shutil.rmtree(_scratch(home), ignore_errors=True)
    return running


def stops_of(home: Path) -> str:
    """Return a text that changes whenever a user stops the head of this home, even if there is no head."""
    try:
        return _stops(home).read_text(encoding="utf-8")
    except OSError:
        return ""


def was_stopped(home: Path) -> bool:
    """Return whether `stop_head` stopped the head of this home, so that the head must not be started again."""
    return not _marker(home).exists()


def _kill(home: Path) -> list[psutil.Process]:
    """Kill all processes of this home's head and return them. A new head can start without waiting until they have exited."""
    killed: list[psutil.Process] = []
    for _ in range(2):  # the second round kills processes that were started during the first round
        for process in _processes(home):
            if process not in killed:
                with contextlib.suppress(psutil.Error):
                    process.kill()
                killed.append(process)
    return killed


def _end(home: Path, patience_s: float) -> bool:
    """Stop all processes of this home's head, and kill those that outlive `patience_s`. Return whether there were any."""
    processes = _processes(home)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=patience_s)
    for _ in range(5):
        if not stubborn:
            break
        for process in stubborn:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(stubborn, timeout=5)
        # This list may include processes that were started in the meantime.
        stubborn = [process for process in _processes(home) if _runs(process)]
    return bool(processes)


def _processes(home: Path) -> list[psutil.Process]:
    """Return the processes that belong to the head of this home.

    A process belongs to the head if it has the mark in its environment, or if it is one of Ray's own programs and has the
    head's folder in its arguments. Other processes that name the folder, such as a `tail -f` of Ray's logs, do not belong to
    the head.
    """
    scratch = str(_scratch(home))
    found = []
    for process in _that_name(scratch):
        with contextlib.suppress(psutil.Error):
            ours = _is_program_of(process.cmdline(), scratch) or process.environ().get(MARK) == scratch
            if ours and process.pid != os.getpid() and _runs(process):
                found.append(process)
    return found


def _that_name(text: str) -> Iterator[psutil.Process]:
    """Yield the processes that have `text` in their command line or environment. Without /proc, yield all processes.

    Reading /proc first saves time, because psutil takes a fifth of a millisecond for each process of the machine.
    """
    wanted = text.encode()
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if not PROC.is_dir() or any(
                wanted in (PROC / str(pid) / file).read_bytes() for file in ("cmdline", "environ")
            ):
                yield psutil.Process(pid)


def _is_program_of(command: Sequence[str], scratch: str) -> bool:
    """Return whether this command line is that of one of Ray's own programs, and belongs to the head with folder `scratch`."""
    program, *arguments = command or ("",)
    if os.path.basename(program).startswith("python"):
        program = next((argument for argument in arguments if not argument.startswith("-")), "")
    return _OF_RAY.search(program) is not None and scratch in " ".join(command)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _listens(gcs: psutil.Process, address: str) -> bool:
    """Return whether this GCS process listens at the port of `address`. If not, the address file is from an earlier head."""
    port = int(address.rpartition(":")[2])
    try:
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in gcs.net_connections("tcp"))
    except psutil.Error:
        return False


def _marker(home: Path) -> Path:
    return home / "ray_address"


def _stops(home: Path) -> Path:
    return home / "ray_stops"


def _scratch(home: Path) -> Path:
    """Return the folder in which the Ray head of this home keeps its files.

    It is not inside the home, because paths of Unix sockets must be short. It is in the temporary directory of the process
    that has started the head; the processes that look for the head may have another one.
    """
    try:
        place = _place(home).read_text(encoding="utf-8")
    except OSError:  # if there is a head, an earlier version has started it
        place = tempfile.gettempdir()
    return Path(place) / _scratch_name(home)


def _scratch_name(home: Path) -> str:
    return f"tuner-ray-{os.getuid()}-{keyed_seed(0, str(home)):016x}"


def _place(home: Path) -> Path:
    """Return the file with the directory in which the newest head has its folder."""
    return home / "ray_place"


def _used_torch(home: Path) -> Path:
    """Return the path of the file that exists while ranks of this home's head use PyTorch. It stays if the head is lost."""
    return _scratch(home) / "torch_is_used"


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock the home for a `with` block, so that only one process at a time finds or starts a head."""
    with open(home / "ray_lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ray_command(home: Path, run: RunRay, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `ray` command, and mark the processes that it starts, so that `_processes` finds them even if it fails."""
    return run(
        arguments,
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            MARK: str(_scratch(home)),
            VERSION: __version__,
            RUNTIME: _runtime(),
            SOURCES: sources.__wrapped__(),  # the code may have changed since this process began
            USED: str(_used_torch(home)),
            **tokens.of_home(home),
        },
    )


def run_ray(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a `ray` command in a new session, so that Ctrl-C does not reach the processes that the command starts.

    Raise ClusterUnreachable if the command takes longer than `COMMAND_S`.
    """
    try:
        return subprocess.run(
            [*python_without_folder("tuner.hosts.ray.ray_start"), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        raise too_slow(arguments) from None


def too_slow(arguments: Sequence[str]) -> ClusterUnreachable:
    """Return the error for a `ray` command that took longer than `COMMAND_S`."""
    return ClusterUnreachable(f"`ray {arguments[0]}` did not finish within {COMMAND_S:g} s and was killed")


@contextlib.contextmanager
def exits(pids: Iterable[int]) -> Iterator[Callable[[float], object]]:
    """Yield a function that waits until one of these processes exits, but at most for the given number of seconds.

    On systems without pidfd, the function always waits for the full time.
    """
    poll = select.poll()  # `select.select` takes no file descriptor above 1,023
    with contextlib.ExitStack() as stack:
        for pid in pids:
            with contextlib.suppress(AttributeError, OSError):  # this is not Linux, or the process has just exited
                file = os.pidfd_open(pid)
                stack.callback(os.close, file)
                poll.register(file, select.POLLIN)
        yield lambda seconds: poll.poll(seconds * 1000)
