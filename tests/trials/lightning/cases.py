"""Small Lightning modules, in both flavours, and a trial's session without Ray."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tuner.domain.segments import Report, Verdict
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.training import session
from tuner.trials.training.session import Context, LeaveTrial, Session

FLAVOURS = ("lightning.pytorch", "pytorch_lightning")


def data(size: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(size, 4, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]))


def loaders(batch_size: int = 8) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(data(), batch_size=batch_size), DataLoader(data(16), batch_size=8)


_modules: dict[str, Any] = {}


def module(flavour: str, config: Mapping[str, Any], optimizers: Callable[[nn.Module, Mapping[str, Any]], Any]) -> Any:
    """Return a LightningModule of this flavour that does linear regression.

    `optimizers(module, config)` returns what its `configure_optimizers` returns.
    """
    if flavour not in _modules:
        pl = importlib.import_module(flavour)

        class Regression(pl.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self, config: Mapping[str, Any], optimizers: Any) -> None:
                super().__init__()
                self.config, self.optimizers_of = config, optimizers
                with torch.random.fork_rng():
                    torch.manual_seed(3)
                    self.layer = nn.Linear(4, 1)
                self.rates: list[float] = []

            def training_step(self, batch: list[Tensor], index: int) -> Tensor:
                self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
                loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
                self.log("train_loss", loss, on_epoch=True, on_step=False)
                return loss

            def validation_step(self, batch: list[Tensor], index: int) -> None:
                self.log("val_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

            def configure_optimizers(self) -> Any:
                return self.optimizers_of(self, self.config)

        _modules[flavour] = Regression
    return _modules[flavour](config, optimizers)


def trainer(flavour: str, **options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    return importlib.import_module(flavour).Trainer(**{**quiet, **options})


class Driver:
    """Everything a session asks of the outside, for one rank: answers `action` at report `leave_at`, saves when told to."""

    def __init__(self, leave_at: int | None, action: str = "pause") -> None:
        self.leave_at, self.action = leave_at, action
        self.reports: list[Report] = []
        self.saved: Checkpoint | None = None
        self.saves = 0

    def put(self, message: Report) -> None:
        self.reports.append(message)

    def ask(self, message: Report) -> Verdict:
        self.reports.append(message)
        if message.report_no == self.leave_at:
            return Verdict(action=self.action, save_checkpoint=True)  # type: ignore[arg-type]
        return Verdict(next_milestone=message.report_no + 1)

    def take(self, source: Any, report_no: int, iteration: int, **more: Any) -> None:
        folder = tempfile.mkdtemp(prefix="tuner-test-")
        source(folder)
        self.saved, self.saves = Checkpoint(folder), self.saves + 1
        weakref.finalize(self.saved, shutil.rmtree, folder)

    def passed(self, report_no: int) -> None:
        pass

    def drain(self) -> None:
        pass


@contextmanager
def trial(
    leave_at: int | None = None,
    *,
    action: str = "pause",
    checkpoint: Checkpoint | None = None,
    world_size: int = 1,
    objective: str | None = None,
    start_iteration: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Driver]:
    """Inside: a trial of one rank, which leaves at report `leave_at`. The exception of leaving stays inside."""
    driver = Driver(leave_at, action)
    context = Context(
        experiment_id="exp",
        trial_id="trl",
        trial_number=0,
        segment_id="seg",
        world_size=world_size,
        world_rank=0,
        local_rank=0,
        local_world_size=world_size,
        node_rank=0,
        start_iteration=start_iteration,
        config=config or {},
    )
    running = Session(context, reports=driver, peers=None, saver=driver, checkpoint=checkpoint, objective=objective)
    session.activate(running)
    try:
        yield driver
    except LeaveTrial:
        assert len(driver.reports) == leave_at
    finally:
        session.activate(None)
