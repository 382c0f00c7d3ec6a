"""The processes that a `RayStrategy` starts for a script: a placement group with one rank in each bundle.

The script is not a trial, so there are no reports and no verdicts: the ranks run a pickled function together, and their
return values are sent back. Rank 0's output appears in the script's output.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.domain.experiment import Scaling
from tuner.errors import PlacementError, TrialError
from tuner.trials.groups.pools import removal
from tuner.trials.groups.pools.placement import assign_ranks, lacking
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.function.modules import Modules
from tuner.trials.training.oom import oom_kills

log = logging.getLogger(__name__)

_ECHO_S = 3.0  # seconds to wait for the error that caused a communication error
_POLL_S = 0.5
# Attempts to reach a process that lives, after Ray has lost a call to it. Each takes Ray a second or more.
_REPEATS = 20


class Worker:
    """The process of one rank: a Ray actor. `output` and `read` can be called while `run` is running."""

    def __init__(self) -> None:
        self._tee = {"stdout": _Tee(sys.stdout), "stderr": _Tee(sys.stderr)}
        sys.stdout, sys.stderr = self._tee["stdout"], self._tee["stderr"]
        self._store: Any = None
        self._modules = Modules()
        self._last = -1  # the number of the last run
        self._error: BaseException | None = None  # the error that it has raised
        self._value: Any = None  # or its value

    def hello(self) -> WorkerMetadata:
        return WorkerMetadata(
            node=ray.get_runtime_context().get_node_id(),
            host=socket.gethostname(),
            ip=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            gpus=tuple(str(gpu) for gpu in ray.get_gpu_ids()),
            channel_address=None,
            token=b"",
            oom_kills=oom_kills(),
        )

    def open(self, ip: str, world_size: int) -> int:
        """Open the store through which a new process group is formed, and return the store's port. Call this on rank 0."""
        import torch.distributed as dist

        self._store = dist.TCPStore(ip, 0, world_size, True, wait_for_workers=False)
        return int(self._store.port)

    def run(self, number: int, *arguments: Any) -> Any:
        """Run a function as `_run` does. If the call is repeated with the same number, return the value of the earlier one."""
        if number != self._last:
            self._last, self._error, self._value = number, None, None
            try:
                self._value = self._run(*arguments)
            except BaseException as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._value

    def forget(self) -> None:
        """Free the value of the last run, such as the weights of a large model."""
        self._value = None

    def _run(
        self, payload: Sequence[Any], assignment: RankAssignment, address: tuple[str, int], about: Mapping[str, Any]
    ) -> Any:
        """Join the process group, call the pickled function with the assignment, and return its value.

        Leave the group afterwards. payload: a reference to the pickled function, in a sequence for the reason that
        `RayRank.serial` gives. about: the script's environment variables, `sys.path` and working directory.
        """
        import cloudpickle

        self._set_environment(assignment, about)
        self._modules.note()
        talks = assignment.rank == 0
        for tee in self._tee.values():
            tee.heard, tee.tty = talks, about["tty"]
        try:
            self._join(assignment, address)
            return cloudpickle.loads(ray.get(payload[0]))(assignment)
        finally:
            rendezvous.leave()
            rendezvous.free()
            self._modules.note()
            self._store = None
            for tee in self._tee.values():
                tee.heard = False

    def stale(self) -> str | None:
        """Return a file of user code that has changed since this process imported it, or None."""
        return self._modules.stale()

    @ray.method(concurrency_group="control")
    def output(self, wait_s: float) -> list[tuple[str, str]]:
        """Return the output since the last call, as (stream, text) pairs. Wait up to `wait_s` seconds if there is none."""
        deadline = time.monotonic() + wait_s
        while True:
            found = [(name, text) for name, tee in self._tee.items() if (text := tee.take())]
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(0.02)

    @ray.method(concurrency_group="control")
    def read(self, path: str) -> bytes | None:
        """Return the content of a file on this node, or None if there is no such file."""
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read()

    def _set_environment(self, assignment: RankAssignment, about: Mapping[str, Any]) -> None:
        os.environ.update({name: str(value) for name, value in about["environment"].items()})
        os.environ.update(assignment.environment())
        sys.path[:0] = [entry for entry in about["sys_path"] if entry not in sys.path]
        if os.path.isdir(about["directory"]):
            os.chdir(about["directory"])

    def _join(self, assignment: RankAssignment, address: tuple[str, int]) -> None:
        import torch.distributed as dist

        if assignment.devices:
            rendezvous.take_device(assignment)
        if assignment.nodes > 1:
            rendezvous.choose_interface(ray.util.get_node_ip_address())
        store = self._store if assignment.rank == 0 else dist.TCPStore(*address, assignment.world_size, False)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address[0], str(address[1])
        dist.init_process_group(
            assignment.backend,
            store=dist.PrefixStore("world", store),
            rank=assignment.rank,
            world_size=assignment.world_size,
        )


