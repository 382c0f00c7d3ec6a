"""The process of one rank, which stays warm and runs one segment after another.

`tuner.trials.runtime.ray_rank` makes the rank a Ray actor, and `tuner.trials.runtime.local_rank` a process of this machine.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tuner.domain.events import CheckpointInfo
from tuner.domain.keys import keyed_seed
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import Report, Verdict
from tuner.errors import CheckpointLost, CheckpointUnreachable, DriverSilent, EntrypointError, ReportsLost
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Bring, Saver, answer_notes
from tuner.trials.compat import ray_compat
from tuner.trials.compat.on_import import on_import
from tuner.trials.messages import peer_lines
from tuner.trials.messages.channel import ChannelClient, ChannelServer, PeerLost
from tuner.trials.messages.launch import Launch, Resend
from tuner.trials.messages.lifeline import Lifeline
from tuner.trials.messages.lost import unavailable_errors
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.protocol import NotReusable, Progress, RankAssignment, RankError, RankResult, WorkerMetadata
from tuner.trials.messages.report_socket import Address, LogClient, ReportClient
from tuner.trials.messages.rpc import DriverLink
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.function import directories
from tuner.trials.runtime.function.calling import call
from tuner.trials.runtime.function.code import load, resolve
from tuner.trials.runtime.function.modules import Modules
from tuner.trials.runtime.gradient_sync import GradientSyncCheck
from tuner.trials.runtime.hygiene import Baseline
from tuner.trials.runtime.measures.process_stats import cpu_s, oom_kills, usage
from tuner.trials.runtime.measures.profiler import Profiler, Subject
from tuner.trials.runtime.sending.log_shipper import LogShipper
from tuner.trials.runtime.sending.logs import OWN, Capture, note_exits
from tuner.trials.runtime.sending.outbox import Outbox
from tuner.trials.runtime.sending.uploads import Uploads
from tuner.trials.training import driver_calls, session
from tuner.trials.training.session import Context, LeaveTrial, Session

_JOIN_TIMEOUT_S = 120.0
_LAST_SAVE_S = 2.0  # seconds that a failed rank waits for checkpoints that are being saved
_TAIL = 50


@dataclass(slots=True, eq=False)
class _Segment:
    """The state of one segment on one rank."""

    launch: Launch
    session: Session
    saver: Saver
    outbox: Outbox | None
    capture: Capture
    function: Callable[[Any], Any]
    config: dict[str, Any]
    uploading: list[CheckpointInfo] = field(default_factory=list)
    cpu_s_before: float = field(default_factory=cpu_s)
    thread: threading.Thread | None = None
    overstay: threading.Timer | None = None
    result: RankResult | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    ending: threading.Lock = field(default_factory=threading.Lock)

    def end(self, result: RankResult) -> None:
        """Set the result of the segment, unless it is already set."""
        with self.ending:
            if self.result is None:
                self.result = result
                self.ended.set()


CONTROL = (
    "hold", "release", "progress", "stacks", "data_sets", "start_profile", "stop_profile", "take_profile", "usage", "abandon",
)  # fmt: skip
"""The methods of a rank that answer even while training runs. All other methods run one after another."""
LASTING = ("upload_end",)
"""Methods like those of `CONTROL`, whose answer may take minutes."""


class Rank:
    """The process of one rank, on this machine. `RayRank` is the subclass for Ray.

    Args:
        driver: the link by which requests are sent to the driver.
        wants_torch: True to import PyTorch at once, in parallel with other preparations.
        report_address: the address at which the driver listens for reports and logs; None if they are sent through
            `driver`.
        log_limit: how much of each log is sent to the driver; None if nothing is sent.
    """

    def __init__(
        self,
        driver: DriverLink,
        wants_torch: bool,
        report_address: Address | None = None,
        log_limit: LogLimit | None = None,
    ) -> None:
        self._driver = driver
        self._reports = ReportClient(report_address, self._report)
        self._report_address = report_address
        self._lifeline: Lifeline | None = None
        self._token = secrets.token_bytes(16)
        self._log_limit = log_limit
        self._log_client = LogClient(report_address, self._send_log)
        self._assignment: RankAssignment | None = None
        self._channel_server: ChannelServer | None = None
        self._channel_client: ChannelClient | None = None
        self._segment: _Segment | None = None
        self._uploads = Uploads()
        self._codes: dict[str, bytes] = {}
        self._baseline: Baseline | None = None
        self._modules = Modules()
        self._dirty: str | None = None
        self._experiment: str | None = None
        self._undo: list[Callable[[], Any]] = []
        self._profiler = Profiler()
        _own_process_group()
        os.environ[session.RANK_PROCESS] = "1"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TQDM_MININTERVAL", "5")  # progress bars write to a log file
        faulthandler.enable(file=2, all_threads=False)
        note_exits()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        self._importing: threading.Thread | None = None
        if wants_torch:
            self._importing = threading.Thread(target=rendezvous.import_torch, name="tuner-import", daemon=True)
            self._importing.start()
        else:
            on_import("torch", rendezvous.give_way)

    # -- where it runs

    def node(self) -> str | None:
        """Return the id of the node on which this rank runs; None if there is only one machine."""
        return None

    def ip(self) -> str:
        """Return the address at which other ranks reach this rank."""
        return "127.0.0.1"

    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs that belong to this rank."""
        return ()

    def bring(self) -> Bring | None:
        """Return a function that moves files from another node's disk to this node; None if there is only one machine."""
        return None

    def checkpoint_from(self, info: CheckpointInfo) -> Checkpoint:
        """Return the checkpoint to start from, which may be on the disk of another node."""
        return Checkpoint(info.uri, info=info)

    def unpacked(self, code: Any) -> bytes:
        """Return the pickled training function. code: what the driver sent, which is the pickle or refers to it."""
        assert isinstance(code, bytes)
        return code

    # -- one after another

    def hello(self, of_many: bool) -> WorkerMetadata:
        ip = self.ip()
        if of_many:
            self._channel_server = ChannelServer(ip, self._token)
        return WorkerMetadata(
            node=self.node() or socket.gethostname(),
            host=socket.gethostname(),
            ip=ip,
            pid=os.getpid(),
            gpus=self.gpus(),
            channel_address=self._channel_server.address if self._channel_server is not None else None,
            token=self._token,
            oom_kills=oom_kills(),
        )

    def prepare(self, launch: Launch, assignment: RankAssignment | None, code: Any) -> RankError | NotReusable | None:
        """Prepare this process for the training function of a segment. Return None, or why that was not possible.

        Args:
            launch: the segment.
            assignment: the rank of this process; None if an earlier call has assigned it.
            code: the pickled function, or a reference to it; None if this process has the function or imports it.
        """
        capture: Capture | None = None
        try:
            if assignment is not None:
                self._take(assignment)
            if code is not None:
                self._codes = {launch.code.hash: self.unpacked(code)}
            if reason := self._why_not(launch):
                return NotReusable(reason)
            assert self._assignment is not None
            capture = Capture(os.path.join(launch.log_dir, launch.segment_id, f"rank{self._assignment.rank}.log"))
            capture.begin()
            if self._log_limit is not None:
                send = self._log_client.send
                capture.ship(LogShipper(capture.path, launch.segment_id, self._assignment.rank, self._log_limit, send))
            self._segment = self._set_up(launch, self._assignment, capture)
            self._uploads.begin(launch.segment_id, self._segment.saver)
            return None
        except BaseException as error:
            self._put_back()
            tail = ""
            if capture is not None:
                capture.end()
                tail = capture.tail(_TAIL)
            self._dirty = "it failed to start a trial"
            return describe(error, tail)

    def train(self) -> RankResult:
        """Run the training function of the prepared segment until it ends, and return the result.

        The function runs on a new thread, so that thread-local data is discarded when it ends.
        """
        segment = self._segment
        if segment is None:
            return RankResult(
                kind="failed", error=RankError(type="RuntimeError", message="was not prepared", communication=True)
            )
        segment.session.progressed_at = time.monotonic()
        segment.thread = threading.Thread(target=self._main, args=(segment,), name="train", daemon=True)
        segment.thread.start()
        segment.ended.wait()
        assert segment.result is not None
        return segment.result

    def reset(self) -> str | None:
        """Clean up after a segment. Return None, or the reason why this process cannot be reused.

        Call this only after the segment has ended on all ranks: tearing down the process group earlier would break the
        last collectives of other ranks.
        """
        if self._segment is not None:
            self._segment.saver.discard()
        self._segment = None
        rendezvous.leave()
        if self._baseline is not None and self._dirty is None:
            self._modules.note()
            self._dirty = self._baseline.restore()
        return self._dirty

    # -- while training runs

    def hold(self, segment_id: str, interrupt: str) -> int | None:
        """Keep the next report from beginning, and return the number of the latest settled report; see `Session.hold`.

        Return None if this process no longer runs the segment.
        """
        running = self._session_of(segment_id)
        return running.hold(interrupt) if running is not None else None

    def release(self, segment_id: str, interrupt: str, milestone: int | None) -> None:
        running = self._session_of(segment_id)
        if running is not None:
            running.release(interrupt, milestone)

    def progress(self) -> Progress | None:
        segment = self._segment
        if segment is None or segment.ended.is_set():
            return None
        running = segment.session
        # Before the training function starts, a slow rank does not count as hung.
        idle = time.monotonic() - running.progressed_at if segment.thread is not None else 0.0
        waits = running.waiting_for_verdict
        if segment.outbox is not None:  # a rank that waits because the driver cannot commit does not count as hung
            idle = min(idle, time.monotonic() - segment.outbox.answered_at)
            waits = waits or segment.outbox.waits
        return Progress(running.count, idle, waits, running.saving)

    def stacks(self) -> str:
        """Return the Python stacks of this process, the training thread first."""
        training = (
            self._segment.thread.ident if self._segment is not None and self._segment.thread is not None else None
        )
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != training)
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
            for ident, frame in frames
            if not names.get(ident, "").startswith(("ray_", "tuner-"))
        )

    def data_sets(self) -> list[dict[str, Any]]:
        """Return the state of the data sets of Ray Data that the trial reads; see `Shards.look`."""
        datasets = sys.modules.get("tuner.trials.compat.datasets")  # it is loaded if the trial may have any
        return datasets.look() if datasets is not None else []

    def start_profile(self, segment_id: str, profile_id: str, request: ProfileRequest) -> str | None:
        """Begin to profile this process in the background. Return None, or the reason why that is not possible."""
        segment = self._segment
        if segment is None or segment.launch.segment_id != segment_id or segment.ended.is_set():
            return "has ended"
        name = f"trial {segment.launch.trial_number}, rank {segment.session.context.world_rank}"
        thread = segment.thread.ident if segment.thread is not None else None
        return self._profiler.start(Subject(profile_id, name, thread, segment.ended), request)

    def stop_profile(self, profile_id: str) -> None:
        """End a profile that nobody wants any more. If it has not begun yet, it will not begin."""
        self._profiler.stop(profile_id)

    def take_profile(self, profile_id: str) -> dict[str, Any] | None:
        """Return the profile if it was begun last; None while it is being made."""
        return self._profiler.take(profile_id)

    def usage(self) -> dict[str, float]:
        """Return this rank's use of CPU, memory and GPUs, as `process_stats.usage` does.

        CPU time counts from the start of the segment.
        """
        segment = self._segment
        return usage(segment.cpu_s_before if segment is not None else 0.0)

    def upload_end(self, segment_id: str, checkpoint: str) -> CheckpointInfo | str:
        """Wait until a checkpoint of an ended segment is saved, and return it, or return why it could not be saved.

        checkpoint: the id of one of the checkpoints in `RankResult.uploading`.
        """
        saver = self._uploads.saver(segment_id)
        return saver.outcome(checkpoint) if saver is not None else "its upload is not known any more"

    def abandon(self, segment_id: str, why: str) -> None:
        """Commit none of the checkpoints of an ended segment that are still being uploaded."""
        saver = self._uploads.saver(segment_id)
        if saver is not None:
            saver.abandon(why)

    # -- setting up

    def _take(self, assignment: RankAssignment) -> None:
        self._assignment = assignment
        to = self._report_address
        if to is not None and assignment.local_rank == 0 and (assignment.nodes > 1 or self.ip() != to.host):
            self._lifeline = Lifeline(to, self._token)
        if assignment.rank != 0 and self._channel_server is not None:
            if assignment.watchers:
                listener = self._channel_server.give_up_listener()
                peer_lines.accept(listener, assignment.token, assignment.watchers, _JOIN_TIMEOUT_S)
            self._channel_server.close()
            self._channel_server = None
        if assignment.rank == 0 and self._channel_server is not None:
            self._channel_server.accept(assignment.world_size, _JOIN_TIMEOUT_S)
        elif assignment.world_size > 1:
            assert assignment.channel_address is not None
            self._channel_client = ChannelClient(
                assignment.channel_address, assignment.token, assignment.rank, _JOIN_TIMEOUT_S
            )
            threading.Thread(
                target=answer_notes,
                args=(self._channel_client, self._uploads.saver, self._uploads.has_begun, self._cut_off),
                name="tuner-notes",
                daemon=True,
            ).start()
        if assignment.peers and self._lifeline is not None:
            peer_lines.watch(assignment.peers, assignment.token, self._parted)
        os.environ.update(assignment.environment())
        if assignment.nodes > 1:
            rendezvous.choose_interface(self.ip())
        if self._importing is not None:
            self._importing.join()
        self._baseline = Baseline()
        self._baseline.remember_torch()

    def _cut_off(self) -> None:
        """Tell the driver that this rank cannot reach rank 0. A collective of the training code would wait for long."""
        if self._lifeline is not None and self._assignment is not None:
            assert self._assignment.channel_address is not None
            self._lifeline.tell(f"it cannot reach rank 0 at {self._assignment.channel_address[0]}")

    def _parted(self, rank: int, host: str) -> None:
        """Tell the driver that this rank cannot reach another rank that is not rank 0."""
        if self._lifeline is not None:
            self._lifeline.tell(f"it cannot reach rank {rank} at {host}")

    def _why_not(self, launch: Launch) -> str | None:
        if self._dirty is not None:
            return self._dirty
        if self._baseline is not None and launch.experiment_id != self._experiment:
            self._experiment = launch.experiment_id
            if stale := self._modules.stale():
                return f"{stale} has changed since it was imported"
        return None

    def _set_up(self, launch: Launch, assignment: RankAssignment, capture: Capture) -> _Segment:
        assert self._baseline is not None
        os.environ.update(launch.env)
        _add_to_path(launch)
        own_directory = directories.enter(launch, assignment.rank)
        self._seed(launch, assignment)
        self._modules.note()
        function = load(launch.code, self._codes.get(launch.code.hash))
        config = resolve(launch)
        self._modules.note()
        checkpoint = self.checkpoint_from(launch.checkpoint) if launch.checkpoint is not None else None
        if checkpoint is not None and assignment.local_rank == 0:
            checkpoint.verify()
            if checkpoint.is_elsewhere:
                # Fetch the files before user code runs: if their node is lost, that is not an error of user code.
                borrowed = contextlib.ExitStack()
                borrowed.enter_context(checkpoint.as_directory())
                self._undo.append(borrowed.close)
        sync_check: GradientSyncCheck | None = None
        if assignment.backend != "none":
            self._set_up_torch(launch, assignment)
            if assignment.world_size > 1 and assignment.rank == 0:
                sync_check = GradientSyncCheck()
                self._undo.append(sync_check.close)
        outbox = Outbox(_Sender(self._reports, launch.segment_id)) if assignment.rank == 0 else None
        saver = Saver(
            storage=launch.storage,
            segment_id=launch.segment_id,
            trial_number=launch.trial_number,
            rank=assignment.rank,
            world_size=assignment.world_size,
            server=self._channel_server,
            node=self.node(),
            bring=self.bring(),
            durable=launch.durable,
            committed=lambda info: self._committed(launch, outbox, info),
        )
        running = Session(
            Context(
                experiment_id=launch.experiment_id,
                trial_id=launch.trial_id,
                trial_number=launch.trial_number,
                segment_id=launch.segment_id,
                world_size=assignment.world_size,
                base_world_size=launch.base_workers,
                keep_global_batch_size=launch.scaling.keep_global_batch_size,
                world_rank=assignment.rank,
                local_rank=assignment.local_rank,
                local_world_size=assignment.local_world_size,
                node_rank=assignment.node_rank,
                config=config,
                seed=launch.seed,
                start_iteration=launch.start_iteration,
                devices=assignment.devices,
                resources=launch.scaling.bundle(),
                log_file=capture.path,
                trial_dir=own_directory,
            ),
            reports=outbox,
            peers=_ChannelPeers(self._channel_server, self._channel_client, launch)
            if assignment.world_size > 1
            else None,
            saver=saver,
            checkpoint=checkpoint,
            first_milestone=launch.first_milestone,
            checkpoint_every=launch.checkpoint_every,
            milestone_checkpoints=launch.milestone_checkpoints,
            checkpoint_at_end=launch.checkpoint_policy.at_end,
            objective=launch.metric,
            watch=sync_check,
        )
        segment = _Segment(launch, running, saver, outbox, capture, function, config)
        running.on_leave = lambda verdict: self._expect_end(segment, verdict)
        return segment

    def _set_up_torch(self, launch: Launch, assignment: RankAssignment) -> None:
        """Set up torch.distributed: for several ranks at once, for a single rank only when its code imports PyTorch."""

        def imported() -> None:
            assert self._baseline is not None
            self._baseline.remember_torch()
            rendezvous.join(assignment, launch.segment_id, self._channel_server, self._channel_client)

        if assignment.world_size > 1:
            imported()
        else:
            self._undo.append(on_import("torch", imported))

    def _seed(self, launch: Launch, assignment: RankAssignment) -> None:
        seed = keyed_seed(launch.seed, "rank", launch.trial_number, assignment.rank, launch.start_iteration)
        random.seed(seed)
        self._undo = [
            on_import("numpy", lambda: sys.modules["numpy"].random.seed(seed % 2**32)),
            on_import("torch", lambda: sys.modules["torch"].manual_seed(seed)),
        ]

    # -- running

    def _main(self, segment: _Segment) -> None:
        session.activate(segment.session)
        self._undo.append(driver_calls.open_for(self._driver, segment.launch.segment_id))
        self._undo.append(ray_compat.install(segment.session))
        result = RankResult(kind="failed", error=RankError(type="RuntimeError", message="ended in an unknown way"))
        try:
            result = self._run(segment)
        except BaseException as error:
            result = RankResult(kind="failed", reports=segment.session.count, error=describe(error, ""))
        finally:
            session.activate(None)
            self._put_back()
            if segment.overstay is not None:
                segment.overstay.cancel()
            rest = segment.capture.end(take_rest=True)
            if result.error is not None:
                result = replace(result, error=replace(result.error, log_tail=segment.capture.tail(_TAIL)))
            segment.end(replace(result, log=rest))

    def _run(self, segment: _Segment) -> RankResult:
        running = segment.session
        error: RankError | None = None
        try:
            call(segment.function, segment.config, running, segment.launch)
            running.finish()
        except LeaveTrial as leave:
            if leave is not running.left:
                raise
        except BaseException as raised:
            if running.left is None:
                error = describe(raised, "")
                sys.stderr.write(error.traceback)
        if segment.overstay is not None:
            segment.overstay.cancel()
        running.saving = True
        try:
            if error is not None:
                segment.saver.drain(_LAST_SAVE_S)
            else:
                assert self._baseline is not None
                may_continue = not self._baseline.has_own_credentials()
                segment.uploading = self._uploads.leave(segment.saver, may_continue)
        except Exception as raised:
            error = error or _not_saved(raised)
        if segment.outbox is not None:
            try:
                segment.outbox.close()
            except ReportsLost as raised:
                error = error or describe(raised, "")
        if error is not None:
            return RankResult(kind="failed", reports=running.count, error=error)
        kind: Literal["left", "returned"] = "left" if running.left is not None else "returned"
        return RankResult(
            kind=kind,
            reports=running.count,
            as_value=running.as_value,
            warning=running.warning,
            uploading=segment.uploading,
        )

    def _put_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _expect_end(self, segment: _Segment, verdict: Verdict) -> None:
        """Fail the segment if the training function does not end within `stop_grace_s` after a verdict to leave.

        The grace period leaves the function time to run its `finally` blocks.
        """
        grace = segment.launch.limits.stop_grace_s
        segment.saver.patience_s = grace

        def overstayed() -> None:
            message = f"did not end within {grace:g} s of being told to {verdict.action}"
            self._dirty = message
            error = RankError(type="", message=message, cause="stop_ignored", log_tail=segment.capture.tail(_TAIL))
            segment.end(RankResult(kind="failed", reports=segment.session.count, error=error))

        segment.overstay = threading.Timer(grace, overstayed)
        segment.overstay.name = "tuner-overstay"
        segment.overstay.daemon = True
        segment.overstay.start()

    def _report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        answer: Verdict | Resend | None = self._driver.ask("report", segment_id, reports, patience_s=0.0)
        return answer  # the outbox tries again

    def _send_log(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        self._driver.ask("take_logs", segment_id, chunks, patience_s=0.0)  # the shipper tries again

    def _committed(self, launch: Launch, outbox: Outbox | None, info: CheckpointInfo) -> None:
        """Tell the driver about a checkpoint, once the driver has committed the report to which it belongs."""
        assert outbox is not None
        outbox.wait_for(info.step - launch.start_iteration)
        self._driver.ask("checkpoint", launch.segment_id, info)

    def _session_of(self, segment_id: str) -> Session | None:
        segment = self._segment
        return segment.session if segment is not None and segment.launch.segment_id == segment_id else None


class _Sender:
    """Sends the reports of one segment to the driver host."""

    def __init__(self, reports: ReportClient, segment_id: str) -> None:
        self._reports = reports
        self._segment = segment_id

    def send(self, messages: list[Report]) -> Verdict | Resend | None:
        return self._reports.send(self._segment, messages)


class _ChannelPeers:
    """Implements the session's interface `Peers`, by messages over the worker group's channel."""

    def __init__(self, server: ChannelServer | None, client: ChannelClient | None, launch: Launch) -> None:
        self._channel_server, self._channel_client = server, client
        self._segment = launch.segment_id
        self._over = False  # rank 0 has ended
        self._early = deque(self._waiting())

    def _waiting(self) -> Iterator[Any]:
        """Yield the messages for this segment that have already arrived, and drop those for earlier segments.

        Unread messages of earlier segments could fill the socket, which would block rank 0.
        """
        with contextlib.suppress(TimeoutError):
            while self._channel_client is not None:
                message = self._channel_client.verdicts.receive(0)
                if message[1] == self._segment:
                    yield message

    def hand_out(self, report_no: int, verdict: Verdict) -> None:
        assert self._channel_server is not None
        self._channel_server.broadcast(("verdict", self._segment, report_no, verdict))

    def ended(self) -> None:
        assert self._channel_server is not None
        with contextlib.suppress(PeerLost):  # a rank that is gone does not wait
            self._channel_server.broadcast(("ended", self._segment))

    def announce(self) -> None:
        assert self._channel_server is not None
        self._channel_server.broadcast(("report", self._segment))

    def heard(self) -> Literal["report", "verdict", "ended"] | None:
        """Return the kind of rank 0's next message, or None if none has arrived.

        A "report" message is removed. A verdict and all messages after it stay in the queue for `take`.
        """
        if self._over:
            return "ended"
        assert self._channel_client is not None
        while not self._early:
            try:
                message = self._channel_client.verdicts.receive(0)
            except TimeoutError:
                return None
            if message[1] == self._segment:
                self._early.append(message)
        if self._early[0][0] == "report":
            self._early.popleft()
            return "report"
        if self._early[0][0] == "ended":
            self._over = True
            return "ended"
        return "verdict"

    def take(self, report_no: int) -> Verdict:
        assert self._channel_client is not None
        while not self._over:  # needs no time limit: the loss of rank 0 raises PeerLost, and the manager detects hangs
            kind, segment, *rest = self._early.popleft() if self._early else self._channel_client.verdicts.receive()
            self._over = kind == "ended" and segment == self._segment
            if kind != "verdict" or segment != self._segment:
                continue
            number, verdict = rest
            if number != report_no:
                raise RuntimeError(
                    f"rank 0 is at report {number} and this rank at report {report_no}: "
                    "every rank must call tuner.report equally often"
                )
            answer: Verdict = verdict
            return answer
        return Verdict()  # the group manager warns of unequal counts


def _own_process_group() -> None:
    """Make this process the leader of an OS process group, so that it can be killed with its child processes.

    Also restore the default effect of SIGTERM, which is to end the process.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def describe(error: BaseException, log_tail: str) -> RankError:
    return RankError(
        type=type(error).__name__,
        message="; ".join((str(error) or type(error).__name__, *getattr(error, "__notes__", ()))),
        traceback=_readable(error),
        log_tail=log_tail,
        cause=_cause(error),
        communication=any(
            isinstance(e, PeerLost) or rendezvous.is_echo(e) for e in (error, error.__cause__) if e is not None
        ),
    )


def _not_saved(error: Exception) -> RankError:
    """Describe an error that kept a checkpoint from being saved or from being reported to the driver."""
    described = describe(error, "")
    root = error.__cause__ or error
    return replace(described, cause=_cause(root) if isinstance(root, ReportsLost | DriverSilent) else "checkpoint")


def _cause(error: BaseException) -> str:
    if isinstance(error, CheckpointLost):
        return "disk_lost" if error.node is not None else "checkpoint_lost"
    if isinstance(error, ReportsLost | DriverSilent):
        return "driver_lost"
    if isinstance(error, unavailable_errors()):
        return "actor_unavailable"
    if isinstance(error, CheckpointUnreachable):
        return "checkpoint_unreachable"
    return "spec" if isinstance(error, EntrypointError) else "exception"


def _readable(error: BaseException) -> str:
    """Return the traceback of an error as text, without its first frames if these belong to `tuner.trials`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(OWN):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _add_to_path(launch: Launch) -> None:
    """Add the folders of the user's code to `sys.path`, after the ``working_dir`` and ``py_modules`` that were sent with it.

    On the machine where directories were packed, the originals are among the folders, and may have been edited since.
    """
    has_code = launch.runtime_env.get("py_modules") or launch.runtime_env.get("working_dir")
    sent = os.environ.get("PYTHONPATH", "").split(os.pathsep) if has_code else []
    at = 1 + max((i for i, entry in enumerate(sys.path) if entry and entry in sent), default=-1)
    for entry in reversed(launch.code.sys_path):
        if entry not in sys.path:
            sys.path.insert(at, entry)
