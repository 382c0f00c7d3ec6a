"""Projects: a token of one project finds and changes nothing of another one, by any route of the document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy import text

from tests.api.conftest import SPEC, with_shared_document
from tests.store.examples import T0, a_report, a_spec, begin
from tuner.api import app as module
from tuner.api import create_app
from tuner.api.projects import FILTERED
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointSaved
from tuner.domain.keys import trial_id
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import ExperimentState
from tuner.settings import Quota, Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.usercode.entrypoints import EntrypointChecker

EXPERIMENTS = "/api/v1/experiments"
CHECKPOINT = "ckp_5ecre7"


@dataclass
class Project:
    """A project with one experiment, and the texts by which its content can be told."""

    name: str
    ids: Mapping[str, str]
    marks: list[str]
    head: dict[str, str]


def fill(store: Store, name: str, role: Role = Role.ADMIN) -> Project:
    """Create an experiment with everything that an experiment can have, in a project, and a token of the project."""
    spec = a_spec(
        f"search of {name}", project=name, space={f"width_{name}": {"type": "uniform", "lower": 0, "upper": 1}}
    )
    made, epoch, trials = begin(store, spec=spec)
    saved = f"{CHECKPOINT}{name}"
    entries = [
        (4, a_report(0, 1, **{"accuracy": 0.5, f"loss_{name}": 0.5})),
        (
            5,
            CheckpointSaved(
                time=T0 + 2,
                trial=0,
                segment=1,
                checkpoint=CheckpointInfo(id=saved, step=1, uri=f"/of/{name}", bytes=9),
            ),
        ),
    ]
    store.drivers.commit(made.id, epoch, Batch(log=entries, trials=trials), T0 + 2)
    store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, f"printed by {name}\n".encode(), T0)]})
    secret, token = store.access.create_token(f"token of {name}", role, project=name)
    hook = store.webhooks.create(f"https://hooks.invalid/of/{name}", ["trial.failed"], project=name)
    ids = {
        "experiment_id": made.public_id,
        "trial_id": trial_id(made.public_id, 0),
        "checkpoint_id": saved,
        "token_id": token.id,
        "webhook_id": hook.public_id,
    }
    marks = [*ids.values(), f"of {name}", f"width_{name}", f"loss_{name}", f"of/{name}", f"by {name}"]
    store.projects.change(name, warm_start="auto")
    return Project(name, {**ids, "project": name}, marks, {"Authorization": f"Bearer {secret}"})


@pytest.fixture
def ours(sqlite_store: Store) -> Project:
    return fill(sqlite_store, "ours")


@pytest.fixture
def theirs(sqlite_store: Store) -> Project:
    return fill(sqlite_store, "theirs")


@pytest.fixture
def service(sqlite_store: Store, tmp_path: Path, checker: EntrypointChecker) -> FastAPI:
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    app.state.context.checker = checker
    return with_shared_document(app)


@pytest.fixture
async def caller(service: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as client:
        yield client


@dataclass
class Call:
    """One way to call an operation of the document."""

    method: str
    route: str
    path: str
    params: dict[str, Any]
    body: Any


def calls(document: Mapping[str, Any], ids: Mapping[str, str], other: Mapping[str, str]) -> Iterator[Call]:
    """Yield calls of every operation, with these ids in its path, and with each id in every text that it takes.

    Of each operation there is one call without any parameter, and one for each of its query parameters and each of `other`.
    """
    for route, operations in document["paths"].items():
        if "{sha256}" in route:  # whoever knows the SHA-256 of some code has the code
            continue
        for method, operation in operations.items():
            names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            path = route
            for name in names:
                path = path.replace(f"{{{name}}}", ids.get(name, next(iter(ids.values()))))
            bodies: list[Any] = [None]
            if method not in ("get", "delete"):
                bodies = [{}, *({**_texts(document, operation, one), **_spec(one)} for one in other.values())]
            for body in bodies:
                yield Call(method.upper(), route, path, {}, body)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    for one in other.values():
                        yield Call(method.upper(), route, path, {parameter["name"]: one}, {})


def _spec(found: str) -> dict[str, Any]:
    return {"name": "copied", "from": found, "experiment": found, "trial": found, "warm_start": found}


def _texts(document: Mapping[str, Any], operation: Mapping[str, Any], found: str) -> dict[str, Any]:
    """Return a body with this text in each property that a schema of the operation has."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = document["components"]["schemas"].get(content.get("$ref", "").rpartition("/")[2], content)
    return dict.fromkeys(schema.get("properties", {}), found)


