"""Record what HpBandSter, the reference implementation of BOHB, does with given results: `tests/fixtures/hpbandster.json`.

    pip install "numpy<2" "ConfigSpace<1" statsmodels Pyro4 serpent && pip install --no-deps hpbandster==0.7.4
    python tests/search/record_hpbandster.py     # in an environment of its own

It stores the results, the bandwidths and densities of its two kernel densities, and the proposals of 400 asks.
"""

import json
import logging
import sys
import types
from pathlib import Path

sys.modules["netifaces"] = types.ModuleType("netifaces")  # its network code, which is not used here, needs it

import ConfigSpace  # noqa: E402
import numpy as np  # noqa: E402
from hpbandster.optimizers.config_generators.bohb import BOHB  # noqa: E402

logging.disable(logging.CRITICAL)
FILE = Path(__file__).parents[1] / "fixtures" / "hpbandster.json"


def main() -> None:
    space = ConfigSpace.ConfigurationSpace(seed=1)
    space.add_hyperparameters(
        [
            ConfigSpace.UniformFloatHyperparameter("a", 0, 1),
            ConfigSpace.UniformFloatHyperparameter("b", 1e-3, 1, log=True),
            ConfigSpace.CategoricalHyperparameter("c", ["u", "v", "w"]),
        ]
    )
    theirs = BOHB(space, random_fraction=0)
    rng = np.random.default_rng(0)
    results = []
    for budget, count in ((1, 27), (3, 80)):
        for _ in range(count):
            config = {
                "a": float(rng.random()),
                "b": float(10 ** (-3 * rng.random())),
                "c": str(rng.choice(list("uvw"))),
            }
            loss = (config["a"] - 0.3) ** 2 + (np.log10(config["b"]) / 3 + 0.5) ** 2 + 0.03 * (config["c"] != "v")
            loss = float(loss + 0.05 * rng.normal())
            results.append({"budget": budget, "config": config, "loss": loss})
            job = types.SimpleNamespace(
                kwargs={"budget": budget, "config": config}, result={"loss": loss}, exception=None
            )
            theirs.new_result(job)
    names = list(space)
    models = theirs.kde_models[3]
    at = [[float(rng.random()) for _ in range(2)] + [int(rng.integers(3))] for _ in range(20)]
    np.random.seed(0)
    proposals = [theirs.get_config(3)[0] for _ in range(400)]
    data = {
        "names": names,
        "results": results,
        "at": at,
        **{kind: {"bandwidth": m.bw.tolist(), "density": [float(m.pdf(x)) for x in at]} for kind, m in models.items()},
        "proposals": [[p["a"], p["b"], str(p["c"])] for p in proposals],
    }
    FILE.write_text(json.dumps(data) + "\n")
    print(FILE, FILE.stat().st_size, models["good"].bw, models["bad"].bw)


if __name__ == "__main__":
    main()
