"""Test what comes back from the ranks, without ranks: one Trainer stands for rank 0, another for the one in the script."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.trials.lightning.cases import FLAVOURS, loaders, module, trainer
from tuner.trials.lightning.results import Returned, collect, hand_back, landmarks

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def sgd(net: nn.Module, config: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.01)


def fitted(there: Any, model: Any) -> Returned:
    """Fit as a rank does."""
    there.strategy._lightning_module = model
    known = landmarks(there)
    there.fit(model, *loaders())
    return collect(there, known, None, model.state_dict(), sharded=False)


def brought_back(make: Callable[[], Any], flavour: str = FLAVOURS[0], **options: Any) -> tuple[Any, Any, Any]:
    """Return (trainer of the script, its model, the model that was trained)."""
    trained, mine, here = make(), make(), trainer(flavour, max_epochs=1, **options)
    returned = fitted(trainer(flavour, max_epochs=1, **options), trained)
    here.strategy._lightning_module = mine
    hand_back(here, returned)
    return here, mine, trained


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_attributes_share_stays_shared_and_hyperparameters_are_those_of_the_end(flavour: str) -> None:
    plain = type(module(flavour, {}, sgd))

    class Player(plain):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__({}, sgd)
            self.save_hyperparameters({"rate": 1.0})
            self.memory: list[int] = []
            self.agent = SimpleNamespace(memory=self.memory, net=self.layer)

        def on_train_end(self) -> None:
            self.agent.memory.append(7)
            self.hparams.rate = 2.0

    here, model, trained = brought_back(Player, flavour, profiler="simple")
    assert model.memory == [7]
    assert model.agent.memory is model.memory
    assert model.agent.net is model.layer
    assert model.hparams.rate == 2.0
    assert torch.equal(model.layer.weight, trained.layer.weight)
    assert model.trainer.global_step == here.global_step == 6
    assert "run_training_epoch" in here.profiler.recorded_durations


def test_layers_that_setup_makes_and_tensors_that_grow_come_back() -> None:
    plain = type(module(FLAVOURS[0], {}, sgd))

    class Grows(plain):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__({}, sgd)
            self.head: Any = None
            self.register_buffer("queue", torch.zeros(0, 4))

        def setup(self, stage: str) -> None:
            if self.head is None:
                self.head = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
                self.scale = nn.Parameter(torch.ones(2))

        def on_train_batch_end(self, *args: Any) -> None:
            self.queue = torch.cat([self.queue, args[1][0]])

    _, model, trained = brought_back(Grows, precision="64-true")
    assert model.state_dict().keys() == trained.state_dict().keys()
    assert model.queue.shape == (48, 4)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float64}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])


def test_callbacks_of_the_module_take_their_place_in_the_script() -> None:
    pl = importlib.import_module(FLAVOURS[0])
    plain = type(module(FLAVOURS[0], {}, sgd))

    class Stops(plain):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__({}, sgd)

        def configure_callbacks(self) -> Any:
            return [pl.callbacks.EarlyStopping("val_loss")]

    here, _, _ = brought_back(Stops, callbacks=[pl.callbacks.Timer()])
    timer, stop = here.callbacks
    assert timer.time_elapsed("train") > 0
    assert float(stop.best_score) == pytest.approx(float(here.callback_metrics["val_loss"]))


def test_what_cannot_be_sent_stays_and_holds_nothing_else_back() -> None:
    plain = type(module(FLAVOURS[0], {}, sgd))

    class Locked(plain):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__({}, sgd)
            self.steps, self.lock = 0, None

        def on_train_end(self) -> None:
            self.steps, self.lock = 6, threading.Lock()

    _, model, _ = brought_back(Locked)
    assert (model.steps, model.lock) == (6, None)


def test_tensors_of_a_gpu_come_to_a_script_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = type(module(FLAVOURS[0], {}, sgd))

    class Holds(plain):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__({}, sgd)
            self.held = SimpleNamespace(tensor=torch.zeros(2), layer=nn.Linear(2, 2))

        def on_train_end(self) -> None:
            self.held.tensor = torch.ones(2)

    there, here, mine = trainer(FLAVOURS[0], max_epochs=1), trainer(FLAVOURS[0], max_epochs=1), Holds()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")  # where the pickle says it was
        returned = fitted(there, Holds())
    here.strategy._lightning_module = mine
    hand_back(here, returned)
    assert mine.held.tensor.tolist() == [1.0, 1.0]
    assert mine.held.tensor.device.type == mine.held.layer.weight.device.type == "cpu"


def test_the_script_draws_on_from_where_training_ended() -> None:
    returned = fitted(trainer(FLAVOURS[0], max_epochs=1), module(FLAVOURS[0], {}, sgd))
    expected = float(torch.rand(1))
    torch.manual_seed(0)
    here = trainer(FLAVOURS[0], max_epochs=1)
    here.strategy._lightning_module = module(FLAVOURS[0], {}, sgd)
    hand_back(here, returned)
    assert float(torch.rand(1)) == expected


def test_a_model_without_storage_gets_its_weights() -> None:
    """Check a model made by ``with trainer.init_module(empty_init=True)``."""
    trained = module(FLAVOURS[0], {}, sgd)
    returned = fitted(trainer(FLAVOURS[0], max_epochs=1), trained)
    here, mine = trainer(FLAVOURS[0], max_epochs=1), module(FLAVOURS[0], {}, sgd).to("meta")
    here.strategy._lightning_module = mine
    hand_back(here, returned)
    assert torch.equal(mine.layer.weight, trained.layer.weight)
    assert isinstance(mine._trainer, weakref.ProxyType)
