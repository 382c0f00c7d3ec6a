"""A Trainer in a script whose work is done on Ray: what comes back, and that nothing stays behind."""

from __future__ import annotations

import importlib
import io
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import cloudpickle
import numpy
import pytest
import ray
import torch
from ray.util.placement_group import placement_group_table
from torch import Tensor, nn
from torch.utils.data import DataLoader

import tuner
from tests.silence import run_to_end
from tests.trials.lightning.cases import FLAVOURS, data
from tuner.domain.experiment import Scaling
from tuner.errors import EntrypointError, PlacementError, SpecError, TrialError
from tuner.hosts.scripts import kept
from tuner.sdk.driving import drive_on_ray
from tuner.settings import Settings
from tuner.trials.lightning import workers
from tuner.trials.lightning.flavour import flavour_of
from tuner.trials.lightning.ray_strategy import RayFSDPStrategy, RayStrategy, _Job, _pickled
from tuner.trials.lightning.results import in_order
from tuner.trials.lightning.switches import GlobalState
from tuner.trials.lightning.trial import Ranks, assign_trainer
from tuner.trials.lightning.workers import _Tee

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _no_idle_workers() -> Iterator[None]:
    """Let the tests of other files have the CPUs of the kept Ray."""
    yield
    workers.release()


def define(flavour: str) -> Any:
    pl = importlib.import_module(flavour)

    class Net(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.seen: list[int] = []
            self.pids: list[int] = []

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.seen.append(len(batch[0]))
            self.pids = [os.getpid()]
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], index: int) -> None:
            self.log("val_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

        def test_step(self, batch: list[Tensor], index: int) -> None:
            self.log("test_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

        def predict_step(self, batch: list[Tensor], index: int) -> Any:
            return {"out": self.layer(batch[0]), "in": batch[0]}

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    class Watch(pl.Callback):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.trainer: Any = None
            self.file = sys.stdout  # cannot be pickled

        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "file": None}

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__.update(state)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self.trainer = trainer
            self.losses.append(float(trainer.callback_metrics["val_loss"]))
            print("validated, says rank", trainer.global_rank)

    return Net, Watch


def strategy(kind: str = "RayStrategy", **options: Any) -> Any:
    made = getattr(tuner.lightning, kind)
    return made(**{"num_workers": 2, "resources_per_worker": {"CPU": 0.5}, **options})


def trainer(flavour: str, folder: Path, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "default_root_dir": folder}
    options.setdefault("strategy", strategy(lightning=flavour))
    return importlib.import_module(flavour).Trainer(**{**quiet, **options})


def assert_all_gone() -> None:
    """No placement group is left, or within a moment: Ray removes them behind the caller's back."""
    deadline = time.monotonic() + 10
    while any(group["state"] != "REMOVED" for group in placement_group_table().values()):
        assert time.monotonic() < deadline, placement_group_table()
        time.sleep(0.05)


def batches(size: int = 48, batch_size: int = 8) -> DataLoader[Any]:
    return DataLoader(data(size), batch_size=batch_size)


@pytest.mark.ray
@pytest.mark.parametrize("flavour", [FLAVOURS[0], pytest.param(FLAVOURS[1], marks=pytest.mark.long)])
def test_after_fit_the_script_has_what_it_would_have_had(
    flavour: str, local_ray: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pl = importlib.import_module(flavour)
    Net, Watch = define(flavour)
    watch, best = Watch(), pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "best", monitor="val_loss")
    stop = pl.callbacks.EarlyStopping("val_loss", patience=7)
    log = pl.loggers.CSVLogger(tmp_path / "logs")
    made = trainer(flavour, tmp_path, max_epochs=3, callbacks=[watch, best, stop], logger=log, log_every_n_steps=1)
    model = Net()
    begun = model.layer.weight.detach().clone()
    made.fit(model, batches(), batches(16))

    assert not torch.equal(model.layer.weight, begun)
    assert made.state.finished
    assert (made.current_epoch, made.global_step, made.world_size) == (3, 9, 2)  # 48 samples, 2 ranks, batches of 8
    assert made.callback_metrics.keys() == made.logged_metrics.keys() == {"train_loss", "val_loss"}
    assert model.seen == [8] * 9
    assert model.pids != [os.getpid()]
    assert len(watch.losses) == 4  # with the sanity check
    assert watch.losses[-1] == pytest.approx(float(made.callback_metrics["val_loss"]))
    assert watch.trainer is made
    assert (stop.best_score, stop.patience) == (pytest.approx(min(watch.losses[1:])), 7)
    assert float(best.best_model_score) == pytest.approx(min(watch.losses[1:]))
    assert made.checkpoint_callback is best
    saved = torch.load(best.best_model_path, weights_only=False)["state_dict"]
    assert torch.equal(saved["layer.weight"], model.layer.weight)
    assert os.path.exists(os.path.join(log.log_dir, "metrics.csv"))
    assert "validated, says rank 0" in capfd.readouterr().out

    (validated,) = made.validate(model, batches(16), verbose=False)
    assert validated["val_loss"] == pytest.approx(float(best.best_model_score))
    (tested,) = made.test(model, batches(16), verbose=False)
    assert tested["test_loss"] == pytest.approx(validated["val_loss"])
    predicted = made.predict(model, DataLoader(data(21), batch_size=8))
    assert [len(batch["out"]) for batch in predicted] == [8, 8, 5]
    inputs = torch.cat([batch["in"] for batch in predicted])
    assert torch.equal(inputs, data(21).tensors[0])
    with torch.no_grad():
        assert torch.allclose(torch.cat([batch["out"] for batch in predicted]), model.layer(inputs))

    made.fit_loop.max_epochs = 5
    made.fit(model, batches(), batches(16))
    assert (made.current_epoch, made.global_step, model.seen) == (5, 15, [8] * 15)
    made.save_checkpoint(tmp_path / "whole.ckpt")
    again = Net()
    trainer(flavour, tmp_path, strategy="auto").validate(
        again, batches(16), ckpt_path=tmp_path / "whole.ckpt", verbose=False
    )
    assert torch.equal(again.layer.weight, model.layer.weight)
    made.strategy.release_workers()
    assert_all_gone()


@pytest.mark.ray
def test_two_ranks_train_as_one_process_with_the_batches_of_both(local_ray: None, tmp_path: Path) -> None:
    Net, _ = define(FLAVOURS[0])
    torch.manual_seed(1)
    model, alone = Net(), Net()
    alone.load_state_dict(model.state_dict())
    trainer(FLAVOURS[0], tmp_path, max_epochs=3, enable_checkpointing=False).fit(model, batches(batch_size=24))
    trainer(FLAVOURS[0], tmp_path, max_epochs=3, enable_checkpointing=False, strategy="auto").fit(
        alone, batches(batch_size=48)
    )
    assert torch.allclose(model.layer.weight, alone.layer.weight, atol=1e-6)


@pytest.mark.ray
def test_errors_of_workers_are_raised_as_they_are_and_nothing_stays_behind(local_ray: None, tmp_path: Path) -> None:
    Net, _ = define(FLAVOURS[0])

    class Broken(Net):  # type: ignore[misc,valid-type]
        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            if self.global_rank == 1:
                raise ZeroDivisionError("rank 1 cannot")
            return super().training_step(batch, index)

    made = trainer(FLAVOURS[0], tmp_path, max_epochs=1, enable_checkpointing=False)
    with pytest.raises(ZeroDivisionError, match="rank 1 cannot") as caught:
        made.fit(Broken(), batches())
    assert "raised on rank 1" in caught.value.__notes__[0]
    assert_all_gone()

    class Dying(Net):  # type: ignore[misc,valid-type]
        def on_train_start(self) -> None:
            if self.global_rank == 1:
                os._exit(3)

    with pytest.raises(TrialError, match=r"rank 1 on .* is gone"):
        made.fit(Dying(), batches())
    made.fit(Net(), batches())
    assert made.state.finished
    made.strategy.release_workers()


@pytest.mark.ray
def test_what_cannot_be_done_is_said_at_once(local_ray: None, tmp_path: Path) -> None:
    Net, _ = define(FLAVOURS[0])
    made = trainer(FLAVOURS[0], tmp_path, strategy=strategy(num_workers=9, lightning=FLAVOURS[0]))
    with pytest.raises(PlacementError, match="9 ×"):
        made.fit(Net(), batches())
    made = trainer(FLAVOURS[0], tmp_path, strategy=strategy(use_gpu=True, lightning=FLAVOURS[0]))
    if not torch.cuda.is_available():
        with pytest.raises(PlacementError, match="GPU"):
            made.fit(Net(), batches())
    model = Net()
    model.lock = threading.Lock()
    with pytest.raises(EntrypointError, match=r"argument 0 \(Net\) cannot be sent"):
        trainer(FLAVOURS[0], tmp_path).fit(model, batches())


@pytest.mark.long  # a script with a Ray of its own takes longest
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)  # `run_to_end` ends a script that hangs before
def test_a_script_with_its_classes_in_main_and_no_ray_of_its_own(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "lightning_ray.py"
    done = run_to_end([sys.executable, str(example)], silence_s=150, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    validated, predicted = last.split("predicted here:")
    assert float(predicted) > 0.85
    assert (
        f"{float(predicted):.6f}" in validated
        or abs(float(validated.split(":")[-1].strip(" }")) - float(predicted)) < 1e-6
    )


def test_predictions_are_put_in_order() -> None:
    rows = torch.arange(11.0)
    by_rank = [list(rows[rank::3].split(2)) for rank in range(3)]
    assert [batch.tolist() for batch in in_order(by_rank, 2)] == [batch.tolist() for batch in rows.split(2)]
    pairs = [[(batch, {"twice": batch * 2}) for batch in batches] for batches in by_rank]
    assert torch.equal(torch.cat([twice["twice"] for _, twice in in_order(pairs, 2)]), rows * 2)
    assert in_order([["a", "c"], ["b"]], 2) == ["a", "b", "c"]
    assert in_order([[rows[:2]], [rows[2:4]]], None)[1].tolist() == [2.0, 3.0]


class FSDPOnCPUs(RayFSDPStrategy):
    """Replaces what Lightning and torch refuse without a GPU by what torch can do. Everything but the device is as on GPUs."""

    def __init__(self, num_workers: int, **options: Any) -> None:
        RayStrategy.__init__(self, num_workers, **options)

    def _setup_model(self, model: nn.Module) -> nn.Module:
        import torch.distributed.fsdp as fsdp

        for module, name in ((fsdp, "FullStateDictConfig"), (fsdp.api, "FullOptimStateDictConfig")):
            kind = getattr(module, name)  # of no use on a CPU, where torch then frees what it has handed out
            setattr(module, name, lambda kind=kind, **options: kind(**{**options, "offload_to_cpu": False}))
        if not any(isinstance(part, fsdp.FullyShardedDataParallel) for part in model.modules()):
            model = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)
        sharded: nn.Module = super()._setup_model(model)
        return sharded


@pytest.mark.long  # test_torch.py trains a sharded model
@pytest.mark.ray
def test_sharded_models_train_over_the_workers_and_come_back_whole(local_ray: None, tmp_path: Path) -> None:
    pl = importlib.import_module(FLAVOURS[0])
    Net, _ = define(FLAVOURS[0])

    class Deep(Net):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
            self.held = 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)

        def on_train_end(self) -> None:
            here = (getattr(parameter, "to_local", lambda p=parameter: p)() for parameter in self.parameters())
            self.held = sum(parameter.numel() for parameter in here)

    class Sharded(Deep):
        def configure_model(self) -> None:
            torch.distributed.fsdp.fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    alone = Deep()
    begun = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    optimizer = alone.configure_optimizers()
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone.layer(data().tensors[0]), data().tensors[1]).backward()
        optimizer.step()

    fsdp2 = strategy("RayModelParallelStrategy", lightning=FLAVOURS[0])
    fsdp = FSDPOnCPUs(2, resources_per_worker={"CPU": 0.5}, lightning=FLAVOURS[0], state_dict_type="sharded")
    for model, sharded in ((Sharded(), fsdp2), (Deep(), fsdp)):
        model.load_state_dict(begun)
        best = pl.callbacks.ModelCheckpoint(tmp_path / type(sharded).__name__, monitor="val_loss")
        made = trainer(FLAVOURS[0], tmp_path, max_epochs=3, callbacks=[best], strategy=sharded)
        made.fit(model, batches(batch_size=24), batches(16))
        assert 0 < model.held < sum(parameter.numel() for parameter in model.parameters())
        assert {type(parameter.data) for parameter in model.parameters()} == {Tensor}
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)
        (validated,) = made.validate(model, batches(16), verbose=False)
        assert validated["val_loss"] == pytest.approx(float(best.best_model_score))
        made.fit_loop.max_epochs = 4
        made.fit(model, batches(batch_size=24), batches(16), ckpt_path=best.best_model_path)
        assert made.global_step == 4
    made.strategy.release_workers()


