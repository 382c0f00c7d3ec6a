"""Start a Ray head for the service (`ray start --head`), find it again, watch its processes, and end all of them.

This module does not import Ray, because Ray may end connected processes and the service must not connect to the head that it
watches.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.domain.keys import keyed_seed
from tuner.errors import ClusterUnreachable

log = logging.getLogger(__name__)

MARK = "_TUNER_RAY_HEAD"
"""An environment variable that marks every process of a head. Names do not identify them, because Ray's workers change theirs."""

COMMAND_S = 120.0
"""Timeout in seconds of a `ray` command. `ray start` takes a few seconds, and longer on a busy machine."""

PROC = Path("/proc")

KILLED_S = 5.0
"""Timeout in seconds for the end of a dead head's processes after they have been killed."""

_OF_RAY = re.compile(r"/ray/(_private|autoscaler|core|dashboard)/")
"""Matches the paths of Ray's own programs."""

_PARTS = ("gcs_server", "raylet")
"""A head counts as dead if one of these processes is gone."""

RunRay = Callable[[Sequence[str], Mapping[str, str]], subprocess.CompletedProcess[str]]
"""Runs a `ray` command with these arguments and these additional environment variables; see `run_ray`."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head that was alive when it was found or started."""

    address: str
    parts: tuple[psutil.Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of its processes."""
        return tuple(process.pid for process in self.parts)

    def dead(self) -> str | None:
        """Return the name of a process that has ended; None if the head is alive."""
        for name, process in zip(_PARTS, self.parts, strict=True):
            if not _runs(process):
                return name
        return None


def find_head(home: Path) -> Head | None:
    """Return the head that was started for this home, if both of its processes are alive."""
    try:
        address = _marker(home).read_text().strip()
    except OSError:
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


def start_head(home: Path, run: RunRay | None = None) -> Head:
    """Return the head of this home. If no head is alive, end the remaining processes of a dead head, and start a new head.

    run: runs `ray` commands; by default `run_ray`.

    Raises:
        ClusterUnreachable: Ray cannot be started.
    """
    run = run or run_ray
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        if (head := find_head(home)) is not None:
            return head
        left = _kill(home)
        if not _has_token():
            _generate_token(home, run)
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
        _marker(home).write_text(found[1])
        if (head := find_head(home)) is None:
            raise ClusterUnreachable(f"Ray has started and ended at once; its logs are in {_scratch(home)}")
        log.debug("Ray's head is up at %s", head.address)
        if left and not psutil.wait_procs(left, timeout=KILLED_S)[1]:
            log.debug("Ray's head was dead, and its remaining processes have ended")
        return head


def stop_head(home: Path) -> bool:
    """End the head that `start_head` started for this home, and everything that runs on it. Return whether one was running."""
    _marker(home).unlink(missing_ok=True)
    return _end(home, patience_s=10.0)


def was_stopped(home: Path) -> bool:
    """Return whether `stop_head` ended the head, so that it must not be started again."""
    return not _marker(home).exists()


def _kill(home: Path) -> list[psutil.Process]:
    """Kill all processes of a head and return them, without waiting until they have ended. A new head can start meanwhile."""
    killed: list[psutil.Process] = []
    for _ in range(2):  # the second round kills processes that were started during the first round
        for process in _processes(home):
            if process not in killed:
                with contextlib.suppress(psutil.Error):
                    process.kill()
                killed.append(process)
    return killed


def _end(home: Path, patience_s: float) -> bool:
    """End all processes of a head. Kill those that still run after `patience_s`."""
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
        # including processes that were started in the meantime
        stubborn = [process for process in _processes(home) if _runs(process)]
    return bool(processes)


def _processes(home: Path) -> list[psutil.Process]:
    """Return the processes that belong to the head of this home.

    A process belongs to the head if it has the mark in its environment, or is one of Ray's own programs with the head's folder in
    its arguments. Other processes that name the folder, such as a `tail -f` of Ray's logs, do not belong to the head.
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
    """Yield the processes that have a text in their command line or environment. Without /proc, yield all processes.

    psutil takes a fifth of a millisecond for each process of the machine, so reading /proc first saves time.
    """
    wanted = text.encode()
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if not PROC.is_dir() or any(
                wanted in (PROC / str(pid) / file).read_bytes() for file in ("cmdline", "environ")
            ):
                yield psutil.Process(pid)


def _is_program_of(command: Sequence[str], scratch: str) -> bool:
    """Return whether this is the command line of one of Ray's own programs, for the head with this folder."""
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
    """Return whether this process listens at the port of the address. If it does not, the marker is from an earlier head."""
    port = int(address.rpartition(":")[2])
    try:
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in gcs.net_connections("tcp"))
    except psutil.Error:
        return False


def _marker(home: Path) -> Path:
    return home / "ray_address"


def _scratch(home: Path) -> Path:
    """Return the folder of Ray's own files for this home.

    It is not inside the home, because paths of Unix sockets must be short.
    """
    return Path(tempfile.gettempdir()) / f"tuner-ray-{os.getuid()}-{keyed_seed(0, str(home)):016x}"


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Allow one process at a time to find or start a head."""
    with open(home / "ray_lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _has_token() -> bool:
    """Return whether Ray has a token already. Asking Ray itself would take a second."""
    if "RAY_AUTH_TOKEN" in os.environ:
        return True
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").is_file()


def _generate_token(home: Path, run: RunRay) -> None:
    """Let Ray write a token for this user, which a head needs. Raise ClusterUnreachable if Ray cannot write the token."""
    done = _ray_command(home, run, "get-auth-token", "--generate")
    if done.returncode:
        raise ClusterUnreachable(
            f"Ray could not write a token: {(done.stdout + done.stderr).strip()[-1000:]}. Make {Path.home() / '.ray'} "
            "writable, or set RAY_AUTH_TOKEN_PATH to a file in a writable directory, and start again"
        )


def _ray_command(home: Path, run: RunRay, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `ray` command, and mark the processes that it starts. If it fails, the next start ends those processes."""
    return run(arguments, {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", MARK: str(_scratch(home))})


def run_ray(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a `ray` command in a new session, so that Ctrl-C does not reach the processes that it starts.

    Raise ClusterUnreachable if it takes longer than `COMMAND_S`.
    """
    try:
        return subprocess.run(
            [sys.executable, "-m", "tuner.driver.hosts.ray_start", *arguments],
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
    return ClusterUnreachable(f"`ray {arguments[0]}` did not end within {COMMAND_S:g} s and was killed")


@contextlib.contextmanager
def exits(pids: Iterable[int]) -> Iterator[Callable[[float], object]]:
    """Yield a function that waits until one of these processes ends, but at most for the given number of seconds.

    On systems without pidfd, the function always waits for the full time.
    """
    with contextlib.ExitStack() as stack:
        files: list[int] = []
        for pid in pids:
            with contextlib.suppress(AttributeError, OSError):  # not Linux, or the process has just ended
                files.append(os.pidfd_open(pid))
                stack.callback(os.close, files[-1])
        yield lambda seconds: select.select(files, (), (), seconds)
