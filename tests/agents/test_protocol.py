"""Trials that agents run over HTTP: the calls, what they lead to, and what happens when one is sent twice or never."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents.conftest import SPEC, AgentService
from tests.store.examples import a_spec
from tuner.domain.events import Reported
from tuner.hosts.executor import Executor
from tuner.store.service.access import Role
from tuner.trials.training.metrics import LONGEST_NAME, MetricWarnings, flatten


def test_agents_run_a_search(service: AgentService) -> None:
    name = service.create(max_t=2, num_samples=3)
    for _ in range(3):
        got = service.ask(name, agent="gpu-7")
        assert 0 <= got["config"]["x"] <= 1
        assert (got["iteration"], got["checkpoint"], got["metric"]) == (0, None, "loss")
        first = service.report(got, 1, got["config"]["x"], checkpoint="mem://1", step=10)
        assert first["verdict"] == "continue"
        last = service.report(got, 2, got["config"]["x"] / 2)
        assert last["verdict"] == "stop"
        assert "max_t" in last["reason"]
    ended = service.ended(name)
    assert ended["state"] == "completed"
    trials = service.trials(name)
    assert [trial["state"] for trial in trials] == ["completed"] * 3
    assert ended["best"]["value"] == min(trial["best_value"] for trial in trials)
    detail = service.get(f"/trials/{trials[0]['id']}")
    assert detail["segments"][0]["placement"]["ranks"][0]["host"] == "gpu-7"
    assert service.client.post(f"/experiments/{name}/assignments", json={}).status_code == 410
    texts = [decision["reason"] for decision in service.get(f"/experiments/{name}/decisions")["items"]]
    assert any("agents" in text for text in texts)


def test_a_request_that_is_sent_again_has_one_effect(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(max_t=3, num_samples=1)
    got = service.ask(name, request="a1")
    assert service.ask(name, request="a1") == got
    assert service.report(got, 1, 0.5) == service.report(got, 1, 0.7), "the first answer and the first value stay"
    late = service.report(got, 2, 0.4, earlier=[{"iteration": 1, "metrics": {"loss": 9.0}}])
    assert late["verdict"] == "continue"
    missing = service.client.post(
        f"/experiments/{name}/assignments/{got['lease']}/reports", json={"iteration": 9, "metrics": {"loss": 1.0}}
    )
    assert missing.status_code == 409
    assert "iteration 3" in missing.json()["detail"]
    last = service.report(got, 3, 0.3)
    assert last["verdict"] == "stop"
    assert service.report(got, 3, 0.3) == last, "the lease has ended, and the answer may have been lost"
    assert service.about(got, "complete") == {"ended": True}, "after a verdict, there is nothing more to say"
    assert service.ended(name)["state"] == "completed"
    [trial] = service.trials(name)
    assert trial["iteration"] == 3
    assert trial["best_value"] == 0.3


def test_the_same_report_at_the_same_time_is_stored_once(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1)
    got = service.ask(name)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(service.report(got, 1, 0.5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)
    last = {"metrics": {"loss": 0.4, "most": "Infinity"}}
    assert service.about(got, "complete", last) == {"ended": True}
    assert service.about(got, "complete", last) == {"ended": True}
    assert service.ended(name)["counts"]["completed"] == 1
    assert service.trials(name)[0]["iteration"] == 2


def test_as_many_trials_run_as_there_are_agents(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=20, search={"type": "tpe"})
    got = [service.ask(name, agent=f"agent-{n}") for n in range(4)]
    assert len({one["trial"] for one in got}) == 4
    assert len(service.trials(name)) == 4, "no configuration is drawn before somebody can train it"
    answer = service.client.post(f"/experiments/{name}/cancel")
    assert answer.status_code == 202
    for one in got:  # the first reports may come before the driver has read the command
        assert any(service.report(one, n, 0.5)["verdict"] == "stop" for n in range(1, 200))
    assert service.ended(name)["state"] == "cancelled"


def test_the_cluster_has_the_agents_with_what_they_train_and_what_waits_for_one(sqlite_service: AgentService) -> None:
    """The page of the cluster said that nothing ran while agents trained."""
    service = sqlite_service
    name = service.create(num_samples=2, priority=3)
    [waits] = service.until("a trial that waits", lambda: service.get("/cluster")["waiting"])
    assert (waits["experiment_id"], waits["trial_number"], waits["priority"]) == (name, 0, 3)
    assert (waits["position"], waits["workers"], waits["resources"], waits["nodes"]) == (1, 1, {"agent": 1.0}, [])
    assert "waits for an agent" in waits["reason"]
    got = service.ask(name, agent="gpu-7")
    cluster = service.get("/cluster")
    assert cluster["agents"] == [{"name": "gpu-7", "experiment_id": name, "running": 1, "asking": 0}]
    [group] = cluster["groups"]
    assert (group["experiment_id"], group["trial_number"], group["resources"]) == (name, got["trial"], {"agent": 1.0})
    assert group["ranks"] == [{"rank": 0, "node": "gpu-7", "host": "gpu-7", "pid": 0, "gpus": []}]
    assert group["since"] >= waits["since"]
    assert (cluster["waiting"], cluster["cpus_in_use"]) == ([], 0.0)
    assert [(one["experiment_id"], one["groups"], one["waiting"]) for one in cluster["experiments"]] == [(name, 1, 0)]
    service.about(got, "complete", {"metrics": {"loss": 0.5}})
    service.until("a free agent", lambda: not service.get("/cluster")["agents"])


def test_the_cluster_has_the_agents_that_ask_for_a_trial(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=2, limits={"max_concurrent_trials": 1})
    got = service.ask(name, agent="gpu-7")
    asks = threading.Thread(target=lambda: service.ask(name, agent="cpu-1"))
    asks.start()
    free = {"name": "cpu-1", "experiment_id": name, "running": 0, "asking": 1}
    busy = {"name": "gpu-7", "experiment_id": name, "running": 1, "asking": 0}
    service.until("an agent that asks", lambda: service.get("/cluster")["agents"] == [free, busy])
    service.about(got, "complete", {"metrics": {"loss": 0.5}})
    asks.join(30)
    assert [one["name"] for one in service.get("/cluster")["agents"]] == ["cpu-1"]


def test_a_repeated_request_replaces_the_one_that_waits(sqlite_service: AgentService) -> None:
    """The first request had stayed, and could get a trial that nobody would run."""
    service = sqlite_service
    name = service.create(num_samples=2, limits={"max_concurrent_trials": 1})
    service.ask(name, agent="gpu-7")
    path, body = f"/experiments/{name}/assignments", {"agent": "cpu-1", "request": "r1"}
    first = threading.Thread(target=lambda: service.post(path, {**body, "wait_s": 30}, 204))
    first.start()
    service.until("an agent that asks", lambda: len(service.get("/cluster")["agents"]) == 2)
    service.post(path, {**body, "wait_s": 0}, 204)
    assert [one["name"] for one in service.get("/cluster")["agents"]] == ["gpu-7"]
    first.join(10)
    assert not first.is_alive()


@pytest.mark.parametrize("key", [{}, {"request": "r1"}])
def test_a_request_whose_connection_is_cut_gets_no_trial(sqlite_service: AgentService, key: dict[str, str]) -> None:
    """A trial was lent to an agent that had gone while it waited for one. The trial then waited until the lease ended."""
    service = sqlite_service
    name = service.create(num_samples=2, limits={"max_concurrent_trials": 1})
    got = service.ask(name, agent="gpu-7")
    body = json.dumps({"agent": "cpu-1", "wait_s": 60, **key})
    with socket.create_connection((service.client.base_url.host, service.client.base_url.port)) as connection:
        head = f"POST /api/v1/experiments/{name}/assignments HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n{body}".encode())
        service.until("an agent that asks", lambda: len(service.get("/cluster")["agents"]) == 2)
    service.until("the request is withdrawn", lambda: len(service.get("/cluster")["agents"]) == 1, 10.0)
    service.about(got, "complete", {"metrics": {"loss": 0.5}})
    again = service.ask(name, agent="gpu-7")
    assert (again["trial"], again["segment"]) == (1, 1)


def test_the_limit_of_the_spec_counts(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=20, limits={"max_concurrent_trials": 1})
    got = service.ask(name)
    none = service.client.post(f"/experiments/{name}/assignments", json={"wait_s": 0.3})
    identifier = service.get(f"/experiments/{name}")["id"]
    assert (none.status_code, none.headers["Content-Location"]) == (
        204,
        f"/api/v1/experiments/{identifier}/assignments",
    )
    service.about(got, "complete", {"metrics": {"loss": 0.5}})
    assert service.ask(name)["trial"] == 1


def test_an_agent_that_says_nothing_loses_its_lease(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1, max_t=4, limits={"max_failures": 0})
    lost = service.ask(name, agent="lost", lease_s=1.0)
    service.report(lost, 1, 0.5, checkpoint="mem://one")
    service.report(lost, 2, 0.4)
    for _ in range(4):  # heartbeats keep it
        time.sleep(0.4)
        assert service.about(lost, "heartbeat")["wanted"] == "continue"
    again = service.ask(name, agent="other")
    assert again["trial"] == lost["trial"]
    assert (again["segment"], again["iteration"], again["checkpoint"]["uri"]) == (2, 1, "mem://one")
    gone = service.client.post(f"/experiments/{name}/assignments/{lost['lease']}/reports", json=_report(3))
    assert gone.status_code == 410
    assert "sent nothing" in gone.json()["detail"]
    for iteration in (2, 3, 4):
        verdict = service.report(again, iteration, 0.3)
    assert verdict["verdict"] == "stop"
    assert service.ended(name)["state"] == "completed"
    [trial] = service.trials(name)
    assert trial["failures"] == 0
    reasons = [one["reason"] for one in service.get(f"/experiments/{name}/decisions")["items"]]
    assert any("lost" in reason and "from iteration 1" in reason for reason in reasons)


def _report(iteration: int, loss: float = 0.5) -> dict[str, Any]:
    return {"iteration": iteration, "metrics": {"loss": loss}}


def test_a_user_pauses_and_resumes(service: AgentService) -> None:
    name = service.create(num_samples=1, max_t=4)
    got = service.ask(name)
    service.report(got, 1, 0.5, checkpoint="mem://1")
    service.post(f"/experiments/{name}/pause", status=202)
    service.until("the request to pause", lambda: service.about(got, "heartbeat")["wanted"] == "pause")
    paused = service.report(got, 2, 0.4, checkpoint="mem://2")
    assert paused["verdict"] == "pause"
    service.until("the pause", lambda: service.get(f"/experiments/{name}")["state"] == "paused")
    assert service.client.post(f"/experiments/{name}/assignments", json={"wait_s": 0.1}).status_code == 204
    service.post(f"/experiments/{name}/resume", status=202)
    again = service.ask(name)
    assert (again["trial"], again["segment"], again["iteration"]) == (0, 2, 2)
    assert again["checkpoint"]["uri"] == "mem://2"
    service.report(again, 3, 0.3)
    assert service.report(again, 4, 0.2)["verdict"] == "stop"
    assert service.ended(name)["state"] == "completed"


def test_a_stopped_trial_may_save_its_last_checkpoint_for_longer_than_the_grace(sqlite_service: AgentService) -> None:
    """The lease ended after `stop_grace_s` although the report had come in time, and the checkpoint was lost."""
    service = sqlite_service
    name = service.create(num_samples=2, limits={"max_concurrent_trials": 1})

    def stopped() -> Any:
        assignment = service.ask(name, late_checkpoints=True)
        service.post(f"/trials/{assignment['trial_id']}/stop", status=202)
        service.until("the request to stop", lambda: service.about(assignment, "heartbeat")["wanted"] == "stop")
        return assignment

    async def end_grace(assignment: Any) -> None:
        assert service.host is not None
        agents = service.host.executors.agents
        lease = agents._segments[assignment["segment_id"]]
        assert lease.grace is not None
        lease.grace.cancel()
        agents._end_grace(lease)

    saved = stopped()
    assert service.report(saved, 1, 0.4)["save_checkpoint"]
    service.call(end_grace(saved))
    service.about(saved, "checkpoints", {"iteration": 1, "uri": "mem://1"})
    service.about(saved, "release")
    assert [one["uri"] for one in service.get(f"/experiments/{name}/checkpoints")["items"]] == ["mem://1"]

    silent = stopped()
    service.call(end_grace(silent))
    assert service.ended(name)["state"] == "completed"
    gone = service.about(silent, "heartbeat", status=410)
    assert gone["detail"].endswith("the trial was stopped, and made no report within 10 s")


@pytest.mark.parametrize("at_once", [True, False], ids=["with its end", "before its end"])
def test_a_trial_that_has_ended_is_not_paused_at_its_last_report(sqlite_service: AgentService, at_once: bool) -> None:
    service = sqlite_service
    name = service.create(num_samples=2, limits={"max_concurrent_trials": 1})
    got = service.ask(name)
    service.post(f"/experiments/{name}/pause", status=202)
    service.until("the request to pause", lambda: service.about(got, "heartbeat")["wanted"] == "pause")
    if at_once:
        service.about(got, "complete", {"metrics": {"loss": 0.5}})
    else:
        assert service.report(got, 1, 0.5, last=True)["verdict"] == "continue"
        service.about(got, "complete")
    service.until("the pause", lambda: service.get(f"/experiments/{name}")["state"] == "paused")
    assert [trial["state"] for trial in service.trials(name)] == ["completed"]


def test_pbt_exploits_over_agents(sqlite_service: AgentService) -> None:
    service = sqlite_service
    pbt = {
        "type": "pbt",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"x": {"type": "uniform", "lower": 0, "upper": 1}},
        "quantile_fraction": 0.5,
    }
    name = service.create(num_samples=2, max_t=6, scheduler=pbt)
    seen: list[str] = []
    sources: list[Any] = []
    while True:
        answer = service.client.post(f"/experiments/{name}/assignments", json={"wait_s": 5})
        if answer.status_code == 410:
            break
        if answer.status_code == 204:
            continue
        got = answer.json()
        sources.append(got["checkpoint"])
        for iteration in range(got["iteration"] + 1, 7):
            uri = f"mem://{got['trial']}/{got['segment']}/{iteration}"
            verdict = service.report(got, iteration, got["trial"] + 1 / iteration, checkpoint=uri)
            seen.append(verdict["verdict"])
            if verdict["verdict"] != "continue":
                break
    assert service.ended(name)["state"] == "completed"
    assert "exploit" in seen or "pause" in seen
    assert any(source is not None and source["uri"].startswith("mem://0/") for source in sources)
    [loser] = [trial for trial in service.trials(name) if trial["number"] == 1]
    assert any(segment["cause"] == "exploit" for segment in service.get(f"/trials/{loser['id']}")["segments"])


def test_asha_stops_a_bad_trial(sqlite_service: AgentService) -> None:
    service = sqlite_service
    asha = {"type": "asha", "max_t": 9, "grace_period": 1, "reduction_factor": 3}
    name = service.create(num_samples=4, scheduler=asha)
    stopped = 0
    for number in range(4):
        got = service.ask(name)
        for iteration in range(1, 10):
            verdict = service.report(got, iteration, float(number))
            if verdict["verdict"] != "continue":
                break
        stopped += iteration < 9
    assert stopped == 3
    assert service.ended(name)["best"]["value"] == 0.0


def test_failures_count_and_what_is_given_back_does_not(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1, limits={"max_failures": 1})
    service.about(service.ask(name), "release")
    service.about(service.ask(name), "fail", {"message": "preempted", "kind": "system", "cause": "preempted"})
    service.about(service.ask(name), "fail", {"message": "ValueError: bad", "traceback": "Traceback ..."})
    service.about(service.ask(name), "fail", {"message": "ValueError: bad again"})
    assert service.ended(name)["counts"]["failed"] == 1
    [trial] = service.trials(name)
    assert trial["failures"] == 2
    causes = [segment["cause"] for segment in service.get(f"/trials/{trial['id']}")["segments"]]
    assert causes == ["start", "retry", "retry", "retry"]


def test_reports_without_the_objective_are_refused(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1)
    got = service.ask(name)
    refused = service.about(got, "complete", None, 422)
    assert "loss" in refused["detail"]
    refused = service.about(got, "reports", {"iteration": 1, "metrics": {"train_loss": 1.0}}, 422)
    assert "did you mean" in refused["detail"] or "'loss'" in refused["detail"]
    first = [{"iteration": 1, "metrics": {"loss": 1.0, "most": "Infinity", "least": "-Infinity"}}]
    service.about(got, "reports", {"iteration": 2, "metrics": {"train_loss": 1.0}, "earlier": first})
    assert service.report(got, 3, None)["verdict"] == "stop", "null is NaN, which ends a trial"
    log = service.store.drivers.load(service.store.experiments.get(name).id)
    kept = next(one.metrics for _, one in log if isinstance(one, Reported))
    assert (kept["most"], kept["least"]) == (math.inf, -math.inf)
    assert service.ended(name)["state"] in ("completed", "failed")


def test_the_log_of_a_trial_is_kept(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1)
    got = service.ask(name)
    service.about(got, "log", {"text": "epoch 1\n", "start": 0})
    service.about(got, "log", {"text": "epoch 1\n", "start": 0})
    service.about(got, "log", {"data": "ZXBvY2ggMgo="})
    service.about(got, "complete", {"metrics": {"loss": 0.1}})
    logs = service.get(f"/trials/{got['trial_id']}/logs")
    assert [item["text"] for item in logs["items"]] == ["epoch 1\nepoch 2\n"]


def test_a_new_driver_starts_the_trials_again(service: AgentService) -> None:
    name = service.create(num_samples=2, max_t=3)
    got = service.ask(name)
    service.report(got, 1, 0.5, checkpoint="mem://1")
    service.end_host()
    silent = service.client.post(f"/experiments/{name}/assignments/{got['lease']}/reports", json=_report(2))
    assert silent.status_code == 503
    assert silent.headers["retry-after"]
    service.start_host()
    gone = service.client.post(f"/experiments/{name}/assignments/{got['lease']}/reports", json=_report(2))
    assert gone.status_code == 410
    for _ in range(2):
        again = service.ask(name)
        if again["trial"] == 0:
            assert (again["iteration"], again["checkpoint"]["uri"]) == (1, "mem://1")
        for iteration in range(again["iteration"] + 1, 4):
            service.report(again, iteration, 0.3)
    assert service.ended(name)["counts"]["completed"] == 2


def test_agents_go_on_when_the_api_was_away(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1, max_t=2)
    got = service.ask(name)
    service.report(got, 1, 0.5)
    service.end_api()
    service.client.close()
    service.client = httpx.Client(timeout=60, base_url=f"{service.url}/api/v1")
    service.start_api()
    assert service.report(got, 1, 0.5)["verdict"] == "continue"
    assert service.report(got, 2, 0.4)["verdict"] == "stop"
    assert service.ended(name)["state"] == "completed"


def test_a_token_of_the_role_agent_can_do_nothing_else(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=2, project="vision")
    service.end_api()
    service.settings = dataclasses.replace(service.settings, auth="on")
    secret, _ = service.store.access.create_token("slurm", Role.AGENT, project="vision")
    foreign, _ = service.store.access.create_token("other", Role.AGENT, project="speech")
    viewer, _ = service.store.access.create_token("me", Role.VIEWER)
    admin, _ = service.store.access.create_token("boss", Role.ADMIN)
    service.client.close()
    service.client = httpx.Client(timeout=60, base_url=f"{service.url}/api/v1")
    service.start_api()

    def call(method: str, path: str, token: str, body: Any = None) -> httpx.Response:
        return service.client.request(method, path, headers={"Authorization": f"Bearer {token}"}, json=body)

    got = call("POST", "/experiments/far/assignments", secret, {"wait_s": 20})
    assert got.status_code == 201, got.text
    lease = f"/experiments/far/assignments/{got.json()['lease']}"
    assert call("POST", f"{lease}/reports", secret, _report(1)).json()["verdict"] == "continue"
    for token, status in ((viewer, 403), (foreign, 404), ("tnr_wrong", 401)):
        assert call("POST", "/experiments/far/assignments", token, {"wait_s": 0}).status_code == status, status
        assert call("POST", f"{lease}/reports", token, _report(2)).status_code == status, status
    for method, path in (
        ("GET", "/experiments"),
        ("GET", f"/experiments/{name}"),
        ("POST", f"/experiments/{name}/cancel"),
        ("POST", "/experiments"),
        ("GET", "/audit"),
        ("POST", "/tokens"),
        ("GET", f"/trials/{got.json()['trial_id']}"),
        ("GET", "/cluster"),
    ):
        assert call(method, path, secret).status_code == 403, path
    calls = [(item["actor"], item["status"]) for item in call("GET", "/audit", admin).json()["items"]]
    assert ("slurm", 201) not in calls
    assert ("slurm", 200) not in calls, "what agents report is in the log of the experiment"
    assert ("slurm", 403) in calls
    assert ("me", 403) in calls


@pytest.mark.parametrize(
    "more", [{"runtime_env": {"env_vars": {"A": "1"}}}, {"command": ["python", "-c", "1"]}, {"command": [__file__]}]
)
def test_agents_bring_their_own_code(sqlite_service: AgentService, more: dict[str, Any]) -> None:
    answer = sqlite_service.client.post("/experiments", json={**SPEC, **more})
    assert answer.status_code == 422
    assert "/executor" in {error["pointer"] for error in answer.json()["errors"]} or "/command" in answer.text


def test_an_experiment_of_another_executor_has_no_work_for_agents(sqlite_service: AgentService) -> None:
    name = sqlite_service.create(executor="ray", entrypoint="tests.api.trainables:train")
    sqlite_service.end_host()
    answer = sqlite_service.client.post(f"/experiments/{name}/assignments", json={})
    assert answer.status_code == 409
    assert "executor" in answer.json()["detail"]


def test_a_host_without_ray_fits_models_for_the_trials_of_agents(sqlite_service: AgentService) -> None:
    """Each fit had ended with an AssertionError."""
    assert sqlite_service.host is not None
    executor = sqlite_service.host.executors.of(a_spec(executor="agents"))
    assert sqlite_service.call(fitted(executor)) == 8


async def fitted(executor: Executor) -> Any:
    return await executor.offload([], pow, 2, 3)


def test_a_step_that_no_database_can_store_is_refused(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1)
    got = service.ask(name)
    for what, body in (("reports", _report(1)), ("complete", {"metrics": {"loss": 0.5}})):
        service.about(got, what, {**body, "step": 2**63}, 422)
    service.about(got, "reports", {**_report(2), "earlier": [{**_report(1), "step": -(2**64)}]}, 422)
    assert service.report(got, 1, 0.5, step=2**63 - 1)["verdict"] == "continue"
    service.about(got, "complete")
    assert service.ended(name)["counts"]["completed"] == 1


def test_agents_may_report_what_tuner_report_takes(sqlite_service: AgentService) -> None:
    """Long names, more than 1,000 metrics, and reports in which all metrics are None failed trials that ran on agents."""
    service = sqlite_service
    got = service.ask(service.create(num_samples=1))
    many = {f"class_{i}": 1.0 for i in range(1001)}
    taken = [flatten(given, MetricWarnings()) for given in ({"other": None}, {"n" * LONGEST_NAME: 1.0}, many)]
    for number, metrics in enumerate(taken, 1):
        assert service.about(got, "reports", {"iteration": number, "metrics": metrics})["verdict"] == "continue"
    service.about(got, "complete", {"metrics": {"loss": 0.5}})


def test_no_report_is_older_than_its_lease(sqlite_service: AgentService) -> None:
    service = sqlite_service
    name = service.create(num_samples=1)
    got = service.ask(name)
    service.report(got, 1, 0.5, age_s=1e300)
    service.about(got, "complete")
    service.ended(name)
    assert 0 <= service.trials(name)[0]["running_s"] < 60


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_checkpoint_is_deleted_unless_a_newer_one_is_in_its_place(sqlite_service: AgentService, form: str) -> None:
    service = sqlite_service
    name = service.create(num_samples=1, max_t=5, checkpoint={"keep_last": 1, "keep_best": 0})
    got = service.ask(name)
    first, last = (Path(got["storage"]) / "trial-0" / each for each in ("first", "last"))
    for iteration, at in enumerate((first, last, last, last), 1):
        file = at if form == "file" else at / "weights"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(iteration))
        service.report(got, iteration, 1 / iteration, checkpoint=str(at))
    service.until("the deletion", lambda: not first.exists())
    checkpoints = f"/experiments/{name}/checkpoints"
    states = {1: "deleted", 2: "deleted", 3: "deleted", 4: "ready"}
    service.until(
        "the records", lambda: {one["step"]: one["state"] for one in service.get(checkpoints)["items"]} == states, 10
    )
    assert last.exists()
    service.about(got, "complete")
    service.ended(name)
    assert last.exists()
