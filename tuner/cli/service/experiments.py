"""`tuner submit`, `fork`, `change`, `enqueue`, `archive`, `ls`, `show`, `best`, `export`, and verbs such as `tuner pause`.

The commands use the service if an address is set, and otherwise the database of this home. `submit` and `fork` always use a
service, by default the one on this machine.
"""

from __future__ import annotations

import errno
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tuner.cli.home.listing import Filters, Listed
from tuner.cli.json_text import dumps
from tuner.domain.events import Command
from tuner.domain.states import ExperimentState, read_state
from tuner.domain.timestamps import rfc3339
from tuner.errors import Conflict, SpecError
from tuner.experiment.operations import trials
from tuner.experiment.operations.removal import delete_experiment
from tuner.experiment.operations.usecases import (
    amend_experiment,
    archive_experiment,
    check_number,
    id_of,
    next_step,
    numbered,
)
from tuner.experiment.operations.verbs import VERBS, act, act_on_trial
from tuner.sdk.driving import only_followed
from tuner.sdk.result import Result
from tuner.sdk.run import resume
from tuner.sdk.saved import ExperimentSummary, experiments, read, summary
from tuner.service_url import url_of
from tuner.settings import Settings
from tuner.space.parameter import config_as_json
from tuner.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from tuner.client.synchronous import Client, TrialHandle

Row = dict[str, Any]
DASH = Path("-")
"""The name that stands for standard input or standard output."""
FORMATS = ("csv", "json", "parquet")
PATIENCE_S = 5.0
"""Seconds after which a command stops trying to reach the service."""


class Yaml(yaml.SafeLoader):  # type: ignore[misc]  # yaml comes without types
    """Reads YAML 1.2 (its core schema), as the page does. PyYAML reads YAML 1.1.

    So `on`, `no`, `1:30`, `1_000` and `2026-01-31` are text, 1e-5 is a number, and 010 is 10. Merge keys (`<<`) also work.
    A key that occurs twice in a mapping is an error, and so are two keys that are equal, such as 1 and 0x1, or that JSON cannot
    tell apart, such as 1 and "1". No value is lost if there are several merge keys.
    """

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[Any, str] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                value = self.construct_object(key)
                name = next(iter(json.loads(json.dumps({value: None}, skipkeys=True))), value)  # the key in JSON
                if (before := seen.get(value, seen.get(name))) is not None:
                    twice = f"the key {key.value!r} occurs twice"
                    problem = twice if before == key.value else f"the keys {before!r} and {key.value!r} are the same"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen[value] = seen[name] = key.value
        return node


def _integer(loader: Yaml, node: yaml.ScalarNode) -> int:
    """Return an integer in decimal, or after 0o or 0x in octal or hexadecimal."""
    text = loader.construct_scalar(node)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


Yaml.yaml_implicit_resolvers = {}
for _tag, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_form})$"), _first)
Yaml.add_constructor("tag:yaml.org,2002:int", _integer)


def submit(settings: Settings, file: Path, key: str | None, code: Path | None = None) -> str:
    """Create an experiment on a service from a YAML or JSON file with its spec, and return the experiment's id.

    code: a folder of Python code to upload first, so that the ranks can import it.
    """
    spec = dict(_spec(file))
    with connected(settings, settings.address or url_of(settings.host, settings.port)) as client:
        if code is not None:
            spec["bundle"] = client.upload_code(code)
        return client.create(spec, idempotency_key=key).id


def fork(settings: Settings, experiment: str, changes: Sequence[str], learn: bool, key: str | None) -> str:
    """Create an experiment on a service from the spec of an existing one, with changes, and return the new experiment's id."""
    patch = _patch(changes)
    with connected(settings, settings.address or url_of(settings.host, settings.port)) as client:
        return client.experiment(experiment).fork(patch, learn=learn, idempotency_key=key).id


