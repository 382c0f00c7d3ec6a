"""The pages in Chromium, over the real API and a real database."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.columns import from_columns
from tests.web.conftest import PATIENCE_S, Open, Service, Tab, turn_to
from tests.web.searches import SHAPES, Search, bred, digits, steady
from tuner.domain.experiment import Limits
from tuner.experiment.operations.usecases import trial_lineage

pytestmark = pytest.mark.browser

# How many pixels of the canvas with the curves are not transparent.
INK = """() => { const canvas = document.querySelector('.u-over canvas'); if (!canvas) return 0;
  const context = canvas.getContext('2d');
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height); let n = 0;
  for (const pixel of new Uint32Array(data.buffer)) if (pixel >>> 24) n++; return n; }"""

# Colours that cover at least a few pixels, without those that are partly transparent.
COLOURS = """() => { const canvas = document.querySelector('.u-over canvas'); const context = canvas.getContext('2d');
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height); const seen = new Map();
  for (const pixel of new Uint32Array(data.buffer)) if (pixel >>> 24 === 255) seen.set(pixel, (seen.get(pixel) ?? 0) + 1);
  return [...seen].filter(([, n]) => n > 8).length; }"""

# Moves the mouse over the curves for some frames.
HOVER = """frames => new Promise(done => { const over = document.querySelector('.u-over');
  const box = over.getBoundingClientRect(); let i = 0;
  const frame = () => {
    over.dispatchEvent(new MouseEvent('mousemove', { bubbles: true,
      clientX: box.left + 20 + (i * 7) % (box.width - 40), clientY: box.top + 20 + (i * 3) % (box.height - 40) }));
    if (i++ < frames) requestAnimationFrame(frame); else done(); };
  requestAnimationFrame(frame); })"""

# Counts from now on how often the layer with all curves is redrawn, and the one above with the highlighted curve.
COUNT_STROKES = """() => { window.strokes = window.upperStrokes = 0; const real = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...args) {
    const [lower, upper] = document.querySelectorAll('.u-over canvas');
    if (this.canvas === lower) window.strokes++; if (this.canvas === upper) window.upperStrokes++;
    return real.apply(this, args); }; }"""


def shot(page: Any, tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size > 10_000
    return path


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as waiting

    return waiting(locator)


def curves(page: Any) -> Any:
    return page.get_by_role("img", name=re.compile("^Curves of"))


def best_of(search: Search) -> dict[str, Any]:
    best = search.core.summary()["best"]
    assert isinstance(best, dict)
    return best


def wait_until(page: Any, condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S:g} s"
        page.wait_for_timeout(50)


def settled(page: Any, script: str) -> Any:
    """Return the value of a script once it is above zero and has stayed the same for half a second."""
    seen: list[Any] = []

    def same() -> bool:
        seen.append(page.evaluate(script))
        return len(seen) > 10 and seen[-1] > 0 and len(set(seen[-10:])) == 1

    wait_until(page, same, f"a steady value of {script}")
    return seen[-1]


@pytest.fixture
def finished(service: Service) -> Search:
    search = Search(service.store, digits(), start=time.time() - 7200, seconds=20)
    search.advance(at_once=20)
    for ordinal in (1, 2):
        search.write_logs(4, ordinal)
    search.write_usage(4)
    return search


@pytest.fixture
def running(service: Service) -> Search:
    search = Search(service.store, digits("live"), start=time.time() - 30)
    search.advance(25)
    return search


def test_nothing_yet_says_what_to_do_and_the_first_experiment_shows_up(visit: Open, service: Service) -> None:
    page = visit("/")
    expect(page.get_by_role("heading", name="No experiments yet")).to_be_visible()
    expect(page.get_by_text("tuner.run(")).to_be_visible()
    page.get_by_role("tab", name="HTTP").click()
    expect(page.get_by_text(f"curl -X POST {service.url}/api/v1/experiments")).to_be_visible()
    expect(page.get_by_role("link", name="fill in a form")).to_have_attribute("href", "/new")
    Search(service.store, digits("first"), start=time.time())
    expect(page.get_by_role("link", name="first")).to_be_visible()


def test_the_list_shows_state_progress_and_best(visit: Open, finished: Search, running: Search, tmp_path: Path) -> None:
    page = visit("/")
    row = page.get_by_role("row", name=re.compile("digits"))
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("27/27")
    expect(row).to_contain_text(f"{best_of(finished)['value']:.6g}")
    expect(page.get_by_role("row").nth(1)).to_contain_text("live")
    expect(page).to_have_title("Experiments · Tuner")
    shot(page, tmp_path, "list")
    page.get_by_label("Filter by name").fill("dig")
    expect(page.get_by_role("link", name="live")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?name=dig$"))
    page.get_by_role("link", name="digits").click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()


def test_an_experiment_shows_its_curves_and_why_each_trial_ended(visit: Open, finished: Search, tmp_path: Path) -> None:
    page = visit(f"/experiments/{finished.public_id}", dark=True, height=1300)
    for colours in ("dark", "light"):
        page.emulate_media(color_scheme=colours)
        expect(page.locator(f'html[data-mantine-color-scheme="{colours}"]')).to_be_attached()
        expect(curves(page)).to_be_visible()
        wait_until(page, lambda: page.evaluate(INK) > 2000, f"drawing the curves in {colours} colours")
        wait_until(page, lambda: page.evaluate(COLOURS) >= 5, f"colours by rank in {colours} colours")
        shot(page, tmp_path, f"experiment-{colours}")
    expect(page.get_by_role("heading", name="Trials · 27")).to_be_visible()
    best = best_of(finished)
    first = page.get_by_role("row").nth(1)
    expect(first).to_contain_text(f"{best['value']:.6g}")
    log = page.get_by_role("region", name="Decisions, newest first")
    expect(log).to_contain_text("all 27 trials ended")
    page.get_by_role("button", name=re.compile("^stopped")).click()
    stopped = [trial for trial in finished.core.trials if trial.state == "stopped"]
    for trial in sorted(stopped, key=lambda one: -(one.best_value or 0))[:5]:
        expect(
            page.get_by_role("row", name=re.compile(rf"^Pick trial {trial.number} {trial.number} stopped"))
        ).to_contain_text(trial.reason)
    page.get_by_role("tab", name="Parameters").click()
    shares = page.get_by_label("Importance of parameters for accuracy")
    expect(shares).to_contain_text("lr")
    expect(shares).to_contain_text("width")
    expect(page.get_by_text("This is only a hint. 23 of these 23 trials were stopped early")).to_be_visible()
    page.get_by_role("tab", name="Set-up").click()
    expect(page.get_by_text("loguniform(1e-4, 0.1)")).to_be_visible()


def test_a_running_experiment_is_followed_report_by_report(visit: Open, running: Search, tmp_path: Path) -> None:
    page = visit(f"/experiments/{running.public_id}", height=1300)
    fetched: list[str] = []
    expect(page.get_by_role("status")).to_have_text("live")
    wait_until(page, lambda: page.evaluate(INK) > 200, "drawing the curves")
    page.on("request", lambda request: fetched.append(request.url))
    before = page.evaluate(INK)
    trials = len(running.core.trials)
    for _ in range(30):
        running.advance(3)
        page.wait_for_timeout(20)
    assert len(running.core.trials) > trials
    expect(page.get_by_role("heading", name=f"Trials · {len(running.core.trials)}")).to_be_visible()
    best = best_of(running)
    expect(page.get_by_role("row").nth(1)).to_contain_text(f"{best['value']:.6g}")
    wait_until(page, lambda: page.evaluate(INK) > before, "drawing the new points")
    last = next(decision for decision in running.store.log.decisions(running.id).items if decision.trial is not None)
    expect(page.get_by_role("region", name="Decisions, newest first")).to_contain_text(last.reason)
    # Curves and decisions are not read again; a start is carried out once the trial runs.
    waiting = sum(decision.state == "pending" for decision in running.store.log.decisions(running.id).items)
    expect(page.get_by_text("not carried out yet")).to_have_count(waiting)
    assert [url for url in fetched if "/curves" in url] == [], "points are appended, not read again"
    assert [url for url in fetched if "/decisions" in url] == []
    shot(page, tmp_path, "live")
    running.advance()
    expect(page.get_by_text("completed", exact=True).first).to_be_visible()
    expect(page.get_by_role("status")).to_have_count(0)
    expect(page).to_have_title("live · completed · Tuner")
    ended = {str(trial.state) for trial in running.core.trials}
    for state in ended:
        count = sum(trial.state == state for trial in running.core.trials)
        expect(page.get_by_role("button", name=f"{state} {count}", exact=True)).to_be_visible()


def improvements(service: Service, search: Search) -> int:
    """Return how often the best value has improved so far."""
    objective = search.core.spec.objective
    _, values = service.store.metrics.best_so_far(search.id, objective.metric, objective.mode)
    return len(values)


def test_rows_are_what_the_core_has_after_pauses_exploits_and_starts(visit: Open, service: Service) -> None:
    """The page used to compute states from events, and showed a running trial as paused."""
    scheduler = {
        "type": "pbt",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}},
    }
    spec = digits("taken over", 8, scheduler=scheduler, max_t=40, limits=Limits(max_concurrent_trials=4))
    search = Search(service.store, spec, start=time.time() - 60, curve=steady)
    page = visit(f"/experiments/{search.public_id}?sort=number", height=1300)
    expect(page.get_by_role("status")).to_have_text("live")
    read: list[str] = []
    improved_before, begun = 0, time.monotonic()
    for count in (30, 60, 61, 62, 63, 90):
        if count == 60:
            improved_before = improvements(service, search)
            begun = time.monotonic()
            page.on("request", lambda request: read.append(request.url))
        search.advance(count)
        expect(page.get_by_role("heading", name=f"Trials · {len(search.core.trials)}")).to_be_visible()
        for trial in search.core.trials:
            row = page.get_by_role("row", name=re.compile(rf"^Pick trial {trial.number} {trial.number} {trial.state}"))
            expect(row.locator("td[data-column=iteration]")).to_have_text(str(trial.iteration))
            expect(row).to_contain_text(trial.waiting or trial.reason)
    decisions = {decision.kind for decision in service.store.log.decisions(search.id, page_size=1000).items}
    assert decisions >= {"exploit", "resume", "pause"}
    # The panel of the best configuration reads how it changed, at most once for each new best value.
    of_best = [url for url in read if url.endswith("/lineage?at=best")]
    assert len(of_best) <= improvements(service, search) - improved_before
    # The warning of trials that started over is read every 30 s.
    of_warning = [url for url in read if "/decisions" in url and "text=starts" in url]
    assert len(of_warning) <= 1 + (time.monotonic() - begun) / 30
    rows = [url for url in read if url not in of_best and url not in of_warning]
    assert [url for url in rows if "/trials" in url or "/decisions" in url or "/curves" in url] == []


def test_a_page_that_missed_very_much_reads_everything_again(
    visit: Open, running: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.api.stream.KEPT", 10)
    page = visit(f"/experiments/{running.public_id}?sort=-number")
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.get_by_role("heading", name=f"Trials · {len(running.core.trials)}")).to_be_visible()
    running.advance(120, at_once=60)
    expect(page.get_by_role("heading", name=f"Trials · {len(running.core.trials)}")).to_be_visible()
    last = running.core.trials[len(running.core.trials) - 1]
    expect(
        page.get_by_role("row", name=re.compile(rf"^Pick trial {last.number} {last.number} {last.state}"))
    ).to_be_visible()


def test_a_pending_experiment_is_followed_from_its_very_start(visit: Open, service: Service) -> None:
    spec = digits("soon")
    record = service.store.experiments.create(spec)
    page = visit(f"/experiments/{record.public_id}?x=time")
    expect(page.get_by_text("Waiting for the first trial to start.")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("live")
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    search = Search(service.store, spec, start=time.time(), record=record)
    search.advance(15)
    expect(page.get_by_role("heading", name=f"Trials · {len(search.core.trials)}")).to_be_visible()
    wait_until(page, lambda: page.evaluate(INK) > 100, "drawing the first points")
    # Seconds since the start are counted again as soon as the start is known.
    wait_until(page, lambda: any("/curves" in url and "x=time" in url for url in fetched), "reading the curves again")
    expect(page.locator("main header").first).to_contain_text("running")


def test_one_trial_can_be_stopped(visit: Open, running: Search) -> None:
    number = next(trial.number for trial in running.core.trials if trial.state == "running")
    page = visit(f"/experiments/{running.public_id}?trial={number}")
    panel = page.get_by_role("dialog", name=re.compile("^Trial"))
    panel.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop this trial").click()
    expect(panel.get_by_role("button", name="Stop requested")).to_be_disabled()
    running.obey()
    running.advance(6)
    assert running.core.trials[number].state == "stopped"
    expect(panel).to_contain_text(re.compile(re.escape(running.core.trials[number].reason), re.IGNORECASE))
    expect(panel.get_by_role("button", name="Stop requested")).to_have_count(0)


def test_a_service_that_stops_is_said_so_and_taken_up_again(visit: Open, service: Service, running: Search) -> None:
    page = visit(f"/experiments/{running.public_id}")
    expect(page.get_by_role("status")).to_have_text("live")
    service.stop()
    expect(page.get_by_role("alert")).to_contain_text("The service is not responding")
    expect(page.get_by_role("status")).to_have_text("reconnecting…")
    running.advance(60)
    service.start()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("heading", name=f"Trials · {len(running.core.trials)}")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("live")


def test_a_hidden_tab_holds_no_connection_and_misses_nothing(visit: Open, running: Search) -> None:
    page = visit(f"/experiments/{running.public_id}")
    expect(page.get_by_role("status")).to_have_text("live")
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))
    page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, get: () => window.away === true })")
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("status")).to_have_text("live when visible")
    wait_until(page, lambda: any("/changes" in url for url in ended), "closing the stream")
    trials = len(running.core.trials)
    running.advance(80)
    assert len(running.core.trials) > trials
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.get_by_role("heading", name=f"Trials · {len(running.core.trials)}")).to_be_visible()


def test_the_part_that_is_zoomed_to_is_read_more_finely(visit: Open, service: Service) -> None:
    spec = digits("long", 2, scheduler={"type": "fifo"}, max_t=1600, limits=Limits(max_concurrent_trials=2))
    search = Search(service.store, spec, start=1.7e9, curve=steady, seconds=0.1)
    search.advance(at_once=500)
    page = visit(f"/experiments/{search.public_id}")
    wait_until(page, lambda: page.evaluate(INK) > 300, "drawing the curves")
    box = page.locator(".u-over").first.bounding_box()
    y = box["y"] + box["height"] / 2
    with page.expect_response(re.compile("/curves.*[?&]from=")) as found:
        page.mouse.move(box["x"] + box["width"] * 0.5, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
        page.mouse.up()
    part = from_columns(found.value.body())
    assert part["width"] == 1, "every report of the part is there"
    x = part["series"][0]["segments"][0]["x"]
    assert x == list(range(int(x[0]), int(x[-1]) + 1))
    assert 650 < x[0] < 950 < x[-1] < 1150
    expect(curves(page)).to_be_visible()
    wait_until(page, lambda: page.evaluate(INK) > 300, "drawing the part")


def test_keys_search_open_trials_and_say_what_they_do(visit: Open, finished: Search) -> None:
    page = visit("/experiments")
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter by name")).to_be_focused()
    turn_to(page, f"{page.url.partition('?')[0]}/{finished.public_id}?sort=number")
    expect(page.get_by_role("heading", name="Trials · 27")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 0")
    page.keyboard.press("j")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 1")
    page.keyboard.press("j")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 2")
    page.keyboard.press("k")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 1")
    page.keyboard.press("l")
    expect(page).to_have_url(re.compile("[?&]y=log"))
    page.evaluate("scrollTo(0, scrollY + 50)")
    scrolled = page.evaluate("scrollY")
    page.get_by_role("button", name="Close the trial").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("scrollY") == scrolled >= 50, "going back in the history has scrolled the page"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("open the next trial")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_pointing_at_a_curve_names_its_trial_and_a_click_opens_it(
    visit: Open, finished: Search, tmp_path: Path
) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    wait_until(page, lambda: page.evaluate(INK) > 2000, "drawing the curves")
    box = page.locator(".u-over:visible").first.bounding_box()
    # The best trial's curve ends in the top right corner.
    x, y = box["x"] + box["width"] * 0.96, box["y"] + box["height"] * 0.03
    page.mouse.move(x, y)
    best = best_of(finished)
    number = best["trial_number"]
    expect(page.get_by_text(f"Trial {number}", exact=True)).to_be_visible()
    expect(page.get_by_text("rank 1", exact=True)).to_be_visible()
    page.mouse.click(x, y)
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("reached max_t")
    expect(page).to_have_url(re.compile(rf"\?trial={number}$"))
    shot(page, tmp_path, "trial")
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text("reached max_t")
    page.get_by_role("button", name="Close the trial").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_failed_trial_says_where_and_why(visit: Open, finished: Search, tmp_path: Path) -> None:
    failed = next(trial for trial in finished.core.trials if trial.state == "failed")
    page = visit(f"/experiments/{finished.public_id}")
    page.get_by_role("button", name="failed 1").click()
    expect(page.get_by_role("heading", name="Trials · 1 of 27")).to_be_visible()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    panel = page.get_by_role("dialog")
    failure = panel.get_by_role("region", name="Failure")
    expect(failure).to_contain_text("rank 1 on 10.0.0.5")
    expect(failure).to_contain_text(SHAPES)
    expect(failure).to_contain_text('File "train.py", line 18, in step')
    panel.get_by_role("tab", name="Segments · 2").click()
    expect(panel).to_contain_text("Retry after a failure at iteration 3")
    expect(panel).to_contain_text("2 ranks on 10.0.0.4, 10.0.0.5")
    panel.get_by_role("tab", name="Decisions").click()
    expect(panel.get_by_role("region", name="Decisions, newest first")).to_contain_text("retry")
    panel.get_by_role("tab", name="Logs").click()
    expect(panel).to_contain_text("[rank 1] epoch 8")
    panel.get_by_role("tab", name="Usage").click()
    expect(panel.get_by_role("img", name="Memory of rank 1 over time, now 2 GiB, at most 2 GiB")).to_be_visible()
    expect(panel.get_by_role("img", name="CPU of rank 0 over time, now 100 %")).to_be_visible()
    expect(panel).not_to_contain_text("GPU")
    shot(page, tmp_path, "failed")
    panel.get_by_role("link", name=f"Trial {failed.number}").click()
    expect(page).to_have_url(re.compile(r"/trials/trl_\w+$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Trial {failed.number}")
    expect(page).to_have_title(f"Trial {failed.number} · failed · Tuner")
    page.get_by_role("link", name="Show in the experiment").click()
    expect(page.get_by_role("dialog")).to_contain_text(SHAPES)


def test_an_open_trial_leaves_the_buttons_above_in_reach(visit: Open, running: Search) -> None:
    page = visit(f"/experiments/{running.public_id}?trial=1")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 1")
    page.get_by_role("button", name="Switch to dark colors").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog", name="Pause this experiment?")).to_be_visible()


def test_a_bred_trial_shows_where_its_weights_come_from(visit: Open, service: Service, tmp_path: Path) -> None:
    search = bred(service.store, start=time.time() - 3600)
    exploited = [t for t in search.core.trials if t.segments[-1].cause == "exploit"]
    assert exploited
    page = visit(f"/experiments/{search.public_id}?trial={exploited[0].number}")
    expect(page.get_by_text("continued from another trial's weights")).to_be_visible()
    page.get_by_role("dialog").get_by_role("tab", name="Lineage").click()
    lineage = page.get_by_role("list", name="Lineage, oldest first")
    expect(lineage.get_by_role("listitem").first).to_contain_text("iterations 1 to")
    expect(lineage).to_contain_text("exploit of trial")
    expect(page.get_by_role("dialog")).to_contain_text("Schedule to reproduce these weights")
    shot(page, tmp_path, "bred")
    lineage.get_by_role("button").first.click()
    expect(page).to_have_url(re.compile(r"trial=\d+&view=lineage$"))


def test_a_bred_trial_shows_what_led_to_its_best_value(visit: Open, service: Service) -> None:
    """The lineage was that of the newest weights only, which may have others in their past than the best value."""
    search = bred(service.store, start=time.time() - 3600)
    store = service.store
    trials = store.trials.page(search.id).items
    of = {at: {t.number: trial_lineage(store, t.public_id, at) for t in trials} for at in ("newest", "best")}
    differs = next(
        t for t in trials if of["newest"][t.number] != of["best"][t.number] and len(of["best"][t.number]) > 1
    )
    page = visit(f"/trials/{differs.public_id}")
    page.get_by_role("button", name="what led to it").click()
    expect(page).to_have_url(re.compile("view=lineage&weights=best$"))
    lineage = page.get_by_role("list", name="Lineage, oldest first").get_by_role("listitem")
    expect(lineage).to_have_count(len(of["best"][differs.number]))
    expect(lineage.last).to_contain_text(re.compile(rf"(to|iteration) {differs.best_iteration}\b"))
    expect(page.get_by_text("tuner schedule")).to_have_count(0)
    page.get_by_text(f"newest (iteration {differs.iteration})").click()
    expect(lineage).to_have_count(len(of["newest"][differs.number]))


def test_pausing_resuming_and_cancelling_ask_first(visit: Open, running: Search) -> None:
    page = visit(f"/experiments/{running.public_id}")
    header = page.locator("main header").first
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("stops at its next report")
    dialog.get_by_role("button", name="Keep it running").click()
    assert running.store.commands.pending([running.id]) == []
    for action, state in (("Pause", "paused"), ("Resume", "running"), ("Cancel", "cancelled")):
        page.get_by_role("button", name=action, exact=True).click()
        sure = {"Cancel": "Cancel this experiment"}.get(action, action)
        page.get_by_role("dialog").get_by_role("button", name=sure, exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        wait_until(page, lambda: running.store.commands.pending([running.id]), f"{action} reaching the database")
        running.obey()
        running.advance(12)
        expect(header).to_contain_text(state)
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_curves_of_thirty_points_stay_smooth(count: int, visit: Open, service: Service, tmp_path: Path) -> None:
    limits = Limits(max_concurrent_trials=16)
    spec = digits("many", count, scheduler={"type": "fifo"}, max_t=30, limits=limits)
    search = Search(service.store, spec, start=time.time() - 9000, curve=steady)
    search.advance(at_once=500)
    assert search.reports == 30 * count
    page = visit(f"/experiments/{search.public_id}")
    wait_until(page, lambda: page.evaluate(INK) > 10_000, "drawing all curves")
    settled(page, INK)
    page.evaluate(COUNT_STROKES)
    page.evaluate(HOVER, 120)
    assert page.evaluate("window.strokes") == 0, "hovering must not redraw all curves"
    assert page.evaluate("window.upperStrokes") > 0, "it draws the highlighted one"
    shot(page, tmp_path, "many")
    assert page.locator("tbody tr[aria-rowindex]").count() < 60, "the table draws the rows in view only"


def test_on_a_phone_nothing_sticks_out(visit: Open, service: Service, finished: Search, tmp_path: Path) -> None:
    trial = finished.store.trials.page(finished.id).items[2]
    one = f"/experiments/{finished.public_id}"
    page = visit("/nowhere", width=390, height=844)

    def is_beside() -> bool:
        switch = page.get_by_role("radiogroup", name="Vertical axis").bounding_box()
        name = page.get_by_text("y", exact=True).bounding_box()
        return bool(switch["y"] < name["y"] + name["height"] / 2 < switch["y"] + switch["height"])

    for path in ("/", one, f"{one}?trial=2", f"/trials/{trial.public_id}"):
        turn_to(page, path)
        expect(page.get_by_text("completed").first).to_be_visible()
        if "trial" in path:
            expect(page.get_by_role("tab", name=re.compile("^Segments"))).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        shot(page, tmp_path, "phone")
        if path == one:
            wait_until(page, is_beside, "naming an axis beside its switch")  # both move while the page loads


def test_what_is_not_there_is_said_so(visit: Open, finished: Search) -> None:
    page = visit("/experiments/exp_nothing")
    expect(page.get_by_role("heading", name="There is no such experiment", level=1)).to_be_visible()
    page.get_by_role("link", name="All experiments").click()
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    page = visit("/nowhere")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    page.get_by_role("link", name="All experiments").click()
    expect(page.get_by_role("link", name="digits")).to_be_visible()


def test_every_control_has_a_name_and_the_keyboard_reaches_the_curves(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}?trial=2")
    expect(page.get_by_role("dialog")).to_be_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, a, input:not([type=hidden]), select')].filter(el =>
          el.offsetParent !== null && !(el.innerText?.trim() || el.getAttribute('aria-label') || el.labels?.length || el.title
          || el.closest('[aria-label]'))).map(el => el.outerHTML)"""
    )
    assert nameless == []
    page.get_by_role("button", name="Close the trial").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    curves(page).focus()
    page.keyboard.press("ArrowDown")
    best = best_of(finished)
    expect(page).to_have_url(re.compile(rf"trial={best['trial_number']}$"))


