"""Stub ranks for `benchmarks.scale`: they only speak the protocols of ranks, thousands of them in one process.

The driver host is the real one, with its pool, its watch over ranks, its sockets and its store. Only the calls that Ray would
carry to the ranks' actors, and the processes behind them, are replaced: `StubBuilder` takes the place of `GroupBuilder`, and
sends the calls over a socket to the process of `Farm`. There, rank 0 of each group reports over its own connection to the
driver host, with the messages of a real rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from tuner.domain.experiment import Scaling
from tuner.domain.segments import CheckpointInfo, Report
from tuner.hosts.executor import GroupOptions, Joining
from tuner.hosts.host import Host
from tuner.settings import Settings
from tuner.trials.groups.cluster.cut_nodes import CutNodes
from tuner.trials.groups.cluster.growth import NodeType
from tuner.trials.groups.pools.builder import GroupBuilder
from tuner.trials.groups.pools.group import Group, Key
from tuner.trials.groups.pools.placement import assign_ranks
from tuner.trials.groups.pools.pool import Pool
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.protocol import Progress, RankResult, WorkerMetadata
from tuner.trials.messages.report_socket import _REPORTS, Address, _parts

HEADER = struct.Struct("!I")
METRICS = ("loss", "accuracy", "lr", "norm", "epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of each trial: it makes `reports` reports, one every `pace_s` seconds."""

    reports: int
    pace_s: float


def _framed(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


async def _received(reader: asyncio.StreamReader) -> Any:
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(size))


