"""Answer questions about experiments: forecasts, replays, timelines, the lineage of weights. Nothing is changed."""
