"""Store curves: the names of metrics, the points, and buckets that summarize points at several resolutions."""
