"""Record the learning curves of `benchmarks/curves`: real small trainings on data that ships with scikit-learn or is generated.

    python -m benchmarks.record_curves [NAME ...] [--count 300] [--into benchmarks/curves]

Each problem is trained with random configurations to the end, each with its own seed, on one core. Nothing is smoothed, so the
curves have the noise of the seeds, of small validation sets and of returns. The problems differ in kind:

mlp/digits          a multilayer perceptron in torch; branches for the optimizer; validation loss by epoch
boosting/friedman   histogram gradient boosting on Friedman's first function with noise; validation error by rounds
boosting/diabetes   the same on 442 patients, where most of the target is noise
linear/generated    linear models under stochastic gradient descent, with half of the features useless; accuracy by epoch
linear/digits       the same on digits with noise added
cnn/digits          a small convolutional network, with or without shifted images; validation accuracy by epoch
transformer/text    a small transformer on generated text, with branches for the schedule; validation loss by steps
parity/three        a multilayer perceptron that learns the parity of three of twenty bits: most configurations never do better
                    than guessing, which has a loss of ln 2; validation loss by epoch
qlearning/cliff     tabular reinforcement learning on a windy cliff; mean return, which goes up and down, by episodes
policy/cartpole     a policy gradient that balances a pole; branches for the critic; steps until it falls, which go up and down
"""

from __future__ import annotations

import argparse
import math
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
    count: int  # number of configurations
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


# -- a convolutional network ---------------------------------------------------------------------------------------------


