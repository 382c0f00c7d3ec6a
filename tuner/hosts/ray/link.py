"""Run `tuner.hosts.on_ray.link`, which had this name before.

A service that was started before an update of tuner still starts its child process by this name.
"""

from __future__ import annotations

import importlib

if __name__ == "__main__":
    importlib.import_module("tuner.hosts.on_ray.link").main()
