from __future__ import annotations

import ast
import pwd
from dataclasses import fields
from pathlib import Path

import pytest

from tuner.errors import SpecError, StoreError
from tuner.settings import MisspelledSetting, Quota, Settings, misspelled
from tuner.store import Store
from tuner.trials.checkpoints.storage import place

ROOT = Path(__file__).parents[1]


def test_defaults_live_under_the_home(tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_HOME": str(tmp_path), "TUNER_PORT": " ", "RAY_ADDRESS": ""})
    assert settings.home == tmp_path
    assert settings.database_url == f"sqlite:///{tmp_path}/tuner.db"
    assert settings.storage == f"{tmp_path}/checkpoints"
    assert (settings.host, settings.port, settings.ray_address, settings.durability) == (
        "127.0.0.1",
        8000,
        None,
        "NORMAL",
    )
    assert Settings.from_env({}).home == Path.home() / ".tuner"


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        {
            "TUNER_HOME": "~/x",
            "TUNER_DATABASE_URL": "postgresql://h/d",
            "TUNER_STORAGE": "s3://bucket",
            "TUNER_DURABILITY": "full",
            "RAY_ADDRESS": "auto",
            "TUNER_HOST": "::1",
            "TUNER_PORT": "0",
            "TUNER_ALLOWED_HOSTS": "Box.lan, other",
            "TUNER_LEASE_S": "5",
            "TUNER_USAGE_EVERY_S": "0",
            "TUNER_WEBHOOK_PRIVATE": "1",
            "TUNER_ADDRESS": "http://tuner.lan",
            "TUNER_TOKEN": "tnr_1",
            "TUNER_LOG_LEVEL": "debug",
            "TUNER_QUOTAS": "vision=GPU:4, *=CPU:0.5",
        }
    )
    assert settings == Settings(
        home=Path.home() / "x",
        database_url="postgresql://h/d",
        storage="s3://bucket",
        durability="FULL",
        ray_address="auto",
        host="::1",
        port=0,
        allowed_hosts=("box.lan", "other"),
        lease_s=5.0,
        usage_every_s=0.0,
        webhook_private=True,
        address="http://tuner.lan",
        token="tnr_1",
        log_level="DEBUG",
        quotas=(Quota("vision", "GPU", 4.0), Quota("*", "CPU", 0.5)),
    )


def test_a_home_or_database_whose_folder_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home, why in ((tmp_path / "file", "it is a file"), (tmp_path / "file" / "home", "Not a directory")):
        settings = Settings(home=home)
        with pytest.raises(SpecError, match=f"^TUNER_HOME: .*{home}.* cannot be created: {why}; set TUNER_HOME"):
            settings.make_home()
        with pytest.raises(StoreError, match=f"{home}.* cannot be created: {why}; set TUNER_HOME"):
            Store.open(settings.database_url)


def test_a_relative_storage_is_one_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"TUNER_STORAGE": "ckpts"}).storage == f"{tmp_path}/ckpts"
    assert Settings.from_env({"TUNER_STORAGE": "$SCRATCH/ckpts"}).storage == "$SCRATCH/ckpts"
    assert Settings.from_env({"TUNER_STORAGE": "~/ckpts"}).storage == "~/ckpts"


def test_impossible_values_are_named_together() -> None:
    with pytest.raises(SpecError) as caught:
        Settings.from_env(
            {
                "TUNER_PORT": "http",
                "TUNER_LEASE_S": "-1",
                "TUNER_DURABILITY": "MAYBE",
                "TUNER_USAGE_EVERY_S": "nan",
                "TUNER_WEBHOOK_PRIVATE": "yes",
                "TUNER_LOG_LEVEL": "x",
                "TUNER_QUOTAS": "vision=4",
            }
        )
    assert [name for name, _ in caught.value.errors] == [
        "TUNER_DURABILITY",
        "TUNER_PORT",
        "TUNER_WEBHOOK_PRIVATE",
        "TUNER_LEASE_S",
        "TUNER_USAGE_EVERY_S",
        "TUNER_QUOTAS",
        "TUNER_LOG_LEVEL",
    ]
    assert "'http'" in str(caught.value)


def test_a_misspelled_variable_is_warned_of() -> None:
    with pytest.warns(MisspelledSetting, match=r"TUNER_LEASES_S is ignored, .*; did you mean TUNER_LEASE_S\?"):
        found = Settings.from_env({"TUNER_LEASES_S": "5"})
    assert found.lease_s == 30
    assert len(misspelled({"TUNER_DATABASE": "x", "TUNER_OIDC_CLIENTID": "x"})) == 2


