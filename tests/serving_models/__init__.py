"""Tests of `tuner.serving`. The module `tests/serving.py` is about `tuner serve`."""
