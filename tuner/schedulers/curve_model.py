"""A Gaussian process over configuration × log epoch: what learning curves are expected to do, and how surely.

In the line of freeze-thaw Bayesian optimization (Swersky, Snoek and Adams 2014) with a stationary kernel in place of
theirs: results at a few geometric levels are enough, and one Cholesky factorization of a few hundred rows serves a decision.

    k = A [ (M52(|x - x'| / l) + b·(x - 1/2)·(x' - 1/2) + c·G(|x - x'| / ρ) + s·1{i = i'}) · g(τ) g(τ') M52(|τ - τ'| / λ)
            + (σ² + ε)·1{same row} ]

with M52 the Matérn kernel of smoothness 5/2, G the Gaussian one, x the encoded configuration, τ = ln t / ln max_t, i the
trial. The first term is the trend over the space, with a length of its own for every parameter. The second is a linear
trend over the numeric parameters, of fixed weight b: it carries what is known to the far corners of the space, which is
where optima often lie. The third is what close neighbours share beyond these trends, so that what is known of one
configuration is known of its near copies. `s` is what a trial has of its own (the luck of its seed). g(τ) = exp(γ(τ - 1)),
γ >= 0, lets curves fan out: where all begin alike, a small lead at the beginning is a large one at the end. The amplitude A
is profiled out. The other parameters have normal priors on their logarithms (γ on itself) and are set to the maximum of the
posterior by L-BFGS-B with analytic gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtri

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SQRT5 = math.sqrt(5.0)
JITTER = 1e-6
WORST_Z = -3.0
LINEAR = 0.3  # b, the weight of the linear trend


# ---------------------------------------------------------------------------------------------------------------- warp
@dataclass(frozen=True, slots=True)
class Warp:
    """The map from scores to what the model sees: linear above the median, normal quantiles of the rank below it.

    Failures and diverged runs therefore do not set the scale on which good configurations are told apart.
    """

    z: Floats  # (n,), of the scores it was made from; mean 0
    centre: float  # the score at z = 0, if that lies above the median
    scale: float
    knots: tuple[Floats, Floats]  # (z, score), both increasing: the way back below the median

    @classmethod
    def of(cls, scores: Floats) -> Warp:
        """`scores` (n,), higher is better, -inf for a trial that crashed or diverged; n >= 1."""
        finite = np.isfinite(scores)
        scores = np.where(finite, np.clip(scores, -1e300, 1e300), -np.inf)
        if not finite.any():
            return cls(np.zeros(len(scores)), 0.0, 1.0, (np.zeros(1), np.zeros(1)))
        # where most have crashed the median is no number; the worst finite score stands in for it
        median = max(float(np.median(np.where(finite, scores, -np.inf))), float(scores[finite].min()))
        upper = scores >= median
        above = scores[upper] - median
        farthest = float(above.max())
        scale = 1.0
        if farthest > 1e-12 * (1.0 + abs(median)):
            scale = farthest * math.sqrt(float(np.mean((above / farthest) ** 2)))
        z = np.where(upper, (np.where(upper, scores, median) - median) / scale, 0.0)
        z[~upper] = np.maximum(ndtri((_average_ranks(scores)[~upper] + 0.5) / len(scores)), WORST_Z)
        shift = float(z.mean())
        z -= shift
        order = np.argsort(scores[finite], kind="stable")
        return cls(z, median + shift * scale, scale, (z[finite][order], scores[finite][order]))

    def forward(self, score: float) -> float:
        """z of a score at or above the median."""
        return (score - self.centre) / self.scale

    def back(self, z: float) -> float:
        """The score that z stands for, for people to read; below the median by interpolation between known scores."""
        zs, scores = self.knots
        linear = self.centre + z * self.scale
        if z >= zs[-1]:
            return max(linear, float(scores[-1]))
        return float(np.interp(z, zs, scores))


def _average_ranks(values: Floats) -> Floats:
    """0-based ranks; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_rank: Floats = ends - (counts + 1) / 2
    return mean_rank[inverse]


