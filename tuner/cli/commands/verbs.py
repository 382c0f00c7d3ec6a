"""A command for each verb, such as `tuner pause`. `tuner.experiment.operations.verbs` declares the verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import ExperimentNames
from tuner.cli.commands.several import Target, for_each, with_numbers
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS, Verb

group = typer.Typer()

_HELP = {
    "trial": "the trials: trl_...; or an experiment, and the numbers of its trials",
    "experiment or trial": (
        "experiments, exp_... or their names; or trials: trl_..., or an experiment and the numbers of its trials"
    ),
}


def _command(verb: Verb, about: str) -> Callable[..., None]:
    def command(names: ExperimentNames) -> None:
        act([(name, None) for name in names])

    def numbered(trials: list[str]) -> None:
        act(with_numbers(trials))

    def act(targets: list[Target]) -> None:
        from tuner.cli.service.experiments import ask

        settings, statuses = command_settings(), [0]

        def asked(name: str, number: int | None) -> str:
            outcome = ask(settings, verb.name, name, number)
            if not isinstance(outcome, str):  # the search was run here, to its end
                from tuner.cli.run import run_status

                statuses.append(run_status(outcome))
            return str(outcome)

        for_each(targets, asked)
        if status := max(statuses):
            raise typer.Exit(status)

    if about == "experiment":
        return command
    metavar = "TRIAL..." if about == "trial" else "EXPERIMENT|TRIAL..."
    numbered.__annotations__["trials"] = Annotated[list[str], typer.Argument(metavar=metavar, help=_HELP[about])]
    return numbered


for _verb in {**TRIAL_VERBS, **VERBS}.values():
    if _verb.name not in ("resume", "continue"):  # these two have commands of their own, which also wait for the end
        _both = _verb.name in TRIAL_VERBS and _verb.name in VERBS
        _about = "experiment or trial" if _both else "trial" if _verb.name in TRIAL_VERBS else "experiment"
        _help = _verb.summary.replace("the experiment", "the experiment or trial") if _both else _verb.summary
        group.command(name=_verb.name, help=_help, cls=OnService)(_command(_verb, _about))
