"""Measure a rank's process: its resource usage, and profiles of its code."""
