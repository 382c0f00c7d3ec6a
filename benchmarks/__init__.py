"""Programs that measure tuner, most of them beside another library.

Each is a module, and `python -m benchmarks` runs all. The processes that they start may keep the bytecode of what they import,
even if the environment forbids it. With PYTHONDONTWRITEBYTECODE, and packages that were installed without bytecode, each process
would compile all its modules, which takes more CPU than the rest of its start.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