def fork_trial(
    settings: Settings,
    name: str,
    number: int | None,
    changes: Sequence[str],
    checkpoint: str | None,
    key: str | None,
) -> str | None:
    """Start a trial of a service from a checkpoint of another one, with changed parameters, and return the new trial's id.

    Return None if the driver has not started the new trial yet.

    Args:
        settings: the settings, with the address of the service. The default is the service of this machine.
        name: the id of the trial, or the id or name of its experiment.
        number: the number of the trial, if `name` is an experiment.
        changes: changed parameters, such as ``lr=0.01``.
        checkpoint: a checkpoint of the trial. None: its newest one.
        key: a key that identifies this request, so that it is not carried out again if it is repeated. None: a new key.
    """
    params = _values(changes)
    with connected(settings, settings.address or url_of(settings.host, settings.port)) as client:
        trial = client.trial(name) if number is None else numbered_of(client, name, number)
        made = trial.fork(params, checkpoint_id=checkpoint, idempotency_key=key)
    return None if made is None else made.id


def change(settings: Settings, experiment: str, changes: Sequence[str]) -> str:
    """Change an experiment of a service or of this home. Return a line for the terminal with its new revision."""
    patch = _patch(changes)
    if settings.address is None:
        with Store.open(settings.database_url) as store:
            store.migrate()
            record = amend_experiment(store, id_of(store, experiment), patch)
            found, revision = record.public_id, record.revision
    else:
        with connected(settings, settings.address) as client:
            shown = client.experiment(experiment).change(**patch)
            found, revision = shown.id, shown.revision
    return f"changed {', '.join(patch)} of {_named(experiment, found)}; this is its revision {revision}"


def enqueue(settings: Settings, experiment: str, values: Sequence[str]) -> str | Result:
    """Start a trial with this configuration next, in an experiment of a service or of this home. Return a line for the terminal.

    An experiment of this home that has ended is also run here. The call then waits for its end, and returns its result.
    """
    configuration = _values(values)
    if settings.address is not None:
        with connected(settings, settings.address) as client:
            shown = client.experiment(experiment).enqueue([configuration])
            return f"enqueued a trial of {_named(experiment, shown.id)}, which is {shown.state}"
    with Store.open(settings.database_url) as store:
        store.migrate()
        record = store.experiments.get(id_of(store, experiment))
        if record.state.ended:
            only_followed(record)  # raises SpecError before the command is written if nothing can run it
        trials.enqueue(store, record.public_id, [configuration])
    if record.state.ended:
        return resume(record.public_id)
    return f"enqueued a trial of {_named(experiment, record.public_id)}, which is {record.state}"


def delete(settings: Settings, experiment: str, force: bool) -> str:
    """Delete an experiment of a service or of this home. Return a line for the terminal."""
    if settings.address is None:
        with Store.open(settings.database_url) as store:
            store.migrate()
            found = id_of(store, experiment)
            delete_experiment(store, found, storage=settings.storage, home=settings.home, force=force)
    else:
        with connected(settings, settings.address) as client:
            handle = client.experiment(experiment)
            found = handle.get().id
            client.experiment(found).delete(force=force)
    return f"deleted {found}, with its trials, checkpoints and logs"


def archive(settings: Settings, experiment: str, archived: bool) -> str:
    """Archive or unarchive an experiment of a service or of this home. Return a line for the terminal."""
    if settings.address is None:
        with Store.open(settings.database_url) as store:
            store.migrate()
            found = archive_experiment(store, id_of(store, experiment), archived).public_id
    else:
        with connected(settings, settings.address) as client:
            handle = client.experiment(experiment)
            found = (handle.archive() if archived else handle.unarchive()).id
    return f"{'archived' if archived else 'unarchived'} {found}"


_TEXTS = ("name", "notes", "project")
"""The fields of an experiment that hold text. Each tag does, too."""


