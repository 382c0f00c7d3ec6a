"""Checks that are made before a private Ray is started."""

from __future__ import annotations

import faulthandler
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import tuner
from tuner.domain.experiment import Scaling
from tuner.errors import ClusterUnreachable, SpecError
from tuner.hosts.ray import cluster, tokens
from tuner.sdk import cautions
from tuner.settings import Settings
from tuner.store import Store
from tuner.trials.compat import ray_compat
from tuner.trials.groups.pools import removal


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pretend that the machine has 4 CPUs and a GPU, and that this process is connected to no Ray and starts none."""
    monkeypatch.setattr(cluster, "this_machine", lambda: {"CPU": 4.0, "GPU": 1.0})
    monkeypatch.setattr("tuner.sdk.driving.connected", lambda: False)
    monkeypatch.setattr("tuner.sdk.run._drive", lambda *_, **__: "driven")
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))


def run(**options: Any) -> Any:
    return tuner.run(lambda config: None, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", max_t=3, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_workers": 5}, "5 × 1 CPU are requested, but the whole cluster has 4 CPU"),
        ({"resources_per_worker": {"CPU": 8}}, "1 × 8 CPU are requested, but the whole cluster has 4 CPU"),
        ({"num_workers": 2, "use_gpu": True}, "2 × 1 GPU are requested, but the whole cluster has 1 GPU"),
        ({"num_workers": 2, "placement_strategy": "STRICT_SPREAD"}, "STRICT_SPREAD needs 2 nodes"),
    ],
)
@pytest.mark.usefixtures("small")
def test_what_this_machine_can_never_hold_is_said_before_ray_is_started(options: dict[str, Any], says: str) -> None:
    with pytest.raises(
        SpecError, match=rf"scaling: {re.escape(says)}.*only this machine is used, which has 4 CPUs and 1 GPU(\n|$)"
    ):
        run(**options)
    with Store.open(Settings.from_env().database_url) as store:
        assert store.experiments.page().items == (), "nothing waits for a driver"


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 4},
        {"num_workers": 8, "resources_per_worker": {"CPU": 0.5}, "use_gpu": False},
        {"resources_per_worker": {"disk": 7, "memory": 1e12}},  # what only a started Ray knows
        {"num_workers": 5, "ray_address": "auto"},
    ],
)
@pytest.mark.usefixtures("small")
def test_what_may_fit_is_left_to_ray(options: dict[str, Any]) -> None:
    assert run(**options) == "driven"


@pytest.mark.usefixtures("small")
def test_a_process_that_is_connected_may_have_a_larger_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.sdk.driving.connected", lambda: True)
    assert run(num_workers=5) == "driven"


def test_ray_itself_says_what_it_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 7, "GPU": 3}')
    assert ray_compat.this_machine() == {"CPU": 7, "GPU": 3}
    assert cluster.too_large(Scaling(num_workers=7)) is None
    assert cluster.too_large(Scaling(num_workers=8)) is not None
    monkeypatch.setitem(sys.modules, ray_compat.MACHINE, None)
    assert ray_compat.this_machine() is None, "another version of Ray"
    assert cluster.too_large(Scaling(num_workers=8)) is None


def test_a_search_that_never_gets_its_ray_fails_in_one_line(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because ...")

    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr("tuner.hosts.scripts.kept._kept", None)
    with pytest.raises(ClusterUnreachable) as raised:
        run(num_samples=1, verbose=0)
    text = str(raised.value)
    assert text.startswith("Ray could not be started on this machine: The current node timed out during startup. Check")
    assert "\n" not in text
    assert raised.value.__suppress_context__
    with Store.open(sqlite_url) as store:
        [record] = store.experiments.page().items
        assert (record.state, record.error) == ("failed", text)
        assert not store.drivers.claimable(time.time() + 10**6)


def test_a_full_temporary_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cluster.nearly_full() == ""
    monkeypatch.setattr(cluster, "_ROOM_BYTES", 2**62)
    assert re.fullmatch(
        rf" \(the temporary directory {re.escape(str(tmp_path))} has only \d+ MiB free\)", cluster.nearly_full()
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert cluster.nearly_full() == ""


def test_a_private_ray_starts_although_the_path_of_the_temporary_directory_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str | None] = []

    def init(**given: Any) -> None:
        folders.append(given["_temp_dir"])

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(tokens, "begin_private", lambda: None)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for place in ("/var/tmp", "/scratch/a-job-with-a-long-name-of-its-own"):
        monkeypatch.setattr(tempfile, "tempdir", place)
        cluster.connect(None)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    cluster.connect(None)
    assert folders == ["/var/tmp/ray", "/tmp/ray", None]


def test_an_address_without_a_ray_is_told_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("nobody is there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ClusterUnreachable, match=r"Ray at 10\.0\.0\.1:6379 could not be reached: nobody is there.*ray status"
    ):
        cluster.connect("10.0.0.1:6379")


def test_a_folder_whose_path_ray_cannot_send_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "latin-\udcfc"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: str(Path.cwd()).encode())  # Ray fails in the same way
    with pytest.raises(ClusterUnreachable, match=r"a folder whose path is not UTF-8 .*latin-\\udcfc'\. Rename it"):
        cluster.connect("10.0.0.1")


def test_ray_is_used_although_stderr_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: faulthandler.dump_traceback())  # needs stderr, as Ray does
    cluster.connect("10.0.0.1")
    sys.stderr.close()


def test_a_cluster_of_another_python_is_told_with_both_versions() -> None:
    """Ray's message has several lines, and only the first one was shown."""
    error = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\nThis process has Python 3.13.0."
    )
    said = cluster._unreachable("10.0.0.1:6379", error)
    assert "started with: Ray: 2.60.0 Python: 3.12.1 This process has Python 3.13.0. Run this with the versions" in said
    assert "ray status" not in said  # it runs


