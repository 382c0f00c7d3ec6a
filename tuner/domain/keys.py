"""Compute random numbers and ids from a key, so that no state of a random generator has to be saved.

The same key gives the same numbers in every process and after every restart.
"""

from __future__ import annotations

import hashlib
import random
import re

Key = str | int

_EXPERIMENT_ID = re.compile(r"exp_[0-9a-f]{20}")


def keyed_seed(seed: int, *key: Key) -> int:
    """Return 64 bits that depend only on the seed and the key, not on the process, the platform or the version of Python."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in key)])
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "big")


def keyed_random(seed: int, *key: Key) -> random.Random:
    """Return a random generator for one purpose, as in ``keyed_random(seed, "explore", trial, ordinal)``."""
    return random.Random(keyed_seed(seed, *key))


def derived_id(prefix: str, *key: Key) -> str:
    """Return an opaque id that depends on the key alone, so that writing the same object twice gives the same id."""
    text = "\x1f".join(str(part) for part in key)
    return f"{prefix}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"


def may_be_experiment_id(text: str) -> bool:
    """Return whether this has the form of an experiment's id. The name of an experiment may begin with ``exp_``, too."""
    return _EXPERIMENT_ID.fullmatch(text) is not None


def trial_id(experiment_id: str, number: int) -> str:
    return derived_id("trl", experiment_id, number)


def segment_id(experiment_id: str, number: int, ordinal: int) -> str:
    return derived_id("seg", experiment_id, number, ordinal)


def checkpoint_id(segment: str, report_no: int) -> str:
    return derived_id("ckp", segment, report_no)