def many_files() -> None:
    """Raise this process's limit on open files as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# -- the process of the ranks


class _Rank:
    """One rank. Rank 0 of a group reports; the other ranks end with it."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._address: Address | None = None
        self._launch: Launch | None = None
        self._number = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reports = 0

    def hello(self, address: Address) -> None:
        self._address = address

    def prepare(self, launch: Launch, assignment: Any, code: Any) -> None:
        self._launch = launch
        if assignment is not None:
            self._number = assignment.rank
        if self._number == 0:
            self._farm.ends[launch.segment_id] = asyncio.get_running_loop().create_future()

    async def train(self) -> RankResult:
        assert self._launch is not None
        name = self._launch.segment_id
        if self._number:
            return await asyncio.shield(self._farm.ends[name])
        result = await self._train(self._launch)
        self._farm.ends.pop(name).set_result(result)
        return result

    async def _train(self, launch: Launch) -> RankResult:
        work, milestone = self._farm.work, launch.first_milestone
        start = time.monotonic() + random.random() * work.pace_s
        height = random.random()
        for number in range(1, work.reports + 1):
            await asyncio.sleep(max(0.0, start + (number - 1) * work.pace_s - time.monotonic()))
            waits = milestone is not None and number >= milestone
            values = dict(zip(METRICS, (height + 1 / number, 0.5, 0.1, 2.0, float(number)), strict=True))
            sent = time.monotonic()
            taken, answer = await self._send(
                launch.segment_id, Report(report_no=number, metrics=values, time=sent, waits=waits)
            )
            self._reports = number
            if not taken or isinstance(answer, int):
                raise RuntimeError(f"the driver did not accept report {number} of {launch.segment_id}: {answer}")
            self._farm.count(time.monotonic() - sent, waits)
            if waits:
                if answer is None or answer[0] != "continue":
                    return RankResult(kind="left", reports=number)
                milestone = answer[1]
        return RankResult(kind="returned", reports=work.reports)

    async def _send(self, segment_id: str, report: Report) -> Any:
        if self._streams is None:
            assert self._address is not None
            self._streams = await asyncio.open_connection(self._address.host, self._address.port)
            self._streams[1].write(self._address.token + _REPORTS)
        reader, writer = self._streams
        writer.write(_framed((segment_id, [_parts(report)])))
        return await _received(reader)

    def usage(self) -> dict[str, float]:
        return {"time": time.time(), "cpu_s": 1.0, "rss_bytes": 1e9, "gpu_bytes": 1e9, "gpu_reserved_bytes": 2e9}

    def progress(self) -> Progress:
        return Progress(self._reports, 0.0, waiting=False)

    def interrupt(self, *arguments: Any) -> int:
        return self._reports

    def reset(self) -> None:
        self._reports = 0

    def exit(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Farm:
    """All ranks, in one process. Driver hosts connect to its Unix socket."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.ends: dict[str, asyncio.Future[RankResult]] = {}
        self._verdicts: list[float] = []
        self._reports = 0

    def count(self, took: float, waited: bool) -> None:
        self._reports += 1
        if waited:
            self._verdicts.append(took)

    async def serve(self, path: str, control: Any) -> None:
        server = await asyncio.start_unix_server(self._serve, path)
        over = asyncio.Event()

        def asked() -> None:
            try:
                control.recv()
            except EOFError:
                over.set()
                return
            took, self._verdicts = sorted(self._verdicts), []
            reports, self._reports = self._reports, 0
            control.send({"reports": reports, "verdicts": took})

        asyncio.get_running_loop().add_reader(control.fileno(), asked)
        control.send("ready")
        await over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ranks: dict[int, _Rank] = {}
        tasks: set[asyncio.Task[None]] = set()

        async def answer_later(number: int, work: Awaitable[Any]) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the driver host has ended
                writer.write(_framed((number, True, await work)))

        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                rank, number, method, arguments = await _received(reader)
                found = getattr(ranks.setdefault(rank, _Rank(self)), method)(*arguments)
                if asyncio.iscoroutine(found):
                    task = asyncio.create_task(answer_later(number, found))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    continue
                if method == "exit":
                    del ranks[rank]
                writer.write(_framed((number, True, found)))
        for task in tasks:
            task.cancel()


def run_farm(path: str, work: Work, control: Any) -> None:
    many_files()
    asyncio.run(Farm(work).serve(path, control))


# -- the side of the driver host


class FarmLink:
    """The connection of a driver host to the farm."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._ranks = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path)
        self._reading = asyncio.create_task(self._read(reader))

    def rank(self) -> StubActor:
        return StubActor(self, next(self._ranks))

    def call(self, rank: int, method: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        assert self._writer is not None
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._writer.write(_framed((rank, number, method, arguments)))
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, _, value = await _received(reader)
                answer = self._answers.pop(number)
                if not answer.done():
                    answer.set_result(value)


class StubActor:
    """Takes the place of the handle of a rank's Ray actor."""

    def __init__(self, farm: FarmLink, number: int) -> None:
        self._farm, self._number = farm, number

    def __getattr__(self, method: str) -> _Method:
        if method.startswith("_"):
            raise AttributeError(method)
        return _Method(self._farm, self._number, method)


class _Method:
    __slots__ = ("_farm", "_name", "_number")

    def __init__(self, farm: FarmLink, number: int, name: str) -> None:
        self._farm, self._number, self._name = farm, number, name

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        return self._farm.call(self._number, self._name, arguments)


class StubBuilder(GroupBuilder):
    """Builds groups of stub ranks on a cluster that does not exist, and places them at once."""

    def __init__(self, farm: FarmLink, cluster: Mapping[str, Mapping[str, float]], driver: Any, **options: Any) -> None:
        self._farm, self._cluster, self._report_address = farm, cluster, options["report_address"]
        self._node = ""
        self._background: set[asyncio.Future[Any]] = set()
        self._threads = _NoThreads()  # type: ignore[assignment]
        self._free = deque((node, gpu) for node, held in cluster.items() for gpu in range(int(held["GPU"])))
        self.ending, self.uploading = 0, set()
        self.cut = CutNodes(self.blocking, lambda node: None)

    async def build(self, launch: Launch, key: Key, waiting: Callable[[str], None], placed: asyncio.Event) -> Group:
        at = [self._free.popleft() for _ in range(launch.scaling.num_workers)]
        group = Group(key, at, actors=[self._farm.rank() for _ in at])
        placed.set()
        group.held_since = time.monotonic()
        await asyncio.gather(*(actor.hello.remote(self._report_address) for actor in group.actors))
        group.workers = [
            WorkerMetadata(
                node=node, host=node, ip="127.0.0.1", pid=number, gpus=(str(gpu),), channel_address=None, token=b"",
                oom_kills=0,
            )
            for number, (node, gpu) in enumerate(at)
        ]  # fmt: skip
        _, group.assignments = assign_ranks(group.workers, launch.scaling)
        return group

    async def check(self, launch: Launch) -> None:
        pass

    async def nodes(self) -> dict[str, dict[str, float]]:
        return {node: dict(held) for node, held in self._cluster.items()}

    async def node_types(self) -> Sequence[NodeType]:
        return ()

    async def leaving_nodes(self) -> Mapping[str, float | None]:
        return {}

    async def free_resources(self) -> dict[str, float]:
        return {"GPU": float(len(self._free)), "CPU": float(len(self._free))}

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    async def _end(self, group: Group, hand_on: bool = False) -> None:
        await asyncio.gather(*(actor.exit.remote() for actor in group.actors))
        self._free.extend(group.placement)


class _NoThreads:
    def shutdown(self, wait: bool) -> None:
        pass


class StubExecutor:
    """The `Executor` of a driver host whose ranks are in a farm."""

    name: Literal["ray", "local", "agents"] = "ray"
    own_process = True
    node: str | None = None

    def __init__(self, farm: FarmLink, nodes: int) -> None:
        self._farm = farm
        self._cluster = {f"node{number}": {"CPU": 64.0, "GPU": 8.0} for number in range(nodes)}

    def listen_at(self) -> str:
        return "127.0.0.1"

    def groups(self, options: GroupOptions) -> GroupManager:
        pool = Pool(
            None,
            report_address=options.report_address,
            entitlement=options.entitlement,
            builder=functools.partial(StubBuilder, self._farm, self._cluster),
        )
        return GroupManager(pool, logs=options.logs)

    def clean_up(self) -> None:
        pass

    def capacity(self, scaling: Scaling) -> int | None:
        return 8 * len(self._cluster) // scaling.num_workers

    def workers(self, scaling: Scaling) -> int | None:
        return None

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        return [{"NodeID": node, "Alive": True, "Resources": held} for node, held in self._cluster.items()], {}

    async def joining(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Joining]:
        return ()

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    def share(self, value: Any) -> Any:
        return value

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(function, *args)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        pass


def run_driver(url: str, home: str, experiment: str, farm: str, nodes: int, control: Any) -> None:
    """Drive one experiment in this process, until it has ended or `control` is closed."""
    many_files()
    settings = Settings(home=Path(home), database_url=url, storage=f"{home}/checkpoints", log_bytes=0)
    asyncio.run(_drive(settings, experiment, farm, nodes, control))


async def _drive(settings: Settings, experiment: str, path: str, nodes: int, control: Any) -> None:
    link = FarmLink(path)
    await link.connect()
    host = Host(settings, "scale", StubExecutor(link, nodes))
    profile, pauses = Sampler(), Collections()
    over = asyncio.Event()

    def asked() -> None:
        try:
            question = control.recv()
        except EOFError:
            over.set()
            return
        if question == "profile":
            profile.start()
        control.send(profile.stop() if question == "stop" else pauses.longest() if question == "gc" else None)

    asyncio.get_running_loop().add_reader(control.fileno(), asked)
    driving = asyncio.create_task(host.drive(experiment))
    ended = asyncio.create_task(over.wait())
    await asyncio.wait({driving, ended}, return_when=asyncio.FIRST_COMPLETED)
    if driving.done():
        control.send(("ended", driving.result()))
        return
    os._exit(0)  # the benchmark needs no clean shutdown


class Collections:
    """Measures the garbage collections of this process, each of which stops all its threads."""

    def __init__(self) -> None:
        self._begun = self._longest = 0.0
        gc.callbacks.append(self._note)

    def longest(self) -> float:
        """Return how many seconds the longest collection since the last call took."""
        found, self._longest = self._longest, 0.0
        return found

    def _note(self, phase: str, about: Mapping[str, Any]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self._longest = max(self._longest, time.perf_counter() - self._begun)


class Sampler:
    """Samples the stacks of all threads of this process, at even intervals of its CPU time."""

    EVERY_S = 0.002

    def __init__(self) -> None:
        self._own: Counter[str] = Counter()
        self._all: Counter[str] = Counter()
        self._samples = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, self.EVERY_S, self.EVERY_S)

    def stop(self) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {"samples": self._samples, "own": self._own.most_common(45), "all": self._all.most_common(70)}

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._samples += 1
        me = sys._getframe()
        for found in sys._current_frames().values():
            at: FrameType | None = frame if found is me else found
            names = []
            while at is not None:
                code = at.f_code
                names.append(f"{'/'.join(code.co_filename.split('/')[-2:])}:{code.co_name}")
                at = at.f_back
            if names and not names[0].endswith(("selectors.py:select", "threading.py:wait", "thread.py:_worker")):
                self._own[names[0]] += 1
                self._all.update(set(names))


@dataclass(slots=True)
class Process:
    """A process of the benchmark, and the pipe to it."""

    process: multiprocessing.process.BaseProcess
    control: Any
    told: list[Any] = field(default_factory=list)

    @classmethod
    def start(cls, function: Callable[..., None], *arguments: Any) -> Process:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def ask(self, question: Any) -> Any:
        self.control.send(question)
        return self.control.recv()

    def ended(self) -> bool:
        return self.control.poll() or not self.process.is_alive()

    def close(self) -> None:
        self.control.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values; NaN if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
