"""Agents as users have them: `tuner agent`, the program of the docs, one written with curl, one in JavaScript."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import AgentService
from tests.slow_storage import SlowStorage
from tuner.agents import worker as module
from tuner.agents.leases import Assignment, Leases
from tuner.agents.worker import Agent, Work, _Running
from tuner.cli.agent import work
from tuner.domain.events import Reported
from tuner.domain.segments import CheckpointInfo, Outcome, Report, Verdict
from tuner.errors import Gone, ServiceError, SpecError
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.groups.segments.segment_run import LogFile
from tuner.trials.messages.launch import Launch

ROOT = Path(__file__).parents[2]
SPACE = {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}}
ASHA = {"type": "asha", "max_t": 9, "grace_period": 1, "reduction_factor": 3}

TRAIN = """
import json, os, time
import tuner

def train(config):
    start, loaded = 0, tuner.get_checkpoint()
    if loaded is not None:
        with loaded.as_directory() as folder:
            start = json.load(open(os.path.join(folder, "state.json")))["epoch"]
    for epoch in range(start + 1, 10):
        print("epoch", epoch, "of", config["lr"])
        time.sleep(float(os.environ.get("EPOCH_S", "0")))
        def save(folder):
            json.dump({"epoch": epoch}, open(os.path.join(folder, "state.json"), "w"))
        tuner.report({"loss": config["lr"] + 1 / epoch}, checkpoint=save)

def tells_threads(config):
    tuner.report({"loss": float(os.environ["OMP_NUM_THREADS"])})

def silent(config):
    pass

def misspelt(config):
    tuner.report({"los": 1.0})

def forgets(config):
    tuner.report({"time": 1.0})

def broken(config):
    tuner.report({"loss": 1.0})
    raise ValueError("a bug of the user")

def fails_differently(config):
    [silent, misspelt, forgets, broken][tuner.get_context().get_trial_number()](config)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(started: list[subprocess.Popen[str]], command: list[str], folder: Path, **environment: str) -> Any:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "TUNER_HOME": str(folder / "agent"), "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started.append(process)
    return process


