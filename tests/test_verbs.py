"""Verbs of experiments through a running service, on real Ray."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tuner
from tests.services import ROOT, SLOW, Service, until
from tuner.cli.commands import app as cli
from tuner.errors import Conflict, SpecError

pytestmark = pytest.mark.ray

STUCK = {**SLOW, "name": "stuck", "entrypoint": "tests.jobs:stuck", "limits": {"stop_grace_s": 3600}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    service = Service(home, f"sqlite:///{home / 'tuner.db'}")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def running(service: Service, experiment: str, count: int) -> Any:
    return until("trials to run", lambda: service.get(f"/experiments/{experiment}")["counts"]["running"] == count)


def test_kill_waits_for_no_report(service: Service) -> None:
    made = service.post(STUCK)
    running(service, made["id"], 2)
    assert service.client.post(f"/api/v1/experiments/{made['id']}/cancel").status_code == 202
    until("the cancel", lambda: service.get(f"/experiments/{made['id']}")["state"] == "cancelling")
    assert service.client.post(f"/api/v1/experiments/{made['id']}/kill").status_code == 202
    ended = service.ended(made["id"])
    assert (ended["state"], ended["counts"]["cancelled"]) == ("cancelled", 2)


def test_one_command_pauses_resumes_and_kills_several(service: Service) -> None:
    spec = {**SLOW, "num_samples": 1, "space": {"x": SLOW["space"]["x"], "steps": {"type": "const", "value": 3000}}}
    made = [service.post({**spec, "name": name})["id"] for name in ("one", "two")]
    address = str(service.client.base_url)

    def ask(*words: str) -> None:
        done = CliRunner().invoke(cli, ["--address", address, *words])
        assert done.exit_code == 0, done.output

    for experiment in made:
        running(service, experiment, 1)
    ask("pause", *made)
    until("both pauses", lambda: [service.get(f"/experiments/{one}")["state"] for one in made] == ["paused"] * 2)
    ask("resume", "one", "two")
    for experiment in made:
        running(service, experiment, 1)
    ask("kill", *made)
    assert [service.ended(one)["state"] for one in made] == ["cancelled"] * 2


def test_limits_change_while_it_runs_and_it_continues_after_its_end(service: Service) -> None:
    spec = {**SLOW, "num_samples": 2, "max_t": 3, "limits": {"max_concurrent_trials": 1}}
    made = service.post(spec)
    url = f"/api/v1/experiments/{made['id']}"
    changed = service.client.patch(url, json={"num_samples": 3, "limits": {"max_concurrent_trials": 2}})
    assert changed.status_code == 200, changed.text
    ended = service.ended(made["id"])
    assert (ended["state"], ended["counts"]["completed"]) == ("completed", 3)
    reasons = [one["reason"] for one in service.get(f"/experiments/{made['id']}/decisions?kind=note")["items"]]
    assert "a user changed num_samples from 2 to 3, limits.max_concurrent_trials from 1 to 2" in reasons
    assert service.client.post(f"{url}/continue", json={"num_samples": 1}).status_code == 202
    again = until("the fourth trial", lambda: (e := service.get(f"/experiments/{made['id']}"))["trials"] == 4 and e)
    assert again["ended_at"] is None or again["state"] == "completed"
    final = service.ended(made["id"])
    assert (final["state"], final["counts"]["completed"], final["error"]) == ("completed", 4, None)


def files_of(service: Service, experiment: str) -> list[str]:
    """Return the folders with the files of an experiment. Files that come and go meanwhile do not matter to `os.walk`."""
    return [folder for folder, _, _ in os.walk(service.home) if Path(folder).name == experiment]


def test_force_deletes_what_runs_with_its_files(service: Service) -> None:
    made = service.post(SLOW)
    until(
        "a checkpoint",
        lambda: any(t["checkpoint"] for t in service.get(f"/experiments/{made['id']}/trials")["items"]),
    )
    url = f"/api/v1/experiments/{made['id']}"
    assert files_of(service, made["id"])
    assert service.client.delete(url).status_code == 409
    assert service.client.delete(url, params={"force": True}).status_code == 204
    assert service.client.get(url).status_code == 404
    assert not files_of(service, made["id"])
    assert service.client.get("/readyz").status_code == 200


def test_pinned_checkpoints_are_kept_until_they_are_unpinned(service: Service) -> None:
    """A pin reaches the running driver: later checkpoints replace each other, but not this one."""
    space = {"x": SLOW["space"]["x"], "steps": {"type": "const", "value": 60}}
    made = service.post(
        {**SLOW, "space": space, "num_samples": 1, "checkpoint": {"frequency": 1, "keep_last": 1, "keep_best": 0}}
    )
    url = f"/api/v1/experiments/{made['id']}"

    def ready() -> list[Any]:
        found: list[Any] = service.get(f"/experiments/{made['id']}/checkpoints?state=ready")["items"]
        return found

    def pin(checkpoint: str, verb: str) -> bool:
        return service.client.post(f"/api/v1/checkpoints/{checkpoint}/{verb}").is_success

    first = until("a checkpoint that can be pinned", lambda: next((c for c in ready() if pin(c["id"], "pin")), None))

    def newer(count: int) -> Any:
        return until("more reports", lambda: service.get(f"{url[7:]}/trials")["items"][0]["iteration"] > count)

    until("the pin", lambda: any(c["pinned"] for c in ready()))
    newer(first["step"] + 10)
    kept = ready()
    assert first["id"] in [c["id"] for c in kept]
    assert len(kept) <= 4, "the others replace each other"
    download = service.client.get(f"/api/v1/checkpoints/{first['id']}/download")
    assert download.status_code == 200
    assert pin(first["id"], "unpin")
    until("its deletion", lambda: first["id"] not in [c["id"] for c in ready()])
    assert service.ended(made["id"])["state"] == "completed"
    assert service.client.get(f"/api/v1/checkpoints/{first['id']}/download").status_code in (404, 409, 410)


def test_an_archived_experiment_is_hidden_and_kept(service: Service) -> None:
    made = service.post({**SLOW, "name": "archived", "num_samples": 1})
    url = f"/api/v1/experiments/{made['id']}"

    def listed(**query: str) -> bool:
        answer = service.client.get("/api/v1/experiments", params={"name": "archived", **query})
        return made["id"] in [item["id"] for item in answer.json()["items"]]

    assert listed()
    running(service, made["id"], 1)
    assert service.client.post(f"{url}/archive").status_code == 409, "it has not ended"
    ended = service.ended(made["id"])
    answer = service.client.post(f"{url}/archive")
    assert answer.status_code == 200, answer.text
    assert answer.json()["archived_at"] is not None
    assert "unarchive" in answer.json()["actions"]
    assert [listed(), listed(archived="yes"), listed(archived="all")] == [False, True, True]
    kept = service.get(f"/experiments/{made['id']}")
    assert (kept["state"], kept["best"]) == ("completed", ended["best"])
    assert service.client.post(f"{url}/continue", json={"num_samples": 1}).status_code == 202
    until("the second trial", lambda: (e := service.get(f"/experiments/{made['id']}"))["trials"] == 2 and e["ended_at"])
    assert service.client.post(f"{url}/unarchive").status_code == 200
    assert [listed(), listed(archived="yes")] == [True, False]


def test_an_edit_of_a_directory_that_was_packed_changes_no_trial(service: Service, tmp_path: Path) -> None:
    """The ranks import the package, although the directory is on this machine, too."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "packed_of_mine.py").write_text("import tuner\n\ndef train(config):\n    tuner.report({'loss': 1.0})\n")
    spec = {**SLOW, "entrypoint": "packed_of_mine:train", "num_samples": 1, "scaling": {}}
    made = service.post({**spec, "runtime_env": {"working_dir": str(code)}})
    (code / "packed_of_mine.py").write_text("import tuner\n\ndef train(config):\n    tuner.report({'loss': 2.0})\n")
    ended = service.ended(made["id"])
    assert (ended["state"], ended["best"]["value"]) == ("completed", 1.0), ended["error"]