def test_other_variables_are_not_warned_of() -> None:
    others = {"TUNER_BUILD_NUMBER": "5", "LEASE_S": "5", "_TUNER_SCRIPT": "/", "RAY_ADRESS": "auto"}
    assert misspelled({**others, **{setting.metadata["variable"]: "1" for setting in fields(Settings)}}) == []


def test_a_quota_may_be_one_of_a_resource_with_colons() -> None:
    settings = Settings.from_env({"TUNER_QUOTAS": "vision=accelerator_type:A100:2,*=node:1.2.3.4:0.5,*=GPU:1"})
    assert settings.quotas == (
        Quota("vision", "accelerator_type:A100", 2.0),
        Quota("*", "node:1.2.3.4", 0.5),
        Quota("*", "GPU", 1.0),
    )


@pytest.mark.parametrize("text", ["vision=:4", "vision=GPU:", "vision=GPU:4:", "vision=accelerator_type:A100"])
def test_a_quota_without_a_resource_or_an_amount_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected"):
        Settings.from_env({"TUNER_QUOTAS": text})


def test_a_resource_has_only_one_quota_per_project() -> None:
    with pytest.raises(SpecError, match="got two for vision=GPU"):
        Settings.from_env({"TUNER_QUOTAS": "vision=GPU:4,*=GPU:2,vision=GPU:8"})
    assert len(Settings.from_env({"TUNER_QUOTAS": "vision=GPU:4,*=GPU:2,vision=CPU:8"}).quotas) == 3


def test_the_documents_list_each_setting() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == {setting.metadata["variable"] for setting in fields(Settings)}
    for setting in fields(Settings):
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{setting.metadata['variable']}`")]
        assert setting.metadata["about"] in row, row


#: what these read is no setting: the environment of user code, and what Ray and torchrun put there
ELSEWHERE = {"settings.py", "trials", "driver"}


def test_nothing_else_reads_settings_from_the_environment() -> None:
    for path in (ROOT / "tuner").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "TUNER_" in source else ():
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.startswith("TUNER_")
                and node.value.isupper()
            ):
                # `early` reads the port itself, since the settings take longer to load than it takes to answer
                assert path.name in {"settings.py", "early.py"}, f"{path} mentions {node.value}"


def test_an_unknown_kind_of_storage_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match=r"TUNER_STORAGE: unknown kind of storage s4://; expected a path"):
        Settings.from_env({"TUNER_STORAGE": "s4://bucket"})
    with pytest.raises(SpecError, match=r"TUNER_STORAGE: the URI contains a password") as caught:
        Settings.from_env({"TUNER_STORAGE": "s3://key:secret@bucket"})
    assert "secret" not in str(caught.value)
    assert Settings.from_env({"TUNER_STORAGE": "~/x"}).storage == "~/x"


def test_a_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(SpecError, match=r"TUNER_HOME: expected a folder, got '~nosuchuser/x'"):
        Settings.from_env({"TUNER_HOME": "~nosuchuser/x"})


def test_without_a_home_directory_the_error_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(SpecError, match=r"TUNER_HOME: .*home directory.; set TUNER_HOME to a folder"):
        Settings.from_env({})


def test_a_dollar_in_the_path_of_the_home_or_of_the_working_directory_is_part_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("x", "elsewhere")
    folder = tmp_path / "a$x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert place(Settings.from_env({"TUNER_HOME": str(folder)}).storage).path == str(folder / "checkpoints")
    assert place(Settings.from_env({"TUNER_STORAGE": "saved"}).storage).path == str(folder / "saved")


def test_a_relative_path_in_a_folder_that_was_deleted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for variable in ("TUNER_HOME", "TUNER_STORAGE"):
        with pytest.raises(SpecError, match="'here' is, since the current folder has been deleted") as refused:
            Settings.from_env({"TUNER_HOME": str(tmp_path), variable: "here"})
        assert [pointer for pointer, _ in refused.value.errors] == [variable]
    with pytest.raises(StoreError, match=r"'here\.db', is relative, and the current folder has been deleted"):
        Store.open("sqlite:///here.db")
    assert Settings.from_env({"TUNER_HOME": str(tmp_path)}).home == tmp_path


def test_a_home_whose_database_would_be_another_file_is_refused(tmp_path: Path) -> None:
    for name in ("a?b", "a%20b"):
        with pytest.raises(SpecError, match=r"TUNER_HOME: .* can have neither a question mark nor a percent code"):
            Settings.from_env({"TUNER_HOME": str(tmp_path / name)})
    assert Settings.from_env({"TUNER_HOME": str(tmp_path / "a?b"), "TUNER_DATABASE_URL": "postgresql://h/d"})
    home = tmp_path / "a b#c%d&e=f@g:h+i"
    home.mkdir()
    with Store.open(Settings.from_env({"TUNER_HOME": str(home)}).database_url) as store:
        store.migrate()
    assert (home / "tuner.db").exists()
