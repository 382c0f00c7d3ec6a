"""Predict learning curves, with their uncertainty, using a Gaussian process over configuration × log time.

It follows freeze-thaw Bayesian optimization (Swersky, Snoek and Adams, 2014, section 3), with a stationary kernel over
time instead of an exponential decay. Only the results at a few times, which form a geometric sequence, are needed. So
a decision needs only one Cholesky factorization of a few hundred rows.

    k = A [ (M52(|x - x'| / l) + b·(x - 1/2)·(x' - 1/2) + e(x)·e(x') + c·G(|x - x'| / ρ) + s·1{i = i'})
              · g(τ) g(τ') M52(|τ - τ'| / λ) + (σ² + ε)·1{same row} ]

M52 is the Matérn kernel with smoothness 5/2, G the Gaussian kernel, x the encoded configuration, τ = ln t / ln max_t,
and i the trial. The terms are:

* M52 over x: the trend over the space, with a length scale for each parameter.
* b: a linear trend over the numeric parameters, with a fixed weight. It extends what is known to the corners of the
  space, where optima often lie.
* e: the predictions of earlier experiments' models for x, one entry per experiment (`earlier.py`). They let the scores
  follow those of an earlier experiment, to the extent that the results so far support this.
* c: a short-range term. A near copy of a known configuration is expected to behave like it.
* s: the individual part of each trial, such as the luck of its seed.
* g(τ) = exp(γ(τ - 1)), γ >= 0: lets curves fan out. If all curves begin alike, a small early lead means a large final lead.

The amplitude A is profiled out. The other parameters have normal priors on their logarithms (γ on its value). L-BFGS-B
with analytic gradients sets them to the maximum of the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from scipy.optimize import minimize

from tuner.schedulers.shared.blas import one_thread

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SQRT5 = math.sqrt(5.0)
JITTER = 1e-6
LINEAR = 0.3  # b, the weight of the linear trend


@dataclass(frozen=True, slots=True)
class Rows:
    """The results, as rows of the kernel matrix. Rows of one trial share an x, so terms in x are computed once per trial.

    Attributes:
        x: the encoded configurations (trials, q).
        trial: for each result, the row of its trial in x (n,).
        tau: for each result, its position τ on the time axis (n,), in [0, 1].
    """

    x: Floats
    trial: Ints
    tau: Floats

    def __len__(self) -> int:
        return len(self.tau)


def matern52(distance: Floats) -> Floats:
    """Return (1 + r + r²/3) exp(-r) with r = sqrt(5)·distance."""
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
    """Return the Euclidean distances (n, m) between the rows of `a` (n, q) and the rows of `b` (m, q)."""
    out = squared_distances(a, b)
    np.sqrt(out, out=out)
    return out


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Return the squared distances (n, m) between the rows of `a` (n, q) and the rows of `b` (m, q)."""
    out: Floats = a @ b.T
    out *= -2
    out += (a * a).sum(1)[:, None]
    out += (b * b).sum(1)
    np.maximum(out, 0, out=out)
    return out


def centred(x: Floats, group: Ints) -> Floats:
    """Return `x - 1/2` (n, r) for the numeric columns of `x` (n, q). The other columns encode categories.

    `group` (q,) says to which parameter each column belongs. A column is numeric if its parameter has only this column.
    """
    out: Floats = x[:, np.bincount(group)[group] == 1] - 0.5
    return out