def test_trials_that_users_ask_for_start_from_what_they_name(service: Service) -> None:
    spec = {**SLOW, "num_samples": 1, "space": {"x": SLOW["space"]["x"], "steps": {"type": "const", "value": 3}}}
    made = service.post(spec)
    url = f"/api/v1/experiments/{made['id']}"
    assert service.ended(made["id"])["trials"] == 1
    [first] = service.get(f"/experiments/{made['id']}/trials")["items"]
    [kept, *_] = service.get(f"/experiments/{made['id']}/checkpoints?state=ready")["items"]
    with tarfile.open(
        fileobj=io.BytesIO(service.client.get(f"/api/v1/checkpoints/{kept['id']}/download").content)
    ) as tar:
        assert tar.getnames() == ["state.json"]
    forked = service.client.post(
        f"/api/v1/trials/{first['id']}/fork", json={"checkpoint_id": kept["id"], "params": {"x": 0.25}}
    )
    assert forked.status_code in (201, 202), forked.text
    assert service.client.post(f"{url}/enqueue", json={"configurations": [{"x": 0.5}]}).status_code == 202

    def all_done() -> Any:
        found = service.get(f"/experiments/{made['id']}")
        return found["trials"] == 3 and found["ended_at"] and found

    assert until("both trials", all_done)["state"] == "completed"
    _, fork, wanted = service.get(f"/experiments/{made['id']}/trials")["items"]
    assert (fork["params"]["x"], wanted["params"]["x"]) == (0.25, 0.5)
    [segment] = service.get(f"/trials/{fork['id']}")["segments"]
    assert (segment["cause"], segment["start_iteration"], segment["source_checkpoint_id"]) == ("fork", 3, kept["id"])
    assert wanted["iteration"] == 3


