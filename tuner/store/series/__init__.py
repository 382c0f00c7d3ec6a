"""Curves: names of metrics, points, and buckets of points at several resolutions."""
