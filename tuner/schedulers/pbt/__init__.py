"""Population based training: `scheduler` decides who copies whom, `explore` changes the copied configuration.

`pb2` is the variant in which the numbers are chosen by a model, which is in `bandit`.
"""

from tuner.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining"]
