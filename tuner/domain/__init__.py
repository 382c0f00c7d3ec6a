"""Experiments, trials, segments, events and decisions. This package is pure and uses only the standard library."""
