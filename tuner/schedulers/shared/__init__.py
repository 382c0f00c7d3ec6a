"""Code that several schedulers share: rung levels in exact arithmetic, and phrases for reasons."""