async def answer_to(client: httpx.AsyncClient, call: Call, head: Mapping[str, str]) -> tuple[int, str]:
    """Make a call. Return its status and the beginning of its answer, headers included; a stream is left after a moment."""
    body = None if call.method in ("GET", "DELETE") else call.body
    request = client.build_request(call.method, call.path, params=call.params, json=body, headers=head)
    try:
        async with asyncio.timeout(0.5 if call.route.endswith(("/events", "/changes")) else 20):
            response = await client.send(request)
    except TimeoutError:
        return 200, "a stream"
    return response.status_code, f"{response.text} {dict(response.headers)}"


def contents(store: Store) -> dict[str, list[Any]]:
    """Return all rows that belong to somebody, besides the audit trail and what is noted of tokens and sessions."""
    with store._database.read() as connection:
        names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
        left_out = {"audit", "session", "alembic_version", "token"}
        found = {name: connection.execute(text(f"SELECT * FROM {name}")).all() for name in {*names} - left_out}
        found["token"] = connection.execute(text("SELECT public_id, revoked_at FROM token")).all()
    return {name: [row for row in rows if "theirs" in repr(row)] for name, rows in found.items()} | {
        "commands": found["command"]
    }


async def test_nothing_of_another_project_leaks(
    caller: httpx.AsyncClient, service: FastAPI, sqlite_store: Store, ours: Project, theirs: Project
) -> None:
    before, tried = contents(sqlite_store), 0
    document = service.openapi()
    for call in calls(document, theirs.ids, theirs.ids):
        if not call.route.startswith("/api/"):
            continue
        status, found = await answer_to(caller, call, ours.head)
        sent = json.dumps([call.path, call.params, call.body])
        if call.route == "/api/v1/audit":
            sent = json.dumps(theirs.ids)  # it lists the calls of this test
        leaked = [mark for mark in theirs.marks if mark in found and mark not in sent]
        assert not leaked, (call, found)
        if "{" in call.route:
            assert status in (403, 404), (call, status, found)
            assert call.route.removeprefix("/api/v1") in FILTERED or status == 404 or "limited to" in found, call
        tried += 1
    assert tried > 100
    assert contents(sqlite_store) == before


async def test_the_walk_finds_what_its_own_token_may_see(
    caller: httpx.AsyncClient, service: FastAPI, ours: Project
) -> None:
    """The test above would pass without meaning if its calls were all refused."""
    seen: set[str] = set()
    for call in calls(service.openapi(), ours.ids, {}):
        if call.method == "GET" and call.route.startswith("/api/"):
            status, found = await answer_to(caller, call, ours.head)
            missing = ("limited to", "has no best trial", "no log of the driver")
            fine = status in (200, 409, 503) or any(words in found for words in missing)
            assert fine, (call, status, found)
            seen |= {mark for mark in ours.marks if mark in found}
    assert seen >= {*ours.marks} - {"of/ours", ours.ids["checkpoint_id"]}


async def test_a_new_route_is_closed_until_it_is_known_to_filter(
    sqlite_store: Store, ours: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = APIRouter(tags=["new"])

    @router.get("/everything")
    @router.get("/things/{thing_id}")
    def everything(thing_id: str = "") -> list[str]:
        return ["all", thing_id]

    monkeypatch.setattr(module.trials, "router", router)  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "_ROUTES", module._routes())  # otherwise those that were made when it was imported
    service = create_app(Settings(home=tmp_path, auth="on"), sqlite_store)
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    all_projects, _ = sqlite_store.access.create_token("all", Role.VIEWER)
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as caller:
        for path in ("/api/v1/everything", "/api/v1/things/1"):
            refused = await caller.get(path, headers=ours.head)
            assert refused.status_code == 403
            assert "limited to the project 'ours'" in refused.json()["detail"]
            answered = await caller.get(path, headers={"Authorization": f"Bearer {all_projects}"})
            assert answered.status_code == 200


