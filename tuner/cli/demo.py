"""`tuner demo`: a search on this machine, from start to result."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.cli.json_text import dumps
from tuner.errors import MissingPackage
from tuner.names import printable
from tuner.plurals import counted
from tuner.schedulers.asha import ASHAScheduler
from tuner.sdk.result import Result
from tuner.sdk.run import run

METRIC = "accuracy"


def run_demo(*, as_json: bool = False, serve_after: bool = False, trials: int = 16, port: int | None = None) -> Result:
    """Run the example search, print its outcome, and return its result. With `serve_after`, serve the web UI until Ctrl-C."""
    from tuner.hosts.scripts.kept import shutdown

    try:
        from tuner.examples import digits
    except ImportError as error:  # the error says which extra is missing
        raise MissingPackage(str(error)) from error
    console = Console(stderr=as_json)
    page = None
    if serve_after:
        from tuner.service.page import Page

        page = Page(port=port)
        page.start()
        console.print(f"Watch it live at [bold]{page.url}[/bold]\n", highlight=False)
    console.print(
        f"Tuning a small network on 1,797 handwritten digits with ASHA: {counted(trials, 'trial')} of 2 DDP ranks each.\n",
        highlight=False,
    )
    begun = time.monotonic()
    result = run(
        digits.train,
        digits.SPACE,
        metric=METRIC,
        mode="max",
        num_samples=trials,
        scheduler=ASHAScheduler(max_t=digits.MAX_T, grace_period=1, reduction_factor=3),
        search_alg="random",
        num_workers=2,
        resources_per_worker={"CPU": 0.5},
        max_concurrent_trials=2,
        seed=1,
        name="demo",
        verbose=0 if as_json else 1,
    )
    seconds = time.monotonic() - begun
    shutdown()
    say_outcome(console, result, digits.MAX_T)
    if page is not None:
        page.stay(console) if sys.stdout.isatty() else page.stop()
    if as_json:
        print(dumps(outcome(result, seconds)))
    return result


def outcome(result: Result, seconds: float) -> dict[str, Any]:
    return {
        "experiment": result.experiment_id,
        "trials": len(result.trials),
        "stopped_early": sum(str(t.state) == "stopped" for t in result.trials),
        "best_value": result.best_value,
        "best_config": result.best_config,
        "world_size": 2,
        "seconds": round(seconds, 2),
    }


def say_outcome(console: Console, result: Result, max_t: int) -> None:
    done = sum(len(t.history) for t in result.trials)
    full = max_t * len(result.trials)
    console.print()
    if result.best_trial is None or result.best_value is None:
        if result.state == "paused":  # `tuner.run` has said so
            return
        console.print(Text(printable(f"No trial succeeded: {result.error or result.reason}"), "red"))
        return
    config = ", ".join(
        f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in (result.best_config or {}).items()
    )
    best = (f"best accuracy {result.best_value:.4f}", "bold green")
    console.print(Text.assemble(best, printable(f" by trial {result.best_trial.number}: {config}")))
    console.print(
        f"{done} of {full} epochs trained: {100 * (1 - done / full):.0f} % less than if every trial had run to the end",
        highlight=False,
    )
    if result.best_checkpoint is not None:
        console.print(f"its checkpoint: {result.best_checkpoint.path}", highlight=False, markup=False, soft_wrap=True)
