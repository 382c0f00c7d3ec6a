"""Show in Chromium an experiment with more trials than its charts draw, and compare trials."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks.page_data import make
from tests.web.conftest import Open, Service, turn_to
from tests.web.searches import Search, digits, two_objectives
from tests.web.test_page import INK, best_of, curves, expect, wait_until
from tuner.domain.experiment import Limits
from tuner.domain.keys import keyed_random

pytestmark = pytest.mark.browser
TRIALS = 1500


def numbers(page: Any) -> list[int]:
    cells = page.locator("tbody tr[aria-rowindex] td:first-child").all_text_contents()
    return [int(text) for text in cells]


def test_of_many_trials_the_charts_show_a_sample_and_the_table_all(visit: Open, service: Service) -> None:
    record = make(service.store, "many", TRIALS, 2)
    trials = [trial for at in (0, 1000) for trial in service.store.trials.sorted_page(
        record.id, page_size=1000, where=[f"number>={at}", f"number<{at + 1000}"])[0].items]  # fmt: skip
    assert len(trials) == TRIALS
    page = visit("/experiments/nothing")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.url}/experiments/{record.public_id}")
    expect(page.get_by_role("heading", name="Trials · 1,500")).to_be_visible()
    expect(page.get_by_text("Shows 1,000 of 1,500 trials")).to_be_visible()
    wait_until(page, lambda: page.evaluate(INK) > 2000, "drawing the curves")
    best = sorted(trials, key=lambda trial: -(trial.best_value or 0))
    assert numbers(page)[:5] == [trial.number for trial in best[:5]]
    rows = [url for url in asked if re.search(r"/trials\?", url)]
    assert len(rows) == 1, "one page of the table is read"

    page.get_by_role("button", name="lr", exact=True).click()
    lowest = sorted(trials, key=lambda trial: trial.params["lr"])
    wait_until(page, lambda: numbers(page)[:3] == [trial.number for trial in lowest[:3]], "sorting by the service")
    table = page.get_by_role("region", name="Trials")
    for _ in range(40):
        table.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        page.wait_for_timeout(50)
        if numbers(page) and numbers(page)[-1] == lowest[-1].number:
            break
    assert numbers(page)[-1] == lowest[-1].number, "scrolling reads on until the last trial"

    chosen = [trial for trial in trials if trial.params["optimizer"] in ("sgd", "lion") and trial.params["lr"] < 1e-3]
    brush = '{"optimizer":["sgd","lion"],"lr":[0.00001,0.001]}'
    turn_to(page, f"/experiments/{record.public_id}?tab=parameters&brush={brush}")
    expect(page.get_by_role("heading", name=f"Trials · {len(chosen)} of 1,500")).to_be_visible()
    outside = next(trial for trial in best[500:] if trial.number not in _drawn(service, record.id))
    turn_to(page, f"/experiments/{record.public_id}?trial={outside.number}")
    expect(page.get_by_role("dialog")).to_contain_text(f"Trial {outside.number}")


@pytest.mark.long  # TrialTable.test.tsx saves a table as a CSV file as well
def test_the_csv_of_a_table_has_all_rows_that_pass_the_filters(visit: Open, service: Service) -> None:
    """It had the 200 rows that the page had read."""
    record = make(service.store, "many", 1100, 1)
    page = visit(f"/experiments/{record.public_id}?sort=number")

    def saved() -> list[list[str]]:
        with page.expect_download() as caught:
            page.get_by_role("button", name="CSV").click()
        return list(csv.reader(io.StringIO(Path(caught.value.path()).read_text())))

    expect(page.get_by_role("heading", name="Trials · 1,100")).to_be_visible()
    heads, *rows = saved()
    assert [row[heads.index("Trial")] for row in rows] == [str(number) for number in range(1100)]
    assert all(row[heads.index("lr")] for row in rows)
    page.goto(f"{service.url}/experiments/{record.public_id}?tab=decisions&kind=start")
    expect(page.get_by_role("button", name="Older decisions")).to_be_attached()
    heads, *rows = saved()
    assert [row[heads.index("trial")] for row in rows] == [str(number) for number in reversed(range(1100))]
    page.goto(f"{service.url}/experiments/{record.public_id}?tab=events&event=starts")
    expect(page.get_by_role("button", name="Older events")).to_be_visible()
    assert len(saved()) == 1 + 1100


def test_the_numbers_of_curves_include_every_report(visit: Open, service: Service) -> None:
    """They were those at the resolution of the screen."""
    record = make(service.store, "long", 3, 1000)
    trials = [trial.public_id for trial in service.store.trials.page(record.id, page_size=10).items]
    every = [[str(number), str(step)] for number in range(3) for step in range(1, 1001)]

    def saved(page: Any, menu: Any) -> list[list[str]]:
        menu.get_by_role("button", name="save").click()
        with page.expect_download() as caught:
            page.get_by_role("button", name="as CSV").click()
        rows = csv.DictReader(io.StringIO(Path(caught.value.path()).read_text()))
        return [[row["trial"].removeprefix("trial "), row["step"]] for row in rows]

    page = visit(f"/experiments/{record.public_id}")
    menus = page.get_by_role("group", name="Save this chart")
    assert sorted(saved(page, menus.first)) == sorted(every)
    with page.expect_response(re.compile(r"/curves\?.*\bfrom=100\b")):
        page.goto(f"{service.url}/experiments/{record.public_id}?zoom=100,200,0,1")
    assert sorted(saved(page, menus.first)) == sorted(every)
    turn_to(page, f"/trials/{trials[1]}")
    assert saved(page, menus.first) == every[1000:2000]
    turn_to(page, f"/compare?trials={trials[0]},{trials[2]}")
    assert saved(page, menus.first) == every[:1000] + every[2000:]


@pytest.mark.long  # the first test of this file sorts on the service as well
def test_of_many_trials_the_service_sorts_by_expected_values_after_repeats(visit: Open, service: Service) -> None:
    """With more than 1,000 trials, the table ranked and sorted single runs."""

    def noisy(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {"accuracy": 0.5 + float(params["lr"]) + 0.05 * keyed_random(5, number).random()}

    limits = Limits(max_concurrent_trials=100, repeats=4)
    spec = digits("noisy", trials=1001, scheduler={"type": "fifo"}, max_t=1, limits=limits)
    search = Search(service.store, spec, start=time.time() - 600, curve=noisy)
    search.advance(at_once=500)
    best = best_of(search)
    trials = len(search.core.trials)
    assert trials > 1001
    assert best["trial_number"] != max(search.core.trials, key=lambda trial: trial.best_value or 0.0).number
    page = visit("/experiments/nothing")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.url}/experiments/{search.public_id}?x=step")
    expect(page.get_by_text(f"of {trials:,} trials: the best half").first).to_be_visible()
    expect(page.get_by_role("columnheader", name="Expected accuracy")).to_have_attribute("aria-sort", "descending")
    runs = best["runs"]["trials"]
    wait_until(page, lambda: numbers(page)[: len(runs)] == sorted(runs), "the runs of the best configuration first")
    assert len([url for url in asked if re.search(r"/trials\?", url)]) == 1, "the rows are read once"
    page.get_by_role("columnheader", name="Expected accuracy").get_by_role("button").click()
    page.get_by_role("columnheader", name="Best accuracy").get_by_role("button").click()
    luckiest = sorted(search.core.trials, key=lambda trial: (-(trial.best_value or 0.0), trial.number))
    wait_until(page, lambda: numbers(page)[:5] == [trial.number for trial in luckiest[:5]], "sorting by single runs")
    page.goto(f"{service.url}/experiments/{search.public_id}?trial={runs[-1]}")
    expect(page.get_by_role("dialog")).to_contain_text("place 1 of")


def test_of_many_trials_with_several_objectives_the_table_has_the_front_of_each(visit: Open, service: Service) -> None:
    """With more than 1,000 trials, the column was empty except for the sampled trials of the first front."""
    search = two_objectives(service.store, 1100, start=time.time() - 600)
    page, _ = service.store.trials.sorted_page(search.id, page_size=1000, sort="-number", fronts=True)
    fronts = dict(zip((trial.number for trial in page.items), page.fronts, strict=True))
    shown = visit(f"/experiments/{search.public_id}?sort=-number")
    expect(shown.get_by_text("of 1,100 trials").first).to_be_visible()
    wait_until(shown, lambda: numbers(shown)[:1] == [1099], "the last trials first")
    cells = shown.locator("tbody tr[aria-rowindex] td[data-column=front]")
    wait_until(
        shown,
        lambda: cells.all_text_contents() == [str(fronts[number]) for number in numbers(shown)],
        "each trial's front, as soon as the page knows that there are several objectives",
    )
    assert len(set(cells.all_text_contents())) > 2
    assert cells.count() > 10


def _drawn(service: Service, experiment: int) -> set[int]:
    return set(service.store.trials.sample_numbers(experiment, digits().objectives, 1000))


def test_trials_of_two_experiments_are_compared(visit: Open, service: Service) -> None:
    first = Search(service.store, digits("one"), start=time.time() - 7200, seconds=20)
    first.advance(at_once=20)
    other = Search(service.store, digits("other", seed=9), start=time.time() - 3600, seconds=20)
    other.advance(at_once=20)
    page = visit(f"/experiments/{first.public_id}?sort=number")
    expect(curves(page)).to_be_visible()
    page.get_by_role("checkbox", name="Pick trial 0").click()
    page.get_by_role("checkbox", name="Pick trial 1", exact=True).click()
    expect(page.get_by_role("button", name="Compare 2 trials")).to_be_enabled()
    assert parse_qs(urlsplit(page.url).query)["pick"] == ["0,1"]
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Compare trials")).to_be_visible()
    trials = service.store.trials.page(first.id).items
    expect(page.get_by_role("row", name="lr ")).to_contain_text(f"{trials[0].params['lr']:.4g}")
    expect(page.get_by_text("The largest difference is at iteration")).to_be_visible()
    wait_until(page, lambda: page.evaluate(INK.replace("canvas')", "canvas:nth-of-type(2)')")) > 200, "drawing")
    foreign = service.store.trials.page(other.id).items[5]
    page.goto(f"{page.url},{foreign.public_id}" if "%2C" not in page.url else f"{page.url}%2C{foreign.public_id}")
    expect(page.get_by_role("columnheader", name="other, trial 5")).to_be_visible()
    expect(page.get_by_role("row", name="seed ")).to_contain_text("9")
    page.get_by_role("button", name="Leave one, trial 1 out").click()
    expect(page.get_by_role("columnheader", name="one, trial 1")).to_have_count(0)
    expect(page.get_by_role("columnheader", name="other, trial 5")).to_be_visible()
    turn_to(page, "/compare")
    expect(page.get_by_text("Nothing to compare yet.")).to_be_visible()