class Workers:
    """A group of `Worker`s, which the constructor starts. It runs one function at a time, and none after a failure."""

    def __init__(
        self,
        scaling: Scaling,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        timeout_s: float = 600.0,
        autoscaling: bool = False,
    ) -> None:
        if not autoscaling and (reason := lacking(scaling)) is not None:
            raise PlacementError(reason)
        bundle = scaling.bundle()
        self._placement = placement_group([bundle] * scaling.num_workers, strategy=scaling.placement_strategy)
        try:
            if not self._placement.wait(timeout_s):
                raise PlacementError(
                    f"{scaling.num_workers} x {bundle} did not become free within {timeout_s:g} s; other work holds them"
                )
            kind = ray.remote(concurrency_groups={"control": 1})(Worker)
            extra = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
            actors = [
                kind.options(
                    num_cpus=bundle.get("CPU", 0),
                    num_gpus=bundle.get("GPU", 0),
                    resources=extra or None,
                    runtime_env=dict(runtime_env) if runtime_env else None,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._placement, placement_group_bundle_index=index
                    ),
                ).remote()
                for index in range(scaling.num_workers)
            ]
            workers = _answers(actor.hello.remote for actor in actors)
        except BaseException:
            removal.remove(self._placement)
            raise
        order, self.assignments = assign_ranks(workers, scaling)
        self.workers = [workers[index] for index in order]
        self._actors = [actors[index] for index in order]
        self._numbers = itertools.count()

    def run(self, payload: bytes, about: Mapping[str, Any]) -> list[Any]:
        """Run a pickled function on all ranks, and return its values in the order of ranks.

        If a rank raises an error, raise that error, with a note that names the rank. about: the script's environment
        variables, `sys.path` and working directory, which the ranks adopt.
        """
        leader, ip = self._actors[0], self.workers[0].ip
        shared = ray.put(payload)
        [port] = _answers([functools.partial(leader.open.remote, ip, len(self._actors))])
        number = next(self._numbers)
        calls = [
            functools.partial(actor.run.remote, number, [shared], assignment, (ip, port), about)
            for actor, assignment in zip(self._actors, self.assignments, strict=True)
        ]
        refs = [call() for call in calls]
        repeats = [_REPEATS] * len(calls)
        heard = leader.output.remote(_POLL_S)
        pending = set(refs)
        failures: list[tuple[int, BaseException]] = []
        give_up = float("inf")
        while pending and time.monotonic() < give_up:
            ready, _ = ray.wait([*pending, heard], timeout=min(1.0, max(0.0, give_up - time.monotonic())))
            for ref in ready:
                if ref == heard:
                    with contextlib.suppress(ray.exceptions.RayError):  # `refs` show if rank 0 has died
                        _say(ray.get(heard))
                    heard = leader.output.remote(_POLL_S)
                    continue
                pending.discard(ref)
                error, rank = _error(ref), refs.index(ref)
                if isinstance(error, ray.exceptions.ActorUnavailableError) and repeats[rank]:
                    repeats[rank] -= 1
                    refs[rank] = calls[rank]()
                    pending.add(refs[rank])
                elif error is not None:
                    failures.append((rank, error))
                    give_up = min(give_up, time.monotonic() + (_ECHO_S if _is_echo(error) else 0.0))
        with contextlib.suppress(ray.exceptions.RayError):
            _say(ray.get(heard))
            _say(ray.get(leader.output.remote(0.0)))
        if failures:
            rank, error = next(((rank, error) for rank, error in failures if not _is_echo(error)), failures[0])
            raise self._located(rank, error)
        values = list(ray.get(refs))
        for actor in self._actors:
            actor.forget.remote()
        return values

    def read(self, path: str) -> bytes | None:
        """Return the content of a file on rank 0's node, or None if there is no such file."""
        content: bytes | None
        [content] = _answers([functools.partial(self._actors[0].read.remote, path)])
        return content

    def fresh(self) -> bool:
        """Return whether all ranks are alive and have imported the current versions of the user's modules."""
        try:
            return not any(_answers(actor.stale.remote for actor in self._actors))
        except ray.exceptions.RayError:
            return False

    def close(self) -> None:
        """Stop the processes and free their resources. A second call does nothing."""
        with contextlib.suppress(Exception):  # the Ray cluster may be gone
            for actor in self._actors:
                ray.kill(actor)
            removal.remove(self._placement)

    def _located(self, rank: int, error: BaseException) -> BaseException:
        worker = self.workers[rank]
        where = f"rank {rank} on {worker.host} (pid {worker.pid})"
        if isinstance(error, ray.exceptions.RayTaskError):
            cause = error.cause
            if isinstance(cause, BaseException):
                cause.add_note(f"raised on {where}:\n{error}")
                return cause
            return TrialError(f"{where}: {error}")
        lives = isinstance(error, ray.exceptions.ActorUnavailableError)
        return TrialError(f"{where} {'cannot be reached' if lives else 'is gone'}: {error}")


