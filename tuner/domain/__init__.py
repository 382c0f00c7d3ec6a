"""Pure: what experiments, trials and decisions are. Standard library only."""
