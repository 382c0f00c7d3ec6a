"""Profiles as files for speedscope."""

from __future__ import annotations

from tuner.trials.runtime.measures.speedscope import MOST_STACKS, SCHEMA, Frame, Part, document

TRAIN, STEP = Frame("train", "/code/train.py", 41), Frame("step", "/code/train.py", 12)


def test_frames_are_shared_and_the_largest_stack_comes_first() -> None:
    parts = [
        Part("train", "seconds", {(TRAIN,): 0.25, (TRAIN, STEP): 1.5, (STEP,): 0.0}),
        Part("loader", "seconds", {(STEP,): 0.1234567}),
    ]
    made = document("trial 3, rank 0", "tuner 1", parts)
    assert (made["$schema"], made["name"], made["activeProfileIndex"]) == (SCHEMA, "trial 3, rank 0", 0)
    assert made["shared"]["frames"] == [
        {"name": "train", "file": "/code/train.py", "line": 41},
        {"name": "step", "file": "/code/train.py", "line": 12},
    ]
    train, loader = made["profiles"]
    assert (train["samples"], train["weights"], train["endValue"]) == ([[0, 1], [0]], [1.5, 0.25], 1.75)
    assert (loader["name"], loader["samples"], loader["weights"]) == ("loader", [[1]], [0.123457])


def test_the_smallest_of_very_many_stacks_are_added_up() -> None:
    weights = {(Frame("f", "f.py", line),): float(line) for line in range(1, MOST_STACKS + 11)}
    [profile] = document("", "", [Part("train", "bytes", weights)])["profiles"]
    assert len(profile["samples"]) == MOST_STACKS
    assert profile["weights"][0] == MOST_STACKS + 10
    assert profile["weights"][-1] == sum(range(1, 12))
    assert profile["endValue"] == sum(weights.values())
