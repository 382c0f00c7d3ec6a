"""The search path of an entrypoint, and when another machine may find what this one cannot."""

from __future__ import annotations

import dataclasses
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import SPEC
from tests.schedulers.examples import SCHEDULERS
from tests.store.examples import begin
from tuner.errors import EntrypointError, NotFound, SpecError
from tuner.experiment.operations import usecases
from tuner.experiment.operations.usecases import numbered
from tuner.store import ExperimentRecord, Store
from tuner.usercode.entrypoints import EntrypointChecker


@pytest.fixture(scope="module")
def checker() -> Iterator[EntrypointChecker]:
    checker = EntrypointChecker()
    yield checker
    checker.close()


def test_the_working_dir_of_the_runtime_env_comes_first(
    sqlite_store: Store, checker: EntrypointChecker, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.py").write_text("def train(config): ...")
    package = tmp_path / "lib" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def train(config): ...")
    env = {"working_dir": str(tmp_path / "project"), "py_modules": [str(package)]}
    for entrypoint in ("mine:train", "pack:train"):
        made = usecases.create_experiment(sqlite_store, {**SPEC, "entrypoint": entrypoint, "runtime_env": env}, checker)
        assert made.code_hash is not None
        code = sqlite_store.code.get(made.code_hash)
        assert list(code.sys_path) == [str(tmp_path / "project"), str(package), str(tmp_path / "lib"), os.getcwd()]
        assert (code.blob, made.spec.code) == (None, made.code_hash)
        assert "torch" in code.packages


def test_a_service_whose_folder_has_been_deleted_says_so(
    sqlite_store: Store, checker: EntrypointChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpecError, match="the current folder of this process has been deleted"):
        usecases.create_experiment(sqlite_store, {**SPEC, "entrypoint": "mine:train"}, checker)


@pytest.mark.parametrize(
    "parts",
    [
        *(
            {"scheduler": scheduler, "max_t": 27}
            for scheduler in SCHEDULERS.values()
            if scheduler["type"] != "pbt_replay"
        ),
        {"scheduler": {"type": "pbt_replay", "schedule": [{"iteration": 0, "params": {"lr": 0.01, "width": 16}}]}},
        *(
            {"search": {"type": kind}, "scheduler": {"type": "fifo"}}
            for kind in ("tpe", "gp", "qmc", "cmaes", "nsgaii")
        ),
        {"search": {"type": "bohb"}},
        {"search": {"type": "tpe", "constraints": {"size": {"max": 1.0}}}, "scheduler": {"type": "fifo"}},
        {"scheduler": "auto", "search": "auto", "num_samples": None},
        {"metric": ["accuracy", "size"], "mode": ["max", "min"], "scheduler": {"type": "fifo"}},
        {"stop": {"accuracy": 0.9}, "points_to_evaluate": [{"lr": 0.01}], "tags": {"team": "ü"}, "notes": "two\nlines"},
        {"runtime_env": {"env_vars": {"A": "b"}}, "checkpoint": {"frequency": 2}, "warm_start": []},
    ],
    ids=str,
)
def test_the_record_of_a_new_experiment_is_the_one_that_is_read_later(
    sqlite_store: Store, checker: EntrypointChecker, parts: dict[str, Any]
) -> None:
    """A new experiment's record has the spec that was checked, without its way through JSON and the database."""
    made = usecases.create_experiment(sqlite_store, {**SPEC, **parts}, checker)
    later = sqlite_store.experiments.get(made.public_id)
    assert made == later
    assert made.spec.resolved == later.spec.resolved, "which does not count when specs are compared"
    assert dataclasses.asdict(made) == dataclasses.asdict(later)
    assert made.as_created() is made, "nothing has happened since then"


@pytest.mark.parametrize(
    "env",
    [{"pip": ["x"]}, {"working_dir": "s3://bucket/code.zip"}, {"py_modules": ["https://x/y.zip"]}, {"image_uri": "x"}],
)
def test_what_workers_may_have_and_we_have_not_is_left_to_them(
    sqlite_store: Store, checker: EntrypointChecker, env: dict[str, Any]
) -> None:
    data = {**SPEC, "entrypoint": "only_there:train", "runtime_env": env}
    made = usecases.create_experiment(sqlite_store, data, checker)
    again = usecases.create_experiment(sqlite_store, data, checker)
    other = usecases.create_experiment(sqlite_store, {**data, "runtime_env": {**env, "pip": ["y"]}}, checker)
    assert made.code_hash == again.code_hash != other.code_hash


def test_what_nobody_can_import_is_refused(sqlite_store: Store, checker: EntrypointChecker, tmp_path: Path) -> None:
    for env in ({}, {"env_vars": {"A": "b"}}, {"working_dir": str(tmp_path)}):
        with pytest.raises(EntrypointError, match="only_there"):
            usecases.create_experiment(
                sqlite_store, {**SPEC, "entrypoint": "only_there:train", "runtime_env": env}, checker
            )
    assert sqlite_store.experiments.page().items == ()


def test_an_edited_file_is_new_code_and_the_same_request(
    sqlite_store: Store, checker: EntrypointChecker, tmp_path: Path
) -> None:
    file = tmp_path / "edited.py"
    data = {**SPEC, "entrypoint": "edited:train", "runtime_env": {"working_dir": str(tmp_path)}}
    file.write_text("def train(config): ...")
    first = usecases.create_experiment(sqlite_store, data, checker, idempotency_key="key")
    file.write_text("def train(config): print('edited')")
    second = usecases.create_experiment(sqlite_store, data, checker)
    assert first.code_hash != second.code_hash
    assert usecases.create_experiment(sqlite_store, data, checker, idempotency_key="key") == first


def test_local_directories_are_packed_once_for_all_workers(
    sqlite_store: Store, checker: EntrypointChecker, tmp_path: Path
) -> None:
    """Ray refuses the path of a directory for a single actor."""
    code, storage = tmp_path / "code", str(tmp_path / "storage")
    code.mkdir()
    (code / "packed_here.py").write_text("def train(config): ...")
    env = {"working_dir": str(code), "env_vars": {"A": "b"}}
    data = {**SPEC, "entrypoint": "packed_here:train", "runtime_env": env}

    def create() -> ExperimentRecord:
        return usecases.create_experiment(sqlite_store, data, checker, idempotency_key="key", storage=storage)

    made = sqlite_store.experiments.get(create().public_id)
    shipped = made.spec.resolved["runtime_env"]
    assert (made.spec.runtime_env, shipped["env_vars"]) == (env, {"A": "b"})
    with zipfile.ZipFile(shipped["working_dir"].removeprefix("file://")) as found:
        assert found.namelist() == ["package/packed_here.py"]  # without __pycache__
    shutil.rmtree(code)
    assert create().public_id == made.public_id, "a repeated request does not need the directory"
    (tmp_path / "code").mkdir()
    (code / "packed_here.py").write_text("def train(config): ...")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="runtime_env: the local directories cannot be packed: .*Not a directory.*file"):
        usecases.create_experiment(sqlite_store, data, checker, storage=str(tmp_path / "file" / "storage"))


