"""Write results to CSV files and TensorBoard."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.sdk.callbacks.base import Callback, ObservedTrial
from tuner.sdk.callbacks.libraries import imported
from tuner.space.parameter import config_as_json

OWN = ("event_seq", "training_iteration", "timestamp", "trial_id", "config")
"""The fields of a result that are not metrics. A metric with such a name is called ``metrics/NAME`` there."""
OWNER = "experiment.txt"
"""The file in a folder of logs that has the id of the experiment whose trials are there."""

_claiming = threading.Lock()  # several callbacks of one search may write to the same folder


class CSVLoggerCallback(Callback):
    """Writes ``FOLDER/trial_00003/progress.csv`` with a row for each report, and ``params.json`` with the configuration.

    The columns are the metrics of the trial's first report. After a resume, new rows are appended; no row is written twice.

    Args:
        folder: the folder to write to. None: the experiment's folder in the home. If files of another experiment are in the
            folder, this experiment's files are written to ``FOLDER/EXPERIMENT_ID``.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = folder
        self._seen: dict[int, int] = {}  # trial -> event_seq of the last row
        self._written: dict[int, Any] = {}  # trial -> the configuration in its params.json

    def setup(self, *, folder: str, experiment_id: str, **info: Any) -> None:
        self.folder = _own(self._folder, experiment_id) if self._folder else Path(folder).absolute() / "csv"
        self._seen.clear()
        self._written.clear()

    def on_trial_start(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._write_params(trial)

    def on_trial_restore(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._write_params(trial)

    def on_trial_complete(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._write_params(trial)

    def on_trial_error(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._write_params(trial)

    def _write_params(self, trial: ObservedTrial) -> None:
        """Write the configuration unless it is there. An Optuna objective draws its values after its trial has started."""
        config = config_as_json(trial.config)
        if trial.number in self._written and config == self._written[trial.number]:
            return
        path = self.folder / trial.name / "params.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        self._written[trial.number] = config

    def on_trial_result(self, *, trial: ObservedTrial, result: dict[str, Any], event_seq: int, **info: Any) -> None:
        self._write_row(trial, result, event_seq)
        self._write_params(trial)

    def _write_row(self, trial: ObservedTrial, result: dict[str, Any], event_seq: int) -> None:
        path = self.folder / trial.name / "progress.csv"
        if trial.number not in self._seen:
            self._seen[trial.number] = _last(path)
        if event_seq <= self._seen[trial.number]:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"event_seq": event_seq, **{name: value for name, value in result.items() if name != "config"}}
        try:
            with open(path, "a+", encoding="utf-8", newline="") as file:
                file.seek(0)
                columns = next(csv.reader(file), None)
                file.seek(0, os.SEEK_END)
                writer = csv.DictWriter(file, columns or list(row), extrasaction="ignore", restval="")
                if columns is None:
                    writer.writeheader()
                writer.writerow(row)
        except OSError:
            del self._seen[trial.number]  # a part of the row may be in the file; `_last` removes it at the next report
            raise
        self._seen[trial.number] = event_seq


def _own(folder: str | os.PathLike[str], experiment_id: str) -> Path:
    """Return the folder for an experiment's files: this one, or one below it if this one has files of another experiment."""
    path = Path(folder).absolute()
    owner = path / OWNER
    with _claiming:
        path.mkdir(parents=True, exist_ok=True)
        try:
            if not any(path.glob("trial_*")):
                with open(owner, "x", encoding="utf-8") as file:
                    file.write(experiment_id)
        except FileExistsError:
            pass
        is_own = owner.exists() and owner.read_text(encoding="utf-8") == experiment_id
    return path if is_own else path / experiment_id


def _last(path: Path) -> int:
    """Return the event_seq of the last complete row of a file. Truncate an incomplete last row that a killed process left."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    rows = list(csv.DictReader(whole.decode().splitlines()))
    return int(rows[-1]["event_seq"]) if rows else 0


class TBXLoggerCallback(Callback):
    """Writes scalars for TensorBoard to ``FOLDER/trial_00003``. When a trial ends, adds its configuration and last value.

    Characters that TensorBoard refuses in names become underscores: ``recall@5`` is written as ``recall_5``, or as
    ``recall_5_2`` if there is another metric ``recall_5``.
    It uses tensorboardX, which comes with Ray. ``tensorboard --logdir FOLDER`` shows all trials.

    Args:
        folder: the folder to write to. None: the experiment's folder in the home. If files of another experiment are in the
            folder, this experiment's files are written to ``FOLDER/EXPERIMENT_ID``.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._names = Names(_tag)

    def setup(self, *, folder: str, experiment_id: str, metric: str, **info: Any) -> None:
        self.folder = _own(self._folder, experiment_id) if self._folder else Path(folder).absolute() / "tensorboard"
        self._metric = metric
        self._open = imported(
            "tensorboardX", "SummaryWriter", user="TBXLoggerCallback", library="tensorboardX", install="tensorboardX"
        )

    def _writer(self, trial: ObservedTrial) -> Any:
        if trial.number not in self._writers:
            self._writers[trial.number] = self._open(str(self.folder / trial.name))
        return self._writers[trial.number]

    def on_trial_result(self, *, trial: ObservedTrial, result: dict[str, Any], **info: Any) -> None:
        writer = self._writer(trial)
        found = metrics_of(result)
        names = self._names.of(found)
        for name, value in found.items():
            writer.add_scalar(names[name], value, result["training_iteration"], walltime=result["timestamp"])
        writer.flush()

    def on_trial_complete(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._end(trial)

    def on_trial_error(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._end(trial)

    def _end(self, trial: ObservedTrial) -> None:
        value = trial.last_result.get(self._metric)
        if value is not None and math.isfinite(value):
            writer = self._writer(trial)
            plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in trial.params.items()}
            writer.add_hparams(plain, {f"last/{self._metric}": value}, name="hparams")
        if (open_one := self._writers.pop(trial.number, None)) is not None:
            open_one.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def metrics_of(result: Mapping[str, Any], left_out: Sequence[str] = OWN) -> dict[str, float]:
    """Return the metrics of a result that are finite numbers."""
    return {
        name: value
        for name, value in result.items()
        if name not in left_out and isinstance(value, int | float) and math.isfinite(value)
    }


class Names:
    """Gives metrics or parameters names that another application accepts, and never the same name to two of them.

    allowed: a function that replaces what the application refuses in a name.
    """

    def __init__(self, allowed: Callable[[str], str]) -> None:
        self._allowed = allowed
        self._given: dict[str, str] = {}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the new name of each name. A number is appended to a changed name that is taken. No name changes later."""
        names = list(names)
        for name in sorted({*names} - self._given.keys(), key=lambda name: (self._allowed(name) != name, name)):
            taken, new, count = set(self._given.values()), self._allowed(name), 1
            while new in taken:
                count += 1
                new = f"{self._allowed(name)}_{count}"
            self._given[name] = new
        return {name: self._given[name] for name in names}


def _tag(name: str) -> str:
    """Replace what tensorboardX replaces in a tag."""
    return re.sub(r"[^-/\w.]", "_", name).lstrip("/")
