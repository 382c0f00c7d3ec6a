"""Walk through every page: each chart can be saved as PNG and CSV and read as a table, and each view can be copied."""

from __future__ import annotations

import csv
import io
import shlex
import struct
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import STILL, Open, Service, turn_to
from tests.web.searches import Search, bred, digits, steady, two_objectives
from tests.web.test_page import expect

pytestmark = pytest.mark.browser

# What looks like a chart and belongs to no box with a menu to save it. Sparklines repeat a chart of the experiment's page.
UNSAVED = """() => [...document.querySelectorAll('main :is(canvas, svg, [role=img]), [role=dialog] :is(canvas, svg)')]
  .filter(one => { const { width, height } = one.getBoundingClientRect(); return width > 120 && height > 40; })
  .filter(one => !one.closest('section, figure')
    ?.querySelector('[aria-label="Save this chart"], [aria-label="Save this table"]'))
  .map(one => `${one.tagName} ${one.closest('[aria-label]')?.getAttribute('aria-label') ?? ''}`)"""


@pytest.fixture
def searches(service: Service) -> dict[str, str]:
    """Return the id of a search of each kind, and those of some trials."""
    now, store = time.time(), service.store
    asha = Search(store, digits("asha", 27), start=now - 7200, seconds=20)
    asha.advance(at_once=20)
    asha.write_logs(4)
    asha.write_usage(1)
    once = Search(store, digits("once", 20, scheduler={"type": "fifo"}, max_t=1), start=now - 9000, curve=steady)
    once.advance(at_once=20)
    population = bred(store, 8, start=now - 9000)
    several = two_objectives(store, 30, start=now - 9000)
    trials = store.trials.page(asha.id).items
    copied = next(
        trial.public_id
        for trial, state in zip(store.trials.page(population.id).items, population.core.trials, strict=True)
        if any(segment.cause == "exploit" for segment in state.segments)
    )
    return {
        "asha": asha.public_id, "once": once.public_id, "pbt": population.public_id, "two": several.public_id,
        "trial": trials[1].public_id, "other": trials[2].public_id, "failed": trials[4].public_id, "copied": copied,
    }  # fmt: skip


VIEWS = {
    "list": ("/experiments", 0),
    "curves": ("/experiments/{asha}?pick=1,2", 2),
    "history": ("/experiments/{once}", 3),
    "parameters": ("/experiments/{asha}?tab=parameters", 4),
    "second objective": ("/experiments/{two}?tab=parameters&objective=latency", 4),
    "front": ("/experiments/{two}", 2),
    "lineage": ("/experiments/{pbt}?tab=lineage", 1),
    "curves of a population": ("/experiments/{pbt}", 2),
    "timeline": ("/experiments/{pbt}?tab=timeline", 1),
    "devices": ("/experiments/{asha}?tab=timeline&by=device", 1),
    "decisions": ("/experiments/{asha}?tab=decisions", 0),
    "what-if": ("/experiments/{asha}?tab=decisions&if=median", 0),
    "events": ("/experiments/{asha}?tab=events", 0),
    "set-up": ("/experiments/{asha}?tab=setup", 0),
    "trial": ("/trials/{trial}", 2),
    "trial beside": ("/experiments/{asha}?trial=1", 3),
    "segments": ("/trials/{failed}?view=segments", 0),
    "usage": ("/trials/{trial}?view=usage", 1),
    "trial's lineage": ("/trials/{copied}?view=lineage", 0),
    "neighbors": ("/trials/{trial}?view=neighbors", 0),
    "checkpoints": ("/trials/{trial}?view=checkpoints", 0),
    "trial's decisions": ("/trials/{trial}?view=decisions", 0),
    "logs": ("/trials/{failed}?view=logs", 0),
    "compared trials": ("/compare?trials={trial},{other}", 1),
    "compared experiments": ("/compare?experiments={asha},{once}", 1),
    "settings": ("/settings", 0),
    "new": ("/new", 0),
}
"""View -> its path, and the least number of its charts that can be saved."""


FEW = ("curves", "usage", "compared experiments")
"""The views of the short form."""


@pytest.mark.parametrize("views", [FEW, pytest.param(tuple(VIEWS), marks=pytest.mark.long)], ids=["few", "all"])
def test_every_chart_can_be_saved_and_every_view_copied(
    visit: Open, service: Service, searches: Mapping[str, str], views: Sequence[str], tmp_path: Path
) -> None:
    failed = {}
    for view in views:
        path, charts = VIEWS[view]
        page = visit(path.format(**searches))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        try:
            check_view(page, view, charts, tmp_path)
        except AssertionError as error:
            failed[view] = str(error)
    assert failed == {}


