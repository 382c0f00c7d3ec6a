"""The model of freeze-thaw: predictions of learning curves, from this experiment's results and from earlier experiments."""
