"""`tuner doctor`: find problems on this machine that would make a search fail, and say how to fix them.

Each check examines one part of the machine or the installation, and yields findings. If a finding is not "ok", it contains
advice. Checks that may hang or crash, such as starting Ray, run in separate processes with a time limit.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from tuner.errors import WHAT_TO_DO, TunerError
from tuner.names import DISTRIBUTION, with_extra, without_colors
from tuner.plurals import counted
from tuner.service.early import HOST_ADVICE
from tuner.settings import Settings
from tuner.store import Store, shown_url

Level = Literal["ok", "warning", "error"]

MIN_FILES = 4096
MIN_FREE_BYTES = 5 * 2**30
MIN_SHM_BYTES = 2**30
TORCH_S, DDP_S, RAY_S, DRIVER_S = 120.0, 120.0, 120.0, 30.0
"""Time limits in seconds for the checks of torch, of training on two ranks, of Ray, and for an answer of NVIDIA's driver."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        subject: the part of the machine or the installation that was checked, such as "database".
        level: "error": searches fail; "warning": some searches may fail or be slow; "ok": no problem.
        what: what the check found.
        advice: what to do about it; empty if there is nothing to do.
    """

    subject: str
    level: Level
    what: str
    advice: str = ""


def examine(settings: Settings, quick: bool = False) -> Iterator[Finding]:
    """Run all checks, one after the other, and yield their findings.

    The checks that start processes (torch, distributed training, Ray) are skipped with `quick`, and if the current folder has
    been deleted.
    """
    yield from check_python()
    yield from check_packages()
    nowhere = list(check_folder())
    yield from nowhere
    yield from check_machine(settings)
    yield from check_database(settings)
    yield from check_storage(settings)
    yield from check_port(settings)
    if not quick and not nowhere:
        if _version("torch") is None:
            what = "not installed: trials of several ranks, the searcher gp and the demo need it"
            yield Finding("torch", "warning", what, f"run `{with_extra('torch')}` if you need one of these")
        else:
            yield from check_torch()
            yield from check_ddp()
        yield from check_ray(settings)


def check_python() -> Iterator[Finding]:
    """Check that Python is a 64-bit build. Its version was checked when tuner was installed."""
    version = platform.python_version()
    if sys.maxsize < 2**32:
        yield Finding(
            "python",
            "error",
            f"Python {version} is a 32-bit build",
            "install a 64-bit Python: torch and Ray support no other",
        )
    else:
        yield Finding("python", "ok", f"{version} at {sys.executable}")


def check_packages() -> Iterator[Finding]:
    """Check that every required package is installed in a version that tuner supports."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages",
            "warning",
            "tuner is not installed; it runs from its source tree",
            "run `pip install .` in the source tree",
        )
        return
    wrong = list(_unmet([Requirement(text) for text in requirements]))
    for what, name in wrong:
        yield Finding("packages", "error", what, f"run `pip install --upgrade {name!r}` in this environment")
    if not wrong:
        versions = ", ".join(
            f"{name} {found}" for name in ("ray", "torch", "pytorch-lightning", "optuna") if (found := _version(name))
        )
        yield Finding("packages", "ok", f"tuner {metadata.version(DISTRIBUTION)}, {versions}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _unmet(requirements: list[Requirement]) -> Iterator[tuple[str, str]]:
    for needed in requirements:
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield f"{needed.name} is not installed", f"{needed.name}{needed.specifier}"
            continue
        if not needed.specifier.contains(found, prereleases=True):
            yield f"{needed.name} is {found}; expected {needed.specifier}", f"{needed.name}{needed.specifier}"


def check_folder() -> Iterator[Finding]:
    """Check that the current folder is still there. Nothing is found if it is."""
    try:
        os.getcwd()
    except FileNotFoundError:
        yield Finding(
            "current folder",
            "error",
            "it has been deleted, so neither torch nor Ray can be started here",
            "change to another folder",
        )


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check the memory, the shared memory, the open-file limit, and the free disk space."""
    import psutil

    memory = psutil.virtual_memory()
    cpus = counted(os.cpu_count() or 1, "CPU")
    yield Finding("machine", "ok", f"{cpus}, {_gb(memory.available)} of {_gb(memory.total)} memory free")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_FILES:
        yield Finding(
            "open files",
            "warning",
            f"a process may open only {soft} files; Ray and its workers need more on a busy machine",
            f"run `ulimit -n {min(hard, 65536) if hard > 0 else 65536}` before you start tuner, or raise nofile in "
            "/etc/security/limits.conf",
        )
    shm = Path("/dev/shm")
    if shm.is_dir() and (room := shutil.disk_usage(shm)).free < MIN_SHM_BYTES:
        yield Finding(
            "shared memory",
            "warning",
            f"/dev/shm has {_gb(room.free)} free; data loaders and Ray's objects use it",
            "in a container pass --shm-size=4g; otherwise remove files from /dev/shm",
        )
    # tempfile uses another directory if TMPDIR is full, but Ray does not.
    temporary = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    for subject, place in (("home", settings.home), ("temporary directory", temporary)):
        yield _room(subject, place)


def _room(subject: str, place: Path) -> Finding:
    # Path.exists raises PermissionError below a folder that this user may not enter.
    there = next(folder for folder in (place, *place.parents) if os.path.exists(folder))
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        advice = (
            "let this user write there, or set TUNER_HOME"
            if subject == "home"
            else "let this user write there, or set TMPDIR"
        )
        return Finding(subject, "error", f"{there} is not writable", advice)
    if free < MIN_FREE_BYTES:
        return Finding(
            subject,
            "warning",
            f"{place} has {_gb(free)} free",
            "free some space: checkpoints and Ray's files are written there",
        )
    return Finding(subject, "ok", f"{place}, {_gb(free)} free")


def check_database(settings: Settings) -> Iterator[Finding]:
    """Check that the database can be opened and written, and has the tables of this version."""
    shown = shown_url(settings.database_url)
    begun = time.perf_counter()
    try:
        settings.make_home()
        with Store.open(settings.database_url, synchronous=settings.durability) as store:
            store.migrate()
            store.check()
            store.check_write()
    except (TunerError, OSError) as error:
        takes_no_writes = "read-only transaction" in str(error)  # PostgreSQL's words
        advice = (
            "check TUNER_DATABASE_URL; for SQLite, let this user write to the file and its folder; for PostgreSQL, check that "
            "the server is running and lets this user connect"
        )
        if takes_no_writes:
            advice = (
                "the server takes no writes, because it is a standby or default_transaction_read_only is on: set "
                "TUNER_DATABASE_URL to the primary server, or let this user write"
            )
        yield Finding("database", "error", f"{shown}: {error}", advice)
    else:
        yield Finding("database", "ok", f"{shown}, opened in {1000 * (time.perf_counter() - begun):.0f} ms")


def check_storage(settings: Settings) -> Iterator[Finding]:
    """Check that a file can be written to the storage for checkpoints, read back and removed."""
    from tuner.trials.checkpoints.storage import place

    content = os.urandom(16)
    begun = time.perf_counter()
    try:
        target = place(settings.storage) / f"doctor-{content.hex()}"
        target.write(content)
        read = target.read()
        target.unlink()
    except Exception as error:  # file systems raise errors of many classes
        what = (
            f"{settings.storage}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        )
        yield Finding(
            "storage", "error", what, "check TUNER_STORAGE; for a bucket, check its name, region and credentials"
        )
        return
    if read != content:
        yield Finding(
            "storage",
            "error",
            f"{settings.storage} did not return what was written to it",
            "use a different storage location",
        )
    else:
        took = 1000 * (time.perf_counter() - begun)
        yield Finding("storage", "ok", f"{settings.storage}, a file written, read and removed in {took:.0f} ms")


def check_port(settings: Settings) -> Iterator[Finding]:
    """Check that `tuner serve` can listen on its address, or that a tuner service already does."""
    where = f"{settings.host}:{settings.port}"
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trying.bind((settings.host, settings.port))
    except OSError as error:
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        if not elsewhere and _serves(settings):
            yield Finding("port", "ok", f"a tuner service runs at {where}")
        else:
            advice = "stop the program that uses the port, or choose another port for `tuner serve` with --port or TUNER_PORT"
            if elsewhere:
                advice = HOST_ADVICE
            yield Finding("port", "warning", f"{where} cannot be bound: {error.strerror}", advice)
    else:
        yield Finding("port", "ok", f"{where} is free")


def _serves(settings: Settings) -> bool:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    shown = f"[{host}]" if ":" in host else host
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy can reach this machine's loopback
    try:
        with direct.open(f"http://{shown}:{settings.port}/api/v1/session", timeout=10) as answer:
            return "role" in json.load(answer)
    except (OSError, ValueError, TypeError, http.client.HTTPException):  # HTTPException: it speaks another protocol
        return False


_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
if cuda:
    torch.ones(8, device="cuda").sum().item()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.distributed.is_nccl_available() else None
print(json.dumps([torch.__version__, torch.version.cuda, names, nccl]))
"""


def check_torch() -> Iterator[Finding]:
    """Check that torch can be imported and sees all the GPUs that NVIDIA's driver sees."""
    told = _apart(_TORCH, TORCH_S)
    if isinstance(told, Finding):
        yield Finding("torch", "error", told.what, "reinstall torch: `pip install --force-reinstall torch`")
        return
    version, cuda, names, nccl = json.loads(told)
    seen = _gpus()
    if seen is None:
        yield Finding(
            "torch",
            "error",
            f"NVIDIA's driver does not answer: `nvidia-smi -L` ran for {DRIVER_S:.0f} s without a result",
            "look for messages of NVRM in the kernel log (`dmesg`); a hung driver usually needs a restart of the machine",
        )
    elif seen and not names:
        what = f"NVIDIA's driver sees {counted(len(seen), 'GPU')}, but torch {version} sees none"
        build = "it is a CPU build" if cuda is None else f"it is built for CUDA {cuda}"
        yield Finding(
            "torch",
            "error",
            f"{what}; {build}",
            "install a torch build for the CUDA version of this driver (see nvidia-smi)",
        )
    elif len(names) < len(seen):
        hidden = f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
        yield Finding(
            "torch",
            "warning",
            f"torch sees {len(names)} of {len(seen)} GPUs; {hidden}",
            "unset CUDA_VISIBLE_DEVICES to use all GPUs",
        )
    elif names and nccl is None:
        yield Finding("torch", "error", f"torch {version} has no NCCL", "install an official build of torch")
    else:
        gpus = f"{counted(len(names), 'GPU')} ({', '.join(sorted(set(names)))}), NCCL {nccl}" if names else "no GPU"
        yield Finding("torch", "ok", f"{version}, {gpus}")


def _gpus() -> list[str] | None:
    """Return a line of `nvidia-smi -L` for each GPU that NVIDIA's driver finds, or None if the driver does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=DRIVER_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        return None
    return [line for line in listed.splitlines() if line.startswith("GPU ")]


_DDP = """
import os, socket, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=number, world_size=2)
    value = torch.tensor([float(number + 1)])
    dist.all_reduce(value)
    assert value.item() == 3.0, value
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A forked rank need not import torch again. On other systems, libraries do not expect a fork.
    mp.start_processes(rank, (port,), nprocs=2, start_method="fork" if sys.platform == "linux" else "spawn")
    print("ok")
