"""What a script or a notebook calls: `tuner.run` and its result. `import tuner` loads it on first use."""
