"""The callback through which Lightning training in a trial reports, saves checkpoints, stops and continues.

A report belongs to a validation, to the end of a training epoch, or to a batch. Where possible, it is made between two
epochs, when the hooks of all callbacks have run. By then, EarlyStopping, ModelCheckpoint and the learning-rate
schedulers have finished with the epoch. So training that continues from such a report's checkpoint gives the same
result as uninterrupted training. From a checkpoint that was saved while an epoch was ending, Lightning would skip a
step of a plateau scheduler and fail in EarlyStopping.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from tuner.errors import CheckpointError, SpecError
from tuner.plurals import counted
from tuner.trials.lightning import hyperparameters
from tuner.trials.lightning.flavour import Flavoured, flavour_of
from tuner.trials.training import session

FILE = "checkpoint.ckpt"
On = Literal["validation_end", "train_epoch_end", "train_batch_end"]
_MOMENTS = ("validation_end", "train_epoch_end", "train_batch_end")
_KEY = "tuner"  # the key of this module's data in Lightning's checkpoint


class ReportCallback(Flavoured):
    """Reports the metrics that the module has logged, with a checkpoint if one is due. Outside a trial, it does nothing.

    A trial with one rank needs nothing else: `fit` automatically continues from the trial's checkpoint. A trial with
    several ranks also needs `tuner.lightning.prepare_trainer`. Every rank makes the same number of reports. Only rank
    0's metrics count; log with ``sync_dist=True`` to average the metrics over all ranks.

    Args:
        metrics: the logged metrics to report: a name, a list of names, or {reported name: logged name}. If it is None,
            everything in `trainer.callback_metrics` is reported, plus `epoch`, which counts from 0.
        on: when to report: "validation_end" (except after the sanity check), "train_epoch_end" or "train_batch_end", or
            several of these. The end of an epoch is reported once, before the next epoch begins, with the epoch's
            training metrics. If `on` has several events, the more frequent ones are not reported until the objective
            has been logged or the rarest event has occurred for the first time. After that, a validation's metrics are
            reported only once, not again after every batch.
        checkpoint: True saves Lightning's whole state (weights, optimizers, schedulers, loops, callbacks) in `checkpoint.ckpt`. A
            function ``save(trainer, folder)`` saves something else: it is called on every rank, each time with a new folder for
            that rank, and you restore what it saved yourself. False saves nothing, so that trials cannot be paused or exploited.
            Nothing is written unless a checkpoint is due.
        after_restore: a function ``after_restore(trainer, module)`` that is called when a trial continues from a
            checkpoint, after the optimizers and schedulers have been given the hyperparameters of the new
            configuration. Use it for further changes.
        lightning: "lightning.pytorch" or "pytorch_lightning", in the rare case that this cannot be detected.

    Raises:
        SpecError: a metric was not logged. The message names the metric and those that were logged.
    """

    base: ClassVar[str] = "pytorch:callbacks.Callback"

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        *,
        on: On | Sequence[On] = "validation_end",
        checkpoint: bool | Callable[[Any, str], Any] = True,
        after_restore: Callable[[Any, Any], Any] | None = None,
        lightning: str | None = None,
    ) -> None:
        super().__init__()
        names = [metrics] if isinstance(metrics, str) else metrics
        self.metrics = names if names is None or isinstance(names, Mapping) else {name: name for name in names}
        self.on = (on,) if isinstance(on, str) else tuple(on)
        for moment in self.on:
            if moment not in _MOMENTS:
                raise SpecError(f"expected some of {', '.join(_MOMENTS)}, got {moment!r}", "/on")
        self.checkpoint = checkpoint
        self.after_restore = after_restore
        self.opened = contextlib.ExitStack()  # keeps the folder of a checkpoint open while it is restored
        self._due = False
        self._begun = False  # whether reports no longer wait for the objective to be logged
        self._held_back = False  # whether a report was skipped because the objective was not logged
        self._trained: dict[str, float] = {}  # the metrics that were logged before a validation
        self._validated: dict[str, float] = {}  # the metrics that the latest validation has logged
        self._stale = True  # whether `_validated` has been reported
        self._saving = False
        self._configured: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None
        self._restores_late = False  # whether `fit` will restore the trial's checkpoint after `on_fit_start`
        self._fitting = False  # whether `on_fit_start` was called
        self._optimizer_states: Sequence[dict[str, Any]] = ()  # in the checkpoint that is being restored

    # -- Lightning's hooks, in the order in which a run calls them

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        running = session.current()
        if running is not None and trainer.world_size != running.context.world_size:
            raise SpecError(
                f"this trial has {counted(running.context.world_size, 'rank')}, but the Trainer has {trainer.world_size}: "
                "call tuner.lightning.prepare_trainer(trainer) before fit"
            )
        if running is not None and stage == "fit":
            self._configured = self._restored = None
            self._restores_late = self._fitting = False
            self._restore_in_fit(trainer, running)
            for finder in _finders(trainer):
                self._guard(finder)

    def _restore_in_fit(self, trainer: Any, running: session.Session) -> None:
        """Make the current call to `fit` restore the trial's checkpoint, unless `ckpt_path` was passed to it.

        Lightning chooses the path of the checkpoint before it calls any hook, and loads the file after the hook `setup`.
        """
        if not self.restores(running) or running.checkpoint is None:
            return
        folder = self.opened.enter_context(running.checkpoint.as_directory())
        path = os.path.join(folder, FILE)
        connector = trainer._checkpoint_connector
        if os.path.exists(path) and hasattr(connector, "resume_start"):
            _redirect(connector, path)
            self._restores_late = trainer.strategy.restore_checkpoint_after_setup  # such as FSDP and DeepSpeed

    def restores(self, running: session.Session) -> bool:
        """Return whether the next `fit` restores the trial's checkpoint.

        A Trainer that saves no such checkpoints does not, and neither does a later Trainer, which begins anew as without an
        interruption.
        """
        return self.checkpoint is True and not running.restored

    def _guard(self, finder: Any) -> None:
        """Make a LearningRateFinder or BatchSizeFinder keep what it has found if `fit` restores the trial's checkpoint.

        Its own restore would replace the trial's checkpoint, and it would find another value for weights that are trained.
        Whether or not it runs, note first what `configure_optimizers` has returned, since it changes that.
        """
        vars(finder).pop("on_fit_start", None)  # an earlier call to `fit` may have failed before it called this hook
        run = finder.on_fit_start

        def on_fit_start(trainer: Any, pl_module: Any) -> None:
            del finder.on_fit_start
            self._note_configured(trainer)
            # `Tuner(trainer).lr_find` and the like exit after it.
            if (self._restored is None and not self._restores_late) or finder._early_exit:
                path = trainer.ckpt_path
                try:
                    run(trainer, pl_module)
                finally:
                    trainer._checkpoint_connector._ckpt_path = path  # the finder's own checkpoint is deleted now
            elif self._restored is not None:
                self._keep_found(trainer, finder)

        finder.on_fit_start = on_fit_start

    def _keep_found(self, trainer: Any, finder: Any) -> None:
        assert self._restored is not None
        if (name := _found_name(trainer, finder)) in (found := self._restored.get("found", {})):
            _parsing(trainer, "lightning_setattr")(trainer.lightning_module, name, found[name])

    def _note_configured(self, trainer: Any) -> None:
        if self._configured is None:
            self._configured = hyperparameters.configured(trainer.optimizers, _schedulers(trainer))

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._restored = checkpoint.get(_KEY)
        used = self._restored is not None and trainer.state.fn == "fit"  # `on_fit_start` takes them, and they are large
        self._optimizer_states = checkpoint.get("optimizer_states", ()) if used else ()  # not loaded yet
        if used and self._restores_late and self._fitting:
            for finder in _finders(trainer):
                self._keep_found(trainer, finder)
            self._continue(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        running = session.current()
        self._due = self._held_back = False
        self._begun = running is not None and running.context.start_iteration + running.count > 0
        self._fitting = True
        self._note_configured(trainer)
        if self._restored is not None:
            self._continue(trainer)

    def _continue(self, trainer: Any) -> None:
        """Prepare for a checkpoint that Lightning has begun to restore. The optimizers are restored last."""
        assert self._restored is not None
        assert self._configured is not None
        if self._restored.get("should_stop") and self._restored.get("config") == _config(session.current()):
            # Lightning restores the state of EarlyStopping, but not its decision to stop.
            trainer.should_stop = True
        states, self._optimizer_states = self._optimizer_states, ()
        _say_new(hyperparameters.drop_foreign_states(states, self._restored["configured"], self._configured))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if (running := session.current()) is None:
            return
        if "validation_end" in self.on and not trainer.enable_validation and len(self.on) == 1:
            raise SpecError('there is no validation to report on; pass on="train_epoch_end" to ReportCallback', "/on")
        self._check_restored()
        restored, self._restored = self._restored, None
        if restored is None:
            return
        self.opened.close()
        running.restored = True
        trainer.ckpt_path = None  # a later call to test or predict must not load the checkpoint again
        if restored["between_epochs"]:
            _begin_an_epoch(trainer)
        assert self._configured is not None
        _say_new(
            hyperparameters.put_in_force(
                trainer.optimizers,
                _schedulers(trainer),
                restored["configured"],
                self._configured,
                _paces(trainer, restored["steps_per_epoch"]),
            )
        )
        if self.after_restore is not None:
            self.after_restore(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._report_if_due(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if "train_batch_end" in self.on:
            self._note(trainer, "train_batch_end")
            self._arrive(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._trained = _logged(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if "validation_end" in self.on and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._note(trainer, "validation_end")
            before = self._trained
            logged = _logged(trainer)
            self._validated = {n: v for n, v in logged.items() if n in self._validated or before.get(n) != v}
            self._stale = False
            self._arrive(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if "train_epoch_end" in self.on:
            self._note(trainer, "train_epoch_end")
            self._due = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._held_back and not self._begun:  # the objective was never logged: `_report` raises the error
            self._begun = self._due = True
        self._report_if_due(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.opened.close()
        if isinstance(exception, session.LeaveTrial):
            # Lightning will finalize every logger as "failed", but a trial that is stopped or paused has not failed.
            for logger in trainer.loggers:
                _finalize_as_success(logger)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if not self._saving:
            return
        progress = trainer.fit_loop.epoch_progress.current
        between = progress.started == progress.processed == progress.completed
        if between:
            _forget_next_epoch(checkpoint["loops"]["fit_loop"])
        checkpoint[_KEY] = {
            "configured": self._configured,
            "between_epochs": between,
            "steps_per_epoch": _steps_per_epoch(trainer),
            "found": _found(trainer),
            "should_stop": trainer.should_stop,
            "config": _config(session.current()),
        }

    # -- reports

    def _arrive(self, trainer: Any) -> None:
        """Report now or, at the last batch of an epoch, after the epoch."""
        if trainer.is_last_batch:
            self._due = True
        else:
            self._report(trainer, trainer.fit_loop.epoch_progress.current.processed)

    def _report_if_due(self, trainer: Any) -> None:
        if self._due:
            self._due = False
            self._report(trainer, trainer.fit_loop.epoch_progress.current.processed - 1)

    def _report(self, trainer: Any, epoch: int) -> None:
        running = session.current()
        if running is None or self._is_too_early(trainer, running):
            return
        values = self._values(trainer, epoch) if running.context.world_rank == 0 else {}
        source = (lambda folder: self._save(trainer, folder)) if self.checkpoint else None
        running.report(values, step=trainer.global_step, checkpoint=source)

    def _note(self, trainer: Any, moment: str) -> None:
        """Stop waiting for the objective if this is the rarest event in `on`: by then, the objective should be logged."""
        possible = (m for m in _MOMENTS if m in self.on and (m != "validation_end" or trainer.enable_validation))
        if moment == next(possible):
            self._begun = True

    def _is_too_early(self, trainer: Any, running: session.Session) -> bool:
        """Return whether reports still have to wait because the objective has not been logged.

        Rank 0 decides for all ranks, because all must make the same number of reports.
        """
        if not self._begun:
            wanted = [running.objective] if self.metrics is None else self.metrics.values()
            lacks = any(name is not None and name not in trainer.callback_metrics for name in wanted)
            self._held_back = bool(trainer.strategy.broadcast(lacks))
            self._begun = not self._held_back
        return not self._begun

    def _values(self, trainer: Any, epoch: int) -> dict[str, float]:
        logged = _logged(trainer)
        known = self._validated if self._stale else {}
        self._stale = True
        old = {name for name, value in known.items() if logged.get(name) == value}
        if self.metrics is None:
            return {"epoch": epoch, **{name: value for name, value in logged.items() if name not in old}}
        missing = [name for name in self.metrics.values() if name not in logged]
        if missing:
            have = ", ".join(sorted(logged)) or "none"
            raise SpecError(f"{', '.join(missing)} was not logged by self.log; logged so far: {have}", "/metrics")
        chosen = {name: logged[source] for name, source in self.metrics.items()}
        return {name: value for name, value in chosen.items() if self.metrics[name] not in old} or chosen

    def _save(self, trainer: Any, folder: str) -> None:
        if callable(self.checkpoint):
            self.checkpoint(trainer, folder)
            return
        self._saving = True
        try:
            save_everywhere(trainer, folder)
        finally:
            self._saving = False

    def _check_restored(self) -> None:
        running = session.current()
        if running is None or running.checkpoint is None or self._restored is not None or self.checkpoint is not True:
            return
        if running.count == 0 and not running.restored:
            raise CheckpointError(
                f"this trial continues from {running.checkpoint}, but Lightning was given another checkpoint: "
                "do not pass ckpt_path to fit"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, opened=contextlib.ExitStack())


def save_everywhere(trainer: Any, folder: str) -> None:
    """Save the trainer's state in `folder`, which differs from rank to rank. Call this on all ranks.

    If the model is sharded, Lightning makes every rank write to rank 0's path, even on other nodes. On each other node,
    this function therefore moves the written files to the folder of the node's first rank.
    """
    path = os.path.join(folder, FILE)
    trainer.save_checkpoint(path, weights_only=False)
    used = trainer.strategy.broadcast(path)
    if used == path or not os.path.isdir(used) or os.path.exists(os.path.join(used, ".metadata")):
        return
    if trainer.strategy.local_rank == 0:
        os.rename(used, path)


def _say_new(changes: Sequence[str]) -> None:
    for change in changes:
        print(f"new configuration: {change}")  # print, so that the log has it with any logging setup


def _logged(trainer: Any) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def _config(running: session.Session | None) -> str:
    """Return a trial's configuration as text. After an exploit, it differs from that of the checkpoint."""
    return "" if running is None else json.dumps(running.context.config, sort_keys=True, default=repr)