def test_the_error_for_a_trial_that_is_not_there_names_the_experiment_and_its_trials(sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store, 2)
    with pytest.raises(NotFound, match=rf"the experiment '{made.name}' has no trial 99; its trials are 0 to 1"):
        numbered(sqlite_store, made.public_id, 99)
    usecases.check_number(made.name, 0, 2)
    assert numbered(sqlite_store, made.public_id, 1) == sqlite_store.trials.page(made.id).items[1].public_id


def test_every_mistake_of_a_spec_is_listed_at_once_also_those_of_its_entrypoint(checker: EntrypointChecker) -> None:
    spec = {
        "entrypoint": "nowhere_at_all:train",
        "metric": "accuracy",
        "mode": "most",
        "num_samples": 4,
        "space": {"lr": {"type": "uniform", "lower": 0.1, "upper": 1}},
        "scheduler": {"type": "asha", "max_t": -3, "grace": 1},
    }
    with pytest.raises(SpecError) as caught:
        usecases.dry_run(spec, checker)
    assert {pointer for pointer, _ in caught.value.errors} == {
        "/mode",
        "/scheduler/grace",
        "/scheduler/max_t",
        "/entrypoint",
    }


def test_a_spec_for_local_processes_may_not_ask_for_what_they_lack() -> None:
    spec = {**SPEC, "entrypoint": "module:train", "executor": "local", "scaling": {}}
    assert usecases.parsed(spec)[0].executor == "local"
    for more in ({"scaling": {"num_workers": 2}}, {"scaling": {"use_gpu": True}}, {"runtime_env": {"pip": ["x"]}}):
        with pytest.raises(SpecError, match="executor: the local executor cannot run this"):
            usecases.parsed({**spec, **more})