def agent(*arguments: str, before: str = "") -> list[str]:
    """Return the command of an agent. `before` is Python code that its process runs first."""
    return [sys.executable, "-c", f"{before}\nfrom tuner.cli import main; main()", "agent", *arguments]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, in which the module `job` has the training functions."""
    (tmp_path / "job.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run_agent(
    service: AgentService, experiment: str, target: str | None = None, said: list[str] | None = None, **options: Any
) -> str:
    """Do what `tuner agent` does, in this process, until the agent ends. Return what it says, and add it to `said`."""
    said = [] if said is None else said
    work(service.url, None, experiment, target=target, settings=service.settings, say=said.append, **options)
    return "\n".join(said)


def test_tuner_agent_runs_functions(
    service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "job.py").write_text(TRAIN)
    name = service.create(space=SPACE, scheduler=ASHA, num_samples=5)
    process = start(started, agent(service.url, "--experiment", "far", "job.py:train", "--name", "box"), tmp_path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    ended = service.get(f"/experiments/{name}")
    assert (ended["state"], ended["counts"]["failed"]) == ("completed", 0), output
    stopped = [trial for trial in service.trials(name) if trial["iteration"] < 9]
    assert stopped, "ASHA stopped none"
    best = service.get(f"/trials/{ended['best']['trial_id']}")
    assert best["segments"][-1]["placement"]["ranks"][0]["host"] == "box"
    assert best["checkpoint"] is not None
    logs = service.get(f"/trials/{best['id']}/logs")["items"]
    assert "epoch 9 of" in logs[-1]["text"]


def test_an_agent_pauses_and_continues_in_a_population(sqlite_service: AgentService, folder: Path) -> None:
    service = sqlite_service
    pbt = {
        "type": "pbt",
        "perturbation_interval": 3,
        "hyperparam_mutations": SPACE,
        "quantile_fraction": 0.5,
        "synch": True,
    }
    name = service.create(space=SPACE, scheduler=pbt, num_samples=2, max_t=9, entrypoint="job:train")
    output = run_agent(service, name, parallel=2)
    assert service.get(f"/experiments/{name}")["state"] == "completed", output
    assert output.count("has ended") == 1, output
    causes = [s["cause"] for trial in service.trials(name) for s in service.get(f"/trials/{trial['id']}")["segments"]]
    assert "exploit" in causes, causes
    logs = [service.get(f"/trials/{trial['id']}/logs")["items"] for trial in service.trials(name)]
    assert sum(item["text"].count("epoch 1 of") for items in logs for item in items) == 2, "weights were loaded"


def test_the_worker_groups_of_an_agent_learn_of_each_report(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(GroupManager, "reported", lambda self, segment_id: noted.append(segment_id))
    name = sqlite_service.create(space=SPACE, num_samples=1, max_t=2)
    output = run_agent(sqlite_service, name, "job:train")
    assert any(segment.startswith("seg_") for segment in noted), output


@pytest.mark.parametrize("given", [None, "5"])
def test_a_trial_has_the_threads_of_the_agents_machine_unless_the_user_has_set_a_number(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """Each trial computed with one thread."""
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(module, "cpus_here", lambda: 7)
    output = run_agent(service, name, "job:tells_threads", parallel=2)
    assert service.trials(name)[0]["best_value"] == float(given or 3), output


def test_an_agent_is_killed_and_another_goes_on(
    sqlite_service: AgentService, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=1, max_t=9, checkpoint={"frequency": 1})
    command = agent(service.url, "--experiment", name, "job.py:train", "--lease-s", "2")
    first = start(started, command, folder, EPOCH_S="0.3")
    service.until("checkpoints", lambda: (t := service.trials(name)) and t[0]["iteration"] >= 3 and t[0]["checkpoint"])
    first.kill()
    output = run_agent(service, name, "job:train", lease_s=2.0)
    assert service.get(f"/experiments/{name}")["state"] == "completed", output
    [trial] = service.trials(name)
    assert trial["failures"] == 0
    segments = service.get(f"/trials/{trial['id']}")["segments"]
    assert [segment["cause"] for segment in segments] == ["start", "retry"]
    assert segments[1]["start_iteration"] >= 2
    assert "from iteration" in output


def test_a_trial_whose_checkpoints_are_on_another_machine_starts_over(
    sqlite_service: AgentService, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """The agent took its own disk, which had no checkpoints yet, for one that is not mounted. The experiment was paused."""
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=1, max_t=9, checkpoint={"frequency": 1})
    command = agent(service.url, "--experiment", name, "job.py:train", "--lease-s", "2", "--storage")
    first = start(started, [*command, str(folder / "first")], folder, EPOCH_S="0.3")
    service.until("checkpoints", lambda: (t := service.trials(name)) and t[0]["iteration"] >= 3 and t[0]["checkpoint"])
    first.kill()
    first.wait()
    (folder / "first").rename(folder / "another machine")
    run_agent(service, name, "job:train", lease_s=2.0, storage=str(folder / "second"))
    [trial] = service.trials(name)
    segments = service.get(f"/trials/{trial['id']}")["segments"]
    assert (trial["state"], trial["failures"], segments[-1]["start_iteration"]) == ("completed", 0, 0), trial


def test_the_storage_of_an_experiment_may_name_a_variable_of_the_agents_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent took the folder for one that it does not have, so other agents did not find its checkpoints."""
    worker = Agent(Leases("http://service.invalid", None, "far", "agent"), Work(make=None, home=tmp_path / "home"))
    lease = {"experiment_id": "exp_1", "storage": "$SCRATCH/tuner/exp_1"}
    found = []
    for folder in (None, tmp_path / "nowhere", tmp_path):
        monkeypatch.delenv("SCRATCH", raising=False)
        if folder is not None:
            monkeypatch.setenv("SCRATCH", str(folder))
        (tmp_path / "tuner").mkdir(exist_ok=True)
        found.append(worker._storage(lease))
    assert found == [str(tmp_path / "home" / "checkpoints" / "exp_1")] * 2 + ["$SCRATCH/tuner/exp_1"]


