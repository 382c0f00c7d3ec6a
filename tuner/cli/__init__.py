"""The `tuner` command."""

from tuner.cli.commands import main as main
