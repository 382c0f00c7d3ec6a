"""Search on a real GPU: Lightning trials that share it, and PBT. Without a GPU these tests skip themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import tuner

pytestmark = [pytest.mark.ray, pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _device(request: pytest.FixtureRequest) -> None:
    """Skip unless nvidia-smi finds a GPU, before a Ray is started."""
    try:
        subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a CUDA device")
    request.getfixturevalue("private_ray")


def test_a_search_of_lightning_trials_two_at_a_time(lightning_example: Any) -> None:
    result = tuner.run(
        lightning_example.train,
        {**lightning_example.SPACE, "lr": tuner.grid_search([0.2, 0.1, 0.001, 0.0001])},
        metric="accuracy",
        mode="max",
        num_samples=1,
        scheduler=tuner.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        num_workers=1,
        use_gpu=True,
        resources_per_worker={"CPU": 0.5, "GPU": 0.5},
        verbose=0,
    )
    assert result.state == "completed", result.error
    assert result.best_value is not None
    assert result.best_value > 0.9
    assert {trial.state for trial in result.trials} <= {"completed", "stopped"}


def on_device(config: dict[str, Any]) -> None:
    """Train weights that stay on the device, over gloo if ranks share it, and copy them with checkpoints."""
    import torch

    torch.manual_seed(0)
    inputs = torch.randn(64, 8, device="cuda")
    labels = inputs @ torch.arange(8.0, device="cuda")
    model = tuner.torch.prepare_model(torch.nn.Linear(8, 1))
    plain = getattr(model, "module", model)
    epoch = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True, map_location="cuda")
        plain.load_state_dict(state["model"])
        epoch = state["epoch"]
    while epoch < 12:
        epoch += 1
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), labels)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= config["lr"] * parameter.grad
                parameter.grad = None

        def save(folder: str, epoch: int = epoch) -> None:
            if tuner.get_context().world_rank == 0:
                torch.save({"model": plain.state_dict(), "epoch": epoch}, Path(folder, "state.pt"))

        tuner.report({"loss": loss.item()}, checkpoint=save)


def test_pbt_copies_weights_between_trials_whose_ranks_share_a_device() -> None:
    result = tuner.run(
        on_device,
        {"lr": tuner.loguniform(1e-4, 0.3)},
        metric="loss",
        mode="min",
        num_samples=2,
        scheduler=tuner.PopulationBasedTraining(perturbation_interval=3, quantile_fraction=0.5, synch=True),
        search_alg="random",
        seed=1,
        num_workers=2,
        use_gpu=True,
        resources_per_worker={"CPU": 0.25, "GPU": 0.25},
        max_t=12,
        verbose=0,
    )
    assert result.state == "completed", result.error
    assert any(row["segment"] > 0 for trial in result.trials for row in trial.history), "a trial was exploited"
    assert all(trial.iterations == 12 for trial in result.trials)