def test_the_end_of_a_trial_does_not_wait_for_the_log_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --parallel, each trial waited until no trial of the agent sent anything."""
    monkeypatch.setattr("tuner.agents.worker.LAST_WORDS_S", 600.0)
    ended: list[str] = []

    class Groups:
        async def run(self, launch: Launch, *, inbox: Agent) -> Outcome:
            inbox.end(launch.segment_id, [LogFile(0, "here", "rank0.log")], asyncio.sleep(0))
            return Outcome(kind="returned", reports=1)

    async def end(self: Leases, lease: Assignment, outcome: Outcome) -> None:
        ended.append(lease["segment_id"])

    def lease(number: int) -> dict[str, Any]:
        none = dict.fromkeys(("checkpoint", "next_milestone", "hang_timeout_s", "checkpoint_every"))
        flags = dict.fromkeys(("checkpoint_at_end", "checkpoint_at_milestones"), False)
        names = {"trial_id": f"trl_{number}", "segment_id": f"seg_{number}", "experiment_id": "exp_1", "metric": "loss"}
        numbers = {"trial": number, "segment": 1, "seed": 0, "iteration": 0, "lease_s": 60.0, "stop_grace_s": 30.0}
        return {**none, **flags, **names, **numbers, "params": {}, "space": {}, "storage": str(tmp_path / "exp_1")}

    async def train() -> None:
        worker = Agent(
            Leases("http://service.invalid", None, "far", "agent"), Work(make=lambda _: print, home=tmp_path)
        )
        worker._manager = Groups()  # type: ignore[assignment]
        worker._running["seg_1"] = _Running(lease(1))
        worker.end("seg_1", [LogFile(0, "here", "rank0.log")], None)  # its process never sends the end of its log
        async with asyncio.timeout(60):
            await worker._train(lease(0))

    monkeypatch.setattr(Leases, "end", end)
    asyncio.run(train())
    assert ended == ["seg_0"]


def test_a_report_about_a_lease_that_has_ended_stops_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []

    class Groups:
        def reported(self, segment_id: str) -> None:
            noted.append(f"{segment_id} has reported")

        async def interrupt(self, segment_id: str, action: str) -> None:
            noted.append(f"{action} {segment_id}")

    async def report(self: Leases, lease: Assignment, reports: list[Report]) -> tuple[Verdict, str]:
        noted.append("sent")
        if reports[-1].report_no == 2:
            raise Gone("the trial continues elsewhere")
        return Verdict(next_milestone=2), "continue"

    async def train() -> list[Verdict | None]:
        leases = Leases("http://service.invalid", None, "far", "agent")
        worker = Agent(leases, Work(make=lambda _: print, home=tmp_path))
        worker._manager = Groups()  # type: ignore[assignment]
        running = worker._running["seg_1"] = _Running({"segment_id": "seg_1"})
        found = [await worker._report("seg_1", [_a_report(number)]) for number in (1, 2)]
        await asyncio.wait(running.sending)
        found += [await worker._report(segment, [_a_report(3)]) for segment in ("seg_1", "seg_2")]
        await leases.close()
        return found

    monkeypatch.setattr(Leases, "report", report)
    verdicts = asyncio.run(train())
    assert [verdict and (verdict.action, verdict.reason) for verdict in verdicts] == [
        ("continue", ""),
        ("stop", "the trial continues elsewhere"),
        ("stop", "this trial has ended here"),
        ("stop", "this trial has ended here"),
    ]
    first, second = ["seg_1 has reported", "sent", "seg_1 has reported"], ["seg_1 has reported", "sent", "kill seg_1"]
    assert noted == [*first, *second], (
        "the trial does not count as hung while the service does not answer, nor right after"
    )


def _a_report(number: int) -> Report:
    return Report(report_no=number, metrics={"loss": 0.5}, time=0.0, waits=True)


def test_an_agent_completes_its_uploads_before_it_ends_a_trial(sqlite_service: AgentService, folder: Path) -> None:
    """An upload that took longer than 0.1 s continued without the service, which never learned of the checkpoint."""
    service, storage = sqlite_service, SlowStorage(folder / "slow")
    storage.delay(0.5)
    installs = "def train(config):\n    from tests import slow_storage\n    slow_storage.install()"
    (folder / "job.py").write_text(TRAIN.replace("def train(config):", installs))
    name = service.create(space=SPACE, num_samples=1, max_t=2)
    output = run_agent(service, name, "job:train", storage=storage.uri)
    [trial] = service.trials(name)
    assert trial["checkpoint"] is not None, output
    assert (trial["state"], trial["checkpoint"]["step"]) == ("completed", 2), output


def test_an_agent_that_is_told_to_end_completes_the_upload_of_a_trial_that_has_ended(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, storage = sqlite_service, SlowStorage(folder / "slow")
    storage.hold()
    installs = "def train(config):\n    from tests import slow_storage\n    slow_storage.install()"
    (folder / "job.py").write_text(TRAIN.replace("def train(config):", installs))
    name = service.create(space=SPACE, num_samples=1, max_t=2)
    end_upload = Agent._end_upload
    told: list[int] = []

    async def stop_first(self: Agent, running: _Running, info: CheckpointInfo) -> None:
        await self.stop()
        told.append(info.step)
        storage.let_go()
        await end_upload(self, running, info)

    monkeypatch.setattr(Agent, "_end_upload", stop_first)
    output = run_agent(service, name, "job:train", storage=storage.uri)
    assert told, "the uploads went on after their trial"
    [trial] = service.trials(name)
    assert trial["checkpoint"] is not None, output
    assert (trial["state"], trial["checkpoint"]["step"]) == ("completed", 2), output


def test_an_agent_that_is_told_to_end_gives_its_trial_back(
    sqlite_service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    (tmp_path / "job.py").write_text(TRAIN)
    name = service.create(space=SPACE, num_samples=1)
    process = start(started, agent(service.url, "--experiment", name, "job.py:train"), tmp_path, EPOCH_S="0.3")
    service.until("a report", lambda: (trials := service.trials(name)) and trials[0]["iteration"] >= 1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "given back" in output
    again = service.ask(name)
    assert (again["trial"], again["segment"]) == (0, 2)


def test_an_agent_that_is_told_to_end_takes_its_request_back(
    sqlite_service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    """The next trial was lent to the agent that had ended, and then waited until the lease ended."""
    service = sqlite_service
    (tmp_path / "job.py").write_text(TRAIN)
    name = service.create(space=SPACE, num_samples=2, limits={"max_concurrent_trials": 1})
    service.ask(name, agent="gpu-7")
    process = start(started, agent(service.url, "--experiment", name, "job.py:train"), tmp_path)
    service.until("an agent that asks", lambda: len(service.get("/cluster")["agents"]) == 2)
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGHUP)  # as if its terminal were closed
    assert process.wait(timeout=60) == 0
    assert [one["name"] for one in service.get("/cluster")["agents"]] == ["gpu-7"]


def test_an_agent_ends_although_the_service_does_not_answer(
    sqlite_service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    (tmp_path / "job.py").write_text(TRAIN)
    name = service.create(space=SPACE, num_samples=1)
    soon = "from tuner.agents import worker\nworker.GIVE_BACK_S = 1.0"
    command = agent(service.url, "--experiment", name, "job.py:train", before=soon)
    process = start(started, command, tmp_path, EPOCH_S="0.3")
    service.until("a report", lambda: (trials := service.trials(name)) and trials[0]["iteration"] >= 1)
    service.end_api()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "the service does not answer" in output
    assert "given back" not in output


@pytest.mark.long  # test_leases.py has the calls that name the experiment by its id
def test_an_agent_continues_if_another_experiment_gets_the_same_name(
    sqlite_service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    (tmp_path / "job.py").write_text(TRAIN)
    first = service.create(name="far", space=SPACE, num_samples=2)
    process = start(started, agent(service.url, "--experiment", "far", "job.py:train"), tmp_path, EPOCH_S="0.3")
    service.until("a report", lambda: (trials := service.trials(first)) and trials[0]["iteration"] >= 1)
    service.create(name="far", space=SPACE, num_samples=1)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert [trial["state"] for trial in service.trials(first)] == ["completed", "completed"]


def test_an_agent_whose_request_fails_gives_its_other_trials_back(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=1)
    asks = Leases.ask

    async def ask(self: Leases, request: str) -> Assignment | None:
        found = await asks(self, request, 1.0)
        if found is None:
            raise ServiceError("no second trial", 500)
        return found

    monkeypatch.setattr(Leases, "ask", ask)
    monkeypatch.setenv("EPOCH_S", "3")
    with pytest.raises(ServiceError, match="no second trial"):
        run_agent(service, name, "job:train", parallel=2)
    again = service.ask(name)
    assert (again["trial"], again["segment"]) == (0, 2)


def test_an_agent_that_cannot_run_a_trial_gives_all_its_trials_back(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=2)
    launch = Agent._launch
    said: list[str] = []

    def refuse(self: Agent, lease: Assignment) -> Launch:
        if lease["trial"] == 1:
            raise SpecError("cannot run this trial")
        return launch(self, lease)

    monkeypatch.setattr(module, "GIVE_BACK_S", 1.0)
    monkeypatch.setattr(Agent, "_launch", refuse)
    monkeypatch.setenv("EPOCH_S", "3")
    with pytest.raises(SpecError, match="cannot run this trial"):
        run_agent(service, name, "job:train", said, parallel=2)
    assert said
    assert not any("the service does not answer" in line for line in said)
    assert {service.ask(name)["trial"], service.ask(name)["trial"]} == {0, 1}


def test_a_user_cancels_a_trial_of_an_agent_between_milestones(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sqlite_service
    limits = {"stop_grace_s": 60}  # otherwise the service would end the lease of an agent that trains on
    name = service.create(space=SPACE, num_samples=1, limits=limits, checkpoint={"interval_s": None, "keep_best": 0})
    begun: list[float] = []

    def cancel() -> None:
        service.until("a report", lambda: (trials := service.trials(name)) and trials[0]["iteration"] >= 1)
        service.post(f"/experiments/{name}/cancel", status=202)
        begun.append(time.monotonic())

    monkeypatch.setenv("EPOCH_S", "2")
    threading.Thread(target=cancel, daemon=True).start()
    output = run_agent(service, name, "job:train", lease_s=2.0)
    assert service.ended(name)["state"] == "cancelled", output
    assert service.trials(name)[0]["iteration"] < 9, "it trained to the end, although it was asked to stop"
    assert time.monotonic() - begun[0] < 15


def test_an_agent_leaves_a_trial_whose_experiment_is_deleted(
    sqlite_service: AgentService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sent no more heartbeats, trained on until the next report, and ended with an error."""
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=1)
    answers: list[int] = []

    def delete() -> None:
        service.until("the start", lambda: (trials := service.trials(name)) and trials[0]["state"] == "running")
        answers.append(service.client.delete(f"/experiments/{name}?force=true").status_code)

    monkeypatch.setenv("EPOCH_S", "600")
    threading.Thread(target=delete, daemon=True).start()
    output = run_agent(service, name, "job:train", lease_s=2.0)
    assert answers == [204]
    assert f"no experiment {name}" in output.replace("'", "")


