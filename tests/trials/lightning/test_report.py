"""Lightning trials: what is reported, and that a pause changes nothing except what a new configuration changes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.trials.lightning.cases import FLAVOURS, data, loaders, module, trainer, trial
from tuner.errors import CheckpointError, SpecError
from tuner.trials.checkpoints.checkpoints import Checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

both = pytest.mark.parametrize("flavour", [pytest.param(FLAVOURS[0], marks=pytest.mark.long), FLAVOURS[1]])
"""Runs a test with both packages. `test_flavour.py` tests how they differ."""


def sgd(model: Any, config: Mapping[str, Any]) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=config.get("momentum", 0.9), weight_decay=config.get("decay", 0.0)
    )


def plain(model: Any, config: Mapping[str, Any]) -> Any:
    return sgd(model, config)


def steps(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=config.get("gamma", 0.5))]


def cosine(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.get("t_max", 10))
    return [optimizer], [schedule]


def one_cycle(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=36)
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def warm_up(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def in_turn(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    first = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    second = torch.optim.lr_scheduler.ExponentialLR(optimizer, config.get("gamma", 0.9))
    return [optimizer], [torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [2])]


def one_cycle_of_all(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    steps = model.trainer.estimated_stepping_batches
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=steps)
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def in_turn_by_step(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    first = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    second = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [20])
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def plateau(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = sgd(model, config)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


SCHEDULES = [plain, steps, cosine, one_cycle, warm_up, in_turn, plateau]
CONFIG = {"lr": 0.02}


def fit(flavour: str, schedule: Any, config: Mapping[str, Any], **options: Any) -> tuple[Any, Any]:
    batch_size = options.pop("batch_size", 8)
    report = options.pop("report", {})
    made = tuner.lightning.prepare_trainer(trainer(flavour, **{"max_epochs": 6, **options}), **report)
    model = module(flavour, config, schedule)
    made.fit(model, *loaders(batch_size))
    return made, model


def fit_alone(flavour: str, **options: Any) -> Any:
    """Fit with the callback in the Trainer and without `prepare_trainer`."""
    callback = tuner.lightning.ReportCallback(lightning=flavour)
    made = trainer(flavour, max_epochs=6, callbacks=[callback], **options)
    model = module(flavour, CONFIG, one_cycle)
    made.fit(model, *loaders())
    return model


@both
def test_the_callback_alone_goes_on_from_the_trials_checkpoint(flavour: str) -> None:
    with trial() as whole:
        uninterrupted = fit_alone(flavour)
    with trial(leave_at=3) as first:
        fit_alone(flavour)
    assert first.saved is not None
    with trial(checkpoint=first.saved, start_iteration=3) as second:
        resumed = fit_alone(flavour)
    assert [report.metrics["epoch"] for report in second.reports] == [3, 4, 5]
    assert torch.equal(resumed.layer.weight, uninterrupted.layer.weight)
    assert resumed.rates == uninterrupted.rates[18:]
    assert [r.metrics for r in second.reports] == [r.metrics for r in whole.reports[3:]]


@both
def test_reports_once_per_validation_with_the_metrics_of_the_epoch(flavour: str) -> None:
    with trial() as driver:
        fit(flavour, plain, CONFIG, max_epochs=3)
    assert [(report.step, report.metrics["epoch"]) for report in driver.reports] == [(6, 0), (12, 1), (18, 2)]
    assert all(report.metrics.keys() == {"epoch", "val_loss", "train_loss"} for report in driver.reports)
    assert driver.reports[2].metrics["val_loss"] < driver.reports[0].metrics["val_loss"]
    assert driver.saves == 0  # nobody wanted a checkpoint


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("val_loss", {"val_loss"}),
        (["val_loss", "train_loss"], {"val_loss", "train_loss"}),
        ({"loss": "val_loss"}, {"loss"}),
    ],
)
def test_metrics_are_chosen_and_renamed(metrics: Any, expected: set[str]) -> None:
    with trial() as driver:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"metrics": metrics})
    assert driver.reports[0].metrics.keys() == expected


def test_a_metric_that_was_not_logged_is_named_with_those_that_were() -> None:
    with (
        trial(),
        pytest.raises(SpecError, match=r"accuracy was not logged by self.log; logged so far: train_loss, val_loss"),
    ):
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"metrics": "accuracy"})


@pytest.mark.parametrize(
    ("on", "options", "expected"),
    [
        ("train_epoch_end", {}, [6, 12]),
        ("train_batch_end", {}, list(range(1, 13))),
        ("validation_end", {"val_check_interval": 0.5}, [3, 6, 9, 12]),
        ("validation_end", {"check_val_every_n_epoch": 2}, [12]),
        ("validation_end", {"max_steps": 9, "max_epochs": -1, "val_check_interval": 3}, [3, 6, 9]),
        (["validation_end", "train_epoch_end"], {}, [6, 12]),
    ],
)
def test_when_it_reports(on: Any, options: dict[str, Any], expected: list[int]) -> None:
    with trial() as driver:
        fit(FLAVOURS[0], plain, CONFIG, **{"max_epochs": 2, **options}, report={"on": on})
    assert [report.step for report in driver.reports] == expected


ALL = ["train_batch_end", "train_epoch_end", "validation_end"]


@pytest.mark.parametrize(
    ("on", "options", "expected"),
    [
        (["train_batch_end", "validation_end"], {}, [6, 7, 8, 9, 10, 11, 12]),
        (["train_batch_end", "validation_end"], {"val_check_interval": 0.5}, list(range(3, 13))),
        (["train_epoch_end", "validation_end"], {"check_val_every_n_epoch": 2}, [12]),
        (ALL, {"limit_val_batches": 0}, [6, 7, 8, 9, 10, 11, 12]),
    ],
)
def test_the_first_report_has_the_objective(on: Any, options: dict[str, Any], expected: list[int]) -> None:
    """It is a metric of validation, and training metrics come before it."""
    objective = "train_loss" if "limit_val_batches" in options else "val_loss"
    with trial(objective=objective) as driver:
        fit(FLAVOURS[0], plain, CONFIG, **{"max_epochs": 2, **options}, report={"on": on})
    found = sorted({report.step for report in driver.reports})  # type: ignore[type-var]
    assert found == expected
    assert objective in driver.reports[0].metrics


@pytest.mark.parametrize(
    ("metrics", "between"),
    [(None, {"epoch", "train_loss"}), (["val_loss", "train_loss"], {"train_loss"}), ("val_loss", {"val_loss"})],
)
def test_metrics_of_validation_are_reported_once_for_each(metrics: Any, between: set[str]) -> None:
    with trial(objective="val_loss") as driver:
        fit(
            FLAVOURS[0],
            plain,
            CONFIG,
            max_epochs=3,
            report={"on": ["train_batch_end", "validation_end"], "metrics": metrics},
        )
    assert [report.step for report in driver.reports] == list(range(6, 19))
    for report in driver.reports:
        assert report.metrics.keys() == (between | {"val_loss"} if report.step in (6, 12, 18) else between), report.step


def test_a_metric_that_was_chosen_is_waited_for_too() -> None:
    with trial() as driver:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"on": ALL, "metrics": ["val_loss", "train_loss"]})
    assert [report.metrics.keys() for report in driver.reports] == [{"val_loss", "train_loss"}]


@pytest.mark.parametrize("options", [{"max_epochs": 1}, {"max_steps": 3, "max_epochs": -1}])
def test_an_objective_that_never_comes_is_waited_for_to_the_end_at_most(options: dict[str, Any]) -> None:
    with trial(objective="los") as driver:
        fit(FLAVOURS[0], plain, CONFIG, **options, report={"on": ["train_batch_end", "validation_end"]})
    assert len(driver.reports) == 1, "which the driver answers with the names of what was reported"
    assert "los" not in driver.reports[0].metrics


def test_a_trial_that_goes_on_has_reported_it_before() -> None:
    with trial(objective="val_loss", start_iteration=5) as driver:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"on": ["train_batch_end", "validation_end"]})
    assert [report.step for report in driver.reports] == [1, 2, 3, 4, 5, 6]


def test_without_validation_it_says_what_to_do() -> None:
    with trial(), pytest.raises(SpecError, match="train_epoch_end"):
        fit(FLAVOURS[0], plain, CONFIG, limit_val_batches=0)


def test_outside_a_trial_the_script_runs_as_it_was() -> None:
    made, _ = fit(FLAVOURS[0], plain, CONFIG, max_epochs=1)
    assert made.current_epoch == 1
    assert type(made.strategy).__name__ == "SingleDeviceStrategy"
    made = trainer(FLAVOURS[0], max_epochs=1, callbacks=[tuner.lightning.ReportCallback()])
    made.fit(module(FLAVOURS[0], CONFIG, plain), *loaders())
    assert made.current_epoch == 1


def test_a_trainer_that_was_not_prepared_is_refused_in_a_trial_of_several_ranks() -> None:
    made = trainer(FLAVOURS[0], callbacks=[tuner.lightning.ReportCallback()])
    with trial(world_size=2), pytest.raises(SpecError, match=r"2 ranks, but the Trainer has 1: .*prepare_trainer"):
        made.fit(module(FLAVOURS[0], CONFIG, plain), *loaders())


def leave_and_go_on(
    flavour: str, schedule: Any, leave_at: int, then: Mapping[str, Any] = CONFIG, **options: Any
) -> Any:
    """Run two segments. Return (trainer, model, driver) of the second one, and the driver and model of the first one."""
    with trial(leave_at) as first:
        fit(flavour, schedule, CONFIG, **options)
    assert first.saved is not None
    with trial(checkpoint=first.saved) as second:
        made, model = fit(flavour, schedule, then, **options)
    return made, model, first, second


@both
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("limit", [{}, {"max_steps": 36, "max_epochs": -1}])
def test_a_pause_leaves_no_trace(flavour: str, schedule: Any, limit: dict[str, Any]) -> None:
    pl = importlib.import_module(flavour)

    def stopper() -> Any:
        return pl.callbacks.EarlyStopping("val_loss", patience=50, min_delta=10.0)

    with trial() as driver:
        straight, expected = fit(flavour, schedule, CONFIG, callbacks=[watch := stopper()], **limit)
    with trial(2) as first:
        fit(flavour, schedule, CONFIG, callbacks=[stopper()], **limit)
    with trial(2, checkpoint=first.saved) as second:
        fit(flavour, schedule, CONFIG, callbacks=[stopper()], **limit)
    with trial(checkpoint=second.saved) as third:
        made, model = fit(flavour, schedule, CONFIG, callbacks=[again := stopper()], **limit)

    assert torch.equal(model.layer.weight, expected.layer.weight)
    assert model.rates == expected.rates[24:]
    assert again.wait_count == watch.wait_count
    assert (made.global_step, made.current_epoch) == (straight.global_step, straight.current_epoch) == (36, 6)
    together = [report for part in (first, second, third) for report in part.reports]
    assert [(r.step, r.metrics) for r in together] == [(r.step, r.metrics) for r in driver.reports]


def late_strategy(pl: Any) -> Any:
    """Return a strategy that restores a checkpoint after `on_fit_start`, as those for FSDP and DeepSpeed do."""

    class Late(pl.strategies.SingleDeviceStrategy):  # type: ignore[misc,name-defined]
        restore_checkpoint_after_setup = True

    return Late(device="cpu")


@both
@pytest.mark.parametrize("late", [False, True], ids=["restored early", "restored late"])
def test_a_trial_that_was_paused_when_early_stopping_ended_it_ends(flavour: str, late: bool) -> None:
    """It had trained for one more epoch, so its last report was another one than without the pause."""
    pl = importlib.import_module(flavour)

    def stopped(**more: Any) -> Any:
        callbacks = [pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0)]
        if late:
            more["strategy"] = late_strategy(pl)
        return fit(flavour, plain, CONFIG, callbacks=callbacks, **more)[1]

    with trial() as whole:
        expected = stopped()
    assert len(whole.reports) == 3
    with trial(3) as first:
        stopped()
    with trial(checkpoint=first.saved, start_iteration=3) as second:
        model = stopped()
    assert second.reports == []
    assert torch.equal(model.layer.weight, expected.layer.weight)
    with trial(checkpoint=first.saved, start_iteration=3) as third:
        stopped(min_epochs=5)
    assert len(third.reports) == 2, "min_epochs holds, as without the pause"
    with trial(checkpoint=first.saved, start_iteration=3, config={"lr": 0.5}) as other:
        stopped()
    assert len(other.reports) == 1, "with another configuration, as after an exploit, it may still improve"


@both
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_an_exploit_the_new_learning_rate_is_in_force_where_the_schedule_stands(
    flavour: str, schedule: Any
) -> None:
    _, model, _, _ = leave_and_go_on(flavour, schedule, 3, {"lr": 0.005})
    with trial():
        _, donor = fit(flavour, schedule, CONFIG)
    expected = [rate / 4 for rate in donor.rates[18:]]
    if schedule is plateau:  # what a plateau does depends on what is measured
        assert model.rates[0] == pytest.approx(expected[0], rel=1e-9)
    else:
        assert model.rates == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "change"), [(steps, {"gamma": 0.1}), (cosine, {"t_max": 20}), (cosine, {"lr": 0.1, "t_max": 7})]
)
def test_a_new_shape_of_the_schedule_holds_from_its_present_position(schedule: Any, change: dict[str, Any]) -> None:
    config = {**CONFIG, **change}
    _, model, _, _ = leave_and_go_on(FLAVOURS[0], schedule, 3, config)
    with trial():
        _, fresh = fit(FLAVOURS[0], schedule, config)
    assert model.rates == pytest.approx(fresh.rates[18:], rel=1e-6)


def test_other_hyperparameters_are_replaced_and_momentum_buffers_kept(capsys: pytest.CaptureFixture[str]) -> None:
    made, _, first, _ = leave_and_go_on(FLAVOURS[0], plain, 5, {**CONFIG, "decay": 0.1, "momentum": 0.5}, max_epochs=6)
    group = made.optimizers[0].param_groups[0]
    assert (group["weight_decay"], group["momentum"], group["lr"]) == (0.1, 0.5, 0.02)
    state = torch.load(os.path.join(first.saved.path, "checkpoint.ckpt"), weights_only=False)
    assert state["optimizer_states"][0]["param_groups"][0]["momentum"] == 0.9
    assert made.global_step == 36
    assert "new configuration: optimizer 0, group 0: " in capsys.readouterr().out  # a line in the trial's log


def either(model: Any, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    return getattr(torch.optim, config["optimizer"])(model.parameters(), **config["options"])


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [("SGD", "Adam", False), ("Adam", "SGD", False), ("Adam", "AdamW", True), ("Adam", "Adamax", False)],
)
def test_an_exploit_may_change_the_kind_of_optimizer(
    old: str, new: str, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, dict[str, float]] = {"SGD": {"momentum": 0.9}}
    configs = [{"optimizer": each, "options": {"lr": 0.01, **options.get(each, {})}} for each in (old, new)]
    with trial(leave_at=2) as first:
        fit(FLAVOURS[1], either, configs[0])
    with trial(checkpoint=first.saved, start_iteration=2) as second:
        made, _ = fit(FLAVOURS[1], either, configs[1])
    assert [report.metrics["epoch"] for report in second.reports] == [2, 3, 4, 5]
    (optimizer,) = made.optimizers
    (group,) = optimizer.param_groups
    assert optimizer.defaults.items() <= group.items()
    if new != "SGD":
        assert next(iter(optimizer.state.values()))["step"] == (36 if kept else 24)
    assert (f"{old} -> {new}" in capsys.readouterr().out) is not kept


def test_a_learning_rate_that_the_user_decayed_by_hand_stays_decayed() -> None:
    class ByHand(importlib.import_module(FLAVOURS[0]).Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 0.5

    _, model, _, _ = leave_and_go_on(FLAVOURS[0], plain, 2, {"lr": 0.04}, max_epochs=3, callbacks=[ByHand()])
    assert model.rates == pytest.approx([0.01] * 6)


def test_an_exploit_may_change_the_batch_size() -> None:
    with trial(2) as first:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=4)
    with trial(checkpoint=first.saved) as second:
        made, _ = fit(FLAVOURS[0], plain, CONFIG, max_epochs=4, batch_size=24)
    assert [report.step for report in second.reports] == [14, 16]
    assert made.current_epoch == 4


@pytest.mark.parametrize("schedule", [one_cycle_of_all, warm_up, in_turn_by_step])
@pytest.mark.parametrize("batch_size", [4, 24])
def test_a_schedule_that_counts_steps_stands_where_the_new_batch_size_would_have_it(
    schedule: Any, batch_size: int
) -> None:
    with trial(3) as first:
        fit(FLAVOURS[0], schedule, CONFIG)
    with trial(checkpoint=first.saved):
        _, model = fit(FLAVOURS[0], schedule, CONFIG, batch_size=batch_size)
    with trial():
        _, fresh = fit(FLAVOURS[0], schedule, CONFIG, batch_size=batch_size)
    assert model.rates == pytest.approx(fresh.rates[len(fresh.rates) // 2 :], rel=1e-6)


def test_after_restore_is_called_with_the_new_hyperparameters_in_force() -> None:
    seen = []

    def look(trainer: Any, pl_module: Any) -> None:
        seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    def run() -> None:
        callback = tuner.lightning.ReportCallback(after_restore=look)
        made = tuner.lightning.prepare_trainer(trainer(FLAVOURS[0], max_epochs=2, callbacks=[callback]))
        made.fit(module(FLAVOURS[0], CONFIG, plain), *loaders())

    with trial(1) as first:
        run()
    assert seen == []
    with trial(checkpoint=first.saved):
        run()
    assert seen == [0.02]


def found_rate(model: Any, config: Mapping[str, Any]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=model.lr, momentum=0.9)
    return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


@pytest.mark.parametrize("late", [False, True], ids=["restored early", "restored late"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_what_a_finder_has_found_holds_after_a_pause(
    ours_first: bool, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the finders write files
    pl = importlib.import_module(FLAVOURS[1])

    def find_and_fit(config: Mapping[str, Any]) -> Any:
        finders = [
            pl.callbacks.LearningRateFinder(num_training_steps=40),
            pl.callbacks.BatchSizeFinder(max_trials=2, steps_per_trial=1),
        ]
        ours = tuner.lightning.ReportCallback(lightning=FLAVOURS[1])
        made = trainer(
            FLAVOURS[1],
            max_epochs=4,
            callbacks=[ours, *finders] if ours_first else [*finders, ours],
            strategy=late_strategy(pl) if late else "auto",
        )
        model = module(FLAVOURS[1], config, found_rate)
        model.lr, model.batch_size = config["lr"], 2
        model.train_dataloader = lambda: loaders(model.batch_size)[0]
        model.val_dataloader = lambda: loaders()[1]
        tuner.lightning.prepare_trainer(made).fit(model)
        ran.append(finders[0].optimal_lr is not None)
        return model

    ran: list[bool] = []
    with trial() as whole:
        uninterrupted = find_and_fit(CONFIG)
    with trial(leave_at=2) as first:
        find_and_fit(CONFIG)
    with trial(checkpoint=first.saved, start_iteration=2) as second:
        resumed = find_and_fit(CONFIG)
    assert ran == [True, False], "the first one, and the resumed one"
    assert uninterrupted.batch_size == 4
    assert uninterrupted.lr != CONFIG["lr"]
    assert (resumed.lr, resumed.batch_size) == (uninterrupted.lr, 4)
    assert torch.equal(resumed.layer.weight, uninterrupted.layer.weight)
    assert [r.metrics for r in second.reports] == [r.metrics for r in whole.reports[2:]]


def test_a_finder_still_runs_if_fit_is_called_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = [MemoryError("no room")]

    def fails_once(model: Any, config: Mapping[str, Any]) -> Any:
        if errors:
            raise errors.pop()
        return found_rate(model, config)

    finder = importlib.import_module(FLAVOURS[1]).callbacks.LearningRateFinder(num_training_steps=10)
    ours = tuner.lightning.ReportCallback(lightning=FLAVOURS[1])
    made = trainer(FLAVOURS[1], max_epochs=1, callbacks=[ours, finder])
    model = module(FLAVOURS[1], CONFIG, fails_once)
    model.lr = CONFIG["lr"]
    with trial() as running:
        with pytest.raises(MemoryError):
            made.fit(model, *loaders())
        made.fit(model, *loaders())
    assert finder.optimal_lr is not None
    assert len(running.reports) == 1
    assert not ours._optimizer_states, "those of the finder's own checkpoint"


@pytest.mark.parametrize("prepared", [True, False])
def test_a_rate_can_be_looked_for_before_fit_goes_on(
    prepared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning = importlib.import_module(f"{FLAVOURS[1]}.tuner")

    def find_and_fit() -> Any:
        callbacks = [] if prepared else [tuner.lightning.ReportCallback(lightning=FLAVOURS[1])]
        made = trainer(FLAVOURS[1], max_epochs=4, callbacks=callbacks)
        if prepared:
            tuner.lightning.prepare_trainer(made)
        model = module(FLAVOURS[1], CONFIG, plain)
        model.lr = CONFIG["lr"]
        assert tuning.Tuner(made).lr_find(model, *loaders(), num_training=10, update_attr=False).results
        made.fit(model, *loaders())
        return model

    with trial() as whole:
        uninterrupted = find_and_fit()
    with trial(leave_at=2) as first:
        find_and_fit()
    with trial(checkpoint=first.saved, start_iteration=2) as second:
        resumed = find_and_fit()
    assert torch.equal(resumed.layer.weight, uninterrupted.layer.weight)
    assert [r.metrics for r in second.reports] == [r.metrics for r in whole.reports[2:]]


def test_fit_after_a_validation_of_a_checkpoint_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pl = importlib.import_module(FLAVOURS[1])
    with trial(leave_at=1) as first:
        fit(FLAVOURS[1], plain, CONFIG)
    assert first.saved is not None
    found = []
    for validated in (False, True):
        made = trainer(FLAVOURS[1], max_epochs=4, callbacks=[pl.callbacks.LearningRateFinder(num_training_steps=40)])
        model = module(FLAVOURS[1], CONFIG, found_rate)
        model.lr = CONFIG["lr"]
        with trial():
            tuner.lightning.prepare_trainer(made)
            if validated:
                other = module(FLAVOURS[1], CONFIG, plain)
                made.validate(other, loaders()[1], ckpt_path=os.path.join(first.saved.path, "checkpoint.ckpt"))
            made.fit(model, *loaders(2))
        found.append(model.lr)
    assert found[1] == found[0] != CONFIG["lr"]


def test_a_restore_from_elsewhere_is_an_error(tmp_path: Path) -> None:
    other = trainer(FLAVOURS[0], max_epochs=1)
    other.fit(module(FLAVOURS[0], CONFIG, plain), *loaders())
    other.save_checkpoint(tmp_path / "other.ckpt")
    with trial(1) as first:
        fit(FLAVOURS[0], plain, CONFIG)
    made = trainer(FLAVOURS[0], max_epochs=2, callbacks=[tuner.lightning.ReportCallback()])
    with trial(checkpoint=first.saved), pytest.raises(CheckpointError, match="do not pass ckpt_path to fit"):
        made.fit(module(FLAVOURS[0], CONFIG, plain), *loaders(), ckpt_path=tmp_path / "other.ckpt")


def test_a_test_after_fit_does_not_load_the_checkpoint_again() -> None:
    with trial(1) as first:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=2)
    with trial(checkpoint=first.saved) as second:
        made, model = fit(FLAVOURS[0], plain, CONFIG, max_epochs=2)
        weights = model.layer.weight.clone()
        made.validate(model, loaders()[1], verbose=False)
    assert torch.equal(model.layer.weight, weights)
    assert len(second.reports) == 1


def test_a_second_trainer_of_a_trial_that_goes_on_begins_anew() -> None:
    """It had begun with the weights and at the epoch of the checkpoint, so it had trained too little."""
    with trial(2) as first:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=3)
    with trial(checkpoint=first.saved, start_iteration=2) as second:
        for _ in range(2):
            fit(FLAVOURS[0], plain, CONFIG, max_epochs=3)
    assert [report.metrics["epoch"] for report in second.reports] == [2, 0, 1, 2]


def test_a_trainer_that_saves_nothing_does_not_take_the_checkpoint_from_a_later_one() -> None:
    """It had restored the other's checkpoint, or its reports had made the other begin anew."""
    with trial(2) as first:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=3)
    with trial(checkpoint=first.saved, start_iteration=2) as second:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"checkpoint": False})
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=3)
    assert [report.metrics["epoch"] for report in second.reports] == [0, 2]


