"""Scripts as training functions: each rank runs the script as a separate process, with arguments made from the config."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tuner.domain.segments import IN_SAVE
from tuner.errors import OutsideTrial, WrongArgument
from tuner.names import without_colors
from tuner.trials.checkpoints.checkpoints import Checkpoint, Source
from tuner.trials.training import oom, session
from tuner.trials.training.metric_lines import LONGEST, MetricLines
from tuner.trials.training.script_client import FOLDER, IMPORTED, SOCKET
from tuner.trials.training.session import LeaveTrial, Session

PLACEHOLDER = re.compile(r"\{(\{[\w./-]+\})\}|\{([A-Za-z_][\w./-]*)\}")
"""Matches a parameter's name in braces. Double braces escape it: ``{{name}}`` becomes ``{name}``."""

NOT_ELASTIC = (
    "only functions can be elastic trials: a script divides its data among its ranks by itself, so tuner could not keep its "
    "global batch size"
)
"""The reason why a script may not have a range of ranks."""

TRIAL_DIR = "trial_dir"
"""A name in braces that the arguments of every script may use. It stands for the rank's own directory."""

_POLL_S = 0.05
_TAIL = 20
_SHOWN = 200
_OF_TORCHRUN = re.compile(r"[A-Z]\d{4} [\d:.]+ \d+ (?:[^\]]*/)?torch/distributed/")
"""The beginning of a line of torchrun's own log.

torch names its files relative to `sys.path`. If the virtual environment is in the script's own directory, its path
precedes ``torch/``.
"""
# The launcher asks the kernel to kill it when the rank dies, and then replaces itself with the script.
_LAUNCHER = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


class ScriptFailed(RuntimeError):
    """A script's process has failed.

    what: what happened, in one line.
    said: the last lines of its stderr.
    cause: the cause of the trial's failure.
    """

    def __init__(self, what: str, said: str = "", cause: str = "script") -> None:
        super().__init__(f"{what}:\n{said}" if said else what)
        self.what, self.said, self.cause = what, said, cause


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run as a trial, with the templates of its arguments.

    path: the path of the script, or the name of a module.
    source: a copy of the script's content, which workers that lack the file run. None: `path` names a module, which is run as
        `python -m` does; workers must be able to import it.
    arguments: the arguments, such as ``--lr`` and ``{lr}``. A name in braces is replaced by the parameter's value.
    metric: the objective.
    pattern: a regular expression that finds metrics in stdout. If None, metrics are found in lines of the default
        formats, unless the script imports tuner.
    grace_s: seconds that the script may take to exit when the trial must end.
    """

    path: str
    source: bytes | None = field(repr=False)
    arguments: tuple[str, ...]
    metric: str
    pattern: str | None = None
    grace_s: float = 10.0
    imports: tuple[str, ...] = ()  # the modules that the script imports; the user's own are sent to a service

    def __call__(self, config: dict[str, Any]) -> None:
        """Run the script until it exits. If it fails, raise ScriptFailed with the last lines of its stderr."""
        running = session.current()
        if running is None:
            raise OutsideTrial("a script cannot be called directly: tuner.run runs it")
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_place()) as folder:
            _Run(self, running, folder, self.command(config, running.context.trial_dir)).run()

    def command(self, config: Mapping[str, Any], trial_dir: str) -> list[str]:
        """Return the command line that runs the script with this configuration."""
        values = {TRIAL_DIR: trial_dir, **_flat(config)}
        arguments = [filled(argument, values) for argument in self.arguments]
        if self.source is None:
            return [sys.executable, "-m", self.path, *arguments]
        path = self.path if os.path.isfile(self.path) else self._unpacked(trial_dir, self.source)
        return [*([sys.executable] if path.endswith(".py") else []), path, *arguments]

    def _unpacked(self, folder: str, source: bytes) -> str:
        path = os.path.join(folder, os.path.basename(self.path))
        with open(path, "wb") as file:
            file.write(source)
        os.chmod(path, 0o755)
        return path


def placeholders(arguments: tuple[str, ...]) -> set[str]:
    """Return the names that appear in braces in the arguments."""
    return {match.group(2) for argument in arguments for match in PLACEHOLDER.finditer(argument) if match.group(2)}


def filled(argument: str, values: Mapping[str, Any]) -> str:
    """Return an argument with the parameter names in braces replaced by their values."""

    def value(match: re.Match[str]) -> str:
        literal, name = match.groups()
        if literal:
            return str(literal)
        if name not in values:
            raise WrongArgument(f"the configuration has no {name!r}, which the argument {argument!r} names")
        return _text(values[name])

    return PLACEHOLDER.sub(value, argument)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat[f"{prefix}{name}"] = value
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}/"))
    return flat


@dataclass(slots=True)
class _Asked:
    """A request that the script sent. Until it is answered, only the training thread uses the connection."""

    connection: Connection
    request: tuple[Any, ...]
    answered: threading.Event = field(default_factory=threading.Event)


_PREFIX = "tuner-script-"
_LONGEST = 103
"""The maximum length of a socket's path in bytes, which is that of macOS. Linux allows four more."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""The exit status of a script that SIGKILL has killed, and of a shell script whose last command SIGKILL has killed."""