def test_an_agent_without_a_function_gives_its_trials_back(
    sqlite_service: AgentService, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=2)
    with pytest.raises(SpecError, match="the experiment has no entrypoint"):
        run_agent(service, name)
    assert [(trial["state"], trial["failures"]) for trial in service.trials(name)] == [("pending", 0)]
    process = start(started, agent(service.url, "--experiment", name, "--parallel", "2"), folder)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert "the experiment has no entrypoint" in output
    found = service.trials(name)
    assert 1 <= len(found) <= 2
    assert {(trial["state"], trial["failures"]) for trial in found} == {("pending", 0)}, output


def test_a_trial_that_fails_says_why_and_the_agent_continues(sqlite_service: AgentService, folder: Path) -> None:
    service = sqlite_service
    name = service.create(space=SPACE, num_samples=4, max_t=9, limits={"max_failures": 0})
    output = run_agent(service, name, "job:fails_differently")
    trials = service.trials(name)
    assert [trial["state"] for trial in trials] == ["failed"] * 4, output
    errors = [service.get(f"/trials/{trial['id']}")["error"] for trial in trials]
    says = ("without calling tuner.report", "loss", "loss", "a bug of the user")
    for error, why in zip(errors, says, strict=True):
        assert why in error["message"]
    assert "raise ValueError" in errors[3]["traceback"]


