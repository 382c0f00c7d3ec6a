"""Carry out a command on several experiments or trials, and report the outcome of each.

If one of them is refused, the command still carries out the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from tuner.cli.commands.status import exit_code
from tuner.errors import REFUSED, TunerError
from tuner.names import printable

Target = tuple[str, int | None]
"""The id or name of an experiment, or the id of a trial; and the number of a trial of the experiment, if a trial is meant."""


def for_each(targets: Sequence[Target], act: Callable[[str, int | None], str]) -> None:
    """Call `act` with each target, and print the line that it returns.

    If there are several targets and one is refused, print the error and continue. The exit status is then that of the
    errors, or 1 if their exit statuses differ. Other errors, such as that the service cannot be reached, end the command.
    """
    refused: list[TunerError] = []
    for done, (name, number) in enumerate(targets):
        try:
            print(printable(act(name, number)), flush=True)
        except TunerError as error:
            if len(targets) == 1:
                raise
            if not isinstance(error, REFUSED):
                if left := [shown(one) for one in targets[done + 1 :]]:
                    error.add_note(f"nothing was done about {', '.join(left)}")
                raise
            print(printable(f"error: {shown((name, number))}: {error}"), file=sys.stderr, flush=True)
            refused.append(error)
    if codes := {exit_code(error) for error in refused}:
        print(f"{len(refused)} of {len(targets)} {'was' if len(refused) == 1 else 'were'} refused", file=sys.stderr)
        raise typer.Exit(codes.pop() if len(codes) == 1 else 1)


def for_each_experiment(names: Sequence[str], act: Callable[[str], str]) -> None:
    """Call `act` with each experiment or checkpoint, as `for_each` does."""
    for_each([(name, None) for name in names], lambda name, _: act(name))


def with_numbers(words: Sequence[str]) -> list[Target]:
    """Return the targets that the words of a command name. A number is that of a trial of the experiment before it.

    For example, ``a 3 5 b`` means the trials 3 and 5 of the experiment a, and the experiment b.
    """
    targets: list[Target] = []
    experiment: str | None = None
    for word in words:
        if experiment is None or not (word.isascii() and word.isdecimal()):
            experiment = word
            targets.append((word, None))
            continue
        if targets[-1] == (experiment, None):
            targets.pop()
        targets.append((experiment, int(word)))
    return targets


def shown(target: Target) -> str:
    """Return a target as the user has named it."""
    name, number = target
    return name if number is None else f"{name} {number}"