_idle: dict[str, tuple[Workers, threading.Timer]] = {}
_idle_lock = threading.Lock()


def borrow(scaling: Scaling, **options: Any) -> tuple[str, Workers]:
    """Return (key, workers): idle workers with this scaling and these options if there are any, else new workers.

    Before new workers are started, all idle ones are stopped, because they may hold the needed resources.
    """
    key = repr((ray.get_runtime_context().get_node_id(), scaling, options))
    with _idle_lock:
        found = _idle.pop(key, None)
    if found is not None:
        found[1].cancel()
        if found[0].fresh():
            return key, found[0]
        found[0].close()
    release()
    return key, Workers(scaling, **options)


def give_back(key: str, workers: Workers, keep_s: float) -> None:
    """Keep idle workers for a later call to `borrow`, and stop them after `keep_s` seconds."""
    timer = threading.Timer(keep_s, release, (key,))
    timer.daemon = True
    with _idle_lock:
        _idle[key] = workers, timer
    timer.start()


def release(key: str | None = None) -> None:
    """Stop the idle workers with this key, or all idle workers if `key` is None."""
    with _idle_lock:
        ended = [_idle.pop(name) for name in list(_idle) if key is None or name == key]
    for workers, timer in ended:
        timer.cancel()
        workers.close()


def _answers(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Make calls at the same time, and return their answers. A call may run twice: it is repeated if Ray has lost it."""
    made = [(call, call()) for call in calls]
    return [_answer(call, ref) for call, ref in made]


def _answer(call: Callable[[], Any], ref: Any) -> Any:
    for _ in range(_REPEATS):
        try:
            return ray.get(ref)
        except ray.exceptions.ActorUnavailableError:  # the process lives
            ref = call()
    return ray.get(ref)


def _error(ref: Any) -> BaseException | None:
    try:
        ray.get(ref)
    except ray.exceptions.RayError as error:
        found: BaseException = error
        return found
    return None


def _is_echo(error: BaseException) -> bool:
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return isinstance(cause, BaseException) and rendezvous.is_echo(cause)


def _say(output: Sequence[tuple[str, str]]) -> None:
    for name, text in output:
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.write(text)
        stream.flush()


def terminal() -> dict[str, Any]:
    """Return the properties of the script's terminal that a progress bar on a worker needs."""
    size = shutil.get_terminal_size()
    return {"tty": sys.stdout.isatty(), "environment": {"COLUMNS": size.columns, "LINES": size.lines}}


class _Tee(io.TextIOBase):
    """A standard stream that can keep the text that is written to it, until `take` fetches it for the script.

    While `heard` is true, text is kept instead of being written to the process's own stream. Otherwise it would appear
    twice if the script has called `ray.init` itself, because Ray then prints the workers' output.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._kept: list[str] = []
        self._lock = threading.Lock()
        self.heard = False
        self.tty = False

    def write(self, text: str) -> int:
        if self.heard:
            with self._lock:
                self._kept.append(text)
        else:
            self._stream.write(text)
        return len(text)

    def take(self) -> str:
        with self._lock:
            text, self._kept = "".join(self._kept), []
        return text

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self.heard and self.tty

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"
