"""Zip files of code: what is sent, and what is refused."""

from __future__ import annotations

import contextlib
import importlib
import io
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import SpecError
from tuner.usercode import archives
from tuner.usercode.archives import Archive, files_of, local_modules, pack, sha256


def zipped(fill: Callable[[zipfile.ZipFile], object]) -> io.BytesIO:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        fill(archive)
    return out


def entry(name: str, mode: int = 0, method: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr, made.compress_type = mode << 16, method
    return made


def test_equal_files_have_the_same_address(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "inner" / "__pycache__").mkdir(parents=True)
        (tmp_path / name / "inner" / "a.py").write_text("x = 1")
        (tmp_path / name / "inner" / "__pycache__" / "a.pyc").write_text(name)
        (tmp_path / name / "link.py").symlink_to("/etc/passwd")
    one, two = (pack(files_of(tmp_path / name)) for name in ("one", "two"))
    assert sha256(one) == sha256(two)
    assert zipfile.ZipFile(io.BytesIO(one)).namelist() == ["inner/a.py"]


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    def refused(files: dict[str, Path]) -> str:
        with pytest.raises(SpecError) as error:
            archives.pack(files)
        return str(error.value)

    with (tmp_path / "data").open("wb") as data:
        data.truncate(2**43)  # without any blocks on the disk, and larger than the memory
    (tmp_path / "a.py").touch()
    assert "the code has more than 500 MiB" in refused({"data": tmp_path / "data"})
    assert (
        refused({"b.py": tmp_path / "b.py"}) == f"bundle: '{tmp_path}/b.py' cannot be read: No such file or directory"
    )
    assert (
        refused({"\udcff.py": tmp_path / "a.py"}) == r"bundle: '\udcff.py' is a name that is not UTF-8; rename the file"
    )


def test_a_zip_file_is_packed_again_below_a_folder_and_unpacked(tmp_path: Path) -> None:
    archive = Archive(zipped(lambda z: (z.writestr("a.py", "x = 1"), z.writestr("b/", ""), z.writestr("b/c.txt", "y"))))
    assert archive.count == 2
    archive.unpack(tmp_path)
    assert (tmp_path / "b" / "c.txt").read_text() == "y"
    again = zipfile.ZipFile(io.BytesIO(archive.repacked("package")))
    assert {name: again.read(name) for name in again.namelist()} == {"package/a.py": b"x = 1", "package/b/c.txt": b"y"}


@pytest.mark.parametrize(
    ("fill", "why"),
    [
        (lambda z: z.writestr("../a.py", ""), "leads out of the archive's folder"),
        (lambda z: z.writestr("b/../../a.py", ""), "leads out of the archive's folder"),
        (lambda z: z.writestr("/etc/cron.d/a", ""), "leads out of the archive's folder"),
        (lambda z: z.writestr("a\\..\\..\\b", ""), "has a colon or a backslash"),
        (lambda z: z.writestr("c:a", ""), "'c:a' has a colon or a backslash"),
        (lambda z: z.writestr("a//b", ""), "leads out of the archive's folder"),
        (lambda z: z.writestr("a\x1b[2J.py", ""), "characters"),
        (lambda z: z.writestr("a" * 300, ""), "too long"),
        (lambda z: z.writestr(entry("a", stat.S_IFLNK | 0o777), "/etc/passwd"), "is a link"),
        (lambda z: z.writestr(entry("a", stat.S_IFCHR | 0o666), ""), "or a device"),
        (lambda z: z.writestr(entry("a", method=zipfile.ZIP_LZMA), "x"), "other than deflate"),
        (lambda z: (z.writestr("a", "x"), z.writestr("A", "y")), "'a' occurs twice"),
        (lambda z: (z.writestr("a", "x"), z.writestr("a/b", "y")), "is in a folder that has the same path as a file"),
        (lambda z: z.writestr("a/", ""), "has no files"),
    ],
)
def test_what_must_not_be_unpacked_is_refused(fill: Callable[[zipfile.ZipFile], object], why: str) -> None:
    with pytest.raises(SpecError, match=why) as caught:
        Archive(zipped(fill))
    assert caught.value.errors[0][0] == "/bundle"


def test_bombs_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1000)
    with pytest.raises(SpecError, match="MiB are allowed"):
        Archive(zipped(lambda z: z.writestr("zeros", b"\0" * 2000)))
    monkeypatch.setattr(archives, "MAX_FILES", 3)
    with pytest.raises(SpecError, match="at most 3 are allowed"):
        Archive(zipped(lambda z: [z.writestr(f"{i}", "") for i in range(4)]))
    monkeypatch.setattr(archives, "MAX_DIRECTORY", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)  # is not even opened
    many = io.BytesIO(pack_of(4))
    with pytest.raises(SpecError, match="central directory\\) has more than 100 bytes"):
        Archive(many)


def pack_of(count: int) -> bytes:
    local = b"PK\3\4" + b"\0" * 26
    listed = b"PK\1\2" + b"\0" * 42
    end = b"PK\5\6" + b"\0" * 4 + count.to_bytes(2, "little") * 2 + (46 * count).to_bytes(4, "little") + b"\0" * 6
    return local * count + listed * count + end