PRESSED = """(element, key) => { element.focus();
  const press = more => element.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...more }));
  return [press({ altKey: true }), press({ ctrlKey: true }), press({ metaKey: true }), press({})]; }"""
"""Press a key with Alt, Ctrl, Meta and alone; return for each if it is left to the browser."""


def test_arrow_keys_with_alt_are_left_to_the_browser_which_goes_back(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    before = page.url
    left = [True, True, True, False]
    decision = page.get_by_role("region", name="Decisions, newest first").get_by_role("button").first
    expect(decision).to_be_visible()
    assert decision.evaluate(PRESSED, "ArrowDown") == left
    assert page.url == before
    assert curves(page).evaluate(PRESSED, "ArrowRight") == left
    expect(page).to_have_url(re.compile(r"[?&]trial=\d+"))
    turn_to(page, f"{before}?tab=parameters")
    brush = page.get_by_role("slider", name="Filter by lr")
    expect(brush).to_be_visible()
    assert brush.evaluate(PRESSED, "ArrowUp") == left


def test_high_contrast_shows_what_is_chosen_and_what_colours_mean(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    page.emulate_media(forced_colors="active")
    colour = "element => getComputedStyle(element).backgroundColor"
    chosen = {
        "tab": (page.get_by_role("tab", name="Curves"), page.get_by_role("tab", name="Parameters")),
        "state": (page.get_by_role("button", name="all", exact=True), page.get_by_role("button", name="stopped 23")),
        "page": (page.get_by_role("link", name="Experiments").first, page.get_by_role("link", name="Settings")),
        "axis": (
            page.locator("label[data-active]").first,
            page.locator("label:not([data-active])[class*=Segmented]").first,
        ),
    }
    for name, (one, other) in chosen.items():
        expect(one).to_be_visible()
        assert one.evaluate(colour) != other.evaluate(colour), name
    tones = {tone: page.locator(f"i[data-tone={tone}]").first.evaluate(colour) for tone in ("good", "bad")}
    assert len(set(tones.values())) == 2, tones
    link = "element => getComputedStyle(element).textDecorationLine"
    for text in ("Show trial 4", "save", "all, with filters"):
        assert page.get_by_role("button", name=text).first.evaluate(link) == "underline", text
    assert page.locator("tbody").get_by_role("link").first.evaluate(link) == "underline"
    assert page.get_by_role("button", name="Continue").evaluate(link) == "none"
    metric = page.get_by_role("combobox", name="Metric")
    metric.focus()
    assert metric.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    page.get_by_role("tab", name="Parameters").click()
    track = page.locator(".mantine-Switch-track").first
    thumb = track.locator(".mantine-Switch-thumb")
    off = track.evaluate(colour)
    assert thumb.evaluate(colour) != off
    track.click()
    wait_until(
        page, lambda: track.evaluate(colour) not in (off, thumb.evaluate(colour)), "the color of a switch that is on"
    )


def test_a_test_finds_nothing_in_its_tab_that_another_one_has_left(_tab: Tab, service: Service) -> None:
    def look(**changes: Any) -> tuple[Any, dict[str, Any]]:
        _tab.prepare()
        page = _tab.open(f"{service.url}/favicon.svg", **{"width": 1280, "height": 800, "dark": False, **changes})
        return page, page.evaluate(
            """async () => ({ kept: { ...localStorage, ...sessionStorage }, cookie: document.cookie, width: innerWidth,
              dark: matchMedia('(prefers-color-scheme: dark)').matches, paper: matchMedia('print').matches,
              contrast: matchMedia('(forced-colors: active)').matches,
              still: matchMedia('(prefers-reduced-motion: reduce)').matches,
              clipboard: (await navigator.permissions.query({ name: 'clipboard-read' })).state,
              answers: (await fetch('/healthz')).status })"""
        )

    page, at_first = look()
    heard: list[str] = []
    page.on("request", lambda request: heard.append(request.url))
    page.route("**/healthz", lambda route: route.fulfill(status=418))
    page.context.grant_permissions(["clipboard-read"])
    page.evaluate("localStorage.a = sessionStorage.b = document.cookie = 'c=d'")
    page.emulate_media(media="print", forced_colors="active", reduced_motion="reduce")
    _, left = look(width=360, dark=True)
    assert [name for name in at_first if at_first[name] == left[name]] == ["paper", "contrast", "still"]
    page.emulate_media(media="print", forced_colors="active", reduced_motion="reduce")
    page.context.set_offline(True)
    _tab.hand_on(service.url)
    before = len(heard)
    assert look() == (page, at_first)
    assert before
    assert len(heard) == before
    _tab.close()
    another, found = look()
    assert another is not page
    assert found == at_first
    _tab.hand_on(service.url)
