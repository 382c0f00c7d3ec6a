"""Packages of local directories: who uses them, and when they are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import SPEC
from tests.store.examples import a_spec
from tuner.api.housekeeping import clean_up
from tuner.driver.assemble import Parts
from tuner.errors import SpecError
from tuner.experiment.code import local_packages
from tuner.experiment.code.local_packages import UNUSED_S, Packages
from tuner.experiment.operations import usecases
from tuner.experiment.operations.fork import fork_experiment
from tuner.experiment.operations.removal import delete_experiment
from tuner.settings import Settings
from tuner.store import ExperimentRecord, Store
from tuner.trials.checkpoints import packages
from tuner.usercode.entrypoints import EntrypointChecker


@pytest.fixture(scope="module")
def checker() -> Iterator[EntrypointChecker]:
    checker = EntrypointChecker()
    yield checker
    checker.close()


class Service:
    """Create and delete experiments that use one directory."""

    def __init__(self, store: Store, checker: EntrypointChecker, home: Path) -> None:
        self.store, self.checker = store, checker
        self.settings = Settings(home=home / "home", storage=str(home / "storage"))
        self.code = home / "code"
        self.code.mkdir()
        (self.code / "shipped_here.py").write_text("def train(config): ...")

    def create(self, **changes: Any) -> ExperimentRecord:
        data = {
            **SPEC,
            "entrypoint": "shipped_here:train",
            "runtime_env": {"working_dir": str(self.code)},
            **changes,
        }
        return usecases.create_experiment(self.store, data, self.checker, storage=self.settings.storage)

    def delete(self, record: ExperimentRecord) -> None:
        delete_experiment(
            self.store, record.public_id, storage=self.settings.storage, home=self.settings.home, force=True
        )

    def age(self) -> None:
        """Let all packages have been used long ago."""
        with self.store._database.write() as cursor:
            cursor.execute("UPDATE package SET used_at = used_at - ?", (2 * UNUSED_S,))


@pytest.fixture
def service(store: Store, checker: EntrypointChecker, tmp_path: Path) -> Service:
    return Service(store, checker, tmp_path)


def package_of(record: ExperimentRecord) -> Path:
    return Path(record.spec.resolved["runtime_env"]["working_dir"].removeprefix("file://"))


@pytest.mark.parametrize("own_storage", [None, "its own", "whose?"])
def test_a_package_is_deleted_with_the_last_experiment_that_uses_it(
    service: Service, tmp_path: Path, own_storage: str | None
) -> None:
    changes = {"checkpoint": {"storage": str(tmp_path / own_storage)}} if own_storage else {}
    first, second = service.create(**changes), service.create(**changes)
    package = package_of(first)
    assert package == package_of(second)
    assert package.is_relative_to(tmp_path / (own_storage or "storage"))
    service.age()
    service.delete(first)
    assert Packages(service.store).prune() == 0
    assert package.is_file(), "the second experiment uses it"
    service.delete(second)
    assert not package.exists()
    assert package_of(service.create(**changes)).is_file()


def test_a_package_that_was_just_used_is_deleted_later(service: Service) -> None:
    """Another request may be about to create an experiment with it."""
    record = service.create()
    service.delete(record)
    assert package_of(record).is_file()
    assert clean_up(service.store, service.settings, time.time()) == {}
    found = clean_up(service.store, service.settings, time.time() + 1.1 * UNUSED_S)
    assert found == {"packages of local directories": 1}
    assert not package_of(record).exists()


def test_a_fork_keeps_its_package(service: Service) -> None:
    record = service.create()
    fork = fork_experiment(service.store, record.public_id, {}, service.checker, storage=service.settings.storage)
    service.age()
    service.delete(record)
    assert package_of(fork).is_file()


@pytest.mark.parametrize("first", ["creation", "deletion"])
def test_a_creation_and_the_deletion_exclude_each_other(
    service: Service, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever is first: an experiment that was created has its package."""
    record = service.create()
    service.age()
    if first == "creation":
        # the directory is packed again, and the last experiment is deleted before the new one is there
        spec = usecases.packed(service.store, replace(record.spec, code=None), service.settings.storage)
        service.delete(record)
        assert Packages(service.store).prune() == 0
        assert package_of(service.store.experiments.create(spec)).is_file()
        return
    # the deletion has marked the package, and is about to delete the file: a creation stores the content once more
    delete, made = local_packages._delete, []
    code = service.store.code.get(str(record.code_hash))

    def deletes(uri: str) -> bool:
        with pytest.raises(SpecError, match="is being deleted"):
            service.create(runtime_env={"working_dir": uri})
        with pytest.raises(SpecError, match="is being deleted"):
            of_script = {**SPEC, "runtime_env": {"working_dir": uri}}
            usecases.create_from_python(service.store, of_script, code, Parts())
        made.append(service.create())
        return delete(uri)

    monkeypatch.setattr(local_packages, "_delete", deletes)
    service.delete(record)
    assert not package_of(record).exists()
    assert package_of(made[0]).is_file()
    assert package_of(service.create()) == package_of(made[0])


def test_the_same_package_in_another_bucket_of_the_same_name_is_stored_there(sqlite_store: Store) -> None:
    kept = [Packages(sqlite_store)._named(f"s3://b/packages/1.zip{query}") for query in ("?endpoint=a", "?endpoint=b")]
    assert [uri.partition("?")[2] for uri in kept] == ["endpoint=a", "endpoint=b"]


def test_the_database_of_somebody_else_may_have_the_same_package(service: Service, tmp_path: Path) -> None:
    """Two services share a storage. Neither deletes what the other one, or a script, has stored there."""
    with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as store:
        store.migrate()
        (tmp_path / "other").mkdir()
        other = Service(store, service.checker, tmp_path / "other")
        other.settings = service.settings
        of_script = packages.ship({"working_dir": str(service.code)}, service.settings.storage)["working_dir"]
        ours, theirs = service.create(), other.create()
        service.store.experiments.create(a_spec(runtime_env={"working_dir": of_script}))
        service.age()
        service.delete(ours)
        assert not package_of(ours).exists()
        assert package_of(theirs).is_file()
        assert Path(of_script.removeprefix("file://")).is_file()


def test_a_storage_that_does_not_answer_delays_only_the_package(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = service.create()
    service.age()
    delete = local_packages._delete

    def fails(uri: str) -> bool:
        raise OSError("the storage does not answer")

    monkeypatch.setattr(local_packages, "_delete", fails)
    service.delete(record)
    monkeypatch.setattr(local_packages, "_delete", delete)
    assert Packages(service.store).prune() == 0, "another process may still be deleting it"
    assert Packages(service.store).prune(now=time.time() + UNUSED_S) == 1
    assert not package_of(record).exists()
