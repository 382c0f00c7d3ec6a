"""Test what the pages of an experiment show and what they keep in the address, in Chromium over the real API."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from tests.web.conftest import STILL, Open, Service, turn_to
from tests.web.searches import SHAPES, Search, bred, digits, steady, two_objectives
from tests.web.test_page import COUNT_STROKES, INK, best_of, curves, expect, settled, shot, wait_until
from tuner.domain.experiment import Limits
from tuner.domain.keys import keyed_random
from tuner.domain.states import TrialState
from tuner.experiment.analysis.neighbors import neighbors
from tuner.experiment.operations.usecases import amend_experiment

pytestmark = pytest.mark.browser

# The brightest pixel of each row of the upper layer, which has the highlighted curve alone.
UPPER_INK = INK.replace("'.u-over canvas')", "'.u-over canvas:nth-of-type(2)')")
FADED = "() => Number(document.querySelector('.u-over canvas').style.opacity || 1) < 1"


@pytest.fixture
def finished(service: Service) -> Search:
    search = Search(service.store, digits(), start=time.time() - 7200, seconds=20)
    search.advance(at_once=20)
    search.write_logs(4)
    return search


@pytest.fixture
def population(service: Service) -> Search:
    return bred(service.store, 12, time.time() - 3600)


def address(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


@pytest.mark.long  # web/src/curves/ticks.test.ts has the ticks of such axes
def test_a_log_axis_that_starts_just_below_a_power_of_ten_does_not_hang(visit: Open, service: Service) -> None:
    page = visit("/")
    for lowest in (0.0951, 0.0962, 0.0999, 0.953, 0.000981):

        def chance(
            number: int, ordinal: int, params: Mapping[str, Any], iteration: int, lowest: float = lowest
        ) -> Mapping[str, float]:
            return {"accuracy": lowest * (1 + 0.9 * (iteration - 1) / 26 + 0.01 * number)}

        limits = Limits(max_concurrent_trials=4)
        spec = digits(f"from {lowest}", 4, scheduler={"type": "fifo"}, max_t=27, limits=limits)
        search = Search(service.store, spec, start=time.time() - 3600, curve=chance)
        search.advance(at_once=20)
        page.goto(f"{service.url}/experiments/{search.public_id}?y=log&all=1")
        expect(page.get_by_role("heading", name=f"from {lowest}")).to_be_visible()
        wait_until(page, lambda: page.evaluate(INK) > 500, f"drawing the curves from {lowest} on a log axis")
        page.get_by_label("Vertical axis").get_by_text("linear").click()
        expect(page).not_to_have_url(re.compile("y=log"))
        page.get_by_label("Vertical axis").get_by_text("log").click()
        expect(page).to_have_url(re.compile("y=log"))
        assert page.evaluate("1 + 1") == 2, "the tab still answers"


def test_what_is_opened_without_a_network_is_shown_once_the_service_responds(visit: Open, finished: Search) -> None:
    """The whole page was replaced by "This page broke", then loaded again without the dialog, and other pages stayed empty."""
    page = visit(f"/experiments/{finished.public_id}", new=True)
    expect(page.get_by_role("heading", name="Trials · 27")).to_be_visible()
    page.evaluate("window.isSame = true")
    banner = page.get_by_role("alert")

    def expect_notice() -> None:
        expect(banner).to_contain_text("The service is not responding. What you have opened is shown")

    page.context.set_offline(True)
    page.get_by_role("row").filter(has_text="completed").first.click()
    opening = page.get_by_role("button", name="Close the trial")
    assert opening.bounding_box()["x"] > 1200
    expect_notice()
    box = banner.bounding_box()
    assert opening.bounding_box()["y"] >= box["y"] + box["height"], "the banner is in sight"
    opening.click()
    page.get_by_role("tab", name="Timeline").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_role("dialog", name="Continue this experiment")).to_be_visible()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(banner).to_have_count(0)
    page.keyboard.press("Escape")
    page.context.set_offline(True)
    page.get_by_role("link", name="Settings").click()
    expect_notice()
    page.context.set_offline(False)
    expect(page.get_by_role("heading", name="Tokens")).to_be_visible()
    expect(banner).to_have_count(0)
    assert page.evaluate("window.isSame"), "the page was not loaded again"


def test_the_buttons_of_a_chart_stay_beside_a_long_name_of_its_metric(visit: Open, service: Service) -> None:
    """They were outside the window."""
    name = "validation_" + "x" * 100

    def curve(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {"accuracy": 0.1 * iteration, name: 0.5 / iteration}

    spec = digits("long name", 1, scheduler={"type": "fifo"}, max_t=3)
    search = Search(service.store, spec, start=time.time() - 60, curve=curve)
    search.advance(at_once=5)
    for width in (1280, 360):
        page = visit(f"/experiments/{search.public_id}?trial=0", width=width)
        figure = page.get_by_role("dialog").get_by_role("figure").filter(has_text=name)
        for button in ("log", "save", "copy"):
            box = figure.get_by_role("button", name=button, exact=True).bounding_box()
            assert 0 < box["x"] <= width - box["width"], button


def test_long_names_and_categories_leave_room_for_the_other_columns(visit: Open, service: Service) -> None:
    """A category stretched its column to its full width, and a name made the head of the table high."""
    spec = digits("long", 2, max_t=3)
    spec = replace(spec, space={**spec.space, "n" * 200: {"type": "choice", "categories": ["c" * 200]}})
    search = Search(service.store, spec, start=time.time() - 60)
    search.advance(at_once=5)
    page = visit(f"/experiments/{search.public_id}")
    cell = page.get_by_role("cell", name="c" * 200).first
    expect(cell).to_have_attribute("title", "c" * 200)
    assert cell.bounding_box()["width"] < 420
    assert page.get_by_role("columnheader", name="n" * 200).bounding_box()["height"] < 60

    other = Search(service.store, replace(spec, name="e" * 200), start=time.time() - 60)
    other.advance(at_once=5)
    turn_to(page, f"/compare?experiments={search.public_id},{other.public_id}")
    expect(page.get_by_text("e" * 200).first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280, "the comparison is as wide as the window"


@pytest.mark.parametrize("width", [1280, 360])
def test_the_buttons_of_a_number_field_are_within_it(visit: Open, width: int) -> None:
    page = visit("/new", width=width)
    field = page.get_by_label("Seconds per iteration")
    field.press_sequentially("1,5e-3")
    expect(field).to_have_value("1.5e-3")
    steps = page.locator("[data-steps]").last
    expect(steps.locator("button")).to_have_count(2)
    # All places at one moment, since the page moves while its preview arrives.
    boxes = "input => [input, ...[...document.querySelectorAll('[data-steps]')].at(-1).querySelectorAll('button')]"
    box, up, down = field.evaluate(f"input => ({boxes})(input).map(one => one.getBoundingClientRect().toJSON())")
    assert box["top"] <= up["top"] < down["top"]
    assert down["bottom"] <= box["bottom"]


def test_one_failed_trial_of_a_completed_run_is_a_line_with_a_way_to_it(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    expect(page.get_by_text("1 of 27 trials failed:")).to_be_visible()
    expect(page.get_by_text(SHAPES).first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Show trial 4").click()
    expect(page.get_by_role("dialog").get_by_role("region", name="Failure")).to_contain_text(SHAPES)
    turn_to(page, f"{page.url.partition('?')[0]}?state=cancelled")
    expect(page.get_by_text("No trial passes the filters, so there is no curve.")).to_be_visible()
    page.get_by_role("button", name="Show all trials").click()
    expect(page.get_by_role("img", name=re.compile("^Curves of"))).to_be_visible()


def test_asha_shows_its_rungs_on_a_log_axis_and_what_it_saved(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    trained = sum(t.iteration for t in finished.core.trials if t.state in ("completed", "stopped"))
    ended = sum(t.state in ("completed", "stopped") for t in finished.core.trials)
    figure = page.locator("main header").get_by_text("Training saved").locator("..")
    expect(figure).to_contain_text(f"{100 * (1 - trained / (27 * ended)):.0f} %")
    assert f"{trained} of {27 * ended} iterations" in figure.get_attribute("title")
    scale = page.get_by_label("Horizontal scale")
    expect(scale.get_by_role("radio", name="log")).to_be_checked()
    scale.get_by_text("linear").click()
    expect(page).to_have_url(re.compile("xs=linear"))
    page.reload()
    expect(page.get_by_label("Horizontal scale").get_by_role("radio", name="linear")).to_be_checked()


def test_curves_over_the_trials_own_time_and_over_a_metric(visit: Open, finished: Search, tmp_path: Path) -> None:
    page = visit(f"/experiments/{finished.public_id}?all=1")
    axis = page.get_by_role("combobox", name="Horizontal axis")
    expect(axis).to_have_value("iteration")
    for label, x, words in (
        ("trial time", "trial_time", r"after (\d+ min )?\d+ s of training"),
        ("search time", "time", r"at \d+ (s|min)"),
        ("loss", "metric:loss", r"loss \d"),
    ):
        axis.click()
        page.get_by_role("option", name=label).click()
        expect(page).to_have_url(re.compile(f"x={quote(x, safe='')}"))
        wait_until(page, lambda: page.evaluate(INK) > 500, f"drawing the curves over {label}")
        # The chart of the axis before may still be there, so the mouse looks for a curve until it finds one over this axis.
        said = page.get_by_text(re.compile(f"^accuracy [\\d.]+ {words}"))

        def pointed(said: Any = said) -> bool:
            return points_at_a_curve(page) and said.is_visible()

        wait_until(page, pointed, f"a curve over {label} under the mouse")
    shot(page, tmp_path, "over-loss")
    page.reload()
    expect(axis).to_have_value("loss")
    # The charts of an open trial are drawn over the same axis.
    page.get_by_role("row").nth(1).get_by_role("link").click()
    expect(page.get_by_role("img", name=re.compile(r"^accuracy of trial \d+ over loss, last"))).to_be_visible()
    turn_to(page, page.url.replace(quote("metric:loss", safe=""), "user_step"))
    words = "No report of accuracy has a step. Pass it with tuner.report(metrics, step=...)."
    for panel in ("Curves", "Overview"):  # the experiment and the trial
        expect(page.get_by_role("tabpanel", name=panel).get_by_text(words)).to_be_visible()


def points_at_a_curve(page: Any) -> bool:
    """Move the mouse down through the middle of the chart until it marks a curve. Return whether it has found one."""
    for share in range(2, 50):
        box = page.locator(".u-over").first.bounding_box()
        if box is None:  # another chart is taking its place
            return False
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + share / 50 * box["height"])
        if page.evaluate(FADED):
            return True
    return False


def test_decisions_have_a_tab_with_filters_that_stand_in_the_address(
    visit: Open, finished: Search, tmp_path: Path
) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    page.get_by_role("button", name="all, with filters").click()
    log = page.get_by_role("region", name="Decisions, newest first")
    expect(log).to_contain_text("all 27 trials ended")
    page.get_by_role("group", name="Filter by kind").get_by_role("button", name="stop").click()
    expect(log).not_to_contain_text("all 27 trials ended")
    page.get_by_label("Search the reasons").fill("iteration 9")
    expect(page).to_have_url(re.compile("q=iteration"))
    at_nine = [
        decision
        for decision in finished.store.log.decisions(finished.id, page_size=1000).items
        if decision.kind == "stop" and "iteration 9" in decision.reason
    ]
    expect(log.get_by_role("listitem")).to_have_count(len(at_nine))
    assert {name: address(page)[name] for name in ("tab", "kind", "q")} == {
        "tab": "decisions",
        "kind": "stop",
        "q": "iteration 9",
    }
    page.reload()
    expect(log.get_by_role("listitem")).to_have_count(len(at_nine))
    page.get_by_label("Filter by trial").fill(str(at_nine[0].trial))
    expect(log.get_by_role("listitem")).to_have_count(1)
    expect(log).to_contain_text(at_nine[0].reason)
    shot(page, tmp_path, "decisions")
    page.get_by_label("Search the reasons").fill("no such words")
    page.get_by_role("button", name="Show all").click()
    expect(log).to_contain_text("all 27 trials ended")


def test_events_are_listed_in_words_and_filtered_by_kind_and_trial(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    page.get_by_role("tab", name="Events").click()
    events = page.get_by_role("list", name="Events, newest first")
    expect(events.get_by_text("A driver began to run the experiment")).to_have_count(1)
    expect(events.get_by_text(re.compile(r"^The trial started within 1.3 s on 10.0.0.4"))).not_to_have_count(0)
    expect(events.get_by_text(re.compile("^Iteration"))).to_have_count(0)
    page.get_by_label("Filter by trial").fill("4")
    page.get_by_role("button", name="ends", exact=True).click()
    expect(events.get_by_role("listitem")).to_have_count(2)
    failure = events.get_by_role("listitem").first
    expect(failure).to_contain_text(f"The trial failed (segment 2) on rank 1: {SHAPES}")
    failure.get_by_role("button", name="details").click()
    expect(failure).to_contain_text("logits = model(images)")
    page.reload()
    expect(events.get_by_role("listitem")).to_have_count(2)
    assert {name: address(page)[name] for name in ("tab", "event", "of")} == {
        "tab": "events",
        "event": "ends",
        "of": "4",
    }
    page.get_by_role("button", name="ends", exact=True).click()
    page.get_by_role("button", name="reports").click()
    reported = finished.store.trials.page(finished.id).items[4].reports
    expect(events.get_by_role("listitem")).to_have_count(reported)
    expect(events.get_by_role("listitem").first).to_contain_text("Iteration")


def test_a_trials_page_has_a_chart_for_each_of_its_metrics(visit: Open, finished: Search, tmp_path: Path) -> None:
    trial = finished.store.trials.page(finished.id).items[0]
    page = visit(f"/trials/{trial.public_id}", height=1000)
    for metric in ("accuracy", "loss"):
        chart = page.get_by_role("img", name=re.compile(rf"^{metric} of trial 0 over training iteration, last"))
        expect(chart).to_be_visible()
        ink = f"box => {{ {INK.split('{', 1)[1].replace('document.querySelector', 'box.querySelector')}"
        wait_until(page, lambda chart=chart, ink=ink: chart.evaluate(ink) > 100, f"drawing {metric}")
    expect(page.get_by_text(f"{trial.last['loss']:.6g}").first).to_be_visible()
    shot(page, tmp_path, "trial-charts")
    page.get_by_role("tab", name="Usage").click()
    expect(page).to_have_url(re.compile("view=usage"))
    page.reload()
    expect(page.get_by_text("No samples")).to_be_visible()
    page.get_by_role("tab", name="Profile").click()
    expect(page.get_by_text("The trial has ended: only running ranks can be profiled")).to_be_visible()
    expect(page.get_by_role("button", name="Profile")).to_be_disabled()


def test_sort_filter_and_zoom_stand_in_the_address(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}?xs=linear")
    wait_until(page, lambda: page.evaluate(INK) > 1000, "drawing the curves")
    page.get_by_role("button", name="Trial", exact=True).click()
    page.get_by_role("button", name=re.compile("^completed")).click()
    page.evaluate("window.scrollTo(0, 0)")  # the table is below the chart, which may have left the window
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.05 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.4 * box["height"], steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    found = address(page)
    assert (found["sort"], found["state"]) == ("number", "completed")
    x0, x1, y0, y1 = (float(part) for part in found["zoom"].split(","))
    assert 10 < x0 < x1 < 27
    assert y0 < y1 <= 1.1
    page.reload()
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    completed = [trial.number for trial in finished.core.trials if trial.state == "completed"]
    expect(page.get_by_role("row").nth(1).get_by_role("link")).to_have_text(str(min(completed)))
    expect(page.get_by_role("heading", name=f"Trials · {len(completed)} of 27")).to_be_visible()
    page.get_by_role("button", name="Show everything").click()
    expect(page).not_to_have_url(re.compile("zoom="))


def test_pointing_at_a_row_outside_of_the_zoom_fades_nothing(visit: Open, finished: Search) -> None:
    completed = next(trial.number for trial in finished.core.trials if trial.state == "completed")
    early = next(trial.number for trial in finished.core.trials if trial.state == "stopped" and trial.iteration == 1)
    page = visit(f"/experiments/{finished.public_id}?xs=linear&zoom=20,27,0,1", height=1300)
    wait_until(page, lambda: page.evaluate(INK) > 100, "drawing what is zoomed to")
    page.get_by_role("row", name=re.compile(rf"^Pick trial {early} {early} stopped")).hover()
    page.wait_for_timeout(100)
    assert not page.evaluate(FADED)
    page.get_by_role("row", name=re.compile(rf"^Pick trial {completed} {completed} completed")).hover()
    wait_until(page, lambda: page.evaluate(FADED), "fading the others")


def test_an_exploit_breaks_the_curve_and_has_an_arrow_from_its_donor(
    visit: Open, population: Search, tmp_path: Path
) -> None:
    taken = next(
        (trial, segment)
        for trial in population.core.trials
        for segment in trial.segments
        if segment.cause == "exploit" and segment.ordinal == 2
    )
    page = visit(f"/experiments/{population.public_id}?all=1&trial={taken[0].number}")
    expect(page.get_by_text("continued from another trial's weights")).to_be_visible()
    # Without the sources of its weights there are no arrows, and less ink.
    page.route("**/segments?**", lambda route: route.abort())
    page.reload()
    without = settled(page, UPPER_INK)
    assert without > 300
    page.unroute("**/segments?**")
    page.reload()
    wait_until(page, lambda: page.evaluate(UPPER_INK) > without, "drawing the arrows")
    shot(page, tmp_path, "exploits")


def test_a_population_has_a_lane_for_each_member(visit: Open, population: Search, tmp_path: Path) -> None:
    page = visit(f"/experiments/{population.public_id}?tab=lineage")
    exploits = sum(s.cause == "exploit" for t in population.core.trials for s in t.segments)
    lanes = page.get_by_role("group", name=re.compile("^Lineage of 12 trials"))
    expect(lanes.get_by_role("button", name=re.compile("^trial"))).to_have_count(12)
    expect(lanes.locator("path[marker-end]")).to_have_count(exploits)
    member = next(trial for trial in population.core.trials if trial.segments[-1].cause == "exploit")
    lanes.get_by_role("button", name=f"trial {member.number}", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Trial {member.number}")
    expect(page.get_by_text(f"Highlighted: the origin of the weights of trial {member.number}.")).to_be_visible()
    shot(page, tmp_path, "lanes")


def test_several_objectives_are_shown_as_a_front(visit: Open, service: Service, tmp_path: Path) -> None:
    search = two_objectives(service.store, start=time.time() - 3600)
    values = {t.number: (float(t.last["accuracy"]), float(t.last["latency"])) for t in search.core.trials}
    front = {
        n
        for n, (a, b) in values.items()
        if not any((c >= a and d <= b and (c, d) != (a, b)) for c, d in values.values())
    }
    page = visit(f"/experiments/{search.public_id}")
    expect(page.get_by_role("heading", name=f"Pareto front · {len(front)} of 40 trials")).to_be_visible()
    expect(page.locator("main header").first).to_contain_text(f"{len(front)} trials")
    expect(page.get_by_role("button", name="Last latency")).to_be_visible()
    chart = page.get_by_role("img", name=re.compile("latency over accuracy of 40 trials"))
    box = chart.bounding_box()
    # The trial with the best accuracy is the rightmost point and on the front.
    best = max(values, key=lambda n: values[n][0])
    (low, high), (bottom, top) = ((min(axis), max(axis)) for axis in zip(*values.values(), strict=True))
    x = box["x"] + 64 + (values[best][0] - low + 0.05 * (high - low)) / (1.1 * (high - low)) * (box["width"] - 80)
    y = box["y"] + 12 + (top + 0.05 * (top - bottom) - values[best][1]) / (1.1 * (top - bottom)) * (box["height"] - 54)
    page.mouse.move(x, y)
    expect(page.get_by_text(f"Trial {best}", exact=True)).to_be_visible()
    expect(page.get_by_text(", on the front")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Best hypervolume so far over time, now 0[.]"))).to_be_visible()
    shot(page, tmp_path, "front")
    page.mouse.click(x, y)
    expect(page).to_have_url(re.compile(f"trial={best}"))
    turn_to(page, page.url.split("?")[0])
    # The table begins with the front, and all trials of the front have the same color, that of rank 1.
    table = page.get_by_role("region", name="Trials")
    expect(table.get_by_title("on the Pareto front")).to_have_count(len(front))
    rows = "rows => rows.map(row => row.querySelector('a').textContent).map(Number)"
    first = table.locator("tbody tr:has(a)").evaluate_all(rows)[: len(front)]
    assert first == sorted(front)
    dots = table.get_by_title("on the Pareto front").locator("i")
    assert len(set(dots.evaluate_all("all => all.map(one => one.style.background)"))) == 1
    expect(page.locator("main header").first).to_contain_text(re.compile(r"Hypervolume0\.\d+"))
    turn_to(page, "/")
    expect(page.get_by_text(f"front of {len(front)} trials")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Hypervolume over time, from 0"))).to_be_visible()
    turn_to(page, f"/experiments/{search.public_id}?tab=parameters")
    expect(page.get_by_text("1 by front")).to_be_visible()
    page.get_by_role("combobox", name="Colors").click()
    page.get_by_role("option", name="latency").click()
    expect(page.get_by_text("1 by latency")).to_be_visible()
    expect(page).to_have_url(re.compile("color=latency"))
    turn_to(page, page.url.split("?")[0] + "?tab=parameters")
    expect(page.get_by_role("heading", name="Importance of parameters for accuracy")).to_be_visible()
    page.get_by_role("combobox", name="Objective").first.click()
    page.get_by_role("option", name="latency").click()
    expect(page.get_by_role("heading", name="Each parameter and latency")).to_be_visible()
    expect(page).to_have_url(re.compile("objective=latency"))
    # The dialog began with a switch that the service refuses for several objectives.
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name=re.compile("^Fork")).click()
    expect(page.get_by_label("Learn from these trials")).to_be_disabled()
    page.get_by_role("button", name="Start the fork").click()
    expect(page.get_by_role("heading", name="two objectives-fork")).to_be_visible()
    page.goto(f"{service.url}/experiments/{search.public_id}?tab=parameters&objective=latency")
    shares = page.get_by_label("Importance of parameters for latency")
    expect(shares.locator("dt").first).to_have_text("width")  # the latency follows from the width
    expect(page.get_by_text("Colors show the rank in latency")).to_be_visible()
    # Both objectives have an axis, and a brush on the second one is a filter of the service.
    brush = quote(json.dumps({"objective:latency": [0, 2.4]}))
    turn_to(page, page.url.split("?")[0] + f"?tab=parameters&objective=latency&brush={brush}")
    below = sum(latency <= 2.4 for _, latency in values.values())
    expect(page.get_by_role("heading", name=f"Trials · {below} of 40")).to_be_visible()
    expect(page.get_by_text(f"PED-ANOVA over {below} chosen trials")).to_be_visible()
    turn_to(page, page.url.split("?")[0] + "?tab=setup")
    expect(page.get_by_text("max accuracy, min latency")).to_be_visible()


def test_trials_that_report_once_are_shown_by_number_and_parameter(
    visit: Open, service: Service, tmp_path: Path
) -> None:
    search = Search(service.store, digits("once", 12, scheduler={"type": "fifo"}, max_t=1), start=time.time() - 3600)
    search.advance(at_once=12)
    page = visit(f"/experiments/{search.public_id}")
    chart = page.get_by_role("img", name=re.compile("accuracy of .* trials by number, and the best so far"))
    expect(chart).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("accuracy of .* trials over lr;"))).to_be_visible()
    expect(page.get_by_role("heading", name="Importance of parameters")).to_be_visible()
    shot(page, tmp_path, "history")
    page.get_by_role("button", name="show over time").click()
    expect(page.get_by_role("img", name=re.compile("^Curves of accuracy"))).to_be_visible()


def test_the_best_is_the_best_within_the_constraints_wherever_it_is_shown(
    visit: Open, service: Service, tmp_path: Path
) -> None:
    spec = digits(
        "small models",
        30,
        scheduler={"type": "fifo"},
        max_t=1,
        search={"type": "tpe", "constraints": {"cost": {"max": 1e-3}}},
    )

    def costly(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {**steady(number, ordinal, params, iteration), "cost": float(params["lr"])}

    search = Search(service.store, spec, start=time.time() - 3600, curve=costly)
    search.advance(at_once=12)
    outside = [t for t in search.core.trials if t.feasible is False]
    best = service.store.experiments.get(search.public_id).best
    assert best is not None
    assert max(t.best_value or 0.0 for t in outside) > best["value"], "or this test shows nothing"
    assert service.store.metrics.best_so_far(search.id, "accuracy", "max")[1][-1] == best["value"]
    page = visit(f"/experiments/{search.public_id}")
    first = page.get_by_role("region", name="Trials").get_by_role("row").nth(1)
    expect(first).to_contain_text(f"{best['value']:.6f}"[:7])
    legend = f"{30 - len(outside)} completed× {len(outside)} outside the constraints"
    expect(page.locator("p", has_text="outside the constraints").first).to_have_text(re.compile(legend))
    shot(page, tmp_path, "constrained")


def test_with_scope_last_the_last_value_of_a_trial_counts_wherever_it_is_shown(
    visit: Open, service: Service, tmp_path: Path
) -> None:
    """The head and the strip showed the best last value; the table, the ranks and the best so far the best one ever."""

    def forgetting(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {"accuracy": 0.9 - 0.01 * number if iteration == 2 else 0.1 + 0.01 * number + 0.001 * iteration}

    spec = digits("forgetting", 12, scheduler={"type": "fifo"}, max_t=5, scope="last", search={"type": "tpe"})
    search = Search(service.store, spec, start=time.time() - 3600, curve=forgetting)
    search.advance(at_once=12)
    best = search.core.best_trial()
    assert best is not None
    assert (best.number, best.last_value, best.best_value) == (11, pytest.approx(0.215), pytest.approx(0.79))

    api = f"{service.url}/api/v1/experiments/{search.public_id}"
    shown = httpx.get(api).json()
    assert (shown["scope"], shown["best"]["value"], shown["best"]["trial_number"]) == ("last", best.last_value, 11)
    trials = httpx.get(f"{api}/trials", params={"sort": "-best_value"}).json()["items"]
    assert [trial["number"] for trial in trials] == list(range(11, -1, -1))
    assert all(trial["best_value"] == trial["last_value"] and trial["best_iteration"] == 5 for trial in trials)
    assert httpx.get(f"{api}/best-so-far", params={"metric": "accuracy"}).json()["y"][-1] == best.last_value
    curves = httpx.get(f"{api}/curves", params={"metric": "accuracy"}).json()
    assert {one["number"]: one["best_value"] for one in curves["series"]}[11] == best.last_value
    near = httpx.get(f"{service.url}/api/v1/trials/{trials[0]['id']}/neighbors").json()["items"]
    assert {one["best_value"] for one in near} <= {trial["best_value"] for trial in trials}
    said = subprocess.run(
        [sys.executable, "-m", "tuner", "--address", service.url, "best", search.public_id],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(said.stdout)["value"] == best.last_value

    page = visit(f"/experiments/{search.public_id}")
    expect(page.locator("main header").get_by_text("Best last accuracy", exact=True).locator("..")).to_contain_text(
        "0.215"
    )
    expect(page.get_by_role("heading", name="Best last accuracy so far")).to_be_visible()
    expect(page.get_by_role("img", name="Best last accuracy so far over time, now 0.215")).to_be_visible()
    table = page.get_by_role("region", name="Trials")
    expect(table.get_by_role("columnheader", name="Last accuracy")).to_be_visible()
    first = table.get_by_role("row").nth(1)
    expect(first).to_contain_text("0.215")
    first.get_by_role("link").click()
    expect(page.get_by_role("dialog")).to_contain_text("0.215 at iteration 5, place 1 of 12")
    shot(page, tmp_path, "scope-last")
    turn_to(page, f"/compare?trials={trials[0]['id']},{trials[1]['id']}")
    expect(page.get_by_role("row", name=re.compile("^last accuracy 0.215 best 0.205"))).to_be_visible()


def test_a_switch_leaves_all_but_completed_trials_out_of_every_chart_of_parameters(
    visit: Open, finished: Search
) -> None:
    page = visit(f"/experiments/{finished.public_id}?tab=parameters", height=1000)
    completed = [t for t in finished.core.trials if t.state is TrialState.COMPLETED]
    assert 0 < len(completed) < 10
    parallel = page.get_by_role("group", name=re.compile(f"^Parallel coordinates of {len(finished.core.trials)} "))
    expect(parallel).to_be_visible()
    page.get_by_role("switch", name="completed trials only").first.press("Space")
    expect(page).to_have_url(re.compile("finished=only"))
    of = f"of {len(completed)} trials over"
    expect(page.get_by_role("group", name=re.compile(f"^Parallel coordinates {of}"))).to_be_visible()
    expect(page.get_by_role("img", name=f"accuracy {of} lr;")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(f"^{len(completed)} trials by "))).to_be_visible()
    asked = f"{len(completed)} of the chosen trials have ended with a result; 10 are needed."
    expect(page.get_by_text(asked)).to_be_visible(timeout=60_000)
    page.reload()
    expect(page.get_by_role("group", name=re.compile(f"^Parallel coordinates {of}"))).to_be_visible()
    page.get_by_role("switch", name="completed trials only").nth(1).press("Space")
    expect(parallel).to_be_visible()


def test_brushes_on_several_axes_choose_trials_for_table_and_curves(
    visit: Open, finished: Search, tmp_path: Path
) -> None:
    page = visit(f"/experiments/{finished.public_id}?tab=parameters", height=1000)
    axis = page.get_by_role("slider", name="Filter by lr")
    box = axis.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.4, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("brush="))
    low, high = json.loads(address(page)["brush"])["lr"]
    assert 1e-4 < low < high <= 0.1
    within = [t for t in finished.core.trials if low <= float(t.params["lr"]) <= high]
    assert 0 < len(within) < 27
    expect(page.get_by_role("heading", name=f"Trials · {len(within)} of 27")).to_be_visible()
    finite = [t for t in within if t.best_value is not None]
    expect(page.get_by_text(f"PED-ANOVA over {len(finite)} chosen trials")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("img", name=f"accuracy of {len(finite)} trials over lr;")).to_be_visible()
    both = {"lr": [low, high], "width": ["64"]}
    wide = [t for t in within if t.params["width"] == 64]
    turn_to(page, f"{page.url.split('?')[0]}?brush={quote(json.dumps(both))}&xs=linear")
    expect(page.get_by_role("heading", name=f"Trials · {len(wide)} of 27")).to_be_visible()
    label = re.compile(f"^Curves of accuracy for {sum(t.iteration > 0 for t in wide)} trials")
    expect(page.get_by_role("img", name=label)).to_be_visible()
    page.get_by_role("tab", name="Parameters").click()
    expect(axis).to_have_attribute("aria-valuetext", re.compile(" to "))
    title = page.get_by_role("button", name="Move the axis width with the left and right arrow keys")
    order = page.get_by_role("slider").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    title.focus()
    page.keyboard.press("ArrowLeft" if order.index("Filter by width") > 0 else "ArrowRight")
    expect(page.get_by_role("button", name="order by importance")).to_be_visible()
    assert json.loads(address(page)["axes"]).index("width") != order.index("Filter by width")
    page.get_by_role("button", name="order by importance").click()
    expect(page.get_by_role("img", name=re.compile("accuracy of .* trials over lr;"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("trials by .* and .*; the table"))).to_be_visible()
    shot(page, tmp_path, "parallel")
    axis.focus()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Remove the filter width: 64").click()
    expect(page.get_by_role("heading", name="Trials · 27")).to_be_visible()
    page.get_by_role("slider", name="Filter by width").focus()
    page.keyboard.press("ArrowUp")
    wider = [t for t in finished.core.trials if t.params["width"] > 16]
    expect(page.get_by_role("heading", name=f"Trials · {len(wider)} of 27")).to_be_visible()
    expect(page.get_by_role("slider", name="Filter by width")).to_have_attribute("aria-valuetext", "32 or 64")


def test_a_trial_says_what_its_neighbors_reached(visit: Open, finished: Search) -> None:
    trial = finished.store.trials.page(finished.id).items[3]
    page = visit(f"/trials/{trial.public_id}")
    page.get_by_role("tab", name="Neighbors").click()
    expect(
        page.get_by_text(re.compile(r"nearest neighbors reached a best accuracy of .* this trial, with"))
    ).to_be_visible()
    rows = page.get_by_role("region", name="Neighbors").get_by_role("row")
    expect(rows).to_have_count(11)
    record = finished.store.experiments.get(finished.public_id)
    near = neighbors(finished.store, record, trial, 10).items
    numbers = rows.locator("td:first-child button").all_text_contents()
    assert numbers == [str(one.trial.number) for one in near]
    rows.nth(1).get_by_role("button").click()
    expect(page).to_have_url(re.compile(near[0].trial.public_id))


def test_notes_are_shown_as_markdown(visit: Open, finished: Search) -> None:
    notes = "# Why\n\nThe **first** run, [see](https://example.com).\n\n<img src=x onerror='document.title=1'>"
    amend_experiment(finished.store, finished.public_id, {"notes": notes})
    page = visit(f"/experiments/{finished.public_id}?tab=setup")
    expect(page.get_by_role("heading", name="Why")).to_be_visible()
    expect(page.get_by_role("link", name="see")).to_have_attribute("rel", "noreferrer noopener")
    assert page.locator("main img").count() == 0


def test_what_is_reported_live_draws_only_the_curves_that_it_is_about(visit: Open, service: Service) -> None:
    limits = Limits(max_concurrent_trials=4)
    spec = digits("live", 60, scheduler={"type": "fifo"}, max_t=200, limits=limits)
    search = Search(service.store, spec, start=time.time() - 3000)
    search.advance(400)
    page = visit(f"/experiments/{search.public_id}")
    expect(page.get_by_role("status")).to_have_text("live")
    wait_until(page, lambda: page.evaluate(INK) > 200, "drawing the curves")
    page.evaluate(COUNT_STROKES)
    before = page.evaluate(INK)
    reports = search.reports
    for _ in range(8):
        search.advance(2)
        page.wait_for_timeout(250)
    wait_until(page, lambda: page.evaluate(INK) != before, "drawing the new points")
    assert search.reports > reports + 4
    # About eight batches have come: all curves are redrawn now and then, not with every batch.
    assert page.evaluate("window.strokes") <= 3


def test_the_banner_of_a_stopped_service_is_not_covered_by_an_open_trial(
    visit: Open, service: Service, finished: Search
) -> None:
    search = Search(service.store, digits("live"), start=time.time() - 30)
    search.advance(25)
    page = visit(f"/experiments/{search.public_id}?trial=1")
    expect(page.get_by_role("dialog")).to_contain_text("Trial 1")
    service.stop()
    expect(page.get_by_role("alert")).to_contain_text("The service is not responding")
    # The page also asks by itself. So click before the service is there, or the button may vanish first.
    with page.expect_request(lambda request: "/api/" in request.url):
        page.get_by_role("alert").get_by_role("button", name="Try again").click()
    service.start()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_on_a_phone_no_tab_sticks_out(visit: Open, service: Service, population: Search, tmp_path: Path) -> None:
    page = visit("/nowhere", width=420, height=900)
    for tab in ("curves", "parameters", "lineage", "decisions", "events", "setup"):
        turn_to(page, f"/experiments/{population.public_id}?tab={tab}")
        expect(page.get_by_role("tab", selected=True)).to_be_visible()
        page.evaluate(STILL)
        for one in page.get_by_role("tablist", name="Views of this experiment").get_by_role("tab").all():
            box = one.bounding_box()
            assert box["x"] >= 0, (tab, one)
            assert box["x"] + box["width"] <= 420, (tab, one)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, tab
        shot(page, tmp_path, f"phone-{tab}")


def test_the_curves_are_reached_with_the_keyboard(visit: Open, finished: Search) -> None:
    page = visit(f"/experiments/{finished.public_id}")
    expect(page.get_by_text("Trials · ")).to_be_visible()
    page.wait_for_load_state("networkidle")  # until the trials are there, the key opens none
    curves(page).focus()
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(rf"trial={best_of(finished)['trial_number']}$"))


@pytest.mark.parametrize("width", [1280, 420])
def test_names_of_crowded_axes_do_not_overlap(visit: Open, service: Service, width: int) -> None:
    space = {f"layer_{n}_dropout_probability": {"type": "uniform", "lower": 0.0, "upper": 0.5} for n in range(9)}
    search = Search(service.store, digits("wide", 6, space={**digits().space, **space}), start=1.7e9)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}?tab=parameters", width=width)
    titles = page.get_by_role("button", name=re.compile("Move the axis .* arrow keys$"))
    expect(titles).to_have_count(12)
    boxes = titles.evaluate_all("all => all.map(one => { const b = one.getBBox(); const x = one.getScreenCTM().e;"
                                " return [x + b.x, x + b.x + b.width, one.getAttribute('y')]; })")  # fmt: skip
    lines = [sorted((left, right) for left, right, y in boxes if y == line) for line in {y for _, _, y in boxes}]
    assert max(map(len, lines)) > 1
    for ends in lines:
        assert all(right <= left for (_, right), (left, _) in itertools.pairwise(ends)), ends
    expect(page.get_by_text("by accuracy").first).to_be_visible()


def test_a_search_without_values_says_so_once(visit: Open, service: Service) -> None:
    limits = {"search": {"type": "tpe", "constraints": {"loss": {"max": 1e-9}}}}
    outside = Search(service.store, digits("outside", 4, **limits), start=1.7e9, curve=steady)
    outside.advance(at_once=20)
    page = visit(f"/experiments/{outside.public_id}")
    best = page.locator("section", has=page.get_by_role("heading", name="Best accuracy so far"))
    expect(best.get_by_text("no trial satisfies the constraints")).to_be_visible()
    expect(best.get_by_text("No trial reported a value.")).to_have_count(0)
    begun = Search(service.store, digits("begun", 4), start=1.7e9)
    begun.advance(2)
    turn_to(page, f"/experiments/{begun.public_id}?tab=parameters")
    expect(page.get_by_text("Shown once trials have reported.")).to_be_visible()


def test_a_best_value_of_several_runs_leaves_room_for_the_decisions(visit: Open, service: Service) -> None:
    """The decisions beside the curves are not covered by the table, however much there is to say of the best value."""
    space = {f"parameter_{i}": {"type": "uniform", "lower": 0, "upper": 1} for i in range(4)}
    space |= {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32]},
    }

    def noisy(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {"accuracy": 0.5 + float(params["lr"]) + 0.05 * keyed_random(5, number).random()}

    limits = Limits(max_concurrent_trials=4, repeats=4)
    spec = digits(trials=8, space=space, scheduler={"type": "fifo"}, max_t=3, limits=limits)
    search = Search(service.store, spec, start=time.time() - 600, curve=noisy)
    search.advance()
    page = visit(f"/experiments/{search.public_id}")
    expect(page.get_by_role("columnheader", name="Expected accuracy")).to_be_visible()
    first = page.get_by_role("row").nth(1)
    expect(first.get_by_role("link")).to_have_text(str(search.core.summary()["best"]["trial_number"]))
    # Both places at one moment, since the page may still grow above them.
    places = page.get_by_role("region", name="Decisions, newest first").or_(
        page.get_by_role("heading", name=re.compile("^Trials"))
    )
    expect(places).to_have_count(2)
    above, table = places.evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
    assert above["bottom"] < table["top"]
