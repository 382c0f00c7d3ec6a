"""Every kind of decision carried out by real DDP trials: stop, pause, resume, exploit; and what "auto" does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.settings import Settings
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("private_ray")]


def ddp(config: dict[str, Any]) -> None:
    """Train a linear model under DDP. Its weight is in the checkpoint, so that the loss shows a copied checkpoint."""
    import torch
    import torch.distributed as dist

    assert dist.get_world_size() == 2
    torch.manual_seed(0)
    model = tuner.torch.prepare_model(torch.nn.Linear(1, 1, bias=False))
    inner = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    epoch = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        inner.load_state_dict(state["model"])
        epoch = state["epoch"]
    while epoch < 12:
        epoch += 1
        inputs = torch.full((4, 1), 1.0 + tuner.get_context().world_rank)
        loss = (model(inputs) - 3.0 * inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        def save(folder: str, epoch: int = epoch) -> None:
            if tuner.get_context().world_rank == 0:
                torch.save({"model": inner.state_dict(), "epoch": epoch}, Path(folder, "state.pt"))

        error = abs(inner.weight.item() - 3.0)
        tuner.report({"error": error, "epoch": epoch, "lr": config["lr"]}, checkpoint=save)


def search(scheduler: Any, **options: Any) -> tuner.Result:
    defaults: dict[str, Any] = {
        "metric": "error",
        "mode": "min",
        "num_samples": 4,
        "search_alg": "random",
        "num_workers": 2,
        "resources_per_worker": {"CPU": 0.25},
        "max_concurrent_trials": 4,
        "max_t": 12,
        "verbose": 0,
    }
    return tuner.run(ddp, {"lr": tuner.loguniform(1e-4, 0.2)}, scheduler=scheduler, **{**defaults, **options})


def decisions(result: tuner.Result) -> list[Any]:
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        return list(store.log.decisions(record.id, page_size=1000).items)[::-1]


def segments(trial: tuner.sdk.run.Result | Any) -> list[Any]:
    with Store.open(Settings.from_env().database_url) as store:
        return list(store.trials.get(trial.id).segments)


def test_pbt_copies_weights_and_configuration_between_ddp_trials() -> None:
    scheduler = tuner.PopulationBasedTraining(
        perturbation_interval=3,
        hyperparam_mutations={"lr": tuner.loguniform(1e-4, 0.2)},
        quantile_fraction=0.5,
        synch=True,
    )
    result = search(scheduler, num_samples=2, max_concurrent_trials=2)
    assert result.state == "completed", result.error
    exploits = [x for x in decisions(result) if x.kind == "exploit"]
    assert exploits
    assert all(x.state == "done" for x in exploits)
    for exploit in exploits:
        trial, donor = result.trials[exploit.trial], result.trials[exploit.payload["donor"]]
        copied = [s for s in segments(trial) if s.cause == "exploit"]
        assert copied
        assert donor.id in {result.trials[s.source_trial].id for s in copied if s.source_trial is not None}
    exploited = result.trials[exploits[0].trial]
    causes = [s.cause for s in segments(exploited)]
    assert causes[0] == "start"
    assert "exploit" in causes[1:]
    second = segments(exploited)[causes.index("exploit")]
    epochs = [row["epoch"] for row in exploited.history if row["segment"] == second.ordinal]
    assert epochs[0] == second.start_iteration + 1, "it goes on from the donor's epoch"
    (rate,) = {row["lr"] for row in exploited.history if row["segment"] == second.ordinal}
    assert rate == pytest.approx(second.params["lr"]), "with its new configuration"


@pytest.mark.long  # tests/trials/groups/segments/test_manager_checkpoints.py pauses and resumes
def test_promotion_pauses_and_resumes_ddp_trials_from_their_checkpoints() -> None:
    scheduler = tuner.ASHAPromotionScheduler(grace_period=1, reduction_factor=2)
    result = search(scheduler, num_samples=6, max_concurrent_trials=2)
    assert result.state == "completed", result.error
    kinds = {x.kind for x in decisions(result)}
    assert {"pause", "resume"} <= kinds
    for trial in result.trials:
        epochs = [row["epoch"] for row in trial.history]
        assert epochs == list(range(1, len(epochs) + 1)), "no epoch twice, none left out"
        assert all(s.start_iteration > 0 for s in segments(trial)[1:])


@pytest.mark.long  # tests/examples/test_getting_started.py has a default search of two ranks
def test_auto_says_what_it_chose_and_finds_the_learning_rate() -> None:
    result = search(None, num_samples=12, search_alg=None)
    assert result.state == "completed", result.error
    notes = [x.reason for x in decisions(result) if x.kind == "note"]
    assert any("auto" in note for note in notes), notes
    assert result.best_value is not None
    assert result.best_value < 0.3


def test_asha_stops_ddp_trials_with_a_reason() -> None:
    result = search(tuner.ASHAScheduler(reduction_factor=2), num_samples=6, max_concurrent_trials=2)
    stopped = [t for t in result.trials if str(t.state) == "stopped"]
    assert stopped
    assert all("rank" in t.reason and "(at most" in t.reason for t in stopped)
