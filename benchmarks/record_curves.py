"""Record the learning curves of `benchmarks/curves`: real small trainings on data that ships with scikit-learn or is generated.

    python -m benchmarks.record_curves [NAME ...] [--count 300] [--into benchmarks/curves]

Each problem is trained with random configurations to the end, each with a seed of its own, on one core. Nothing is smoothed: the
noise of the seeds, of small validation sets and of returns is kept. The problems differ in kind:

mlp/digits          a multilayer perceptron in torch; branches for the optimizer; validation loss by epoch
boosting/friedman   histogram gradient boosting on Friedman's first function with noise; validation error by rounds
boosting/diabetes   the same on 442 patients, where most of the target is noise
linear/generated    linear models under stochastic gradient descent, half of whose features say nothing; accuracy by epoch
linear/digits       the same on digits with noise added
qlearning/cliff     tabular reinforcement learning on a windy cliff; mean return, which goes up and down, by episodes
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

from benchmarks.learning_curves import RECORDED, save  # noqa: E402
from tuner.space import Space, choice, lograndint, loguniform, randint, uniform  # noqa: E402

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Training:
    """`curve(config, seed)` yields a value for each of `reports` reports."""

    mode: str
    reports: int
    count: int  # of configurations
    space: dict[str, Any]
    curve: Callable[[Config, int], Iterator[float]]


# -- a multilayer perceptron ---------------------------------------------------------------------------------------------


def perceptron(config: Config, seed: int) -> Iterator[float]:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    inputs = torch.tensor(x[order] / 16 - 0.3, dtype=torch.float32)
    labels = torch.tensor(y[order])
    train, held = slice(0, 1000), slice(1000, None)
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[config["activation"]]
    layers: list[nn.Module] = []
    wide = 64
    for _ in range(config["layers"]):
        layers += [nn.Linear(wide, config["units"]), activation(), nn.Dropout(config["dropout"])]
        wide = config["units"]
    model = nn.Sequential(*layers, nn.Linear(wide, 10))
    chosen, rate = config["optimizer"], config["lr"]
    if chosen["name"] == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(),
            rate,
            momentum=chosen["momentum"],
            nesterov=chosen["nesterov"] and chosen["momentum"] > 0,
        )
    else:
        decay = chosen["weight_decay"]
        optimizer = torch.optim.AdamW(model.parameters(), rate / 10, betas=(chosen["beta1"], 0.99), weight_decay=decay)
    loss = nn.CrossEntropyLoss(label_smoothing=config["smoothing"])
    for _ in range(27):
        model.train()
        for batch in torch.randperm(1000).split(config["batch"]):
            optimizer.zero_grad()
            loss(model(inputs[train][batch]), labels[train][batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            yield float(nn.functional.cross_entropy(model(inputs[held]), labels[held]))


PERCEPTRON = {
    "lr": loguniform(1e-3, 3.0),
    "batch": lograndint(32, 257),
    "layers": randint(1, 4),
    "units": lograndint(8, 129),
    "activation": choice(["relu", "tanh", "gelu"]),
    "dropout": uniform(0, 0.7),
    "smoothing": uniform(0, 0.2),
    "optimizer": choice(
        [
            {"name": "sgd", "momentum": uniform(0, 0.99), "nesterov": choice([False, True])},
            {"name": "adamw", "beta1": uniform(0.5, 0.99), "weight_decay": loguniform(1e-4, 1.0)},
        ]
    ),
}


# -- gradient boosting ---------------------------------------------------------------------------------------------------


def boosting(data: Callable[[], tuple[Any, Any]], train: int) -> Callable[[Config, int], Iterator[float]]:
    def curve(config: Config, seed: int) -> Iterator[float]:
        from sklearn.ensemble import HistGradientBoostingRegressor

        x, y = data()
        model = HistGradientBoostingRegressor(max_iter=120, early_stopping=False, random_state=seed, **config)
        model.fit(x[:train], y[:train])
        scale = float(np.std(y[train:]))
        for round_, predicted in enumerate(model.staged_predict(x[train:]), 1):
            if round_ % 3 == 0:
                yield float(np.sqrt(np.mean((predicted - y[train:]) ** 2))) / scale

    return curve


def friedman() -> tuple[Any, Any]:
    from sklearn.datasets import make_friedman1

    return make_friedman1(1500, 10, noise=1.0, random_state=0)  # type: ignore[no-any-return]


def diabetes() -> tuple[Any, Any]:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], y[order]


BOOSTING = {
    "learning_rate": loguniform(3e-3, 1.0),
    "max_leaf_nodes": lograndint(2, 65),
    "min_samples_leaf": lograndint(1, 101),
    "l2_regularization": loguniform(1e-4, 1e3),
    "max_features": uniform(0.1, 1.0),
    "max_bins": lograndint(4, 256),
    "loss": choice(["squared_error", "absolute_error"]),
}


# -- linear models -------------------------------------------------------------------------------------------------------


def linear(data: Callable[[], tuple[Any, Any]], train: int) -> Callable[[Config, int], Iterator[float]]:
    def curve(config: Config, seed: int) -> Iterator[float]:
        from sklearn.linear_model import SGDClassifier
        from sklearn.preprocessing import StandardScaler

        x, y = data()
        if config["standardized"]:
            x = StandardScaler().fit(x[:train]).transform(x)
        rate, penalty = config["rate"], config["penalty"]
        model = SGDClassifier(
            loss=config["loss"],
            alpha=config["alpha"],
            eta0=config["eta0"],
            learning_rate=rate["name"],
            power_t=rate.get("power", 0.5),
            penalty=penalty["name"],
            l1_ratio=penalty.get("ratio", 0.15),
            average=config["average"],
            random_state=seed,
        )
        generator = np.random.default_rng(seed)
        for _ in range(30):
            order = generator.permutation(train)
            model.partial_fit(x[order], y[order], classes=np.unique(y))
            yield float(model.score(x[train:], y[train:]))

    return curve


def generated() -> tuple[Any, Any]:
    from sklearn.datasets import make_classification

    x, y = make_classification(
        2500, 40, n_informative=12, n_redundant=8, n_classes=3, flip_y=0.1, class_sep=0.8, random_state=3
    )
    return x * np.geomspace(0.1, 10, 40), y


def noisy_digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(y))
    return x[order] + generator.normal(0, 6, x.shape), y[order]


LINEAR = {
    "loss": choice(["hinge", "log_loss", "modified_huber"]),
    "alpha": loguniform(1e-7, 1.0),
    "eta0": loguniform(1e-5, 1.0),
    "rate": choice([{"name": "constant"}, {"name": "invscaling", "power": uniform(0.05, 1.0)}]),
    "penalty": choice([{"name": "l2"}, {"name": "l1"}, {"name": "elasticnet", "ratio": uniform(0, 1)}]),
    "average": choice([False, True]),
    "standardized": choice([False, True]),
}


# -- reinforcement learning ----------------------------------------------------------------------------------------------

LONG, HIGH, PATIENCE, FALL, WIND = 8, 4, 60, -10.0, 0.3


def qlearning(config: Config, seed: int) -> Iterator[float]:
    """Walk along a cliff, against wind, from one end to the other. A step costs 1, a fall 10 and the way back to the start."""
    rng = random.Random(seed)
    method, rate, discount = config["method"]["name"], config["alpha"], 1 - config["far"]
    q = [[config["hope"]] * 4 for _ in range(LONG * HIGH)]

    def move(place: int, action: int) -> tuple[int, float, bool]:
        column, row = place % LONG, place // LONG
        if rng.random() < WIND:
            action = 3
        column = min(max(column + (1, -1, 0, 0)[action], 0), LONG - 1)
        row = min(max(row + (0, 0, 1, -1)[action], 0), HIGH - 1)
        if row == 0 and 0 < column < LONG - 1:
            return 0, FALL, False
        return column + LONG * row, -1.0, row == 0 and column == LONG - 1

    def greedy(place: int) -> int:
        values = q[place]
        return values.index(max(values))

    def act(place: int, epsilon: float) -> int:
        return rng.randrange(4) if rng.random() < epsilon else greedy(place)

    def value(place: int, following: int, epsilon: float) -> float:
        best, mean = max(q[place]), sum(q[place]) / 4
        if method == "expected":
            return (1 - epsilon) * best + epsilon * mean
        if method == "soft":
            return float(best - config["method"]["caution"] * (best - mean))
        return best if method == "q" else q[place][following]

    def play(epsilon: float, learn: bool) -> float:
        place, total, action = 0, 0.0, act(0, epsilon)
        for _ in range(PATIENCE):
            there, reward, done = move(place, action)
            following = act(there, epsilon)
            total += reward
            if learn:
                goal = reward + (0.0 if done else discount * value(there, following, epsilon))
                q[place][action] += rate * (goal - q[place][action])
            if done:
                break
            place, action = there, following
        return total

    epsilon = config["epsilon"]
    for _ in range(30):
        for _ in range(6):
            play(epsilon, True)
            epsilon *= config["decay"]
            rate *= config["cooling"]
        yield sum(play(0.0, False) for _ in range(30)) / 30


QLEARNING = {
    "method": choice(
        [{"name": "q"}, {"name": "sarsa"}, {"name": "expected"}, {"name": "soft", "caution": uniform(0, 1)}]
    ),
    "alpha": loguniform(0.01, 1.0),
    "far": loguniform(1e-3, 0.5),
    "epsilon": loguniform(0.01, 1.0),
    "decay": uniform(0.97, 1.0),
    "cooling": uniform(0.99, 1.0),
    "hope": uniform(-60, 10),
}

TRAININGS = {
    "mlp/digits": Training("min", 27, 300, PERCEPTRON, perceptron),
    "boosting/friedman": Training("min", 40, 300, BOOSTING, boosting(friedman, 900)),
    "boosting/diabetes": Training("min", 40, 300, BOOSTING, boosting(diabetes, 280)),
    "linear/generated": Training("max", 30, 600, LINEAR, linear(generated, 1000)),
    "linear/digits": Training("max", 30, 600, LINEAR, linear(noisy_digits, 900)),
    "qlearning/cliff": Training("max", 30, 400, QLEARNING, qlearning),
}


def record(name: str, count: int, folder: Path) -> None:
    training = TRAININGS[name]
    space, rng = Space.from_python(training.space), random.Random(name)
    points, values, seconds = [], np.full((count, training.reports), np.nan), np.empty(count)
    for k in range(count):
        params = space.sample(rng)
        points.append(space.to_unit(params))
        begin = time.process_time()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                for report, value in enumerate(training.curve(space.config(params), k)):
                    values[k, report] = value
            except (ValueError, FloatingPointError):
                pass  # it diverged, which `save` marks from the report on that is missing
        seconds[k] = time.process_time() - begin
        if (k + 1) % 100 == 0:
            print(f"{name}: {k + 1} of {count}, {seconds[: k + 1].sum():.0f} s", file=sys.stderr, flush=True)
    file = save(folder, name, training.mode, space, points, values, seconds)
    print(f"{name}: {file.name}, {file.stat().st_size // 1024} KiB, {seconds.sum():.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRAININGS)}")
    parser.add_argument("--count", type=int, help="of configurations")
    parser.add_argument("--into", type=Path, default=RECORDED)
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in TRAININGS]:
        parser.error(f"no such problem: {', '.join(unknown)}; there are {', '.join(TRAININGS)}")
    args.into.mkdir(exist_ok=True, parents=True)
    for name in args.names or TRAININGS:
        record(name, args.count or TRAININGS[name].count, args.into)


if __name__ == "__main__":
    main()
