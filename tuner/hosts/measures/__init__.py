"""The logs of ranks, their use of resources, and the host's own metrics: what a driver host stores and measures."""
