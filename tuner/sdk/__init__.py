"""What a script or a notebook calls: `tuner.run` and its result. `import tuner` loads none of it before it is used."""
