"""Stop functions of users run in a separate process, in which they may do anything."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.driver import stop_functions
from tests.trials.checks import gone, until
from tuner.hosts.helpers.judge import Judge
from tuner.schedulers.functions import NamedFunction, Unloaded, sealed
from tuner.trials.checkpoints.packages import ship, unpacked

MODULE = "tests.driver.stop_functions"
Make = Callable[..., Judge]


def named(name: str) -> NamedFunction:
    return NamedFunction(f"{MODULE}:{name}")


@pytest.fixture
async def judge_of(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Judge] = []

    def make(*functions: Unloaded, **options: Any) -> Judge:
        environ = {"MARKER": str(tmp_path / "marker")}
        runtime_env = {"env_vars": environ, **options.pop("runtime_env", {})}
        options = {"sys_path": [os.getcwd()], **options, "runtime_env": runtime_env}
        made.append(Judge(functions, **options))
        return made[-1]

    yield make
    for judge in made:
        await judge.close()


async def ask(judge: Judge, number: int = 0, iteration: float = 1.0, **metrics: float) -> Any:
    return await asyncio.wait_for(judge.ask(number, {"training_iteration": iteration, **metrics}), 60)


async def test_all_functions_are_asked_and_what_they_print_does_not_come_between(judge_of: Make) -> None:
    limit = 3
    by_value = sealed(lambda number, metrics: metrics["training_iteration"] >= limit)
    judge = judge_of(named("at_two"), by_value)
    answers = [await ask(judge, iteration=float(count)) for count in (1, 2, 3)]
    assert [[answer["stop"] for answer in both] for both in answers] == [[False, False], [True, False], [True, True]]


async def test_values_that_json_does_not_have_arrive(judge_of: Make) -> None:
    judge = judge_of(sealed(lambda number, metrics: metrics["a"] == float("-inf") and metrics["b"] != metrics["b"]))
    assert await ask(judge, a=-math.inf, b=math.nan) == [{"stop": True}]


async def test_the_working_directory_may_have_a_module_with_the_name_of_one_of_python(
    judge_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "signal.py").write_text("raise ImportError('the wrong one')")
    judge = judge_of(named("at_two"), working_dir=str(tmp_path))
    assert await ask(judge, iteration=2.0) == [{"stop": True}]


async def test_the_process_stays_warm_and_is_not_this_one(judge_of: Make, tmp_path: Path) -> None:
    judge = judge_of(named("where"))
    pids = set()
    for count in (1.0, 2.0, 3.0):
        await ask(judge, iteration=count)
        pids.add(int((tmp_path / "marker").read_text()))
    assert len(pids) == 1
    assert os.getpid() not in pids
    await judge.close()
    assert not Path(f"/proc/{pids.pop()}").exists()


async def test_what_a_function_has_started_ends_with_the_process(judge_of: Make, tmp_path: Path) -> None:
    judge = judge_of(named("starts_a_process"))
    assert await ask(judge) == [{"stop": True}]
    await judge.close()
    pid = int((tmp_path / "marker").read_text())
    until(lambda: gone(pid))


async def test_an_exception_is_told_with_its_traceback(judge_of: Make) -> None:
    judge = judge_of(named("misspelt"))
    [answer] = await ask(judge, loss=1.0)
    assert (answer["error"], answer["args"]) == ("KeyError", ["los"])
    assert "stop_functions.py" in answer["traceback"]
    [again] = await ask(judge, los=2.0)
    assert again == {"stop": True}


async def test_one_that_hangs_is_given_up_and_the_others_are_answered(judge_of: Make) -> None:
    judge = judge_of(named("hangs_for_the_first"), call_s=0.5)
    answers = await asyncio.gather(*(ask(judge, number) for number in range(4)))
    assert [answer.get("stop") for [answer] in answers] == [None, True, True, True]
    assert answers[0][0]["error"] == "TimeoutError"
    assert answers[0][0]["text"] == "the function took longer than 0.5 s"


async def test_one_that_ends_its_process_once_is_asked_again(judge_of: Make) -> None:
    assert await ask(judge_of(named("ends_once"))) == [{"stop": True}]


async def test_one_that_always_ends_its_process_is_an_error(judge_of: Make) -> None:
    [answer] = await ask(judge_of(named("ends_its_process")))
    assert answer["text"] == "the function ended its process, with exit code 3"


async def test_one_that_cannot_be_imported_is_an_error(judge_of: Make) -> None:
    [answer] = await ask(judge_of(NamedFunction("tests.driver.no_such_module:f")))
    assert "No module named 'tests.driver.no_such_module'" in answer["text"]


async def test_nothing_is_imported_here() -> None:
    assert stop_functions.__name__ in sys.modules
    function = NamedFunction("tests.driver.not_imported:f")
    assert sealed(function) is function


async def test_functions_are_imported_from_the_packages_that_the_trials_have(judge_of: Make, tmp_path: Path) -> None:
    for name in ("code", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "shipped_rules.py").write_text(
        "import pathlib, shipped_lib.limits as limits\n"
        "def stop(number, metrics):\n"
        "    return metrics['loss'] < limits.BOUND and pathlib.Path('here').read_text() == 'yes'\n"
    )
    (tmp_path / "code" / "here").write_text("yes")
    (tmp_path / "lib" / "shipped_lib").mkdir()
    (tmp_path / "lib" / "shipped_lib" / "limits.py").write_text("BOUND = 0.5\n")
    given = {"working_dir": str(tmp_path / "code"), "py_modules": [str(tmp_path / "lib" / "shipped_lib")]}
    runtime_env = ship(given, str(tmp_path / "storage"))
    shutil.rmtree(tmp_path / "code")
    shutil.rmtree(tmp_path / "lib")
    judge = judge_of(NamedFunction("shipped_rules:stop"), runtime_env=runtime_env)
    assert [await ask(judge, loss=0.4), await ask(judge, loss=0.6)] == [[{"stop": True}], [{"stop": False}]]
    folder = judge._unpacked
    await judge.close()
    assert folder is not None
    assert not Path(folder.name).exists()


@pytest.mark.parametrize("failures", [1, 2, 99])
async def test_a_storage_that_cannot_be_read_for_a_moment_is_read_again(
    judge_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "moving_rules.py").write_text("def stop(number, metrics):\n    return False\n")
    runtime_env = ship({"working_dir": str(code)}, str(tmp_path / "storage"))
    (code / "moving_rules.py").write_text("def stop(number, metrics):\n    return True\n")
    reads = 0

    def sometimes(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads <= failures:
            raise OSError("slow down")
        return unpacked(*args)

    monkeypatch.setattr("tuner.hosts.helpers.judge.unpacked", sometimes)
    monkeypatch.setattr("tuner.hosts.helpers.judge.READ_AGAIN_S", (0.01, 0.01, 0.01))
    judge = judge_of(NamedFunction("moving_rules:stop"), sys_path=[str(code)], runtime_env=runtime_env)
    [answer] = await ask(judge, loss=0.4)
    if failures < 4:
        assert answer == {"stop": False}, "it is the function that was shipped"
    else:
        assert answer["text"] == "the packages of runtime_env cannot be read: slow down"


async def test_one_that_is_closed_while_it_unpacks_leaves_nothing(
    judge_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, folders = threading.Event(), threading.Event(), []

    def slowly(runtime_env: Any, folder: str) -> tuple[None, list[str]]:
        folders.append(folder)
        begun.set()
        go.wait(60)
        (Path(folder) / "late.py").write_text("")
        return None, []

    monkeypatch.setattr("tuner.hosts.helpers.judge.unpacked", slowly)
    judge = judge_of(named("at_two"))
    asked = asyncio.ensure_future(ask(judge))
    await asyncio.to_thread(begun.wait, 60)
    await judge.close()  # without waiting for the storage
    go.set()
    with pytest.raises(RuntimeError, match="the driver has been stopped"):  # the request of an agent is not cancelled
        await asked
    while os.path.exists(folders[0]):
        await asyncio.sleep(0.01)
    assert len(folders) == 1


async def test_a_package_that_is_missing_is_an_error(judge_of: Make, tmp_path: Path) -> None:
    judge = judge_of(named("at_two"), runtime_env={"working_dir": f"file://{tmp_path}/gone.zip"})
    [answer] = await ask(judge)
    assert "gone.zip is missing" in answer["text"]
