"""Phrases in the reasons of schedulers."""

from __future__ import annotations

from tuner.schedulers.shared.wording import reached_max_t, shown, time_in_words


def test_whole_numbers_are_shown_in_full() -> None:
    said = [
        shown(number) for number in (1_024_761, 12.0, 0.7100000001, 1.5e-7, -0.0, 1e300, float("nan"), float("inf"))
    ]
    assert said == ["1024761", "12", "0.71", "1.5e-07", "-0", "1e+300", "nan", "inf"]
    assert time_in_words("env_steps", 1_024_763.0) == "env_steps 1024763"
    assert "env_steps 2000004: reached max_t (2000000)" in reached_max_t("env_steps", 2_000_004.0, 2_000_000)
