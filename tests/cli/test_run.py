"""`tuner run` on real Ray: scripts and functions as trials."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import tuner
from tests.services import Service
from tuner.cli.commands import app
from tuner.cli.run import run_status, run_target, workers_of
from tuner.domain.experiment import Limits, Scaling
from tuner.errors import EntrypointError, SpecError
from tuner.hosts.scripts import local_host
from tuner.sdk.run import Result
from tuner.settings import Settings
from tuner.store import Store

ROOT = Path(__file__).resolve().parents[2]

DDP = """
import argparse, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(6):
    x = torch.full((4, 2), dist.get_rank() + 1.0)
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    ranks = torch.ones(1)
    dist.all_reduce(ranks)
    REPORT
dist.destroy_process_group()
"""
PRINTS = 'dist.get_rank() == 0 and print(f"loss={float(total)} ranks={int(ranks)}")'
REPORTS = 'import tuner; tuner.report({"loss": total, "ranks": ranks})'


def run(
    tmp_path: Path,
    text: str,
    arguments: Sequence[str] = (),
    params: Sequence[str] = (),
    pattern: str | None = None,
    **options: Any,
) -> Result:
    path = tmp_path / "train.py"
    path.write_text(text)
    given = {"metric": "loss", "mode": "min", "scheduler": "fifo", "max_t": 6, "verbose": 0, **options}
    return run_target(str(path), arguments, params, pattern, given)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize("report", [pytest.param(PRINTS, marks=pytest.mark.long), REPORTS])
def test_two_ranks_train_with_torch_distributed(tmp_path: Path, report: str) -> None:
    arguments, params = ["--lr", "{lr}"], ["lr=loguniform(1e-4,1e-2)"]
    text = DDP.replace("REPORT", report)
    result = run(tmp_path, text, arguments, params, num_samples=1, num_workers=2)
    assert [trial.error for trial in result.trials] == [None]
    assert [row["ranks"] for row in result.trials[0].history] == [2.0] * 6
    assert result.best_config is not None
    assert 1e-4 <= result.best_config["lr"] <= 1e-2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
def test_the_scheduler_stops_scripts(tmp_path: Path) -> None:
    """Two ranks each: rank 0 prints, so that rank 1, which only sleeps, has to be told."""
    text = """
import os, sys, time
for epoch in range(27):
    if os.environ["RANK"] == "0":
        print(f"epoch {epoch}: {float(sys.argv[1])}")
    time.sleep(0.05)
"""
    result = run(
        tmp_path, text, ["{x}"], ["x=grid_search(1, 2, 3, 4)"], r"epoch \d+: (\S+)", num_workers=2, num_samples=1,
        scheduler="asha", max_t=27, max_concurrent_trials=1,
    )  # fmt: skip
    assert [trial.error for trial in result.trials] == [None] * 4
    lengths = {trial.config["x"]: len(trial.history) for trial in result.trials}
    assert lengths[1] == 27
    assert min(lengths.values()) < 27


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
def test_a_failure_names_the_rank(tmp_path: Path) -> None:
    text = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("rank one is out of luck")
print("loss=1")
time.sleep(600)
"""
    (trial,) = run(tmp_path, text, num_workers=2, num_samples=1, stop_grace_s=2.0).trials
    assert trial.error is not None
    assert "rank 1" in trial.error
    assert "train.py ended with exit status 1" in trial.error
    assert "rank one is out of luck" in trial.error


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
def test_a_retried_script_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """Two ranks with a shard each; rank 1 is killed once, when the driver knows of the checkpoint of iteration 4."""
    text = """
import os, pathlib, signal, sqlite3, sys, time
import tuner
rank, (storage, database), done = os.environ["RANK"], sys.argv[1:], 0
known = "SELECT 1 FROM checkpoint WHERE step = 4 AND state = 'ready' AND uri LIKE ?"
if (checkpoint := tuner.get_checkpoint()) is not None:
    with checkpoint.as_directory() as folder:
        done = int(pathlib.Path(folder, f"done{rank}").read_text())
for i in range(done, 6):
    while i == 4 and done == 0:
        if rank == "1" and sqlite3.connect(database).execute(known, (f"%{storage}%",)).fetchone():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    save = lambda folder: pathlib.Path(folder, f"done{rank}").write_text(str(i + 1))
    tuner.report({"loss": 1 / (i + 1), "from": done}, checkpoint=save)
"""
    storage, policy = str(tmp_path / "storage"), {"frequency": 2}
    arguments = [storage, Settings.from_env().database_url.removeprefix("sqlite:///")]
    result = run(
        tmp_path, text, arguments, num_workers=2, num_samples=1, max_failures=1, storage=storage, checkpoint=policy
    )
    (trial,) = result.trials
    assert trial.error is None
    assert [row["from"] for row in trial.history if row["training_iteration"] == 6] == [4.0]
    assert trial.history[-1]["training_iteration"] == 6


