"""Training functions that the demo, the docs and the tests run. They are ordinary user code."""
