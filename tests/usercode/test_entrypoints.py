"""Entrypoints are imported in a helper process, which survives whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from tests.open_files import many_open_files
from tuner.errors import EntrypointError
from tuner.usercode import entrypoints
from tuner.usercode.entrypoints import EntrypointChecker


@pytest.fixture(scope="module")
def checker() -> Iterator[EntrypointChecker]:
    checker = EntrypointChecker(timeout_s=20)
    yield checker
    checker.close()


def module(folder: Path, name: str, source: str) -> str:
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    return str(folder)


def test_a_good_one_is_known_by_the_content_of_its_files(checker: EntrypointChecker, tmp_path: Path) -> None:
    module(tmp_path, "part", "SIZE = 1")
    folder = module(
        tmp_path, "good", "import part\nprint('noise')\nclass A:\n    @staticmethod\n    def train(config): ...\n"
    )
    first = checker.check("good:A.train", [folder])
    assert {Path(path).name for path, _, _ in first.files} == {"good.py", "part.py"}
    assert checker.check("good:A.train", [folder]) is first
    module(tmp_path, "part", "SIZE = 2  # edited")
    second = checker.check("good:A.train", [folder])
    assert second.hash != first.hash


def test_a_class_with_steps_is_no_function_but_can_be_trained(checker: EntrypointChecker, tmp_path: Path) -> None:
    """It was refused, since nobody passes the configuration to its constructor."""
    source = "class Steps:\n    def setup(self, config): ...\n    def step(self): ...\nclass Other: ...\n"
    folder = module(tmp_path, "steps", source)
    assert checker.check("steps:Steps", [folder]).name == "steps:Steps"
    with pytest.raises(EntrypointError, match="cannot be called with a configuration"):
        checker.check("steps:Other", [folder])


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        ("import nothing_here_at_all", "f", r"No module named 'nothing_here_at_all' \(.*bad\.py, line 1, in <module>\)"),
        ("def g():\n    1 / 0\ng()", "f", r"ZeroDivisionError: division by zero \(.*bad\.py, line 2, in g\)"),
        ("import json\njson.loads('{')", "f", r"JSONDecodeError.*\(.*bad\.py, line 2, in <module>\)"),
        ("def f(:", "f", r"cannot import bad with Python 3\.\d+\.\d+\S*: SyntaxError: .* \(.*bad\.py, line 1\)"),
        ("import sys; sys.exit('bye')", "f", "SystemExit: bye"),
        ("error = OSError('no data')\nerror.add_note('mount it')\nraise error", "f", "OSError: no data"),
        ("import os; os._exit(3)", "f", "ends the process, with exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "f", "by SIGSEGV"),
        ("def train(config): ...", "trian", "has no 'trian'; did you mean 'train'?"),
        ("def train(config): ...", "train.x", "has no 'train.x'"),
        ("x = 3", "x", "is not a function but int 3"),
        ("def two(a, b): ...", "two", "cannot be called with a configuration: missing a required argument: 'b'"),
        ("def none(): ...", "none", "too many positional arguments"),
        ("async def waits(config): ...", "waits", "waits is asynchronous, and trials await nothing"),
        ("class A:\n    def setup(self, config): ...\n    async def step(self): ...", "A", r"A\.step is asynchronous"),
    ],
)  # fmt: skip
def test_a_bad_one_says_what_and_where(
    checker: EntrypointChecker, tmp_path: Path, source: str, name: str, says: str
) -> None:
    folder = module(tmp_path, "bad", source)
    with pytest.raises(EntrypointError, match=says) as caught:
        checker.check(f"bad:{name}", [folder])
    assert [pointer for pointer, _ in caught.value.errors] == ["/entrypoint"]


@pytest.mark.parametrize("name", ["nothing\0", "nothing\udc80"])
def test_a_name_that_no_file_can_have_is_a_mistake_of_the_entrypoint(
    checker: EntrypointChecker, tmp_path: Path, name: str
) -> None:
    with pytest.raises(EntrypointError):
        checker.check(f"{name}:train", [str(tmp_path)])


def test_a_files_name_in_place_of_the_modules_is_noticed(checker: EntrypointChecker, tmp_path: Path) -> None:
    folder = module(tmp_path, "mine", "def train(config): ...")
    with pytest.raises(EntrypointError, match=r"cannot import mine\.py: .*; did you mean mine:train\?"):
        checker.check("mine.py:train", [folder])


def test_the_environment_of_the_workers_is_there(checker: EntrypointChecker, tmp_path: Path) -> None:
    folder = module(tmp_path, "wants", "import os\nos.environ['WANTED']\ndef train(config): ...")
    with pytest.raises(EntrypointError, match="KeyError: 'WANTED'"):
        checker.check("wants:train", [folder])
    assert checker.check("wants:train", [folder], {"WANTED": "1"}).name == "wants:train"
    with pytest.raises(EntrypointError, match="KeyError"):  # it was the child's, not the helper's
        checker.check("wants:train", [folder])


def test_a_service_with_more_than_a_thousand_clients_checks_entrypoints(
    alone: EntrypointChecker, tmp_path: Path
) -> None:
    folder = module(tmp_path, "one", "def f(config): ...\ndef g(config): ...")
    with many_open_files():
        assert alone.check("one:f", [folder]).name == "one:f"
        assert alone.check("one:g", [folder]).name == "one:g", "by the process that has made the first check"


def test_a_repaired_one_is_taken(checker: EntrypointChecker, tmp_path: Path) -> None:
    folder = module(tmp_path, "broken", "oops")
    with pytest.raises(EntrypointError, match="NameError"):
        checker.check("broken:train", [folder])
    module(tmp_path, "broken", "def train(config): ...")
    assert checker.check("broken:train", [folder]).name == "broken:train"


def test_a_failure_is_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoints, "FORGET_S", (1000.0, 1000.0))
    times = tmp_path / "times"
    source = f"open({str(times)!r}, 'a').write('x')\nimport part\n"
    folder = module(tmp_path, "slowly", source)
    module(tmp_path, "part", "oops")
    checker = EntrypointChecker()
    try:
        for _ in range(3):
            with pytest.raises(EntrypointError, match="NameError"):
                checker.check("slowly:train", [folder])
        assert times.read_text() == "x"
        module(tmp_path, "part", "# repaired")
        with pytest.raises(EntrypointError, match="has no 'train'"):
            checker.check("slowly:train", [folder])
        module(tmp_path, "slowly", source + "def train(config): ...")
        assert checker.check("slowly:train", [folder]).name == "slowly:train"
        with pytest.raises(EntrypointError, match="No module named 'later'"):
            checker.check("later:train", [folder])
        module(tmp_path, "later", "def train(config): ...")
        assert checker.check("later:train", [folder]).name == "later:train"
    finally:
        checker.close()


def test_a_failure_is_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoints, "FORGET_S", (0.0, 0.0))
    folder = module(tmp_path, "needs", "import os\nassert os.path.exists(os.environ['FLAG'])\ndef train(config): ...")
    flag = tmp_path / "flag"
    checker = EntrypointChecker()
    try:
        with pytest.raises(EntrypointError, match="AssertionError"):
            checker.check("needs:train", [folder], {"FLAG": str(flag)})
        flag.touch()
        assert checker.check("needs:train", [folder], {"FLAG": str(flag)}).name == "needs:train"
    finally:
        checker.close()


def test_an_import_that_hangs_is_given_up(tmp_path: Path) -> None:
    folder = module(tmp_path, "hang", "import time\ntime.sleep(1000)")
    module(tmp_path, "fine", "def train(config): ...")
    checker = EntrypointChecker(timeout_s=3)
    try:
        checker.check("fine:train", [folder])
        with pytest.raises(EntrypointError, match="longer than 3 s"):
            checker.check("hang:train", [folder])
        checker.check("fine:train", [folder, "/"])
    finally:
        checker.close()


def test_a_helper_that_was_killed_is_replaced_and_none_is_left_behind(tmp_path: Path) -> None:
    folder = module(tmp_path, "fine", "def train(config): ...")
    checker = EntrypointChecker(helpers=1)
    checker.check("fine:train", [folder])
    (first,) = checker.pids()
    os.kill(first, signal.SIGKILL)
    checker.check("fine:train", [folder, "/"])
    (second,) = checker.pids()
    assert second != first
    checker.close()
    assert not psutil.pid_exists(first)
    assert not psutil.pid_exists(second)


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[EntrypointChecker]:
    """Yield a checker whose helpers have loaded nothing yet. A parameter is its timeout."""
    checker = EntrypointChecker(timeout_s=getattr(request, "param", 60))
    yield checker
    checker.close()


def test_a_library_that_the_file_names_is_loaded_only_once(alone: EntrypointChecker, tmp_path: Path) -> None:
    folder = module(
        tmp_path,
        "needs",
        "import sys\nassert 'numpy' in sys.modules\ntry:\n    import numpy.linalg\nexcept ImportError:\n    raise\n"
        "def train(config):\n    import pandas\nassert 'pandas' not in sys.modules\n",
    )
    assert alone.check("needs:train", [folder]).name == "needs:train"


def test_a_module_of_the_user_with_the_name_of_a_library_is_the_users(alone: EntrypointChecker, tmp_path: Path) -> None:
    folder = module(tmp_path, "sklearn", "MINE = 1")
    for text in (
        "from sklearn import MINE\ndef train(config): ...",
        "from sklearn import MINE as A\ndef train(c): ...",
    ):
        module(tmp_path, "uses", text)
        assert alone.check("uses:train", [folder]).name == "uses:train"


def test_the_current_folder_may_have_a_module_with_the_name_of_one_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "signal", "raise ImportError('the wrong one')")
    module(tmp_path, "beside", "def train(config): ...")
    monkeypatch.chdir(tmp_path)
    checker = EntrypointChecker(timeout_s=20)
    try:
        assert [Path(path).name for path, _, _ in checker.check("beside:train").files] == ["beside.py"]
    finally:
        checker.close()


@pytest.mark.parametrize(
    ("alone", "source", "says"),
    [
        (60, "import os; os._exit(3)", "importing the entrypoint ends the process, with exit code 3"),
        (2, "import time; time.sleep(1000)", "importing the entrypoint takes longer than 2 s"),
    ],
    indirect=["alone"],
)
def test_a_library_that_cannot_be_loaded_is_a_mistake_of_the_entrypoint(
    alone: EntrypointChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    (tmp_path / "installed").mkdir()
    monkeypatch.setenv("PYTHONPATH", module(tmp_path / "installed", "torchvision", source), prepend=os.pathsep)
    folder = module(tmp_path, "needs", "import torchvision\ndef train(config): ...")
    with pytest.raises(EntrypointError, match=says):
        alone.check("needs:train", [folder])


def test_a_process_that_an_import_has_forked_does_not_delay_the_answer(
    alone: EntrypointChecker, tmp_path: Path
) -> None:
    source = """
        import os, time
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        def train(config): ...
    """
    assert alone.check("forks:train", [module(tmp_path, "forks", source)]).name == "forks:train"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its orphaned descendants")
def test_processes_that_an_import_has_started_end_with_the_check(alone: EntrypointChecker, tmp_path: Path) -> None:
    source = f"""
        import os, time
        for daemon in (False, True):
            reading, writing = os.pipe()
            if os.fork() == 0:
                if daemon:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                open({str(tmp_path)!r} + f"/pid-{{daemon}}", "w").write(str(os.getpid()))
                os.write(writing, b"x")
                time.sleep(1000)
                os._exit(0)
            os.read(reading, 1)
        def train(config): ...
    """
    alone.check("starts:train", [module(tmp_path, "starts", source)])
    for pid in (int(file.read_text()) for file in tmp_path.glob("pid-*")):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(list(tmp_path.glob("pid-*"))) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_the_folder_of_an_entrypoint_may_have_a_name_that_is_not_utf_8(
    checker: EntrypointChecker, tmp_path: Path
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/by\xfcte"))
    folder.mkdir()
    module(folder, "oddly_placed", "def train(config): ...")
    assert checker.check("oddly_placed:train", [str(folder)]).name == "oddly_placed:train"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its orphaned descendants")
def test_the_shared_memory_that_an_import_has_made_is_deleted(alone: EntrypointChecker, tmp_path: Path) -> None:
    """A process of multiprocessing deletes it after the import's process has ended. It had been killed before it could."""
    name = f"tuner-test-{os.getpid()}"
    source = f"""
        from multiprocessing.shared_memory import SharedMemory
        block = SharedMemory({name!r}, create=True, size=1000)
        def train(config): ...
    """
    alone.check("shares:train", [module(tmp_path, "shares", source)])
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_a_process_that_runs_as_another_user_is_left_alone() -> None:
    """The process that checks entrypoints had ended, and so every check of this entrypoint had failed."""
    code = """
import os
from tuner.usercode import import_check

def kill(pid, signal):
    raise PermissionError(1, "Operation not permitted")

found = iter([set(), {999_999_999}, {999_999_999}])
import_check._children, os.kill = lambda: next(found), kill
print(import_check.in_a_child(lambda: {"hash": "x"}, 30))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "{'hash': 'x'}\n", done.stderr


def test_a_module_that_starts_a_search_when_it_is_imported_is_refused(
    checker: EntrypointChecker, tmp_path: Path
) -> None:
    source = """
        import tuner
        def train(config):
            tuner.report({"loss": 1.0})
        tuner.run("searches:train", {"x": tuner.uniform(0, 1)}, metric="loss", mode="min")
    """
    with pytest.raises(EntrypointError, match='cannot import searches: .*below `if __name__ == "__main__":`'):
        checker.check("searches:train", [module(tmp_path, "searches", source)])
