"""Use the pages around an experiment in Chromium: the list, a new experiment, the settings; and check every page with axe."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.test_overview import cluster_of
from tests.web.conftest import ROOT, STILL, Open, Service, turn_to
from tests.web.searches import Search, bred, digits, two_objectives
from tests.web.test_page import INK, expect, wait_until
from tuner.domain.experiment import CheckpointPolicy, Limits
from tuner.domain.states import TrialState
from tuner.settings import Quota
from tuner.store.service.access import AuditRecord

pytestmark = pytest.mark.browser
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
# Without the rules whose violations are all minor or moderate. Some of them take much time, and nothing is expected of them.
RULES = """async () => {
  const mild = axe._audit.rules.filter(one => ['minor', 'moderate'].includes(one.impact));
  const rules = Object.fromEntries(mild.map(one => [one.id, { enabled: false }]));
  const found = await axe.run(document, { resultTypes: ['violations'], rules });
  return found.violations.filter(one => one.impact === 'serious' || one.impact === 'critical')
    .map(one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 160)).slice(0, 3).join(' | ')}`); }"""


# Every visible piece of text whose contrast with what lies behind it is below 4.5. axe leaves some of it undecided.
UNREADABLE = """() => {
  const parse = text => { const [r, g, b, a = 1] = (text.match(/[\\d.]+/g) ?? []).map(Number);
    return text.startsWith('color(srgb') ? [r * 255, g * 255, b * 255, a] : [r, g, b, a]; };
  const light = ([r, g, b]) => { const f = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = el => { const stack = [];
    for (let at = el; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor); stack.push(c); if (c[3] === 1) break; }
    const over = (below, [r, g, b, a]) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
    return stack.reverse().reduce(over, [255, 255, 255]); };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const el = walk.currentNode.parentElement; const text = walk.currentNode.textContent.trim();
    if (!text || !el.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (el.closest('svg, noscript, script, style, [disabled]')) continue;
    const box = el.getBoundingClientRect(); if (box.width < 2 || box.height < 2 || box.left < 0) continue;
    const [a, b] = [light(parse(getComputedStyle(el).color)), light(behind(el))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)]; }"""

CONTRAST = RULES.replace("{ resultTypes", "{ runOnly: ['color-contrast'], resultTypes")
"""Only the contrast can differ in dark colours."""


@pytest.fixture
def ended(service: Service) -> Search:
    search = Search(service.store, digits("older"), start=time.time() - 7200, seconds=20)
    search.advance(at_once=20)
    search.write_logs(4)
    search.write_usage(4)
    return search


def test_what_runs_comes_first_and_several_are_paused_at_once(visit: Open, service: Service) -> None:
    running = [Search(service.store, digits(f"running {n}"), start=time.time() - 60) for n in range(2)]
    for search in running:
        search.advance(30)
    for n in range(2):
        Search(service.store, digits(f"ended {n}"), start=time.time() - 7200).advance(at_once=20)
    page = visit("/")
    expect(page.get_by_role("link", name="ended 1")).to_be_visible()
    names = page.locator("tbody td:nth-child(2)").all_text_contents()
    assert [name.split()[0] for name in names] == ["running", "running", "ended", "ended"]
    expect(page.get_by_role("img", name=re.compile("^Best accuracy over time, from")).first).to_be_visible()
    for name in ("running 0", "running 1", "ended 1"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.get_by_role("button", name="Pause 2").click()
    page.get_by_role("dialog", name="Pause 2 experiments?").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    for search in running:
        assert [command.command for command in search.store.commands.pending([search.id])] == ["pause"]
    page.get_by_role("button", name="Compare their best trials").click()
    expect(page.get_by_role("columnheader", name=re.compile("^running 0, trial"))).to_be_visible()


def test_the_list_is_sorted_by_any_value_on_the_service(visit: Open, service: Service) -> None:
    for at, (name, trials) in enumerate((("wide", 9), ("Narrow", 27), ("deep", 3))):
        search = Search(service.store, digits(name, trials, seed=at), start=time.time() - 3600 * (at + 1))
        search.advance(None if name != "deep" else 12, at_once=20)
    best = {one.name: one.best["value"] for one in service.store.experiments.page().items if one.best}
    assert len(best) == 3
    page = visit("/")

    def expect_order(*names: str) -> None:
        expect(page.locator("tbody td:nth-child(2)")).to_have_text([re.compile(f"^{name}") for name in names])

    expect_order("deep", "Narrow", "wide")  # what runs comes first
    head = page.get_by_role("columnheader", name=re.compile("^Best value( ▾| ▴)?$"))
    expect(head).to_have_attribute("aria-sort", "none")
    page.get_by_role("button", name="Best value").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(head.get_by_role("button")).to_have_attribute("title", "sorted by best value, largest first")
    descending = sorted(best, key=lambda name: -best[name])
    expect_order(*descending)
    page.get_by_role("button", name="Best value").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect_order(*descending[::-1])
    page.get_by_role("button", name="Name", exact=True).click()
    expect(page).to_have_url(re.compile("sort=name"))
    expect_order("deep", "Narrow", "wide")
    page.get_by_role("button", name="Name", exact=True).click()
    page.reload()
    expect_order("wide", "Narrow", "deep")
    page.get_by_role("button", name="Name", exact=True).click()
    expect_order("deep", "Narrow", "wide")
    expect(page).not_to_have_url(re.compile("sort="))


def test_the_order_in_the_address_is_shown_on_a_phone_and_ignored_if_no_column_has_it(
    visit: Open, ended: Search
) -> None:
    page = visit("/?sort=best", width=390)
    menu = page.get_by_role("combobox", name="Sort")
    expect(menu).to_have_value("by best value, smallest first")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{page.url.partition('?')[0]}?sort=toString")
    expect(page.get_by_role("link", name="older")).to_be_visible()
    expect(menu).to_have_value("")
    assert not [url for url in asked if "/api/" in url and "toString" in url]


def test_an_archived_experiment_is_found_and_brought_back(visit: Open, service: Service, ended: Search) -> None:
    page = visit("/")
    page.get_by_role("checkbox", name="Select older").check()
    page.get_by_role("button", name="Archive 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Archive").click()
    expect(page.get_by_role("link", name="older")).to_have_count(0)
    expect(page.get_by_text("All experiments are archived.")).to_be_visible()
    page.get_by_role("button", name="Show them").click()
    expect(page.get_by_role("link", name="older")).to_be_visible()
    page.get_by_role("checkbox", name="Select older").check()
    page.get_by_role("button", name="Bring back 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    expect(page.get_by_text("No experiment is archived.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("link", name="older")).to_be_visible()


def test_experiments_are_filtered_by_label_and_project(visit: Open, service: Service) -> None:
    Search(service.store, digits("one", 4, tags={"team": "vision"}), start=time.time() - 60).advance(10)
    Search(service.store, digits("two", 4, tags={"team": "speech"}), start=time.time() - 60).advance(10)
    service.store.experiments.create(digits("three", 4, project="robots"), source="api")
    page = visit("/")
    expect(page.get_by_role("row").filter(has_text="one")).to_contain_text("CPU")
    page.get_by_role("button", name="Only label team=vision").click()
    expect(page.get_by_role("link", name="two")).to_have_count(0)
    expect(page.get_by_role("link", name="one")).to_be_visible()
    expect(page).to_have_url(re.compile("tag=team%3Dvision"))
    page.get_by_role("button", name="Remove the filter label team=vision").click()
    page.get_by_role("button", name="Only project robots").click()
    expect(page.get_by_role("link", name="one")).to_have_count(0)
    expect(page.get_by_role("link", name="three")).to_be_visible()


def test_a_new_experiment_is_checked_while_one_types_and_then_started(visit: Open, service: Service) -> None:
    page = visit("/new")
    expect(page.get_by_text("freeze_thaw", exact=False).first).to_be_visible()
    yaml = page.get_by_label("Spec as YAML")
    page.get_by_label("Longest trial").fill("9")
    expect(yaml).to_have_value(re.compile("max_t: 9"))
    yaml.fill(yaml.input_value().replace("mode: max", "mode: most"))
    expect(page.get_by_role("alert")).to_contain_text("mode")
    expect(page.get_by_role("button", name="Start the search")).to_be_disabled()
    yaml.fill("name: [")
    expect(page.get_by_role("button", name="Start the search")).to_be_disabled()
    yaml.fill(
        "name: typed\nentrypoint: tuner.examples.digits:train\nmetric: accuracy\nmode: max\nnum_samples: 4\nmax_t: 3\n"
        "space:\n  lr: {type: loguniform, lower: 0.001, upper: 0.1}\n"
    )
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed")
    expect(page.get_by_role("listitem").filter(has_text="lr=")).to_have_count(4)
    page.get_by_role("button", name="Start the search").click()
    expect(page.get_by_role("heading", name="typed")).to_be_visible()
    [made] = service.store.experiments.named("typed")
    assert (made.spec.num_samples, made.spec.max_t, made.state) == (4, 3, "pending")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Clone").click()
    expect(page.get_by_label("Spec as YAML")).to_have_value(re.compile(r"name: typed[\s\S]*type: loguniform"))
    expect(page.get_by_role("button", name="Start the search")).to_be_enabled()


def test_a_clone_keeps_the_whole_spec_and_says_what_a_spec_cannot_contain(visit: Open, service: Service) -> None:
    spec = digits(
        "source",
        trials=4,
        max_t=3,
        scheduler={"type": "fifo"},
        points_to_evaluate=({"lr": 0.01, "width": 32},),
        limits=Limits(hang_timeout_s=None, max_failures=2),
        checkpoint=CheckpointPolicy(frequency=2, interval_s=None, keep_best=None),
        executor="ray",
        runtime_env={"env_vars": {"DATA": "/data"}},
        priority=5,
        notes="as in *the report*",
        tags={"team": "vision"},
    )
    source = service.store.experiments.create(spec)
    page = visit(f"/new?clone={source.public_id}")
    expect(page.get_by_label("Spec as YAML")).to_have_value(re.compile(r"env_vars:\s+DATA: /data"))
    page.get_by_label("Name", exact=True).fill("copy")
    page.get_by_label("Longest trial").fill("9")
    page.get_by_role("button", name="Start the search").click()
    expect(page.get_by_role("heading", name="copy")).to_be_visible()
    [made] = service.store.experiments.named("copy")
    assert replace(made.spec, earlier={}, code=None) == replace(spec, name="copy", max_t=9)
    by_value = service.store.experiments.create(digits("by value", entrypoint=None))
    page.goto(f"{service.url}/new?clone={by_value.public_id}")
    alert = page.get_by_role("alert").filter(has_text="Not everything of “by value” can be copied")
    expect(alert).to_contain_text("entrypoint: the training function was sent as a pickle")
    alert.get_by_role("link", name="Back to “by value”").click()
    expect(page.get_by_role("heading", name="by value")).to_be_visible()
    turn_to(page, f"/new?clone={by_value.public_id}")
    expect(page.get_by_text("entrypoint: the training function")).to_be_visible()
    expect(page.get_by_text("The spec is not valid")).to_be_visible()
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        expect(page.locator(f'html[data-mantine-color-scheme="{colours}"]')).to_be_attached()
        page.evaluate(AT_REST)
        assert page.evaluate(UNREADABLE) == []


def test_the_space_is_edited_in_the_form_in_step_with_the_yaml(visit: Open, service: Service) -> None:
    page = visit("/new")
    yaml = page.get_by_label("Spec as YAML")
    rate = page.get_by_role("group", name="Parameter lr")
    rate.get_by_label("from of lr").fill("1e-3")
    rate.get_by_label("from of lr").press("Enter")
    expect(yaml).to_have_value(re.compile(r"lr:\s+type: loguniform\s+lower: 0\.001"))
    rate.get_by_label("Name of lr").fill("rate")
    rate.get_by_label("Name of lr").press("Enter")
    expect(page.get_by_role("group", name="Parameter rate")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="rate=").first).to_be_visible()
    page.get_by_label("values of width").fill("16, 48, wide")
    page.get_by_label("values of width").press("Enter")
    expect(yaml).to_have_value(re.compile(r"- 16\s+- 48\s+- wide"))
    page.get_by_role("button", name="Add a parameter").click()
    page.get_by_label("Domain of p3").click()
    page.get_by_role("option", name="randint").first.click()
    expect(yaml).to_have_value(re.compile(r"p3:\s+type: randint\s+lower: 0\s+upper: 1"))
    page.get_by_label("to of p3").fill("0")
    page.get_by_label("to of p3").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("p3")
    page.get_by_role("button", name="Remove p3 from the space").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    yaml.fill(yaml.input_value() + "  \n")
    yaml.fill(yaml.input_value().replace("rate:", "speed:"))
    expect(page.get_by_role("group", name="Parameter speed").get_by_label("to of speed")).to_have_value("0.1")
    page.get_by_role("button", name="Start the search").click()
    expect(page.get_by_role("heading", name="digits", level=1)).to_be_visible()
    [made] = service.store.experiments.named("digits")
    assert made.spec.space["speed"] == {"type": "loguniform", "lower": 0.001, "upper": 0.1}
    assert made.spec.space["width"]["categories"] == [16, 48, "wide"]


def test_the_list_has_the_best_value_of_every_objective(visit: Open, service: Service) -> None:
    search = two_objectives(service.store, start=time.time() - 3600)
    last = [trial.last for trial in search.core.trials]
    page = visit("/experiments")
    cell = page.get_by_role("row").filter(has_text="two objectives").get_by_role("cell").nth(3)
    expect(cell).to_contain_text(f"{max(one['accuracy'] for one in last):.5f}"[:6])
    expect(cell).to_contain_text(f"{min(one['latency'] for one in last):.5f}"[:5])
    expect(cell).to_contain_text("min latency")


def test_the_settings_list_projects_and_a_project_filters_the_experiments(visit: Open, service: Service) -> None:
    Search(service.store, digits("one", 4, project="vision"), start=time.time() - 60).advance(10)
    Search(service.store, digits("two", 4, project="speech"), start=time.time() - 60).advance(at_once=20)
    service.stop()
    service.settings = replace(service.settings, quotas=(Quota("vision", "GPU", 4.0), Quota("vision", "CPU", 1.0)))
    service.start()
    page = visit("/settings")
    projects = page.get_by_role("region", name="Projects").get_by_role("row")
    expect(projects).to_have_count(3)
    expect(projects.nth(2)).to_contain_text("4 GPUs, 1 CPU")
    expect(projects.nth(2)).to_contain_text("1 (1 not ended)")
    expect(projects.nth(1)).to_contain_text("no limit")
    learn = page.get_by_label("New experiments of vision learn")
    expect(learn).to_have_value("none")
    learn.select_option("from earlier ones in the project")
    expect(page.get_by_role("region", name="Latest changes")).to_contain_text(
        "changed the settings of the project vision"
    )
    assert set(service.store.projects.all()) == {"vision"}
    page.reload()
    expect(learn).to_have_value("auto")
    expect(page.get_by_label("New experiments of speech learn")).to_have_value("none")
    projects.nth(2).get_by_role("link", name="vision").click()
    expect(page).to_have_url(re.compile(r"/experiments\?project=vision"))
    expect(page.get_by_role("link", name="one")).to_be_visible()
    expect(page.get_by_role("link", name="two")).to_have_count(0)


def test_whole_experiments_are_compared(visit: Open, service: Service, ended: Search) -> None:
    wide = Search(service.store, digits("wider", 12, seed=5), start=time.time() - 3600, seconds=5)
    wide.advance(at_once=20)
    page = visit("/experiments")
    for name in ("older", "wider"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile(rf"experiments={wide.public_id},{ended.public_id}".replace(",", "(,|%2C)")))
    chart = page.get_by_role("img", name="accuracy of wider, older; the table below has the numbers")
    wait_until(
        page, lambda: chart.evaluate(f"box => {{ {INK.split('{', 1)[1].replace('document.', 'box.')}") > 100, "lines"
    )
    table = page.get_by_role("region", name="Comparison")
    expect(table.get_by_role("row", name=re.compile("^trials at most"))).to_contain_text("27")
    best = {one.name: one.best["value"] for one in service.store.experiments.page().items}
    row = table.get_by_role("row", name=re.compile("^best accuracy"))
    expect(row.get_by_title("the best of them")).to_have_text(re.compile(f"^{max(best.values()):.4f}"[:6]))
    with page.expect_download() as caught:
        page.get_by_role("button", name="save").click()
        page.get_by_role("button", name="as CSV").click()
    lines = Path(caught.value.path()).read_text().splitlines()
    assert lines[0] == "experiment,trial_time_s,best accuracy"
    x, y = service.store.metrics.best_so_far(wide.id, "accuracy", "max")
    trained = service.store.metrics.trained(wide.id, x, time.time())
    assert lines[1].split(",")[0] == "wider"
    assert [float(value) for value in lines[1].split(",")[1:]] == pytest.approx([trained[0], y[0]])
    page.get_by_role("combobox", name="Horizontal axis").click()
    page.get_by_role("option", name="running time").click()
    expect(page).to_have_url(re.compile("x=time"))
    page.get_by_role("button", name="Leave older out").click()
    expect(table.get_by_role("columnheader")).to_have_count(2)


def test_an_experiment_that_has_ended_is_edited_continued_forked_and_deleted(
    visit: Open, service: Service, ended: Search
) -> None:
    def choose(name: str) -> None:
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name=re.compile(f"^{name}")).click()

    store = service.store
    page = visit(f"/experiments/{ended.public_id}?trial=1&view=checkpoints")
    saved = page.get_by_role("list", name="Checkpoints").get_by_role("listitem").first
    saved.get_by_role("button", name="Pin").click()
    expect(saved).to_contain_text("pinned: the policy does not delete it")
    assert [one.pinned for one in store.trials.checkpoint_page(ended.id, trial_number=1).items].count(True) == 1
    saved.get_by_role("button", name="Fork").click()
    page.get_by_label("lr").fill("7")
    page.get_by_role("button", name="Start the new trial").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("params.lr")
    page.get_by_label("lr").fill("0.05")
    page.get_by_role("button", name="Start the new trial").click()
    expect(page.get_by_label("lr")).to_have_count(0)
    saved.get_by_role("link", name="Download").click()
    expect(saved.get_by_role("alert")).to_contain_text("cannot be read here")
    page.get_by_role("button", name="Close the trial").click()
    choose("Edit")
    page.get_by_label("Name").fill("renamed")
    page.get_by_label("Labels").fill("team=vision")
    space = page.get_by_label("Search space")
    before = space.input_value()
    space.fill(before + "more: {type: uniform, lower: 2, upper: 1}\n")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("more")
    space.fill(before + "more: {type: uniform, lower: 1, upper: 2}\n")
    page.get_by_label("Values of new parameters").fill("more: 1.5")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", name="renamed")).to_be_visible()
    spec = store.experiments.get(ended.public_id).spec
    assert (dict(spec.tags), spec.space["more"]["upper"]) == ({"team": "vision"}, 2)
    assert (spec.space_revision, spec.assumed["more"]) == (1, 1.5)
    choose("Try a configuration")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_text("Requested one more trial.")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Trials to add").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Continue").click()
    expect(page.get_by_text("Requested 3 more trials.")).to_be_visible()
    asked = [command.command for command in store.commands.pending([ended.id])]
    assert {"pin", "enqueue", "continue", "amend"} <= set(asked)
    choose("Fork")
    page.get_by_role("button", name="Start the fork").click()
    expect(page.get_by_role("heading", name="renamed-fork")).to_be_visible()
    turn_to(page, f"/experiments/{ended.public_id}?tab=set-up")
    expect(page.get_by_role("tab", name="Set-up")).to_have_attribute("aria-selected", "true")
    gone = Search(store, digits("gone", 4), start=time.time() - 7200)
    gone.advance(at_once=20)
    store.drivers.release(gone.id, gone.epoch)
    turn_to(page, f"/experiments/{gone.public_id}")
    choose("Delete")
    page.get_by_label("Type its name to confirm").fill("gone")
    page.get_by_role("button", name="Delete permanently").click()
    expect(page).to_have_url(re.compile("/experiments$"))
    expect(page.get_by_role("link", name="gone", exact=True)).to_have_count(0)


def test_an_ended_experiment_that_runs_again_is_followed(visit: Open, service: Service) -> None:
    """The page stayed "completed", and had neither stream nor polling, until it was loaded again."""
    search = Search(service.store, digits("again", 4), start=time.time() - 600)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}")
    head = page.get_by_role("heading", name="again").locator("..")
    expect(head).to_contain_text("completed")
    expect(page.get_by_role("heading", name="Trials · 4")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Trials to add").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Continue").click()
    expect(page.get_by_text("Requested 3 more trials.")).to_be_visible()
    search.obey()
    search.advance(6)
    expect(head).to_contain_text("running")
    expect(page.get_by_role("heading", name="Trials · 7")).to_be_visible()
    expect(page.locator("[aria-live=polite]", has_text="The experiment is running.")).to_have_count(1)
    search.advance(at_once=20)
    expect(head).to_contain_text("completed")
    rows = page.get_by_role("region", name="Trials").get_by_role("row")
    for trial in service.store.trials.page(search.id).items:
        row = rows.filter(has=page.get_by_role("link", name=str(trial.number), exact=True))
        expect(row).to_contain_text(f"{trial.best_value:.3f}"[:4])
        expect(row).to_contain_text(str(trial.state))
    expect(page.locator("[aria-live=polite]", has_text="The experiment has completed.")).to_have_count(1)


def test_tokens_are_made_shown_once_and_revoked(visit: Open, service: Service) -> None:
    page = visit("/settings")
    expect(page.get_by_text("No tokens yet.")).to_be_visible()
    page.get_by_label("Name").fill("night shift")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("it cannot be shown again")).to_be_visible()
    [token] = service.store.access.tokens()
    assert (token.name, str(token.role)) == ("night shift", "editor")
    page.get_by_role("button", name="Revoke night shift").click()
    page.get_by_role("button", name="Revoke night shift permanently").click()
    tokens = page.get_by_role("region", name="Tokens")
    expect(tokens.get_by_role("cell", name=re.compile("^revoked"))).to_be_visible()
    expect(page.get_by_role("region", name="Latest changes")).to_contain_text("created a token")
    page.get_by_label("Address").fill("ftp://example.com")
    page.get_by_role("button", name="Create the webhook").click()
    expect(page.get_by_role("alert")).to_contain_text("url")
    page.get_by_label("Address").fill("https://example.com/hook")
    page.get_by_role("button", name="is paused").click()
    page.get_by_role("button", name="Create the webhook").click()
    expect(page.get_by_text("The key that signs its messages.")).to_be_visible()
    [hook] = service.store.webhooks.all()
    assert set(hook.events) == {"experiment.paused", "experiment.completed", "experiment.failed"}
    page.get_by_role("button", name="Messages").click()
    expect(page.get_by_text("Nothing has been sent yet.")).to_be_visible()


def test_curves_are_smoothed_cut_to_the_best_and_saved(visit: Open, ended: Search) -> None:
    page = visit(f"/experiments/{ended.public_id}?top=5&smooth=0.6")
    wait_until(page, lambda: page.evaluate(INK) > 300, "drawing the curves")
    few = page.evaluate(INK)
    page.get_by_role("combobox", name="How many curves").click()
    page.get_by_role("option", name="all").click()
    wait_until(page, lambda: page.evaluate(INK) > few, "drawing all curves")
    menu = page.get_by_role("group", name="Save this chart").first
    with page.expect_download() as saved:
        menu.get_by_role("button", name="save").click()
        page.get_by_role("button", name="as CSV").click()
    lines = saved.value.path().read_text().split()
    assert lines[0] == "trial,segment,step,accuracy"
    assert len(lines) - 1 == sum(trial.reports for trial in ended.store.trials.page(ended.id).items)
    with page.expect_download() as picture:
        menu.get_by_role("button", name="save").click()
        page.get_by_role("button", name="as PNG").click()
    assert picture.value.suggested_filename == "older_accuracy.png"
    content = picture.value.path().read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5_000
    menu.get_by_role("button", name="save").click()
    page.get_by_role("button", name="show as table").click()
    numbers = page.get_by_role("dialog", name="older accuracy")
    expect(numbers.get_by_role("columnheader")).to_have_text(["trial", "segment", "step", "accuracy"])
    expect(numbers.get_by_role("status")).to_have_text(re.compile(f"of {len(lines) - 1}$"))
    numbers.get_by_role("button", name="Close").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu.get_by_role("button", name="copy").click()
    for label, begin in (("link", page.url), ("Python", "import tuner"), ("curl", "curl --get 'http://127.0.0.1")):
        page.get_by_role("button", name=f"as {label}").click()
        expect(page.get_by_role("button", name="copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()").startswith(begin)


@pytest.mark.long  # test_charts.py copies the code of the views with charts
def test_every_view_can_be_copied(visit: Open, service: Service, ended: Search) -> None:
    trials = service.store.trials.page(ended.id).items
    one = f"/experiments/{ended.public_id}"
    service.answers_about_the_cluster(
        lambda: cluster_of(ended.public_id, running=[trials[0].public_id], waiting=[trials[1].public_id])
    )
    views = [
        ("/experiments?name=old", 'client.experiments(name="old")'),
        (f"{one}?sort=number", 'trials(sort="number")'),
        (f"{one}?tab=parameters", "importance()"),
        (f"{one}?tab=timeline", "timeline()"),
        (f"{one}?tab=decisions&kind=stop", 'decisions(kind=["stop"])'),
        (f"{one}?tab=events&event=ends", 'log(kind=["segment_ended","stop_judged"])'),
        (f"{one}?tab=setup", f'client.experiment("{ended.public_id}").get()'),
        (f"/trials/{trials[1].public_id}?view=logs&logrank=1", "logs(rank=1)"),
        (f"/compare?trials={trials[0].public_id},{trials[1].public_id}", "for trial in"),
        ("/cluster", 'client.request("GET", "/cluster")'),
        ("/new", "client.create({"),
    ]
    page = visit("/experiments")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for path, call in views:
        page.goto(service.url + path)
        expect(page.get_by_role("button", name="copy", exact=True).first).to_be_visible()
        page.wait_for_load_state("networkidle")
        found: list[str] = []
        # On a busy machine, a panel may appear only after the network was idle.
        wait_until(page, lambda call=call, found=found: any(call in text for text in copied(page, found)), call)
        for text in found:
            compile(text, path, "exec")  # it is Python


def copied(page: Any, found: list[str]) -> list[str]:
    """Copy each view of the page as Python. Put the texts in place of those in `found`, and return them."""
    found.clear()
    for button in page.get_by_role("button", name="copy", exact=True).all():
        button.click()
        page.get_by_role("button", name="as Python").click()
        expect(page.get_by_role("button", name="copied")).to_be_visible()
        found.append(page.evaluate("navigator.clipboard.readText()"))
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="copied")).to_have_count(0)
    return found


def test_a_page_whose_scripts_take_long_says_that_it_is_loaded(visit: Open, service: Service) -> None:
    page = visit("/experiments")
    held: list[Any] = []
    arrived = threading.Event()
    page.route(
        re.compile("/assets/.*[.]js"), lambda route: route.continue_() if arrived.is_set() else held.append(route)
    )
    page.goto(f"{service.url}/new", wait_until="commit")
    loading = page.get_by_text("Loading the page…")
    expect(loading).to_have_css("opacity", "1")
    arrived.set()
    for route in held:
        route.continue_()
    expect(page.get_by_role("heading", name="New experiment")).to_be_visible()
    expect(loading).to_have_count(0)


def test_on_a_phone_names_that_differ_at_their_ends_can_be_told_apart(visit: Open, service: Service) -> None:
    for number in (1, 2):
        service.store.experiments.create(digits(f"vision transformer, ablation number {number}"), now=time.time())
    page = visit("/experiments", width=360, height=740)
    for number in (1, 2):
        link = page.get_by_role("link", name=f"vision transformer, ablation number {number}")
        expect(link).to_be_visible()
        name, cell = link.bounding_box(), link.locator("xpath=ancestor::td").bounding_box()
        assert name["x"] + name["width"] <= cell["x"] + cell["width"] + 1, number


def test_on_a_phone_nothing_sticks_out(visit: Open, service: Service, ended: Search) -> None:
    trials = service.store.trials.page(ended.id).items
    page = visit("/nowhere", width=420, height=844)
    for path in (f"/compare?trials={trials[0].public_id},{trials[1].public_id}", "/new", "/settings", "/cluster"):
        turn_to(page, path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("heading", level=2).or_(page.get_by_text("The cluster is shown")).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, path


# The controls that are smaller than a finger needs, without links within sentences and steppers of number fields. A checkbox has
# margins of 3 pixels, which count.
SMALL = """() => [...document.querySelectorAll('a[href], button, input, summary, [role=tab]')]
  .filter((each) => each.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }))
  .filter((each) => !each.closest('p, [data-steps]') && getComputedStyle(each).display !== 'inline')
  .map((each) => [each, (each.closest('label') ?? each).getBoundingClientRect(), each.matches('[type=checkbox]') ? 6 : 0])
  .filter(([, box, margins]) => box.width > 1 && box.right > 0 && (box.width + margins < 23.5 || box.height + margins < 23.5))
  .map(([each, box]) => `${each.outerHTML.slice(0, 120)}: ${box.width} x ${box.height}`)"""


def test_on_a_phone_every_control_is_large_enough_for_a_finger(visit: Open, service: Service, ended: Search) -> None:
    trials = service.store.trials.page(ended.id).items
    one = f"/experiments/{ended.public_id}"
    page = visit("/nowhere", width=420, height=860)
    for path, words in (
        ("/experiments", "older"),
        (one, "Trials · 27"),
        (f"{one}?tab=decisions", "all 27 trials ended"),
        (f"/trials/{trials[4].public_id}?view=logs&segment=1", "Download rank 0"),
        (f"/trials/{trials[1].public_id}?view=checkpoints", "Download"),
        (f"/compare?trials={trials[0].public_id},{trials[1].public_id}", "Differences"),
        ("/new", "Preview"),
        ("/settings", "New token"),
    ):
        turn_to(page, path)
        expect(page.get_by_text(words).first).to_be_visible()
        assert page.evaluate(SMALL) == [], path


def test_the_focus_returns_to_where_a_dialog_or_a_trial_was_opened(visit: Open, service: Service) -> None:
    search = Search(service.store, digits("going on"), start=time.time() - 60)
    search.advance(30)
    page = visit(f"/experiments/{search.public_id}")
    number = page.get_by_role("row").nth(2).get_by_role("link")
    for opener, opened in (
        (page.get_by_role("button", name="Pause", exact=True), "Pause this experiment?"),
        (number, re.compile("^Trial")),
    ):
        opener.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name=opened)
        expect(dialog).to_be_visible()
        expect(dialog.locator(":focus")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(opener).to_be_focused()
    # A menu closes before its dialog opens, so the focus returns to the button of the menu.
    more, save = page.get_by_role("button", name="More actions"), page.get_by_role("button", name="save").first
    for opener, way, opened in (
        (more, page.get_by_role("menuitem", name="Edit"), "Edit this experiment"),
        (more, page.get_by_role("menuitem", name="Kill"), "Kill this experiment?"),
        (save, page.get_by_role("button", name="show as table"), re.compile("^going on")),
    ):
        opener.click()
        way.click()
        dialog = page.get_by_role("dialog", name=opened)
        expect(dialog.locator(":focus")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(opener).to_be_focused()
    # The arrow keys go on through the curves, though they have opened a trial.
    chart = page.get_by_role("img", name=re.compile("^Curves of"))
    chart.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("dialog", name=re.compile("^Trial"))).to_be_visible()
    expect(chart).to_be_focused()


def test_the_focus_stays_near_a_button_that_is_disabled_or_gone_once_it_was_pressed(
    visit: Open, service: Service
) -> None:
    """It was lost: the next Tab went on from the top of the page, or from behind the dialog."""
    search = Search(service.store, digits("ended", 3), start=time.time() - 600)
    search.advance()
    page = visit("/settings")
    page.get_by_label("Name").fill("night shift")
    page.keyboard.press("Enter")
    expect(page.get_by_text("it cannot be shown again")).to_be_visible()
    create = page.get_by_role("button", name="Create", exact=True)
    page.get_by_label("Name").fill("day shift")
    create.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="day shift", exact=True)).to_be_visible()
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_role("button", name="Revoke day shift").focus()
    page.keyboard.down("Enter")
    expect(page.get_by_role("button", name="Revoke day shift permanently")).to_be_focused()
    page.evaluate("window.clicks = 0; document.addEventListener('click', () => window.clicks++)")
    page.keyboard.down("Enter")  # it repeats, since it is held down
    page.keyboard.up("Enter")
    assert page.evaluate("window.clicks") == 0
    page.keyboard.press("Enter")
    tokens = page.get_by_role("region", name="Tokens")
    expect(tokens.get_by_role("cell", name=re.compile("^revoked"))).to_be_visible()
    expect(tokens).to_be_focused()

    turn_to(page, f"/experiments/{search.public_id}")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Try a configuration").click()
    page.get_by_label("lr").fill("many")
    send = page.get_by_role("button", name="Try it")
    send.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    expect(send).to_be_focused()

    turn_to(page, "/experiments")
    page.get_by_label("Select ended").check()
    page.get_by_role("button", name="Archive 1").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Archive")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Select ended")).to_have_count(0)
    expect(page.locator("main :focus")).to_have_count(1)


# The name of the control with the focus if something covers it, else null. "end": nothing has the focus any more.
HIDDEN = """() => { const it = document.activeElement; if (it === document.body) return 'end';
  const box = it.getBoundingClientRect(); const [x, y] = [box.left + box.width / 2, box.top + Math.min(box.height / 2, 12)];
  const top = document.elementFromPoint(x, y);
  const seen = top && (it.contains(top) || top.contains(it) || [...(it.labels ?? [])].some(one => one.contains(top)));
  return seen ? null : `${it.getAttribute('aria-label') ?? it.textContent} at ${box.top}`; }"""


def test_nothing_covers_the_control_that_has_the_focus(visit: Open, service: Service) -> None:
    """With Shift and Tab, controls came to lie behind the bar at the top, the head of the table and the title of a dialog."""
    search = Search(service.store, digits("digits", 30), start=time.time() - 600)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}", height=600)
    expect(page.get_by_role("heading", name="Trials · 30")).to_be_visible()

    def back(steps: int) -> list[str]:
        found: list[str] = []
        for _ in range(steps):
            page.keyboard.press("Shift+Tab")
            hidden = page.evaluate(HIDDEN)
            if hidden == "end":
                break
            found += [hidden] if hidden else []
        return found

    assert back(150) == []

    # The bar and the head are in sight anyway, so nothing is moved for their controls.
    for part, box in (("[aria-label=Main] a", "html"), ("[aria-label=Trials] thead button", "[aria-label=Trials]")):
        moved = """([part, box]) => { const it = document.querySelector(box); it.scrollTo({top: 150, behavior: 'instant'});
          const before = it.scrollTop; for (const control of document.querySelectorAll(part)) control.focus();
          return [before > 0, it.scrollTop - before]; }"""
        assert page.evaluate(moved, [part, box]) == [True, 0]
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Edit").click()
    expect(page.get_by_role("dialog").locator(":focus")).to_have_count(1)
    assert back(25) == []


# The name of the column whose head has the focus, and whether it is beside the pinned column and within the table's box.
HEAD = """() => { const it = document.activeElement; const head = it.closest('th'); if (!head) return null;
  const [box, one] = [it.closest('[role=region]').getBoundingClientRect(), it.getBoundingClientRect()];
  const pinned = head.dataset.pinned === 'true' ? box : head.parentElement.firstElementChild.getBoundingClientRect();
  const start = head.dataset.pinned === 'true' ? pinned.left : pinned.right;
  return [head.dataset.column, one.left >= start - 1 && (one.right <= box.right + 1 || Math.abs(one.left - start) < 1)]; }"""


@pytest.mark.parametrize("width", [360, 320])
def test_on_a_phone_tab_moves_each_column_head_into_view(
    visit: Open, service: Service, ended: Search, width: int
) -> None:
    """A head that was partly in view stayed so: Chromium moves only what shows fewer than 32 pixels, with its margin."""
    page = visit(f"/experiments/{ended.public_id}", width=width)
    expect(page.get_by_role("link", name="0", exact=True)).to_be_visible()
    page.get_by_role("region", name="Trials").focus()
    for key, by in (("Tab", 1), ("Shift+Tab", -1)):
        heads: list[list[Any]] = []
        page.keyboard.press(key)
        while head := page.evaluate(HEAD):
            heads.append(head)
            page.keyboard.press(key)
        if by < 0:
            heads = heads[::-1]
        assert [name for name, _ in heads][:3] == ["number", "state", "best"]
        assert len(heads) >= 9
        assert [name for name, seen in heads if not seen] == []


@pytest.mark.parametrize("width", [1280, 360])
def test_a_row_stays_where_it_is_when_its_box_is_ticked(visit: Open, service: Service, width: int) -> None:
    """The bar of picked trials appeared above the table, so that the next click in the same place ticked another row."""
    search = Search(service.store, digits("digits", 60), start=time.time() - 600)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}", width=width)
    expect(page.get_by_role("heading", name="Trials · 60")).to_be_visible()
    page.wait_for_load_state("networkidle")
    box = page.get_by_role("region", name="Trials").get_by_role("checkbox").nth(3)
    box.scroll_into_view_if_needed()
    before = box.bounding_box()
    for picked in (1, 0, 1):
        box.click()
        expect(page.get_by_role("group", name="Picked trials")).to_have_count(picked)
        assert abs(box.bounding_box()["y"] - before["y"]) < 1


def test_a_row_stays_where_it_is_when_its_box_is_unticked_at_the_top_of_the_page(visit: Open, service: Service) -> None:
    search = Search(service.store, digits("digits", 60), start=time.time() - 600)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}")
    page.set_viewport_size({"width": 1280, "height": 1500})
    expect(page.get_by_role("heading", name="Trials · 60")).to_be_visible()
    page.wait_for_load_state("networkidle")
    boxes = page.get_by_role("region", name="Trials").get_by_role("checkbox")
    without = boxes.nth(3).bounding_box()["y"] + page.evaluate("scrollY")
    boxes.nth(3).click()
    page.evaluate("scrollTo(0, 0)")
    before = boxes.nth(3).bounding_box()["y"]
    for picked in (0, 1, 0):
        boxes.nth(3).click()
        expect(page.get_by_role("group", name="Picked trials")).to_have_count(picked)
        assert abs(boxes.nth(3).bounding_box()["y"] - before) < 1
    page.mouse.move(10, 10)
    wait_until(page, lambda: abs(boxes.nth(3).bounding_box()["y"] - without) < 1, "no room without a bar")


# Notes what moves or changes gradually in each frame, except for the placeholders of what is being read.
MOVING = """() => { window.moving = new Set(); const look = () => { for (const one of document.getAnimations())
  if (!/Skeleton|Loader/.test(one.effect.target.className)) window.moving.add(one.transitionProperty ?? one.animationName);
  requestAnimationFrame(look); }; look(); }"""


def test_nothing_moves_for_somebody_who_wants_less_motion(visit: Open, ended: Search) -> None:
    page = visit(f"/experiments/{ended.public_id}")
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_load_state("networkidle")
    page.evaluate(MOVING)
    page.get_by_role("region", name="Trials").locator("tbody tr").nth(2).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Edit").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("[...moving]") == []


# How the page is: its colors, how many rows its table has, how many charts are wider than it, and the color of a part of a bar.
PRINTED = """() => { const page = document.body.getBoundingClientRect();
  const charts = [...document.querySelectorAll('main canvas, main svg')];
  const wide = charts.filter(one => one.getBoundingClientRect().right > page.right).length;
  const rows = document.querySelectorAll('main tr[aria-rowindex]').length;
  const bar = getComputedStyle(document.querySelector('main i')).printColorAdjust;
  return [document.documentElement.dataset.mantineColorScheme, rows, wide, bar]; }"""


@pytest.mark.parametrize("tab", ["curves", "parameters"])
def test_a_printed_page_has_light_colors_all_rows_and_whole_charts(visit: Open, service: Service, tab: str) -> None:
    """Charts were cut at the edge of the paper, the table after 480 pixels; bars were missing, and dark pages had pale text."""
    search = Search(service.store, digits("digits", 60), start=time.time() - 600)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}?tab={tab}", dark=True)
    expect(page.get_by_role("heading", name="Trials · 60")).to_be_visible()
    expect(page.locator("main canvas").first).to_be_visible()
    before = page.evaluate(PRINTED)
    assert before[:2] != ["light", 60]
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(PRINTED) == ["light", 60, 0, "exact"]
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(PRINTED)[0] == "dark"
    expect(page.locator("main tr[aria-rowindex]")).to_have_count(before[1])


# The names of the boxes that scroll, although paper does not.
CUT = """() => [...document.querySelectorAll('body *')].filter(
  one => /auto|scroll/.test(getComputedStyle(one).overflow) && one.scrollWidth > one.clientWidth + 1).map(one => one.className)"""


# What can only be pressed, and the elements that stick out of the sheet.
CONTROLS = """() => [...document.querySelectorAll('button, [role=tab], nav a, a.mantine-Button-root, input[type=checkbox]')]
  .filter(one => one.checkVisibility()).map(one => one.getAttribute('aria-label') ?? one.textContent)
  .filter(name => /^(save|copy|CSV|More|Continue|Fork|Close|Select|Switch|New exp|Settings|Timeline|Logs)/.test(name))"""
WIDE = "() => [...document.querySelectorAll('main td, main th')].filter(one => one.getBoundingClientRect().right > 961).length"


@pytest.mark.parametrize("path", ["/experiments", "/experiments/{}?trial=0", "/settings"])
def test_tables_are_printed_with_all_their_columns_and_without_controls(
    visit: Open, service: Service, ended: Search, path: str
) -> None:
    """The list of experiments was cut at its right edge, and so were the projects. Buttons and menus were printed.

    The hash of a bundle made the table of changes wider than the sheet.
    """
    where = {"path": f"/api/v1/bundles/{'ab' * 32}", "address": "127.0.0.1"}
    service.store.access.note(
        AuditRecord(time=time.time(), actor="ci", token_id=None, method="PUT", status=200, **where)
    )
    page = visit(path.format(ended.public_id), width=1700)
    for text in ("default", "uploaded the code bundle") if path == "/settings" else ("older",):
        expect(page.get_by_text(text).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert page.evaluate(CONTROLS) != []
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(CUT) == []
    assert page.evaluate(CONTROLS) == []
    assert page.evaluate(WIDE) == 0


# The rows of a list of decisions, how many of them its panel cuts, and how much room it leaves below the last one.
ROWS = """() => { const list = document.querySelector('[aria-label="Decisions, newest first"]');
  const end = list.closest('section').getBoundingClientRect().bottom;
  const ends = [...list.querySelectorAll('li')].map(one => one.getBoundingClientRect().bottom);
  const clips = one => getComputedStyle(one).overflow !== 'visible';
  const box = [list, list.parentElement].some(clips) ? list.getBoundingClientRect().bottom : end;
  return [ends.length, ends.filter(one => one > Math.min(box, end) + 1).length, end - Math.max(...ends) > 60]; }"""


@pytest.mark.parametrize("width", [1100, 1700])
def test_decisions_are_printed_whole(visit: Open, service: Service, ended: Search, width: int) -> None:
    """The list was cut at the height that it has on the screen; the tab was printed with the rows in view and empty sheets."""
    every = len(service.store.log.decisions(ended.id, page_size=200).items)
    for tab, rows in (("curves", 12), ("decisions", every)):
        page = visit(f"/experiments/{ended.public_id}?tab={tab}", width=width)
        expect(page.get_by_role("region", name="Decisions, newest first")).to_be_visible()
        page.wait_for_load_state("networkidle")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.evaluate(ROWS) == [rows, 0, False]


# The width of each canvas before, while and after the page is printed, without a frame between.
WIDTHS = """() => { const tell = name => window.dispatchEvent(new Event(name));
  const widths = async () => { await null; return [...document.querySelectorAll('canvas')].map(one => one.clientWidth); };
  return (async () => { const found = [await widths()];
    for (const name of ['beforeprint', 'afterprint']) { tell(name); found.push(await widths()); } return found; })(); }"""


@pytest.mark.parametrize(
    "path", ["experiments/{}?tab=curves&trial=0", "experiments/{}?tab=parameters", "compare?experiments={},{}"]
)
def test_charts_have_the_width_of_paper_while_they_are_printed_and_their_own_afterwards(
    visit: Open, service: Service, ended: Search, path: str
) -> None:
    """Charts of two experiments were cut. All stayed as narrow as paper if the browser drew no frame while it printed."""
    other = Search(service.store, digits("other", 12, seed=5), start=time.time() - 3600, seconds=5)
    other.advance(at_once=20)
    page = visit("/" + path.format(ended.public_id, other.public_id), width=1700)
    expect(page.locator("canvas").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    before, printed, after = page.evaluate(WIDTHS)
    assert before == after
    assert max(printed) <= 960
    assert max(before) > 400


def test_the_cluster_page_says_so_when_no_driver_answers(visit: Open, service: Service) -> None:
    page = visit("/")
    page.get_by_role("link", name="Cluster").click()
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    expect(page.get_by_text("The cluster is shown while a driver runs.")).to_be_visible()
    expect(page.get_by_text("The service is not responding.")).to_have_count(0)


def test_the_cluster_page_shows_who_holds_what_and_why_others_wait_as_it_changes(
    visit: Open, service: Service, ended: Search
) -> None:
    """Show what a driver says of two nodes with two GPUs each; a trial that waited gets its room while one looks."""
    first, second, third = (trial.public_id for trial in service.store.trials.page(ended.id).items[:3])
    said = [cluster_of(ended.public_id, running=[first], waiting=[second, third])]
    service.answers_about_the_cluster(lambda: said[-1])
    page = visit("/cluster")
    expect(page.get_by_text("2 of 4 GPUs and 2 of 8 CPUs are in use on 2 nodes. 1 trial runs, 2 wait.")).to_be_visible()
    nodes = page.get_by_role("region", name="Nodes").get_by_role("row")
    expect(nodes.nth(1)).to_contain_text("older trial 0, rank 0 (GPU 0)")
    waiting = page.get_by_role("region", name="Waiting").get_by_role("row")
    expect(waiting.nth(1)).to_contain_text("needs 2 free GPUs, and there is noneroom is reserved for it")
    expect(waiting.nth(2)).to_contain_text("trial 2")
    expect(waiting.nth(2)).to_contain_text("2 × 1 GPU, 1 CPU")
    said.append(cluster_of(ended.public_id, running=[first, second], waiting=[third]))
    expect(waiting).to_have_count(2)
    expect(page.get_by_role("region", name="Running").get_by_role("row").nth(2)).to_contain_text("trial 1")
    page.get_by_role("link", name="trial 2").click()
    expect(page).to_have_url(re.compile(third))


def test_the_cluster_page_lists_what_scripts_run_since_its_driver_does_not_know_of_it(
    visit: Open, service: Service
) -> None:
    """The page said that no trial was running while a script's trials held CPUs of the same machine."""
    service.answers_about_the_cluster(lambda: cluster_of("exp_none"))
    spec = digits("by a script", 8)
    record = service.store.experiments.create(spec, source="python")
    search = Search(service.store, spec, start=time.time() - 60, record=record)
    search.advance(8)
    running = len(search.core.trials.in_state(TrialState.RUNNING))
    assert running
    service.store.experiments.create(digits("by the service"))
    page = visit("/cluster")
    row = page.get_by_role("region", name="Driven by scripts").get_by_role("row")
    expect(row).to_have_count(2)
    expect(row.nth(1)).to_contain_text(f"by a script{running}{running} CPU")
    row.nth(1).get_by_role("link", name="by a script").click()
    expect(page.get_by_role("heading", name="by a script")).to_be_visible()


@pytest.mark.parametrize("saves", [False, True])
def test_an_experiment_warns_at_its_top_that_trials_start_over_without_checkpoints(
    visit: Open, service: Service, saves: bool
) -> None:
    scheduler = {"type": "asha_promotion", "max_t": 9, "grace_period": 1, "reduction_factor": 3}

    def rising(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float]:
        return {"accuracy": number / 10 + iteration / 100}

    spec = digits("unsaved", 9, scheduler=scheduler)
    search = Search(service.store, spec, start=time.time() - 3600, saves=saves, curve=rising)
    search.advance(at_once=20)
    page = visit(f"/experiments/{search.public_id}?tab=decisions&kind=resume")
    expect(page.get_by_text("promoted from").first).to_be_visible()
    warning = page.get_by_role("status").filter(has_text="started over")
    if saves:
        expect(page.get_by_text("starts from the beginning")).to_have_count(0)
        expect(warning).to_have_count(0)
        return
    resumed = [trial for trial in search.core.trials if any(one.cause == "resume" for one in trial.segments)]
    they = "it" if len(resumed) == 1 else "they"
    expect(warning).to_contain_text(
        re.compile(f"^{len(resumed)} trials? started over.* because {they} had no checkpoint")
    )
    warning.get_by_role("button", name="Show these decisions").click()
    expect(page).to_have_url(re.compile("q=starts"))
    expect(page.get_by_text("starts from the beginning").first).to_be_visible()


def test_nodes_that_may_join_are_told_from_those_that_are_there(visit: Open, service: Service) -> None:
    """The room for a new search, and the page of the cluster, left out the nodes that an autoscaler may add."""
    said = {**cluster_of("exp_none"), "may_join": [{"count": 2, "cpus": 8.0, "gpus": 0.0}]}
    service.answers_about_the_cluster(lambda: said)
    page = visit("/new")
    room = "for 8 trials at once, if nothing else runs, and for 24 with the nodes that may still join"
    expect(page.get_by_text(room)).to_be_visible()
    turn_to(page, "/cluster")
    expect(page.get_by_text("Up to 2 more nodes with 8 CPUs each may join.")).to_be_visible()


LEVELS = """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter((each) => each.checkVisibility())
  .map((each) => Number(each.tagName[1]))"""
UNNAMED = """() => [...document.querySelectorAll('h1, h2, h3')].filter((each) => !each.textContent.trim())
  .map((each) => each.outerHTML)"""


AT_REST = """() => new Promise(requestAnimationFrame).then(() => Promise.all(
  document.getAnimations()
    .filter((each) => each.effect.getComputedTiming().endTime !== Infinity)
    .map((each) => each.finished.catch(() => null))))"""
"""Waits until the page has drawn a frame, and all transitions in it have ended."""


VARIANTS = {
    "brushed", "checkpoints", "compared experiments", "decisions beside", "devices", "events", "no trial",
    "second objective", "segments",
}  # fmt: skip
"""Pages whose parts are on the other pages too. The long form checks them as well."""


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["few", "all"])
def test_axe_finds_nothing_serious_on_any_page_and_all_text_can_be_read(
    visit: Open, service: Service, ended: Search, every: bool, tmp_path: Path
) -> None:
    """Check each page in light and in dark colours."""
    population = bred(service.store, start=time.time() - 3600)
    several = two_objectives(service.store, start=time.time() - 3600)
    trials = service.store.trials.page(ended.id).items
    one = f"/experiments/{ended.public_id}"
    pair = f"{trials[0].public_id},{trials[1].public_id}"
    service.answers_about_the_cluster(
        lambda: cluster_of(ended.public_id, running=[trials[0].public_id], waiting=[trials[1].public_id])
    )
    addresses = [
        ("list", "/experiments", "older"),
        ("curves", f"{one}?pick=1,2", "Trials · 27"),
        ("trial beside", f"{one}?trial=4", "Failure"),
        ("parameters", f"{one}?tab=parameters", "Importance of parameters"),
        ("decisions", f"{one}?tab=decisions", "all 27 trials ended"),
        ("events", f"{one}?tab=events", "A driver began to run the experiment"),
        ("set-up", f"{one}?tab=setup", "Scheduler"),
        ("timeline", f"{one}?tab=timeline", "waiting for resources"),
        ("devices", f"{one}?tab=timeline&by=device", "idle"),
        ("checkpoints", f"{one}?trial=1&view=checkpoints", "Download"),
        ("decisions beside", f"{one}?trial=4&tab=decisions&kind=stop", "Failure"),
        ("lineage", f"/experiments/{population.public_id}?tab=lineage&trial=3", "Lineage of the population"),
        ("brushed", f"{one}?tab=parameters&brush=%7B%22width%22%3A%5B%2232%22%5D%7D", "Importance of parameters"),
        ("pareto", f"/experiments/{several.public_id}", "Pareto front"),
        ("trial", f"/trials/{trials[4].public_id}", "Failure"),
        ("segments", f"/trials/{trials[4].public_id}?view=segments", "Failure"),
        ("logs", f"/trials/{trials[4].public_id}?view=logs", "Failure"),
        ("compare", f"/compare?trials={pair}", "Differences"),
        ("compared experiments", f"/compare?experiments={ended.public_id},{several.public_id}", "Differences"),
        ("second objective", f"/experiments/{several.public_id}?tab=parameters&objective=latency", "Importance"),
        ("new", "/new", "Preview"),
        ("settings", "/settings", "New token"),
        ("neighbors", f"/trials/{trials[4].public_id}?view=neighbors", "nearest neighbors reached"),
        ("cluster", "/cluster", "room is reserved for it"),
        ("nowhere", "/nowhere", "There is no such page"),
        ("no trial", "/trials/trl_nothing", "There is no such trial"),
    ]
    assert {name for name, _, _ in addresses} >= VARIANTS
    found: dict[str, Any] = {}
    page = visit("/settings")
    page.evaluate(AXE.read_text())
    for name, address, words in addresses:
        if name in VARIANTS and not every:
            continue
        turn_to(page, address)
        expect(page.get_by_text(words).first).to_be_visible()
        page.evaluate(STILL) if name in ("new", "compare", "settings") else None
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            expect(page.locator(f'html[data-mantine-color-scheme="{colours}"]')).to_be_attached()
            page.evaluate(AT_REST)  # otherwise axe may meet a label halfway between its colours
            serious = page.evaluate(RULES if colours == "light" else CONTRAST)
            if serious := serious + page.evaluate(UNREADABLE):
                found[f"{name}, {colours}"] = serious
                page.screenshot(path=tmp_path / f"{name}-{colours}.png")
        page.emulate_media(color_scheme="light")
        levels = page.evaluate(LEVELS)
        assert levels[0] == 1, name
        assert levels.count(1) == 1, name
        assert all(level <= before + 1 for before, level in itertools.pairwise(levels)), f"{name}: {levels}"
        assert page.evaluate(UNNAMED) == [], name
    assert found == {}


def test_axe_finds_nothing_serious_in_menus_and_dialogs(visit: Open, service: Service) -> None:
    search = Search(service.store, digits("going on"), start=time.time() - 60)
    search.advance(30)
    page = visit(f"/experiments/{search.public_id}")
    expect(page.get_by_text("Trials · ")).to_be_visible()
    page.evaluate(AXE.read_text())
    for opened, role in (("More actions", "menu"), ("Cancel", "dialog")):
        page.get_by_role("button", name=opened, exact=True).click()
        expect(page.get_by_role(role)).to_be_visible()
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            expect(page.locator(f'html[data-mantine-color-scheme="{colours}"]')).to_be_attached()
            page.evaluate(AT_REST)
            assert page.evaluate(RULES.replace("document,", f"'[role={role}]',")) == [], f"{opened}, {colours}"
        if role == "menu":
            expect(page.get_by_role("menuitem").first).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role(role)).to_have_count(0)


def test_names_break_between_their_words_and_tabs_stay_together_on_a_phone(visit: Open, service: Service) -> None:
    space = {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32, 64]},
        "label_smoothing_of_training_targets": {"type": "uniform", "lower": 0, "upper": 0.2},
    }
    search = Search(service.store, digits(trials=4, space=space), start=time.time() - 600)
    search.advance()
    first, second, *_ = service.store.trials.page(search.id).items
    page = visit(f"/compare?trials={first.public_id},{second.public_id}", width=420)
    name = page.get_by_role("rowheader", name="label_smoothing_of_training_targets")
    expect(name).to_be_visible()
    # Each text node is a word. One that is broken has a box on each of its lines.
    assert name.evaluate(
        """cell => [...cell.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => {
          const range = document.createRange();
          range.selectNodeContents(node);
          return [node.textContent, range.getClientRects().length];
        })"""
    ) == [[word, 1] for word in ("label_", "smoothing_", "of_", "training_", "targets")]
    page.set_viewport_size({"width": 420, "height": 800})
    turn_to(page, f"/experiments/{search.public_id}")
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_count(6)
    # All at once, since the page may still grow above them.
    assert tabs.evaluate_all("tabs => new Set(tabs.map(tab => tab.getBoundingClientRect().y)).size") == 1
    page.set_viewport_size({"width": 360, "height": 800})
    rows = tabs.evaluate_all("tabs => tabs.map(tab => tab.getBoundingClientRect().y)")
    assert [rows.count(y) for y in sorted(set(rows))] == [3, 3]
