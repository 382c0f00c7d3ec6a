"""A Ray cluster whose nodes are network namespaces: a head, and nodes that come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.nodes.network import Network, remove_folder

ROOT = Path(__file__).parents[2]
PORT = 6379
_START_S = 90.0


class Cluster:
    """A Ray cluster on the nodes of a `Network`. Node 0 is the head. Leave the `with` block to remove everything.

    environment: variables for all nodes and scripts, such as Ray's settings.
    """

    def __init__(self, nodes: int, environment: Mapping[str, str] | None = None) -> None:
        self.network = Network(nodes)
        self.folder = Path(tempfile.mkdtemp(prefix="tn"))  # short, since it contains Unix sockets
        self.home = self.folder / "home"
        self.home.mkdir()
        self.environment = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "HOME": str(self.home),
            "TUNER_HOME": str(self.folder / "tuner"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }

    def __enter__(self) -> Cluster:
        try:
            self.network.__enter__()
        except BaseException:
            remove_folder(self.folder)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.network.remove()
        finally:
            remove_folder(self.folder)

    @property
    def address(self) -> str:
        """Return the address of the head."""
        return f"{self.network.addresses[0]}:{PORT}"

    def start_head(self, cpus: float = 0) -> None:
        """Start the head on node 0, and wait until it is up."""
        self._start(0, "--head", f"--port={PORT}", "--include-dashboard=false", f"--num-cpus={cpus:g}")

    def start_node(self, number: int, cpus: float = 1, environment: Mapping[str, str] | None = None) -> None:
        """Start a node, and wait until it is up."""
        self._start(number, f"--address={self.address}", f"--num-cpus={cpus:g}", environment=environment)

    def _start(self, number: int, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "tuner.hosts.ray.ray_start", "start", *arguments]
        own = [f"--node-ip-address={self.network.addresses[number]}", "--disable-usage-stats"]
        done = subprocess.run(
            ["ip", "netns", "exec", self.network.space(number), *command, *own, f"--temp-dir={self.folder}/{number}"],
            env={**os.environ, **self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_START_S,
        )
        if done.returncode:
            raise RuntimeError(f"node {number} did not start: {(done.stdout + done.stderr)[-2000:]}")

    def search(self, name: str, number: int = 0, **config: float | str) -> subprocess.Popen[str]:
        """Start a search of `tests.nodes.searches` on a node. config: what its trials get."""
        given = {"TEST_CONFIG": json.dumps(config)}
        return self.script("-m", "tests.nodes.searches", name, number=number, environment=given)

    def script(
        self, *arguments: str, number: int = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a Python process on a node, which writes to the file `output`. It ends with the cluster."""
        with open(self.output, "a") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.network.space(number), sys.executable, *arguments],
                env={**os.environ, **self.environment, "RAY_ADDRESS": self.address, **(environment or {})},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def output(self) -> Path:
        """Return the file with the output of all scripts."""
        return self.folder / "output"

    def disk(self, number: int) -> Path:
        """Return the folder that stands for the disk of a node."""
        return self.folder / f"disk{number}"
