"""The server that forks the processes of local trials."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.trials.runtime import local_rank


@pytest.mark.parametrize("options", [(), ("-W", "error")], ids=["as usual", "with all warnings"])
def test_the_server_ends_silently_if_the_script_ends_first(options: tuple[str, ...]) -> None:
    """A script with a mistake in its arguments ends before the server is ready. Its error must be the last thing it prints."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [sys.executable, *options, "-m", "tuner.trials.runtime.local_rank", str(theirs.fileno())]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_in_a_nested_search_is_no_orphan_while_ranks_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that was only forked is the server's, which names the rank of the outer search."""
    monkeypatch.setenv(local_rank._STARTED_BY, "999999")
    child = subprocess.Popen(["sleep", "60"])
    try:
        while not psutil.Process(child.pid).environ():
            pass  # it is empty for a moment while the program is loaded
        assert not local_rank._is_orphan(child.pid, living={1})
        assert local_rank._is_orphan(child.pid, living=set())
        monkeypatch.setenv(local_rank._STARTED_BY, "999998")
        assert local_rank._is_orphan(child.pid, living={1}), "another rank of this server has started it"
    finally:
        child.kill()
        child.wait()


CLOSED = "for number in (0, 1, 2): os.close(number)\n"
MANY = (
    "resource.setrlimit(resource.RLIMIT_NOFILE, (1200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
    "files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]\n"
)


@pytest.mark.parametrize("first", [CLOSED, MANY], ids=["closed streams", "many open files"])
def test_processes_are_forked_for_a_script_with_few_or_many_files(tmp_path: Path, first: str) -> None:
    """A script that is to survive its terminal may be started as `python search.py <&- >&- 2>&-`."""
    code = (
        "import asyncio, os, resource, sys\n"
        f"{first}"
        "from tuner.trials.groups.pools.local_ranks import RankServer\n"
        "server = RankServer(1)\n"
        "async def main():\n"
        "    [rank] = server.adopt()\n"
        "    while rank.pid is None: await asyncio.sleep(0.01)\n"
        "    rank.kill()\n"
        "    status = await asyncio.wait_for(rank.ended, 60)\n"
        "    open(sys.argv[1], 'w').write(str(status))\n"
        "    server.kill()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "status")], timeout=100, check=True)
    assert (tmp_path / "status").read_text() == "-9"
