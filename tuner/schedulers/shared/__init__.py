"""What several schedulers use: rung levels in exact arithmetic, and phrases for reasons."""