WRITES = """
import pathlib, sys
lr = float(sys.argv[1])
pathlib.Path(sys.argv[2]).write_text(f"weights of {lr}")
print(f"loss={lr}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("working_dir", ["caller", "trial"])
def test_the_files_of_each_trial_are_where_the_docs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, working_dir: str
) -> None:
    """Run trials that all write a file of the same name, at the same time."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    output = "{trial_dir}/model.pt" if working_dir == "caller" else "model.pt"
    options = {"num_samples": 4, "max_t": 1, "executor": "local", "working_dir": working_dir}
    try:
        result = run(tmp_path, WRITES, ["{lr}", output], ["lr=uniform(0,1)"], **options)
    finally:
        local_host.shutdown()  # `tuner.shutdown` would also end the Ray that other tests share
    [said] = re.findall(r"trial 3 are in `~/\.tuner/(\S+)`", (ROOT / "docs" / "scripts.md").read_text())
    for trial in result.trials:
        place = said.replace("EXPERIMENT", result.experiment_id).replace("00003", f"{trial.number:05d}")
        assert (tmp_path / "home" / place / "model.pt").read_text() == f"weights of {trial.best_value}"


@pytest.mark.ray
@pytest.mark.slow
def test_a_function_of_a_file(private_ray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `tuner run` has added the folder of the file, `sys.path` is what the shared Ray was started with."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(private_ray)])
    path = private_ray / "functions_of_a_file.py"
    path.write_text("import beside_it\ndef train(config):\n    return beside_it.FACTOR * config['x']\n")
    path.with_name("beside_it.py").write_text("FACTOR = 3\n")
    options = {"metric": "loss", "mode": "min", "num_samples": 1, "verbose": 0}
    result = run_target(f"{path}:train", [], ["x=choice(7)"], None, options)
    assert result.best_value == 21.0


def test_a_module_runs_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a module that needs its package: the option was unknown, and a script cannot import relatively."""
    package = tmp_path / "package_of_tuner_run"
    package.mkdir()
    (package / "__init__.py").write_text("FACTOR = 3")
    (package / "train.py").write_text("import sys\nfrom . import FACTOR\nprint(f'loss={FACTOR * int(sys.argv[2])}')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    options = ["--param", "x=choice(7)", "--num-samples", "1", "--executor", "local", "--working-dir", "trial"]
    done = CliRunner().invoke(app, ["run", *options, "-m", "package_of_tuner_run.train", "--x", "{x}"])
    assert done.exit_code == 0, done.output
    (found,) = tuner.experiments("package_of_tuner_run.train")
    assert found.best_value == 21.0
    for target, why in (("package_of_tuner_run.no", "there is no module"), ("no_such.train", "cannot be imported")):
        with pytest.raises(EntrypointError, match=f"{why}.*{target.partition('.')[0]}|{target} {why}"):
            run_target(target, [], [], None, {"metric": "loss"}, is_module=True)
    (tmp_path / "script.py").write_text("raise AssertionError('the command ran the script')")
    with pytest.raises(EntrypointError, match="script.py is a file, not the name of a module: leave out -m"):
        run_target("script.py", [], [], None, {"metric": "loss"}, is_module=True)
    with pytest.raises(SpecError, match="-m runs a module of this machine"):
        run_target("package_of_tuner_run.train", [], [], None, {"address": "http://localhost"}, is_module=True)


@pytest.mark.long  # tests/test_running_service.py posts to a service, and test_commands.py sends this spec
@pytest.mark.ray
@pytest.mark.slow
def test_a_script_on_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path, f"sqlite:///{tmp_path / 'tuner.db'}")
    service.start()
    try:
        path = tmp_path / "train.py"
        path.write_text("import sys\nfor i in range(3): print(f'loss={float(sys.argv[1]) / (i + 1)}')")
        monkeypatch.setenv("TUNER_ADDRESS", str(service.client.base_url))
        words = ["run", "--param", "x=choice(3, 6)", "--num-samples", "2", "--max-t", "3", "--scheduler", "fifo"]
        done = CliRunner().invoke(app, [*words, str(path), "{x}"])
        assert done.exit_code == 0, done.output
        assert "completed, 2 trials" in done.output
        rows = service.client.get("/api/v1/experiments").json()["items"]
        assert [row["name"] for row in rows] == ["train"]
    finally:
        service.end()
        service.stop()


def test_a_range_of_workers() -> None:
    assert [workers_of(text) for text in (None, "4", "1-8")] == [None, 4, {"min": 1, "max": 8}]
    for wrong in ("0", "x", "1-", "-8", "1-x"):
        with pytest.raises(SpecError, match="a range such as 1-8"):
            workers_of(wrong)


def test_a_script_is_not_elastic(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('loss: 1')")
    with pytest.raises(SpecError, match="only functions can be elastic trials"):
        run_target(str(script), [], [], None, {"num_workers": {"min": 1, "max": 2}})


def test_wrong_commands_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\{width\} is in the script's arguments, but there is no --param width"):
        run(tmp_path, "", ["--width", "{width}"], ["lr=uniform(0, 1)"])
    with pytest.raises(SpecError, match="--metric-pattern: expected a group"):
        run(tmp_path, "", pattern="(?P<accuracy>.)")
    with pytest.raises(EntrypointError, match="there is no file"):
        run_target("nothing.py", [], [], None, {"metric": "loss"})
    with pytest.raises(EntrypointError, match="there is no file torchrun; begin with the script"):
        run_target("torchrun", ["--nproc_per_node", "2", "train.py"], [], None, {"metric": "loss"})
    with pytest.raises(EntrypointError, match="there is no file"):
        run_target("nothing.py:train", [], [], None, {"metric": "loss"})


def test_options_behind_the_script_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def noted(*given: Any, is_module: bool) -> None:
        seen.append((*given, is_module))
        raise SpecError("enough", "/")

    monkeypatch.setattr("tuner.cli.run.run_target", noted)
    CliRunner().invoke(
        app,
        ["run", "--num-samples", "2", "--param", "lr=uniform(0,1)", "train.py", "--seed", "3", "--lr", "{lr}", "-x"],
    )
    ((target, arguments, params, pattern, options, is_module),) = seen
    assert (target, arguments, params, pattern, is_module) == (
        "train.py",
        ["--seed", "3", "--lr", "{lr}", "-x"],
        ["lr=uniform(0,1)"],
        None,
        False,
    )
    assert options["num_samples"] == 2
    assert "seed" not in options


def test_every_option_of_scaling_and_limits_is_an_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def noted(*given: Any, is_module: bool) -> None:
        seen.append(given[-1])
        raise SpecError("enough", "/")

    monkeypatch.setattr("tuner.cli.run.run_target", noted)
    options = [
        "--use-gpu",
        "--no-reuse-workers",
        "--backend",
        "none",
        "--gpu-hours",
        "2.5",
        "--max-system-failures",
        "3",
    ]
    CliRunner().invoke(app, ["run", *options, "--num-workers", "2", "train.py"])
    assert seen == [
        {
            "use_gpu": True,
            "reuse_workers": False,
            "backend": "none",
            "gpu_hours": 2.5,
            "max_system_failures": 3,
            "num_workers": 2,
            "metric": "loss",
            "mode": "min",
            "verbose": 1,
        }
    ]
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    declared = [*dataclasses.fields(Scaling), *dataclasses.fields(Limits)]
    missing = {option.name for option in declared if f"--{option.name.replace('_', '-')} " not in shown}
    assert missing == {"resources_per_worker"}, "its value is a mapping"
    refused = CliRunner().invoke(app, ["run", "--max-failures", "-1", "train.py"])
    assert (refused.exit_code, "--max-failures" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("state", "best", "status"),
    [
        ("completed", object(), 0),
        ("completed", None, 1),
        ("failed", object(), 1),
        ("cancelled", object(), 1),
        ("paused", object(), 130),
    ],
)
def test_the_exit_status_says_how_the_search_ended(state: str, best: object, status: int) -> None:
    result: Any = SimpleNamespace(state=state, best_trial=best)
    assert run_status(result) == status


class Ended:
    """A result that `tuner resume`, `continue` or `retry` prints."""

    def __init__(self, state: str) -> None:
        self.state, self.best_trial = state, object()

    def __str__(self) -> str:
        return f"\x1b]0;evil {self.state}"

    def add(self, num_samples: int | None) -> Ended:
        return self


@pytest.mark.parametrize("words", [["resume", "mine"], ["continue", "mine"], ["retry", "mine", "0", "1"]])
@pytest.mark.parametrize(("state", "status"), [("completed", 0), ("failed", 1), ("paused", 130)])
def test_each_command_that_runs_a_search_says_how_it_ended(
    words: list[str], state: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: Iterator[Any] = iter([Ended(state), "asked to retry the other one"])
    # first, since this loads the module, which imports the two others
    monkeypatch.setattr("tuner.cli.service.experiments.ask", lambda *given: next(outcomes))
    monkeypatch.setattr("tuner.sdk.run.resume", lambda *given, **more: Ended(state))
    monkeypatch.setattr("tuner.sdk.saved.read", lambda name, **more: Ended(state))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    assert f"evil {state}" in done.output
    assert "\x1b" not in done.output


def test_a_search_without_a_service_is_continued_and_its_trial_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the commands drive the search themselves: nobody else would."""
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(
        "import os, tuner\n"
        "def train(config):\n"
        f"    if config['x'] < 1.5 and not os.path.exists({str(tmp_path / 'mended')!r}): raise ValueError('not yet')\n"
        "    tuner.report({'loss': config['x']})\n"
    )

    def tell(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.output

    options = ["--param", "x=grid_search(1,2,3)", "--name", "failing", "--executor", "local"]
    tell("run", *options, "task.py:train")
    assert [trial.state for trial in tuner.load("failing").trials] == ["failed", "completed", "completed"]
    Path("mended").touch()
    assert "4 trials" in tell("retry", "failing", "0")
    retried = tuner.load("failing")
    assert (retried.trials[3].config, retried.best_value) == ({"x": 1}, 1.0)
    assert "7 trials" in tell("continue", "failing", "--num-samples", "1")
    wrong = CliRunner().invoke(app, ["stop", "failing"])
    assert "also give the number" in str(wrong.exception)
    refused = str(CliRunner().invoke(app, ["resume", "failing"]).exception)
    assert "there is nothing to resume" in refused
    retry, more = (tuple(command.split()) for command in re.findall(r"`tuner ([^`]*)`", refused))
    assert more == ("continue", retried.experiment_id, "--num-samples", "8")
    assert "8 trials" in tell(*retry[:-1], "0")
    with Store.open(Settings.from_env().database_url) as store, store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET thinned_at = 1 WHERE public_id = ?", (retried.experiment_id,))
    refused = str(CliRunner().invoke(app, ["resume", "failing"]).exception)
    with Store.open(Settings.from_env().database_url) as store, store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET thinned_at = NULL")  # the home is that of later tests, too
    assert "cannot be continued: most points of the experiment's curves were deleted on 1970-01-01" in refused
    assert "a fork of it can run" in refused
    assert "`tuner" not in refused, "it had advised commands that are refused"


def test_options_after_a_function_are_refused_with_the_order() -> None:
    with pytest.raises(SpecError, match=r"Options of tuner, such as --param, come before task\.py:train"):
        run_target("task.py:train", ["--param", "lr=1"], [], None, {})