def _schedulers(trainer: Any) -> list[Any]:
    return [config.scheduler for config in trainer.lr_scheduler_configs]


def _finders(trainer: Any) -> list[Any]:
    names = {"LearningRateFinder", "BatchSizeFinder"}
    return [one for one in trainer.callbacks if names & {base.__name__ for base in type(one).__mro__}]


def _found_name(trainer: Any, finder: Any) -> str | None:
    """Return the name of the module's attribute that a finder sets, or None if it sets none."""
    if hasattr(finder, "_batch_arg_name"):
        return str(finder._batch_arg_name)
    names = (finder._attr_name,) if finder._attr_name else ("lr", "learning_rate")
    has = _parsing(trainer, "lightning_hasattr")
    return next((name for name in names if finder._update_attr and has(trainer.lightning_module, name)), None)


def _found(trainer: Any) -> dict[str, Any]:
    """Return what the finders among the callbacks have found, by the name of the module's attribute."""
    names = filter(None, (_found_name(trainer, finder) for finder in _finders(trainer)))
    return {name: _parsing(trainer, "lightning_getattr")(trainer.lightning_module, name) for name in names}


def _parsing(trainer: Any, name: str) -> Any:
    return flavour_of(trainer).find(f"pytorch:utilities.parsing.{name}")