# -------------------------------------------------------------------------------------------------------------- kernel
@dataclass(frozen=True, slots=True)
class Rows:
    """Results: their levels tau (n,) in [0, 1] and their trials (n,), numbered by the rows of x (trials, q), the encoded
    configurations. Rows of one trial share their x, so what depends on x alone is computed once for each trial."""

    x: Floats
    trial: Ints
    tau: Floats

    def __len__(self) -> int:
        return len(self.tau)


def matern52(distance: Floats) -> Floats:
    """(1 + r + r²/3) exp(-r) at r = sqrt(5)·distance."""
    r = SQRT5 * distance
    out: Floats = r * (1 / 3)
    out += 1
    out *= r
    out += 1
    np.negative(r, out=r)
    np.exp(r, out=r)
    out *= r
    return out


def distances(a: Floats, b: Floats) -> Floats:
    """Euclidean distances (n, m) of the rows of a (n, q) and b (m, q)."""
    out = squared_distances(a, b)
    np.sqrt(out, out=out)
    return out


def squared_distances(a: Floats, b: Floats) -> Floats:
    """(n, m) of the rows of a (n, q) and b (m, q)."""
    out: Floats = a @ b.T
    out *= -2
    out += (a * a).sum(1)[:, None]
    out += (b * b).sum(1)
    np.maximum(out, 0, out=out)
    return out