def _patch(changes: Sequence[str]) -> dict[str, Any]:
    """Return the merge patch that changes such as ``space.lr.upper=0.5`` describe.

    Values that are not JSON become strings. So do those of fields that hold text, such as ``notes=123``, unless they are null.
    """
    patch: dict[str, Any] = {}
    for change in changes:
        path, given, text = change.partition("=")
        *sections, name = path.split(".")
        if not given or not all([*sections, name]):
            raise SpecError(f"expected FIELD=VALUE after --set, got {change!r}")
        place = patch
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise SpecError(f"--set {change} changes a part of a field, and another --set replaces the whole field")
        if name in place:
            raise SpecError(f"--set {change} replaces the value of another --set")
        value = _value(text)
        holds_text = path in _TEXTS or sections == ["tags"]
        place[name] = text if holds_text and value is not None and not isinstance(value, str) else value
    return patch


def _values(given: Sequence[str]) -> dict[str, Any]:
    """Return the parameters that texts such as ``lr=0.01`` describe. Values that are not JSON become strings."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or not name:
            raise SpecError(f"expected PARAMETER=VALUE after --set, got {one!r}")
        if name in found:
            raise SpecError(f"{name} is given twice")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raise ValueError if a key occurs twice, since one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def rows(settings: Settings, wanted: Filters, limit: int | None) -> list[Row]:
    """Return the wanted experiments of the service or of this home, newest first, as the dicts that `tuner ls --json` prints."""
    if settings.address is None:
        return [_row(one) for one in experiments(**wanted, limit=limit)]
    from tuner.client.records import experiment_record

    with connected(settings, settings.address) as client:
        return [_row(summary(experiment_record(one))) for one in client.experiments(**wanted, limit=limit)]


def _row(one: ExperimentSummary) -> Row:
    return {
        "id": one.id,
        "name": one.name,
        "project": one.project,
        "state": one.state,
        "trials": one.trials,
        "metric": one.metric,
        "mode": one.mode,
        "best_value": one.best_value,
        "best_params": None if one.best_params is None else dict(one.best_params),
        "created_at": rfc3339(one.created_at.timestamp()),
        "ended_at": rfc3339(one.ended_at.timestamp()) if one.ended_at else None,
    }


def listed(client: Client, wanted: Filters, limit: int) -> list[Listed]:
    """Return the wanted experiments of the service, newest first, as `tuner ls` shows them."""
    return [
        Listed(
            created=datetime.fromisoformat(one.created_at).astimezone(),
            id=one.id,
            state=read_state(ExperimentState, one.state),
            trials=one.trials,
            metric=one.metric,
            best=one.best.value if one.best else None,
            finished=one.best is None or one.best.finished is not None,
            method=one.method,
            project=one.project,
            name=one.name,
            abandoned=one.abandoned,
        )
        for one in client.experiments(**wanted, limit=limit)
    ]


def result(settings: Settings, experiment: str, log: bool = False) -> Result:
    """Return the result of an experiment as it is now.

    log: True if the decisions or the histories of the trials are needed, which take most of the time to read.
    """
    if settings.address is None:
        return read(experiment, log=log)
    with connected(settings, settings.address) as client:
        return client.experiment(experiment).result(log=log)


def best(found: Result) -> Row | None:
    """Return the best trial of a result as the dict that `tuner best` prints, or None if there is no best trial."""
    if found.best_trial is None:
        return None
    checkpoint = found.best_checkpoint.info if found.best_checkpoint is not None else None
    schedule = [{"iteration": one["iteration"], "config": config_as_json(one["config"])} for one in found.schedule()]
    return {
        "trial": found.best_trial.number,
        "metric": found.metric,
        "value": found.best_value,
        "runs": [trial.number for trial in found.best_runs],
        "config": config_as_json(found.best_config),
        "schedule": schedule if len(schedule) > 1 else None,
        "checkpoint": None if checkpoint is None else checkpoint.uri,
        "checkpoint_id": None if checkpoint is None else checkpoint.id,
    }


def abandoned(settings: Settings, experiment: str) -> str | None:
    """Return what to do about an experiment whose script exited before the search ended; None for all others."""
    if settings.address is not None:
        with connected(settings, settings.address) as client:
            return client.experiment(experiment).get().next_step
    with Store.open(settings.database_url) as store:
        store.migrate()
        record = store.experiments.get(id_of(store, experiment))
        return next_step(record) if record.abandoned(time.time()) else None


def shown(found: Result, next_step: str | None = None) -> Row:
    """Return a result as the dict that `tuner show --json` prints. next_step: what `abandoned` returned."""
    rows = [
        {
            "number": trial.number,
            "state": str(trial.state),
            "iterations": trial.iterations,
            "best_value": trial.best_value,
            "config": config_as_json(trial.config),
            "reason": trial.reason,
            "waiting": trial.waiting,
        }
        for trial in found.trials
    ]
    head = {"id": found.experiment_id, "name": found.name, "state": found.state, "reason": found.reason}
    tail = {"error": found.error, "notes": found.notes, "best": best(found), "trials": rows}
    return {**head, "next_step": next_step, **tail}


def lines(row: Row) -> Iterator[str]:
    """Yield the lines that `tuner show` prints without `--json`. `row` is what `shown` returned."""
    yield f"{row['name']} {row['id']}  {row['state']}  {row['reason']}".rstrip()
    if row["error"]:
        yield f"error: {row['error']}"
    if row["next_step"]:
        yield row["next_step"]
    if row["best"] is not None:
        top = row["best"]
        mean = f" (the mean of {len(top['runs'])} runs)" if len(top["runs"]) > 1 else ""
        changed = (
            f", the last of {len(top['schedule'])} configurations: see `tuner schedule`" if top["schedule"] else ""
        )
        yield f"best {top['metric']} {top['value']:.6g} by trial {top['trial']}{mean}: {json.dumps(top['config'])}{changed}"
    if row["notes"]:
        yield "notes:"
        yield from (f"  {line}" for line in row["notes"].splitlines())
    for trial in row["trials"]:
        value = "" if trial["best_value"] is None else f"{trial['best_value']:.6g}"
        why = trial["waiting"] or trial["reason"]
        yield f"{trial['number']:>5}  {trial['state']:<10}  {trial['iterations']:>5}  {value:>12}  {why}"


def export(found: Result, file: Path, form: str | None, history: bool) -> None:
    """Write a result to a file, with a row for each trial, or for each report if `history` is True.

    file: the file; ``-`` is standard output.
    form: the format. None: the extension of the file's name determines the format.

    Raises:
        SpecError: there is no such format, or the file cannot be written.
    """
    form = form or file.suffix.removeprefix(".")
    if not form and file == DASH:
        raise SpecError(
            f"standard output has no file extension: pass --format with one of {', '.join(FORMATS)}", "/format"
        )
    if form not in FORMATS:
        raise SpecError(f"expected one of {', '.join(FORMATS)}, got {form!r}", "/format")
    frame: pd.DataFrame = found.dataframe(history)
    for name in [name for name, kind in frame.dtypes.items() if kind.kind == "O"]:
        column = frame[name].map(config_as_json)
        if form == "parquet" and not _has_one_type(column):
            column = column.map(str, na_action="ignore")
        frame[name] = column
    buffer = io.BytesIO()
    match form:
        case "csv":
            frame.to_csv(buffer, index=False)
        case "json":
            # frame.to_json would round numbers to 15 decimal places at best.
            buffer.write((dumps(frame.astype(object).to_dict("records"), indent=1) + "\n").encode())
        case "parquet":
            frame.to_parquet(buffer, index=False)
    if file == DASH:
        sys.stdout.buffer.write(buffer.getvalue())
        sys.stdout.buffer.flush()
        return
    try:
        _write(file, buffer.getvalue())
    except OSError as error:
        raise SpecError(f"cannot write {file}: {error.strerror or error}", "/file") from error


def _write(file: Path, content: bytes) -> None:
    """Write a file in place, so that its owner, its mode and its links stay. On a full disk, an earlier file stays as it was."""
    if file.is_file():
        try:
            with tempfile.TemporaryFile(dir=file.resolve().parent) as room:
                room.write(content)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            # If the user may write the file, but nothing beside it, its room is not known.
    file.write_bytes(content)


def _has_one_type(column: pd.Series[Any]) -> bool:
    """Return True if a column of a parquet file, whose columns have one type, can have these values."""
    import pyarrow
    import pyarrow.parquet

    try:
        values = pyarrow.Array.from_pandas(column)
        # Some types cannot be in a file, such as that of objects without fields.
        pyarrow.parquet.write_table(pyarrow.table({"column": values[:0]}), pyarrow.BufferOutputStream())
    except (pyarrow.ArrowException, OverflowError):  # OverflowError: an integer has more than 64 bits
        return False
    return True


@contextmanager
def connected(settings: Settings, address: str) -> Iterator[Client]:
    """Yield a client that is connected to the service, and close it afterwards."""
    from tuner.client.synchronous import connect  # loads httpx and the models of the API

    with connect(address, token=settings.token, patience_s=PATIENCE_S) as client:
        yield client


def numbered_of(client: Client, experiment: str, number: int) -> TrialHandle:
    """Return a handle for the trial of a service's experiment with this number. Raise NotFound if there is no such trial."""
    handle = client.experiment(experiment)
    found = handle.get()
    check_number(found.name, number, found.trials)
    return handle.trial(number)


