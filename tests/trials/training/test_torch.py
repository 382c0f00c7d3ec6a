"""`tuner.torch`: loaders that share out the data, models that are wrapped, on one process and on two real ranks."""

from __future__ import annotations

import copy
import json
import pickle
from collections import defaultdict
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import tuner
from tests.trials.lightning.cases import trial
from tuner.torch import get_device, prepare_data_loader, prepare_model
from tuner.trials.training.torch import (
    _distributed,
    _DividedSampler,
    _global_batches,
    _GlobalBatches,
    _Loader,
    _rebuilt,
    _to,
)


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def test_one_process_keeps_its_model_and_its_data() -> None:
    model = torch.nn.Linear(2, 1)
    assert prepare_model(model) is model
    assert get_device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = prepare_data_loader(DataLoader(numbers(5), batch_size=2))
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3
    assert loader.batch_size == 2


def test_a_function_that_uses_all_of_it_runs_outside_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: dict[str, float]) -> None:
        model = prepare_model(torch.nn.Linear(1, 1), parallel_strategy="fsdp" if config["sharded"] else "ddp")
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        for (batch,) in prepare_data_loader(DataLoader(numbers(4), batch_size=2, shuffle=True)):
            optimizer.zero_grad()
            loss = model(batch.float().reshape(-1, 1).to(get_device())).square().mean()
            loss.backward()
            optimizer.step()
            tuner.report({"loss": loss}, checkpoint=lambda folder: torch.save(model, folder))

    for sharded in (False, True):
        train({"lr": 0.01, "sharded": sharded})
    assert capsys.readouterr().out.count(": loss=") == 4


def test_a_sampler_of_the_users_own_is_dealt_out() -> None:
    order = SequentialSampler(range(5))
    hands = [list(_DividedSampler(order, rank, 2)) for rank in range(2)]
    assert hands == [[0, 2, 4], [1, 3, 0]], "as many each, the first one again"
    assert [len(_DividedSampler(order, rank, 2)) for rank in range(2)] == [3, 3]


@pytest.mark.parametrize("epoch", [0, 3])
def test_ranks_divide_what_a_sampler_draws_at_random(epoch: int) -> None:
    def hand(made: Any, rank: int) -> list[Any]:
        torch.manual_seed(100 + rank)  # the ranks of a trial have different seeds
        made.set_epoch(epoch)
        expected = torch.Generator().manual_seed(100 + rank)
        drawn = list(made)
        assert torch.equal(torch.rand(1), torch.rand(1, generator=expected)), "the rank's own generator is as before"
        return drawn

    order = SubsetRandomSampler(range(10))
    first, second = (hand(_DividedSampler(order, rank, 2), rank) for rank in range(2))
    assert sorted([*first, *second]) == list(range(10))
    batches = [hand(_GlobalBatches(order, 4, False, rank, 2), rank) for rank in range(2)]
    assert sorted(sample for each in batches for batch in each for sample in batch) == list(range(10))
    assert hand(_DividedSampler(order, 0, 2), 0) == first
    other = _DividedSampler(order, 0, 2)
    other.set_epoch(epoch + 1)
    assert list(other) != first, "another epoch"


