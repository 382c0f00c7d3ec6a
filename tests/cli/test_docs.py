"""`tuner docs`: the pages of the documentation, for those who only have the wheel."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from tuner import errors
from tuner.cli import docs
from tuner.cli.commands import app
from tuner.domain.segments import CAUSES, what_to_do
from tuner.errors import NotFound
from tuner.store import StoreUnavailable


def test_what_an_error_names_is_printed() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TunerError)]
    lines = [what_to_do(cause) for cause in (*CAUSES, None)]
    lines += [
        errors.what_to_do(kind.__name__) for kind in (*kinds, StoreUnavailable)
    ]  # it is public, but not in that module
    for line in lines:
        found = re.fullmatch(r"What to do: tuner docs (\w+)", line)
        assert found is not None
        assert len(docs.text_about(found.group(1)).splitlines()) > 2


def test_a_section_ends_before_the_next_one() -> None:
    assert docs.text_about("oom").startswith("### oom")
    assert "### " not in docs.text_about("oom")[4:]
    assert "### oom" in docs.text_about("failures")


def test_pages_are_listed_and_printed() -> None:
    listed = CliRunner().invoke(app, ["docs"]).output
    assert re.search(r"^troubleshooting +Troubleshooting$", listed, re.MULTILINE)
    assert len({re.match(r"\S+ +", line).end() for line in listed.splitlines()}) == 1, "the titles form a column"
    assert CliRunner().invoke(app, ["docs", "cli"]).output.startswith("# The command line")
    with pytest.raises(NotFound, match="no page or section 'oomm'; did you mean 'oom'"):
        docs.text_about("oomm")
    with pytest.raises(NotFound, match="no page or section 'nonsense'; `tuner docs` lists the pages"):
        docs.text_about("nonsense")