def test_fsdp_without_gpus_is_refused_before_anything_starts() -> None:
    with pytest.raises(SpecError, match="use_gpu"):
        strategy("RayFSDPStrategy", lightning=FLAVOURS[0])


def test_a_script_without_a_gpu_may_ask_for_some() -> None:
    made = importlib.import_module(FLAVOURS[0]).Trainer(
        strategy=strategy(use_gpu=True, lightning=FLAVOURS[0]), precision="16-mixed", logger=False
    )
    assert made.precision_plugin.device == "cuda"
    assert made.world_size == 2
    assert isinstance(made.accelerator, importlib.import_module(FLAVOURS[0]).accelerators.CUDAAccelerator)


def test_callbacks_that_heard_of_an_error_on_the_ranks_do_not_hear_of_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OnExceptionCheckpoint would write the untrained model of the script over what the ranks have saved."""
    pl = importlib.import_module(FLAVOURS[0])

    class Ranks:
        closed = False

        def run(self, payload: bytes, about: Any) -> Any:
            raise ValueError("on a rank")

        def close(self) -> None:
            self.closed = True

    ranks = Ranks()
    monkeypatch.setattr("tuner.trials.lightning.workers.borrow", lambda *args, **options: ("key", ranks))
    monkeypatch.setattr("tuner.hosts.ray.cluster.connect", lambda address: False)
    saves = pl.callbacks.OnExceptionCheckpoint(tmp_path)
    Net, _ = define(FLAVOURS[0])
    made = trainer(FLAVOURS[0], tmp_path, callbacks=[saves], max_epochs=1, enable_checkpointing=None)
    with pytest.raises(ValueError, match="on a rank"):
        made.fit(Net(), batches())
    assert ranks.closed
    assert not os.path.exists(saves.ckpt_path)
    assert saves in made.callbacks
    assert made.state.status == "interrupted"


def test_idle_workers_that_know_an_old_source_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search on Ray stops idle workers. It waited for the CPUs that they held, for 30 s or `keep_workers_s`."""

    class Ranks:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.is_fresh, self.closed = True, False

        def fresh(self) -> bool:
            return self.is_fresh

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(workers, "Workers", Ranks)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    key, first = workers.borrow(Scaling())
    workers.give_back(key, first, 60)
    assert workers.borrow(Scaling())[1] is first
    workers.give_back(key, first, 60)
    first.is_fresh = False  # type: ignore[attr-defined]
    second = workers.borrow(Scaling())[1]
    assert (second is first, first.closed, second.closed) == (False, True, False)  # type: ignore[attr-defined]

    def borrow(*args: Any, **options: Any) -> Any:
        raise RuntimeError(f"closed: {second.closed}")  # type: ignore[attr-defined]

    workers.give_back(key, second, 60)
    monkeypatch.setattr(kept, "borrow", borrow)
    progress = MagicMock(show=False)
    with pytest.raises(RuntimeError, match="closed: True"):
        drive_on_ray(MagicMock(), Settings(), "exp", None, progress, MagicMock(), "", True)