"""


def check_ddp() -> Iterator[Finding]:
    """Check that two ranks on this machine can connect to each other and all-reduce a tensor."""
    begun = time.perf_counter()
    told = _apart(_DDP, DDP_S)
    if isinstance(told, Finding):
        advice = (
            "check that the loopback interface is up and the host name resolves (/etc/hosts), or set GLOO_SOCKET_IFNAME"
        )
        yield Finding("distributed training", "error", told.what, advice)
    else:
        took = time.perf_counter() - begun
        yield Finding(
            "distributed training",
            "ok",
            f"two ranks all-reduced a tensor over gloo in {took:.1f} s, including their start",
        )


_RAY = """
import sys
from tuner.hosts.ray.cluster import connect
connect(sys.argv[1] or None)
import ray
total = ray.cluster_resources()
print(int(total.get("CPU", 0)), int(total.get("GPU", 0)), len([n for n in ray.nodes() if n["Alive"]]), ray.__version__)
ray.shutdown()
"""


def check_ray(settings: Settings) -> Iterator[Finding]:
    """Check that the configured Ray cluster can be reached. If none is configured, check that Ray starts on this machine."""
    address = settings.ray_address or ""
    if (trouble := _unreachable(address)) is not None:
        advice = "check the address in RAY_ADDRESS, run `ray status` on the cluster's head node, and check firewalls"
        yield Finding("ray", "error", f"the cluster at {address} cannot be reached: {trouble}", advice)
        return
    begun = time.perf_counter()
    told = _apart(_RAY, RAY_S, address)
    if isinstance(told, Finding):
        yield Finding(
            "ray",
            "error",
            told.what.removeprefix("tuner.errors.ClusterUnreachable: "),
            "see `ray status` and Ray's logs",
        )
        return
    cpus, gpus, nodes, version = told.split()
    where = f"the cluster at {settings.ray_address}" if settings.ray_address else "a private cluster"
    took = f"{time.perf_counter() - begun:.1f} s"
    yield Finding(
        "ray",
        "ok",
        f"Ray {version}, {where}, {took} to start or reach: {_count(nodes, 'node')}, {_count(cpus, 'CPU')}, "
        f"{_count(gpus, 'GPU')}",
    )


def _count(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


def _unreachable(address: str) -> str | None:
    """Return why nothing answers at an address with a port, or None if something does.

    This fails within seconds, whereas Ray itself tries for minutes.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()  # [::1]:6379 is an IPv6 address
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def _apart(code: str, limit_s: float, *arguments: str) -> str | Finding:
    """Run Python code in a separate process. Return the last line that it printed, or a Finding if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        # The code must be in a file, because the processes that it spawns import that file.
        script = Path(folder) / "check.py"
        script.write_text(code, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            done = subprocess.run(
                [sys.executable, str(script), *arguments],
                capture_output=True, text=True, timeout=limit_s, check=False, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Finding("", "error", f"no answer within {limit_s:.0f} s")
    if done.returncode:
        lines = without_colors(done.stderr).strip().splitlines()
        said = [line for line in lines if line.strip() and not line.startswith(WHAT_TO_DO)]
        ended = (
            f"it was killed by signal {-done.returncode}"
            if done.returncode < 0
            else f"its exit code was {done.returncode}"
        )
        return Finding("", "error", said[-1].strip() if said else ended)
    return done.stdout.strip().splitlines()[-1]


def _gb(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


MARK: dict[Level, str] = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


def report(findings: Iterator[Finding], say: Callable[[str], None], as_json: bool = False) -> bool:
    """Print each finding as soon as it is available. Return True if none of them is an error."""
    fine = True
    for found in findings:
        fine = fine and found.level != "error"
        if as_json:
            say(json.dumps(asdict(found)))
            continue
        say(f"{MARK[found.level]}  {found.subject}: {found.what}")
        if found.advice:
            say(f"         -> {found.advice}")
    return fine
