"""`tuner agent`: run a service's trials on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.agents.leases import Leases
from tuner.agents.worker import Agent, Work
from tuner.cli.targets import function
from tuner.errors import EntrypointError, SpecError
from tuner.sdk.live.terminal import leave_lost_terminal
from tuner.settings import Settings
from tuner.trials.checkpoints.storage import secret_in, unknown_scheme
from tuner.trials.training.metric_lines import compiled
from tuner.trials.training.script import Script


def work(
    address: str,
    token: str | None,
    experiment: str,
    *,
    target: str | None = None,
    command: str | None = None,
    metric_pattern: str | None = None,
    name: str | None = None,
    storage: str | None = None,
    parallel: int = 1,
    lease_s: float = 60.0,
    settings: Settings,
    say: Callable[[str], None],
) -> int:
    """Run trials until the experiment has ended, or a signal asks this process to end.

    Return how many trials or parts of trials it ran. SIGHUP stays ignored if this process ignores it, as under `nohup`.

    The arguments are those of the command `tuner agent`. `say` prints a line.

    Raises:
        SpecError: an argument is wrong.
        ServiceError: the service rejects this agent.
    """
    if target is not None and command is not None:
        raise SpecError("expected either a function or --command, got both", "/command")
    if metric_pattern is not None and command is None:
        raise SpecError("is for --command", "/metric_pattern")
    if storage is not None and (wrong := unknown_scheme(storage) or secret_in(storage)) is not None:
        raise SpecError(wrong, "/storage")
    make: Callable[[str], Any] | None = None
    if command is not None:
        make = _script(command, metric_pattern)
    elif target is not None:
        made = function(target)
        make = lambda metric: made  # noqa: E731
    called = name or f"{socket.gethostname()}:{os.getpid()}"
    given = Work(make=make, home=settings.home / "agents", storage=storage, parallel=parallel, say=say)
    return asyncio.run(_run(lambda: Agent(Leases(address, token, experiment, called, lease_s), given)))


async def _run(make: Callable[[], Agent]) -> int:
    agent = make()
    loop = asyncio.get_running_loop()
    ending: set[asyncio.Task[None]] = set()

    def stop() -> None:
        ending.add(asyncio.ensure_future(agent.stop()))

    def hang_up() -> None:
        leave_lost_terminal()
        stop()

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = hang_up
    for which, handler in handlers.items():
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(which, handler)
    await agent.run()
    return agent.trials


def _script(command: str, pattern: str | None) -> Callable[[str], Script]:
    """Return a function that takes the name of the metric to report, and returns the `Script` that runs the command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SpecError(f"cannot be split into words: {error}", "/command") from error
    if not words:
        raise SpecError("names no program", "/command")
    path = words[0] if Path(words[0]).is_file() else shutil.which(words[0])
    if path is None:
        raise EntrypointError(f"there is no program {words[0]}", "/command")

    def make(metric: str) -> Script:
        if pattern is not None:
            try:
                compiled(pattern, metric)
            except ValueError as error:
                raise SpecError(str(error), "/metric_pattern") from error
        return Script(os.path.abspath(path), b"", tuple(words[1:]), metric, pattern)

    return make
