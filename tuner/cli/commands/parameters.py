"""Arguments and options that several commands have."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def _warn_about_a_password(url: str | None) -> str | None:
    from tuner.store.sql.connect import shown_url

    if url is not None and shown_url(url) != url:
        print(
            "warning: every user of this machine can read the password in --database-url with `ps`; "
            "set TUNER_DATABASE_URL instead",
            file=sys.stderr,
        )
    return url


ExperimentName = Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")]
ExperimentNames = Annotated[
    list[str], typer.Argument(metavar="EXPERIMENT...", help="the experiments: exp_..., or their names")
]
TrialNumber = Annotated[int | None, typer.Argument(help="number of a trial of the experiment")]

JsonLines = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
JsonObject = Annotated[bool, typer.Option("--json", help="print everything as one JSON object")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        help="a key for this request: a second request with the same key creates nothing and prints the same id",
    ),
]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="sqlite:///FILE or postgresql://...", callback=_warn_about_a_password)
]
RayAddress = Annotated[str | None, typer.Option(help="address of a Ray cluster to use instead of a local one")]

# Options of a search, for `tuner run` and `tuner simulate`. The types of the last three differ from command to command.
Mode = Annotated[str, typer.Option(help="min or max")]
NumSamples = Annotated[int | None, typer.Option(min=1, help="number of trials to start")]
Scheduler = Annotated[str | None, typer.Option(help="the scheduler: asha, median, freeze_thaw, fifo, ...")]
SearchAlg = Annotated[str | None, typer.Option(help="the searcher: random, grid, tpe, gp, ...")]
PARAM = typer.Option(
    help="a parameter of the search space, such as 'lr=loguniform(1e-4,1e-1)'; repeat the option for each parameter"
)
AT_ONCE = typer.Option(min=1, help="number of trials that may run at the same time")
SEED = typer.Option(help="seed of the search; the same seed gives the same random configurations")
