"""Start and stop a host's helper processes, which run code that could block or crash the host, and talk to them over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_ROOT = str(Path(__file__).resolve().parents[3])


async def start_helper(
    module: str,
    *,
    sys_path: Sequence[str],
    environ: Mapping[str, str] | None = None,
    working_dir: str | None = None,
    limit: int = 2**16,
) -> Process:
    """Start a process that runs a module of this package, and return it with pipes for its standard input and output.

    Args:
        module: the module's name. Its main function begins with `pipes_to_host`.
        sys_path: the folders in which the process looks for further modules.
        environ: environment variables besides those of this process.
        working_dir: the working directory of the process. None: that of this process.
        limit: the maximum length of a line that can be read from the process, in bytes.

    Raises:
        OSError: the process cannot be started. If this user may start no more processes, the message says what to raise.
    """
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory may have a module with the name of one that the helper imports, such as `signal`
            "-m",
            module,
            stdin=PIPE,
            stdout=PIPE,
            cwd=working_dir,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, *sys_path])), **(environ or {})},
            limit=limit,
            start_new_session=True,  # so that Ctrl-C at a terminal does not reach it
        )
    except BlockingIOError as error:  # EAGAIN
        advice = "this user or container may run no more processes: raise `ulimit -u`, or the container's limit on pids"
        raise OSError(error.errno, f"{error.strerror}; {advice}") from error


async def end_helper(process: Process) -> int:
    """Stop a helper process, unless it has already exited, and the processes that it has started. Return its exit code."""
    in_use = process.returncode is None  # its id may have become that of another process otherwise
    with contextlib.suppress(ProcessLookupError):
        if in_use and process.stdout is not None and not process.stdout.at_eof():
            os.killpg(process.pid, signal.SIGKILL)  # the helper leads a session, so the group has its id
    code = await process.wait()
    if in_use:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    return code


# -- in the helper -----------------------------------------------------------------------------------------------------


def pipes_to_host() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipe with the host's questions and the one for the answers. From now on, this process exits when the host does.

    The code that runs here cannot use the pipes by accident: it reads nothing from standard input, and what it prints goes to
    standard error.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    questions = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return questions, answers


def _end_with(parent: int) -> None:
    """Exit once the host is gone, even while a function computes or hangs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