def test_tuner_agent_runs_a_program(
    sqlite_service: AgentService, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    service = sqlite_service
    (tmp_path / "train.sh").write_text("#!/bin/sh\nfor epoch in 1 2 3; do echo loss=$1; done\n")
    (tmp_path / "train.sh").chmod(0o755)
    name = service.create(space=SPACE, num_samples=2)
    command = agent(service.url, "--experiment", name, "--command", "./train.sh {lr}")
    output, _ = start(started, command, tmp_path).communicate(timeout=60)
    assert service.get(f"/experiments/{name}")["state"] == "completed", output
    for trial in service.trials(name):
        assert trial["iteration"] == 3
        assert trial["best_value"] == pytest.approx(trial["params"]["lr"])


def plain_client() -> str:
    text = (ROOT / "docs/agents.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "urllib" in block]
    return str(code)


def test_the_plain_client_of_the_docs(service: AgentService, tmp_path: Path) -> None:
    code = plain_client()
    assert len([line for line in code.splitlines() if line.strip()]) <= 24
    (tmp_path / "plain.py").write_text(code)
    name = service.create(space=SPACE, scheduler=ASHA, num_samples=6)
    done = [
        subprocess.Popen([sys.executable, "-S", str(tmp_path / "plain.py"), service.url, "far"], cwd=tmp_path)
        for _ in range(2)
    ]
    assert [process.wait(timeout=120) for process in done] == [0, 0]
    ended = service.get(f"/experiments/{name}")
    assert (ended["state"], ended["counts"]["failed"]) == ("completed", 0)
    assert any(trial["iteration"] < 9 for trial in service.trials(name))


def test_the_plain_client_waits_for_a_service_that_is_starting(tmp_path: Path) -> None:
    """The service answers 503 until it has a driver, and 410 to the report, as if the lease had ended. Then the search ends."""
    assignment = {"lease": "seg_1", "experiment_id": "exp_1", "iteration": 0, "checkpoint": None, "config": {"lr": 0.1}}
    answers = iter([(503, {}), (201, assignment), (503, {}), (410, {}), (410, {})])
    asked: list[tuple[str, str]] = []

    class Starting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = next(answers)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.path.rpartition("/")[2], body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    (tmp_path / "plain.py").write_text(plain_client())
    with HTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-S", "plain.py", f"http://127.0.0.1:{server.server_port}", "far"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path, _ in asked] == ["assignments", "assignments", "reports", "reports", "assignments"]
    assert asked[0] == asked[1], "the same request again"
    assert asked[2] == asked[3], "the same report again"


CURL = r"""
set -eu
base="$1/api/v1/experiments/$2/assignments"
send="curl -sS --retry 5 --retry-all-errors -X POST -H Content-Type:application/json"
post() { $send -w '\n%{http_code}' -d "$2" "$base$1"; }
field() { sed -E "s/.*\"$1\":\"?([^\",}]*).*/\1/"; }
while true; do
  answer=$(post "" "{\"agent\": \"curl\", \"request\": \"$$-$RANDOM\"}")
  case "${answer##*$'\n'}" in 410) exit 0 ;; 204) continue ;; 201) ;; *) echo "$answer"; exit 1 ;; esac
  trial="${answer%$'\n'*}"
  lease=$(echo "$trial" | field lease)
  iteration=$(echo "$trial" | field iteration)
  lr=$(echo "$trial" | sed -E 's/.*"config":\{"lr":([^}]*)\}.*/\1/')
  verdict=continue
  while [ "$verdict" = continue ]; do
    iteration=$((iteration + 1))
    report="{\"iteration\": $iteration, \"metrics\": {\"loss\": $lr}, \"checkpoint\": \"file:///tmp/$iteration\"}"
    post "/$lease/reports" "$report" > /dev/null   # the answer was lost: the same report again
    verdict=$(post "/$lease/reports" "$report" | head -1 | field verdict)
  done
done
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_worker_written_with_curl(sqlite_service: AgentService, tmp_path: Path) -> None:
    service = sqlite_service
    (tmp_path / "worker.sh").write_text(CURL)
    name = service.create(space=SPACE, num_samples=2, max_t=3)
    done = subprocess.run(
        ["bash", "worker.sh", service.url, "far"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert service.get(f"/experiments/{name}")["counts"]["completed"] == 2
    log = service.store.drivers.load(service.store.experiments.get(name).id)
    reports = [(entry.trial, entry.iteration) for _, entry in log if isinstance(entry, Reported)]
    assert sorted(reports) == [(trial, iteration) for trial in (0, 1) for iteration in (1, 2, 3)]


JAVASCRIPT = """
const [address, name] = process.argv.slice(2);
const base = `${address}/api/v1/experiments/${name}/assignments`;
const post = (path, body) =>
  fetch(base + path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

for (;;) {
  const answer = await post("", { agent: "node", request: crypto.randomUUID() });
  if (answer.status === 410) break;
  if (answer.status === 204) continue;
  if (!answer.ok) throw new Error(await answer.text());
  const trial = await answer.json();
  const beating = setInterval(() => post(`/${trial.lease}/heartbeat`, {}).catch(() => {}), 200);
  let verdict = "continue";
  for (let iteration = trial.iteration + 1; verdict === "continue"; iteration++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    const loss = Math.abs(Math.log10(trial.config.lr) + 2) + 1 / iteration;
    ({ verdict } = await (await post(`/${trial.lease}/reports`, { iteration, metrics: { loss } })).json());
  }
  clearInterval(beating);
}
"""


def node() -> str | None:
    beside = Path(sys.executable).with_name("node")
    return str(beside) if beside.exists() else shutil.which("node")


@pytest.mark.skipif(node() is None, reason="node is not installed")
def test_a_worker_in_javascript(sqlite_service: AgentService, tmp_path: Path) -> None:
    service = sqlite_service
    (tmp_path / "worker.mjs").write_text(textwrap.dedent(JAVASCRIPT))
    name = service.create(space=SPACE, scheduler=ASHA, num_samples=6)
    done = subprocess.run(
        [str(node()), "worker.mjs", service.url, "far"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = service.get(f"/experiments/{name}")
    assert (ended["state"], ended["counts"]["failed"]) == ("completed", 0)
    assert any(trial["iteration"] < 9 for trial in service.trials(name))