def _steps_per_epoch(trainer: Any) -> float:
    """Return the number of optimizer steps in an epoch, or infinity if a loader has no length."""
    batches = float(trainer.num_training_batches)
    return math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else batches


def _paces(trainer: Any, before: float) -> list[float]:
    """Return, for each scheduler, how many steps now correspond to one step when an epoch had `before` optimizer steps."""
    now = _steps_per_epoch(trainer)
    pace = now / before if before and math.isfinite(now) and math.isfinite(before) else 1.0
    return [pace if config.interval == "step" else 1.0 for config in trainer.lr_scheduler_configs]


def _forget_next_epoch(fit_loop: dict[str, Any]) -> None:
    """Change the progress in a checkpoint that is saved between two epochs, so that it does not count the next epoch.

    Lightning already counts the next epoch as ready at this point.
    """
    for part in ("total", "current"):
        progress = fit_loop["epoch_progress"][part]
        progress["ready"] = progress["completed"]


def _begin_an_epoch(trainer: Any) -> None:
    """Make Lightning begin a new epoch after restoring a checkpoint that was saved between two epochs.

    With `max_steps`, Lightning would assume that training is in the middle of an epoch.
    """
    trainer.fit_loop._restarting = False
    trainer.fit_loop.epoch_loop.restarting = False


def _redirect(connector: Any, path: str) -> None:
    """Make the connector's next call to `resume_start` load this checkpoint, unless another path is passed to it."""
    begin = connector.resume_start
    takes_weights_only = "weights_only" in inspect.signature(begin).parameters

    def resume_start(checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
        del connector.resume_start
        if checkpoint_path:
            begin(checkpoint_path, *args, **kwargs)
        elif takes_weights_only:
            begin(path, weights_only=False)  # the checkpoint contains more than tensors
        else:
            begin(path)

    connector.resume_start = resume_start


def _finalize_as_success(logger: Any) -> None:
    finalize = logger.finalize

    def once(status: str) -> None:
        del logger.finalize
        finalize("success" if status == "failed" else status)

    logger.finalize = once