class _SaveFailed(ValueError):
    """The script raised an error when it was told to save a checkpoint."""


def _place() -> str | None:
    """Return where to create a folder with a socket. None: where temporary files belong, unless that path is too long."""
    path = os.path.join(tempfile.gettempdir(), f"{_PREFIX}12345678", SOCKET)
    return None if len(os.fsencode(path)) <= _LONGEST else "/tmp"


class _Run:
    """Runs a script once. Several threads read its output and its requests, and the training thread handles them."""

    def __init__(self, script: Script, running: Session, folder: str, command: list[str]) -> None:
        self._script, self._session, self._folder, self._command = script, running, folder, command
        self._name = os.path.basename(script.path)
        self._lines = MetricLines(script.metric, script.pattern)
        # The messages to handle, in order: the metrics of a line, a request, or None once the process has exited.
        self._news: queue.Queue[dict[str, float] | _Asked | None] = queue.Queue(maxsize=1000)
        self._closed = threading.Event()
        self._unread: dict[str, str] = {}  # a line with the objective's name that was no report, by its stream
        self._errors: deque[str] = deque(maxlen=_TAIL)
        self._since: deque[str] | None = None  # lines since torchrun last logged that its processes had failed
        self._borrowed = contextlib.ExitStack()
        self._exit_code = 0
        self._unsaved: ScriptFailed | None = None  # why the last checkpoint could not be saved when the script exited
        self._oom_kills = oom.oom_kills()

    def run(self) -> None:
        rank = self._session.context.world_rank
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(self._folder, SOCKET))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *self._command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        take_line = self._take_line if rank == 0 else _ignore
        readers = [
            _thread("stdout", _copy, process.stdout.fileno(), 1, take_line),
            _thread("stderr", _copy, process.stderr.fileno(), 2, self._take_error),
        ]
        _thread("wait", self._wait, process, readers)
        _thread("serve", self._accept, listener)
        try:
            self._follow()
            self._check(process.wait())
            if self._unsaved is not None:
                raise self._unsaved
            if rank == 0 and self._reads_lines() and self._session.count == 0:
                raise ScriptFailed(f"{self._name} has ended without a report: {self._why_no_report()}")
        except LeaveTrial:
            self._end(process, patient=not self._reads_lines())
            raise
        finally:
            self._end(process, patient=False)
            self._closed.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for reader in readers:
                reader.join(_POLL_S)
            self._borrowed.close()

    # -- on the training thread

    def _why_no_report(self) -> str:
        metric, pattern = self._script.metric, self._script.pattern
        if pattern is not None:
            return f"no line of stdout matches --metric-pattern {pattern!r} with a number for {metric!r}"
        said = f"no line of stdout has {metric!r}"
        if (line := self._unread.get("stdout")) is not None:
            said = f"{line!r} on stdout has neither {metric}=NUMBER nor a JSON object with {metric!r}"
        elif (line := self._unread.get("stderr")) is not None:
            said = f"{line!r} is on stderr, and only stdout is read (logging.basicConfig(stream=sys.stdout) logs there)"
        return f"{said}; print {metric}=NUMBER, pass --metric-pattern, or call tuner.report"

    def _follow(self) -> None:
        """Handle the script's messages until the script has exited.

        If the metrics are read from lines that rank 0's script prints, the other ranks also wait until rank 0 is done.
        """
        mirrors = self._session.context.world_rank > 0
        while True:
            try:
                news = self._news.get(timeout=_POLL_S if mirrors else None)
            except queue.Empty:
                self._mirror()
                continue
            if isinstance(news, _Asked):
                self._answer(news)
            elif news is not None:
                self._session.announce()
                self._session.report(news)
            else:
                break
        while mirrors and self._reads_lines() and self._exit_code == 0 and self._mirror() is None:
            time.sleep(_POLL_S)

    def _mirror(self) -> str | None:
        """Repeat on this rank every report that rank 0 has announced. Return rank 0's next other message, or None."""
        while (heard := self._session.heard()) == "report":
            self._session.report({})
        return heard

    def _reads_lines(self) -> bool:
        return self._script.pattern is not None or not os.path.exists(os.path.join(self._folder, IMPORTED))

    def _answer(self, asked: _Asked) -> None:
        """Carry out a request from the script, and send it the answer or the error.

        An error is also raised here, unless it is a TypeError or ValueError, which means that the request was invalid.
        """
        try:
            _send(asked.connection, ("answer", self._reply(asked)))
        except LeaveTrial as leave:
            _send(asked.connection, ("leave", str(leave)))
            raise
        except Exception as error:
            _send(asked.connection, ("error", (type(error).__name__, str(error))))
            if not isinstance(error, TypeError | ValueError):
                raise
        finally:
            asked.answered.set()

    def _reply(self, asked: _Asked) -> Any:
        running = self._session
        match asked.request:
            case ("hello",):
                return running.context, running.objective
            case ("checkpoint",):
                return self._local(running.checkpoint)
            case ("should_checkpoint",):
                return running.should_checkpoint()
            case ("report", values, step, directory, to_call):
                if self._script.pattern is not None:
                    raise WrongArgument(
                        "tuner.report was called, but --metric-pattern reads the metrics from stdout: use one or the other"
                    )
                source: Source | None = self._saver(asked.connection) if to_call else directory
                running.report(values, step=step, checkpoint=source)
            case ("end",):
                if not self._reads_lines():
                    self._finish()
        return None

    def _finish(self) -> None:
        """End the session. If the script cannot save its last checkpoint, let `run` raise that once the script has exited.

        The script itself exits with status 0, since Python ignores errors of functions that it calls at the exit.
        """
        try:
            self._session.finish()
        except _SaveFailed as error:
            notes = [note for note in getattr(error, "__notes__", ()) if note != IN_SAVE]
            why = "; ".join((str(error), *notes))
            self._unsaved = ScriptFailed(f"{self._name} could not save its last checkpoint", why)
            raise

    def _local(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        if checkpoint is None or not checkpoint.is_elsewhere:
            return checkpoint
        return Checkpoint(self._borrowed.enter_context(checkpoint.as_directory()))

    def _saver(self, connection: Connection) -> Callable[[str], None]:
        """Return a function that makes the script save a checkpoint to a directory, at this report or a later one."""

        def save(directory: str) -> None:
            try:
                connection.send(("save", os.path.abspath(directory)))
                failed = connection.recv()
            except (OSError, EOFError) as error:
                raise ScriptFailed(f"{self._name} exited before it had saved its last checkpoint") from error
            if failed is not None:
                raise _SaveFailed(failed)

        return save

    def _check(self, code: int) -> None:
        """Raise ScriptFailed unless the script exited with status 0."""
        if code == 0:
            return
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        cause = "script_signal" if code < 0 else "script"
        if code in _KILLED and oom.oom_kills() > self._oom_kills:
            end, cause = f"was {oom.KILLED}" if code < 0 else f"{end}: one of its processes was {oom.KILLED}", "oom"
        said = "\n".join(line for line in self._errors if line.strip())
        what = f"{self._name} {end}" + ("" if said else f" ({shlex.join(self._command)})")
        raise ScriptFailed(what, said, cause)

    def _end(self, process: subprocess.Popen[bytes], patient: bool) -> None:
        """Stop the script with SIGTERM and, if need be, SIGKILL, and kill all processes that it has started.

        patient: True to wait first for the script to exit by itself.
        """
        if process.poll() is not None:
            return
        grace = self._script.grace_s
        if patient:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace / 2)
        started = []
        with contextlib.suppress(psutil.Error):
            started = psutil.Process(process.pid).children(recursive=True)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace / 4)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in started:
            with contextlib.suppress(psutil.Error):
                child.kill()

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, FOLDER: self._folder, "PYTHONUNBUFFERED": "1"}
        environment["PYTHONIOENCODING"] = "utf-8:backslashreplace"  # logs are UTF-8, whatever the locale
        if self._script.source is None:  # the working directory may be one of the trial's own
            places = (os.environ.get("TUNE_ORIG_WORKING_DIR"), os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        if self._session.context.world_size == 1:  # with several ranks, the scripts use the store that the ranks share
            environment = {name: value for name, value in environment.items() if not name.startswith("TORCHELASTIC_")}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        return environment

    # -- on other threads

    def _take_line(self, line: str) -> None:
        if (found := self._lines.read(line)) is None:
            self._keep_unread("stdout", line)
        elif self._reads_lines():
            self._put(found)

    def _keep_unread(self, stream: str, line: str) -> None:
        if self._script.metric in line:
            self._unread.setdefault(stream, without_colors(line).strip()[:_SHOWN])

    def _take_error(self, line: str) -> None:
        """Keep a line of stderr, unless torchrun printed it about failed processes.

        Such a line would displace the lines of the processes themselves.

        If torchrun restarts its processes, only the lines of the last run are kept.
        """
        self._keep_unread("stderr", line)
        line = without_colors(line)  # Python 3.13 colors tracebacks if FORCE_COLOR is set, as CI systems do
        own, *log = _OF_TORCHRUN.split(line, maxsplit=1)
        if own:
            (self._errors if self._since is None else self._since).append(own)
        if "failed (exitcode: " in "".join(log):
            self._errors = self._since or self._errors
            self._since = deque(maxlen=_TAIL)

    def _put(self, news: dict[str, float] | _Asked | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._news.put(news, timeout=0.5)
                return

    def _wait(self, process: subprocess.Popen[bytes], readers: list[threading.Thread]) -> None:
        self._exit_code = process.wait()
        for reader in readers:
            # A process that the script left behind may keep the pipe open.
            reader.join(2.0)
        self._put(None)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                _thread("connection", self._serve, Connection(connection.detach()))

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            while not self._closed.is_set():
                asked = _Asked(connection, connection.recv())
                self._put(asked)
                while not asked.answered.wait(0.5) and not self._closed.is_set():
                    pass


def _send(connection: Connection, message: tuple[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the script has exited
        connection.send(message)


def _thread(name: str, target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=f"tuner-script-{name}", daemon=True)
    thread.start()
    return thread


def _ignore(line: str) -> None:
    pass


def _copy(source: int, target: int, take: Callable[[str], Any]) -> None:
    """Copy a script's output to the rank's log, and call `take` with each line.

    Whole lines are copied, so that a line never mixes stdout and stderr.
    """
    for line in _lines(source):
        with contextlib.suppress(OSError):  # a full disk must not stop the training
            os.write(target, line)
        take(line.decode(errors="replace").rstrip("\r\n"))


def _lines(source: int) -> Iterator[bytes]:
    """Yield the lines read from a file descriptor, including their line endings.

    A carriage return also ends a line, so that each update of a progress bar is a line.
    """
    rest = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(source, 65536):
            *lines, rest = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", rest + chunk)
            yield from lines
            if len(rest) > LONGEST:
                yield rest
                rest = b""
    if rest:
        yield rest


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
