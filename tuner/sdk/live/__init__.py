"""Show a search while it runs: its progress, the output of its ranks, and what Ctrl-C does."""
