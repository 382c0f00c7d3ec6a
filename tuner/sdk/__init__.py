"""The functions that a script or a notebook calls: `tuner.run` and its result. `import tuner` loads them on first use."""
