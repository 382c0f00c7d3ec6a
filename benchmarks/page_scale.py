"""Measure what the page asks of the API when experiments are large. One JSON line for each part.

    python -m benchmarks.page_scale [--trials 1000] [--reports 10000] [--many 100000] [--repeats 20] [--clients 100]
        [--only curves|trials|stream|page] [--peer PYTHON]

Makes the data through the store, as a driver commits it, in an SQLite file that --keep DIR leaves for another run; serves it from
a separate process, and measures over HTTP: the curves of all trials (whole and a part of them), a page of the many trials by
several columns, the importance of their parameters, a GET on a kept-alive connection, and how long it takes from the commit
of a report until all --clients of the event stream have seen it. `memory_mb` is the growth of the API's process;
`cpu` is in cores. The part `page` opens the pages in Chromium: when table and curves are there, what the renderer takes of
memory, and how long frames are while 100 reports a second come in. `cpu_s` is the CPU time of the browser and the service until
everything is there. With --peer, it opens optuna-dashboard on the same curves, too (`optuna_page.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import optuna_page
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Complete, Start
from tuner.domain.events import Reported, SegmentStarted
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.domain.trial import Segment, Trial
from tuner.store import ExperimentRecord, Store

SPACE = {
    "lr": {"type": "loguniform", "lower": 1e-5, "upper": 1.0},
    "width": {"type": "randint", "lower": 8, "upper": 512},
    "optimizer": {"type": "choice", "categories": ["adam", "sgd", "lion"]},
}


class Writer:
    """A driver that only writes."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        spec = Spec(name=name, space=SPACE, objectives=(Objective("accuracy", "max"),), entrypoint="module:train")
        self.record = store.experiments.create(spec)
        self.epoch = store.drivers.claim(self.record.id, "benchmark", 1e6, time.time())
        self.seq = 0
        self.random = random.Random(name)
        self.commit([], [], ExperimentState.RUNNING)

    def commit(self, what: list[Any], trials: list[Trial], state: ExperimentState | None = None, **counts: int) -> None:
        log: list[Entry] = [(self.seq + n, entry) for n, entry in enumerate(what, 1)]
        self.seq += len(what)
        summary = {"counts": counts} if counts else {}
        self.store.drivers.commit(
            self.record.id, self.epoch, Batch(log=log, trials=trials, state=state, summary=summary), time.time()
        )

    def start(self, number: int) -> Trial:
        params = {
            "lr": 10 ** self.random.uniform(-5, 0),
            "width": self.random.randrange(8, 512),
            "optimizer": self.random.choice(["adam", "sgd", "lion"]),
        }
        trial = Trial(number, params, TrialState.RUNNING, created_at=time.time(), started_at=time.time())
        trial.segments.append(Segment(1, "start", params, 0, None, started_at=time.time()))
        return trial

    def reports(self, trial: Trial, count: int) -> list[Reported]:
        """Return a noisy curve that rises towards what the parameters allow."""
        limit = 0.9 - 0.1 * abs(math.log10(trial.params["lr"]) + 3) + trial.params["width"] / 5120
        found = []
        for _ in range(count):
            trial.iteration += 1
            trial.segments[0].report_no = trial.iteration
            value = limit * (1 - math.exp(-trial.iteration / 500)) + self.random.gauss(0, 0.01)
            trial.last = {"accuracy": value}
            trial.last_value, trial.reports = value, trial.iteration
            if trial.best_value is None or value > trial.best_value:
                trial.best_value, trial.best_iteration = value, trial.iteration
            report = Reported(time=time.time(), trial=trial.number, segment=1, report_no=trial.iteration,
                              iteration=trial.iteration, metrics={"accuracy": value})  # fmt: skip
            found.append(report)
        return found

    def end(self, trial: Trial) -> Complete:
        trial.state, trial.reason, trial.ended_at = TrialState.COMPLETED, "reached max_t", time.time()
        trial.segments[0].ended_at, trial.segments[0].state = time.time(), SegmentState.RETURNED
        return Complete(reason=trial.reason, trial=trial.number)