async def test_lists_can_be_filtered_by_project(
    caller: httpx.AsyncClient, sqlite_store: Store, ours: Project, theirs: Project
) -> None:
    secret, _ = sqlite_store.access.create_token("all", Role.VIEWER)
    everybody = {"Authorization": f"Bearer {secret}"}

    async def listed(query: str, head: dict[str, str]) -> list[str]:
        found = await caller.get(f"{EXPERIMENTS}{query}", headers=head)
        assert found.status_code == 200
        return [one["project"] for one in found.json()["items"]]

    assert await listed("", everybody) == ["theirs", "ours"]
    assert await listed("?project=ours", everybody) == ["ours"]
    assert await listed("", ours.head) == ["ours"]
    assert await listed("?project=theirs", ours.head) == []


async def test_a_name_finds_no_experiment_of_another_project(
    caller: httpx.AsyncClient, ours: Project, theirs: Project
) -> None:
    for called, status in (("search of ours", 200), ("search of theirs", 404)):
        found = await caller.get(f"{EXPERIMENTS}/{called}", headers=ours.head)
        assert found.status_code == status
    assert "theirs" not in found.json()["detail"].replace("'search of theirs'", "")
    assert "in the project 'ours', to which your access is limited" in found.json()["detail"]


async def test_an_agent_of_a_project_may_use_a_name_that_an_ended_experiment_has_too(
    caller: httpx.AsyncClient, sqlite_store: Store
) -> None:
    ended, epoch, trials = begin(sqlite_store, spec=a_spec("again", project="ours", executor="agents"))
    end = Batch(log=[], trials=trials, state=ExperimentState.COMPLETED)
    sqlite_store.drivers.commit(ended.id, epoch, end, T0 + 9)
    begin(sqlite_store, spec=a_spec("again", project="ours", executor="agents"))
    for project in ("ours", None):
        secret, _ = sqlite_store.access.create_token("agent", Role.AGENT, project=project)
        head = {"Authorization": f"Bearer {secret}"}
        answer = await caller.post(f"{EXPERIMENTS}/again/assignments", json={}, headers=head)
        assert (answer.status_code, "no driver" in answer.json()["detail"]) == (503, True), answer.text
    begin(sqlite_store, spec=a_spec("again", project="ours", executor="agents"))
    secret, _ = sqlite_store.access.create_token("agent", Role.AGENT, project="ours")
    answer = await caller.post(
        f"{EXPERIMENTS}/again/assignments", json={}, headers={"Authorization": f"Bearer {secret}"}
    )
    assert answer.status_code == 409, "two of them have not ended"


async def test_the_list_of_projects_has_what_they_used_and_their_quotas(
    sqlite_store: Store, ours: Project, theirs: Project, tmp_path: Path
) -> None:
    quotas = (Quota("ours", "GPU", 4.0), Quota("ours", "CPU", 32.0), Quota("idle", "GPU", 1.0), Quota("*", "GPU", 2.0))
    app = create_app(Settings(home=tmp_path, auth="on", quotas=quotas), sqlite_store, web=tmp_path / "web")
    second = sqlite_store.experiments.create(a_spec("again", project="ours"), now=T0 + 60)
    with sqlite_store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET gpu_hours = 1.5, cpu_hours = 3, gpu_hours_saved = 0.5", ())
        cursor.execute("UPDATE experiment SET state = 'completed', archived_at = 1 WHERE id = ?", (second.id,))
    everybody = {"Authorization": f"Bearer {sqlite_store.access.create_token('all', Role.VIEWER)[0]}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://box.lan:8000", headers=everybody
    ) as caller:
        found = (await caller.get("/api/v1/projects")).json()["items"]
        assert [(one["name"], one["experiments"], one["archived"], one["running"]) for one in found] == [
            ("idle", 0, 0, 0),
            ("ours", 2, 1, 1),
            ("theirs", 1, 0, 1),
        ]
        assert [one["quota"] for one in found] == [{"GPU": 1.0}, {"GPU": 4.0, "CPU": 32.0}, {"GPU": 2.0}]
        assert [(one["gpu_hours"], one["cpu_hours"], one["gpu_hours_saved"]) for one in found] == [
            (0.0, 0.0, 0.0),
            (3.0, 6.0, 1.0),
            (1.5, 3.0, 0.5),
        ]
        assert found[0]["latest_at"] is None
        assert found[1]["latest_at"] == "2023-11-14T22:14:20.000000Z"
        limited = (await caller.get("/api/v1/projects", headers=theirs.head)).json()["items"]
        assert limited == [found[2]], "nothing of other projects, not even their quotas"


