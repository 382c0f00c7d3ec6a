"""What experiments, trials, segments, events and decisions are. It is pure and uses the standard library only."""
