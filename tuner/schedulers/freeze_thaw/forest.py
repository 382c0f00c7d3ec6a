"""Predict scores by a forest of random trees over configuration and level: a model of another kind than the Gaussian process.

All trees are grown at once. At each depth, every tree splits all its leaves by the same question, the best of a few random ones.
"""

from __future__ import annotations

import numpy as np

from tuner.schedulers.freeze_thaw.curve_model import Floats, Rows

TREES, DEPTH, QUESTIONS, SHRINK = 24, 6, 10, 1.0


class Forest:
    def __init__(self, rows: Rows, z: Floats, generator: np.random.Generator) -> None:
        data = np.column_stack([rows.x[rows.trial], rows.tau])
        n, q = data.shape
        # A trial is in a tree with all its results or none.
        weight = generator.poisson(1.0, (TREES, len(rows.x)))[:, rows.trial].astype(float)
        code = np.zeros((TREES, n), dtype=np.int64)
        self._feature = np.zeros((DEPTH, TREES), dtype=np.int64)
        self._threshold = np.zeros((DEPTH, TREES))
        total = np.maximum(weight.sum(1), 1e-9)
        mean = ((weight * z).sum(1) / total)[:, None]
        tree = np.arange(TREES)
        for depth in range(DEPTH):
            feature = generator.integers(q, size=(TREES, QUESTIONS))
            a, b = generator.integers(n, size=(2, TREES, QUESTIONS))
            threshold = (data[a, feature] + data[b, feature]) / 2
            right = data.T[feature] > threshold[:, :, None]
            leaves = 2 << depth
            place = 2 * code[:, None] + right
            offset = (np.arange(TREES * QUESTIONS) * leaves).reshape(TREES, QUESTIONS, 1)
            flat = (place + offset).ravel()
            w = np.broadcast_to(weight[:, None], place.shape).ravel()
            wz = np.broadcast_to((weight * z)[:, None], place.shape).ravel()
            shape = (TREES, QUESTIONS, leaves)
            count = np.bincount(flat, w, TREES * QUESTIONS * leaves).reshape(shape)
            sums = np.bincount(flat, wz, TREES * QUESTIONS * leaves).reshape(shape)
            gain = (sums**2 / np.maximum(count, 1e-9)).sum(2)
            best = gain.argmax(1)
            code = place[tree, best]
            self._feature[depth], self._threshold[depth] = feature[tree, best], threshold[tree, best]
            above = np.repeat(mean, 2, axis=1)
            mean = (sums[tree, best] + SHRINK * above) / (count[tree, best] + SHRINK)
        leaves = mean.shape[1]
        flat = (code + np.arange(TREES)[:, None] * leaves).ravel()
        rest = z - np.take_along_axis(mean, code, 1)
        spread = np.bincount(flat, (weight * rest**2).ravel(), TREES * leaves).reshape(TREES, leaves)
        count = np.bincount(flat, weight.ravel(), TREES * leaves).reshape(TREES, leaves)
        common = (spread.sum(1) / total)[:, None]
        self._mean, self._variance = mean, (spread + 2 * common) / (count + 2)

    def of_new(self, x: Floats, tau: float) -> tuple[Floats, Floats]:
        data = np.column_stack([x, np.full(len(x), tau)])
        code = np.zeros((TREES, len(x)), dtype=np.int64)
        for feature, threshold in zip(self._feature, self._threshold, strict=True):
            code = 2 * code + (data.T[feature] > threshold[:, None])
        means = np.take_along_axis(self._mean, code, 1)
        within = np.take_along_axis(self._variance, code, 1)
        return means.mean(0), np.sqrt(means.var(0) + within.mean(0) + 1e-9)