def check_view(page: Any, view: str, charts: int, tmp_path: Path) -> None:
    expect(page.get_by_role("button", name="copy", exact=True).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    menus = page.get_by_role("group", name="Save this chart")
    if charts:
        expect(menus.nth(charts - 1)).to_be_visible()
        page.wait_for_load_state("networkidle")
    assert page.evaluate(UNSAVED) == [], "charts without a menu to save them"
    for menu in menus.all():
        saved_in_every_form(page, menu, tmp_path)
    for table in page.get_by_role("group", name="Save this table").all():
        with page.expect_download() as caught:
            table.get_by_role("button", name="CSV").click()
        assert len(rows_of(Path(caught.value.path()))) > 1
    for python, curl in dict.fromkeys(copies(page)):
        works(python, curl, view)


def saved_in_every_form(page: Any, menu: Any, tmp_path: Path) -> None:
    """Save a chart as PNG and as CSV, and show it as a table. Its picture must not be empty, and its table has the CSV's rows."""

    def choose(name: str) -> None:
        ways = page.get_by_role("group", name="Ways to save")
        expect(ways).to_have_count(0)
        menu.get_by_role("button", name="save").click()
        ways.get_by_role("button", name=name).click()

    with page.expect_download() as caught:
        choose("as PNG")
    assert len(colours_of(Path(caught.value.path()).read_bytes())) > 3, "there is something in the picture"
    with page.expect_download() as caught:
        choose("as CSV")
    rows = rows_of(Path(caught.value.path()))
    assert len(rows) > 1, caught.value.suggested_filename
    choose("show as table")
    dialog = page.get_by_role("dialog").filter(has=page.get_by_role("columnheader")).last
    expect(dialog.get_by_role("columnheader")).to_have_text(rows[0])
    expect(dialog.get_by_role("status").or_(dialog.get_by_role("row").nth(len(rows) - 1)).first).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


# The share of a picture's dark pixels, in its leftmost tenth.
DARK = """async bytes => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)], { type: 'image/png' }));
  const [width, height] = [Math.floor(image.width / 10), image.height];
  const context = new OffscreenCanvas(width, height).getContext('2d');
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  let dark = 0;
  for (let at = 0; at < data.length; at += 4) dark += data[at] + data[at + 1] + data[at + 2] < 3 * 130;
  return dark / (width * height);
}"""


def test_the_numbers_of_an_axis_can_be_read_in_a_picture(searches: dict[str, str], visit: Open) -> None:
    page = visit(f"/experiments/{searches['once']}")
    # Until the page knows that each trial has reported once, it has another chart there, on a canvas.
    history = page.locator("section").filter(has=page.get_by_role("heading", name="accuracy of each trial"))
    with page.expect_download() as caught:
        history.get_by_role("group", name="Save this chart").get_by_role("button", name="save").click()
        page.get_by_role("group", name="Ways to save").get_by_role("button", name="as PNG").click()
    dark = page.evaluate(DARK, [*Path(caught.value.path()).read_bytes()])
    assert dark > 0.002, "the halo of the numbers must be behind them"


def rows_of(file: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(file.read_text())))


def colours_of(png: bytes) -> set[bytes]:
    """Return some of the colours of a PNG picture: the first bytes of each pixel of every tenth line."""
    assert png.startswith(b"\x89PNG")
    width, _, _, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    at, data = 8, b""
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += length + 12
    raw, line = zlib.decompress(data), 1 + size * width
    lines = [raw[start + 1 : start + line] for start in range(0, len(raw), 10 * line)]
    return {row[at : at + size] for row in lines for at in range(0, len(row), size)}


def copies(page: Any) -> list[tuple[str, str]]:
    """Return (Python, curl) of each menu that copies. Its link, if it has one, leads here."""
    found, where = [], page.url
    for button in page.get_by_role("button", name="copy", exact=True).all():
        texts = {}
        button.click()
        group = page.get_by_role("group", name="Copy this view")
        expect(group.get_by_role("button", name="as curl")).to_be_visible()
        for label in ("link", "Python", "curl"):
            choice = group.get_by_role("button", name=f"as {label}")
            if label == "link" and choice.count() == 0:
                assert "/new" in where, "the spec is not in the address, but everything else is"
                continue
            choice.click()
            expect(group.get_by_role("button", name="copied")).to_be_visible()
            texts[label] = page.evaluate("navigator.clipboard.readText()")
        page.keyboard.press("Escape")
        expect(group).to_have_count(0)
        assert texts.get("link", where) == where
        found.append((texts["Python"], texts["curl"]))
    assert found
    return found


