"""Studies of Optuna and folders of Ray Tune become experiments like any other."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

import tuner
from tests import invariants
from tuner.cli.commands import app
from tuner.errors import Conflict, NotFound, SpecError
from tuner.experiment.operations import verbs
from tuner.sdk.saved import database
from tuner.store import Store

RAY = Path(__file__).parents[1] / "fixtures" / "ray_results" / "train_digits"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a home of its own, and check at the end what must hold in its database."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    yield tmp_path
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        store.migrate()
        invariants.check_all(store, set())


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    layers = trial.suggest_int("layers", 1, 8)
    if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
        trial.suggest_float("momentum", 0, 1)
    trial.set_user_attr("seed", trial.number)
    for epoch in range(5):
        value = lr * 10 + layers / (epoch + 1)
        trial.report(value, 10 * epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    if trial.number == 7:
        raise ValueError("no")
    return value


@pytest.fixture(scope="module")
def stored_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage of Optuna with a study."""
    path = tmp_path_factory.mktemp("optuna") / "optuna.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{path}", study_name="old", sampler=optuna.samplers.RandomSampler(1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    )  # fmt: skip
    study.optimize(objective, n_trials=20, catch=(ValueError,))
    study.ask()  # one that has not ended
    return path


@pytest.fixture
def study(stored_study: Path, tmp_path: Path) -> optuna.Study:
    shutil.copy(stored_study, tmp_path / "optuna.db")
    return optuna.load_study(study_name="old", storage=f"sqlite:///{tmp_path / 'optuna.db'}")


def test_a_study_is_shown_as_it_was(study: optuna.Study, tmp_path: Path) -> None:
    result = tuner.import_optuna(f"sqlite:///{tmp_path / 'optuna.db'}")
    assert (result.name, result.state, result.metric, result.mode) == ("old", "completed", "value", "min")
    assert (result.best_value, result.best_config) == (study.best_value, study.best_params)
    states = {"COMPLETE": "completed", "PRUNED": "stopped", "FAIL": "failed"}
    theirs = study.trials[:20]
    assert {trial.state.name for trial in theirs} == set(states)
    for ours, trial in zip(result.trials, theirs, strict=True):
        assert str(ours.state) == states[trial.state.name]
        assert ours.config == trial.params
        assert ours.notes == {"seed": trial.number}
        assert {row["step"]: row["value"] for row in ours.history} == trial.intermediate_values
    assert result.plot("importance").data
    again = tuner.load("old")
    assert again.best_config == result.best_config


def test_a_new_search_learns_from_it(study: optuna.Study) -> None:
    tuner.import_optuna(study)
    space = {
        "lr": tuner.loguniform(1e-4, 1e-1),
        "layers": tuner.randint(1, 9),
        "optimizer": tuner.choice(["sgd", "adam"]),
    }
    new = tuner.create_study(space, metric="value", mode="min", name="new", num_samples=3, warm_start=["old"], max_t=5)
    trial = new.ask()
    assert trial is not None
    assert trial.config["layers"] <= 3  # what was good there
    new.close()
    assert any("old" in note for note in _notes("new"))


def _notes(name: str) -> list[str]:
    with tuner.sdk.saved.database() as store:
        record = store.experiments.named(name)[0]
        return [found.reason for found in store.log.decisions(record.id, kinds=["note"]).items]


def test_several_objectives(home: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=["minimize", "maximize"], study_name="two")
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 1 - trial.params["x"] ** 2), n_trials=6)
    result = tuner.import_optuna(study)
    front = {trial.number for trial in result.pareto_front()}
    assert front == {trial.number for trial in study.best_trials}
    assert set(result.trials[0].metrics) == {"value_0", "value_1"}


