"""Population based training: `scheduler` decides which member copies which, `explore` changes the copied configuration.

`pb2` is the variant in which a model chooses the numbers. The model is in `bandit`.
"""

from tuner.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining"]
