"""Population based training: `scheduler` decides who copies whom, `explore` changes the copied configuration."""

from tuner.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining"]
