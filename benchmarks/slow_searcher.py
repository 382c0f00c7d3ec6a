"""Measure the latency of one experiment's verdicts while another one has a slow searcher. Prints one JSON line for each case.

    python -m benchmarks.slow_searcher [--trials 1500] [--asks 150] [--search tpe]

Both experiments are driven in one event loop, as in a driver host. Trials, commits and reports are in memory, so only the loop is
measured. The first experiment has `--trials` ended trials and starts `--asks` more. The second makes a report every 5
ms and waits for its verdict. In the case `alone`, only the second experiment runs. In `loop`, the slow searcher is
asked in the event loop; in `process`, in the helper process of the host (`tuner.hosts.helpers.proposals`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Spec
from tuner.domain.segments import CheckpointInfo, Interruption, Outcome, SegmentRef
from tuner.domain.trial import Population
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.loop import ExperimentLoop
from tuner.hosts.helpers.proposals import Proposals
from tuner.search.base import Searcher, Suggestion
from tuner.search.optuna_samplers import model_based
from tuner.space import Space, choice, loguniform, randint, uniform

KINDS = [uniform(0, 1), loguniform(1e-5, 1), randint(1, 100), choice(["a", "b", "c"])]
SPACE = Space.from_python({f"p{i}": KINDS[i % len(KINDS)] for i in range(10)})
SLOTS = 2


class Groups:
    """Trials and a journal in memory. Each trial makes `reports` reports, `pace_s` apart."""

    def __init__(self, name: str, proposals: Proposals, reports: int, pace_s: float) -> None:
        self.name, self.proposals, self.reports, self.pace_s = name, proposals, reports, pace_s
        self.log: list[Entry] = []
        self.verdicts: list[float] = []
        self.asks: list[float] = []
        self.loop: ExperimentLoop

    async def commit(self, batch: Batch) -> Collection[str]:
        self.log += batch.log
        await asyncio.sleep(0)
        return ()

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        number, ordinal = segment
        await self.loop.put(e.SegmentStarted(time=time.time(), trial=number, segment=ordinal))
        value = sum((unit - 0.3) ** 2 for unit in SPACE.to_unit(self.loop.core.trials[number].params))
        for count in range(1, self.reports + 1):
            due = time.perf_counter() + self.pace_s  # a report that comes while the loop is busy waits from then on
            await asyncio.sleep(self.pace_s)
            event = e.Reported(
                time=time.time(),
                trial=number,
                segment=ordinal,
                report_no=count,
                iteration=count,
                metrics={"loss": value},
            )
            verdict = await self.loop.report([event])
            self.verdicts.append(time.perf_counter() - due)
            if verdict is not None and verdict.action != "continue":
                return Outcome(kind="left")
        return Outcome(kind="returned")

    async def upload_end(self, segment: SegmentRef, info: CheckpointInfo) -> CheckpointInfo | str:
        return info

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        pass

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        pass

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        begun = time.perf_counter()
        try:
            return await self.proposals.suggest(self.name, searcher, number, trials)
        finally:
            self.asks.append(time.perf_counter() - begun)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []


def a_core(search: str, samples: int, slots: int) -> Core:
    spec = Spec(
        name="slow searcher",
        space=SPACE.to_json(),
        objectives=(Objective("loss", "min"),),
        num_samples=samples,
        search={"type": search},
        scheduler={"type": "median", "grace_period": 10**9},  # a milestone at each report, and no trial is stopped
        limits=Limits(max_concurrent_trials=slots),
        checkpoint=CheckpointPolicy(interval_s=None),
    )
    return assemble(spec, SPACE)


def a_loop(core: Core, groups: Groups) -> ExperimentLoop:
    groups.loop = ExperimentLoop(core, groups, groups)
    return groups.loop


async def ended_trials(proposals: Proposals, trials: int) -> list[Entry]:
    """Return the log of an experiment with this many ended trials that can start more."""
    groups = Groups("filler", proposals, reports=1, pace_s=0.0)
    running = asyncio.create_task(a_loop(a_core("random", 10**6, SLOTS), groups).run(1, None))
    while len(groups.verdicts) < trials:
        await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return groups.log


async def measure(proposals: Proposals, log: list[Entry], search: str, asks: int) -> tuple[Groups, Groups]:
    """Run both experiments; the one with the slow searcher only if there is a log for it. Return their groups."""
    slow, quick = Groups("slow", proposals, reports=1, pace_s=0.1), Groups("quick", proposals, 10**9, 0.005)
    beside = asyncio.create_task(a_loop(a_core("random", 1, 1), quick).run(1, None))
    if log:
        core = a_core(search, 10**6, SLOTS)
        for seq, entry in log:
            core.fold(seq, entry)
        searching = asyncio.create_task(a_loop(core, slow).run(2, None))
        if len(core.trials) >= model_based.LIGHT_UNTIL:
            await until(lambda: slow.asks)  # the helper has started and knows the trials
        quick.verdicts.clear()
        await until(lambda: len(slow.verdicts) >= asks)
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
    else:
        await until(lambda: len(quick.verdicts) >= 20 * asks)
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    return slow, quick


async def until(done: Callable[[], Any]) -> None:
    while not done():
        await asyncio.sleep(0.02)


def centile(seconds: list[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    return round(1e3 * sorted(seconds)[math.ceil(share * len(seconds)) - 1], 2)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--asks", type=int, default=150)
    parser.add_argument("--search", default="tpe")
    options = parser.parse_args()
    proposals = Proposals()
    log = await ended_trials(proposals, options.trials)
    light = model_based.LIGHT_UNTIL
    for case in ("alone", "loop", "process"):
        model_based.LIGHT_UNTIL = light if case == "process" else 10**9
        slow, quick = await measure(proposals, [] if case == "alone" else log, options.search, options.asks)
        row = {
            "benchmark": "slow_searcher",
            "case": case,
            "search": options.search,
            "trials": options.trials,
            "verdicts": len(quick.verdicts),
            "verdict_p50_ms": centile(quick.verdicts, 0.5),
            "verdict_p99_ms": centile(quick.verdicts, 0.99),
            "verdict_max_ms": centile(quick.verdicts, 1.0),
            "ask_p50_ms": round(1e3 * statistics.median(slow.asks), 1) if slow.asks else None,
        }
        print(json.dumps(row), flush=True)
    await proposals.close()


if __name__ == "__main__":
    asyncio.run(main())