def test_a_function_that_takes_much_data_along_is_warned_of(small: None) -> None:
    data = np.zeros(cautions.LARGE_BYTES // 8 + 1)

    def train(config: dict[str, Any]) -> None:
        tuner.report({"loss": data.sum()})

    options: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 3, "num_samples": 1}
    with pytest.warns(UserWarning, match=r"is 50 MB when pickled \(most of it is data\).*with_parameters") as seen:
        tuner.run(train, {"x": tuner.uniform(0, 1)}, **options)
    assert seen[0].filename == __file__


@pytest.mark.parametrize("data", [np.zeros(12_500), [0.5] * 12_000], ids=["array", "list"])
def test_a_search_space_with_much_data_is_warned_of(small: None, monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    monkeypatch.setattr(cautions, "LARGE_SPACE_BYTES", 100_000)
    space = {"x": tuner.uniform(0, 1), "data": data, "names": ["a", "b"]}
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 3, "num_samples": 1}
    with pytest.warns(UserWarning, match=r"space is 0.1 MB \(most of it is data\).*with_parameters") as seen:
        tuner.run(lambda config: None, space, **options)
    assert [warning.filename for warning in seen] == [__file__]


def test_a_search_space_without_much_data_is_not_warned_of(small: None, recwarn: pytest.WarningsRecorder) -> None:
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 3, "num_samples": 1}
    tuner.run(lambda config: None, {"x": tuner.uniform(0, 1), "data": np.zeros(10_000)}, **options)
    assert not recwarn.list


def test_the_placement_groups_of_a_host_that_starts_meanwhile_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts were read first, so those of a host that started between the two questions seemed to be left by a dead one."""
    hosts: list[dict[str, str]] = []
    groups: dict[str, dict[str, str]] = {"ab" * 18: {"name": "tuner-host-dead/1", "state": "CREATED"}}

    def start_another() -> None:
        hosts.append({"name": "tuner-host-new", "namespace": "tuner"})
        groups["cd" * 18] = {"name": "tuner-host-new/1", "state": "CREATED"}

    def asked(answer: Any) -> Any:
        found = answer.copy()
        if not hosts:
            start_another()
        return found

    removed: list[str] = []
    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: asked(hosts))
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: asked(groups))
    monkeypatch.setattr(removal, "remove", lambda placement: removed.append(placement.id.hex()))
    assert cluster.remove_orphans() == 1
    assert removed == ["ab" * 18]


def test_the_placement_groups_that_a_dead_host_has_left_are_removed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of those that wait for room takes up to two seconds, so a hundred of them had held up the next host for minutes."""
    groups = {f"{number:02x}" * 18: {"name": f"tuner-host-dead/{number}", "state": "PENDING"} for number in range(3)}
    done: list[tuple[str, str]] = []

    def is_being_placed(of_one: Any) -> bool:
        key = of_one._placement.id.hex()
        done.append(("looked at", key))
        return done.count(("looked at", key)) < 3

    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: [])
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: groups)
    monkeypatch.setattr(removal.Removal, "_is_being_placed", is_being_placed)
    monkeypatch.setattr(
        removal, "remove_placement_group", lambda placement: done.append(("removed", placement.id.hex()))
    )
    assert cluster.remove_orphans() == 3
    assert [what for what, _ in done] == ["looked at"] * 6 + ["looked at", "removed"] * 3


def test_another_version_of_tuner_is_no_reason_if_only_the_cause_of_the_error_would_be() -> None:
    chain = (
        "ray::HostActor.__init__()\nAttributeError: 'NoneType' object has no attribute 'x'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "tuner.errors.StoreError: the database does not answer"
    )
    assert "another version" not in cluster.not_started(RuntimeError(chain))
    assert "another version" in cluster.not_started(RuntimeError(chain.replace("tuner.errors.StoreError", "TypeError")))
