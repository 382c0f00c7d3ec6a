"""Clean up a worker process between two trials, or find out why that is impossible.

The clean-up restores the state of Python (see `python_state`) and PyTorch (see `torch_state`). It frees compiled graphs,
tracebacks that keep tensors alive, and reference cycles. The random generators are seeded when the next trial starts. If
the trial left threads, child processes, GPU memory or a broken CUDA context behind, its worker group is not reused. The
user's modules stay imported, with their module-level state.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from tuner.trials.runtime.measures.process_stats import has_children
from tuner.trials.runtime.python_state import PythonState
from tuner.trials.runtime.torch_state import TorchState

_HARMLESS = ("TMonitor", "tqdm_monitor", "ray_", "tuner-", "wandb-")  # tqdm has used both names
_COMPILER_FILES = "torch/_inductor/compile_worker/"  # the threads and processes that compile kernels
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    _COMPILER_FILES,
    "wandb-core",  # uploads Weights & Biases runs, including those of later trials; it exits with this process
)
_OF_STORAGE = ("AWS_", "GOOGLE_", "AZURE_", "HADOOP_", "ARROW_", "KRB5", "CLASSPATH", "LD_LIBRARY_PATH")
_GRACE_S = 0.3
_TERMINATE_S = 2.0  # seconds from SIGTERM to SIGKILL, for example for a tracker that is still sending its data
_POOL_THREADS = 64


class Baseline:
    """The state of the process before its first trial. `restore` returns the process to this state."""

    def __init__(self) -> None:
        self._python = PythonState()
        self._torch: TorchState | None = None
        self._threads = {thread.ident for thread in threading.enumerate()}
        gc.collect()
        self._freeze()

    def remember_torch(self) -> None:
        """Record PyTorch's global settings. Call this once PyTorch is imported, before user code changes them."""
        torch = sys.modules.get("torch")
        if torch is None or self._torch is not None:
            return
        self._torch = TorchState(torch)
        self._torch.allow_inter_op()
        self._freeze()

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the current settings of Python and of PyTorch, for `adopt`."""
        return self._python.read(), self._torch.read() if self._torch is not None else {}

    def adopt(self, before: tuple[dict[str, Any], dict[str, Any]]) -> None:
        """Keep the settings that the user's modules have changed since `before` was read. They are not imported again."""
        self._python.adopt(before[0])
        if self._torch is not None and before[1]:
            self._torch.adopt(before[1])

    def begin_trial(self) -> None:
        """Attribute all logger handlers that are added from now on to a new trial."""
        self._python.handlers.begin_trial()

    def has_own_credentials(self) -> bool:
        """Return whether the trial has set credentials or options for remote storage, which `restore` would remove."""
        present = {name: value for name, value in os.environ.items() if name.startswith(_OF_STORAGE)}
        before = {name: value for name, value in self._python.environment.items() if name.startswith(_OF_STORAGE)}
        return present != before

    def restore(self) -> str | None:
        """Restore the state of the process. Return None, or the reason why the process should not be reused."""
        reason = self._python.restore()
        gc.collect()  # stops the processes of data loaders and pools that are no longer referenced
        if len(sys.modules) > self._frozen_modules:
            self._freeze()
        return reason or self._leftovers() or (self._torch.restore() if self._torch is not None else None)

    def _freeze(self) -> None:
        """Exclude long-lived objects, such as imported libraries, from later garbage collections."""
        gc.freeze()
        self._frozen_modules = len(sys.modules)

    def _leftovers(self) -> str | None:
        wandb = sys.modules.get("wandb")
        if getattr(wandb, "run", None) is not None:
            return "a run of Weights & Biases was not finished"  # the next trial's `wandb.init` might return it
        deadline = time.monotonic() + _GRACE_S
        while True:
            threads = [t for t in threading.enumerate() if t.ident not in self._threads and not _is_harmless(t)]
            pools = [t for t in threads if _is_idle_pool(t)]
            children = _children()
            if len(threads) == len(pools) <= _POOL_THREADS and not children:
                return None
            if time.monotonic() >= deadline:
                if children:
                    _end(pid for pid, _ in children)  # children with a session of their own would survive this process
                    return f"the process {children[0][0]} ({children[0][1][:60]}) outlived its trial"
                return f"the thread {threads[0].name!r} outlived its trial"
            time.sleep(0.02)


def _is_harmless(thread: threading.Thread) -> bool:
    """Return whether a thread serves later trials too, or is a C++ thread that has run Python code.

    Those that serve later trials were started by tuner, Ray, tqdm, wandb, or `torch.compile`.
    """
    return (
        thread.name.startswith(_HARMLESS)
        or isinstance(thread, threading._DummyThread)
        or _runs(thread, _COMPILER_FILES)
    )


def _runs(thread: threading.Thread, files: str) -> bool:
    """Return whether a function on the stack of a thread is defined in a file whose path contains `files`."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if files in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _is_idle_pool(thread: threading.Thread) -> bool:
    """Return whether a thread is an idle worker of a `concurrent.futures` pool, which many libraries keep."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.endswith("concurrent/futures/thread.py")


def _end(pids: Iterable[int]) -> None:
    """Stop these processes and all processes that they have started, with SIGTERM and then SIGKILL.

    Other users' processes, such as those of a setuid program, cannot be stopped and stay alive.
    """
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [*process.children(recursive=True), process]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=_TERMINATE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _children() -> list[tuple[int, str]]:
    """Return (pid, command line) for each child process that is not a helper of Python or of a library."""
    if not has_children():
        return []
    try:
        pids = [
            int(pid)
            for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text(encoding="utf-8").split()
        ]
    except OSError:
        pids = [process.pid for process in psutil.Process().children()]
    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(name in command for name in _HELPERS):
                found.append((pid, command))
        except psutil.NoSuchProcess:
            continue
    return found
