"""RLlib's PPO as a trainable, under population based training. RLlib saves and loads its own checkpoints.

Needs `pip install 'ray[rllib]'`.

python examples/rllib_ppo.py
"""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPO

import tuner

RETURN = "env_runners/episode_return_mean"
MUTATIONS = {"lr": tuner.loguniform(1e-5, 1e-2), "clip_param": tuner.uniform(0.05, 0.4)}
SPACE = {
    **MUTATIONS,
    "env": "CartPole-v1",
    "num_env_runners": 0,  # the trial's process plays the episodes itself
    "train_batch_size_per_learner": 1000,
    "num_epochs": 6,
}


def main(**options: Any) -> tuner.Result:
    return tuner.run(
        PPO,
        SPACE,
        metric=RETURN,
        mode="max",
        scheduler=tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations=MUTATIONS),
        **{"num_samples": 4, "max_t": 9, **options},
    )


if __name__ == "__main__":
    result = main()
    print(result)
    for entry in result.schedule():
        print(f"from iteration {entry['iteration']}: {entry['config']}")
