"""Set the hyperparameters of optimizers and learning-rate schedulers after restoring a checkpoint.

Restoring a checkpoint overwrites the values from the configuration: an optimizer's state contains its learning rate,
weight decay and so on, and a scheduler's state contains its shape. After an exploit, the new configuration has to
apply, but changes that training itself has made, such as a decayed learning rate, must be kept.

So the values that `configure_optimizers` returned are stored with the checkpoint. After a restore, the stored values
are compared with those that `configure_optimizers` returns now. If the two are the same, the restored value is kept. If
they differ, the new configuration has changed the value, and the change is applied:

- If the scheduler can compute a learning rate from its position, the new schedule's rate at that position is used.
- Any other learning rate is multiplied by the ratio of the new to the old configured rate, so that a decay is kept.
- All other values are set to those of the new configuration.
- If an optimizer is of another kind now, it begins without a state.

A schedule that counts steps is moved to the position that a run with the new configuration would have after the same
number of epochs. For example, if batches are twice as large, the position is halved.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

_POSITION = {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step"}
_ABSENT = object()


def configured(optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> dict[str, Any]:
    """Return the hyperparameters of new optimizers and schedulers, as plain data to keep in a checkpoint."""
    return {
        "kinds": [type(optimizer).__name__ for optimizer in optimizers],
        "optimizers": [
            [
                {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
                for group in o.param_groups
            ]
            for o in optimizers
        ],
        "schedulers": [copy.deepcopy(scheduler.state_dict()) for scheduler in schedulers],
    }


def drop_foreign_states(
    states: Sequence[dict[str, Any]], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
    """Empty each optimizer's state in a checkpoint if another kind of optimizer has saved it, and return the changes in words.

    For example, a state that SGD has saved lacks what Adam needs. Kinds with the same options, such as Adam and AdamW, share
    their states. before, now: as for `put_in_force`.
    """
    changes = []
    known = zip(states, before.get("kinds", ()), now["kinds"], before["optimizers"], now["optimizers"], strict=False)
    for index, (state, old, new, old_groups, new_groups) in enumerate(known):
        if old != new and _options(old_groups) != _options(new_groups):
            state["state"] = {}
            changes.append(f"optimizer {index}: {old} -> {new}, which begins without a state")
    return changes


def _options(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for group in groups for name in group}


def put_in_force(
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[Any],
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    paces: Sequence[float] = (),
) -> list[str]:
    """Apply the differences between two results of `configured` to restored optimizers and schedulers.

    The docstring of this module describes how. Return the changes, in words.

    Args:
        optimizers: the restored optimizers.
        schedulers: the restored schedulers.
        before: the hyperparameters that were stored with the checkpoint.
        now: the hyperparameters of the new configuration.
        paces: for each scheduler, how many steps under the new configuration correspond to one step under the old one.
    """
    changes: list[str] = []
    touched: set[int] = set()
    for index, (optimizer, old, new) in enumerate(
        zip(optimizers, before["optimizers"], now["optimizers"], strict=False)
    ):
        for number, group in enumerate(optimizer.param_groups):
            if number < len(old) and number < len(new):
                where = f"optimizer {index}, group {number}"
                words = _group(group, old[number], new[number])
                changes += [f"{where}: {word}" for word in words]
                if words:
                    touched.add(id(optimizer))
    for index, (scheduler, old, new) in enumerate(
        zip(schedulers, before["schedulers"], now["schedulers"], strict=False)
    ):
        restored = scheduler.state_dict()
        words = []
        merged = _merge(restored, old, new, words)
        pace = paces[index] if index < len(paces) else 1.0
        if pace != 1.0 and merged.get("last_epoch"):
            merged = _moved_to(merged, round(merged["last_epoch"] * pace))
            words.append(f"position {restored['last_epoch']} -> {merged['last_epoch']}")
        if words:
            scheduler.load_state_dict(merged)
            changes += [f"scheduler {index}: {word}" for word in words]
        if words or id(scheduler.optimizer) in touched:
            _set_rates(scheduler)
    return changes


def _group(group: dict[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = []
    base = "initial_lr" if "initial_lr" in old and "initial_lr" in new else "lr"
    if not _same(old[base], new[base]):
        was = float(group["lr"])
        rate = was * float(new[base]) / float(old[base]) if float(old[base]) else float(new["lr"])
        _set(group, "lr", rate)
        words.append(f"lr {was:g} -> {rate:g}")
    for name, value in new.items():
        if name != "lr" and not _same(old.get(name, _ABSENT), value):
            if name not in ("initial_lr", "max_lr", "min_lr"):
                words.append(f"{name} {group.get(name)} -> {value}")
            _set(group, name, copy.deepcopy(value))
    return words


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    held = group.get(name)
    if isinstance(held, torch.Tensor) and not isinstance(value, torch.Tensor):
        held.fill_(value)  # keep the tensor object, since a compiled or captured step reads it
    else:
        group[name] = value


def _merge(restored: Any, old: Any, new: Any, words: list[str], name: str = "") -> Any:
    """Return a copy of `restored`, with the values from `new` wherever `old` and `new` differ.

    The changes are appended to `words`.
    """
    if isinstance(restored, dict) and isinstance(old, dict) and isinstance(new, dict):
        merged = dict(restored)
        for key, value in new.items():
            if key not in _POSITION:
                merged[key] = _merge(restored.get(key, _ABSENT), old.get(key, _ABSENT), value, words, str(key))
        return merged
    if (
        isinstance(restored, list)
        and isinstance(old, list)
        and isinstance(new, list)
        and any(isinstance(item, dict) for item in new)
        and len(restored) == len(old) == len(new)
    ):
        return [_merge(*parts, words, name) for parts in zip(restored, old, new, strict=True)]
    if _same(old, new):
        return restored
    words.append(f"{name} {restored} -> {new}")
    return copy.deepcopy(new)


def _moved_to(state: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return a scheduler's state at another position. If the scheduler is a sequence of schedulers, move these too."""
    moved = {**state, "last_epoch": position}
    if "_step_count" in state:
        moved["_step_count"] = position + 1
    if "_milestones" in state and "_schedulers" in state:
        begins, ends = [0, *state["_milestones"]], [*state["_milestones"], None]
        moved["_schedulers"] = [
            _moved_to(inner, max(0, min(position, position if end is None else end - 1) - begin))
            for inner, begin, end in zip(state["_schedulers"], begins, ends, strict=True)
        ]
    return moved


