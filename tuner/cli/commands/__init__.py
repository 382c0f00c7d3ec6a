"""The `tuner` command, and its groups of commands, one module each.

The modules only declare commands. The other modules of `tuner.cli` carry them out, and are loaded when a command runs.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

import typer
from typer.main import get_command_name

from tuner.cli.commands import (
    checkpoints,
    decisions,
    experiments,
    imports,
    models,
    projects,
    searches,
    service,
    tokens,
    upkeep,
    verbs,
    webhooks,
)
from tuner.cli.commands.global_options import read_global_options
from tuner.cli.commands.status import exit_code
from tuner.errors import SpecError, TunerError
from tuner.names import printable

_WHOLE: dict[str, Any] = {
    "no_args_is_help": True,
    "help": "Distributed hyperparameter tuning.",
    "callback": read_global_options,
}
app = typer.Typer(**_WHOLE)

# In the order of `tuner --help`.
_UNNAMED = tuple(
    module.group for module in (searches, experiments, checkpoints, verbs, decisions, models, service, upkeep)
)
for _group in _UNNAMED:
    app.add_typer(_group)
app.add_typer(imports.group, name="import")
app.add_typer(projects.group, name="project")
app.add_typer(tokens.group, name="token")
app.add_typer(webhooks.group, name="webhook")

_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""The errors of an output that cannot be written: a full disk, a quota, a limit on files, a lost terminal, a closed pipe."""


def main(early: Any = None) -> None:
    """Run the `tuner` command. An expected error is printed without a traceback, with a note that names its section of the docs.

    Args:
        early: the `tuner.service.early.Early` that already answers requests to the service, if any.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: its encoding may be ASCII or Latin-1
    usual = warnings.formatwarning
    warnings.formatwarning = functools.partial(_formatted, usual)
    try:
        _run(early)
    except TunerError as error:
        print(f"error: {printable(str(error))}", *map(printable, error.__notes__), sep="\n", file=sys.stderr)
        sys.exit(exit_code(error))
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        # Python reads bytes of the command line that are not in the locale's encoding as surrogates.
        print(
            f"error: {error.object!r} has bytes that are not {sys.getfilesystemencoding()}, the encoding of this locale; set "
            "LC_ALL to a locale with the encoding of this argument, or use the experiment's id in place of its name",
            file=sys.stderr,
        )
        sys.exit(exit_code(SpecError("")))
    except OSError as error:
        if error.errno not in _UNWRITTEN:
            raise
        _write_the_rest()
        if error.errno != errno.EPIPE:  # such as in `tuner ls | head -1`
            print(f"error: the output, or a file, cannot be written: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    finally:
        warnings.formatwarning = usual


def _run(early: Any) -> None:
    """Run the command, and write what is still buffered of its output."""
    try:
        _app_for(sys.argv[1:])(obj=early, prog_name=_program())
    except SystemExit:  # every command ends with it
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        raise


def _app_for(words: list[str]) -> typer.Typer:
    """Return an app with only the command that these words name first, or else the whole app.

    To build all fifty commands takes a tenth of a second or more.
    """
    for group in _UNNAMED:
        for command in group.registered_commands:
            name = command.name or (command.callback and get_command_name(command.callback.__name__))
            if words[:1] == [name]:
                only = typer.Typer(**_WHOLE)
                only.registered_commands.append(command)
                return only
    return app


def _write_the_rest() -> None:
    """Write what is still buffered of the output. If that fails, drop it, since Python would try again when it ends."""
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _formatted(
    usual: Callable[..., str], message: Warning | str, category: type[Warning], file: str, *line: Any
) -> str:
    """Format a warning. Leave out the place of one about the arguments of a command, which is where typer calls the command."""
    return f"warning: {message}\n" if file == typer.main.__file__ else usual(message, category, file, *line)


def _program() -> str | None:
    """Return the name for which to set up completion, or None if the user does not ask for completion.

    Shells complete the arguments of commands on the PATH only. So `python -m tuner` sets up the completion of `tuner`.

    Raises:
        TunerError: the PATH has no command `tuner`.
    """
    if not {"--install-completion", "--show-completion"}.intersection(sys.argv[1:2]):
        return None
    if shutil.which("tuner") is None:
        raise TunerError(
            "shells can complete only the command `tuner`, which is not on the PATH; "
            f"add its folder to the PATH, probably {sysconfig.get_path('scripts')}"
        )
    return "tuner"