def test_a_fork_runs_the_same_function_over_another_space(service: Service) -> None:
    source = service.post({**SLOW, "num_samples": 1})
    assert service.ended(source["id"])["state"] == "completed"
    changes = {"space": {"x": {"lower": 0.5}}, "num_samples": 2}
    forked = service.client.post(f"/api/v1/experiments/{source['id']}/fork", json={"changes": changes})
    assert (forked.status_code, forked.json().get("forked_from")) == (201, source["id"]), forked.text
    ended = service.ended(forked.json()["id"])
    assert (ended["state"], ended["counts"]["completed"]) == ("completed", 2)
    trials = service.get(f"/experiments/{ended['id']}/trials")["items"]
    assert all(0.5 <= trial["params"]["x"] <= 1.0 for trial in trials)
    assert service.get(f"/experiments/{source['id']}")["trials"] == 1


def test_the_search_space_changes_while_it_runs_and_while_it_is_paused(service: Service) -> None:
    space = {"x": {"type": "uniform", "lower": 0.1, "upper": 1.0}, "steps": 20}
    made = service.post({**SLOW, "space": space, "num_samples": 8, "limits": {"max_concurrent_trials": 1}})
    handle = tuner.connect(str(service.client.base_url)).experiment(made["id"])
    until("a report", lambda: (trials := list(handle.trials())) and trials[0].iteration >= 1)
    etag = service.client.get(f"/api/v1/experiments/{made['id']}").headers["etag"]
    changed = handle.change(etag=etag, space={"x": tuner.uniform(2, 3), "steps": tuner.randint(3, 21)})
    assert (changed.space_revision, len(changed.former_spaces)) == (1, 1)
    with pytest.raises(Conflict, match="is at revision 1, not 0"):
        handle.change(etag=etag, space={"x": None})
    until("a trial in the new space", lambda: any(trial.space_revision == 1 for trial in handle.trials()))
    handle.pause()
    until("the pause", lambda: handle.get().state == "paused")
    with pytest.raises(SpecError, match="decay is new; pass the value that it had"):
        handle.change(space={"x": None, "decay": tuner.uniform(0, 1)})
    begun = {trial.number: dict(trial.params) for trial in handle.trials()}
    more = {"x": {"type": "uniform", "lower": 5, "upper": 6}, "decay": {"type": "uniform", "lower": 0, "upper": 1}}
    answer = service.client.patch(
        f"/api/v1/experiments/{made['id']}", json={"space": {**more, "steps": 3}, "assume": {"decay": 0.5}}
    )
    assert answer.status_code == 200, answer.text
    handle.resume()  # by a driver that folds the log
    assert service.ended(made["id"])["state"] == "completed"
    trials = list(handle.trials())
    assert begun.items() <= {trial.number: dict(trial.params) for trial in trials}.items(), "they went on as they were"
    configs = [trial.config for trial in handle.result().trials]
    low, names, length = [0.1, 2, 5], [{"x"}, {"x", "steps"}, {"x", "decay"}], [20, None, 3]
    for trial, config in zip(trials, configs, strict=True):
        revision = trial.space_revision
        assert low[revision] <= trial.params["x"] <= low[revision] + 1
        assert set(trial.params) == names[revision]
        steps = trial.params.get("steps", length[revision])
        assert (trial.iteration, config["steps"]) == (steps, steps), "the function got the configuration of its space"
    assert {trial.space_revision for trial in trials} == ({0, 1, 2} if len(begun) < 8 else {0, 1})
    notes = [decision.reason for decision in handle.decisions(kind="note")]
    assert any("steps is new" in note and "(revision 1)" in note for note in notes), notes


