"""The process of one rank, which stays warm and runs one segment after another.

`tuner.trials.runtime.ray_rank` makes the rank a Ray actor, and `tuner.trials.runtime.local_rank` a process on this machine.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tuner.domain.events import CheckpointInfo
from tuner.domain.keys import keyed_seed
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import NOT_MOUNTED, Report, Verdict
from tuner.errors import CheckpointError, CheckpointLost, text_of
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Bring, Saver, answer_notes
from tuner.trials.checkpoints.storage import nothing_around, place
from tuner.trials.compat import ray_compat
from tuner.trials.compat.on_import import on_import
from tuner.trials.messages import peer_lines
from tuner.trials.messages.channel import ChannelClient, ChannelServer
from tuner.trials.messages.launch import Launch, Resend
from tuner.trials.messages.lifeline import Lifeline
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.protocol import NotReusable, Progress, RankAssignment, RankError, RankResult, WorkerMetadata
from tuner.trials.messages.report_socket import Address, LogClient, ReportClient
from tuner.trials.messages.rpc import DriverLink
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.errors import describe
from tuner.trials.runtime.function import directories, script_names
from tuner.trials.runtime.function.code import add_to_path, load, resolve
from tuner.trials.runtime.function.garbage import rarely_collected
from tuner.trials.runtime.function.modules import Modules
from tuner.trials.runtime.gradient_sync import GradientSyncCheck
from tuner.trials.runtime.hygiene import Baseline
from tuner.trials.runtime.measures.process_stats import usage
from tuner.trials.runtime.measures.profiler import Profiler, Subject
from tuner.trials.runtime.measures.stacks import stacks
from tuner.trials.runtime.peers import ChannelPeers
from tuner.trials.runtime.segment import TAIL, Segment
from tuner.trials.runtime.sending.log_shipper import LogShipper
from tuner.trials.runtime.sending.logs import Capture, keep_printing, note_exits
from tuner.trials.runtime.sending.outbox import Outbox
from tuner.trials.runtime.sending.uploads import Uploads
from tuner.trials.training import driver_calls, session
from tuner.trials.training.oom import oom_kills
from tuner.trials.training.session import Context, Session

_JOIN_TIMEOUT_S = 120.0
_FAILED = "failed"  # holds the reports of a failed segment, in place of an interrupt's id; never released


CONTROL = (
    "hold", "release", "send_reports", "progress", "stacks", "data_sets", "start_profile", "stop_profile", "take_profile",
    "usage", "abandon",
)  # fmt: skip
"""The methods of a rank that answer even while training runs. All other methods run one after another."""

LASTING = ("upload_end",)
"""Methods like those in `CONTROL`, but whose answer may take minutes."""


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
        self._segment: Segment | None = None
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
        self._sets_threads = "OMP_NUM_THREADS" not in os.environ  # neither the user nor Ray has set it
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TQDM_MININTERVAL", "5")  # progress bars write to a log file
        faulthandler.enable(file=2, all_threads=False)
        note_exits()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # logs are UTF-8
        keep_printing()
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
        """Return the checkpoint to start from, which may be on another node's disk."""
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

    def prepare(self, launch: Launch, assignment: RankAssignment | None, code: Any) -> RankError | NotReusable | int:
        """Prepare this process for a segment's training function.

        Return the number of OOM kills on this node so far, or why it was impossible to prepare.

        Args:
            launch: the segment.
            assignment: the rank of this process; None if an earlier call has assigned it.
            code: the pickled function, or a reference to it; None if this process already has the function or imports it.
        """
        capture: Capture | None = None
        try:
            if assignment is not None:
                self._take(assignment, launch)
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
            return oom_kills()
        except BaseException as error:
            self._put_back()
            tail = ""
            if capture is not None:
                capture.end()
                tail = capture.tail(TAIL)
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
            if (left := self._segment.session.left) is not None:
                # Free what the training function used, such as a data loader, which then stops its processes. In a garbage
                # collection, the queues of the loader are closed first, so it waits 5 s for its processes and then kills them.
                left.__traceback__ = None
        self._segment = None
        rendezvous.leave()
        if self._baseline is not None and self._dirty is None:
            self._modules.note()
            try:
                self._dirty = self._baseline.restore()
            except Exception as error:
                self._dirty = f"its clean-up failed: {text_of(error)}"
        rendezvous.free()
        return self._dirty

    # -- while training runs

    def hold(self, segment_id: str, interrupt: str) -> int | None:
        """Block the next report, and return the number of the latest settled report; see `Session.hold`.

        Return None if this process no longer runs the segment.
        """
        running = self._session_of(segment_id)
        return running.hold(interrupt) if running is not None else None

    def release(self, segment_id: str, interrupt: str, milestone: int | None) -> None:
        running = self._session_of(segment_id)
        if running is not None:
            running.release(interrupt, milestone)

    def send_reports(self) -> list[CheckpointInfo]:
        """Block further reports, and return once the driver has committed those already made, with their checkpoints.

        Return the checkpoints whose upload continues, as `RankResult.uploading`. Called on rank 0 when another rank has failed,
        before the processes are stopped.
        """
        segment = self._segment
        if segment is None or segment.outbox is None:
            return []
        segment.session.hold(_FAILED)
        segment.outbox.flush()
        segment.session.saving = True
        assert self._baseline is not None
        with contextlib.suppress(CheckpointError):  # the segment has failed already
            return self._uploads.leave_failed(segment.saver, not self._baseline.has_own_credentials())
        return []

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
        return stacks(training)

    def data_sets(self) -> list[dict[str, Any]]:
        """Return the state of the Ray Data data sets that the trial reads; see `Shards.look`."""
        datasets = sys.modules.get("tuner.trials.compat.datasets")  # loaded by a trial that may have data sets
        return datasets.look() if datasets is not None else []

    def start_profile(self, segment_id: str, profile_id: str, request: ProfileRequest) -> str | None:
        """Begin to profile this process in the background. Return None, or the reason why that is impossible."""
        segment = self._segment
        if segment is None or segment.launch.segment_id != segment_id or segment.ended.is_set():
            return "has ended"
        name = f"trial {segment.launch.trial_number}, rank {segment.session.context.world_rank}"
        thread = segment.thread.ident if segment.thread is not None else None
        return self._profiler.start(Subject(profile_id, name, thread, segment.ended), request)

    def stop_profile(self, profile_id: str) -> None:
        """Stop a profile that is no longer wanted. If it has not begun yet, it will not begin."""
        self._profiler.stop(profile_id)

    def take_profile(self, profile_id: str) -> dict[str, Any] | None:
        """Return a profile if it is the newest one; None while it is being made."""
        return self._profiler.take(profile_id)

    def usage(self) -> dict[str, float]:
        """Return this rank's CPU, memory and GPU usage, as `process_stats.usage` does.

        CPU time is counted from the start of the segment.
        """
        segment = self._segment
        return usage(segment.cpu_s_before if segment is not None else 0.0)

    def upload_end(self, segment_id: str, checkpoint: str) -> CheckpointInfo | str:
        """Wait until a checkpoint of an ended segment is saved or lost. Return it, or the reason why it could not be saved.

        checkpoint: the id of one of the checkpoints in `RankResult.uploading`.
        """
        saver = self._uploads.saver(segment_id)
        return saver.outcome(checkpoint) if saver is not None else "its upload is no longer known"

    def abandon(self, segment_id: str, why: str) -> None:
        """Make sure that checkpoints of an ended segment that are still being uploaded are not committed."""
        saver = self._uploads.saver(segment_id)
        if saver is not None:
            saver.abandon(why)

    # -- setting up

    def _take(self, assignment: RankAssignment, launch: Launch) -> None:
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
            peer_lines.watch(assignment.peers, assignment.token, self._peer_unreachable)
        os.environ.update(assignment.environment())
        if self._sets_threads:  # to the number that Ray sets
            os.environ["OMP_NUM_THREADS"] = str(max(1, int(launch.scaling.bundle().get("CPU", 0.0))))
        if assignment.nodes > 1:
            rendezvous.choose_interface(self.ip())
        if self._importing is not None:
            self._importing.join()
        self._baseline = Baseline()
        self._baseline.remember_torch()

    def _cut_off(self) -> None:
        """Tell the driver that this rank cannot reach rank 0. A collective in the training code would hang for a long time."""
        if self._lifeline is not None and self._assignment is not None:
            assert self._assignment.channel_address is not None
            self._lifeline.tell(f"it cannot reach rank 0 at {self._assignment.channel_address[0]}")

    def _peer_unreachable(self, rank: int, host: str) -> None:
        """Tell the driver that this rank cannot reach a rank other than rank 0."""
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

    def _set_up(self, launch: Launch, assignment: RankAssignment, capture: Capture) -> Segment:
        assert self._baseline is not None
        os.environ.update(launch.env)
        add_to_path(launch)
        own_directory = directories.enter(launch, assignment.rank)
        self._seed(launch, assignment)
        self._modules.note()
        imported, settings = len(sys.modules), self._baseline.read()
        self._undo.append(script_names.remove)
        with rarely_collected():
            function = load(launch.code, self._codes.get(launch.code.hash))
        config = resolve(launch)
        if len(sys.modules) != imported:  # a warm process imports nothing again
            self._baseline.adopt(settings)
            self._seed(launch, assignment)  # imports may have drawn random numbers
        self._modules.note()
        checkpoint = self.checkpoint_from(launch.checkpoint) if launch.checkpoint is not None else None
        if launch.has_saved and not os.path.lexists(place(launch.storage).path):
            raise _not_mounted(launch, nothing_around(launch.storage))
        if checkpoint is not None and assignment.local_rank == 0:
            try:
                checkpoint.verify()
            except CheckpointLost as lost:
                if (root := nothing_around(launch.storage)) is None:
                    raise
                raise _not_mounted(launch, root) from lost
            if checkpoint.is_elsewhere:
                # Fetch the files before user code runs: if their node is lost, that is not the user code's fault.
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
            peers=ChannelPeers(self._channel_server, self._channel_client, launch)
            if assignment.world_size > 1
            else None,
            saver=saver,
            checkpoint=checkpoint,
            first_milestone=launch.first_milestone,
            checkpoint_every=launch.checkpoint_every,
            milestone_checkpoints=launch.milestone_checkpoints,
            checkpoint_at_end=launch.checkpoint_policy.at_end,
            objective=launch.metric,
            modes=launch.modes,
            watch=sync_check,
        )
        segment = Segment(launch, running, saver, outbox, capture, function, config)
        running.on_leave = lambda verdict: segment.expect_end(verdict, self._mark_dirty)
        return segment

    def _set_up_torch(self, launch: Launch, assignment: RankAssignment) -> None:
        """Set up torch.distributed: immediately for several ranks; for a single rank, only when its code imports PyTorch."""

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
        self._undo += [
            on_import("numpy", lambda: _seed_numpy(seed)),
            on_import("torch", lambda: _seed_torch(seed)),
        ]

    # -- running

    def _main(self, segment: Segment) -> None:
        result = RankResult(kind="failed", error=RankError(type="RuntimeError", message="ended in an unknown way"))
        try:
            session.activate(segment.session)
            self._undo.append(driver_calls.open_for(self._driver, segment.launch.segment_id))
            self._undo.append(ray_compat.install(segment.session))
            assert self._baseline is not None
            assert self._assignment is not None
            baseline = self._baseline
            baseline.begin_trial()
            rendezvous.use_device(self._assignment)  # the current device is that of a thread
            result = segment.run(self._uploads, lambda: not baseline.has_own_credentials())
        except BaseException as error:
            result = RankResult(kind="failed", reports=segment.session.count, error=describe(error, ""))
        finally:
            session.activate(None)
            self._put_back()
            if segment.overstay is not None:
                segment.overstay.cancel()
            rest = segment.capture.end(take_rest=True)
            if result.error is not None:
                result = replace(result, error=replace(result.error, log_tail=segment.capture.tail(TAIL)))
            segment.end(replace(result, log=rest))

    def _mark_dirty(self, why: str) -> None:
        self._dirty = why

    def _put_back(self) -> None:
        """Undo what was changed in this process for the segment. If a part of that fails, do the rest."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:  # user code may have changed the same
                self._mark_dirty(f"its clean-up failed: {text_of(error)}")

    def _report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        answer: Verdict | Resend | None = self._driver.ask("report", segment_id, reports, patience_s=0.0)
        return answer  # the outbox retries

    def _send_log(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        self._driver.ask("take_logs", segment_id, chunks, patience_s=0.0)  # the shipper retries

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


def _not_mounted(launch: Launch, root: str | None) -> OSError:
    """Return the error of a storage without the experiment's folder. root: the directory around that folder, if it is empty."""
    missing = f"nothing in {root}" if root is not None else f"no folder {launch.storage}"
    return OSError(
        f"there is {missing}: {NOT_MOUNTED} If you have deleted the checkpoints, create the folder {launch.storage}"
    )


def _seed_numpy(seed: int) -> None:
    """Seed NumPy's global random generator.

    Import `numpy.random` instead of reading the attribute of `numpy`. wandb puts a module into `sys.modules` that is loaded
    when it is first used, and until it is completely loaded, it lacks the attributes that NumPy loads on demand.
    """
    importlib.import_module("numpy.random").seed(seed % 2**32)


def _seed_torch(seed: int) -> None:
    """Seed PyTorch's random generators.

    If PyTorch was built without accelerator support, seed only the CPU's: `torch.manual_seed` would format a stack for
    each kind of accelerator, in case it is used later, which takes half a millisecond. Do not check whether an
    accelerator is present: with CUDA, that would fix the visible devices, and child processes that the trial forks
    could not use CUDA.
    """
    torch = sys.modules["torch"]
    # PyTorch 2.6 would check whether one is present, and raise an error if not.
    if torch.__version__ < (2, 7) or torch.accelerator.current_accelerator() is not None:
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _own_process_group() -> None:
    """Make this process the leader of an OS process group, so that it can be killed with its child processes.

    Also restore the default action of SIGTERM, which is to terminate the process.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
