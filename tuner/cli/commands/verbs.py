"""A command for each verb, such as `tuner pause`. `tuner.experiment.operations.verbs` declares the verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tuner.cli.commands.chosen import chosen_settings
from tuner.cli.commands.parameters import TrialNumber
from tuner.cli.places import OnService
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS, Verb
from tuner.names import printable

group = typer.Typer()

_HELP = {
    "experiment": "the experiment: exp_..., or its name",
    "trial": "the trial: trl_...; or its experiment, with the number of the trial",
    "experiment or trial": "an experiment, exp_... or its name; or a trial, trl_...",
}


def _command(verb: Verb, about: str) -> Callable[..., None]:
    def command(name: str) -> None:
        act(name)

    def numbered(trial: str, number: TrialNumber = None) -> None:
        act(trial, number)

    def act(name: str, number: int | None = None) -> None:
        from tuner.cli.service.experiments import ask

        print(printable(ask(chosen_settings(), verb.name, name, number)))

    made, first = (command, "name") if about == "experiment" else (numbered, "trial")
    made.__annotations__[first] = Annotated[str, typer.Argument(metavar=about.upper(), help=_HELP[about])]
    return made


for _verb in {**TRIAL_VERBS, **VERBS}.values():
    if _verb.name not in ("resume", "continue"):  # they have commands of their own, which also wait for the end
        _both = _verb.name in TRIAL_VERBS and _verb.name in VERBS
        _about = "experiment or trial" if _both else "trial" if _verb.name in TRIAL_VERBS else "experiment"
        _help = _verb.summary.replace("the experiment", "the experiment or trial") if _both else _verb.summary
        group.command(name=_verb.name, help=_help, cls=OnService)(_command(_verb, _about))
