"""Record the answers that the OpenAPI document shows as examples: ``python -m tests.api.record_examples``.

They are answers of the real routes about a search in virtual time. What only a cluster knows is made up. While they are
recorded, the clock stands still and random ids come from a seed, so that the same code always records the same examples.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import httpx

from tests.api.answering import Answers
from tests.store.examples import T0
from tests.web.searches import Search, digits
from tuner.api import create_app
from tuner.api.openapi import RECORDED
from tuner.domain.experiment import Limits
from tuner.domain.keys import segment_id, trial_id
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.store.service.webhooks import EVENTS
from tuner.trials.runtime.measures.speedscope import Frame, Part, document
from tuner.usercode.archives import pack, sha256

CODE = pack({"example.py": Path(__file__).parents[2] / "examples" / "class_form.py"})
EXPERIMENT = "exp_0123456789abcdef0123"
FOR_AGENTS = "exp_0123456789abcdef0124"
MOST_ITEMS, MOST_OTHERS = 2, 12
NOW = T0 + 90.0
"""The time at which the answers are recorded: the search that they are about has begun at T0 and still runs."""


def recorded() -> dict[str, Any]:
    """Return an answer for each schema, by the name of the schema."""
    random = Random(0)
    with (
        mock.patch("time.time", return_value=NOW),
        mock.patch("secrets.token_hex", lambda size: random.randbytes(size).hex()),
        mock.patch(
            "secrets.token_urlsafe", lambda size: urlsafe_b64encode(random.randbytes(size)).decode().rstrip("=")
        ),
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/tuner.db") as store,
    ):
        store.migrate()
        return asyncio.run(_record(store, Path(folder)))


async def _record(store: Store, folder: Path) -> dict[str, Any]:
    hook = store.webhooks.create("https://example.com/hook", EVENTS, threshold=0.5, now=T0).public_id
    number = fill(store)
    store.webhooks.collect(NOW - 30.0)
    app = create_app(
        Settings(home=folder, auth="on"),
        store,
        Answers(look=look, cluster=cluster, agents=agents, profile=profile, driver_log=driver_log),
    )
    secret, _ = store.access.create_token("ci", Role.ADMIN)
    transport = httpx.ASGITransport(app)
    head = {"Authorization": f"Bearer {secret}", "X-Request-Id": "6910612a1f41bb45"}
    found: dict[str, Any] = {}
    app.state.context.bundles.put(sha256(CODE), io.BytesIO(CODE))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", headers=head) as client:
        [checkpoint] = (await client.get(f"/api/v1/experiments/{EXPERIMENT}/checkpoints?page_size=1")).json()["items"]
        ids = {
            "experiment_id": EXPERIMENT,
            "trial_id": trial_id(EXPERIMENT, number),
            "checkpoint_id": checkpoint["id"],
            "webhook_id": hook,
            "project": "default",
            "sha256": sha256(CODE),
            "experiment": FOR_AGENTS,
            "lease": "0-1-0123456789abcdef",
        }
        bodies = {"/api/v1/experiments/dry-run": app.openapi()["components"]["schemas"]["Spec"]["examples"][0]}
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                name = _schema(operation)
                if name is None or name in found or (method != "get" and path not in (*bodies, *POSTS)):
                    continue
                body = bodies.get(path) or POSTS.get(path)
                answer = await client.request(method, path.format_map({**ids, "token_id": "?"}), json=body)
                if answer.status_code >= 300:
                    raise RuntimeError(f"{method.upper()} {path} returned {answer.status_code}: {answer.text}")
                found[name] = _short(answer.json())
        found["Problem"] = (await client.post("/api/v1/experiments/dry-run", json={"space": {}})).json()
    app.state.context.end()
    return found


POSTS: dict[str, Any] = {
    "/api/v1/experiments/{experiment_id}/replay": {"scheduler": "asha"},
    "/api/v1/tokens": {"name": "ci", "role": "editor"},
    "/api/v1/trials/{trial_id}/profile": None,
    "/api/v1/webhooks/{webhook_id}/test": None,
    "/api/v1/experiments/{experiment}/assignments": None,
    "/api/v1/experiments/{experiment}/assignments/{lease}/reports": {"iteration": 1, "metrics": {"loss": 0.71}},
    "/api/v1/experiments/{experiment}/assignments/{lease}/heartbeat": None,
    "/api/v1/experiments/{experiment}/assignments/{lease}/complete": None,
}


def _schema(operation: Any) -> str | None:
    """Return the name of the schema of the answer, if it is JSON."""
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json")
        if status < "300" and content is not None:
            return str(content["schema"]["$ref"]).rpartition("/")[2]
    return None


def fill(store: Store) -> int:
    """Store a search with everything that an experiment can have. Return the number of a trial that runs."""
    spec = digits(trials=9, limits=Limits(max_concurrent_trials=2, max_failures=1))
    record = store.experiments.create(spec, public_id=EXPERIMENT, now=T0 - 1.0)
    search = Search(store, spec, start=T0, record=record)
    search.advance(45)
    store.experiments.create(replace(spec, name="far", executor="agents"), public_id=FOR_AGENTS, now=T0 - 2.0)
    number = next(one.number for one in store.trials.page(record.id).items if one.state == "running")
    search.write_logs(number)
    search.write_usage(number)
    return number


def look(segment: str) -> dict[str, dict[str, Any]]:
    """Return what the driver would say about the ranks of a segment."""
    stack = 'Thread "train"\n  File "train.py", line 41, in train\n    loss = step(model, batch)\n'
    return {
        str(rank): {"stack": stack, "time": T0 + 60, "cpu_s": 61.5, "rss_bytes": 2_147_483_648, "threads": 14}
        for rank in (0, 1)
    }


def driver_log(experiment: str, tail: int, search: str | None) -> dict[str, Any]:
    """Return what the driver would say about its own log."""
    text = "2026-09-01 08:00:01,204 INFO tuner.driver: trial 0, segment 1: waits: for 2 x 1 CPU\n"
    return {"found": {"path": f"/home/me/.tuner/logs/{experiment}/driver.log", "text": text, "left_out": 0}}


def profile(segment: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
    """Return what the driver would say after it has profiled a rank."""
    stack = (Frame("train", "train.py", 41), Frame("step", "train.py", 12))
    part = Part("train", "seconds", {stack: 3.9, stack[:1]: 1.1})
    found = {
        "kind": "cpu",
        "duration_s": 5.0,
        "complete": True,
        "notes": ["Time spent in C code counts toward the Python line that called it."],
        "cpu": {
            "samples": 498,
            "rate_hz": 100.0,
            "cpu_s": 4.9,
            "sampler_cpu_s": 0.03,
            "threads": [{"name": "train", "cpu_s": 4.87}],
        },
        "memory": None,
        "speedscope": document("trial 3, rank 0", "tuner 0.1.0", [part]),
    }
    answer: Future[dict[str, Any]] = Future()
    answer.set_result({"found": found})
    return answer


def cluster() -> dict[str, Any]:
    """Return what the driver would say about a cluster with one node."""
    ids = {
        "experiment_id": EXPERIMENT,
        "trial_id": trial_id(EXPERIMENT, 3),
        "segment_id": segment_id(EXPERIMENT, 3, 1),
    }
    resources = {"CPU": 1.0, "GPU": 1.0}
    rank = {"rank": 0, "node": "6f0c2d", "host": "gpu-1", "pid": 4711, "gpus": ["0"]}
    use = {"cpus": 8.0, "cpus_in_use": 1.0, "gpus": 2.0, "gpus_in_use": 1.0}
    waiting = {**ids, "trial_id": trial_id(EXPERIMENT, 4), "segment_id": segment_id(EXPERIMENT, 4, 1)}
    return {
        **use,
        "nodes": [{"id": "6f0c2d", "name": "gpu-1", "address": "10.0.0.4", **use}],
        "agents": [{"name": "lab-3:4711", "experiment_id": FOR_AGENTS, "running": 1, "asking": 0}],
        "groups": [{**ids, "resources": resources, "since": T0, "ranks": [rank]}],
        "waiting": [
            {
                **waiting,
                "position": 1,
                "workers": 2,
                "resources": resources,
                "since": T0 + 30,
                "priority": 0,
                "reserved": False,
                "reason": "2 ranks with a GPU each need 2 free GPUs, and there is 1",
                "nodes": [],
            }
        ],
        "experiments": [
            {"experiment_id": EXPERIMENT, "priority": 0, "weight": 1.0, "share": 0.5, "groups": 1, "waiting": 1}
        ],
    }


def agents(question: str, experiment: str, said: Mapping[str, Any]) -> Future[dict[str, Any]]:
    """Return what the driver would say to an agent."""
    answer: Future[dict[str, Any]] = Future()
    verdict = {
        "verdict": "continue",
        "reason": "",
        "completed": False,
        "save_checkpoint": False,
        "next_milestone": 3,
        "wanted": "continue",
    }
    found: dict[str, Any] = {
        "ask": {"assignment": assignment()},
        "report": verdict,
        "heartbeat": {"wanted": "continue", "lease_s": 60.0},
        "checkpoint": {"ended": False},
        "log": {"ended": False},
    }
    answer.set_result(found.get(question, {"ended": True}))
    return answer


def assignment() -> dict[str, Any]:
    """Return a trial that the driver would lend."""
    return {
        "lease": "0-1-0123456789abcdef",
        "lease_s": 60.0,
        "experiment_id": FOR_AGENTS,
        "trial_id": trial_id(FOR_AGENTS, 0),
        "segment_id": segment_id(FOR_AGENTS, 0, 1),
        "trial": 0,
        "segment": 1,
        "config": {"lr": 0.0123},
        "params": {"lr": 0.0123},
        "iteration": 0,
        "checkpoint": None,
        "next_milestone": 1,
        "seed": 0,
        "metric": "loss",
        "entrypoint": None,
        "storage": f"s3://bucket/{FOR_AGENTS}",
        "space": {"lr": {"type": "loguniform", "lower": 0.0001, "upper": 0.1}},
        "stop_grace_s": 10.0,
        "hang_timeout_s": 1800.0,
        "checkpoint_every": None,
        "checkpoint_at_milestones": False,
        "checkpoint_at_end": True,
    }


def _short(value: Any) -> Any:
    """Return an answer with the beginnings of its lists."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        most = MOST_ITEMS if any(isinstance(item, dict) for item in value) else MOST_OTHERS
        return [_short(item) for item in value[:most]]
    return value


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(recorded(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