def test_categories_that_are_not_plain_are_stored_by_their_index(home: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="clip", storage=f"sqlite:///{home / 'optuna.db'}")
    for clip in (1.0, math.inf, math.nan, None):
        study.enqueue_trial({"clip": clip, "x": 2.0 if clip is None else 0.5})  # 2.0 is outside the range

    def loss(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0.25, 1, log=True)
        return float(trial.suggest_categorical("clip", [1.0, math.inf, math.nan, None]) != math.inf)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(loss, n_trials=4)
    result = tuner.import_optuna(study)
    assert repr([trial.config["clip"] for trial in result.trials]) == "[1.0, inf, nan, None]"
    assert [trial.config["x"] for trial in result.trials] == [0.5, 0.5, 0.5, 2.0]
    assert result.best_config == {"x": 0.5, "clip": math.inf}
    with database() as store:
        [record] = store.experiments.named("clip")
        assert [trial.params["clip"] for trial in store.trials.page(record.id).items] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("storage", "name", "error", "message"),
    [
        ("sqlite:///{home}/optuna.db", "odl", NotFound, "did you mean 'old'"),
        ("sqlite:///{home}/none.db", None, NotFound, "there is no file"),
        ("{home}/none", None, NotFound, "expected the URL of a storage"),
    ],
)
def test_what_is_not_there_is_said(
    study: optuna.Study, home: Path, storage: str, name: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tuner.import_optuna(storage.format(home=home), name)


def test_a_study_without_trials_is_refused() -> None:
    with pytest.raises(SpecError, match="no trial that has ended"):
        tuner.import_optuna(optuna.create_study(study_name="empty"))


def test_a_folder_of_ray_tune_is_shown_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "train_digits"
    shutil.copytree(RAY, folder)
    failed, cut = sorted(folder.iterdir())[1], sorted(folder.iterdir())[3]
    (failed / "error.txt").write_text("Failure # 1\nTraceback ...\nValueError: bad activation\n")
    with open(cut / "result.json", "a") as file:
        file.write('{"loss": 1.0, "trai')  # Ray was killed
    result = tuner.import_ray(folder, metric="loss", mode="min")
    assert (result.name, len(result.trials)) == ("train_digits", 6)
    by_lr = {trial.config["lr"]: trial for trial in result.trials}
    for at in folder.iterdir():
        params = json.loads((at / "params.json").read_text())
        trial = by_lr[params["lr"]]
        assert trial.config == params
        rows = [json.loads(line) for line in (at / "result.json").read_text().splitlines() if line.endswith("}")]
        assert [(r["training_iteration"], r["loss"], r["nested/a"]) for r in trial.history] == [
            (row["training_iteration"], row["loss"], row["nested"]["a"]) for row in rows
        ]
        assert str(trial.state) == ("failed" if at == failed else "completed" if len(rows) == 4 else "stopped")
        if at == failed:
            assert trial.error == "ValueError: bad activation"
    assert result.best_value == min(row["loss"] for trial in result.trials for row in trial.history)
    assert "timestamp" not in result.trials[0].metrics


def test_a_trial_that_ray_tune_has_retried_with_success_has_not_failed(tmp_path: Path) -> None:
    """It counted as failed, and all trials without a retry as stopped, since they had fewer results."""
    _write_ray(tmp_path / "retried", [{"x": n} for n in range(4)])
    for number, (iterations, failures) in enumerate(
        [("1 2 2 3", "01"), ("1 2 3", ""), ("1 2 2", "01 09"), ("1 2", "")]
    ):
        folder = tmp_path / "retried" / f"trial_{number}"
        rows = [
            {"loss": 1.0 - at, "training_iteration": int(i), "date": f"2026-11-29_15-13-0{at}", "timestamp": 1.7e9 + at}
            for at, i in enumerate(iterations.split())
        ]
        (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for at, second in enumerate(failures.split(), 1):
            with open(folder / "error.txt", "a") as file:
                file.write(f"Failure # {at} (occurred at 2026-11-29_15-13-{second})\nTraceback\nValueError: {at}\n\n")
    result = tuner.import_ray(tmp_path / "retried", metric="loss", mode="min")
    assert {trial.config["x"]: str(trial.state) for trial in result.trials} == {
        0: "completed", 1: "completed", 2: "failed", 3: "stopped",
    }  # fmt: skip
    assert [str(error) for error in result.errors] == ["trial 2: ValueError: 2"]
    histories = {trial.config["x"]: [row["loss"] for row in trial.history] for trial in result.trials}
    assert histories == {0: [1.0, -1.0, -2.0], 1: [1.0, 0.0, -1.0], 2: [1.0, -1.0], 3: [1.0, 0.0]}
    assert [trial.iterations for trial in result.trials] == [3, 3, 2, 2], "a repeated result counts once"


@pytest.mark.parametrize("when", ["Failure # 1 (occurred at 2023-11-14_22-13-21)\n", ""])
def test_a_trial_of_ray_tune_that_failed_before_its_first_result_is_kept(tmp_path: Path, when: str) -> None:
    """The failed trials were left out without a word."""
    _write_ray(tmp_path / "early", [{"x": n} for n in range(4)])
    (tmp_path / "early" / "trial_1" / "result.json").write_text("")
    (tmp_path / "early" / "trial_1" / "error.txt").write_text(f"{when}Traceback\nRuntimeError: out of memory\n")
    (tmp_path / "early" / "trial_2" / "result.json").write_text("")  # it had not reported when Ray was killed
    result = tuner.import_ray(tmp_path / "early", metric="loss", mode="min")
    assert {trial.config["x"]: (str(trial.state), trial.error, trial.iterations) for trial in result.trials} == {
        0: ("completed", None, 1),
        1: ("failed", "RuntimeError: out of memory", 0),
        3: ("completed", None, 1),
    }
    assert len(result.dataframe()) == 3


def test_a_search_of_ray_tune_whose_trials_have_all_failed_at_once_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The error said "expected one of , got 'loss'"."""
    _write_ray(tmp_path / "failed", [{"x": 1}])
    (tmp_path / "failed" / "trial_0" / "result.json").write_text("")
    (tmp_path / "failed" / "trial_0" / "error.txt").write_text("Traceback\nRuntimeError: out of memory\n")
    with pytest.raises(SpecError, match=r"no trial in .*/failed has reported a metric"):
        tuner.import_ray(tmp_path / "failed", metric="loss", mode="min")


def test_notes_of_a_study_that_are_not_json_are_words_as_in_a_search() -> None:
    """NaN and infinities were null on the page."""
    study = optuna.create_study(study_name="not-finite")
    attributes = {"worst": float("nan"), "scores": {"all": [1.0, float("-inf")]}}
    study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs=attributes))
    [trial] = tuner.import_optuna(study).trials
    assert trial.notes == {"worst": "nan", "scores": {"all": [1.0, "-inf"]}}


def test_the_best_trial_of_a_study_is_the_best_finished_one() -> None:
    def rises_and_falls(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        trial.report(10.0 - trial.number, 0)
        if trial.number == 0:
            raise optuna.TrialPruned
        return float(trial.number)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="pruned", direction="maximize")
    study.optimize(rises_and_falls, n_trials=3)
    result = tuner.import_optuna(study)
    assert result.best_finished is not None
    assert (result.best_finished.number, result.best_finished_value) == (study.best_trial.number, study.best_value)
    assert result.best.number == 0  # as docs/from_optuna.md says


def test_names_with_slashes_keep_them() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="slashes")
    study.optimize(lambda trial: trial.suggest_float("model/lr", 0, 1) + trial.suggest_int("a~b", 1, 3), n_trials=4)
    result = tuner.import_optuna(study)
    assert [trial.config for trial in result.trials] == [trial.params for trial in study.trials]


def test_categories_that_are_lists_are_found_in_the_given_space(tmp_path: Path) -> None:
    configs = [{"layers": [3, 4], "net": {"a/b": 1}, "kept": "x"}, {"layers": [1, 2], "net": {"a/b": 2}, "kept": "y"}]
    _write_ray(tmp_path / "lists", configs)
    space = {"layers": tuner.choice([[1, 2], [3, 4]]), "net": {"a/b": tuner.randint(0, 5)}}
    result = tuner.import_ray(tmp_path / "lists", metric="loss", mode="min", space=space)
    assert [trial.config for trial in result.trials] == configs
    guessed = tuner.import_ray(tmp_path / "lists", metric="loss", mode="min", name="guessed")
    assert [trial.config for trial in guessed.trials] == configs  # the lists had been lost


def test_whole_numbers_beyond_2_53_are_choices_of_a_guessed_space(tmp_path: Path) -> None:
    configs = [{"seed": 2**60 + 1}, {"seed": 5}, {"seed": 10**400}]
    _write_ray(tmp_path / "seeds", configs)
    found = tuner.import_ray(tmp_path / "seeds", metric="loss", mode="min")
    assert [trial.config for trial in found.trials] == configs


def test_lists_in_groups_are_kept_in_a_guessed_space(tmp_path: Path) -> None:
    """Parameters that are lists had been left out of the trials, without a word."""
    nets = [{"layers": [8, 8], "depth": 2}, {"layers": [8, 8], "depth": 3, "only": 1}, {"layers": None, "depth": 2}]
    configs = [{"net": net, "betas": [0.9, 0.999], "k": [[n], 1]} for n, net in enumerate(nets)]
    _write_ray(tmp_path / "lists", configs)
    result = tuner.import_ray(tmp_path / "lists", metric="loss", mode="min")
    assert [trial.config["net"]["layers"] for trial in result.trials] == [[8, 8], [8, 8], None]
    assert [(trial.config["betas"], trial.config["k"]) for trial in result.trials] == [
        ([0.9, 0.999], [[n], 1]) for n in range(3)
    ]
    assert len(result.dataframe()) == 3
    assert tuner.load("lists").best_config == configs[2]


def test_constants_in_groups_are_in_the_configuration_once(tmp_path: Path) -> None:
    """The configuration had them twice: {"data/rows": 9, "data": {"rows": 9}}."""
    configs = [{"data": {"rows": 9, "a/b": None}, "net": {"depth": n, "kind": "cnn"}, "seed": 1} for n in (1, 2)]
    _write_ray(tmp_path / "groups", configs)
    for space in (None, {**configs[0], "net": {"depth": tuner.randint(0, 5), "kind": "cnn"}}):
        result = tuner.import_ray(tmp_path / "groups", metric="loss", mode="min", space=space)
        assert [trial.config for trial in result.trials] == configs
        assert result.best_config == configs[1]


@pytest.mark.parametrize(
    "space", [{"lr": tuner.uniform(0, 0.2)}, {"lr": tuner.uniform(0, 1), "more": tuner.uniform(0, 1)}]
)
def test_nothing_is_written_for_a_space_that_does_not_hold_the_trials(tmp_path: Path, space: dict[str, Any]) -> None:
    _write_ray(tmp_path / "outside", [{"lr": 0.1}, {"lr": 0.3}])
    with pytest.raises(SpecError, match="which is not in the space"):
        tuner.import_ray(tmp_path / "outside", metric="loss", mode="min", space=space)
    assert tuner.experiments() == []


def _write_ray(root: Path, configs: list[dict[str, Any]]) -> None:
    for number, config in enumerate(configs):
        folder = root / f"trial_{number}"
        folder.mkdir(parents=True)
        (folder / "params.json").write_text(json.dumps(config))
        (folder / "result.json").write_text(json.dumps({"loss": 1.0 / (number + 1), "timestamp": 1.7e9 + number}))


def test_mistakes_about_a_folder_are_explained(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"expected one of loss, nested/a, time_total_s, got 'los'; did you mean loss"):
        tuner.import_ray(RAY, metric="los", mode="min")
    with pytest.raises(NotFound, match=r"no folder with the files params\.json"):
        tuner.import_ray(tmp_path, metric="loss", mode="min")


KILLED = """
import os, signal, sys
import tuner
from tuner.experiment.operations import imports
from tuner.store.drivers import Drivers
imports.CHUNK, whole, left = 10, Drivers.commit, int(sys.argv[2])

def commit(*args):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    whole(*args)

Drivers.commit = commit
tuner.import_ray(sys.argv[1], metric="loss", mode="min", name="cut")
"""


@pytest.mark.parametrize("commits", [0, 2])
def test_an_import_that_is_killed_says_so_and_is_replaced_by_the_next_one(home: Path, commits: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(RAY), str(commits)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [shown] = tuner.experiments()
    assert (shown.name, shown.state) == ("cut", "failed")
    why = "import from Ray Tune's folder train_digits is not complete.*run the same import again"
    with database() as store:
        record = store.experiments.get(shown.id)
        assert re.search(why, str(record.error))
        assert record.last_event_seq == 10 * commits
        assert store.drivers.claimable(record.created_at + 1e9) == []  # no service tries to drive it
        assert "delete" in verbs.actions(record, abandoned=False)
        for refused in ("continue", "enqueue"):
            assert refused not in verbs.actions(record, abandoned=False)
        with pytest.raises(Conflict, match=why):
            verbs.act(store, "continue", shown.id)
        hook = store.webhooks.create(
            "https://example.com/hook", ["experiment.failed", "experiment.completed"]
        ).public_id
        store.webhooks.collect()
        assert store.webhooks.deliveries(hook) == []
    with pytest.raises(SpecError, match=why):
        tuner.create_study({"lr": tuner.uniform(0, 1)}, metric="loss", mode="min", warm_start=["cut"], max_t=4)
    done = CliRunner().invoke(app, ["import", "ray", str(RAY), "--metric", "loss", "--mode", "min", "--name", "cut"])
    assert done.exit_code == 0, done.output
    [again] = tuner.experiments()
    assert (again.name, again.state, again.trials) == ("cut", "completed", 6)
    with database() as store:
        record = store.experiments.get(again.id)
        assert (record.error, record.incomplete) == (None, False)
        assert record.started_at is not None


def test_an_import_that_an_older_version_left_running_is_replaced(home: Path) -> None:
    tuner.import_ray(RAY, metric="loss", mode="min", name="cut")
    with database() as store, store._database.write() as cursor:
        cursor.execute(
            "UPDATE experiment SET state = 'running', ended_at = NULL, driver_epoch = 1, driver_owner = 'import'"
        )
    tuner.import_ray(RAY, metric="loss", mode="min", name="cut")
    assert [one.state for one in tuner.experiments()] == ["completed"]
    tuner.import_ray(RAY, metric="loss", mode="min", name="cut")
    assert [one.state for one in tuner.experiments()] == ["completed"] * 2  # a complete one is never replaced


def test_the_commands(study: optuna.Study, home: Path) -> None:
    run: Any = CliRunner().invoke
    done = run(app, ["import", "optuna", f"sqlite:///{home}/optuna.db", "--study", "old", "--name", "renamed"])
    assert done.exit_code == 0, done.output
    assert "renamed exp_" in done.output
    assert "20 trials" in done.output
    done = run(app, ["import", "ray", str(RAY), "--metric", "loss", "--mode", "min"])
    assert done.exit_code == 0, done.output
    assert {one.name for one in tuner.experiments()} == {"renamed", "train_digits"}