def _set_rates(scheduler: Any) -> None:
    """Set the optimizer's learning rates to the rates at the scheduler's position, if they are known.

    Then store the optimizer's current rates in the scheduler.
    """
    groups = scheduler.optimizer.param_groups
    told = _rates_at_position(scheduler)
    if told is not None:
        for group, rate in zip(groups, told, strict=True):
            _set(group, "lr", rate)
    scheduler._last_lr = [float(group["lr"]) for group in groups]


def _rates_at_position(scheduler: Any) -> Sequence[Any] | None:
    """Return the learning rates at a scheduler's position, or None if they depend on more than the position."""
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        return _rates_at_position(
            scheduler._schedulers[bisect.bisect_right(scheduler._milestones, scheduler.last_epoch)]
        )
    if (closed_form := getattr(scheduler, "_get_closed_form_lr", None)) is not None:
        rates: Sequence[Any] = closed_form()
        return rates
    if isinstance(scheduler, lr_scheduler.LambdaLR | lr_scheduler.OneCycleLR):
        scheduler._get_lr_called_within_step = True  # otherwise PyTorch warns about a call outside `step`
        try:
            return list(scheduler.get_lr())
        finally:
            scheduler._get_lr_called_within_step = False
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(one, torch.Tensor | float | int)
            and isinstance(other, torch.Tensor | float | int)
            and torch.equal(torch.as_tensor(one).cpu().double(), torch.as_tensor(other).cpu().double())
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