@pytest.mark.parametrize("options", [{"num_samples": 6}, {"replacement": True}])
def test_a_random_sampler_with_options_of_the_users_own_keeps_them(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    loader = DataLoader(numbers(20), sampler=RandomSampler(range(20), **options))
    assert isinstance(_distributed(loader), _DividedSampler)
    assert len(_distributed(loader)) == options.get("num_samples", 20) // 2


@pytest.mark.parametrize("kind", [RandomSampler, SequentialSampler])
def test_a_sampler_of_a_part_of_the_data_keeps_to_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    hands = []
    for rank in range(2):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        hands += _distributed(DataLoader(numbers(20), sampler=kind(range(6))))
    assert sorted(hands) == list(range(6))
    with trial():
        assert len(_global_batches(DataLoader(numbers(20), sampler=kind(range(6))))) == 6


def test_a_batch_sampler_of_the_users_own_cannot_be_divided() -> None:
    loader = DataLoader(numbers(4), batch_sampler=BatchSampler(SequentialSampler(range(4)), 2, False))
    with pytest.raises(ValueError, match="add_dist_sampler=False"):
        _rebuilt(loader, SequentialSampler(range(4)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_global_batch_has_the_same_samples_on_any_number_of_ranks(ranks: int) -> None:
    order = SequentialSampler(range(11))
    hands = [list(_GlobalBatches(order, 4, False, rank, ranks)) for rank in range(ranks)]
    assert [len(_GlobalBatches(order, 4, False, rank, ranks)) for rank in range(ranks)] == [3] * ranks
    batches = [sorted(sample for hand in hands for sample in hand[at]) for at in range(3)]
    assert batches[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[2] == ([8, 8, 9, 10] if ranks == 4 else [8, 9, 10]), "each rank needs a sample"
    assert all(abs(len(one[at]) - len(other[at])) <= 1 for one in hands for other in hands for at in range(3))
    assert [len(list(_GlobalBatches(order, 4, True, rank, ranks))) for rank in range(ranks)] == [2] * ranks


def test_options_of_the_loader_stay() -> None:
    before = DataLoader(numbers(7), batch_size=3, drop_last=True)
    before.in_order = False  # an argument of newer versions of PyTorch only
    after = _rebuilt(before, SequentialSampler(range(7)))
    assert (after.batch_size, after.drop_last, len(after)) == (3, True, 2)
    assert not after.in_order or "in_order" not in signature(DataLoader.__init__).parameters


class ItemsAsAttributes(dict[str, Any]):
    """Looks up attributes among its items, so that a missing one raises KeyError."""

    __getattr__ = dict.__getitem__


def test_batches_of_every_kind_are_moved() -> None:
    device = torch.device("meta")
    packed = _to(pack_sequence([torch.ones(3), torch.ones(2)]), device)
    assert (packed.data.device, packed.batch_sizes.tolist()) == (device, [2, 2, 1])
    by_name = _to(defaultdict(list, {"x": torch.ones(1), "names": ["a"]}), device)
    assert (by_name["x"].device, by_name["names"], by_name["other"]) == (device, ["a"], [])
    as_attributes = _to(ItemsAsAttributes(x=torch.ones(1)), device)
    assert (type(as_attributes), as_attributes.x.device) == (ItemsAsAttributes, device)
    pair = _to((torch.ones(1), {"y": [torch.ones(1), 3]}), device)
    assert (pair[0].device, pair[1]["y"][0].device, pair[1]["y"][1]) == (device, device, 3)


def test_a_loader_without_batches_is_divided() -> None:
    before = DataLoader(numbers(4), batch_size=None)
    after = _rebuilt(before, _DividedSampler(SequentialSampler(range(4)), 1, 2))
    assert [int(item[0]) for item in after] == [1, 3]
    with trial(), pytest.raises(ValueError, match="batch_size=None.*keep_global_batch_size"):
        _global_batches(before)


class WithoutLength(Sampler[int]):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    "divided", [_DividedSampler(WithoutLength(), 0, 2), _GlobalBatches(WithoutLength(), 2, False, 0, 2)]
)
def test_a_loader_needs_no_length(divided: Any) -> None:
    """`list` and tqdm ask for it, and an AssertionError was raised in them."""
    batches = divided if isinstance(divided, _GlobalBatches) else None
    loader = _Loader(_rebuilt(DataLoader(numbers(3)), divided, batches), divided, None, False)
    assert [int(item) for (items,) in list(loader) for item in items] == [0, 2]
    with pytest.raises(TypeError, match="has no len"):
        len(loader)


def test_a_prepared_loader_has_the_sampler_that_divides_the_data_and_can_be_copied() -> None:
    """Its sampler had no `set_epoch` in an elastic trial, and copying it raised KeyError."""
    with trial():
        batches = _global_batches(DataLoader(numbers(4), batch_size=2, shuffle=True))
        loader = _Loader(_rebuilt(DataLoader(numbers(4), batch_size=2), None, batches), batches, None, False)
    loader.sampler.set_epoch(1)
    plain = prepare_data_loader(DataLoader(numbers(4), batch_size=2))
    assert isinstance(plain.sampler, SequentialSampler)
    for copied in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert [batch[0].tolist() for batch in copied] == [[0, 1], [2, 3]]


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ValueError, match="'deepspeed'"):
        prepare_model(torch.nn.Linear(1, 1), parallel_strategy="deepspeed")  # type: ignore[arg-type]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_iterable_data_is_left_alone() -> None:
    assert [int(x) for batch in prepare_data_loader(DataLoader(Endless(), batch_size=2)) for x in batch] == [0, 1, 2, 3]


@pytest.mark.ray
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_share_the_data_and_agree_on_the_weights(strategy: str, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor

        data = torch.utils.data.TensorDataset(torch.arange(8.0).unsqueeze(1))
        loader = tuner.torch.prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))
        model = tuner.torch.prepare_model(torch.nn.Linear(1, 1, bias=False), parallel_strategy=config["strategy"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        epochs = []
        for _ in range(2):
            seen = []
            for (batch,) in loader:
                seen += batch.flatten().tolist()
                loss = (model(batch) - batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            epochs.append(seen)
        (weight,) = model.parameters()
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, (epochs, whole.item(), isinstance(weight, DTensor)))
        if tuner.get_context().world_rank == 0:
            Path(config["out"]).write_text(json.dumps(everyone))
        tuner.report({"loss": loss.item()})

    out = tmp_path / "out.json"
    result = tuner.run(
        train,
        {"strategy": strategy, "out": str(out)},
        metric="loss",
        mode="min",
        num_samples=1,
        scheduler="fifo",
        search_alg="random",
        num_workers=2,
        resources_per_worker={"CPU": 0.5},
        verbose=0,
    )
    assert result.state == "completed", result.error
    (first, weight, sharded), (second, other, _) = json.loads(out.read_text())
    assert weight == other
    assert sharded is (strategy == "fsdp")
    for mine, theirs in zip(first, second, strict=True):
        assert sorted(mine + theirs) == [float(n) for n in range(8)], "each sample once an epoch"
    assert first[0] != first[1], "shuffled anew"
