"""The fuzzer's long form: `python -m tests.fuzz --minutes 60 --jobs 2`, or `make fuzz`.

It prints a line for each finding and, at the end, the numbers of searches, events and decisions.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import re
import sys
import time
import traceback
from typing import Any

from tests.fuzz.world import SCHEDULERS, Found, World
from tuner.domain import decisions as d
from tuner.domain import events as e


def one(task: tuple[str, int]) -> dict[str, Any]:
    """Drive one search. Return what was found, and how many events it had."""
    world = World(task[1], task[0])
    problem = None
    try:
        world.run()
    except Found as found:
        problem = str(found)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{task[0]}, seed {task[1]}: raised {type(error).__name__}: {error} at {at.filename}:{at.lineno}"
    entries = [entry for _, entry in world.log]
    return {
        "kind": task[0],
        "problem": problem,
        "steps": world.step,
        "events": sum(isinstance(entry, e.Event) for entry in entries),
        "decisions": sum(isinstance(entry, d.Decision) for entry in entries),
        "reports": sum(isinstance(entry, e.Reported) for entry in entries),
        "checkpoints": len(world.saved),
        "restarts": world.epoch - 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of wall time")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=None, help="seeds for each scheduler, instead of --minutes")
    parser.add_argument("--schedulers", nargs="*", default=list(SCHEDULERS))
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    totals: collections.Counter[str] = collections.Counter()
    shown: collections.Counter[str] = collections.Counter()
    seed = options.seed
    with multiprocessing.Pool(options.jobs) as pool:
        while (time.monotonic() < until) if options.count is None else (seed < options.seed + options.count):
            seeds = range(seed, seed + 25 if options.count is None else options.seed + options.count)
            for result in pool.imap_unordered(
                one, [(kind, s) for s in seeds for kind in options.schedulers], chunksize=4
            ):
                totals["searches"] += 1
                totals["findings"] += result["problem"] is not None
                totals.update({k: v for k, v in result.items() if isinstance(v, int)})
                if result["problem"] is not None:
                    what = re.sub(r"\d+", "#", result["problem"])[:120]
                    shown[what] += 1
                    if shown[what] <= 2:
                        print(result["problem"], file=sys.stderr, flush=True)
            seed = seeds.stop
            if sys.stderr.isatty() or seed % 500 == 0:
                print(f"seeds up to {seed}: {dict(totals)}", file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "fuzz", "schedulers": len(options.schedulers), **totals}))
    return 1 if totals["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
