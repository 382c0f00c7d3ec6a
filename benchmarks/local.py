"""Measure searches of short trials, each in a new process: `tuner.run` with the local executor, and Optuna with `n_jobs=2`.

    python -m benchmarks.local [--trials 50] [--rounds 3] [--searches default,tpe] [--kinds trivial,boosting,lightgbm]

Prints one JSON line. Every search is a new Python process with a new home; the times are those from its start to its end.
`trivial` trials compute one number. `boosting` trials are five folds of scikit-learn's HistGradientBoostingClassifier on 1,000
rows. `lightgbm` trials are five folds of LightGBM on the same rows; they run only on request, because they need `pip install
lightgbm`. The two take turns, so that both see the same load of the machine. `cpu_s`, the CPU time of all processes, depends
less on the load; it leaves out processes that outlive their parents. `phases` lists the phases of a trivial search, in seconds
since the start of its process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

TRIVIAL = """
def objective(config):
    return {"loss": (config["x"] - 0.3) ** 2}
"""

BOOSTING = """
def objective(config):
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_score

    data, target = make_classification(n_samples=1000, n_features=20, random_state=0)
    model = HistGradientBoostingClassifier(learning_rate=config["x"], max_iter=30, random_state=0)
    return {"loss": 1.0 - float(cross_val_score(model, data, target, cv=5).mean())}
"""

LIGHTGBM = """
def objective(config):
    import lightgbm
    from sklearn.datasets import make_classification
    from sklearn.model_selection import StratifiedKFold

    data, target = make_classification(n_samples=1000, n_features=20, random_state=0)
    errors = []
    for train, test in StratifiedKFold(5).split(data, target):
        params = {"objective": "binary", "learning_rate": config["x"], "num_threads": 1, "verbose": -1}
        model = lightgbm.train(params, lightgbm.Dataset(data[train], target[train]), num_boost_round=30)
        errors.append(float(((model.predict(data[test]) > 0.5) != target[test]).mean()))
    return {"loss": sum(errors) / len(errors)}
"""

TUNER = """
import json, os, sys, time
began = float(os.environ["BEGAN"])
import tuner
tuner.run
imported = time.time() - began
{objective}
if __name__ == "__main__":
    result = tuner.run(
        objective, {{"x": tuner.uniform(0.01, 1)}}, metric="loss", mode="min", num_samples={trials}, verbose=0, executor="local",
        **{options}
    )
    assert result.state == "completed", result.error
    ended = time.time() - began
    starts = [trial.history[0]["time"] for trial in result.trials]
    ends = [trial.history[-1]["time"] for trial in result.trials]
    print(json.dumps({{
        "imported": imported, "first report": min(starts) - began, "last report": max(ends) - began, "returned": ended,
        "ray": "ray" in sys.modules,
    }}))
"""

OPTUNA = """
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
{objective}
if __name__ == "__main__":
    study = optuna.create_study(direction="minimize")
    study.optimize(lambda trial: objective({{"x": trial.suggest_float("x", 0.01, 1)}})["loss"], n_trials={trials}, n_jobs=2)
    print("{{}}")
"""


def cold(script: str) -> tuple[float, float, dict[str, Any]]:
    """Run a script in a new process with a new home. Return its time, its CPU seconds, and the JSON that it prints."""
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        environment = {**os.environ, "TUNER_HOME": os.path.join(home, "home"), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), environment.get("PYTHONPATH", "")])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.time()
        done = subprocess.run(
            [sys.executable, path],
            capture_output=True,
            text=True,
            env={**environment, "BEGAN": str(began)},
            check=False,
        )
        took = time.time() - began
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return took, cpu, json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--searches", default="default,tpe")
    parser.add_argument("--kinds", default="trivial,boosting")
    given = parser.parse_args()
    searches: dict[str, dict[str, Any]] = {"default": {}, "tpe": {"search_alg": "tpe", "scheduler": "fifo"}}
    found: dict[str, Any] = {"trials": given.trials, "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    for kind, objective in (("trivial", TRIVIAL), ("boosting", BOOSTING), ("lightgbm", LIGHTGBM)):
        if kind not in given.kinds.split(","):
            continue
        times: dict[str, list[float]] = {}
        cpus: dict[str, float] = {}
        for _ in range(given.rounds):
            took, cpus["optuna"], _ = cold(OPTUNA.format(objective=objective, trials=given.trials))
            times.setdefault("optuna", []).append(took)
            for search in given.searches.split(","):
                script = TUNER.format(objective=objective, trials=given.trials, options=repr(searches[search]))
                took, cpus[search], phases = cold(script)
                times.setdefault(search, []).append(took)
                if kind == "trivial":
                    found["phases"] = {name: round(value, 2) for name, value in phases.items()}
        best = {name: round(min(each), 2) for name, each in times.items()}
        middle = {name: round(statistics.median(each), 2) for name, each in times.items()}
        ratio = {name: round(min(each) / min(times["optuna"]), 2) for name, each in times.items() if name != "optuna"}
        used = {name: round(cpu, 2) for name, cpu in cpus.items()}
        found[kind] = {"fastest_s": best, "median_s": middle, "of_optuna": ratio, "cpu_s": used}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
