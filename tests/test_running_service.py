"""A service that runs, on real Ray: experiments that share its cluster, the verbs, and the loss of its driver or its Ray.

These tests share one service, since each start of one takes ten seconds of CPU.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import tuner
from tests import invariants
from tests.services import ROOT, SLOW, SPEC, Service, host_of, until
from tuner.cli.commands import app as cli
from tuner.errors import Conflict, SpecError
from tuner.hosts.ray.head import find_head
from tuner.store import Store

pytestmark = pytest.mark.ray

STUCK = {**SLOW, "name": "stuck", "entrypoint": "tests.jobs:stuck", "limits": {"stop_grace_s": 3600}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    url = f"sqlite:///{home / 'tuner.db'}"
    # With this lease, which does not expire during the tests, only a host that knows of the loss takes over.
    settings = {"TUNER_LEASE_S": "3600", "TUNER_PREEMPT_AFTER_S": "1", "TUNER_QUOTAS": "capped=CPU:1"}
    service = Service(home, url, **settings)
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def running(service: Service, experiment: str, count: int) -> Any:
    return until("trials to run", lambda: service.get(f"/experiments/{experiment}")["counts"]["running"] == count)


def filling(service: Service, name: str, steps: int, **more: Any) -> dict[str, Any]:
    """Return the spec of an experiment whose only trial fills the cluster, with a checkpoint at every report."""
    cpus = service.get("/cluster")["cpus"]
    return {
        **SLOW,
        "name": name,
        "num_samples": 1,
        "space": {**SLOW["space"], "steps": {"type": "choice", "categories": [steps]}},
        "scaling": {"resources_per_worker": {"CPU": cpus}, "backend": "none"},
        **more,
    }


def test_a_trial_is_paused_for_an_urgent_experiment_and_goes_on_from_its_checkpoint(service: Service) -> None:
    low = service.post(filling(service, "low", steps=150))["id"]
    trials = f"/experiments/{low}/trials"
    until("a checkpoint", lambda: any(trial["checkpoint"] for trial in service.get(trials)["items"]))
    [group] = service.get("/cluster")["groups"]
    assert group["experiment_id"] == low
    assert [rank["rank"] for rank in group["ranks"]] == [0]
    equal = service.post(filling(service, "equal", steps=3))["id"]
    urgent = service.post(filling(service, "urgent", steps=10, priority=10))["id"]
    waiting = until("two waits", lambda: len(found := service.get("/cluster")["waiting"]) == 2 and found)
    assert [(one["position"], one["experiment_id"], one["priority"]) for one in waiting] == [
        (1, urgent, 10),
        (2, equal, 0),
    ]
    assert "2 other experiments share" in waiting[0]["reason"]

    ended = {name: service.ended(name) for name in (urgent, equal, low)}
    assert {one["state"] for one in ended.values()} == {"completed"}
    assert ended[urgent]["ended_at"] < ended[low]["ended_at"]
    decisions = service.get(f"/experiments/{low}/decisions?page_size=100")["items"]
    why = f"to make room for experiment {urgent} (priority 10)"
    assert any(one["kind"] == "pause" and one["reason"].endswith(why) for one in decisions), decisions
    trial = service.get(trials)["items"][0]
    segments = service.get(f"/trials/{trial['id']}")["segments"]
    assert [one["cause"] for one in segments] == ["start", "resume"]
    assert segments[1]["start_iteration"] > 0
    assert trial["iteration"] == 150


def test_a_project_runs_no_more_at_once_than_its_quota(service: Service) -> None:
    cpus = service.get("/cluster")["cpus"]
    assert cpus > 1, "otherwise the quota limits nothing"
    one = {"resources_per_worker": {"CPU": 0.5}, "backend": "none"}
    space = {**SLOW["space"], "steps": {"type": "const", "value": 20}}
    spec = {**SLOW, "project": "capped", "space": space, "scaling": one, "limits": {}, "num_samples": 2}
    both = [service.post({**spec, "name": name})["id"] for name in ("first", "second")]
    why = "the quota of the project 'capped' is 1 CPU, of which 1 is in use"
    waiting = until("the quota", lambda: [w for w in service.get("/cluster")["waiting"] if why in w["reason"]])
    assert {one["experiment_id"] for one in waiting} <= set(both)
    free = service.post({**spec, "name": "free", "project": "other", "num_samples": 1})["id"]
    most = 0
    while not all(service.get(f"/experiments/{name}")["ended_at"] for name in both):
        held = [group for group in service.get("/cluster")["groups"] if group["experiment_id"] in both]
        most = max(most, len(held))
        time.sleep(0.1)
    assert most == 2
    ended = {name: service.ended(name) for name in (*both, free)}
    assert {one["state"] for one in ended.values()} == {"completed"}


@pytest.mark.slow
@pytest.mark.long  # test_sizes.py has the decisions, and test_admission.py how many workers an experiment may have
def test_a_grown_trial_gives_workers_back_to_another_experiment_and_grows_again(service: Service) -> None:
    cpus = service.get("/cluster")["cpus"]
    most = int(cpus / 0.5)
    assert most > 1
    half = {"resources_per_worker": {"CPU": 0.5}, "backend": "none"}
    constant = {"type": "const", "value": 200}
    grown = service.post({
        **SLOW,
        "name": "grown",
        "entrypoint": "tests.jobs:shared",
        "num_samples": 1,
        "max_t": 200,
        "space": {**SLOW["space"], "steps": constant},
        "scaling": {**half, "num_workers": 1, "max_workers": most},
    })["id"]  # fmt: skip

    def trial() -> dict[str, Any] | None:
        found = service.get(f"/experiments/{grown}/trials")["items"]
        return dict(service.get(f"/trials/{found[0]['id']}")) if found else None

    def sizes() -> list[int]:
        found = trial()
        return [segment["workers"] for segment in found["segments"]] if found is not None else [0]

    def reports() -> bool:
        found = trial()
        return found is not None and sizes()[-1] == most and int(found["iteration"]) > 3

    until("the trial has all workers", reports)
    before = len(sizes())
    rest = {**half, "num_workers": most - 1}
    space = {**SLOW["space"], "steps": {"type": "const", "value": 30}}
    other = service.post({**SLOW, "name": "other", "num_samples": 1, "space": space, "scaling": rest})["id"]
    trials = f"/experiments/{other}/trials"
    until("the other experiment trains", lambda: any(trial["iteration"] for trial in service.get(trials)["items"]))
    assert sizes()[before] == 1, "the trial trains on with the smallest number"
    assert service.ended(other)["state"] == "completed"
    until("the trial has grown again", lambda: sizes()[-1] > 1)
    assert service.ended(grown)["state"] == "completed"
    ended = trial()
    assert ended is not None
    assert (ended["iteration"], ended["failures"]) == (200, 0)
    segments = ended["segments"]
    assert all(one["cause"] == "resize" and one["start_iteration"] > 0 for one in segments[1:]), (
        "each from a checkpoint"
    )
    reasons = [one["reason"] for one in service.get(f"/experiments/{grown}/decisions?page_size=100")["items"]]
    why = f"from {most} to 1 worker: other work on the cluster needs workers"
    assert any(why in reason and "gives way at iteration" in reason for reason in reasons), reasons


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


DIGITS = SPEC["entrypoint"]


# The short form makes all calls, but its ranks do not import torch. `tests/test_service.py` trains on the digits.
@pytest.mark.parametrize("entrypoint", ["tests.jobs:accurate", pytest.param(DIGITS, marks=pytest.mark.long)])
def test_the_walk_with_curl(service: Service, tmp_path: Path, entrypoint: str) -> None:
    walk = Path(shutil.copy(ROOT / "examples" / "curl_walk.sh", tmp_path))
    text = walk.read_text()
    assert text.count(DIGITS) == 1
    walk.write_text(text.replace(DIGITS, entrypoint))
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


def part(home: Path, name: str) -> psutil.Process:
    """Return the process of Ray's head, or of the driver host, that is to be killed."""
    if name == "host":
        return host_of(home)
    head = find_head(home)
    assert head is not None
    return {process.name(): process for process in head.parts}[name]


