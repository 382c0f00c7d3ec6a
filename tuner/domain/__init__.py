"""Experiments, trials, segments, events and decisions. This package is pure and uses the standard library only."""