def convolutional(config: Config, seed: int) -> Iterator[float]:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    inputs = torch.tensor(x[order].reshape(-1, 1, 8, 8) / 16 - 0.3, dtype=torch.float32)
    labels = torch.tensor(y[order])
    count, epochs = 200, 12
    held = slice(count, count + 300)
    blocks: list[nn.Module] = []
    wide = 1
    for block in range(config["blocks"]):
        channels = config["channels"] * 2**block
        blocks.append(nn.Conv2d(wide, channels, config["kernel"], padding="same"))
        if config["norm"] == "batch":
            blocks.append(nn.BatchNorm2d(channels))
        elif config["norm"] == "group":
            blocks.append(nn.GroupNorm(2, channels))
        blocks += [nn.ReLU(), nn.MaxPool2d(2) if config["pool"] == "max" else nn.AvgPool2d(2)]
        wide = channels
    side = 8 // 2 ** config["blocks"]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Dropout(config["dropout"]), nn.Linear(wide * side * side, 10))
    chosen, rate = config["optimizer"], config["lr"]
    if chosen["name"] == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), rate, momentum=chosen["momentum"], weight_decay=config["decay"]
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), rate / 10, weight_decay=10 * config["decay"])
    loss = nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(count).split(config["batch"]):
            images = inputs[:count][batch]
            if config["shift"]:
                down, right = torch.randint(-config["shift"], config["shift"] + 1, (2,)).tolist()
                images = images.roll((down, right), (2, 3))
            optimizer.zero_grad()
            loss(model(images), labels[:count][batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            yield float((model(inputs[held]).argmax(1) == labels[held]).float().mean())


CONVOLUTIONAL = {
    "lr": loguniform(1e-2, 3.0),
    "batch": lograndint(10, 51),
    "blocks": randint(1, 4),
    "channels": choice([2, 4, 8]),
    "kernel": choice([3, 5]),
    "norm": choice(["none", "batch", "group"]),
    "pool": choice(["max", "mean"]),
    "dropout": uniform(0, 0.8),
    "shift": choice([0, 1, 2]),
    "decay": loguniform(1e-6, 1e-1),
    "optimizer": choice([{"name": "sgd", "momentum": uniform(0, 0.99)}, {"name": "adamw"}]),
}


# -- a plateau -----------------------------------------------------------------------------------------------------------

BITS, COUNTED = 20, 3


def parity(config: Config, seed: int) -> Iterator[float]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    bits = torch.tensor(np.random.default_rng(0).integers(0, 2, (1500, BITS)) * 2.0 - 1, dtype=torch.float32)
    labels = (bits[:, :COUNTED].prod(1) > 0).float()
    train, held = slice(0, 800), slice(800, None)
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[config["activation"]]
    layers: list[nn.Module] = []
    wide = BITS
    for _ in range(config["layers"]):
        layers += [nn.Linear(wide, config["units"]), activation(), nn.Dropout(config["dropout"])]
        wide = config["units"]
    model = nn.Sequential(*layers, nn.Linear(wide, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(
        model.parameters(), config["lr"], momentum=config["momentum"], weight_decay=config["decay"]
    )
    loss = nn.BCEWithLogitsLoss()
    for _ in range(27):
        model.train()
        for batch in torch.randperm(800).split(config["batch"]):
            optimizer.zero_grad()
            loss(model(bits[train][batch]), labels[train][batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            yield float(loss(model(bits[held]), labels[held]))


PARITY = {
    "lr": loguniform(1e-3, 1.0),
    "momentum": uniform(0, 0.95),
    "decay": loguniform(1e-6, 3e-2),
    "units": lograndint(4, 129),
    "layers": randint(1, 4),
    "dropout": uniform(0, 0.6),
    "activation": choice(["relu", "tanh"]),
    "batch": lograndint(16, 201),
}


# -- a transformer -------------------------------------------------------------------------------------------------------

LETTERS, PIECE = 12, 16


def text(letters: int) -> Any:
    """Return generated text as numbers below LETTERS: words of a small vocabulary. Some come twice, first between brackets."""
    rng = np.random.default_rng(2)
    words = [rng.integers(3, LETTERS, rng.integers(2, 5)) for _ in range(20)]
    follows = rng.dirichlet(np.full(len(words), 0.2), len(words))
    out: list[int] = []
    word = 0
    while len(out) < letters:
        word = int(rng.choice(len(words), p=follows[word]))
        said = [*words[word].tolist(), 2]
        out += [0, *said[:-1], 1, *said] if rng.random() < 0.3 else said
    return np.array(out[:letters])


def transformer(config: Config, seed: int) -> Iterator[float]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    whole = torch.tensor(text(24_000))
    train, held = whole[:16_000], whole[16_000:].unfold(0, PIECE + 1, PIECE + 1)[:64]
    wide = config["heads"] * config["width"]
    layer = nn.TransformerEncoderLayer(
        wide,
        config["heads"],
        2 * wide,
        config["dropout"],
        config["activation"],
        batch_first=True,
        norm_first=config["norm_first"],
    )
    embed, places = nn.Embedding(LETTERS, wide), nn.Embedding(PIECE, wide)
    body = nn.TransformerEncoder(layer, config["layers"], enable_nested_tensor=False)
    head = nn.Linear(wide, LETTERS)
    parts = nn.ModuleList([embed, places, body, head])
    mask = nn.Transformer.generate_square_subsequent_mask(PIECE)

    def loss(pieces: Any) -> Any:
        x = embed(pieces[:, :-1]) + places.weight
        out = head(body(x, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(out.flatten(0, 1), pieces[:, 1:].flatten())

    optimizer = torch.optim.AdamW(
        parts.parameters(), config["lr"], betas=(config["beta1"], config["beta2"]), weight_decay=config["decay"]
    )
    schedule, reports, steps = config["schedule"], 15, 6
    for report in range(reports):
        parts.train()
        for step in range(steps):
            done = (report * steps + step) / (reports * steps)
            factor = 1.0
            if schedule["name"] == "cosine":
                factor = 0.5 * (1 + np.cos(np.pi * done))
            elif schedule["name"] == "warmup":
                factor = min(1.0, (done + 0.005) / schedule["share"]) * (1 - done)
            for group in optimizer.param_groups:
                group["lr"] = config["lr"] * factor
            begins = torch.randint(0, len(train) - PIECE - 1, (config["batch"],))
            optimizer.zero_grad()
            value = loss(torch.stack([train[b : b + PIECE + 1] for b in begins.tolist()]))
            value.backward()
            nn.utils.clip_grad_norm_(parts.parameters(), config["clip"])
            optimizer.step()
        parts.eval()
        with torch.no_grad():
            yield float(loss(held))


TRANSFORMER = {
    "lr": loguniform(3e-4, 1e-1),
    "batch": lograndint(4, 17),
    "layers": randint(1, 3),
    "heads": choice([1, 2, 4]),
    "width": choice([4, 8, 12]),
    "dropout": uniform(0, 0.5),
    "activation": choice(["relu", "gelu"]),
    "norm_first": choice([False, True]),
    "beta1": uniform(0.5, 0.98),
    "beta2": uniform(0.9, 0.999),
    "decay": loguniform(1e-4, 1.0),
    "clip": loguniform(0.1, 10.0),
    "schedule": choice([{"name": "constant"}, {"name": "cosine"}, {"name": "warmup", "share": uniform(0.02, 0.4)}]),
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

    return make_friedman1(1500, 10, noise=1.0, random_state=0)


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

BALANCED, GUST, EPISODES, SHOWN = 1000, 12.0, 5, 5
# The limits of position, speed, angle and turning. The pole has fallen if the position or the angle is beyond its limit.
REACH = (2.4, 3.0, 0.21, 3.0)


def pushed(state: list[float], force: float) -> list[float]:
    """Return the state of the cart and its pole a fiftieth of a second later."""
    position, speed, angle, turning = state
    sine, cosine = math.sin(angle), math.cos(angle)
    inertia = (force + 0.05 * turning * turning * sine) / 1.1
    spin = (9.8 * sine - cosine * inertia) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    drift = inertia - 0.05 * spin * cosine / 1.1
    return [position + 0.02 * speed, speed + 0.02 * drift, angle + 0.02 * turning, turning + 0.02 * spin]


def policy(config: Config, seed: int) -> Iterator[float]:
    """Balance a pole in gusts of wind (Barto, Sutton and Anderson, 1983) by pushing left or right, as a logistic model says."""
    rng = random.Random(seed)
    weights = [rng.gauss(0, config["spread"]) for _ in range(4)]
    worth, typical = [0.0] * 5, 0.0  # what the critic expects: a linear function of squares, or the same everywhere
    critic, rate, discount = config["critic"], config["rate"], 1 - config["far"]

    def play() -> list[tuple[list[float], float]]:
        """Return (state, 1 or 0 for a push to the right or the left, minus its probability) of each step."""
        state = [rng.uniform(-0.05, 0.05) for _ in range(4)]
        steps: list[tuple[list[float], float]] = []
        while len(steps) < BALANCED and abs(state[0]) < REACH[0] and abs(state[2]) < REACH[2]:
            scaled = [value / reach for value, reach in zip(state, REACH, strict=True)]
            z = sum(w * v for w, v in zip(weights, scaled, strict=True))
            probability = 1 / (1 + math.exp(-min(max(z, -30.0), 30.0)))
            right = rng.random() < probability
            steps.append((scaled, right - probability))
            state = pushed(state, (10.0 if right else -10.0) + rng.gauss(0, GUST))
        return steps

    def learn(steps: list[tuple[list[float], float]]) -> None:
        nonlocal typical
        total, change = 0.0, [0.0] * 4
        for scaled, surprise in reversed(steps):
            total = 1 + discount * total
            expected = typical
            if critic["name"] == "linear":
                squares = [1.0, *(v * v for v in scaled)]
                expected = sum(w * v for w, v in zip(worth, squares, strict=True))
                error = critic["rate"] * (total - expected) / len(steps)
                worth[:] = [w + error * v for w, v in zip(worth, squares, strict=True)]
            elif critic["name"] == "mean":
                typical += critic["rate"] * (total - typical) / len(steps)
            change = [c + (total - expected) * surprise * v for c, v in zip(change, scaled, strict=True)]
        length = len(steps) if config["average"] else 1
        weights[:] = [(1 - config["decay"]) * w + rate * c / length for w, c in zip(weights, change, strict=True)]

    for _ in range(30):
        for _ in range(EPISODES):
            learn(play())
            rate *= config["cooling"]
        yield sum(len(play()) for _ in range(SHOWN)) / SHOWN


POLICY = {
    "rate": loguniform(1e-4, 1.0),
    "cooling": uniform(0.98, 1.0),
    "far": loguniform(1e-3, 0.5),
    "spread": loguniform(0.01, 3.0),
    "decay": loguniform(1e-5, 0.1),
    "average": choice([False, True]),
    "critic": choice(
        [
            {"name": "none"},
            {"name": "mean", "rate": loguniform(1e-3, 1.0)},
            {"name": "linear", "rate": loguniform(1e-3, 1.0)},
        ]
    ),
}

TRAININGS = {
    "mlp/digits": Training("min", 27, 300, PERCEPTRON, perceptron),
    "cnn/digits": Training("max", 12, 300, CONVOLUTIONAL, convolutional),
    "transformer/text": Training("min", 15, 300, TRANSFORMER, transformer),
    "boosting/friedman": Training("min", 40, 300, BOOSTING, boosting(friedman, 900)),
    "boosting/diabetes": Training("min", 40, 300, BOOSTING, boosting(diabetes, 280)),
    "linear/generated": Training("max", 30, 600, LINEAR, linear(generated, 1000)),
    "linear/digits": Training("max", 30, 600, LINEAR, linear(noisy_digits, 900)),
    "parity/three": Training("min", 27, 400, PARITY, parity),
    "qlearning/cliff": Training("max", 30, 400, QLEARNING, qlearning),
    "policy/cartpole": Training("max", 30, 400, POLICY, policy),
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
                pass  # it diverged: its missing reports stay NaN, which `save` replaces
        seconds[k] = time.process_time() - begin
        if (k + 1) % 50 == 0:
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
