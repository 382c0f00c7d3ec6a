"""The `tuner` command."""

import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as of a shell."""


def main() -> None:
    """Run the `tuner` command. Ctrl-C ends it without a traceback, even while its modules are imported."""
    try:
        from tuner.cli import commands

        commands.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
