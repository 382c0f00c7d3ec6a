"""The `tuner` command."""

import os
import sys
from typing import Any

from tuner.cli.late_garbage import collect_late

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells report it."""


def main() -> None:
    """Run the `tuner` command. Ctrl-C stops it without a traceback, even while its modules are being imported."""
    collect_late()
    try:
        if sys.argv[1:2] == ["serve"]:
            from tuner.service.early import guessed

            with guessed(sys.argv[1:], os.environ) as early:
                _run(early)
        else:
            _run(None)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(early: Any) -> None:
    from tuner.cli import commands

    commands.main(early)