async def test_editors_change_the_settings_of_their_project(
    caller: httpx.AsyncClient, sqlite_store: Store, theirs: Project
) -> None:
    heads = {
        role: {"Authorization": f"Bearer {sqlite_store.access.create_token('one', role, project='ours')[0]}"}
        for role in (Role.VIEWER, Role.EDITOR)
    }
    url = "/api/v1/projects/ours"
    assert (await caller.get(url, headers=heads[Role.VIEWER])).status_code == 404, "it has nothing yet"
    assert (await caller.patch(url, json={"warm_start": "auto"}, headers=heads[Role.VIEWER])).status_code == 403
    made = await caller.patch(url, json={"warm_start": "auto"}, headers=heads[Role.EDITOR])
    assert (made.status_code, made.json()["warm_start"], made.json()["experiments"]) == (200, "auto", 0)
    assert (await caller.get(url, headers=heads[Role.VIEWER])).json() == made.json()
    assert (await caller.get("/api/v1/projects", headers=heads[Role.VIEWER])).json()["items"] == [made.json()]
    same = await caller.patch(url, json={}, headers=heads[Role.EDITOR])
    assert same.json()["warm_start"] == "auto", "what is left out stays"
    for wrong in ("always", ["old"], True):
        refused = await caller.patch(url, json={"warm_start": wrong}, headers=heads[Role.EDITOR])
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/warm_start")
    off = await caller.patch(url, json={"warm_start": None}, headers=heads[Role.EDITOR])
    assert (off.status_code, off.json()["warm_start"]) == (200, None)
    for other in ("theirs", "new"):
        path = f"/api/v1/projects/{other}"
        assert (await caller.get(path, headers=heads[Role.EDITOR])).status_code == 404
        assert (await caller.patch(path, json={"warm_start": None}, headers=heads[Role.EDITOR])).status_code == 404
    assert sqlite_store.projects.settings("theirs").warm_start == "auto"
    admin = {"Authorization": f"Bearer {sqlite_store.access.create_token('all', Role.ADMIN)[0]}"}
    for wrong in ("a b", "x" * 101, "-a"):
        refused = await caller.patch(f"/api/v1/projects/{wrong}", json={"warm_start": "auto"}, headers=admin)
        assert refused.status_code == 404
        assert "no project can have the name" in refused.json()["detail"]
    assert set(sqlite_store.projects.all()) == {"theirs"}


async def test_an_experiment_takes_the_warm_start_of_its_project_unless_it_names_its_own(
    caller: httpx.AsyncClient, sqlite_store: Store, ours: Project
) -> None:
    async def posted(**fields: Any) -> dict[str, Any]:
        key = {"Idempotency-Key": fields.pop("key")} if "key" in fields else {}
        made = await caller.post(EXPERIMENTS, json={**SPEC, **fields}, headers={**ours.head, **key})
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()
        return found

    def said(made: dict[str, Any]) -> list[str]:
        return list(sqlite_store.experiments.get(made["id"]).spec.earlier.get("notes", ()))

    taken = await posted(key="monday")
    assert taken["warm_start"] == "auto"
    assert said(taken)[0] == "takes warm_start=\"auto\", the default of the project 'ours'"
    several = await posted(metric=["accuracy", "loss"], mode=["max", "min"], scheduler={"type": "fifo"})
    assert several["warm_start"] is None
    assert said(several)[0].startswith(
        "did not take warm_start=\"auto\", the default of the project 'ours': an experiment"
    )
    own = await posted(warm_start=None)
    assert (own["warm_start"], said(own)) == (None, [])
    sqlite_store.projects.change("ours", warm_start=None)
    again = await posted(key="monday")
    assert again == taken, "neither the experiment nor a repeated request knows of the change"
    assert (await posted())["warm_start"] is None
    named = await posted(warm_start="auto")
    assert named["warm_start"] == "auto"
    assert not any("default of the project" in note for note in said(named))
    elsewhere = await caller.post(EXPERIMENTS, json={**SPEC, "project": "theirs"}, headers=ours.head)
    assert elsewhere.status_code == 422


