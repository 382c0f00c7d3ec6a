"""A command for each verb, such as `tuner pause`. `tuner.experiment.operations.verbs` declares the verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tuner.cli.commands.chosen import chosen_settings
from tuner.cli.places import OnService
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS, Verb
from tuner.names import printable

group = typer.Typer()

_HELP = {
    "experiment": "the experiment: exp_..., or its name",
    "trial": "the trial: trl_...",
    "experiment or trial": "an experiment, exp_... or its name; or a trial, trl_...",
}


def _command(verb: Verb, about: str) -> Callable[[str], None]:
    def command(name: str) -> None:
        from tuner.cli.service.experiments import ask

        print(printable(ask(chosen_settings(), verb.name, name)))

    command.__annotations__["name"] = Annotated[str, typer.Argument(metavar=about.upper(), help=_HELP[about])]
    return command


for _verb in {**TRIAL_VERBS, **VERBS}.values():
    if _verb.name != "resume":  # has a command of its own, which also waits for the end
        _both = _verb.name in TRIAL_VERBS and _verb.name in VERBS
        _about = "experiment or trial" if _both else "trial" if _verb.name in TRIAL_VERBS else "experiment"
        _help = _verb.summary.replace("the experiment", "the experiment or trial") if _both else _verb.summary
        group.command(name=_verb.name, help=_help, cls=OnService)(_command(_verb, _about))