def make(store: Store, name: str, trials: int, reports: int) -> ExperimentRecord:
    """Return an experiment whose trials have all ended, made by an earlier run if there was one."""
    if found := store.experiments.named(name):
        return found[0]
    writer = Writer(store, name)
    at_once = max(1, min(trials, 5000 // reports))
    for first in range(0, trials, at_once):
        batch = [writer.start(number) for number in range(first, min(first + at_once, trials))]
        log: list[Any] = []
        for trial in batch:
            log.append(Start(reason="a worker group is free", number=trial.number, params=trial.params))
            log.append(SegmentStarted(time=time.time(), trial=trial.number, segment=1))
        writer.commit(log, batch)
        for begin in range(0, reports, 2500):
            writer.commit([r for t in batch for r in writer.reports(t, min(2500, reports - begin))], batch)
        writer.commit([writer.end(trial) for trial in batch], batch)
    writer.commit([], [], ExperimentState.COMPLETED, completed=trials)
    return store.experiments.get(writer.record.public_id)


def serve(url: str, home: str, listening: socket.socket) -> None:
    from tuner.api import create_app
    from tuner.api.server import Server
    from tuner.settings import Settings

    with Store.open(url) as store:
        Server(create_app(Settings(home=Path(home)), store), log_level="warning").run(sockets=[listening])


class Service:
    """The API in a separate process."""

    def __init__(self, url: str, home: str) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(url, home, listening), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=300)
        while True:
            with contextlib.suppress(httpx.TransportError):
                self.client.get("/healthz")
                break
            time.sleep(0.05)
        self.process = psutil.Process(self._process.pid)

    def memory_mb(self) -> float:
        return float(self.process.memory_full_info().uss) / 2**20

    def cpu_s(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def timed(service: Service, call: Callable[[], httpx.Response], repeats: int) -> dict[str, float]:
    """Return the milliseconds of the first call and of the others, and the service's CPU time for one."""
    took, size, cpu = [], 0, service.cpu_s()
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        response = call()
        took.append((time.perf_counter() - begin) * 1e3)
        response.raise_for_status()
        size = int(response.headers.get("content-length", len(response.content)))
    rest = sorted(took[1:])
    return {
        "first_ms": took[0],
        "p50_ms": statistics.median(rest),
        "p95_ms": rest[max(math.ceil(0.95 * len(rest)) - 1, 0)],
        "cpu_ms": (service.cpu_s() - cpu) / len(took) * 1e3,
        "kb": size / 1024,
    }


def show(benchmark: str, **row: Any) -> None:
    shown = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps({"benchmark": f"page_scale {benchmark}", **shown}), flush=True)


def curves(service: Service, record: ExperimentRecord, trials: int, reports: int, repeats: int) -> None:
    path = f"/api/v1/experiments/{record.public_id}/curves"
    before = service.memory_mb()
    whole = timed(service, lambda: service.client.get(path, params={"points": 400}), repeats)
    size = {"trials": trials, "reports": reports}
    show("curves", **size, **whole, memory_mb=service.memory_mb() - before)
    part = {"points": 400, "from": reports // 2, "to": reports // 2 + reports // 20}
    show("part of the curves", **size, **timed(service, lambda: service.client.get(path, params=part), repeats))


def tables(service: Service, record: ExperimentRecord, trials: int, repeats: int) -> None:
    path = f"/api/v1/experiments/{record.public_id}/trials"
    before = service.memory_mb()
    choices: list[dict[str, Any]] = [
        {},
        {"state": "completed"},
        {"sort": "-best_value"},
        {"sort": "-params.lr"},
        {"sort": "last.accuracy", "where": "params.optimizer=adam"},
        {"sort": "-iteration", "where": ["best_value>0.5", "params.width<100"]},
    ]
    for query in choices:
        found = timed(service, lambda query=query: service.client.get(path, params=query), repeats)  # type: ignore[misc]
        show("trials", trials=trials, query=query, **found)
    show("trials", trials=trials, memory_mb=service.memory_mb() - before)
    cpu = service.cpu_s()
    found = timed(service, lambda: service.client.get(f"/api/v1/experiments/{record.public_id}/importance"), 5)
    show("importance", trials=trials, **found, cpu_s=service.cpu_s() - cpu)
    some = path.replace("trials", "curves")
    found = timed(service, lambda: service.client.get(some, params={"points": 400}), repeats)
    show("curves of the best of many", trials=trials, **found)


def alive(service: Service) -> None:
    show("kept-alive GET", **timed(service, lambda: service.client.get("/healthz"), 200))


def stream(service: Service, store: Store, form: str, clients: int, seconds: float, rate: float) -> None:
    """Clients in threads of this process; what they take of the CPU is not counted."""
    writer = Writer(store, f"live {time.time()}")
    trial = writer.start(0)
    started = SegmentStarted(time=time.time(), trial=0, segment=1)
    writer.commit([Start(reason="a worker group is free", number=0), started], [trial])
    url = f"{service.url}/api/v1/experiments/{writer.record.public_id}/{form}?after={writer.seq}"
    committed: dict[int, float] = {}
    seen: list[tuple[int, float]] = []
    ready, done = threading.Barrier(clients + 1), threading.Event()

    def listen() -> None:
        with httpx.stream("GET", url, timeout=60) as response:
            waiting = True
            for line in response.iter_lines():
                if line.startswith("id: "):
                    seen.append((int(line[4:]), time.perf_counter()))
                    if waiting:
                        waiting = False
                        ready.wait()
                if done.is_set():
                    return

    threads = [threading.Thread(target=listen, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    seen.clear()
    cpu, begin = service.cpu_s(), time.perf_counter()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        writer.commit(writer.reports(trial, 1), [trial])
        committed[writer.seq] = time.perf_counter()
    used, took = service.cpu_s() - cpu, time.perf_counter() - begin
    time.sleep(1.0)
    done.set()
    late = sorted((at - committed[seq]) * 1e3 for seq, at in list(seen) if seq in committed)
    writer.commit([], [], ExperimentState.COMPLETED)
    show(
        f"stream of {form}", clients=clients, reports_per_s=rate, seen=len(late), committed=len(committed),
        p50_ms=statistics.median(late), p95_ms=late[int(0.95 * len(late))], cpu=used / took,
    )  # fmt: skip


def tree_cpu_s(*roots: psutil.Process) -> float:
    """Return the CPU time of these processes and of all that they have started and that still live."""
    total = 0.0
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
    return total


def renderer_mb(browser: psutil.Process) -> float:
    """Return the memory of the largest renderer."""
    sizes = []
    for process in browser.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(part.startswith("--type=renderer") for part in process.cmdline()):
                sizes.append(process.memory_full_info().uss / 2**20)
    return max(sizes, default=0.0)


INK = """() => { const canvas = document.querySelector('.u-over canvas'); if (!canvas || !canvas.width) return false;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); let n = 0;
  for (let i = 3; i < data.length; i += 4) if (data[i] > 0) n++; return n > 500; }"""
HISTORY = INK.replace(".u-over canvas", "canvas[role=img]")
"""Trials that report once are shown as points."""
ROWS = "() => document.querySelectorAll('tbody tr[aria-rowindex]').length > 5"
FRAMES = """ms => new Promise(done => { const times = []; const begin = performance.now(); let last = begin;
  const frame = now => { times.push(now - last); last = now;
    if (now - begin < ms) requestAnimationFrame(frame); else done(times.slice(1)); };
  requestAnimationFrame(frame); })"""


def live_trials(store: Store, trials: int, reports: int) -> tuple[Writer, list[Trial]]:
    """Return a writer with this many running trials, each with this many reports."""
    writer = Writer(store, f"live page {time.time()}")
    running = [writer.start(number) for number in range(trials)]
    log: list[Any] = []
    for trial in running:
        log.append(Start(reason="a worker group is free", number=trial.number, params=trial.params))
        log.append(SegmentStarted(time=time.time(), trial=trial.number, segment=1))
    writer.commit(log, running, running=trials)
    for first in range(0, trials, 20):
        part = running[first : first + 20]
        writer.commit([report for trial in part for report in writer.reports(trial, reports)], part)
    return writer, running


def page(service: Service, store: Store, home: str, options: argparse.Namespace) -> None:
    import shutil

    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    before = {process.pid for process in psutil.process_iter()}
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        own = next(
            process for process in psutil.process_iter(["cmdline"])
            if process.pid not in before and "--headless" in (process.info["cmdline"] or [])
            and not any(part.startswith("--type=") for part in process.info["cmdline"])
        )  # fmt: skip

        def opened(what: str, record: ExperimentRecord, ready: dict[str, str], **size: int) -> None:
            view = browser.new_page(viewport={"width": 1280, "height": 900})
            begin, memory, took = time.perf_counter(), service.memory_mb(), {}
            cpu = tree_cpu_s(own, service.process)
            view.goto(f"{service.url}/experiments/{record.public_id}", wait_until="commit")
            for name, condition in ready.items():
                view.wait_for_function(condition, timeout=120_000, polling="raf")
                took[name] = time.perf_counter() - begin
            took["cpu_s"] = tree_cpu_s(own, service.process) - cpu
            view.wait_for_load_state("networkidle")
            show(what, **size, **took, renderer_mb=renderer_mb(own), memory_mb=service.memory_mb() - memory)
            view.close()

        warm = browser.new_page()
        warm.goto(service.url)
        warm.wait_for_load_state("networkidle")
        warm.close()
        many = make(store, f"{options.many} trials", options.many, 1)
        for _ in range(3):
            opened("page of many trials", many, {"table_s": ROWS, "points_s": HISTORY}, trials=options.many)
        for reports in (options.reports // 50, options.reports):
            record = make(store, f"{options.trials} trials of {reports}", options.trials, reports)
            ready = {"curves_s": INK, "table_s": ROWS}
            with contextlib.ExitStack() as stack:
                peer = None
                if options.peer and reports == options.reports // 50:
                    peer = stack.enter_context(peer_of(options.peer, store, record, home, reports))
                for _ in range(3):
                    opened("page of curves", record, ready, trials=options.trials, reports=reports)
                    if peer is not None:
                        peer_opened(browser, own, peer, trials=options.trials, reports=reports)
        frames(service, store, browser, options)
        browser.close()


@contextlib.contextmanager
def peer_of(
    python: str, store: Store, record: ExperimentRecord, home: str, reports: int
) -> Iterator[tuple[str, str, psutil.Process]]:
    """Yield the address, the version and the process of optuna-dashboard on the same curves."""
    trials: list[tuple[dict[str, Any], list[float]]] = []
    for first in range(0, sum(record.counts.values()), 100):  # so few that every report is among the points
        where = [f"number>={first}", f"number<{first + 100}"]
        rows = store.trials.sorted_page(record.id, page_size=100, where=where)[0].items
        params = {trial.number: dict(trial.params) for trial in rows}
        for one in store.metrics.curves(record.id, "accuracy", points=2 * reports, trials=list(params)).curves:
            values = [value for part in one.segments for value in part.y if value is not None]
            trials.append((params[one.trial], values))
    file = Path(home) / "peer.db"
    optuna_page.make(python, file, trials)
    with optuna_page.serving(python, file) as (url, pid):
        yield url, optuna_page.version(python), psutil.Process(pid)


def peer_opened(browser: Any, own: psutil.Process, peer: tuple[str, str, psutil.Process], **size: int) -> None:
    url, version, process = peer
    view = browser.new_page(viewport={"width": 1280, "height": 900})
    begin, cpu = time.perf_counter(), tree_cpu_s(own, process)
    view.goto(url + optuna_page.PATH, wait_until="commit")
    view.wait_for_function(optuna_page.DRAWN, arg=1, timeout=300_000)
    took = {"curves_s": time.perf_counter() - begin, "cpu_s": tree_cpu_s(own, process) - cpu}
    memory = process.memory_full_info().uss / 2**20
    show(f"optuna-dashboard {version}", **size, **took, renderer_mb=renderer_mb(own), memory_mb=memory)
    view.close()


def frames(service: Service, store: Store, browser: Any, options: argparse.Namespace) -> None:
    """100 reports a second, in ten commits, by one thread."""
    writer, running = live_trials(store, options.trials, 200)
    view = browser.new_page(viewport={"width": 1280, "height": 900})
    view.goto(f"{service.url}/experiments/{writer.record.public_id}")
    view.wait_for_function(INK, timeout=120_000)
    done = threading.Event()

    def report() -> None:
        begin, n = time.perf_counter(), 0
        while not done.is_set():
            time.sleep(max(0.0, begin + n / 10 - time.perf_counter()))
            chosen = [running[(10 * n + i) % len(running)] for i in range(10)]
            writer.commit([one for trial in chosen for one in writer.reports(trial, 1)], chosen)
            n += 1

    thread = threading.Thread(target=report)
    thread.start()
    view.wait_for_timeout(3000)
    times = sorted(view.evaluate(FRAMES, 10_000))
    done.set()
    thread.join()
    writer.commit([], [], ExperimentState.COMPLETED)
    show(
        "frames while 100 reports/s come", trials=options.trials, reports=200, frames=len(times),
        p50_ms=statistics.median(times), p95_ms=times[int(0.95 * len(times))], longest_ms=times[-1],
    )  # fmt: skip
    view.close()


@contextlib.contextmanager
def folder(keep: str | None) -> Iterator[str]:
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory() as made:
            yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--keep", help="a folder for the data, used again if it has them")
    parser.add_argument("--only", choices=["curves", "trials", "stream", "page"], help="this part alone")
    parser.add_argument("--peer", help="the Python of an environment that has optuna-dashboard")
    options = parser.parse_args()
    with folder(options.keep) as home, Store.open(f"sqlite:///{home}/tuner.db") as store:
        store.migrate()
        sizes = (
            sorted({options.reports, options.reports // 10, options.reports // 50})
            if options.only in (None, "curves")
            else []
        )
        large = {n: make(store, f"{options.trials} trials of {n}", options.trials, n) for n in sizes if n}
        wanted = options.only in (None, "trials")
        many = make(store, f"{options.many} trials", options.many, 1) if wanted else None
        service = Service(f"sqlite:///{home}/tuner.db", home)
        try:
            for reports, record in large.items():
                curves(service, record, options.trials, reports, options.repeats)
            if many is not None:
                tables(service, many, options.many, options.repeats)
            if options.only in (None, "stream"):
                alive(service)
                for form in ("events", "changes"):
                    stream(service, store, form, options.clients, 10.0, 10.0)
            if options.only in (None, "page"):
                page(service, store, home, options)
        finally:
            service.close()


if __name__ == "__main__":
    main()
