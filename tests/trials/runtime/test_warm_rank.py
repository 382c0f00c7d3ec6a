"""A rank that runs one segment after another, in a process of its own and without a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

OF_THE_USER = """
import gc, logging, multiprocessing.util, os, sys, threading
import torch
import tuner

rarely = gc.get_threshold()[0]

torch.backends.cudnn.conv.fp32_precision = "ieee"  # makes an older setting unreadable
torch.backends.cudnn.benchmark = True
multiprocessing.set_start_method("spawn")
sys.setrecursionlimit(5000)
logger = logging.getLogger("mine")
logger.addHandler(logging.StreamHandler(sys.stdout))

def train(config):
    multiprocessing.set_start_method("fork", force=True)
    print(torch.backends.cudnn.benchmark, sys.getrecursionlimit())
    logger.warning("logged")
    torch.backends.cudnn.benchmark = False
    sys.setrecursionlimit(4000)
    if config.get("breaks"):
        setattr(sys, config["breaks"], None)

def starts_by(config):
    print(multiprocessing.get_start_method(), rarely > gc.get_threshold()[0])  # garbage is collected rarely during imports

ended = __file__ + ".ended"

def opened(number):
    multiprocessing.util.Finalize(None, open, (ended, "w"), exitpriority=0)  # not called if the process is killed

def leaves(config):
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork", "worker_init_fn": opened}
    loader = torch.utils.data.DataLoader(range(4), **options)
    list(loader)
    tuner.report({"loss": 1.0})

def loaded(config):
    print(os.path.exists(ended))
"""

RUNS = """
import os, sys, threading
from pathlib import Path

import torch

from tests.trials.conftest import Launches
from tuner.domain.segments import Verdict
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.worker import Rank

folder = Path(sys.argv[1])
used = []
torch.cuda.is_available = lambda: {gpu}
rendezvous.take_device = lambda assignment: used.append((threading.current_thread().name, assignment.devices))
launches = Launches()
launches.folder = folder

class Driver:
    def ask(self, question, *arguments, patience_s=0.0):
        return Verdict(action="stop", reason="it is worse than the others") if question == "report" else None

rank = Rank(Driver(), wants_torch={torch_first})
rank.hello(False)
assignment = RankAssignment(
    rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nodes=1, gpus={gpus}, devices={devices},
    channel_address=None, token=b"", backend="gloo",
)
for entrypoint, params in {runs}:
    launch = launches.launch(entrypoint, params=params)
    problem = rank.prepare(launch, assignment, None)
    assignment = None
    if not isinstance(problem, int):
        print(problem)
        break
    result = rank.train()
    log = (folder / "logs" / launch.segment_id / "rank0.log").read_text().split("\\n")
    print(result.kind, *filter(None, log), result.error.traceback if result.error else "", sep="|")
    rank.reset()
print(used, flush=True)
os._exit(0)
"""


def run(tmp_path: Path, *runs: tuple[str, dict[str, str]], gpu: bool = False, torch_first: bool = False) -> list[str]:
    """Run these (entrypoint, config) on one rank. Return a line for each with what it printed, and the calls of `take_device`."""
    (tmp_path / "of_the_user.py").write_text(OF_THE_USER)
    script = RUNS.format(
        gpu=gpu, gpus=("4", "6") if gpu else (), devices=(1,) if gpu else (), runs=runs, torch_first=torch_first
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=200, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("torch_first", [False, True])
def test_what_the_users_module_sets_stays_and_what_a_trial_sets_does_not(tmp_path: Path, torch_first: bool) -> None:
    """Some ranks import torch before the user's module, and others after it."""
    train = ("of_the_user:train", {})
    found = run(tmp_path, train, train, ("of_the_user:starts_by", {}), torch_first=torch_first)
    assert found == ["returned|True 5000|logged|"] * 2 + ["returned|spawn True|", "[]"]


def test_the_device_of_the_rank_is_the_current_one_of_the_thread_that_trains(tmp_path: Path) -> None:
    """The current device belongs to a thread, and the process group is set up on another one."""
    *_, used = run(tmp_path, ("of_the_user:train", {}), gpu=True)
    assert "('train', (1,))" in used


def test_a_data_loader_of_a_trial_that_was_stopped_stops_its_processes_itself(tmp_path: Path) -> None:
    """They lived on, or were killed after 5 s: a garbage collection closes the queues of a loader before it frees the loader."""
    found = run(tmp_path, ("of_the_user:leaves", {}), ("of_the_user:loaded", {}))
    assert found == ["left|", "returned|True|", "[]"]


@pytest.mark.parametrize("broken", ["path", "meta_path"])
def test_a_process_that_cannot_be_cleaned_up_is_not_used_again(tmp_path: Path, broken: str) -> None:
    first, second, _ = run(tmp_path, ("of_the_user:train", {"breaks": broken}), ("of_the_user:train", {}))
    assert first == "returned|True 5000|logged|"
    assert second.startswith("NotReusable(")
    assert "its clean-up failed: " in second
    assert "'NoneType'" in second
