"""Write `tuner/client/synchronous.py` from `tuner/client/asynchronous.py`: ``python -m tuner.client.generate``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("asynchronous.py")
TARGET = Path(__file__).with_name("synchronous.py")

CHANGES = (
    (
        r"\A\"\"\".*?\"\"\"",
        '"""The client of a tuner service.\n\nGenerated from `tuner/client/asynchronous.py`; do not edit it.\n"""',
    ),
    (r"asyncio\.sleep", "time.sleep"),
    (r"import asyncio\n", ""),
    (r"\baclosing\b", "closing"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"connect_async", "connect"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|read|iter_bytes|iter_text)\(", r"\1("),
    (r"\bAsyncGenerator\[Event\]", "Generator[Event]"),
    (r"\bAsync(Generator|Iterator)", r"\1"),
    (r"\bAsync(Client|ExperimentHandle|TrialHandle|BaseTransport)", r"\1"),
)
"""Regular expressions and their replacements, which turn the source of the asynchronous client into the synchronous one."""


def generated() -> str:
    """Return the source of the synchronous client, formatted by ruff."""
    text = SOURCE.read_text(encoding="utf-8")
    for pattern, replacement in CHANGES:
        text = re.sub(pattern, replacement, text, count=0, flags=re.DOTALL if pattern.startswith(r"\A") else 0)
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        run = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