def ask(settings: Settings, verb: Command, name: str, number: int | None = None) -> str | Result:
    """Send a verb such as "pause" to the experiment or trial with this id or name. Return a line for the terminal.

    A retry in an ended experiment of this home is also run here. The call then waits for its end, and returns its result.

    number: the number of a trial, if the verb is for a trial of the experiment `name`.
    """
    of_trial = name.startswith("trl_") or number is not None or verb not in VERBS
    if of_trial and number is None and not name.startswith("trl_"):
        raise SpecError(f"{name} is an experiment: also give the number of one of its trials")
    if verb == "pause" and (how := abandoned(settings, name)) is not None:
        raise Conflict(f"there is nothing running to pause: {how}")
    if settings.address is not None:
        with connected(settings, settings.address) as client:
            if not of_trial:
                answer = client.experiment(name).act(verb)
            else:
                answer = (client.trial(name) if number is None else numbered_of(client, name, number)).act(verb)
            return f"asked to {verb} {_named(name, answer['id'], number)}, which is {answer['state']}"
    with Store.open(settings.database_url) as store:
        store.migrate()
        if not of_trial:
            record = act(store, verb, id_of(store, name))
            return f"asked to {verb} {_named(name, record.public_id)}, which is {record.state}"
        wanted = name if number is None else numbered(store, id_of(store, name), number)
        record = store.experiments.by_id(store.trials.get(wanted).experiment_id)
        if verb == "retry" and record.state.ended:
            only_followed(record)  # raises SpecError before the command is written if nothing can run it
        trial = act_on_trial(store, verb, wanted)
        experiment = store.experiments.by_id(trial.experiment_id)
    if verb == "retry" and experiment.state.ended:
        return resume(experiment.public_id)
    return f"asked to {verb} {_named(name, trial.public_id, number)}, which is {trial.state}"


def _named(name: str, found: str, number: int | None = None) -> str:
    """Return how a line for the terminal names an experiment or a trial: as the user has done, and by its id."""
    given = name if number is None else f"trial {number} of {name}"
    return found if given == found else f"{given} ({found})"


def _spec(file: Path) -> Mapping[str, Any]:
    """Return the spec in a YAML or JSON file. The file ``-`` is standard input."""
    try:
        content = sys.stdin.buffer.read() if file == DASH else file.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from error
    try:
        found = _parsed(file, content)
    except RecursionError as error:
        raise SpecError(f"{file} is nested too deeply") from error
    if not isinstance(found, Mapping):
        raise SpecError(f"expected an object in {file}, got {type(found).__name__}")
    return found


def _parsed(file: Path, content: bytes) -> Any:
    try:
        return json.loads(content, parse_constant=_refuse, object_pairs_hook=_once)
    except ValueError as no_json:
        try:
            return yaml.load(content, Yaml)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: for example a number with too many digits
            if file.suffix == ".json":  # YAML's error may be about tabs, which JSON has
                raise SpecError(f"{file} is not JSON: {no_json}") from no_json
            raise SpecError(f"{file} is neither YAML nor JSON: {error}") from error