def started(service: Service, steps: int = 40) -> str:
    """Start an experiment and return its id when each of its trials has a checkpoint."""
    created = service.post({**SLOW, "space": {**SLOW["space"], "steps": {"type": "const", "value": steps}}})
    path = f"/experiments/{created['id']}/trials"
    until("checkpoints of both", lambda: [t for t in service.get(path)["items"] if t["checkpoint"]][1:])
    return str(created["id"])


def check(service: Service, experiment: str, steps: int = 40) -> None:
    """Check that it completes, that each trial continued from a checkpoint, and that the log has everything once."""
    ended = service.ended(experiment)
    assert ended["state"] == "completed", ended
    for row in service.get(f"/experiments/{experiment}/trials")["items"]:
        trial = service.get(f"/trials/{row['id']}")
        assert trial["iteration"] == steps
        assert all(s["start_iteration"] > 0 for s in trial["segments"][1:]), trial["segments"]
    with Store.open(service.database_url) as store:
        invariants.check_all(store, set())
        assert store.experiments.get(experiment).driver_epoch == 2
    assert service.process.poll() is None, "the API outlives Ray"
    until("readiness", lambda: service.client.get("/readyz").status_code == 200)


# With the raylet, the host ends too. So the case of the host is the short form.
@pytest.mark.parametrize(
    "victim", ["host", *(pytest.param(one, marks=pytest.mark.long) for one in ("raylet", "gcs_server"))]
)
def test_what_is_killed_is_started_again(service: Service, victim: str) -> None:
    experiment = started(service)
    part(service.home, victim).kill()
    check(service, experiment)


@pytest.mark.long
def test_a_service_that_finds_a_dead_head_starts_another(service: Service) -> None:
    # It must still run when the service has ended, which takes seconds on a busy machine.
    experiment = started(service, steps=300)
    service.end()
    part(service.home, "raylet").kill()
    service.start()
    check(service, experiment, steps=300)


@pytest.mark.long  # tests/test_service.py ends a service with --stop
def test_a_head_that_was_ended_on_purpose_stays_ended(service: Service) -> None:
    assert service.stop() == "stopped"
    until("words", lambda: "shut down by `tuner serve --stop`" in service.client.get("/readyz").text)
    assert find_head(service.home) is None
    assert service.client.get("/healthz").status_code == 200
    service.end()
    service.start()