def test_a_size_that_lies_gives_no_more_than_it_says() -> None:
    out = zipped(lambda z: z.writestr(entry("a", method=zipfile.ZIP_DEFLATED), b"\0" * 100_000))
    data = out.getvalue()
    lying = data.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(SpecError, match="'a' cannot be read"):  # its checksum is that of the whole content
        Archive(io.BytesIO(lying)).repacked("package")


def test_an_entry_without_a_name_is_refused() -> None:
    data = zipped(lambda z: z.writestr("a.py", "x = 1")).getvalue().replace(b"a.py", b"\0.py")
    with pytest.raises(SpecError, match="an entry has no name"):
        Archive(io.BytesIO(data)).repacked("package")


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_damage_is_an_error_of_the_request(junk: bytes, at: int, value: int) -> None:
    whole = bytearray(zipped(lambda z: z.writestr("a.py", "x = 1")).getvalue())
    whole[at % len(whole)] = value
    for content in (junk, bytes(whole), bytes(whole) + junk):
        with contextlib.suppress(SpecError):  # and nothing else
            Archive(io.BytesIO(content)).repacked("package")


def test_the_users_own_modules_are_found_also_those_that_they_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_a.py").write_text("import json, numpy, helper_b\nfrom . import x")
    (tmp_path / "helper_b.py").write_text("syntax error (")
    (tmp_path / "helper_p").mkdir()
    (tmp_path / "helper_p" / "__init__.py").write_text("")
    (tmp_path / "helper_p" / "table.csv").write_text("1,2")
    (tmp_path / "unrelated.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(config: object) -> None:
        import helper_a  # type: ignore[import-not-found]
        import numpy

        helper_a.go(numpy)

    found = local_modules(cloudpickle.dumps(train))
    assert {"helper_a.py", "helper_b.py"} <= found.keys()
    assert not {"unrelated.py", "helper_p/__init__.py"} & found.keys()
    assert not any(name.startswith(("numpy", "json", "tuner/")) for name in found)
    assert "helper_a" not in sys.modules, "nothing is imported"
    assert local_modules(None, ["helper_p.sub"]).keys() == {"helper_p/__init__.py", "helper_p/table.csv"}


def test_a_module_that_is_a_link_keeps_the_name_by_which_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "version_2.py").write_text("")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper_link.py").symlink_to("../shared/version_2.py")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    found = local_modules(None, ["helper_link"])
    assert found == {"helper_link.py": tmp_path / "shared" / "version_2.py"}


def test_packages_without_an_init_file_are_the_users_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first/spaced/inner", "second/spaced", "second/data_of_spaced"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "first/spaced/inner/deep.py").write_text("import helper_of_spaced")
    (tmp_path / "first/spaced/both.py").write_text("x = 1")
    (tmp_path / "second/spaced/both.py").write_text("x = 2")
    (tmp_path / "second/spaced/other.py").write_text("")
    (tmp_path / "second/spaced/weights.bin").write_text("")
    (tmp_path / "second/helper_of_spaced.py").write_text("")
    (tmp_path / "second/data_of_spaced/large.bin").write_text("")
    for folder in ("second", "first"):
        monkeypatch.syspath_prepend(tmp_path / folder)

    def train(config: object) -> str:
        from spaced.inner import deep  # type: ignore[import-not-found]

        return str(deep) + "data_of_spaced"

    found = local_modules(cloudpickle.dumps(train))
    assert {path for path in found if "spaced" in path} == {
        "spaced/inner/deep.py",
        "spaced/both.py",
        "spaced/other.py",
        "helper_of_spaced.py",
    }
    assert found["spaced/both.py"] == (tmp_path / "first/spaced/both.py").resolve()
    assert "spaced" not in sys.modules, "nothing is imported"
    assert local_modules(cloudpickle.dumps("spaced spaced.missing")) == {}, "the texts name no module of it"
    (tmp_path / "second/user_of_spaced.py").write_text("import spaced.other")
    assert local_modules(cloudpickle.dumps(("spaced", "user_of_spaced"))).keys() >= {"spaced/other.py"}
    importlib.import_module("spaced.other")
    try:
        assert local_modules(None, ["spaced.inner.deep"]).keys() >= {"spaced/inner/deep.py", "spaced/other.py"}
    finally:
        del sys.modules["spaced"], sys.modules["spaced.other"]


def test_imports_are_found_in_every_block_and_again_after_a_change(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        """
import a.b, c
from . import sibling
try:
    from d.e import f
except ImportError:
    import g
else:
    import h
finally:
    import i
def function():
    for _ in ():
        import j
    else:
        import k
    match 1:
        case 1:
            import l
        case _ if True:
            with open(""):
                import m
class Class:
    if True: import n; import o
    async def method(self):
        while True:
            import p
"""
    )
    assert sorted(archives.imports_of(file)) == list("acdghijklmnop")
    file.write_text("import q\n")
    assert archives.imports_of(file) == ["q"]
    file.write_text("import (\n")
    assert archives.imports_of(file) == []
    for deep in ("-" * 200_000 + "1", "+".join("1" * 100_000)):
        file.write_text(f"import a\nx = {deep}\n")
        assert archives.imports_of(file) == []
