"""Tests of `tuner.serving`. The module `tests/services.py` is about `tuner serve`."""
