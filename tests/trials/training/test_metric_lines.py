"""Reading metrics from what a script prints."""

from __future__ import annotations

import pytest

from tuner.trials.training.metric_lines import MetricLines


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("loss=0.5", {"loss": 0.5}),
        ("epoch=3 loss=0.5, acc = 1e-2 (lr=0.1)", {"epoch": 3.0, "loss": 0.5, "acc": 0.01, "lr": 0.1}),
        ("[info] loss=nan", {"loss": float("nan")}),
        ('{"loss": 0.5, "val": {"acc": 1}, "name": "x"}', {"loss": 0.5, "val/acc": 1.0}),
        ('  {"loss": "0.5"}  ', {"loss": 0.5}),
        ("\x1b[1;92mloss=0.5\x1b[0m, \x1b[3macc=0.25\x1b[0m", {"loss": 0.5, "acc": 0.25}),
        ('\x1b[32m{"loss": 0.5}\x1b[0m', {"loss": 0.5}),
        ("\x1b[2Kloss=0.5\x1b[K", {"loss": 0.5}),
        ('\x1b[?25l\x1b[1A\x1b[2K{"loss": 0.5}\x1b[K', {"loss": 0.5}),
        ("{'loss': 0.5, 'val': {'acc': '1e-1'}, 'name': None}", {"loss": 0.5, "val/acc": 0.1}),
        ("{'loss': nan, 'best': -inf}", {"loss": float("nan"), "best": float("-inf")}),
        ("{'loss', 0.5}", None),
        ("{'loss': 0.5 0.5}", None),
        ("val_loss=0.5", None),
        ("epoch=3", None),
        ("loss=", None),
        ("loss=high", None),
        ("the loss is 0.5", None),
        ('{"loss": null}', None),
        (f'{{"loss": 0.5, "n": 1{"0" * 400}}}', {"loss": 0.5}),
        (f'{{"loss": 1{"0" * 400}}}', None),
        ('{"loss": 0.5', None),
        ("", None),
    ],
)
def test_lines_without_a_pattern(line: str, metrics: dict[str, float] | None) -> None:
    found = MetricLines("loss").read(line)
    assert found == (pytest.approx(metrics, nan_ok=True) if metrics is not None else None)


@pytest.mark.parametrize(
    "line", ['{"epoch": 3, "val": {"größe": 0.5}}', r'{"epoch": 3, "val": {"gr\u00f6\u00dfe": 0.5}}']
)
def test_an_object_may_have_the_objective_in_another_object_and_escaped(line: str) -> None:
    """Python's `json.dumps` escapes such letters. The trial had ended without a report."""
    assert MetricLines("val/größe").read(line) == {"epoch": 3.0, "val/größe": 0.5}


def test_a_pattern_has_a_group_for_each_metric_or_one_for_the_objective() -> None:
    named = MetricLines("loss", r"epoch (?P<epoch>\d+): loss (?P<loss>\S+)")
    assert named.read("epoch 3: loss 0.25") == {"epoch": 3.0, "loss": 0.25}
    assert named.read("loss=0.5") is None
    assert named.read("epoch 3: loss high") is None
    assert MetricLines("loss", r"loss: (\S+)").read("the loss: 0.5") == {"loss": 0.5}
    colored = "loss: \x1b[32m0.5\x1b[0m"
    assert MetricLines("loss", r"loss: (\S+)").read(colored) == {"loss": 0.5}
    assert MetricLines("loss", r"loss: \x1b\[32m([\d.]+)").read(colored) == {"loss": 0.5}


@pytest.mark.parametrize("pattern", ["loss: (", "loss", r"(\d) (\d)", r"(?P<accuracy>\d)"])
def test_patterns_without_the_objective_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected a group|expected named groups|is not a regular expression"):
        MetricLines("loss", pattern)
