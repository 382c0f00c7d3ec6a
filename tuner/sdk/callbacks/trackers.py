"""Send results to MLflow and to Weights & Biases, one run for each trial."""

from __future__ import annotations

import re
from typing import Any, Literal

from tuner.sdk.callbacks.base import Callback, ObservedTrial
from tuner.sdk.callbacks.files import Names, metrics_of
from tuner.sdk.callbacks.libraries import imported
from tuner.space.parameter import config_as_json

LONGEST = 240
"""The number of characters to which a name is cut for MLflow, which leaves room for a number in the 250 that it allows."""


class MLflowLoggerCallback(Callback):
    """Logs each trial as an MLflow run: its configuration as params, its reports as metrics.

    A run has the tags ``tuner.experiment_id`` and ``tuner.trial_id``, by which a resumed search finds its trials' runs.
    Characters that MLflow refuses in the names of params and metrics become underscores: ``recall@5`` is logged as ``recall_5``,
    or as ``recall_5_2`` if there is another metric ``recall_5``. Names are cut to 240 characters.

    Args:
        tracking_uri: the tracking server or store. None: the one that MLflow is configured to use.
        experiment_name: the name of the MLflow experiment. None: the name of the search.
        tags: additional tags for each run.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment_name: str | None = None, tags: dict[str, str] | None = None
    ) -> None:
        self._uri, self._name, self._tags = tracking_uri, experiment_name, dict(tags or {})
        self._runs: dict[int, str] = {}
        self._logged: dict[int, set[str]] = {}  # trial -> the names of the params that its run has
        self._params, self._metrics = Names(_allowed), Names(_allowed)

    def setup(self, *, name: str, experiment_id: str, **info: Any) -> None:
        client = imported(
            "mlflow.tracking", "MlflowClient", user="MLflowLoggerCallback", library="MLflow", install="mlflow-skinny"
        )
        self._client = client(tracking_uri=self._uri)
        called = self._name or name
        found = self._client.get_experiment_by_name(called)
        self._experiment = found.experiment_id if found is not None else self._client.create_experiment(called)
        self._id = experiment_id
        self._runs.clear()
        self._logged.clear()

    def _run(self, trial: ObservedTrial, began: float | None = None) -> str:
        """Return the id of the trial's run. Create the run, unless it was created before a resume.

        began: the time at which a run that is created begins. None: now.
        Log the params that the run does not have yet: an Optuna objective draws its values after its trial has started.
        """
        if trial.number not in self._runs:
            found = self._client.search_runs(
                [self._experiment], filter_string=f"tags.`tuner.trial_id` = '{trial.trial_id}'", max_results=1
            )
            if found:
                self._runs[trial.number] = found[0].info.run_id
                self._logged[trial.number] = set(found[0].data.params)
            else:
                tags = {**self._tags, "tuner.experiment_id": self._id, "tuner.trial_id": trial.trial_id}
                run = self._client.create_run(self._experiment, _in_ms(began), run_name=trial.name, tags=tags)
                self._runs[trial.number] = run.info.run_id
                self._logged[trial.number] = set()
        run_id, logged = self._runs[trial.number], self._logged[trial.number]
        names = self._params.of(trial.params)
        for name, value in trial.params.items():
            if (allowed := names[name]) not in logged:
                # This comes first, so that a value which MLflow refuses keeps out the metrics of one report only.
                logged.add(allowed)
                self._client.log_param(run_id, allowed, value)
        return run_id

    def on_trial_start(self, *, trial: ObservedTrial, timestamp: float | None = None, **info: Any) -> None:
        self._run(trial, timestamp)

    def on_trial_restore(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._client.update_run(self._run(trial), status="RUNNING")

    def on_trial_result(self, *, trial: ObservedTrial, result: dict[str, Any], **info: Any) -> None:
        from mlflow.entities import Metric

        time, step = int(result["timestamp"] * 1000), result["training_iteration"]
        found = metrics_of(result)
        names = self._metrics.of(found)
        metrics = [Metric(names[name], value, time, step) for name, value in found.items()]
        self._client.log_batch(self._run(trial), metrics=metrics)

    def on_trial_complete(self, *, trial: ObservedTrial, timestamp: float | None = None, **info: Any) -> None:
        self._end(trial, "KILLED" if trial.status == "cancelled" else "FINISHED", timestamp)

    def on_trial_error(self, *, trial: ObservedTrial, timestamp: float | None = None, **info: Any) -> None:
        self._end(trial, "FAILED", timestamp)

    def _end(self, trial: ObservedTrial, status: str, ended: float | None) -> None:
        run = self._run(trial, ended)  # here, the run of a trial that was never started is created
        self._client.set_tag(run, "tuner.reason", trial.reason)
        self._client.set_terminated(run, status, _in_ms(ended))


def _in_ms(time: float | None) -> int | None:
    return None if time is None else int(time * 1000)


def _allowed(name: str) -> str:
    """Replace what MLflow refuses in a name. If one name is refused, MLflow stores no metric of the report.

    It also refuses names that are not normal relative paths, such as ``/loss`` and ``loss//train``, and names that are longer
    than 250 characters.
    """
    parts = re.sub(r"[^\w./: -]", "_", name)[:LONGEST].split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


class WandbLoggerCallback(Callback):
    """Logs each trial as a Weights & Biases run. The runs of a search form a group.

    A run has the id of its trial, so a resumed search continues the same runs. The step of a report in W&B is its number in the
    search's log, since W&B ignores steps that are not larger than those before, and a retry or an exploit may go back to an
    earlier iteration. Charts show the metrics over ``training_iteration``.

    Args:
        project: the project in Weights & Biases. None: the name of the search.
        group: the group of the runs. None: the id of the search.
        mode: "online", "offline" or "disabled". None: the value of the environment variable WANDB_MODE.
        options: further arguments of ``wandb.init``.
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        **options: Any,
    ) -> None:
        self._project, self._group, self._mode, self._options = project, group, mode, options
        self._runs: dict[int, Any] = {}
        self._configs: dict[int, Any] = {}  # trial -> the configuration that its run has

    def setup(self, *, name: str, experiment_id: str, folder: str, **info: Any) -> None:
        self._init = imported("wandb", "init", user="WandbLoggerCallback", library="Weights & Biases", install="wandb")
        self._given = {
            "project": self._project or name, "group": self._group or experiment_id, "mode": self._mode, "dir": folder,
            **self._options,
        }  # fmt: skip

    def _run(self, trial: ObservedTrial) -> Any:
        """Return the trial's run, with the trial's present configuration.

        A configuration changes under PBT, and while an Optuna objective draws its values.
        """
        config = config_as_json(trial.config)
        if trial.number not in self._runs:
            run = self._runs[trial.number] = self._init(
                id=trial.trial_id,
                name=trial.name,
                config=config,
                resume="allow",
                reinit="create_new",
                **self._given,
            )
            run.define_metric("*", step_metric="training_iteration")
        elif config != self._configs[trial.number]:
            self._runs[trial.number].config.update(config, allow_val_change=True)
        self._configs[trial.number] = config
        return self._runs[trial.number]

    def on_trial_start(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._run(trial)

    def on_trial_restore(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._run(trial).config.update(config_as_json(trial.config), allow_val_change=True)

    def on_trial_result(self, *, trial: ObservedTrial, result: dict[str, Any], event_seq: int, **info: Any) -> None:
        known = {"training_iteration": result["training_iteration"], "_timestamp": result["timestamp"]}
        self._run(trial).log({**metrics_of(result), **known}, step=event_seq)

    def on_trial_complete(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._end(trial, 0)

    def on_trial_error(self, *, trial: ObservedTrial, **info: Any) -> None:
        self._end(trial, 1)

    def _end(self, trial: ObservedTrial, code: int) -> None:
        run = self._run(trial)
        run.summary.update({"status": trial.status, "reason": trial.reason})
        run.finish(exit_code=code)
        del self._runs[trial.number], self._configs[trial.number]

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
