"""Words by which the page finds what the driver has written."""

from __future__ import annotations

from pathlib import Path

from tuner.driver.core.decider import STARTS_OVER

PAGES = Path(__file__).parents[2] / "web" / "src"


def test_the_page_finds_resumes_without_a_checkpoint_by_the_words_of_the_driver() -> None:
    assert f'export const STARTS_OVER = "{STARTS_OVER}";' in (PAGES / "parts/trial/StartedOver.tsx").read_text()