async def test_an_experiment_is_created_in_the_project_of_the_token(
    caller: httpx.AsyncClient, sqlite_store: Store, ours: Project
) -> None:
    made = await caller.post(EXPERIMENTS, json=SPEC, headers=ours.head)
    assert (made.status_code, made.json()["project"]) == (201, "ours")
    named = await caller.post(EXPERIMENTS, json={**SPEC, "project": "theirs"}, headers=ours.head)
    assert (named.status_code, named.json()["errors"][0]["pointer"]) == (422, "/project")
    assert (await caller.post(EXPERIMENTS, json=[SPEC], headers=ours.head)).status_code == 422
    secret, _ = sqlite_store.access.create_token("all", Role.EDITOR)
    everybody = {"Authorization": f"Bearer {secret}"}
    made = await caller.post(EXPERIMENTS, json={**SPEC, "project": "new"}, headers=everybody)
    assert (made.status_code, made.json()["project"]) == (201, "new")
    made = await caller.post(EXPERIMENTS, json=SPEC, headers=everybody)
    assert made.json()["project"] == "default"


async def test_a_fork_stays_in_its_project(
    caller: httpx.AsyncClient, sqlite_store: Store, ours: Project, theirs: Project
) -> None:
    url = f"{EXPERIMENTS}/{ours.ids['experiment_id']}/fork"
    fine = {"entrypoint": SPEC["entrypoint"]}
    made = await caller.post(url, json={"changes": fine}, headers=ours.head)
    assert (made.status_code, made.json().get("project")) == (201, "ours"), made.text
    for changes, pointer in (
        ({"project": "theirs"}, "/project"),
        ({"warm_start": [theirs.ids["experiment_id"]]}, "/warm_start/0"),
        ({"warm_start": ["search of theirs"]}, "/warm_start/0"),
    ):
        refused = await caller.post(url, json={"changes": {**fine, **changes}}, headers=ours.head)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    other = await caller.post(f"{EXPERIMENTS}/{theirs.ids['experiment_id']}/fork", json={}, headers=ours.head)
    assert other.status_code == 404


async def test_two_projects_may_use_the_same_idempotency_key(
    caller: httpx.AsyncClient, ours: Project, theirs: Project
) -> None:
    made = [
        await caller.post(EXPERIMENTS, json=SPEC, headers={**one.head, "Idempotency-Key": "monday"})
        for one in (ours, theirs, ours)
    ]
    assert [one.status_code for one in made] == [201, 201, 201]
    first, other, again = (one.json()["id"] for one in made)
    assert first == again != other


async def test_an_admin_of_a_project_manages_its_tokens_only(
    caller: httpx.AsyncClient, ours: Project, theirs: Project, sqlite_store: Store
) -> None:
    made = await caller.post("/api/v1/tokens", json={"name": "ci", "role": "editor"}, headers=ours.head)
    assert (made.status_code, made.json()["project"]) == (201, "ours")
    other = {"name": "ci", "role": "editor", "project": "theirs"}
    assert (await caller.post("/api/v1/tokens", json=other, headers=ours.head)).status_code == 422
    listed = (await caller.get("/api/v1/tokens", headers=ours.head)).json()["items"]
    assert {one["project"] for one in listed} == {"ours"}
    revoked = await caller.post(f"/api/v1/tokens/{theirs.ids['token_id']}/revoke", headers=ours.head)
    assert revoked.status_code == 404
    assert (await caller.get(EXPERIMENTS, headers=theirs.head)).status_code == 200
    trail = (await caller.get("/api/v1/audit", headers=ours.head)).json()["items"]
    assert {one["actor"] for one in trail} == {"token of ours"}
    assert not sqlite_store.access.has_admin(), "an admin of one project cannot manage the service"


@pytest.mark.parametrize("wrong", ["", "a b", "../x", "x" * 101, "-a", 3])
async def test_a_wrong_name_of_a_project_is_told_of(
    caller: httpx.AsyncClient, sqlite_store: Store, wrong: object
) -> None:
    secret, _ = sqlite_store.access.create_token("all", Role.ADMIN)
    head = {"Authorization": f"Bearer {secret}"}
    for path, body in ((EXPERIMENTS, SPEC), ("/api/v1/tokens", {"name": "ci", "role": "viewer"})):
        answer = await caller.post(path, json={**body, "project": wrong}, headers=head)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/project")
