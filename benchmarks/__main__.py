"""All figures of docs/benchmarks.md, one JSON line each: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Modules that print no figures.
HELPERS = {
    "peers",
    "contenders",
    "learning_curves",
    "record_curves",
    "page_data",
    "page_chromium",
    "stub_ranks",
    "optuna_page",
}


def main() -> int:
    known = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_") and p.stem not in HELPERS)
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, f"The names are {', '.join(known)}.", sep="\n\n")
        return 0
    wanted = sys.argv[1:] or known
    if unknown := [name for name in wanted if name not in known]:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"== {name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent).returncode:
            failed.append(name)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