def works(python: str, curl: str, view: str) -> None:
    """Run what was copied. Calls that would start a search are only checked for their form."""
    compile(python, view, "exec")  # it is Python
    if view == "new":
        return
    with ThreadPoolExecutor(1) as thread:  # this one has the browser's event loop
        thread.submit(exec, python, {}).result(timeout=60)
    for line in curl.strip().splitlines():
        words = shlex.split(line)
        assert words[0] == "curl"
        address = next(word for word in words if word.startswith("http"))
        values = [words[i + 1] for i, word in enumerate(words) if word == "--data-urlencode"]
        query = "&".join(
            f"{name}={urllib.parse.quote(value)}" for name, _, value in (one.partition("=") for one in values)
        )
        body = words[words.index("-d") + 1].encode() if "-d" in words else None
        request = urllib.request.Request(
            f"{address}?{query}" if query else address, data=body, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200, line


def test_an_empty_picture_is_noticed() -> None:
    def png(pixels: list[bytes]) -> bytes:
        head = struct.pack(">IIBBBBB", len(pixels), 1, 8, 2, 0, 0, 0)
        parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" + b"".join(pixels)))]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I4s", len(data), name) + data + b"crc." for name, data in parts
        )

    assert colours_of(png([b"abc", b"abc"])) == {b"abc"}
    assert colours_of(png([b"abc", b"abd"])) == {b"abc", b"abd"}


HOSTILE = (
    '<img src=x onerror="window.__ran=1"><script>window.__ran=1</script>'
    "'; DROP TABLE trial; -- [a](javascript:window.__ran=1)"
)
RAN = """() => window.__ran === undefined
  && document.querySelector('main img, main iframe, main script, [role=dialog] img') === null"""


def test_script_and_sql_in_names_and_logs_are_shown_as_text(visit: Open, service: Service) -> None:
    """Put script text and SQL into everything that a user or a training function names, and look at every page that shows it."""
    store = service.store
    label = {"owner": HOSTILE[:100]}
    key = "lr<img src=x onerror='window.__ran=1'>"
    space = {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32, 64]},
        key: {"type": "choice", "categories": [HOSTILE, "plain"]},
    }
    spec = digits(HOSTILE, 9, space=space, tags=label, notes=HOSTILE)

    def curve(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float] | None:
        return {**steady(number, ordinal, params, iteration), HOSTILE: float(iteration)} if number != 4 else None

    search = Search(store, spec, start=time.time() - 3600, curve=curve)
    search.advance(at_once=20)
    search.write_logs(1, line=HOSTILE)
    trials = store.trials.page(search.id).items
    before = len(trials)
    one = f"/experiments/{search.public_id}"
    logs = f"/trials/{trials[1].public_id}?view=logs"
    page = visit("/experiments")
    shows: dict[str, Callable[[], None]] = {
        "/experiments": lambda: expect(page.get_by_role("link", name=HOSTILE)).to_be_visible(),
        f"{one}?tab=setup": lambda: expect(page.get_by_text("onerror=").first).to_be_visible(),
        f"{one}?trial=1": lambda: expect(page.get_by_role("columnheader", name=key)).to_be_visible(),
        logs: lambda: expect(page.get_by_text(HOSTILE).first).to_be_visible(),
    }
    for path in (
        "/experiments",
        one,
        f"{one}?metric={urllib.parse.quote(HOSTILE)}",
        f"{one}?tab=parameters",
        f"{one}?tab=decisions&q={urllib.parse.quote(HOSTILE)}",
        f"{one}?tab=events",
        f"{one}?tab=timeline",
        f"{one}?tab=setup",
        f"{one}?trial=1",
        logs,
        f"/trials/{trials[4].public_id}",
        f"/trials/{trials[1].public_id}?view=neighbors",
        f"/compare?trials={trials[1].public_id},{trials[2].public_id}&all=1",
        f"/compare?experiments={search.public_id}",
        f"/new?clone={search.public_id}",
        f"/experiments?name={urllib.parse.quote(HOSTILE[:40])}",
        f"/experiments?tag={urllib.parse.quote('owner=' + HOSTILE[:100])}",
        "/settings",
    ):
        if path == one or "%" in path:  # the scripts that run first read the address
            page.goto(service.url + path)
        else:
            turn_to(page, path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        shows.get(path, lambda: None)()
        page.evaluate(STILL)
        assert page.evaluate(RAN), path
        if "tab=setup" in path:
            expect(page.get_by_role("link", name="a", exact=True)).to_have_count(0)
        if "trial=1" in path:
            assert "onerror" in page.title(), "the title of the tab is text, too"
    assert len(store.trials.page(search.id).items) == before