@both
@pytest.mark.parametrize("action", ["stop", "pause", "exploit"])
def test_loggers_of_a_trial_that_leaves_end_as_success_and_those_of_a_failed_one_as_failed(
    flavour: str, action: str
) -> None:
    ends: list[str] = []

    class Logger(importlib.import_module(f"{flavour}.loggers.logger").DummyLogger):  # type: ignore[misc]
        def finalize(self, status: str) -> None:
            ends.append(status)

    class Torn(importlib.import_module(flavour).Callback):  # type: ignore[misc]
        def teardown(self, *args: Any) -> None:
            ends.append("teardown")

    with trial(2, action=action):
        fit(flavour, plain, CONFIG, logger=Logger(), callbacks=[Torn()])
    assert ends == ["success"]

    def broken(model: Any, config: Mapping[str, Any]) -> Any:
        raise ValueError("no optimizer")

    ends.clear()
    with trial(), pytest.raises(ValueError, match="no optimizer"):
        fit(flavour, broken, CONFIG, logger=Logger())
    assert ends == ["failed"]


def test_the_users_own_checkpoint_is_the_users_to_restore() -> None:
    def save(trainer: Any, folder: str) -> None:
        trainer.save_checkpoint(os.path.join(folder, "mine.ckpt"), weights_only=True)

    with trial(1) as first:
        fit(FLAVOURS[0], plain, CONFIG, report={"checkpoint": save})
    assert os.listdir(first.saved.path) == ["mine.ckpt"]  # type: ignore[union-attr]
    with trial(checkpoint=first.saved) as second:
        fit(FLAVOURS[0], plain, CONFIG, max_epochs=1, report={"checkpoint": save})
    assert [report.step for report in second.reports] == [6]


