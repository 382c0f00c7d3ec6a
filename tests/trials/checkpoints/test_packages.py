"""Directories of this machine in a runtime_env."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import packaging.utils
import packaging.version
import pytest
from ray._private.runtime_env.packaging import get_top_level_dir_from_compressed_package

from tuner.errors import SpecError
from tuner.trials.checkpoints.packages import ship, unpacked


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("train.py", "data/a.csv", "data/b.bin", ".git/config", "pkg/__pycache__/x.pyc", "pkg/m.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def names(uri: str) -> list[str]:
    with zipfile.ZipFile(uri.removeprefix("file://")) as archive:
        return sorted(archive.namelist())


def test_directories_become_packages_and_the_rest_stays(project: Path, tmp_path: Path) -> None:
    storage = str(tmp_path / "storage")
    environment = {
        "env_vars": {"A": "1"},
        "pip": ["x"],
        "working_dir": str(project),
        "excludes": ["*.bin"],
        "py_modules": [],
    }
    shipped = ship(environment, storage)
    assert {k: v for k, v in shipped.items() if k != "working_dir"} == {
        "env_vars": {"A": "1"},
        "pip": ["x"],
        "py_modules": [],
    }
    assert names(shipped["working_dir"]) == ["package/data/a.csv", "package/pkg/m.py", "package/train.py"]
    assert ship(shipped, storage) == shipped


def test_only_files_are_packed(project: Path, tmp_path: Path) -> None:
    """The lock of an editor, which is a link that leads nowhere, was an error, and a pipe was waited for forever."""
    (project / ".#train.py").symlink_to("user@host.1234:5678")
    (project / "linked.py").symlink_to(project / "train.py")
    os.mkfifo(project / "pipe")
    shipped = ship({"working_dir": str(project), "excludes": ["data", "pkg"]}, str(tmp_path / "storage"))
    assert names(shipped["working_dir"]) == ["package/linked.py", "package/train.py"]


def test_links_to_folders_are_followed_as_ray_does(project: Path, tmp_path: Path) -> None:
    """Folders that are links were left out, so their modules were missing. Links that lead in a circle have no end."""
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    (shared / "deep" / "lib.py").touch()
    (shared / "back").symlink_to(project)
    (shared / "deep" / "up").symlink_to("..")
    (project / "common").symlink_to(shared)
    (project / "self").symlink_to(".")
    shipped = ship({"working_dir": str(project), "excludes": ["data", "pkg"]}, str(tmp_path / "storage"))
    assert names(shipped["working_dir"]) == ["package/common/deep/lib.py", "package/train.py"]


def test_a_file_with_a_name_that_no_package_can_have_is_named(project: Path, tmp_path: Path) -> None:
    (project / os.fsdecode(b"r\xe9sum\xe9.txt")).touch()  # Latin-1
    with pytest.raises(SpecError, match=r"runtime_env.working_dir: .*not UTF-8, 'r\\udce9sum\\udce9.txt': .*excludes"):
        ship({"working_dir": str(project)}, str(tmp_path / "storage"))
    shipped = ship({"working_dir": str(project), "excludes": ["*.txt", "data", "pkg"]}, str(tmp_path / "storage"))
    assert names(shipped["working_dir"]) == ["package/train.py"]


def test_a_module_keeps_its_name(project: Path, tmp_path: Path) -> None:
    shipped = ship({"py_modules": [str(project / "pkg"), "s3://bucket/x.zip"]}, str(tmp_path / "storage"))
    assert names(shipped["py_modules"][0]) == ["package/pkg/m.py"]
    assert shipped["py_modules"][1] == "s3://bucket/x.zip"


def test_equal_content_has_one_name_and_other_content_another(project: Path, tmp_path: Path) -> None:
    first = ship({"working_dir": str(project)}, str(tmp_path / "storage"))
    assert ship({"working_dir": project}, str(tmp_path / "storage")) == first
    (project / "train.py").write_text("changed")
    assert ship({"working_dir": str(project)}, str(tmp_path / "storage")) != first


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"runtime_env.working_dir: there is no directory.*nowhere"):
        ship({"working_dir": str(tmp_path / "nowhere")}, str(tmp_path))
    with pytest.raises(SpecError, match=r"runtime_env.py_modules.1"):
        ship({"py_modules": ["s3://a/b.zip", str(tmp_path / "nowhere")]}, str(tmp_path))


@pytest.mark.parametrize("tags", ["py3-none-any", "7-py3-none-any"])
def test_a_wheel_that_was_built_again_under_the_same_name_is_another_package(tmp_path: Path, tags: str) -> None:
    path, storage, uris = tmp_path / f"mine-1.0-{tags}.whl", str(tmp_path / "storage"), []
    for value in ("1", "2"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("mine.py", f"VALUE = {value}\n")
        [uri] = ship({"py_modules": [str(path)]}, storage)["py_modules"]
        assert Path(uri.removeprefix("file://")).read_bytes() == path.read_bytes()
        uris.append(uri)
    names = [uri.rpartition("/")[2] for uri in uris]
    assert names[0] != names[1]
    for name in names:  # pip takes the name and the version from the name, and the build tag must begin with a digit
        assert packaging.utils.parse_wheel_filename(name)[:2] == ("mine", packaging.version.Version("1.0"))


@pytest.mark.parametrize(
    ("names", "top"),
    [
        (["rules.py"], ""),
        (["proj/rules.py", "proj/data/x.txt"], "proj"),
        (["proj/rules.py", "__MACOSX/._proj"], "proj"),
        (["proj/rules.py", "other/more.py"], ""),
        (["proj/rules.py", "README"], ""),
    ],
)
def test_a_zip_is_unpacked_as_ray_does_it(tmp_path: Path, names: list[str], top: str) -> None:
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x = 1")
    assert (get_top_level_dir_from_compressed_package(str(path)) or "") == top
    directory, sys_path = unpacked({"working_dir": path.as_uri()}, str(tmp_path / "out"))
    assert sys_path == [directory]
    assert directory is not None
    assert Path(directory) == tmp_path / "out" / "0" / top
