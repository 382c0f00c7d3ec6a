"""The steps of CONTRIBUTING.md, walked in a copy of the package: new limits, a column of a trial, a verb and a scheduler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    # Another process may be compiling a module: Python then renames a file such as `page.cpython-312.pyc.140234`.
    ignored = shutil.ignore_patterns("_web", "*.pyc.*")
    shutil.copytree(ROOT / "tuner", tmp_path / "tuner", ignore=ignored)
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=ignored)
    return tmp_path


def edit(copy: Path, file: str, before: str, after: str) -> None:
    """Insert a line before another one. `before` is how that one begins; choose another one if a change has torn it."""
    assert f"`{file}`" in (ROOT / "CONTRIBUTING.md").read_text(), f"CONTRIBUTING.md does not name {file}"
    text = (copy / file).read_text()
    assert text.count(before) == 1, (
        f"{file} has {before!r} {text.count(before)} times: let this test insert its line before another one"
    )
    (copy / file).write_text(text.replace(before, after + before))


def run(copy: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "TUNER_HOME": str(copy / "home")}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_everything_that_a_page_for_developers_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = re.findall(r"[`(]((?:tuner|tests|docs|web|migrations|benchmarks)/[\w/.]*)[`)]", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = re.findall(r"(?:^ {4}|`(?:\w+=\d+ )?)make ([\w-]+)", text, flags=re.MULTILINE)
    assert [command for command in commands if command not in targets] == []
    modules = [name.replace(".", "/") for name in re.findall(r"python -m ((?:tuner|tests|benchmarks)[\w.]*)", text)]
    known = [name for name in modules if (ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists()]
    assert modules == known


def test_a_limit(copy: Path) -> None:
    edit(
        copy,
        "tuner/domain/experiment.py",
        "    max_failures: int = option(",
        '    energy_kwh: float | None = option(None, "energy of all trials together", **_SECONDS)\n',
    )
    shutil.copy(ROOT / "pyproject.toml", copy)  # the settings of ruff
    run(copy, "-m", "tuner.sdk.generate")
    script = """
        import inspect

        from typer.testing import CliRunner

        import tuner
        from tuner.api import create_app, schemas
        from tuner.cli.commands import app
        from tuner.domain.experiment import Limits
        from tuner.errors import SpecError
        from tuner.experiment.specs.spec import parse_spec
        from tuner.sdk import run
        from tuner.settings import Settings
        from tuner.store import Store

        data = {"entrypoint": "a:b", "space": {}, "metric": "x", "mode": "min", "limits": {"energy_kwh": 12.5}}
        spec = parse_spec(data)
        assert spec.limits == Limits(energy_kwh=12.5)
        try:
            parse_spec({**data, "limits": {"energy_kwh": 0}})
        except SpecError as error:
            assert error.errors == [("/limits/energy_kwh", "expected a number above 0, got 0")]
        else:
            raise AssertionError("0 was taken")

        assert inspect.signature(tuner.run).parameters["energy_kwh"].default is None
        assert "energy_kwh: energy of all trials together." in inspect.getdoc(tuner.run)
        assert "--energy-kwh" in CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "120"}).output
        given = {name: p.default for name, p in inspect.signature(tuner.run).parameters.items()}
        given |= {"trainable": print, "space": {}, "metric": "x", "mode": "min", "energy_kwh": 3.0}
        parts = run.parts_of(None, None, None, run.ErrorCollector())
        assert run._spec_data(given, run.Space({}), parts)["limits"]["energy_kwh"] == 3.0

        with Store.open("sqlite:///one.db") as store:
            store.migrate()
            record = store.experiments.create(spec)
            assert record.spec.limits.energy_kwh == 12.5
            assert schemas.Experiment.of(record, []).model_dump()["limits"]["energy_kwh"] == 12.5
            found = create_app(Settings(), store).openapi()["components"]["schemas"]
            for name in ("Limits", "LimitsSpec"):
                assert found[name]["properties"]["energy_kwh"]["description"] == "energy of all trials together"
    """
    run(copy, "-c", textwrap.dedent(script))


def test_a_limit_of_the_whole_experiment(copy: Path) -> None:
    edit(
        copy,
        "tuner/domain/experiment.py",
        "    max_failures: int = option(",
        '    max_reports: int | None = option(None, "reports of all trials together", **_COUNT)\n',
    )
    limits = "tuner/driver/core/state/limits.py"
    rule = """
        def _enough_reports(experiment: State, reports: float) -> Finish | None:
            most = experiment.spec.limits.max_reports
            return Finish(reason=f"{reports:g} reports were made") if most is not None and reports >= most else None


    """
    edit(copy, limits, "LIMITS = (", textwrap.dedent(rule).lstrip())
    entry = "    Limit(lambda experiment: experiment.progress.reports, _enough_reports),\n"
    edit(copy, limits, "    Limit(_failed, _only_failures, stops_trials=False),", entry)
    script = """
        import tuner
        from tuner.domain import events as e
        from tuner.domain.experiment import Limits, Objective, Spec
        from tuner.driver.assemble import assemble
        from tuner.driver.virtual_loop import virtual_loop
        from tuner.space import Space

        space = Space.from_python({"x": tuner.uniform(0, 1)})
        limits = Limits(max_concurrent_trials=1, max_reports=5)
        scheduler, search = {"type": "fifo"}, {"type": "random"}
        spec = Spec(
            name="x", space=space.to_json(), objectives=(Objective("x", "min"),), num_samples=4, max_t=3,
            limits=limits, scheduler=scheduler, search=search,
        )

        def train(config, checkpoint):
            while True:
                yield tuner.Step({"x": config["x"]}, 1.0)

        loop = virtual_loop(assemble(spec, space), space, train, 0.0)
        loop.run()
        core = loop.core
        assert [trial.reports for trial in core.trials] == [3, 2], core.trials
        assert core.experiment.finishing == "5 reports were made"
        again = assemble(spec, space)
        for seq, entry in loop.journal.log:
            again.fold(seq, entry)
        again.handle(e.Commanded(time=100.0, command="continue"))
        assert not again.ended and again.experiment.finishing is None
        assert len(again.trials) == 3, "a continued experiment has five more reports"
    """
    run(copy, "-c", textwrap.dedent(script))


@pytest.mark.long  # the limits above and the scheduler below walk the same page
def test_a_verb(copy: Path) -> None:
    verbs, commands = "tuner/experiment/operations/verbs.py", "tuner/driver/core/state/commands.py"
    verb = """
        Verb(
            name="drain",
            summary="Start no more trials, and let the running ones complete.",
            past="drained",
            done=frozenset(),
            refused=_OVER,
            button=Button(effect="It starts no more trials.", keep="Let it go on", final=False),
        ),
    """
    edit(
        copy,
        verbs,
        '        Verb(\n            name="continue",',
        textwrap.indent(textwrap.dedent(verb).lstrip(), " " * 8),
    )
    edit(copy, "tuner/domain/events.py", '"pause", "resume", "cancel", "kill", "continue"]', '"drain", ')
    case = """
        case "drain":
            state.finishing = f"drained {event.reason or 'by a user'}"
    """
    edit(
        copy,
        commands,
        '        case "kill":\n            _kill(',
        textwrap.indent(textwrap.dedent(case).lstrip(), " " * 8),
    )
    note = '        case "drain":\n            return [d.Note(reason=f"drained {by}")]\n'
    edit(copy, "tuner/driver/core/rules/commands.py", '        case "continue":\n', note)
    script = """
        from typer.testing import CliRunner

        from tuner.api import create_app
        from tuner.cli.commands import app
        from tuner.domain.experiment import Limits, Objective, Spec
        from tuner.experiment.operations.verbs import VERBS, act, actions
        from tuner.settings import Settings
        from tuner.store import Store
        from tuner.domain import events as e
        from tuner.driver.assemble import assemble
        from tuner.space import Space
        import build

        with Store.open("sqlite:///one.db") as store:
            store.migrate()
            space, parts = Space({}), {"scheduler": {"type": "fifo"}, "search": {"type": "random"}}
            limits = Limits(max_concurrent_trials=1)
            spec = Spec(name="x", space={}, objectives=(Objective("x", "min"),), num_samples=4, limits=limits, **parts)
            record = store.experiments.create(spec)
            assert "drain" in actions(record, abandoned=False)
            act(store, "drain", record.public_id)
            [command] = store.commands.pending([record.id])
            assert command.command == "drain"
            paths = create_app(Settings(), store).openapi()["paths"]
            assert paths["/api/v1/experiments/{experiment_id}/drain"]["post"]["summary"].startswith("Start no more")
        assert "drain" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
        assert '"keep": "Let it go on"' in build.verbs(VERBS=VERBS)

        core = assemble(spec, space)
        core.handle(e.DriverStarted(time=0.0, epoch=1))
        core.handle(e.SegmentStarted(time=1.0, trial=0, segment=1))
        core.handle(e.Commanded(time=2.0, command="drain"))
        core.handle(e.Reported(time=3.0, trial=0, segment=1, report_no=1, iteration=1, metrics={"x": 1.0}))
        core.handle(e.SegmentEnded(time=4.0, trial=0, segment=1, outcome="returned"))
        assert len(core.trials) == 1 and core.state == "completed", core.state
    """
    shutil.copy(ROOT / "web" / "build.py", copy)
    run(copy, "-c", textwrap.dedent(script))


@pytest.mark.long  # the limits above and the scheduler below walk the same page
def test_a_column_of_a_trial(copy: Path) -> None:
    edit(
        copy,
        "tuner/store/records.py",
        "    running_s: Annotated[",
        '    gpu_s: Annotated[float | None, About("seconds of its GPUs")]\n',
    )
    edit(
        copy,
        "tuner/domain/trial.py",
        "    running_s: float = 0.0",
        "    gpu_s: float | None = None\n",
    )
    run(copy, "-m", "tuner.store.sql.revise", "seconds of GPUs")
    script = """
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        from tuner.api import create_app, schemas
        from tuner.client.records import trial_record
        from tuner.domain.batch import Batch
        from tuner.domain.experiment import Objective, Spec
        from tuner.domain.trial import Trial
        from tuner.settings import Settings
        from tuner.store import Store
        from tuner.store.sql import migrate
        from tuner.store.sql.connect import connect

        with Store.open("sqlite:///one.db") as store:
            store.migrate()
            made = store.experiments.create(Spec(name="x", space={}, objectives=(Objective("x", "min"),)))
            epoch = store.drivers.claim(made.id, "me", 60.0, 0.0)
            trials = [Trial(0, {}, gpu_s=1.5), Trial(1, {}, gpu_s=2.5)]
            store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), 0.0)
            page, total = store.trials.sorted_page(made.id, sort="-gpu_s", where=["gpu_s>1"])
            assert [trial.gpu_s for trial in page.items] == [2.5, 1.5]
            assert schemas.Trial.of(page.items[0], made).model_dump()["gpu_s"] == 2.5
            shown = schemas.Trial.of(page.items[0], made)
            assert trial_record(shown).gpu_s == 2.5, "results over HTTP have it"
            found = create_app(Settings(), store).openapi()["components"]["schemas"]["Trial"]["properties"]
            assert found["gpu_s"]["description"] == "seconds of its GPUs"

        config = Config()
        config.set_main_option("script_location", str(migrate.scripts()))
        assert ScriptDirectory.from_config(config).get_heads() == [migrate.head()]
        engine = connect("sqlite:///one.db")
        with engine.begin() as connection:  # even with trials in it
            config.attributes["connection"] = connection
            command.downgrade(config, "-1")
        engine.dispose()
    """
    run(copy, "-c", textwrap.dedent(script))


FIRST_ONLY = '''
"""Train the first trials, and stop each later one at its first report."""

from __future__ import annotations

import math
from typing import Any

from tuner.domain.decisions import Decision, Stop
from tuner.domain.trial import Population, Trial
from tuner.options import check_integer, options_of
from tuner.schedulers.base import Fact, Scheduler, TrialReported


class FirstOnlyScheduler(Scheduler):
    TYPE = "first_only"

    def __init__(self, keep: int = 1) -> None:
        check_integer("keep", keep, at_least=1)
        self.keep = keep

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self)}

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        return math.nextafter(trial.t, math.inf)

    def decide(self, fact: Fact, trials: Population) -> list[Decision]:
        if isinstance(fact, TrialReported) and fact.trial >= self.keep:
            return [Stop(trial=fact.trial, reason=f"only {self.keep} are trained")]
        return []
'''


def test_a_scheduler(copy: Path) -> None:
    (copy / "tuner" / "schedulers" / "first_only.py").write_text(FIRST_ONLY)
    registry, names = "tuner/schedulers/__init__.py", "tuner/__init__.py"
    edit(
        copy,
        registry,
        '    "fifo": ("fifo", "FIFOScheduler"),',
        '    "first_only": ("first_only", "FirstOnlyScheduler"),\n',
    )
    edit(copy, registry, '    "FIFOScheduler",\n', '    "FirstOnlyScheduler",\n')
    edit(
        copy,
        registry,
        "    from tuner.schedulers.hyperband",
        "    from tuner.schedulers.first_only import FirstOnlyScheduler\n",
    )
    edit(copy, names, '        "HyperBandScheduler", "MOASHA', '        "FirstOnlyScheduler",\n')
    again = "FirstOnlyScheduler as FirstOnlyScheduler"
    edit(
        copy,
        names,
        "    from tuner.schedulers import HyperBandScheduler",
        f"    from tuner.schedulers import {again}\n",
    )
    script = """
        import tuner
        from tuner.experiment.specs.spec import parse_spec
        from tuner.errors import SpecError

        data = {"entrypoint": "a:b", "space": {}, "metric": "x", "mode": "min", "scheduler": {"type": "first_only", "keep": 2}}
        assert parse_spec(data).scheduler == {"type": "first_only", "keep": 2}
        try:
            parse_spec({**data, "scheduler": {"type": "first_only", "kep": 2}})
        except SpecError as error:
            assert error.errors == [("/scheduler/kep", "unknown option; did you mean keep?")]
        else:
            raise AssertionError("kep was taken")

        def train(config, checkpoint):
            for step in range(3):
                yield tuner.Step({"x": config["y"]}, 1.0)

        space = {"y": tuner.uniform(0, 1)}
        scheduler = tuner.FirstOnlyScheduler(keep=2)
        result = tuner.simulate(train, space, metric="x", mode="min", num_samples=4, scheduler=scheduler)
        assert [trial.iteration for trial in result.trials] == [3, 3, 1, 1], result.trials
    """
    run(copy, "-c", textwrap.dedent(script))
    shutil.copy(ROOT / "pyproject.toml", copy)  # as it is: no contract lists schedulers
    run(copy, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))")