def test_the_checkpoint_is_one_that_lightning_can_use_by_itself() -> None:
    with trial(2) as first:
        fit(FLAVOURS[0], steps, CONFIG)
    made = trainer(FLAVOURS[0], max_epochs=6)
    model = module(FLAVOURS[0], CONFIG, steps)
    made.fit(model, *loaders(), ckpt_path=os.path.join(first.saved.path, "checkpoint.ckpt"))  # type: ignore[union-attr]
    with trial():
        _, expected = fit(FLAVOURS[0], steps, CONFIG)
    assert torch.equal(model.layer.weight, expected.layer.weight)


@both
def test_a_strategy_of_the_users_keeps_its_options(flavour: str) -> None:
    ddp = importlib.import_module(f"{flavour}.strategies").DDPStrategy(find_unused_parameters=True)
    with trial():
        made = tuner.lightning.prepare_trainer(trainer(flavour, strategy=ddp, devices=2))
    assert made.strategy._ddp_kwargs == {"find_unused_parameters": True}
    assert isinstance(made.strategy, type(ddp))
    assert (made.world_size, made.num_devices, made.strategy.launcher) == (1, 1, None)


def test_callbacks_can_be_subclassed_and_pickled() -> None:
    import cloudpickle

    class Mine(tuner.lightning.ReportCallback):
        extra = 3

    callback = cloudpickle.loads(cloudpickle.dumps(Mine("val_loss", on="train_epoch_end")))
    assert (callback.metrics, callback.on, callback.extra) == ({"val_loss": "val_loss"}, ("train_epoch_end",), 3)
    assert all(isinstance(callback, importlib.import_module(flavour).Callback) for flavour in FLAVOURS)


def test_a_checkpoint_is_written_on_demand_only(tmp_path: Any) -> None:
    with trial(3) as driver:
        fit(FLAVOURS[0], plain, CONFIG)
    assert driver.saves == 1
    assert isinstance(driver.saved, Checkpoint)
    assert len(data()) == 48
