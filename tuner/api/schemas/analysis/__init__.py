"""The types of answers about experiments: curves, forecasts, replays, timelines, lineage, neighbors."""
