"""A walk through the Python client. Run `tuner serve` in one terminal, and this in another."""

from __future__ import annotations

import sys

import tuner

SPEC = {
    "name": "walk",
    "entrypoint": "tuner.examples.digits:train",
    "space": {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32, 64]},
    },
    "metric": "accuracy",
    "mode": "max",
    "num_samples": 8,
    "search": {"type": "random"},
    "scheduler": {"type": "asha", "max_t": 9},
}


def main(address: str) -> None:
    with tuner.connect(address) as client:
        for note in client.dry_run(SPEC).notes:
            print("note:", note)

        search = client.create(SPEC)
        for changes in search.follow():  # until it has ended
            for decision in changes.decisions:
                print(f"trial {decision.trial_number}: {decision.kind}: {decision.reason}")

        best = search.best()
        assert best is not None
        print(f"best accuracy {best.value:.3f} with {best.params}")
        print(search.dataframe()[["trial", "state", "iterations", "best_value", "config/lr", "config/width"]])


if __name__ == "__main__":
    main(*sys.argv[1:] or ["http://localhost:8000"])
