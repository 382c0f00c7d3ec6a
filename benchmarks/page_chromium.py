"""Open the page of large experiments in Chromium, and optuna-dashboard on the same curves (a part of `page_scale`).

In every frame, a script in the page checks what is on the screen: the rows of the table, and the pixels of the canvas with the
curves. Times begin when the address is given to an empty tab of a fresh profile, with nothing cached. The floor is
the time of an empty page, opened in the same way before each page.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from benchmarks import optuna_page
from benchmarks.page_data import Service, Writer, live_trials, make, show
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial
from tuner.store import ExperimentRecord, Store

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
SIZE: Any = {"width": 1280, "height": 900}
CURVES = ".u-over canvas"

WATCH = """(() => {
  const seen = (window.seen = {}); let last = -1;
  const ink = canvas => { const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer); let n = 0;
    for (let i = 0; i < pixels.length; i += 7) if (pixels[i]) n++;
    return n; };
  const look = () => {
    const now = performance.timeOrigin + performance.now();
    if (!seen.table && document.querySelectorAll('tbody tr[aria-rowindex]').length > 5) seen.table = now;
    if (!seen.peer && document.querySelector('#graph-intermediate-values .scatterlayer .trace')) seen.peer = now;
    for (const [name, selector] of [['curves', '.u-over canvas'], ['points', 'canvas[role=img]']]) {
      const canvas = document.querySelector(selector);
      const drawn = canvas && canvas.width ? ink(canvas) : 0;
      if (drawn > 70 && !seen[name]) seen[name] = now;
      if (name === 'curves' && drawn !== last) { last = drawn; seen.all = now; }
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
EMPTY = """data:text/html,<canvas width=300 height=200></canvas>
<script>requestAnimationFrame(() => { window.seen.empty = performance.timeOrigin + performance.now(); })</script>"""
DRAWN = "name => window.seen[name] !== undefined"
COMPLETE = "() => performance.timeOrigin + performance.now() - window.seen.all > 700"
LOADED = """() => performance.getEntriesByType('resource').filter(one => /[.](js|css)$/.test(one.name))
  .reduce((sum, one) => sum + one.encodedBodySize, 0) / 1024"""
FRAMES = """() => { const times = (window.frames_ms = []); let last = performance.now();
  const frame = now => { times.push(now - last); last = now; if (window.frames_ms) requestAnimationFrame(frame); };
  requestAnimationFrame(frame); }"""
FRAMES_END = "() => { const times = window.frames_ms; window.frames_ms = null; return times.slice(1); }"
TOP_INK = """() => {
  const canvas = document.querySelector('.u-over canvas'), changes = (window.changes = []); let last = -1;
  const look = () => { const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height / 8);
    let n = 0; for (let i = 3; i < data.length; i += 4) if (data[i]) n++;
    if (n !== last) { last = n; changes.push((performance.timeOrigin + performance.now()) / 1e3); }
    requestAnimationFrame(look); };
  requestAnimationFrame(look); }"""


@dataclass
class Chromium:
    browser: Any
    process: psutil.Process

    def blank(self) -> Any:
        """Return an empty tab of a fresh profile, whose next page is watched."""
        view = self.browser.new_page(viewport=SIZE)
        view.add_init_script(WATCH)
        return view

    def renderer_mb(self) -> float:
        """Return the memory of the largest renderer."""
        sizes = []
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(part.startswith("--type=renderer") for part in process.cmdline()):
                    sizes.append(process.memory_full_info().uss / 2**20)
        return max(sizes, default=0.0)


@contextlib.contextmanager
def chromium(path: str | None) -> Iterator[Chromium]:
    """Start a browser: this one, or the first that is installed of Chromium's headless shell, Chromium and Chrome."""
    path = path or next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    before = {process.pid for process in psutil.process_iter()}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        own = next(
            process for process in psutil.process_iter(["cmdline"])
            if process.pid not in before and "--headless" in (process.info["cmdline"] or [])
            and not any(part.startswith("--type=") for part in process.info["cmdline"])
        )  # fmt: skip
        yield Chromium(browser, own)
        browser.close()


def measure(service: Service, store: Store, home: str, options: argparse.Namespace) -> None:
    few = max(options.reports // 50, 1)
    with chromium(options.browser) as browser:
        bundle(browser, service, make(store, f"{options.trials} trials of {few}", options.trials, few))
        if "many" in options.pages:
            many = make(store, f"{options.many} trials", options.many, 1)
            for _ in range(options.rounds):
                empty(browser)
                opened(browser, service, "page of many trials", many, ["table", "points"], trials=options.many)
        sizes = [few] * ("few" in options.pages) + [options.reports] * ("long" in options.pages)
        for reports in sizes:
            record = make(store, f"{options.trials} trials of {reports}", options.trials, reports)
            size = {"trials": options.trials, "reports": reports}
            with contextlib.ExitStack() as stack:
                peer = None
                if options.peer:
                    peer = stack.enter_context(peer_of(options, store, record, home, reports))
                for _ in range(options.rounds):
                    empty(browser)
                    opened(browser, service, "page of curves", record, ["curves", "table", "all"], **size)
                    if peer is not None and not peer_opened(browser, peer, options.peer_s, **size):
                        peer = None
        if "live" in options.pages:
            record = make(store, f"{options.trials} trials of {few}", options.trials, few)
            size = {"trials": options.trials, "reports": few}
            hover(browser, service, record, **size)
            brush(browser, service, record, **size)
            live(browser, service, store, options.trials, few)


def tree_cpu_s(*roots: psutil.Process) -> float:
    """Return the CPU time of these processes and of their descendants that are alive."""
    total = 0.0
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
    return total


def bundle(browser: Chromium, service: Service, record: ExperimentRecord) -> None:
    """Load the list first, which also warms up the service and the browser."""
    for what, path in (("the list", "/experiments"), ("an experiment", f"/experiments/{record.public_id}")):
        view = browser.blank()
        view.goto(service.url + path, wait_until="networkidle")
        show("bundle", page=what, kb=view.evaluate(LOADED))
        view.close()


def empty(browser: Chromium) -> None:
    """Open a page that has only a canvas: the floor for the times of the other pages."""
    view = browser.blank()
    begin = time.time()
    view.goto(EMPTY, wait_until="commit")
    view.wait_for_function(DRAWN, arg="empty", polling=50)
    show("floor: an empty page", drawn_s=view.evaluate("() => window.seen.empty") / 1e3 - begin)
    view.context.close()


def opened(
    browser: Chromium, service: Service, what: str, record: ExperimentRecord, parts: list[str], **size: int
) -> None:
    """Open the page once. `curves` is the time until the first curves are drawn, `all` until the last ones are."""
    memory, cpu = service.memory_mb(), tree_cpu_s(browser.process, service.process)
    served = service.cpu_s()
    view = browser.blank()
    begin = time.time()
    view.goto(f"{service.url}/experiments/{record.public_id}", wait_until="commit")
    for part in parts:
        view.wait_for_function(DRAWN, arg=part, timeout=120_000, polling=50)
    used = tree_cpu_s(browser.process, service.process) - cpu
    served = service.cpu_s() - served
    view.wait_for_load_state("networkidle")
    view.wait_for_function(COMPLETE, polling=100)
    seen = view.evaluate("() => window.seen")
    took = {f"{part}_s": seen[part] / 1e3 - begin for part in parts}
    growth = service.memory_mb() - memory
    view.context.close()
    # The memory of the page is measured without WATCH. WATCH reads the pixels of every frame, and after a slow first
    # answer these were most of the memory.
    view = browser.browser.new_page(viewport=SIZE)
    view.goto(f"{service.url}/experiments/{record.public_id}", wait_until="commit")
    view.wait_for_selector("tbody tr[aria-rowindex]")
    view.wait_for_load_state("networkidle")
    view.wait_for_timeout(1000)
    show(what, **size, **took, cpu_s=used, api_cpu_s=served, renderer_mb=browser.renderer_mb(), memory_mb=growth)
    view.context.close()


@dataclass
class Peer:
    url: str
    version: str
    process: psutil.Process


@contextlib.contextmanager
def peer_of(
    options: argparse.Namespace, store: Store, record: ExperimentRecord, home: str, reports: int
) -> Iterator[Peer]:
    """Serve the same curves with optuna-dashboard."""

    def trials() -> Iterator[tuple[dict[str, Any], list[float]]]:
        at_once = max(20_000 // reports, 1)  # so few that every report is among the points
        for first in range(0, options.trials, at_once):
            where = [f"number>={first}", f"number<{first + at_once}"]
            rows = store.trials.sorted_page(record.id, page_size=at_once, where=where)[0].items
            params = {trial.number: dict(trial.params) for trial in rows}
            for one in store.metrics.curves(record.id, "accuracy", points=2 * reports, trials=list(params)).curves:
                values = [value for part in one.segments for value in part.y if value is not None]
                if len(values) != reports:
                    raise AssertionError(f"trial {one.trial} has {len(values)} values instead of {reports}")
                yield params[one.trial], values

    file = Path(home) / f"peer {options.trials} trials of {reports}.db"
    begin = time.perf_counter()
    if optuna_page.make(options.peer, file, trials()):
        show("data for the peer", trials=options.trials, reports=reports, took_s=time.perf_counter() - begin)
    with optuna_page.serving(options.peer, file) as (url, pid):
        yield Peer(url, optuna_page.version(options.peer), psutil.Process(pid))


def peer_opened(browser: Chromium, peer: Peer, limit_s: float, **size: int) -> bool:
    """Return whether the first curves came within the limit."""
    what = f"optuna-dashboard {peer.version}"
    cpu = tree_cpu_s(browser.process, peer.process)
    view = browser.blank()
    begin = time.time()
    view.goto(peer.url + optuna_page.PATH, wait_until="commit")
    most = 0.0
    while time.time() - begin < limit_s:
        with contextlib.suppress(psutil.Error):
            most = max(most, peer.process.memory_full_info().uss / 2**20)
        with contextlib.suppress(Exception):  # a page that computes does not answer
            view.wait_for_function(DRAWN, arg="peer", timeout=2000, polling=50)
            break
    used = tree_cpu_s(browser.process, peer.process) - cpu
    try:
        seen = view.evaluate("() => window.seen") if time.time() - begin < limit_s else {}
    except Exception:
        seen = {}
    took = {"curves_s": seen["peer"] / 1e3 - begin} if "peer" in seen else {"not_drawn_after_s": time.time() - begin}
    with contextlib.suppress(psutil.Error):
        most = max(most, peer.process.memory_full_info().uss / 2**20)
    alive = peer.process.is_running() and peer.process.status() != psutil.STATUS_ZOMBIE
    show(what, **size, **took, cpu_s=used, renderer_mb=browser.renderer_mb(), memory_mb=most, server_lives=alive)
    view.context.close()
    return "peer" in seen


def frames(view: Any, what: str, act: Callable[[], None], **more: Any) -> None:
    """Report how long frames took while `act` ran."""
    view.evaluate(FRAMES)
    act()
    times = sorted(view.evaluate(FRAMES_END))
    show(
        f"frames: {what}", **more, frames=len(times), p50_ms=statistics.median(times),
        p95_ms=times[int(0.95 * len(times))], longest_ms=times[-1],
    )  # fmt: skip


def sweep(view: Any, seconds: float) -> None:
    """Move the mouse over the curves, back and forth."""
    box = view.locator(".u-over").first.bounding_box()
    begin = time.perf_counter()
    while (at := (time.perf_counter() - begin) / seconds) < 1:
        x = box["x"] + box["width"] * (0.5 + 0.45 * math.sin(9 * at))
        y = box["y"] + box["height"] * (0.5 + 0.4 * math.sin(23 * at))
        view.mouse.move(x, y)
        time.sleep(0.008)


def hover(browser: Chromium, service: Service, record: ExperimentRecord, **size: int) -> None:
    view = _settled(browser, f"{service.url}/experiments/{record.public_id}")
    frames(view, "hovering over curves", lambda: sweep(view, 5.0), **size)
    view.context.close()


def brush(browser: Chromium, service: Service, record: ExperimentRecord, **size: int) -> None:
    """Select ranges on two axes of the parallel coordinates. This filters everything else."""
    view = browser.browser.new_page(viewport=SIZE)
    view.goto(f"{service.url}/experiments/{record.public_id}?tab=parameters")
    grips = view.get_by_role("slider", name=re.compile("^Filter by "))
    grips.first.wait_for()
    view.wait_for_timeout(1500)

    def drag() -> None:
        for number in (0, 1):
            box = grips.nth(number).bounding_box()
            x = box["x"] + box["width"] / 2
            view.mouse.move(x, box["y"] + 0.2 * box["height"])
            view.mouse.down()
            for step in range(100):
                view.mouse.move(x, box["y"] + (0.2 + 0.005 * step) * box["height"])
                time.sleep(0.012)
            view.mouse.up()
            view.wait_for_timeout(300)

    frames(view, "brushing two axes", drag, **size)
    view.context.close()


def _settled(browser: Chromium, url: str) -> Any:
    """Open a page without the script that looks at the screen, and wait until its curves are drawn."""
    view = browser.browser.new_page(viewport=SIZE)
    view.goto(url)
    view.locator(CURVES).first.wait_for(state="attached", timeout=60_000)
    view.wait_for_timeout(2000)
    return view


def live(browser: Chromium, service: Service, store: Store, trials: int, reports: int) -> None:
    """Commit 100 reports a second, ten at a time, from one thread, and every 1.3 s a report of a trial far above the others."""
    writer, running = live_trials(store, trials, reports)
    highest = running.pop()
    first = _high(writer, highest, 2 * reports)
    view = _settled(browser, f"{service.url}/experiments/{writer.record.public_id}")
    done = threading.Event()
    committed: list[float] = []

    def report() -> None:
        begin, n = time.perf_counter(), 0
        while not done.is_set():
            time.sleep(max(0.0, begin + n / 10 - time.perf_counter()))
            chosen = [running[(10 * n + i) % len(running)] for i in range(10)]
            log = [one for trial in chosen for one in writer.reports(trial, 1)]
            with_high = n > 20 and n % 13 == 0  # 1.3 s apart, so at varying phases of what the page does regularly
            if with_high:
                log, chosen = [*log, *_high(writer, highest, 1)], [*chosen, highest]
            writer.commit(log, chosen)
            if with_high:
                committed.append(time.time())
            n += 1

    writer.commit(first, [highest])
    thread = threading.Thread(target=report)
    thread.start()
    size = {"trials": trials, "reports": reports}
    try:
        view.wait_for_timeout(2500)
        frames(view, "100 reports/s come", lambda: view.wait_for_timeout(8000), **size)
        frames(view, "100 reports/s come, hovering", lambda: sweep(view, 5.0), **size)
        view.mouse.move(5, 5)
        view.wait_for_timeout(500)
        view.evaluate(TOP_INK)
        view.wait_for_timeout(300)
        since = time.time()
        view.wait_for_timeout(40_000)
        changes = view.evaluate("() => window.changes")
        until = time.time() - 1.3
    finally:
        done.set()
        thread.join()
    writer.commit([], [], ExperimentState.COMPLETED)
    late = sorted(
        min((at - one for at in changes if at > one), default=math.inf) for one in committed if since < one < until
    )
    show(
        "report committed until it is drawn", **size, reports_per_s=100, seen=len(late), p50_ms=1e3 * statistics.median(late),
        p95_ms=1e3 * late[int(0.95 * len(late))], longest_ms=1e3 * late[-1],
    )  # fmt: skip
    view.context.close()


def _high(writer: Writer, trial: Trial, count: int) -> list[Any]:
    """Return reports that are far above all others in the chart."""
    log: list[Any] = writer.reports(trial, count, value=2.0)
    return log
