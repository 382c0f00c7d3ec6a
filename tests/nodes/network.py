"""Make network namespaces that are joined by a bridge, cut and slow their links, and remove everything again.

Each namespace stands for a machine: it has an address of its own, and nothing but the bridge leads to the others. All
namespaces share the host name and the disk of this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

PREFIX = "tuner"
INSIDE = "eth0"
"""The name of each node's interface, inside its namespace."""
_ENDED_S = 20.0


class NotAllowed(RuntimeError):
    """This machine does not let this user make network namespaces."""


def ip(*arguments: str) -> str:
    """Run an `ip` command and return its output. Raise NotAllowed if it fails."""
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as error:
        raise NotAllowed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NotAllowed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def why_not() -> str:
    """Return why no nodes can be made on this machine; an empty string if they can."""
    try:
        with Network(2) as network:
            first, second = network.addresses
            listens = f"import socket; s = socket.create_server(({first!r}, 7)); s.accept()"
            with network.process(0, ["python3", "-c", listens]):
                knocks = (
                    f"import socket, time\nfor _ in range(100):\n  try: socket.create_connection(({first!r}, 7), 1); break\n"
                    "  except ConnectionRefusedError: time.sleep(0.05)\nelse: raise SystemExit(1)"
                )
                with network.process(1, ["python3", "-c", knocks]) as knocking:
                    if knocking.wait(timeout=20):
                        return f"{second} cannot reach {first} over the bridge"
        return ""
    except (NotAllowed, subprocess.TimeoutExpired) as error:
        return f"network namespaces cannot be made here: {error}"


class Network:
    """Network namespaces that are joined by a bridge. Leave the `with` block to kill their processes and remove them.

    This process gets the address `gateway`, at which the nodes can reach it.
    """

    def __init__(self, nodes: int) -> None:
        self._mark = f"{os.getpid()}"
        subnet = f"10.213.{os.getpid() % 250}"
        self.gateway = f"{subnet}.254"
        self.addresses = [f"{subnet}.{number + 1}" for number in range(nodes)]
        self._bridge = f"tb{self._mark}"

    def __enter__(self) -> Network:
        _remove_left()
        try:
            ip("link", "add", self._bridge, "type", "bridge")
            ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
            for number, address in enumerate(self.addresses):
                space = self.space(number)
                ip("netns", "add", space)
                ip("link", "add", self._link(number), "type", "veth", "peer", "name", INSIDE, "netns", space)
                ip("-n", space, "addr", "add", f"{address}/24", "dev", INSIDE)
                ip("-n", space, "link", "set", INSIDE, "up")
                ip("-n", space, "link", "set", "lo", "up")
                ip("link", "set", self._link(number), "master", self._bridge, "up")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def space(self, number: int) -> str:
        """Return the name of a node's namespace."""
        return f"{PREFIX}-{self._mark}-{number}"

    def remove(self) -> None:
        """Kill all processes of the namespaces, and remove the namespaces and the bridge."""
        for number in range(len(self.addresses)):
            _remove_space(self.space(number))
            with contextlib.suppress(NotAllowed):  # the kernel may take a while to remove it with its namespace
                ip("link", "del", self._link(number))
        with contextlib.suppress(NotAllowed):
            ip("link", "del", self._bridge)

    @contextlib.contextmanager
    def process(
        self, number: int, command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Run a process on a node for a `with` block, and kill it afterwards if it still runs."""
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(open(log, "a")) if log is not None else None
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space(number), *command],
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=output,
                text=True,
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def pids(self, number: int) -> list[int]:
        """Return the ids of the processes on a node."""
        return _pids(self.space(number))

    def kill(self, number: int) -> None:
        """Kill all processes of a node at once, as a machine that loses its power does. Its links stay."""
        _kill(self.space(number))

    # What can happen to a link

    def cut(self, number: int) -> None:
        """Let the packets to and from a node get lost. No process is told, unlike when an interface is shut down."""
        ip("link", "set", self._link(number), "nomaster")

    def mend(self, number: int) -> None:
        """Undo `cut`."""
        ip("link", "set", self._link(number), "master", self._bridge)

    def part(self, number: int, other: int) -> None:
        """Let the packets between two nodes get lost. Each of them still reaches all other nodes."""
        for here, there in ((number, other), (other, number)):
            nowhere = ("lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", INSIDE)
            ip("-n", self.space(here), "neigh", "replace", self.addresses[there], *nowhere)

    def join(self, number: int, other: int) -> None:
        """Undo `part`."""
        for here, there in ((number, other), (other, number)):
            ip("-n", self.space(here), "neigh", "del", self.addresses[there], "dev", INSIDE)

    def slow(self, number: int, *, mbit: float, delay_ms: float) -> str:
        """Limit the bandwidth to and from a node, and delay its packets if the kernel can. Return what was done, in words."""
        for inside in (False, True):
            place = ("netns", "exec", self.space(number), "tc") if inside else ()
            device = INSIDE if inside else self._link(number)
            command = ("ip", *place) if inside else ("tc",)
            netem = ("netem", "delay", f"{delay_ms:g}ms", "rate", f"{mbit:g}mbit")
            limit = ("tbf", "rate", f"{mbit:g}mbit", "burst", "32kb", "latency", "200ms")
            try:
                _run(*command, "qdisc", "replace", "dev", device, "root", *netem)
                done = f"{mbit:g} Mbit/s, {delay_ms:g} ms each way"
            except NotAllowed:  # a kernel without netem limits the rate only
                _run(*command, "qdisc", "replace", "dev", device, "root", *limit)
                done = f"{mbit:g} Mbit/s; this kernel has no netem, so packets are not delayed"
        return done

    def processes(self, number: int, pattern: str) -> list[int]:
        """Return the processes of a node whose command lines contain this regular expression."""
        found = []
        for pid in _pids(self.space(number)):
            with contextlib.suppress(OSError):  # it has ended since
                line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                found += [pid] if re.search(pattern, line) else []
        return found

    def _link(self, number: int) -> str:
        """Return the name of the bridge's end of a node's link."""
        return f"tv{self._mark}n{number}"


def _remove_left() -> None:
    """Remove what earlier processes have left behind because they were killed."""
    for name in re.findall(rf"^{PREFIX}-\d+-\d+", ip("netns", "list"), re.MULTILINE):
        if not os.path.exists(f"/proc/{name.split('-')[1]}"):
            _remove_space(name)
    for name, pid in re.findall(r"^\d+: (tb(\d+)):", ip("-o", "link", "show", "type", "bridge"), re.MULTILINE):
        if not os.path.exists(f"/proc/{pid}"):
            ip("link", "del", name)


def _remove_space(name: str) -> None:
    with contextlib.suppress(NotAllowed):  # it was never made
        _kill(name)
        ip("netns", "del", name)


def _kill(space: str) -> None:
    deadline = time.monotonic() + _ENDED_S
    while (left := _pids(space)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _pids(space: str) -> list[int]:
    found = [int(pid) for pid in ip("netns", "pids", space).split()]
    return [pid for pid in found if not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