def test_a_compiled_module_is_refused_with_what_to_do_instead() -> None:
    model = SimpleNamespace(_compiler_ctx={"lock": threading.Lock()})
    with pytest.raises(EntrypointError, match="configure_model"):
        _pickled(_Job(print, (model,), {}, None))


def test_a_script_in_a_process_that_multiprocessing_has_spawned_sends_its_module_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name is `__mp_main__` there, and no rank can import that."""
    script = ModuleType("__mp_main__")
    exec("def fit(): return 'trained'", vars(script))
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    job = _pickled(_Job(script.fit, (), {}, None))
    cloudpickle.unregister_pickle_by_value(script)
    monkeypatch.setitem(sys.modules, "__mp_main__", ModuleType("__mp_main__"))  # as on a rank
    assert cloudpickle.loads(job)(None) == "trained"


def test_what_a_script_has_set_for_its_process_is_in_force_on_the_ranks() -> None:
    before = GlobalState.here()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        random.seed(5)
        torch.manual_seed(5)
        job = cloudpickle.dumps(_Job(drawn, (), {}, None))
        expected = drawn()
        before.set()
        assert cloudpickle.loads(job)(None) == expected
        assert expected[:2] == (True, "medium")
    finally:
        before.set()


def test_the_gpus_of_the_ranks_draw_by_the_seed_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    before = GlobalState.here()
    try:
        torch.manual_seed(7)
        there = GlobalState.here()
        torch.manual_seed(8)  # a warm worker's
        seeded: list[int] = []
        monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
        there.set()
        assert seeded == [7]
    finally:
        before.set()


def drawn() -> tuple[Any, ...]:
    return (
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        random.random(),
        float(numpy.random.rand()),
        float(torch.rand(1)),
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_lightning_takes_the_class_for_a_strategy(flavour: str) -> None:
    """LightningCLI asks before it makes one: ``--trainer.strategy=tuner.lightning.RayStrategy``."""
    strategy(lightning=flavour)
    base = importlib.import_module(flavour).strategies.Strategy
    assert issubclass(tuner.lightning.RayStrategy, base)
    assert isinstance(strategy(lightning=flavour), base)


def test_workers_without_gpus_train_on_cpus_though_the_script_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pl = importlib.import_module(FLAVOURS[0])
    monkeypatch.setattr("lightning.fabric.accelerators.cuda.num_cuda_devices", lambda: 8)
    monkeypatch.setattr("lightning.pytorch.accelerators.cuda.num_cuda_devices", lambda: 8)
    made = pl.Trainer(strategy=strategy(lightning=FLAVOURS[0]), precision="bf16-mixed", logger=False, devices=8)
    assert isinstance(made.accelerator, pl.accelerators.CPUAccelerator)
    assert made.precision_plugin.device == "cpu"


def test_a_mac_may_ask_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning refuses data-parallel strategies there unless the accelerator is "cpu"."""
    pl = importlib.import_module(FLAVOURS[0])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = pl.Trainer(
        strategy=strategy(use_gpu=True, lightning=FLAVOURS[0]), accelerator="cpu", precision="bf16-mixed", logger=False
    )
    assign_trainer(made, Ranks.make(flavour_of(made), 1, 2, 1, 2, 0), torch.device("cuda", 1))
    assert isinstance(made.accelerator, pl.accelerators.CUDAAccelerator)
    assert made.strategy.root_device == torch.device("cuda", 1)
    assert made.precision_plugin.device == "cuda"


def test_what_rank_0_prints_goes_to_the_script_alone() -> None:
    stream = io.StringIO()
    tee = _Tee(stream)
    tee.write("before")
    tee.heard = True
    tee.write("training")
    assert (stream.getvalue(), tee.take()) == ("before", "training")
