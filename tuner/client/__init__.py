"""The client of a tuner service: `tuner.connect` and `tuner.connect_async`."""

from __future__ import annotations