def centred(x: Floats, group: Ints) -> Floats:
    """Return x - 1/2 (n, r) of the numeric columns of x (n, q), those that encode a parameter alone; the rest are categories."""
    out: Floats = x[:, np.bincount(group)[group] == 1] - 0.5
    return out


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal priors on the logarithms of the parameters, as (median, standard deviation of the log).

    theta = [ln l of every parameter of the space..., ln λ, ln s, ln σ², ln c, ln ρ, γ]
    """

    lengthscale: tuple[float, float] = (0.7, 1.0)
    level: tuple[float, float] = (0.7, 0.7)
    own: tuple[float, float] = (0.3, 1.0)
    noise: tuple[float, float] = (0.01, 1.5)
    local: tuple[float, float] = (0.1, 1.0)
    radius: tuple[float, float] = (0.1, 0.5)  # ρ, for a single parameter; √p times this for p parameters
    growth: tuple[float, float] = (0.0, 1.0)  # γ, which is no logarithm and never below 0
    shortest: float = 0.1
    reach: float = 4.0  # how far from its median a logarithm may go

    def mean(self, dims: int) -> Floats:
        rest = [self.level[0], self.own[0], self.noise[0], self.local[0], self.radius[0] * math.sqrt(dims)]
        return np.append(np.log([self.lengthscale[0]] * dims + rest), self.growth[0])

    def sd(self, dims: int) -> Floats:
        rest = [self.level[1], self.own[1], self.noise[1], self.local[1], self.radius[1], self.growth[1]]
        return np.array([self.lengthscale[1]] * dims + rest)

    def bounds(self, dims: int) -> list[tuple[float, float]]:
        mean = self.mean(dims)
        reach = [4.0, self.reach, self.reach, self.reach, 2.0]
        lengths = [(math.log(self.shortest), m + 4) for m in mean[:dims]]
        others = [(m - r, m + 4) for m, r in zip(mean[dims:-1], reach, strict=True)]
        return [*lengths, *others, (0.0, self.reach)]


# ----------------------------------------------------------------------------------------------------------------- fit
@dataclass(frozen=True, slots=True)
class Evidence:
    """The rows and warped results that the parameters are fitted to. `group` (q,): the parameter each column encodes."""

    rows: Rows
    z: Floats
    group: Ints
    prior: Prior

    @property
    def dims(self) -> int:
        return int(self.group.max()) + 1 if len(self.group) else 0

    def loss(self, theta: Floats) -> tuple[float, Floats]:
        """Negative log posterior density of theta, up to a constant, and its gradient."""
        d, n = self.dims, len(self.z)
        x, trial = self.rows.x, self.rows.trial
        scale, own, noise, local, radius = np.exp(theta[d:-1])
        levels, level = np.unique(self.rows.tau, return_inverse=True)
        pair, step = np.ix_(trial, trial), np.ix_(level, level)

        scaled = x / np.exp(theta[:d])[self.group]
        q = SQRT5 * distances(scaled, scaled)
        decay = np.exp(-q)
        nearness = squared_distances(x, x) / radius**2
        near = local * np.exp(-0.5 * nearness)
        line = centred(x, self.group)
        across = (1 + q + q * q / 3) * decay + near + LINEAR * (line @ line.T)
        across[np.diag_indices_from(across)] += own
        h = SQRT5 * np.abs(levels[:, None] - levels) / scale
        to_end = levels[:, None] + levels - 2
        grown = np.exp(theta[-1] * to_end - h)
        along = (1 + h + h * h / 3) * grown
        by_scale = h * h * (1 + h) * grown / 3

        k = across[pair] * along[step]
        k[np.diag_indices(n)] += noise + JITTER
        factor, info = lapack.dpotrf(k.T, lower=1)
        if info:
            return 1e10, np.zeros_like(theta)
        alpha, _ = lapack.dpotrs(factor, self.z, lower=1)
        amplitude = max(float(self.z @ alpha) / n, 1e-6)
        inverse, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        m = np.outer(alpha, alpha) / amplitude - inverse  # the loss changes by -m / 2 for each entry of k

        # m, weighed by what the other factor of the product is, and added up for each pair of trials, or of levels
        between = _pair_sums(m * along[step], trial, len(x))
        w = (5 / 3) * (1 + q) * decay * between
        by_column = w.sum(1) @ (scaled * scaled) - ((w @ scaled) * scaled).sum(0)
        near *= between
        slopes = np.empty_like(theta)
        slopes[:d] = np.bincount(self.group, weights=by_column, minlength=d)
        at_levels = _pair_sums(m * across[pair], level, len(levels))
        slopes[d] = 0.5 * (at_levels * by_scale).sum()
        slopes[d + 1] = 0.5 * own * np.trace(between)
        slopes[d + 2] = 0.5 * noise * np.trace(m)
        slopes[d + 3] = 0.5 * near.sum()
        slopes[d + 4] = 0.5 * (near * nearness).sum()
        slopes[d + 5] = 0.5 * (at_levels * along * to_end).sum()
        t = (theta - self.prior.mean(d)) / self.prior.sd(d)
        value = 0.5 * n * math.log(amplitude) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(t @ t)
        return value, t / self.prior.sd(d) - slopes

    def fit(self, starts: Sequence[tuple[Floats, int]]) -> Floats:
        """The best theta of L-BFGS-B from every (start, iterations)."""
        bounds = self.prior.bounds(self.dims)
        found = [
            minimize(self.loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
            for start, iterations in starts
        ]
        best: Floats = min(found, key=lambda f: float(f.fun)).x
        return best


def _pair_sums(m: Floats, index: Ints, count: int) -> Floats:
    """(count, count): the sums of m (n, n) over the rows and columns that have the same index."""
    to = np.zeros((len(index), count))
    to[np.arange(len(index)), index] = 1.0
    out: Floats = to.T @ m @ to
    return out


# ----------------------------------------------------------------------------------------------------------- posterior
class Posterior:
    """What the model expects of any configuration at any level, given results and the trials that run now.

    A running trial enters as a row at τ = 1 whose value is not known but will be: it narrows the variance and leaves the
    mean alone, so that parallel workers spread out. One factorization serves both, since those rows come last.
    """

    def __init__(self, theta: Floats, group: Ints, rows: Rows, z: Floats, running: Ints) -> None:
        """`running` are the trials that run now, numbered as in `rows`, which has their x too."""
        d = int(group.max()) + 1
        self._group = group
        self._lengths = np.exp(theta[:d])[group]
        self._scale, self._own, noise, self._local, self._radius = (float(v) for v in np.exp(theta[d:-1]))
        self._growth = float(theta[-1])
        n = self._real = len(z)
        # `rows` may have the x of trials without results, to be asked about: those are no part of the matrix
        used, self._trial = np.unique(np.concatenate([rows.trial, running]), return_inverse=True)
        self._all, self._column = rows.x, np.full(len(rows.x), -1)
        self._column[used] = np.arange(len(used))
        self._x, self._scaled = rows.x[used], rows.x[used] / self._lengths
        self._line = centred(self._x, group)
        self._levels, self._level = np.unique(np.concatenate([rows.tau, np.ones(len(running))]), return_inverse=True)
        across = self._across(self._x)
        across[np.diag_indices_from(across)] += self._own
        k = across[np.ix_(self._trial, self._trial)]
        k *= self._along(self._levels)[np.ix_(self._level, self._level)]
        k[np.diag_indices_from(k)] += noise + JITTER
        factor, info = lapack.dpotrf(k.T, lower=1, overwrite_a=1)
        if info:
            raise np.linalg.LinAlgError("the kernel matrix is not positive definite")
        self._alpha, _ = lapack.dpotrs(np.asfortranarray(factor[:n, :n]), z, lower=1)
        self._inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
        self.amplitude = max(float(z @ self._alpha) / n, 1e-6)

    def of_trials(self, trials: Ints, tau: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation (m,) of the curves, without noise, of trials of `rows` (m,) at tau (m,)."""
        x = self._all[trials]
        across = self._across(x)
        known = np.flatnonzero(self._column[trials] >= 0)
        across[known, self._column[trials[known]]] += self._own
        levels, level = np.unique(tau, return_inverse=True)
        k = across[:, self._trial]
        k *= self._along(levels)[:, self._level][level]
        return self._moments(k, x, tau)

    def of_new(self, x: Floats, tau: float) -> tuple[Floats, Floats]:
        """The same for configurations x (m, q) that have not been tried, all at one tau."""
        k = self._across(x)[:, self._trial]
        k *= self._along(np.array([tau]))[0, self._level]
        return self._moments(k, x, np.array([tau]))

    def _moments(self, k: Floats, x: Floats, tau: Floats) -> tuple[Floats, Floats]:
        mean: Floats = k[:, : self._real] @ self._alpha
        v = blas.dtrmm(1.0, self._inverse, k.T, lower=1, overwrite_b=1)
        line = centred(x, self._group)
        trend = 1 + self._local + self._own + LINEAR * np.einsum("ij,ij->i", line, line)
        prior = trend * np.exp(2 * self._growth * (tau - 1))
        variance = self.amplitude * (prior - np.einsum("ij,ij->j", v, v))
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    def _across(self, x: Floats) -> Floats:
        """What the kernel says of x (m, q) and every trial, but for what a trial has of its own."""
        out = matern52(distances(x / self._lengths, self._scaled))
        near = squared_distances(x, self._x)
        near *= -0.5 / self._radius**2
        np.exp(near, out=near)
        near *= self._local
        out += near
        out += (LINEAR * centred(x, self._group)) @ self._line.T
        return out

    def _along(self, tau: Floats) -> Floats:
        out = matern52(np.abs(tau[:, None] - self._levels) / self._scale)
        out *= np.exp(self._growth * (tau[:, None] + self._levels - 2))
        return out


# --------------------------------------------------------------------------------------------------------- acquisition
def log_expected_improvement(mean: Floats, sd: Floats, incumbent: float) -> Floats:
    """ln E[max(f - incumbent, 0)], stable where the improvement is far out in the tail."""
    u = (mean - incumbent) / sd
    x = np.maximum(u, -5)
    near = np.log(np.exp(-x * x / 2) / math.sqrt(2 * math.pi) + x * np.exp(log_ndtr(x)))
    far = -u * u / 2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-u, 1))
    result: Floats = np.where(u > -5, near, far) + np.log(sd)
    return result


def log_probability_of_improvement(mean: Floats, sd: Floats, goal: float) -> Floats:
    """ln P[f > goal]."""
    out: Floats = log_ndtr((mean - goal) / sd)
    return out