def test_the_walk_with_curl(service: Service) -> None:
    walk = ROOT / "examples" / "curl_walk.sh"
    address = str(service.client.base_url).rstrip("/")
    # Its python3 is this one. Where a version manager provides the other, each call would start a shell first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run([walk, address], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("completed") == 2, done.stdout
    assert "'pointer': '/seeds'" in done.stdout
    assert lines[-1] == "done"


MODULE = """
from sub_of_mine import SHIFT

def metrics(config):
    return {"loss": config["x"] + SHIFT, "of_ray": float("runtime_resources" in __file__)}
"""
ENTRY = """
import tuner
from numbers_of_mine import metrics

def train(config):
    tuner.report(metrics(config))
"""
SCRIPT = """
import sys, tuner
import numbers_of_mine

def train(config):
    tuner.report(numbers_of_mine.metrics(config))

if __name__ == "__main__":
    one = {"metric": "loss", "mode": "min", "num_samples": 1, "max_t": 1, "verbose": 0}
    result = tuner.run(train, {"x": tuner.uniform(0, 1)}, address=sys.argv[1], **one)
    print(result.best_value, result.best_trial.metrics["of_ray"])
"""


PRINTS = """
import sys
from sub_of_mine import SHIFT

print("loss", float(sys.argv[1]) + SHIFT)
"""


@pytest.mark.long  # test_an_edit_of_a_directory_that_was_packed_changes_no_trial runs packed code, too
def test_code_that_is_uploaded_runs_on_the_workers(service: Service, tmp_path: Path) -> None:
    """Upload it with `tuner submit --code`, and from a script whose modules lie beside it."""
    code = tmp_path / "code"
    code.mkdir()
    files = {
        "numbers_of_mine": MODULE,
        "sub_of_mine": "SHIFT = 100",
        "entry_of_mine": ENTRY,
        "script": SCRIPT,
        "prints": PRINTS,
    }
    for name, text in files.items():
        (code / f"{name}.py").write_text(text)
    address = str(service.client.base_url)
    spec = {**SLOW, "name": "bundled", "entrypoint": "entry_of_mine:train", "num_samples": 1, "scaling": {}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    submit = ["submit", str(tmp_path / "spec.json"), "--code", str(code)]
    made = CliRunner().invoke(cli, submit, env={"TUNER_ADDRESS": address})
    assert made.exit_code == 0, made.output
    bundle = tuner.connect(address).upload_code(code)
    command = {"command": ["prints.py", "{x}"], "metric_pattern": r"loss (?P<loss>\S+)", "bundle": bundle}
    printing = service.post({**{k: v for k, v in spec.items() if k != "entrypoint"}, "name": "prints", **command})
    run = [sys.executable, str(code / "script.py"), address]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    value, of_ray = done.stdout.split()
    assert (100 <= float(value) <= 101, of_ray) == (True, "1.0")
    ended = service.ended(made.output.strip())
    assert (ended["state"], 100 <= ended["best"]["value"] <= 101) == ("completed", True), ended["error"]
    [trial] = service.get(f"/experiments/{ended['id']}/trials")["items"]
    assert trial["last"]["of_ray"] == 1.0
    printed = service.ended(printing["id"])
    assert (printed["state"], 100 <= printed["best"]["value"] <= 101) == ("completed", True), printed["error"]
