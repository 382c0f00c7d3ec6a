"""Results, trials and experiments are safe tables in a notebook. `tests/examples/test_notebook.py` runs a real kernel."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.text import Text

import tuner
from tuner.sdk.live import notebook

EVIL = "<script>alert(1)</script>\x1b[31m"


class Checked(HTMLParser):
    """Collects the tags and the text of a page, and checks that every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuner.Result:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    study = tuner.create_study(
        {"x": tuner.uniform(0, 1), "word": tuner.choice([EVIL])},
        metric="loss",
        mode="min",
        num_samples=12,
        name="<b>me</b>",
    )
    while (trial := study.ask()) is not None:
        trial.report({"loss": trial.config["x"]})
        trial.tell(error=EVIL if trial.number == 11 else None)
    return study.result()


def test_a_result_shows_its_best_trials_first(study: tuner.Result) -> None:
    page = Checked(study._repr_html_())
    shown = re.findall(r"<tr [^>]*><td [^>]*>(\d+)<", study._repr_html_())
    values = {trial.number: trial.best_value for trial in study.trials if trial.best_value is not None}
    assert [int(number) for number in shown] == sorted(values, key=lambda number: values[number])[:10]
    assert "and 2 more: result.trials, result.dataframe()" in page.text
    assert f"{study.best_value:.6g} by trial" in page.text
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text


def test_trials_and_experiments_are_tables(study: tuner.Result) -> None:
    assert isinstance(study.trials, list)
    every = Checked(study.trials._repr_html_())
    assert every.tags.count("tr") == 13
    failed = Checked(study.trials[11]._repr_html_())
    assert "trial 11" in failed.text
    assert "failed" in failed.text
    (one,) = tuner.experiments()
    for page in (Checked(tuner.experiments()._repr_html_()), Checked(one._repr_html_())):  # type: ignore[attr-defined]
        assert one.id in page.text
        assert "script" not in page.tags


def test_a_long_list_says_what_it_leaves_out(study: tuner.Result) -> None:
    page = Checked(notebook.Rows(study.trials * 5)._repr_html_())
    assert page.tags.count("tr") == 31
    assert "and 30 more: [30:] shows them" in page.text
    assert Checked(notebook.Rows[tuner.sdk.trial_result.TrialResult]()._repr_html_()).text == "none "


def test_styled_texts_keep_their_colours_and_lines() -> None:
    page = notebook.lines(Text.assemble(("a", "bold green"), "\n<b>"))
    assert "font-weight: bold" in page
    assert page.endswith("<br>&lt;b&gt;")
    Checked(page)


def test_without_a_kernel_nothing_changes() -> None:
    assert not notebook.is_here()


def test_a_large_configuration_is_shown_in_part() -> None:
    shown = notebook.short({f"p{i}": i for i in range(500)})
    assert shown.startswith("p0=0 p1=1 ")
    assert shown.endswith(" p49=49 ... (450 more)")
    assert notebook.short({f"p{i}": i for i in range(20)}).endswith(" p19=19")
    assert notebook.short({"optimizer/lr": 0.5, "of~1the~1code": 2}) == "optimizer/lr=0.5 of/the/code=2"