def trends(x: Floats, group: Ints, earlier: Floats | None) -> Floats:
    """Return the columns (n, r) whose dot products are the linear terms of the kernel: b and, with `earlier`, e."""
    line: Floats = math.sqrt(LINEAR) * centred(x, group)
    return line if earlier is None else np.concatenate([line, earlier], axis=1)


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal priors on the logarithms of the parameters, as (median, standard deviation of the logarithm).

    theta = [ln l of every parameter of the space..., ln λ, ln s, ln σ², ln c, ln ρ, γ]
    """

    lengthscale: tuple[float, float] = (0.7, 1.0)
    level: tuple[float, float] = (0.7, 0.7)
    own: tuple[float, float] = (0.3, 1.0)
    noise: tuple[float, float] = (0.01, 1.5)
    local: tuple[float, float] = (0.1, 1.0)
    radius: tuple[float, float] = (0.1, 0.5)  # ρ, for a single parameter; √p times this for p parameters
    growth: tuple[float, float] = (0.0, 1.0)  # γ itself, not its logarithm; never below 0
    shortest: float = 0.1
    reach: float = 4.0  # the maximum distance between a logarithm and its prior median

    def mean(self, dims: int) -> Floats:
        """Return the prior mean of theta for a space of `dims` parameters."""
        rest = [self.level[0], self.own[0], self.noise[0], self.local[0], self.radius[0] * math.sqrt(dims)]
        return np.append(np.log([self.lengthscale[0]] * dims + rest), self.growth[0])

    def sd(self, dims: int) -> Floats:
        """Return the prior standard deviation of theta."""
        rest = [self.level[1], self.own[1], self.noise[1], self.local[1], self.radius[1], self.growth[1]]
        return np.array([self.lengthscale[1]] * dims + rest)

    def bounds(self, dims: int) -> list[tuple[float, float]]:
        """Return (lower, upper) of each element of theta, for the optimizer."""
        mean = self.mean(dims)
        reach = [4.0, self.reach, self.reach, self.reach, 2.0]
        lengths = [(math.log(self.shortest), m + 4) for m in mean[:dims]]
        others = [(m - r, m + 4) for m, r in zip(mean[dims:-1], reach, strict=True)]
        return [*lengths, *others, (0.0, self.reach)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The rows and warped results z (n,) to which the parameters are fitted.

    Attributes:
        rows: the results, as rows of the kernel matrix.
        z: the warped result of each row.
        group: the parameter to which each column of `rows.x` belongs (q,).
        prior: the prior distribution of the parameters.
        earlier: predictions of earlier experiments for each row of `rows.x` (trials, e), or None if there are none.
    """

    rows: Rows
    z: Floats
    group: Ints
    prior: Prior
    earlier: Floats | None = None

    @property
    def dims(self) -> int:
        return int(self.group.max()) + 1 if len(self.group) else 0

    def loss(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior density of theta, up to a constant, and its gradient."""
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
        line = trends(x, self.group, self.earlier)
        across = (1 + q + q * q / 3) * decay + near + line @ line.T
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
        m = np.outer(alpha, alpha) / amplitude - inverse  # the derivative of the loss with respect to k is -m / 2

        # Weight m by the other factor of the product kernel, and sum the result over each pair of trials, or of levels.
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
        """Run L-BFGS-B from each of (start, maximum number of iterations), and return the best theta found."""
        bounds = self.prior.bounds(self.dims)
        with one_thread():
            found = [
                minimize(self.loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
                for start, iterations in starts
            ]
        best: Floats = min(found, key=lambda f: float(f.fun)).x
        return best


def _pair_sums(m: Floats, index: Ints, count: int) -> Floats:
    """Return the sum of m (n, n) for each pair of indices (count, count), given the `index` of each row and column (n,)."""
    to = np.zeros((len(index), count))
    to[np.arange(len(index)), index] = 1.0
    out: Floats = to.T @ m @ to
    return out


class Posterior:
    """Predictions for any configuration at any level, given the results and the running trials.

    A running trial is a row at τ = 1 with an unknown value. It reduces the variance without changing the mean, so
    parallel workers try different configurations. These rows come last, so that one factorization serves for mean and
    variance.
    """

    def __init__(
        self,
        theta: Floats,
        group: Ints,
        rows: Rows,
        z: Floats,
        running: Ints,
        earlier: Callable[[Floats], Floats] | None = None,
    ) -> None:
        """Factorize the kernel matrix.

        Args:
            theta: the parameters of the kernel, see `Prior`.
            group: the parameter to which each column of `rows.x` belongs (q,).
            rows: the results, as rows of the kernel matrix.
            z: the warped result of each row (n,).
            running: the rows of `rows.x` of the running trials (r,).
            earlier: maps encoded configurations (n, q) to the predictions of earlier experiments (n, e).
        """
        self._earlier = earlier
        d = int(group.max()) + 1
        self._group = group
        self._lengths = np.exp(theta[:d])[group]
        self._scale, self._own, noise, self._local, self._radius = (float(v) for v in np.exp(theta[d:-1]))
        self._growth = float(theta[-1])
        n = self._real = len(z)
        self._z = z
        # `rows.x` may include trials without results, which are only predicted. These trials are not part of the matrix.
        used, self._trial = np.unique(np.concatenate([rows.trial, running]), return_inverse=True)
        self._all, self._column = rows.x, np.full(len(rows.x), -1)
        self._column[used] = np.arange(len(used))
        self._x, self._scaled = rows.x[used], rows.x[used] / self._lengths
        self._line = self._trends(self._x)
        self._levels, self._level = np.unique(np.concatenate([rows.tau, np.ones(len(running))]), return_inverse=True)
        across = self._across(self._x, self._line)
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
        """Return the mean and standard deviation (m,) of some trials' curves at tau (m,), without noise.

        `trials` (m,) are rows of `rows.x`.
        """
        x = self._all[trials]
        line = self._trends(x)
        across = self._across(x, line)
        known = np.flatnonzero(self._column[trials] >= 0)
        across[known, self._column[trials[known]]] += self._own
        levels, level = np.unique(tau, return_inverse=True)
        k = across[:, self._trial]
        k *= self._along(levels)[:, self._level][level]
        return self._moments(k, line, tau)

    def of_new(self, x: Floats, tau: float) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation (m,) for untried configurations x (m, q), all at one tau."""
        line = self._trends(x)
        k = self._across(x, line)[:, self._trial]
        k *= self._along(np.array([tau]))[0, self._level]
        return self._moments(k, line, np.array([tau]))

    def left_out(self) -> Floats:
        """Return the predicted mean of each result (n,), in units of z, given only the results of all other trials.

        The mean is computed from the inverse of the kernel matrix, block by block (Rasmussen and Williams, 2006, section
        5.4.2).
        """
        n = self._real
        lower = self._inverse[:n, :n]
        inverse = lower.T @ lower
        out = np.empty(n)
        for trial in np.unique(self._trial[:n]):
            own = np.flatnonzero(self._trial[:n] == trial)
            out[own] = self._z[own] - np.linalg.solve(inverse[np.ix_(own, own)], self._alpha[own])
        return out

    def end_weights(self) -> Floats:
        """Return a weight for each trial, that is, for each row of `rows.x` (trials,).

        The predicted mean of a new configuration at τ = 1 is the sum of these weights, each multiplied by the kernel between
        the configuration and that trial (`_across`).
        """
        along = self._along(np.ones(1))[0, self._level[: self._real]]
        out = np.zeros(len(self._all))
        used = np.flatnonzero(self._column >= 0)
        sums = np.bincount(self._trial[: self._real], weights=along * self._alpha, minlength=len(self._x))
        out[used] = sums[self._column[used]]
        return out

    def _trends(self, x: Floats) -> Floats:
        return trends(x, self._group, None if self._earlier is None else self._earlier(x))

    def _moments(self, k: Floats, line: Floats, tau: Floats) -> tuple[Floats, Floats]:
        mean: Floats = k[:, : self._real] @ self._alpha
        v = blas.dtrmm(1.0, self._inverse, k.T, lower=1, overwrite_b=1)
        trend = 1 + self._local + self._own + np.einsum("ij,ij->i", line, line)
        prior = trend * np.exp(2 * self._growth * (tau - 1))
        variance = self.amplitude * (prior - np.einsum("ij,ij->j", v, v))
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    def _across(self, x: Floats, line: Floats) -> Floats:
        """Return the kernel over configurations between x (m, q) and every trial, without the individual part of a trial.

        `line` (m, r) is what `trends` returns for x.
        """
        out = matern52(distances(x / self._lengths, self._scaled))
        near = squared_distances(x, self._x)
        near *= -0.5 / self._radius**2
        np.exp(near, out=near)
        near *= self._local
        out += near
        out += line @ self._line.T
        return out

    def _along(self, tau: Floats) -> Floats:
        out = matern52(np.abs(tau[:, None] - self._levels) / self._scale)
        out *= np.exp(self._growth * (tau[:, None] + self._levels - 2))
        return out
